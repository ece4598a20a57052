//! Persistent memory in the simulator: every state that a power cut can leave, and every misuse of flush and fence.
//!
//! Input: an algorithm that runs on a [`SimPersistentMemory`] as on any [`PersistentMemory`]; a check of what recovery
//! finds. Output: a [`CrashSweep`] of the states that the check accepted, or a [`CrashFailure`] that names the point of
//! the cut and the seed; the [`MemoryMisuse`] of the run.
//! Invariant: the states of a cut include every state that the rules of [`headwater_host::persistent_memory`] allow, or a
//! sample of them drawn from the seed if they are more than the caller's bound.
//!
//! # What this does not do
//! It models one thread: each fence covers all flushes before it. It damages no line: bytes that are durable stay.

mod crash_sweep;
mod line_stores;
mod misuse;
mod pending_stores;
#[cfg(test)]
mod reachable;
#[cfg(test)]
mod tests;

pub use crash_sweep::{CrashBounds, CrashFailure, CrashImage, CrashSweep};
pub use line_stores::WordOrder;
pub use misuse::MemoryMisuse;

use headwater_host::copy::persist::STREAMING_PERSIST_BYTES_MIN;
use headwater_host::persistent_memory::{FenceError, LINE_BYTES, PersistentMemory, WORD_BYTES};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// One operation that the memory recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Bytes stored through the cache.
    Store {
        /// The first byte.
        offset: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Bytes stored past the cache.
    StoreStreaming {
        /// The first byte.
        offset: usize,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The write-back of lines.
    Flush(Range<usize>),
    /// A fence.
    Fence,
}

impl fmt::Display for MemoryOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { offset, bytes } => write!(f, "store of {} bytes at {offset}", bytes.len()),
            Self::StoreStreaming { offset, bytes } => {
                write!(f, "streaming store of {} bytes at {offset}", bytes.len())
            }
            Self::Flush(range) => write!(f, "flush of {} to {}", range.start, range.end),
            Self::Fence => f.write_str("fence"),
        }
    }
}

/// Persistent memory that records what an algorithm does to it.
#[derive(Debug)]
pub struct SimPersistentMemory {
    streaming_from_bytes: usize,
    state: RefCell<RecordedState>,
}

#[derive(Debug)]
struct RecordedState {
    /// The bytes before the first operation, all durable.
    initial: Vec<u8>,
    /// The bytes as a load sees them.
    visible: Vec<u8>,
    operations: Vec<MemoryOperation>,
}

impl SimPersistentMemory {
    /// Creates memory of zeros.
    ///
    /// # Panics
    /// The length is not a multiple of a line, as for [`with_bytes`](Self::with_bytes).
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self::with_bytes(vec![0; bytes])
    }

    /// Creates memory with these bytes, all of them durable: the memory that the next boot finds.
    ///
    /// # Panics
    /// The length is not a multiple of a line.
    #[must_use]
    pub fn with_bytes(bytes: Vec<u8>) -> Self {
        assert!(bytes.len().is_multiple_of(LINE_BYTES), "{} bytes are not whole lines", bytes.len());
        let state = RecordedState { visible: bytes.clone(), initial: bytes, operations: Vec::new() };
        Self { streaming_from_bytes: STREAMING_PERSIST_BYTES_MIN, state: RefCell::new(state) }
    }

    /// Sets the length from which [`PersistentMemory::write`] streams.
    #[must_use]
    pub fn with_streaming_from(self, bytes: usize) -> Self {
        Self { streaming_from_bytes: bytes, ..self }
    }

    /// Returns the number of operations so far: the point at which a power cut now would strike. What an algorithm
    /// acknowledged at a point must survive a cut at this point and at every later one.
    #[must_use]
    pub fn point(&self) -> usize {
        self.state.borrow().operations.len()
    }

    /// Returns the operations so far.
    #[must_use]
    pub fn operations(&self) -> Vec<MemoryOperation> {
        self.state.borrow().operations.clone()
    }

    /// Cuts the power at every point so far, and passes the states that memory can then have to `check`.
    ///
    /// # Errors
    /// The first state that the check refused.
    pub fn crash_sweep<E>(
        &self,
        bounds: CrashBounds,
        check: impl FnMut(&CrashImage) -> Result<(), E>,
    ) -> Result<CrashSweep, CrashFailure<E>> {
        let state = self.state.borrow();
        crash_sweep::sweep(&state.initial, &state.operations, bounds, check)
    }

    /// Returns every misuse of the run so far, in the order in which it was found.
    #[must_use]
    pub fn misuse(&self) -> Vec<MemoryMisuse> {
        let state = self.state.borrow();
        misuse::find(&state.initial, &state.operations)
    }

    /// Records an operation, and applies what it stores.
    #[track_caller]
    fn record(&self, operation: MemoryOperation) {
        let mut state = self.state.borrow_mut();
        if let MemoryOperation::Store { offset, bytes } | MemoryOperation::StoreStreaming { offset, bytes } =
            &operation
        {
            let range = checked(*offset, bytes.len(), state.visible.len());
            state.visible[range].copy_from_slice(bytes);
        }
        state.operations.push(operation);
    }
}

/// Returns a range that lies in the memory.
#[track_caller]
fn checked(offset: usize, bytes: usize, memory_bytes: usize) -> Range<usize> {
    let end = offset.checked_add(bytes).filter(|end| *end <= memory_bytes);
    let Some(end) = end else {
        panic!("{bytes} bytes at {offset} do not lie in memory of {memory_bytes} bytes");
    };
    offset..end
}

#[track_caller]
fn assert_aligned(offset: usize) {
    assert!(offset.is_multiple_of(WORD_BYTES), "a word at {offset}, which is not a multiple of 8");
}

impl PersistentMemory for SimPersistentMemory {
    fn bytes(&self) -> usize {
        self.state.borrow().visible.len()
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        let state = self.state.borrow();
        into.copy_from_slice(&state.visible[checked(offset, into.len(), state.visible.len())]);
    }

    fn load_word(&self, offset: usize) -> u64 {
        assert_aligned(offset);
        let mut word = [0; WORD_BYTES];
        self.load(offset, &mut word);
        u64::from_le_bytes(word)
    }

    fn store(&self, offset: usize, from: &[u8]) {
        self.record(MemoryOperation::Store { offset, bytes: from.to_vec() });
    }

    fn store_word(&self, offset: usize, value: u64) {
        assert_aligned(offset);
        self.store(offset, &value.to_le_bytes());
    }

    fn store_streaming(&self, offset: usize, from: &[u8]) {
        self.record(MemoryOperation::StoreStreaming { offset, bytes: from.to_vec() });
    }

    fn fill(&self, range: Range<usize>, value: u8) {
        self.store_streaming(range.start, &vec![value; range.len()]);
    }

    fn flush(&self, range: Range<usize>) {
        let inside = checked(range.start, range.len(), self.bytes());
        self.record(MemoryOperation::Flush(inside));
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.record(MemoryOperation::Fence);
        Ok(())
    }

    fn streaming_from_bytes(&self) -> usize {
        self.streaming_from_bytes
    }
}
