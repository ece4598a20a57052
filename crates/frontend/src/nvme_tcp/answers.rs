//! From completions of the device to answers of hosts.
//!
//! In: completions. Out: responses with their data, the end of shutdowns. Invariant: an answer goes to the connection its
//! command came by, or nowhere if that is gone.

use super::NvmeTcpFace;
use super::dispatch::{Turn, refusal};
use super::flight::Flight;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::tcp::Slot;
use headwater_nvme::tcp::target::Response;
use headwater_ssd::command::{Command, Completion, NamespaceId};
use headwater_ssd::engine::Device;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::request::Closed;

impl NvmeTcpFace {
    /// Hands out every completion that may leave. Whether there was one.
    pub(super) fn take_completions<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut any = false;
        while let Some(completion) = device.next_completion(self.shared.face) {
            any = true;
            self.complete(device, completion);
        }
        any
    }

    fn complete<M: Media>(&mut self, device: &mut Device<M>, completion: Completion) {
        let number = completion.token;
        if let Some(Flight::Io { answer, .. }) = self.shared.flights.get_mut(number)
            && answer.wants_more_than(&completion)
        {
            return self.ask_again(device, number);
        }
        match self.shared.flights.remove(number) {
            // What changes namespaces is answered by the device's administration.
            None | Some(Flight::Namespace { .. }) => {}
            Some(Flight::Io { connection, slot, answer, owed }) => {
                let Closed { result, status, data } = answer.close(completion);
                let response = Response { result: u64::from(result), status, data };
                self.answer(device, (connection, slot), owed, response);
            }
            Some(Flight::Shutdown(id)) => {
                if let Some(association) = self.shared.associations.get_mut(id) {
                    association.controller.shut_down();
                }
            }
        }
    }

    pub(super) fn answer<M: Media>(
        &mut self,
        device: &mut Device<M>,
        (id, slot): (ConnectionId, Slot),
        owed: usize,
        response: Response,
    ) {
        self.shared.counters.answered += 1;
        self.shared.counters.failed += u64::from(!response.status.is_success());
        let Some(mut connection) = self.connections.take(id) else {
            return;
        };
        connection.in_flight -= 1;
        connection.settle(owed);
        connection.respond(slot, response);
        if connection.is_parked() {
            Turn { device, shared: &mut self.shared }.run_parked(&mut connection);
        }
        self.conclude(connection);
    }

    /// Submits the next command of an answer that takes several.
    fn ask_again<M: Media>(&mut self, device: &mut Device<M>, number: u64) {
        let Some(Flight::Io { answer, .. }) = self.shared.flights.get_mut(number) else {
            return;
        };
        let Some((namespace, command)) = answer.next_command() else {
            return;
        };
        if !(Turn { device: &mut *device, shared: &mut self.shared }).has_device_room() {
            self.shared.again.push_back(number);
            return;
        }
        if let Err(error) = device.submit(self.shared.face, namespace, number, command)
            && let Some(Flight::Io { connection, slot, owed, .. }) = self.shared.flights.remove(number)
        {
            self.answer(device, (connection, slot), owed, Response::status(refusal(error)));
        }
    }

    /// Tries again what the device had no room for. Whether anything moved.
    pub(super) fn retry<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let again = std::mem::take(&mut self.shared.again);
        let before = again.len();
        for number in again {
            self.ask_again(device, number);
        }
        let shutdowns = std::mem::take(&mut self.shared.shutdowns);
        let mut moved = self.shared.again.len() < before || !shutdowns.is_empty();
        for id in shutdowns {
            self.begin_shutdown(device, id);
        }
        let parked = std::mem::take(&mut self.parked);
        for &id in &parked {
            let Some(mut connection) = self.connections.take(id) else {
                continue;
            };
            connection.listed.parked = false;
            moved |= Turn { device: &mut *device, shared: &mut self.shared }.run_parked(&mut connection);
            self.conclude(connection);
        }
        moved
    }

    /// Makes durable what a controller that shuts down has acknowledged: there is one log, so one flush does.
    fn begin_shutdown<M: Media>(&mut self, device: &mut Device<M>, id: ControllerId) {
        let number = self.shared.flights.insert(Flight::Shutdown(id));
        if device.submit(self.shared.face, NamespaceId::FIRST, number, Command::Flush).is_err() {
            self.shared.flights.remove(number);
            self.shared.shutdowns.push(id);
        }
    }
}
