//! Persistent memory as an algorithm sees it: stores, flushes and fences.
//!
//! Input: offsets, bytes, and the points at which they must be durable. Output: the bytes, also after a power cut, as far
//! as the algorithm flushed and fenced them. Invariant: one trait, [`PersistentMemory`], stands between an algorithm and
//! its memory, so that the same code runs on [`MappedPersistentMemory`] and on the simulator, which shows it every state
//! that a power cut can leave.
//!
//! # What a power cut leaves
//! Memory becomes durable by lines of 64 bytes, in an order that the processor chooses. Before the fence that makes a
//! store durable, it may be durable or not:
//! * Of the calls of [`store`](PersistentMemory::store) and [`store_word`](PersistentMemory::store_word) to one line, the
//!   first ones are durable, a part of the next, and none after that. Different lines are independent.
//! * Of one call, any of its words may be durable and any missing: a copy stores them in any order. A word is 8 aligned
//!   bytes that lie wholly in the range; the bytes at either end that fill no word count one by one.
//! * Of the calls of [`store_streaming`](PersistentMemory::store_streaming) and [`fill`](PersistentMemory::fill), any word
//!   may be durable, before or after any other store.
//!
//! A [`flush`](PersistentMemory::flush) followed by a [`fence`](PersistentMemory::fence) makes the stores before the flush
//! durable. A fence alone makes streaming stores durable.

mod mapped;

pub use mapped::{DurabilityMethod, MapMemoryError, MappedPersistentMemory};

use crate::copy::persist::STREAMING_PERSIST_BYTES_MIN;
use std::ops::Range;

/// The unit in which memory becomes durable.
pub const LINE_BYTES: usize = crate::copy::persist::lines::LINE_BYTES;

/// The largest unit that becomes durable whole or not at all.
pub const WORD_BYTES: usize = 8;

/// The error that a fence could not make bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes at offset {offset} of a mapped file were not written to it: {errno}; what was stored since the last \
     fence may be lost: stop, and recover from the file"
)]
pub struct FenceError {
    /// The first byte of the range.
    pub offset: usize,
    /// The length of the range.
    pub bytes: usize,
    /// The kernel's error.
    pub errno: rustix::io::Errno,
}

/// Memory that keeps its bytes when the power fails.
///
/// Fences are those of one thread: a fence makes durable what the same thread stored and flushed. Threads may use
/// different ranges at the same time.
///
/// # Panics
/// Every method panics on a range that does not lie in the memory, and the word methods on an offset that is not a
/// multiple of 8. An offset that was read from the memory is validated before it is used as one.
pub trait PersistentMemory {
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Copies from the memory. The bytes include stores that are not durable yet.
    fn load(&self, offset: usize, into: &mut [u8]);

    /// Loads an aligned little-endian word at once.
    fn load_word(&self, offset: usize) -> u64;

    /// Stores bytes through the cache. They are durable after a [`flush`](Self::flush) and a [`fence`](Self::fence).
    fn store(&self, offset: usize, from: &[u8]);

    /// Stores an aligned little-endian word at once: a power cut leaves the old value or the new one.
    fn store_word(&self, offset: usize, value: u64);

    /// Stores bytes past the cache. They are durable after a [`fence`](Self::fence), without a flush. Other threads see them
    /// after it.
    fn store_streaming(&self, offset: usize, from: &[u8]);

    /// Fills a range as [`store_streaming`](Self::store_streaming) does.
    fn fill(&self, range: Range<usize>, value: u8);

    /// Starts the write-back of every line that the range touches.
    fn flush(&self, range: Range<usize>);

    /// Makes durable what was flushed or streamed before it, and orders it before every later store.
    ///
    /// # Errors
    /// [`FenceError`]; every later fence of this memory fails too, because the kernel does not keep what it could not
    /// write.
    fn fence(&self) -> Result<(), FenceError>;

    /// Returns the length from which [`write`](Self::write) streams.
    fn streaming_from_bytes(&self) -> usize {
        STREAMING_PERSIST_BYTES_MIN
    }

    /// Stores bytes, streaming or flushed by their length. They are durable after a [`fence`](Self::fence).
    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        if from.len() < self.streaming_from_bytes() {
            self.store(offset, from);
            self.flush(offset..offset + from.len());
        } else {
            self.store_streaming(offset, from);
        }
    }

    /// Stores a word and starts its write-back. It is durable after a [`fence`](Self::fence).
    #[inline]
    fn write_word(&self, offset: usize, value: u64) {
        self.store_word(offset, value);
        self.flush(offset..offset + WORD_BYTES);
    }
}
