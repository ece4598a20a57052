//! The batch of a transaction: its writes, the conditions under which they are made, and the databases that it empties.
//!
//! Input: writes and checks with their namespaces, and cleared namespaces. Output: one command for the device. Invariant:
//! those of watched keys come first, so that the position of a condition that fails says if a watched key has changed.

use headwater_ssd::command::{BatchClear, BatchWrite, NamespaceId, NamespaceRun, SsdCommand};

/// The writes of a transaction.
#[derive(Debug, Default)]
pub(crate) struct TransactionBatch {
    writes: Vec<BatchWrite>,
    runs: Vec<NamespaceRun>,
    /// The number of the first writes whose keys are watched.
    watched: usize,
}

impl TransactionBatch {
    /// Adds the next write or check.
    pub(crate) fn push(&mut self, namespace: NamespaceId, write: BatchWrite) {
        self.writes.push(write);
        let end = self.writes.len();
        match self.runs.last_mut() {
            Some(run) if run.namespace == namespace => run.end = end,
            _ => self.runs.push(NamespaceRun { namespace, end, clear: BatchClear::No }),
        }
    }

    /// Clears a namespace before all writes.
    pub(crate) fn clear(&mut self, namespace: NamespaceId) {
        let (end, clear) = (self.writes.len(), BatchClear::BeforeWrites);
        match self.runs.last_mut() {
            Some(run) if run.namespace == namespace => run.clear = clear,
            _ => self.runs.push(NamespaceRun { namespace, end, clear }),
        }
    }

    /// Returns true if there is nothing to write, to check or to clear.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Notes that the keys of what was added so far are watched.
    pub(crate) fn end_watched(&mut self) {
        self.watched = self.writes.len();
    }

    /// Returns true if the write or check with this index is of a watched key.
    pub(crate) fn is_watched(&self, position: u32) -> bool {
        (position as usize) < self.watched
    }

    /// Returns the number of its keys.
    pub(crate) fn keys(&self) -> usize {
        self.writes.len()
    }

    /// Returns the bytes that count against the limit of a batch.
    pub(crate) fn bytes(&self) -> usize {
        self.writes.iter().map(BatchWrite::bytes).sum()
    }

    /// Returns the command for the device, with the namespace that it is submitted with; `None` if there is nothing to do.
    pub(crate) fn command(&self) -> Option<(NamespaceId, SsdCommand)> {
        let NamespaceRun { namespace, clear, .. } = *self.runs.first()?;
        let (writes, runs) = (self.writes.clone(), self.runs.clone());
        let is_of_one = runs.len() == 1 && clear == BatchClear::No;
        let command =
            if is_of_one { SsdCommand::Batch { writes } } else { SsdCommand::BatchAcross { writes, runs } };
        Some((namespace, command))
    }
}
