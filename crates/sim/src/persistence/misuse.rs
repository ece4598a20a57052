//! Misuse of flush and fence in a recorded run.
//!
//! Input: the operations of a run that has ended. Output: stores that nothing makes durable, and flushes and fences
//! without effect. Invariant: a run without misuse leaves no store that a power cut after its end can take away.

use super::MemoryOperation;
use super::pending_stores::PendingStores;

/// An operation that does not do what its caller needs, or that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryMisuse {
    /// A store that no flush covers at the end of the run.
    #[error("operation {operation} stored to line {line}, and no flush followed: flush the line")]
    NeverFlushed {
        /// The number of the line.
        line: usize,
        /// The number of the store.
        operation: usize,
    },
    /// A streaming store, or a flushed one, that no fence covers at the end of the run.
    #[error("operation {operation} stored to line {line}, and no fence followed: fence before the end")]
    NeverFenced {
        /// The number of the line.
        line: usize,
        /// The number of the store.
        operation: usize,
    },
    /// A flush of a line to which nothing was stored through the cache since the flush before.
    #[error("operation {operation} flushed line {line}, where no store waited: remove the flush")]
    RedundantFlush {
        /// The number of the line.
        line: usize,
        /// The number of the flush.
        operation: usize,
    },
    /// A fence before which nothing was flushed or streamed.
    #[error("operation {operation} is a fence before which nothing was flushed or streamed: remove it")]
    EmptyFence {
        /// The number of the fence.
        operation: usize,
    },
}

/// Finds every misuse of a run.
pub(super) fn find(initial: &[u8], operations: &[MemoryOperation]) -> Vec<MemoryMisuse> {
    let mut pending = PendingStores::new(initial);
    let mut found = Vec::new();
    for (operation, recorded) in operations.iter().enumerate() {
        let useless = pending.apply(operation, recorded);
        found.extend(useless.lines.iter().map(|&line| MemoryMisuse::RedundantFlush { line, operation }));
        found.extend(useless.is_empty_fence.then_some(MemoryMisuse::EmptyFence { operation }));
    }
    for (&line, stores) in &pending.lines {
        let unflushed = stores.first_unflushed();
        found.extend(unflushed.map(|operation| MemoryMisuse::NeverFlushed { line, operation }));
        let unfenced = stores.first_unfenced();
        found.extend(unfenced.map(|operation| MemoryMisuse::NeverFenced { line, operation }));
    }
    found
}
