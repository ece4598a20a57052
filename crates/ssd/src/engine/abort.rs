//! Aborts commands that have not started.
//!
//! Input: front end and token of a submitted command. Output: its one completion, with [`Status::ABORT_REQUESTED`], or
//! false. Invariant: an aborted command has changed nothing; a started command runs to its end.

use super::SsdDevice;
use crate::command::{FrontEndId, SsdCompletion};
use crate::engine::execute::{ExecutionOutcome, ReleaseGate};
use crate::media::Media;
use headwater_nvme::spec::status::Status;

impl<M: Media> SsdDevice<M> {
    /// Aborts a command that has not started: it waits for its turn, for the limits of its namespace, or for another
    /// command on the same key. Its completion is available immediately. Returns false for a command that has started,
    /// which completes as usual, and for an unknown one.
    ///
    /// Searches all commands in flight.
    pub fn abort(&mut self, front_end: FrontEndId, token: u64) -> bool {
        let Some(at) = self.operations.find(front_end, token) else {
            return false;
        };
        if self.operations[at].started.is_some() {
            return false;
        }
        // A batch that waits for limits holds its keys too.
        let was_throttled = self.throttle.remove_waiting(at);
        if !self.schedule.remove_waiting(at, &self.operations) && !was_throttled {
            return false;
        }
        if let Some(store) = self.operations[at].extent_store.take() {
            self.ftl.abandon_extents(store);
        }
        let completion = SsdCompletion::new(token, Status::ABORT_REQUESTED);
        self.finish_operation(at, ExecutionOutcome { completion, gate: ReleaseGate::Immediate });
        true
    }
}
