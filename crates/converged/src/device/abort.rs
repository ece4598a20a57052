//! Giving up commands that nothing was done for yet.
//!
//! In: the name of a command that was submitted. Out: its one completion, with [`Status::ABORT_REQUESTED`], and whether it
//! was so. Invariant: a command that is given up has changed nothing, and one that may have goes on to its end.

use super::Device;
use crate::command::{Completion, FaceId};
use crate::execute::{Gate, Outcome};
use crate::media::Media;
use headwater_nvme::spec::status::Status;

impl<M: Media> Device<M> {
    /// Gives a command up if it has not begun: it waits for its turn, for the limits of its namespace, or behind another
    /// command on the same key. Its completion is there at once. False if it has begun, and for no command: its completion
    /// comes, or came, as ever.
    ///
    /// Looks at every command in flight.
    pub fn abort(&mut self, face: FaceId, token: u64) -> bool {
        let Some(at) = self.slab.find(face, token) else {
            return false;
        };
        let begun = self.slab.get(at).is_some_and(|operation| operation.started.is_some());
        if begun || !(self.schedule.pull(at) || self.throttle.pull(at)) {
            return false;
        }
        let completion = Completion::new(token, Status::ABORT_REQUESTED);
        self.finish(at, Outcome { completion, gate: Gate::Open });
        true
    }
}
