//! Responses to hosts from completions of the device.
//!
//! Input: completions. Output: responses with their data, the end of shutdowns. Invariant: a response goes to the
//! connection of its command, or is dropped if that is gone.

use super::NvmeTcpFrontEnd;
use super::dispatch::{NvmeTcpTurn, refusal};
use super::in_flight_command::NvmeTcpCommand;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::TargetResponse;
use headwater_ssd::command::{NamespaceId, SsdCommand, SsdCompletion};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::request::NvmeResult;

impl NvmeTcpFrontEnd {
    /// Processes every completion. Returns true if there was one.
    pub(super) fn take_completions<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut any = false;
        while let Some(completion) = device.next_completion(self.shared.front_end_id) {
            any = true;
            self.complete(device, completion);
        }
        any
    }

    fn complete<M: Media>(&mut self, device: &mut SsdDevice<M>, completion: SsdCompletion) {
        let number = completion.token;
        if let Some(NvmeTcpCommand::Io { answer, .. }) = self.shared.in_flight.get_mut(number)
            && answer.needs_more(&completion)
        {
            return self.submit_next(device, number);
        }
        match self.shared.in_flight.remove(number) {
            None => unreachable!("the device completed command {number}, which is not in flight"),
            Some(NvmeTcpCommand::Namespace { .. }) => {
                unreachable!("the change of namespaces {number} is completed by `next_admin_completion`")
            }
            Some(NvmeTcpCommand::Io { connection, slot, answer, reserved }) => {
                let NvmeResult { result, status, data } = answer.build(completion);
                let response = TargetResponse { result: u64::from(result), status, data };
                self.send_response(device, (connection, slot), reserved, response);
            }
            Some(NvmeTcpCommand::Shutdown(id)) => {
                if let Some(association) = self.shared.associations.get_mut(id) {
                    association.controller.complete_shutdown();
                }
            }
        }
    }

    pub(super) fn send_response<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        (id, slot): (ConnectionId, ExchangeSlot),
        reserved: usize,
        response: TargetResponse,
    ) {
        self.shared.counters.answered += 1;
        self.shared.counters.failed += u64::from(!response.status.is_success());
        let Some(mut connection) = self.connections.take_out(id) else {
            return;
        };
        assert!(connection.in_flight > 0, "a response to a command that is not in flight");
        connection.in_flight -= 1;
        connection.end_reservation(reserved);
        connection.respond(slot, response);
        if connection.is_parked() {
            NvmeTcpTurn { device, shared: &mut self.shared }.run_parked(&mut connection);
        }
        self.finish_step(connection);
    }

    /// Submits the next device command of an answer that needs several.
    fn submit_next<M: Media>(&mut self, device: &mut SsdDevice<M>, number: u64) {
        let Some(NvmeTcpCommand::Io { answer, .. }) = self.shared.in_flight.get_mut(number) else {
            unreachable!("command {number} waits for its next request and is not in flight");
        };
        let Some((namespace, command)) = answer.next_command() else {
            unreachable!("command {number} needs no further request and has no response");
        };
        if !(NvmeTcpTurn { device: &mut *device, shared: &mut self.shared }).has_device_room() {
            self.shared.waiting_commands.push_back(number);
            return;
        }
        if let Err(error) = device.submit(self.shared.front_end_id, namespace, number, command)
            && let Some(NvmeTcpCommand::Io { connection, slot, reserved, .. }) =
                self.shared.in_flight.remove(number)
        {
            self.send_response(device, (connection, slot), reserved, TargetResponse::status(refusal(error)));
        }
    }

    /// Submits again what the device had no room for. Returns true if there was progress.
    pub(super) fn retry_waiting<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let again = std::mem::take(&mut self.shared.waiting_commands);
        let before = again.len();
        for number in again {
            self.submit_next(device, number);
        }
        let shutdowns = std::mem::take(&mut self.shared.shutdowns);
        let mut moved = self.shared.waiting_commands.len() < before || !shutdowns.is_empty();
        for id in shutdowns {
            self.begin_shutdown(device, id);
        }
        let parked = std::mem::take(&mut self.parked);
        for &id in &parked {
            let Some(mut connection) = self.connections.take_out(id) else {
                continue;
            };
            connection.lists.parked = false;
            moved |=
                NvmeTcpTurn { device: &mut *device, shared: &mut self.shared }.run_parked(&mut connection);
            self.finish_step(connection);
        }
        moved
    }

    /// Flushes the writes that a controller in shutdown has acknowledged: there is one log, so one flush is enough.
    fn begin_shutdown<M: Media>(&mut self, device: &mut SsdDevice<M>, id: ControllerId) {
        let number = self.shared.in_flight.insert(NvmeTcpCommand::Shutdown(id));
        if device.submit(self.shared.front_end_id, NamespaceId::FIRST, number, SsdCommand::Flush).is_err() {
            self.shared.in_flight.remove(number);
            self.shared.shutdowns.push(id);
        }
    }
}
