//! Admin commands of hosts: what data they need, what their controller makes of them, what happens by itself.
//!
//! In: entries of admin queues, time. Out: their answers, at once or when what they ask for is done; connections to close.

use super::NvmeTcpFace;
use super::abort::Abort;
use super::connection::Connection;
use super::dispatch::Turn;
use super::flight::Flight;
use headwater_nvme::controller::admin::AsyncAnswer;
use headwater_nvme::controller::{AdminAnswer, AdminData, AdminStep};
use headwater_nvme::fabrics::ControllerId;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::Slot;
use headwater_nvme::tcp::target::{Need, Response};
use headwater_ssd::engine::Device;
use headwater_ssd::engine::administration::AdminTicket;
use headwater_ssd::media::Media;

impl<M: Media> Turn<'_, M> {
    /// What data an admin command needs.
    ///
    /// # Errors
    /// The status that refuses it: a controller that is not enabled takes Fabrics commands only.
    pub(super) fn admin_need(&mut self, id: ControllerId, entry: &SubmissionEntry) -> Result<Need, Status> {
        let association = self.shared.associations.get_mut(id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        if !association.controller.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        association.controller.admin_data(entry).map(|data| match data {
            AdminData::None => Need::None,
            AdminData::FromHost(bytes) => Need::FromHost(bytes),
            AdminData::ToHost(bytes) => Need::ToHost(bytes),
        })
    }

    /// Carries an admin command out. False when there is no room for it now.
    pub(super) fn run_admin(
        &mut self,
        connection: &mut Connection,
        id: ControllerId,
        slot: Slot,
        entry: &SubmissionEntry,
    ) -> bool {
        let owed = match self.admin_need(id, entry) {
            Ok(Need::ToHost(bytes)) => usize::try_from(bytes).unwrap_or(usize::MAX),
            Ok(_) => 0,
            Err(status) => {
                connection.respond(slot, Response::status(status));
                return true;
            }
        };
        let has_room = entry.opcode == AdminOpcode::Abort.number() || self.has_room();
        if !has_room || !connection.reserve(owed) {
            return false;
        }
        connection.settle(owed);
        let data = connection.target.take_data(slot);
        let Some(association) = self.shared.associations.get_mut(id) else {
            connection.respond(slot, Response::status(Status::COMMAND_SEQUENCE_ERROR));
            return true;
        };
        let step = association.controller.admin(entry, &data, &*self.device, self.shared.now);
        // An event request that this command aborted is answered before it.
        while let Some(answer) = association.controller.take_async_event() {
            answer_event(connection, &answer);
        }
        match step {
            AdminStep::Done(AdminAnswer { result, status, data }) => {
                self.shared.counters.answered += 1;
                self.shared.counters.failed += u64::from(!status.is_success());
                connection.respond(slot, Response { result: u64::from(result), status, data });
            }
            AdminStep::Held => connection.hold(entry.command_id.get(), slot),
            AdminStep::Abort { queue, command } => {
                connection.in_flight += 1;
                let abort = Abort { connection: connection.id, slot, controller: id, queue, command };
                self.shared.aborts.push_back(abort);
            }
            AdminStep::Namespace(action) => {
                let token = self.shared.flights.insert(Flight::Namespace { connection: connection.id, slot });
                connection.in_flight += 1;
                self.device.administer(AdminTicket { face: self.shared.face, token }, action);
            }
            // Queues of a fabric are made by Connect; its controller refuses these commands itself.
            _ => connection.respond(slot, Response::status(Status::INVALID_OPCODE)),
        }
        true
    }
}

/// Answers an event request.
fn answer_event(connection: &mut Connection, answer: &AsyncAnswer) {
    if let Some(slot) = connection.release(answer.command_id) {
        let result = u64::from(answer.result);
        connection.respond(slot, Response { result, ..Response::status(answer.status) });
    }
}

impl NvmeTcpFace {
    /// Hands out the answers of finished changes of namespaces. Whether there was one.
    pub(super) fn take_administered<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut any = false;
        while let Some((token, answer)) = device.next_administered(self.shared.face) {
            any = true;
            if let Some(Flight::Namespace { connection, slot }) = self.shared.flights.remove(token) {
                let AdminAnswer { result, status, data } = answer;
                let response = Response { result: u64::from(result), status, data };
                self.answer(device, (connection, slot), 0, response);
            }
        }
        any
    }

    /// Keep Alive timers and events of every controller.
    pub(super) fn look_after_controllers<M: Media>(&mut self, device: &Device<M>) -> bool {
        let findings = self.shared.associations.poll(device, self.shared.now);
        let moved = !findings.events.is_empty() || !findings.expired.is_empty();
        for (id, answer) in findings.events {
            if let Some(mut connection) = self.connections.take(id) {
                answer_event(&mut connection, &answer);
                self.conclude(connection);
            }
        }
        if !findings.expired.is_empty() {
            tracing::info!(connections = findings.expired.len(), "an NVMe/TCP host fell silent");
        }
        self.shared.doomed.extend(findings.expired);
        moved
    }
}
