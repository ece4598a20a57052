//! The buffers in which long arguments are received, kept for the next ones.
//!
//! Input: the length of an argument; the rest of a buffer whose command is parsed. Output: a buffer with that much room.
//! Invariant: a buffer is used again only when nothing refers to its bytes any more; the bytes that are kept have a limit
//! for all clients together.
//!
//! Memory that the allocator returned to the kernel costs a page fault for each 4 KiB when it is received into again, as
//! much as the rest of a SET.

use super::limits::{RECEIVE_BUFFERS_BYTES_MAX, RECEIVE_BUFFERS_MAX};
use bytes::BytesMut;
use std::collections::VecDeque;

/// A buffer that is kept. Values that were received into it may still be in use.
#[derive(Debug)]
struct KeptBuffer {
    rest: BytesMut,
    capacity: usize,
}

/// The free list of long receive buffers, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffers {
    kept: VecDeque<KeptBuffer>,
    bytes: usize,
}

impl ReceiveBuffers {
    /// Returns an empty buffer with room for this many bytes: the smallest of those kept that suffices, or a new one.
    pub(crate) fn take(&mut self, bytes: usize) -> BytesMut {
        let mut best: Option<(usize, usize)> = None;
        for (at, buffer) in self.kept.iter_mut().enumerate() {
            let is_better = best.is_none_or(|(_, capacity)| buffer.capacity < capacity);
            if buffer.capacity >= bytes && is_better && buffer.rest.try_reclaim(bytes) {
                best = Some((at, buffer.capacity));
            }
        }
        match best.and_then(|(at, _)| self.kept.remove(at)) {
            Some(buffer) => {
                self.bytes -= buffer.capacity;
                buffer.rest
            }
            None => BytesMut::with_capacity(bytes),
        }
    }

    /// Keeps a buffer of this capacity, of which `rest` is a handle, and releases the oldest ones beyond the limits.
    pub(crate) fn put_back(&mut self, mut rest: BytesMut, capacity: usize) {
        if capacity > RECEIVE_BUFFERS_BYTES_MAX {
            return;
        }
        rest.clear();
        self.bytes += capacity;
        self.kept.push_back(KeptBuffer { rest, capacity });
        while (self.bytes > RECEIVE_BUFFERS_BYTES_MAX || self.kept.len() > RECEIVE_BUFFERS_MAX)
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.capacity;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &mut ReceiveBuffers, bytes: usize) -> (BytesMut, usize) {
        let mut buffer = buffers.take(bytes);
        let capacity = buffer.capacity();
        buffer.resize(bytes, 1);
        (buffer, capacity)
    }

    #[test]
    fn a_buffer_is_used_again_once_nothing_refers_to_its_bytes() {
        let mut buffers = ReceiveBuffers::default();
        let (mut buffer, capacity) = filled(&mut buffers, 100_000);
        let start = buffer.as_ptr();
        let value = buffer.split_to(100_000).freeze();
        buffers.put_back(buffer, capacity);
        let (other, other_capacity) = filled(&mut buffers, 50_000);
        assert_ne!(other.as_ptr(), start, "the value is still in use");
        assert!(value.iter().all(|byte| *byte == 1));
        drop(value);
        buffers.put_back(other, other_capacity);
        // The smallest that suffices; the larger one is left for a longer argument.
        assert_ne!(buffers.take(50_000).as_ptr(), start);
        let again = buffers.take(100_000);
        assert_eq!((again.as_ptr(), again.len()), (start, 0));
        assert_eq!((buffers.kept.len(), buffers.bytes), (0, 0));
    }

    #[test]
    fn kept_bytes_and_buffers_stay_within_their_limits() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut buffers, mut values) = (ReceiveBuffers::default(), Vec::new());
        for number in 0..2_000_u64 {
            let bytes = random.usize(8..RECEIVE_BUFFERS_BYTES_MAX / 8);
            let mut buffer = buffers.take(bytes);
            assert!(buffer.capacity() >= bytes && buffer.is_empty(), "seed {seed}");
            let capacity = buffer.capacity();
            buffer.extend_from_slice(&number.to_le_bytes());
            values.push((number, buffer.split().freeze()));
            buffers.put_back(buffer, capacity);
            let kept: usize = buffers.kept.iter().map(|buffer| buffer.capacity).sum();
            assert_eq!(buffers.bytes, kept, "seed {seed}");
            assert!(kept <= RECEIVE_BUFFERS_BYTES_MAX && buffers.kept.len() <= RECEIVE_BUFFERS_MAX);
            if random.bool() {
                let (number, value) = values.swap_remove(random.usize(..values.len()));
                assert_eq!(value[..], number.to_le_bytes(), "seed {seed}: a value in use was overwritten");
            }
        }
        buffers.put_back(BytesMut::new(), RECEIVE_BUFFERS_BYTES_MAX + 1);
        assert!(buffers.bytes <= RECEIVE_BUFFERS_BYTES_MAX, "seed {seed}");
    }
}
