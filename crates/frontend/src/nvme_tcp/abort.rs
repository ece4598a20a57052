//! Abort (NVMe Base 2.0 section 5.1): cancels a command that has not begun to execute.
//!
//! Input: a queue of a controller and a command identifier. Output: the response of that command, before that of the
//! Abort. Invariant: an aborted command had no effect, and gets one response.
//!
//! ```text
//!   data arrives --ready--> parked --room--> waits for its turn, limits, key in the device --> begun
//!                           |<------------------ can be aborted ------------------------->|
//! ```
//!
//! A command whose data is still arriving is not aborted: the data was requested and needs its buffer, or its receipt.

use super::NvmeTcpFrontEnd;
use super::in_flight_command::NvmeTcpCommand;
use headwater_nvme::controller::QueueId;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::TargetResponse;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;

/// An Abort to execute.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAbort {
    /// The connection that receives the response.
    pub(super) connection: ConnectionId,
    /// The slot of the Abort.
    pub(super) slot: ExchangeSlot,
    /// The controller of the command to abort.
    pub(super) controller: ControllerId,
    /// The queue of the command to abort.
    pub(super) queue: QueueId,
    /// The identifier of the command to abort.
    pub(super) command: u16,
}

impl NvmeTcpFrontEnd {
    /// Executes and answers all pending Aborts.
    pub(super) fn execute_aborts<M: Media>(&mut self, device: &mut SsdDevice<M>) {
        while let Some(abort) = self.shared.aborts.pop_front() {
            let aborted = self.abort(device, &abort);
            // Bit 0: not aborted.
            let response =
                TargetResponse { result: u64::from(!aborted), ..TargetResponse::status(Status::SUCCESS) };
            self.send_response(device, (abort.connection, abort.slot), 0, response);
        }
    }

    /// Aborts a command. Returns true if it was aborted.
    fn abort<M: Media>(&mut self, device: &mut SsdDevice<M>, abort: &PendingAbort) -> bool {
        let association = self.shared.associations.get_mut(abort.controller);
        let Some(id) = association.and_then(|association| association.connection(abort.queue)) else {
            return false;
        };
        let Some(mut connection) = self.connections.take_out(id) else {
            return false;
        };
        let found = connection.target.running(abort.command);
        let parked = found.is_some_and(|slot| connection.unpark_one(slot));
        if let Some(slot) = found.filter(|_| parked) {
            self.shared.counters.answered += 1;
            self.shared.counters.failed += 1;
            connection.respond(slot, TargetResponse::status(Status::ABORT_REQUESTED));
        }
        self.finish_step(connection);
        match found {
            Some(slot) if !parked => self.abort_in_device(device, (id, slot)),
            _ => parked,
        }
    }

    fn abort_in_device<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        wanted: (ConnectionId, ExchangeSlot),
    ) -> bool {
        let number = self.shared.in_flight.find(
            |flight| matches!(flight, NvmeTcpCommand::Io { connection, slot, .. } if (*connection, *slot) == wanted),
        );
        let Some(number) = number else {
            return false;
        };
        if let Some(at) = self.shared.waiting_commands.iter().position(|&again| again == number) {
            // Only reads of it completed so far, and none of its device commands is in flight now.
            self.shared.waiting_commands.remove(at);
            let Some(NvmeTcpCommand::Io { reserved, .. }) = self.shared.in_flight.remove(number) else {
                unreachable!("command {number} waits for its next request and is not in flight");
            };
            self.send_response(device, wanted, reserved, TargetResponse::status(Status::ABORT_REQUESTED));
            return true;
        }
        let aborted = device.abort(self.shared.front_end_id, number);
        if aborted {
            self.take_completions(device);
        }
        aborted
    }
}
