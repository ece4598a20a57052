//! The reservation of the log for one operation that appends in parts.
//!
//! Input: the operation that reserves the log, and its end. Output: true for the stages that must wait in between.
//! Invariant: from the reservation to its end only that operation appends, no commit seals the log, and no record moves;
//! but commits may begin before its first record, if it waits for what was acknowledged before.
//!
//! A batch counts only if its last record does, and recovery counts what a commit covers. A commit between two records of a
//! batch would thus say that the first ones are durable, so that the collector could erase what they replace, and a power
//! cut before the next commit would take the batch. Without such a commit the records of an unfinished batch lie behind
//! everything that counts, like those of any command that was not acknowledged: after a kill, a power cut or a shutdown they
//! are not found, and what they replace is in place, because no block is collected during the reservation and none that was
//! collected before holds it.

/// The reservation of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogReservation {
    is_reserved: bool,
    /// True while the operation appends nothing yet, and waits for a commit of what was appended before.
    allows_commits: bool,
    /// Writes that one turn carries out.
    part_writes: usize,
}

impl LogReservation {
    /// Makes the state of a log that is not reserved.
    pub(super) fn new(part_writes: usize) -> Self {
        Self { is_reserved: false, allows_commits: false, part_writes: part_writes.max(1) }
    }

    /// Reserves the log.
    ///
    /// # Panics
    /// It is reserved.
    pub(super) fn begin(&mut self) {
        assert!(!self.is_reserved, "two operations reserve the log");
        self.is_reserved = true;
    }

    /// Ends the reservation.
    pub(super) fn end(&mut self) {
        self.is_reserved = false;
        self.allows_commits = false;
    }

    /// Sets whether commits may begin during the reservation: not any more when the operation appends its first record.
    pub(super) fn allow_commits(&mut self, is_allowed: bool) {
        self.allows_commits = is_allowed;
    }

    /// Returns true if no commit may begin.
    pub(super) fn forbids_commits(self) -> bool {
        self.is_reserved && !self.allows_commits
    }

    /// Returns true if the log is reserved.
    #[inline]
    pub(super) fn is_reserved(self) -> bool {
        self.is_reserved
    }

    /// Returns the number of writes that one turn carries out.
    pub(super) fn part_writes(self) -> usize {
        self.part_writes
    }
}
