//! Abort (NVMe Base 2.0 section 5.1): a command that nothing was done for yet is given up.
//!
//! In: a queue of a controller and a command id. Out: the answer of that command, before that of the Abort. Invariant: whoever
//! is told that a command was aborted finds nothing of it done, and one answer to it.
//!
//! ```text
//!   data comes --ready--> parked --room--> waits for its turn, limits, key in the device --> begun
//!                         |<------------------ can be aborted ------------------------->|
//! ```
//!
//! A command whose data is still on its way is not given up: the data was asked for and must have somewhere to go.

use super::NvmeTcpFace;
use super::flight::Flight;
use headwater_nvme::controller::QueueId;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::Slot;
use headwater_nvme::tcp::target::Response;
use headwater_ssd::engine::Device;
use headwater_ssd::media::Media;

/// An Abort that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abort {
    /// Who is answered.
    pub(super) connection: ConnectionId,
    /// Which command.
    pub(super) slot: Slot,
    /// Whose queue it is about.
    pub(super) controller: ControllerId,
    /// Which queue.
    pub(super) queue: QueueId,
    /// What its host calls the command to be aborted.
    pub(super) command: u16,
}

impl NvmeTcpFace {
    /// Carries out what was taken, and answers it.
    pub(super) fn carry_out_aborts<M: Media>(&mut self, device: &mut Device<M>) {
        while let Some(abort) = self.shared.aborts.pop_front() {
            let aborted = self.abort(device, &abort);
            // Bit 0: not aborted.
            let response = Response { result: u64::from(!aborted), ..Response::status(Status::SUCCESS) };
            self.answer(device, (abort.connection, abort.slot), 0, response);
        }
    }

    /// Gives a command up. Whether it was.
    fn abort<M: Media>(&mut self, device: &mut Device<M>, abort: &Abort) -> bool {
        let association = self.shared.associations.get_mut(abort.controller);
        let Some(id) = association.and_then(|association| association.connection(abort.queue)) else {
            return false;
        };
        let Some(mut connection) = self.connections.take(id) else {
            return false;
        };
        let found = connection.target.running(abort.command);
        let parked = found.is_some_and(|slot| connection.unpark_one(slot));
        if let Some(slot) = found.filter(|_| parked) {
            self.shared.counters.answered += 1;
            self.shared.counters.failed += 1;
            connection.respond(slot, Response::status(Status::ABORT_REQUESTED));
        }
        self.conclude(connection);
        match found {
            Some(slot) if !parked => self.abort_in_device(device, (id, slot)),
            _ => parked,
        }
    }

    fn abort_in_device<M: Media>(&mut self, device: &mut Device<M>, wanted: (ConnectionId, Slot)) -> bool {
        let number = self.shared.flights.find(
            |flight| matches!(flight, Flight::Io { connection, slot, .. } if (*connection, *slot) == wanted),
        );
        let Some(number) = number else {
            return false;
        };
        if let Some(at) = self.shared.again.iter().position(|&again| again == number) {
            // It only looked so far, and the device has nothing of it now.
            self.shared.again.remove(at);
            if let Some(Flight::Io { owed, .. }) = self.shared.flights.remove(number) {
                self.answer(device, wanted, owed, Response::status(Status::ABORT_REQUESTED));
            }
            return true;
        }
        let aborted = device.abort(self.shared.face, number);
        if aborted {
            self.take_completions(device);
        }
        aborted
    }
}
