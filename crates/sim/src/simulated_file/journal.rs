//! The record of a file's writes and syncs, from which the file can be rebuilt as a power cut at any point leaves it.
//!
//! Input: events in the order in which they happened. Output: files. Invariant: a rebuilt file depends only on the
//! events before its point, the seed and the damage.

use super::cached_bytes::CachedBytes;
use super::{SimFile, SimFileState};
use crate::faults::DamagePlan;
use std::sync::Arc;

/// Something that happened to the file.
#[derive(Clone, Debug)]
pub(super) enum FileEvent {
    /// A write was accepted.
    Began {
        /// The write.
        id: u64,
        /// The first byte.
        offset: u64,
        /// The bytes.
        bytes: Arc<[u8]>,
    },
    /// A write was answered.
    Completed {
        /// The write.
        id: u64,
    },
    /// A sync finished.
    Synced {
        /// The writes that it covered.
        covered: Vec<u64>,
    },
}

/// The events since the recording began.
#[derive(Clone, Debug)]
pub struct FileJournal {
    start: CachedBytes,
    events: Vec<FileEvent>,
}

impl FileJournal {
    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns true if nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Calls `visit` at every point, from before the first event to behind the last, with the number of events before
    /// it and a function that rebuilds the file as a power cut there leaves it.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub fn replay<E>(
        &self,
        mut visit: impl FnMut(usize, &dyn Fn(&mut fastrand::Rng, &DamagePlan) -> SimFile) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bytes = self.start.clone();
        let events = self.events.iter().map(Some).chain([None]);
        for (point, event) in events.enumerate() {
            visit(point, &|rng, damage| {
                let mut left = bytes.clone();
                left.power_cut(rng, damage);
                SimFile::with_bytes(left, rng.u64(..))
            })?;
            match event {
                Some(FileEvent::Began { id, offset, bytes: written }) => {
                    bytes.begin(*id, *offset, Arc::clone(written));
                }
                Some(FileEvent::Completed { id }) => bytes.complete_to_caller(*id),
                Some(FileEvent::Synced { covered }) => bytes.make_durable(covered),
                None => {}
            }
        }
        Ok(())
    }
}

impl SimFile {
    /// Starts to record writes and syncs.
    pub fn start_journal(&self) {
        let mut state = self.lock();
        state.journal = Some(FileJournal { start: state.bytes.clone(), events: Vec::new() });
    }

    /// Returns the number of events recorded so far.
    #[must_use]
    pub fn journal_len(&self) -> usize {
        self.lock().journal.as_ref().map_or(0, FileJournal::len)
    }

    /// Ends the recording and returns it.
    #[must_use]
    pub fn take_journal(&self) -> Option<FileJournal> {
        self.lock().journal.take()
    }
}

impl SimFileState {
    pub(super) fn record(&mut self, event: FileEvent) {
        if let Some(journal) = &mut self.journal {
            journal.events.push(event);
        }
    }
}
