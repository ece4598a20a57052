//! Execution of received bytes as commands.
//!
//! Input: received bytes. Output: commands to the device, and responses that need no device. Invariant: a command
//! received from a connection waits for its data, is parked, held, in the device, or answered.

use super::connection::{ConnectionRole, NvmeTcpConnection, NvmeTcpConnectionLife, SlotWork};
use super::in_flight_command::NvmeTcpCommand;
use super::limits::{CLOSE_TIMEOUT, IN_FLIGHT_MAX};
use super::shared::NvmeTcpState;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::fabrics::{ControllerId, PropertyAction, PropertyOutcome, QueueRole};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::fabrics::{
    CONNECT_BYTES, FABRICS_OPCODE, FabricsKind, connect_status, disconnect_format,
};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::{NeedOutcome, TargetResponse, TargetStep, TransferNeed};
use headwater_ssd::command::SubmitError;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::OPERATIONS_MAX;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::decoder::{DataNeed, IoCommand, decode};
use headwater_ssd::nvme::request::{DeviceRequest, RequestData};

/// The device and the shared state, borrowed to work on one connection.
pub(super) struct NvmeTcpTurn<'a, M: Media> {
    pub(super) device: &'a mut SsdDevice<M>,
    pub(super) shared: &'a mut NvmeTcpState,
}

