//! Writes that wait for space of the file system beneath a flash file.
//!
//! Input: programs and writes of cells that the file system had no space for, and the time. Output: the same writes again,
//! every [`RETRY_INTERVAL`]. Invariant: a write that waits is neither completed nor given up, so no flush begins before it
//! is on its way to the disk.
//!
//! That is safe: such a write changed nothing but the pages and cells that it writes again. A sync that fails for want of space
//! is another matter: the kernel may have dropped bytes, so it fails the flush for good.

use super::batches::PageBatch;
use super::cells::CellOperation;
use crate::media::MediaError;
use headwater_host::clock::Nanos;

/// Time between two attempts.
const RETRY_INTERVAL: Nanos = Nanos::from_millis(500);
/// No space left on the device.
pub(super) const ENOSPC: i32 = 28;
/// The quota of the user is exhausted.
const EDQUOT: i32 = 122;

/// The state of the space beneath a flash file.
#[derive(Debug, Default)]
pub(super) struct SpaceWait {
    /// The last write that found no space; `None` once a write succeeded.
    refused: Option<MediaError>,
    /// The time of the next attempt, while something waits for it.
    retry_at: Option<Nanos>,
    waiting: SpaceWaiters,
}

/// Writes that wait for space.
#[derive(Debug, Default)]
pub(super) struct SpaceWaiters {
    /// Programs.
    pub(super) programs: Vec<PageBatch>,
    /// Writes of cells.
    pub(super) cells: Vec<CellOperation>,
}

impl SpaceWait {
    /// Returns true if an error number says that there is no space now.
    pub(super) fn is_lack(errno: i32) -> bool {
        matches!(errno, ENOSPC | EDQUOT)
    }

    /// Notes that a write found no space.
    pub(super) fn refuse(&mut self, error: MediaError, now: Nanos) {
        self.refused = Some(error);
        self.retry_at.get_or_insert(now.after(RETRY_INTERVAL));
    }

    /// Keeps a batch for the next attempt.
    pub(super) fn hold(&mut self, batch: PageBatch) {
        self.waiting.programs.push(batch);
    }

    /// Keeps a write of a cell for the next attempt.
    pub(super) fn hold_cell(&mut self, write: CellOperation) {
        self.waiting.cells.push(write);
    }

    /// Notes that a write succeeded.
    pub(super) fn note_success(&mut self) {
        if self.retry_at.is_none() {
            self.refused = None;
        }
    }

    /// Returns the last write that found no space, until a write succeeds.
    pub(super) fn refused(&self) -> Option<MediaError> {
        self.refused
    }

    /// Returns the time of the next attempt, while something waits for it.
    pub(super) fn retry_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// Returns the writes to be repeated, once their time has come; writes wait while this returns `None`.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<SpaceWaiters> {
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        Some(std::mem::take(&mut self.waiting))
    }
}
