//! Abort (NVMe Base 2.0 section 5.1): cancels a command that has not begun to execute.
//!
//! Input: a queue and a command identifier. Output: the completion of that command, before that of the Abort.
//! Invariant: an aborted command had no effect, and gets one completion.
//!
//! ```text
//!   in the ring --fetch--> held --device has room--> waits for its turn, limits, key --> begun
//!   |<---------------------- can be aborted ---------------------------------------->|
//! ```

use super::GuestController;
use crate::vfio_user::in_flight_command::GuestCommand;
use headwater_nvme::controller::{CommandToken, QueueId};
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;

impl GuestController {
    /// Aborts a command. Returns true if it was aborted.
    pub(super) fn abort<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        queue: QueueId,
        command_id: u16,
    ) -> bool {
        let arbiter = &self.arbiter;
        let is_it = |token: &CommandToken| {
            arbiter.is_current(token) && token.queue() == queue && token.command_id() == command_id
        };
        if let Some(held) = self.held_entry.take_if(|held| is_it(&held.token)) {
            self.arbiter.complete(held.token, 0, Status::ABORT_REQUESTED);
            return true;
        }
        let Some(number) = self.in_flight.find(|flight| flight.is_io(is_it)) else {
            return self.arbiter.abort(queue, command_id);
        };
        if let Some(at) = self.waiting_lists.iter().position(|&list| list == number) {
            // Only reads of it completed so far, and none of its device commands is in flight now.
            self.waiting_lists.remove(at);
            let Some(GuestCommand::Io(token, _)) = self.in_flight.remove(number) else {
                unreachable!("command {number} waits for its next request and is not in flight");
            };
            self.arbiter.complete(token, 0, Status::ABORT_REQUESTED);
            return true;
        }
        let aborted = device.abort(self.front_end_id, number);
        if aborted {
            self.post_completions(device);
        }
        aborted
    }
}