impl<M: Media> NvmeTcpTurn<'_, M> {
    /// Processes all received bytes.
    pub(super) fn process_bytes(&mut self, connection: &mut NvmeTcpConnection, mut bytes: &[u8]) {
        while connection.accepts_commands() {
            match connection.target.advance(&mut bytes) {
                TargetStep::NeedInput => return,
                TargetStep::Command { slot, entry } => self.validate_command(connection, slot, &entry),
                TargetStep::Ready(slot) => self.run(connection, slot),
                TargetStep::Part(_) => {
                    if !self.copy_part(connection, &mut bytes) {
                        return;
                    }
                }
                TargetStep::NextPart(slot) => self.request_part(connection, slot),
                TargetStep::Failed(slot) => connection.receipts.end(slot),
                TargetStep::Closed(ended) => {
                    tracing::debug!(connection = connection.id.0, ?ended, "NVMe/TCP connection ends");
                    connection.life = NvmeTcpConnectionLife::Closing(self.shared.now.after(CLOSE_TIMEOUT));
                }
            }
        }
    }

    /// Validates a command and determines its data.
    fn validate_command(
        &mut self,
        connection: &mut NvmeTcpConnection,
        slot: ExchangeSlot,
        entry: &SubmissionEntry,
    ) {
        self.shared.counters.commands += 1;
        self.forget_event_request(connection, entry.command_id.get());
        let checked = match (connection.role, FabricsKind::from_entry(entry)) {
            (ConnectionRole::Unconnected, Some(FabricsKind::Connect)) => {
                Ok((TransferNeed::FromHost(CONNECT_BYTES), SlotWork::Connect(*entry)))
            }
            // Connect is the first command of a connection, and is sent once (Base 2.0 section 3.3.2.1).
            (ConnectionRole::Unconnected, _) | (_, Some(FabricsKind::Connect)) => {
                Err(Status::COMMAND_SEQUENCE_ERROR)
            }
            (
                ConnectionRole::Admin(id),
                Some(kind @ (FabricsKind::PropertyGet | FabricsKind::PropertySet)),
            ) => {
                let answer = self.property(id, kind, entry);
                return connection.respond(slot, answer);
            }
            (ConnectionRole::Io(_), Some(FabricsKind::Disconnect)) if disconnect_format(entry) == 0 => {
                return connection.begin_disconnect(slot);
            }
            (ConnectionRole::Io(_), Some(FabricsKind::Disconnect)) => {
                Err(connect_status::INCOMPATIBLE_FORMAT)
            }
            (ConnectionRole::Admin(_), Some(FabricsKind::Disconnect)) => {
                Err(connect_status::INVALID_QUEUE_TYPE)
            }
            _ if entry.opcode == FABRICS_OPCODE => Err(Status::INVALID_OPCODE),
            (ConnectionRole::Admin(id), _) => {
                self.admin_need(id, entry).map(|need| (need, SlotWork::Admin(*entry)))
            }
            (ConnectionRole::Io(_), _) if !connection.has_io_commands => Err(Status::INVALID_OPCODE),
            (ConnectionRole::Io(id), _) => {
                let device = &*self.device;
                let seen =
                    |namespace| device.namespace(namespace).filter(|_| device.is_attached(namespace, id.0));
                decode(entry, QueueKind::Standard, seen)
                    .map(|command| (need(command.data()), SlotWork::Io(command)))
            }
        };
        match checked {
            Err(status) => connection.respond(slot, TargetResponse::status(status)),
            Ok((need, work)) => {
                connection.set_work(slot, work);
                let need = match &work {
                    SlotWork::Io(io) => self.begin_receipt(connection, slot, io, need),
                    _ => need,
                };
                match connection.target.declare_need(slot, need) {
                    NeedOutcome::Now => self.run(connection, slot),
                    NeedOutcome::Later => self.request_part(connection, slot),
                    NeedOutcome::Refused => connection.receipts.end(slot),
                }
            }
        }
    }

    fn property(&mut self, id: ControllerId, kind: FabricsKind, entry: &SubmissionEntry) -> TargetResponse {
        let associations = &mut self.shared.associations;
        let answer = match kind {
            FabricsKind::PropertyGet => associations.property_get(id, entry),
            _ => associations.property_set(id, entry, self.shared.now),
        };
        match answer {
            Err(status) => TargetResponse::status(status),
            Ok(PropertyOutcome { result, action: demand }) => {
                match demand {
                    PropertyAction::Nothing => {}
                    PropertyAction::Close(connections) => self.shared.to_close.extend(connections),
                    PropertyAction::Shutdown => self.shared.shutdowns.push(id),
                }
                TargetResponse { result, ..TargetResponse::status(Status::SUCCESS) }
            }
        }
    }

    /// Executes a command whose data has arrived, or parks it.
    fn run(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot) {
        let work = connection.take_work(slot);
        if (connection.is_parked() && !work.is_abort()) || !self.try_run(connection, slot, work) {
            connection.park(slot, work);
        }
    }

    /// Executes parked commands in order. Returns true if there was progress.
    pub(super) fn run_parked(&mut self, connection: &mut NvmeTcpConnection) -> bool {
        let mut moved = false;
        while let Some(slot) = connection.unpark() {
            let work = connection.take_work(slot);
            if !self.try_run(connection, slot, work) {
                connection.park_first(slot, work);
                break;
            }
            moved = true;
        }
        moved
    }

    /// Executes a command. Returns false if there is no room for it now.
    #[inline]
    fn try_run(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot, work: SlotWork) -> bool {
        match work {
            SlotWork::Io(command) => self.run_io(connection, slot, &command),
            SlotWork::Admin(entry) => match connection.role {
                ConnectionRole::Admin(id) => self.run_admin(connection, id, slot, &entry),
                ConnectionRole::Unconnected | ConnectionRole::Io(_) => {
                    unreachable!("an admin command was accepted on a connection that has no admin queue")
                }
            },
            SlotWork::Connect(entry) => {
                self.connect(connection, slot, &entry);
                true
            }
            SlotWork::None => unreachable!("slot {} runs without a command, which gets no response", slot.0),
        }
    }

    /// Returns true if the device accepts another command of this front end.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.shared.in_flight.len() < IN_FLIGHT_MAX && self.has_device_room()
    }

    /// Returns true if the device accepts another command.
    #[inline]
    pub(super) fn has_device_room(&self) -> bool {
        self.device.in_flight() < OPERATIONS_MAX
    }

    #[inline]
    fn run_io(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot, io: &IoCommand) -> bool {
        if self.device.is_sanitizing() {
            connection.respond(slot, TargetResponse::status(Status::SANITIZE_IN_PROGRESS));
            return true;
        }
        let (reserved, data) = match io.data() {
            DataNeed::ToHost(bytes) => (bytes as usize, true),
            DataNeed::FromHost(_) | DataNeed::None => (0, false),
        };
        if !self.has_room() || !connection.reserve(reserved) {
            return false;
        }
        let data = match io.data() {
            _ if data => RequestData::Returned,
            DataNeed::FromHost(_) => connection.take_request_data(slot),
            _ => RequestData::None,
        };
        let refused = match DeviceRequest::new(io, data, &mut self.shared.keys, self.device) {
            Err(status) => Some(status),
            Ok(DeviceRequest { namespace, command, completion: answer }) => {
                let id = connection.id;
                let number = self.shared.in_flight.insert(NvmeTcpCommand::Io {
                    connection: id,
                    slot,
                    answer,
                    reserved,
                });
                match self.device.submit(self.shared.front_end_id, namespace, number, command) {
                    Ok(()) => None,
                    Err(error) => {
                        self.shared.in_flight.remove(number);
                        Some(refusal(error))
                    }
                }
            }
        };
        match refused {
            None => connection.in_flight += 1,
            Some(status) => {
                connection.end_reservation(reserved);
                connection.respond(slot, TargetResponse::status(status));
            }
        }
        true
    }

    /// Adds a controller with namespaces to the device. Returns false if the device has no room for it.
    fn add_controller(&mut self, id: ControllerId, role: QueueRole) -> bool {
        let discovery =
            self.shared.associations.get_mut(id).is_none_or(|association| association.is_discovery());
        role == QueueRole::Io || discovery || self.device.add_controller(id.0)
    }

    fn connect(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot, entry: &SubmissionEntry) {
        let data = connection.target.take_data(slot);
        if !self.may_connect(connection, &data) {
            tracing::info!("NVMe/TCP Connect refused: its host and subsystem names do not match its key");
            return connection.respond(slot, TargetResponse::status(connect_status::INVALID_HOST));
        }
        match self.shared.associations.connect(entry, &data, connection.id, self.shared.now) {
            Err(refusal) => {
                let status = connect_status::text(refusal.status);
                tracing::info!(status, parameter = refusal.result, "NVMe/TCP Connect refused");
                let result = u64::from(refusal.result);
                connection.respond(slot, TargetResponse { result, ..TargetResponse::status(refusal.status) });
            }
            Ok(joined) => {
                if !self.add_controller(joined.controller, joined.role) {
                    self.shared.associations.remove_connection(joined.controller, connection.id);
                    tracing::info!("NVMe/TCP Connect refused: the device has no room for another controller");
                    return connection.respond(slot, TargetResponse::status(connect_status::CONTROLLER_BUSY));
                }
                connection.role = match joined.role {
                    QueueRole::Admin => ConnectionRole::Admin(joined.controller),
                    QueueRole::Io => ConnectionRole::Io(joined.controller),
                };
                let association = self.shared.associations.get_mut(joined.controller);
                connection.has_io_commands =
                    association.is_some_and(|association| association.controller.has_io_commands());
                connection.target.set_queue(joined.entries, joined.flow);
                let result = u64::from(joined.controller.0);
                connection
                    .respond(slot, TargetResponse { result, ..TargetResponse::status(Status::SUCCESS) });
            }
        }
    }
}

/// Returns the status of a command that the device did not accept.
pub(super) fn refusal(error: SubmitError) -> Status {
    match error {
        SubmitError::Refused(status) => status,
        // Unexpected, since room was checked before; the host may retry.
        SubmitError::Busy(_) => Status::ABORT_REQUESTED,
    }
}

#[inline]
fn need(data: DataNeed) -> TransferNeed {
    match data {
        DataNeed::None => TransferNeed::None,
        DataNeed::FromHost(bytes) => TransferNeed::FromHost(bytes),
        DataNeed::ToHost(bytes) => TransferNeed::ToHost(bytes),
    }
}
