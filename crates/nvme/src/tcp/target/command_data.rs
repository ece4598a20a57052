//! The data of a command, while it is received and when it is complete.
//!
//! Input: the number of bytes, then the bytes in order. Output: all bytes.
//! Invariant: bytes that were not received are never read; if the pool cannot allocate, the data goes to the heap, and
//! the command fails only if the heap cannot allocate either.

use headwater_dma::buffer::PoolBuffer;
use headwater_dma::pool::Pool;
use std::collections::TryReserveError;
use std::ops::Deref;

/// Data of at least this many bytes, a few pages, is allocated from the pool. Smaller data is range lists, names and
/// small values, for each of which a page would be wasted.
const POOLED_MIN: usize = 16_384;

/// The data of a command.
#[derive(Debug)]
pub enum CommandData {
    /// Data on the heap.
    Heap(Vec<u8>),
    /// Data in a pool buffer, released to the pool on drop.
    Pooled(PoolBuffer),
}

impl Default for CommandData {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl CommandData {
    /// Reserves memory for `bytes` bytes to be received.
    ///
    /// # Errors
    /// Neither the pool nor the heap has so many.
    pub(super) fn reserve(&mut self, bytes: usize, pool: Option<&Pool>) -> Result<(), TryReserveError> {
        let pooled = pool.filter(|_| bytes >= POOLED_MIN).and_then(|pool| pool.buffer(bytes).ok());
        if let Some(buffer) = pooled {
            *self = Self::Pooled(buffer);
            return Ok(());
        }
        if matches!(self, Self::Pooled(_)) {
            *self = Self::default();
        }
        match self {
            Self::Heap(room) => room.try_reserve_exact(bytes),
            Self::Pooled(_) => Ok(()),
        }
    }

    /// Writes `bytes` after the first `received` bytes. The total never exceeds the reserved length.
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

    /// Removes the data; keeps heap memory.
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
    fn long_data_is_assembled_in_a_pool_buffer() {
        let pool = Pool::open(PoolConfig { cap: 4 << 20, ..PoolConfig::default() }).unwrap();
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(100_000).collect();
        let mut data = CommandData::default();
        data.reserve(sent.len(), Some(&pool)).unwrap();
        for (part, bytes) in sent.chunks(30_000).enumerate() {
            data.put(part * 30_000, bytes);
        }
        assert!(pool.lookup(data.as_ptr()).is_some());
        assert_eq!(&*data, &sent[..]);
        data.clear();
        assert!(data.is_empty());
    }

    #[test]
    fn short_data_and_data_without_pool_space_go_to_the_heap() {
        let pool = Pool::open(PoolConfig { cap: 4 << 20, ..PoolConfig::default() }).unwrap();
        for (bytes, pool) in [(POOLED_MIN - 1, Some(&pool)), (8 << 20, Some(&pool)), (POOLED_MIN, None)] {
            let mut data = CommandData::default();
            data.reserve(bytes, pool).unwrap();
            data.put(0, &vec![7; bytes]);
            assert!(matches!(&data, CommandData::Heap(there) if there.len() == bytes));
        }
    }
    #[test]
    fn data_for_which_there_is_no_memory_is_an_error_and_the_next_data_is_not() {
        let mut data = CommandData::default();
        assert!(data.reserve(usize::MAX, None).is_err());
        data.reserve(3, None).unwrap();
        data.put(0, b"abc");
        assert_eq!(&*data, b"abc");
    }
}
