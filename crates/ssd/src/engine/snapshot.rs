//! Snapshots of a device, for backups.
//!
//! Input: requests. Output: the state of the snapshot. Invariant: a device has at most one.

use super::SsdDevice;
use crate::media::{BlockId, Media};

pub use crate::ftl::snapshot::{MediumSnapshot, SnapshotLoss, SnapshotStatus};

/// The reason for which no snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotRefusal {
    /// There is one.
    #[error("another snapshot is held; wait until its backup has ended")]
    Exists,
    /// The medium is of version 1.
    #[error("the medium has format version 1; upgrade it first with `headwater device upgrade`")]
    Version1,
}

impl<M: Media> SsdDevice<M> {
    /// Requests a snapshot: the state of the medium at the next commit, whose pages then stay in place. Later turns of
    /// [`poll`](Self::poll) take it. It covers every command that has completed, in every durability mode. `known` names
    /// the blocks of which all pages are copied already, with the orders of their lives: the snapshot does not keep those.
    ///
    /// # Errors
    /// [`SnapshotRefusal`] if no snapshot can be taken now.
    pub fn request_snapshot(&mut self, known: Vec<(BlockId, u64)>) -> Result<(), SnapshotRefusal> {
        if self.ftl.is_read_only() {
            return Err(SnapshotRefusal::Version1);
        }
        if self.ftl.request_snapshot(known) { Ok(()) } else { Err(SnapshotRefusal::Exists) }
    }

    /// Returns the state of the snapshot.
    #[must_use]
    pub fn snapshot(&self) -> SnapshotStatus<'_> {
        self.ftl.snapshot_status()
    }

    /// Notes that the block with this index in the snapshot is copied: the device may use it again. Another index, or one
    /// without a snapshot, is ignored.
    pub fn note_snapshot_copied(&mut self, index: usize) {
        self.ftl.note_snapshot_copied(index);
    }

    /// Ends the snapshot, whatever its state: the device may use its blocks again.
    pub fn release_snapshot(&mut self) {
        self.ftl.release_snapshot();
    }
}
