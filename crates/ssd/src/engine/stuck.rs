//! The end of operations that wait for room which cannot become free.
//!
//! Input: a turn in which nothing moved. Output: a failed operation, or blocks that only readers kept. Invariant: an operation
//! fails only if nothing is in flight that could free room.

use super::SsdDevice;
use crate::command::SsdCompletion;
use crate::engine::execute::{ExecutionOutcome, ReleaseGate};
use crate::media::Media;
use headwater_nvme::spec::status::Status;

impl<M: Media> SsdDevice<M> {
    /// Fails the first operation in the room queue if no stage has work left or in flight, so that no room can become
    /// free. Returns true if it did.
    pub(super) fn fail_if_stuck(&mut self, moved: bool) -> bool {
        let stuck =
            !moved && !self.ftl.is_log_reserved() && self.ftl.is_idle() && !self.ftl.waits_for_time(self.now);
        let Some(&at) = self.schedule.waiting_for_room.front().filter(|_| stuck) else {
            return false;
        };
        if self.ftl.give_up_longest_held() {
            return true;
        }
        self.schedule.no_room += 1;
        let status = if self.ftl.failure().is_some() { Status::MEDIUM_FAILED } else { self.ftl.note_stuck() };
        let completion = SsdCompletion::new(0, status);
        self.complete_operation(at, ExecutionOutcome { completion, gate: ReleaseGate::Immediate });
        true
    }
}
