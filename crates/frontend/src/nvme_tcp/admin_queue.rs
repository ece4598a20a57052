//! Admin commands of hosts, Keep Alive timers and asynchronous events.
//!
//! Input: entries of admin queues, the time. Output: responses, immediate or after the requested change; connections to
//! close.

use super::NvmeTcpFrontEnd;
use super::abort::PendingAbort;
use super::connection::{ConnectionRole, NvmeTcpConnection};
use super::dispatch::NvmeTcpTurn;
use super::in_flight_command::NvmeTcpCommand;
use headwater_nvme::controller::admin::AsyncEventCompletion;
use headwater_nvme::controller::{AdminCompletion, AdminData, AdminStep};
use headwater_nvme::fabrics::ControllerId;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::{TargetResponse, TransferNeed};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::engine::administration::AdminTicket;
use headwater_ssd::media::Media;

impl<M: Media> NvmeTcpTurn<'_, M> {
    /// Returns the data that an admin command needs.
    ///
    /// # Errors
    /// The status that refuses it: a controller that is not enabled accepts Fabrics commands only.
    pub(super) fn admin_need(
        &mut self,
        id: ControllerId,
        entry: &SubmissionEntry,
    ) -> Result<TransferNeed, Status> {
        let association = self.shared.associations.get_mut(id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        if !association.controller.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        association.controller.admin_data(entry).map(|data| match data {
            AdminData::None => TransferNeed::None,
            AdminData::FromHost(bytes) => TransferNeed::FromHost(bytes),
            AdminData::ToHost(bytes) => TransferNeed::ToHost(bytes),
        })
    }

    /// Forgets an Asynchronous Event Request whose identifier its host uses for another command.
    pub(super) fn forget_event_request(&mut self, connection: &mut NvmeTcpConnection, command_id: u16) {
        if let ConnectionRole::Admin(id) = connection.role
            && connection.take_event_request(command_id).is_some()
            && let Some(association) = self.shared.associations.get_mut(id)
        {
            association.controller.forget_event_request(command_id);
        }
    }

    /// Executes an admin command. Returns false if there is no room for it now.
    pub(super) fn run_admin(
        &mut self,
        connection: &mut NvmeTcpConnection,
        id: ControllerId,
        slot: ExchangeSlot,
        entry: &SubmissionEntry,
    ) -> bool {
        let reserved = match self.admin_need(id, entry) {
            Ok(TransferNeed::ToHost(bytes)) => bytes as usize,
            Ok(_) => 0,
            Err(status) => {
                connection.respond(slot, TargetResponse::status(status));
                return true;
            }
        };
        let has_room = entry.opcode == AdminOpcode::Abort.number() || self.has_room();
        if !has_room || !connection.reserve(reserved) {
            return false;
        }
        connection.end_reservation(reserved);
        let data = connection.target.take_data(slot);
        let Some(association) = self.shared.associations.get_mut(id) else {
            connection.respond(slot, TargetResponse::status(Status::COMMAND_SEQUENCE_ERROR));
            return true;
        };
        let step = association.controller.admin(entry, &data, &*self.device, self.shared.now);
        // An Asynchronous Event Request that this command aborted is answered before it.
        while let Some(answer) = association.controller.take_async_event() {
            complete_event_request(connection, &answer);
        }
        match step {
            AdminStep::Done(AdminCompletion { result, status, data }) => {
                self.shared.counters.answered += 1;
                self.shared.counters.failed += u64::from(!status.is_success());
                connection.respond(slot, TargetResponse { result: u64::from(result), status, data });
            }
            AdminStep::Held => connection.hold_event_request(entry.command_id.get(), slot),
            AdminStep::Abort { queue, command } => {
                connection.in_flight += 1;
                let abort = PendingAbort { connection: connection.id, slot, controller: id, queue, command };
                self.shared.aborts.push_back(abort);
            }
            AdminStep::Namespace(action) => {
                let token = self
                    .shared
                    .in_flight
                    .insert(NvmeTcpCommand::Namespace { connection: connection.id, slot });
                connection.in_flight += 1;
                self.device.administer(AdminTicket { front_end: self.shared.front_end_id, token }, action);
            }
            // Connect creates the queues of a fabric; the controller refuses these commands itself.
            _ => connection.respond(slot, TargetResponse::status(Status::INVALID_OPCODE)),
        }
        true
    }
}

/// Completes an Asynchronous Event Request.
fn complete_event_request(connection: &mut NvmeTcpConnection, answer: &AsyncEventCompletion) {
    if let Some(slot) = connection.take_event_request(answer.command_id) {
        let result = u64::from(answer.result);
        connection.respond(slot, TargetResponse { result, ..TargetResponse::status(answer.status) });
    }
}

impl NvmeTcpFrontEnd {
    /// Sends the responses of finished namespace changes. Returns true if there was one.
    pub(super) fn complete_namespace_changes<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut any = false;
        while let Some((token, answer)) = device.next_admin_completion(self.shared.front_end_id) {
            any = true;
            let Some(NvmeTcpCommand::Namespace { connection, slot }) = self.shared.in_flight.remove(token)
            else {
                unreachable!("the device completed the change of namespaces {token}, which is not in flight");
            };
            let AdminCompletion { result, status, data } = answer;
            let response = TargetResponse { result: u64::from(result), status, data };
            self.send_response(device, (connection, slot), 0, response);
        }
        any
    }

    /// Polls the Keep Alive timers and events of every controller. Returns true if there was one.
    pub(super) fn poll_controllers<M: Media>(&mut self, device: &SsdDevice<M>) -> bool {
        let findings = self.shared.associations.poll(device, self.shared.now);
        let moved = !findings.events.is_empty() || !findings.expired.is_empty();
        for (id, answer) in findings.events {
            if let Some(mut connection) = self.connections.take_out(id) {
                complete_event_request(&mut connection, &answer);
                self.finish_step(connection);
            }
        }
        if !findings.expired.is_empty() {
            tracing::info!(
                connections = findings.expired.len(),
                "the Keep Alive timer of an NVMe/TCP host expired"
            );
        }
        self.shared.to_close.extend(findings.expired);
        moved
    }
}
