//! The data of a command, while it arrives and when it is there.
//!
//! In: how many bytes will come, then the bytes, in order. Out: all of them. Invariant: what has not arrived is never
//! shown; a pool that has nothing to give costs no command, its data lies on the heap then.

use headwater_dma::buffer::Buffer;
use headwater_dma::pool::Pool;
use std::ops::Deref;

/// From so many bytes on data is payload, and comes to lie in the pool: a few pages. Below are lists of ranges, names and
/// small values, which a page each would waste.
const POOLED_MIN: usize = 16_384;

/// Data of a command, complete.
#[derive(Debug)]
pub enum CommandData {
    /// On the heap.
    Heap(Vec<u8>),
    /// In a buffer of the pool, which gets it back when this is dropped.
    Pooled(Buffer),
}

impl Default for CommandData {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl CommandData {
    /// Room for `bytes` bytes, none of which is there yet.
    pub(super) fn expect(&mut self, bytes: usize, pool: Option<&Pool>) {
        let pooled = pool.filter(|_| bytes >= POOLED_MIN).and_then(|pool| pool.buffer(bytes).ok());
        match (pooled, &mut *self) {
            (Some(buffer), _) => *self = Self::Pooled(buffer),
            (None, Self::Heap(room)) => room.reserve_exact(bytes),
            (None, Self::Pooled(_)) => *self = Self::Heap(Vec::with_capacity(bytes)),
        }
    }

    /// Takes bytes that go behind the `received` that are there. No more come than were expected.
    pub(super) fn put(&mut self, received: usize, bytes: &[u8]) {
        match self {
            Self::Heap(room) => room.extend_from_slice(bytes),
            Self::Pooled(buffer) => {
                if let Some(place) = buffer.get_mut(received..received + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
            }
        }
    }

    /// Forgets what is there; heap memory is kept.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Heap(room) => room.clear(),
            Self::Pooled(_) => *self = Self::default(),
        }
    }
}

impl Deref for CommandData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pooled(buffer) => buffer,
        }
    }
}

impl AsRef<[u8]> for CommandData {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use headwater_dma::pool::PoolConfig;

    #[test]
    fn long_data_lies_in_the_pool_and_is_what_was_sent_in_parts() {
        let pool = Pool::open(PoolConfig { cap: 4 << 20, ..PoolConfig::default() }).unwrap();
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
        let mut data = CommandData::default();
        data.expect(sent.len(), Some(&pool));
        for (part, bytes) in sent.chunks(30_000).enumerate() {
            data.put(part * 30_000, bytes);
        }
        assert!(pool.lookup(data.as_ptr()).is_some());
        assert_eq!(&*data, &sent[..]);
        data.clear();
        assert!(data.is_empty());
    }

    #[test]
    fn short_data_and_data_that_no_pool_has_room_for_lie_on_the_heap() {
        let pool = Pool::open(PoolConfig { cap: 4 << 20, ..PoolConfig::default() }).unwrap();
        for (bytes, pool) in [(POOLED_MIN - 1, Some(&pool)), (8 << 20, Some(&pool)), (POOLED_MIN, None)] {
            let mut data = CommandData::default();
            data.expect(bytes, pool);
            data.put(0, &vec![7; bytes]);
            assert!(matches!(&data, CommandData::Heap(there) if there.len() == bytes));
        }
    }
}
