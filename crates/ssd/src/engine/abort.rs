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
    pub fn abort(&mut self, face: FrontEndId, token: u64) -> bool {
        let Some(at) = self.slab.find(face, token) else {
            return false;
        };
        let begun = self.slab.get(at).is_some_and(|operation| operation.started.is_some());
        if begun || !(self.schedule.pull(at) || self.throttle.pull(at)) {
            return false;
        }
        let completion = SsdCompletion::new(token, Status::ABORT_REQUESTED);
        self.finish(at, ExecutionOutcome { completion, gate: ReleaseGate::Open });
        true
    }
}
