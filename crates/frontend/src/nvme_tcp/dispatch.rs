//! From bytes of a connection to commands of the device.
//!
//! In: received bytes. Out: commands to the device, answers that need none. Invariant: a command that was taken from a
//! connection is parked, held, in the device, or answered.

use super::connection::{Connection, Life, Role, Work};
use super::flight::Flight;
use super::limits::{CLOSE_WITHIN, IN_FLIGHT_MAX};
use super::shared::Shared;
use bytes::Bytes;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::fabrics::{ControllerId, PropertyAnswer, PropertyDemand, QueueRole};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::fabrics::{
    CONNECT_BYTES, FABRICS_OPCODE, FabricsKind, connect_status, disconnect_format,
};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::Slot;
use headwater_nvme::tcp::target::{CommandData, Need, Response, TargetStep, Wanted};
use headwater_ssd::command::SubmitError;
use headwater_ssd::engine::Device;
use headwater_ssd::limits::OPERATIONS_MAX;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::interpreter::{DataNeed, IoCommand, decode};
use headwater_ssd::nvme::request::{Data, Request};

/// What one connection is worked on with.
pub(super) struct Turn<'a, M: Media> {
    pub(super) device: &'a mut Device<M>,
    pub(super) shared: &'a mut Shared,
}

impl<M: Media> Turn<'_, M> {
    /// Takes received bytes, all of them.
    pub(super) fn take(&mut self, connection: &mut Connection, mut bytes: &[u8]) {
        while connection.is_listening() {
            match connection.target.advance(&mut bytes) {
                TargetStep::Starved => return,
                TargetStep::Command { slot, entry } => self.judge(connection, slot, &entry),
                TargetStep::Ready(slot) => self.run(connection, slot),
                TargetStep::Closed(ended) => {
                    tracing::debug!(connection = connection.id.0, ?ended, "NVMe/TCP connection ends");
                    connection.life = Life::Closing(self.shared.now.after(CLOSE_WITHIN));
                }
            }
        }
    }

    /// Decides what a command is and what data it needs.
    fn judge(&mut self, connection: &mut Connection, slot: Slot, entry: &SubmissionEntry) {
        self.shared.counters.commands += 1;
        let judged = match (connection.role, FabricsKind::of(entry)) {
            (Role::Stranger, Some(FabricsKind::Connect)) => {
                Ok((Need::FromHost(CONNECT_BYTES), Work::Connect(*entry)))
            }
            // Before Connect there is nothing else, and there is no second one (Base 2.0 section 3.3.2.1).
            (Role::Stranger, _) | (_, Some(FabricsKind::Connect)) => Err(Status::COMMAND_SEQUENCE_ERROR),
            (Role::Admin(id), Some(kind @ (FabricsKind::PropertyGet | FabricsKind::PropertySet))) => {
                let answer = self.property(id, kind, entry);
                return connection.respond(slot, answer);
            }
            (Role::Io(_), Some(FabricsKind::Disconnect)) if disconnect_format(entry) == 0 => {
                return connection.bid_farewell(slot);
            }
            (Role::Io(_), Some(FabricsKind::Disconnect)) => Err(connect_status::INCOMPATIBLE_FORMAT),
            (Role::Admin(_), Some(FabricsKind::Disconnect)) => Err(connect_status::INVALID_QUEUE_TYPE),
            _ if entry.opcode == FABRICS_OPCODE => Err(Status::INVALID_OPCODE),
            (Role::Admin(id), _) => self.admin_need(id, entry).map(|need| (need, Work::Admin(*entry))),
            (Role::Io(id), _) => {
                let device = &*self.device;
                let seen =
                    |namespace| device.namespace(namespace).filter(|_| device.is_attached(namespace, id.0));
                decode(entry, QueueKind::Standard, seen)
                    .map(|command| (need(command.data()), Work::Io(command)))
            }
        };
        match judged {
            Err(status) => connection.respond(slot, Response::status(status)),
            Ok((need, work)) => {
                connection.set_work(slot, work);
                if connection.target.want(slot, need) == Wanted::Now {
                    self.run(connection, slot);
                }
            }
        }
    }

    fn property(&mut self, id: ControllerId, kind: FabricsKind, entry: &SubmissionEntry) -> Response {
        let associations = &mut self.shared.associations;
        let answer = match kind {
            FabricsKind::PropertyGet => associations.property_get(id, entry),
            _ => associations.property_set(id, entry, self.shared.now),
        };
        match answer {
            Err(status) => Response::status(status),
            Ok(PropertyAnswer { result, demand }) => {
                match demand {
                    PropertyDemand::Nothing => {}
                    PropertyDemand::Close(connections) => self.shared.doomed.extend(connections),
                    PropertyDemand::Shutdown => self.shared.shutdowns.push(id),
                }
                Response { result, ..Response::status(Status::SUCCESS) }
            }
        }
    }

    /// Carries out a command whose data is here, or parks it.
    fn run(&mut self, connection: &mut Connection, slot: Slot) {
        let work = connection.take_work(slot);
        if (connection.is_parked() && !work.is_abort()) || !self.try_run(connection, slot, work) {
            connection.park(slot, work);
        }
    }

    /// Goes on with what was parked, in order. Whether anything moved.
    pub(super) fn run_parked(&mut self, connection: &mut Connection) -> bool {
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

    /// False when there is no room for it now.
    #[inline]
    fn try_run(&mut self, connection: &mut Connection, slot: Slot, work: Work) -> bool {
        match work {
            Work::Io(command) => self.run_io(connection, slot, &command),
            Work::Admin(entry) => match connection.role {
                Role::Admin(id) => self.run_admin(connection, id, slot, &entry),
                Role::Stranger | Role::Io(_) => true,
            },
            Work::Connect(entry) => {
                self.connect(connection, slot, &entry);
                true
            }
            Work::None => true,
        }
    }

    /// Whether the device takes another command of this face.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.shared.flights.len() < IN_FLIGHT_MAX && self.has_device_room()
    }

    /// Whether the device takes another command.
    #[inline]
    pub(super) fn has_device_room(&self) -> bool {
        self.device.in_flight() < OPERATIONS_MAX
    }

    #[inline]
    fn run_io(&mut self, connection: &mut Connection, slot: Slot, io: &IoCommand) -> bool {
        if self.device.is_sanitizing() {
            connection.respond(slot, Response::status(Status::SANITIZE_IN_PROGRESS));
            return true;
        }
        let (owed, data) = match io.data() {
            DataNeed::ToHost(bytes) => (usize::try_from(bytes).unwrap_or(usize::MAX), true),
            DataNeed::FromHost(_) | DataNeed::None => (0, false),
        };
        if !self.has_room() || !connection.reserve(owed) {
            return false;
        }
        let data = match io.data() {
            _ if data => Data::Room,
            DataNeed::FromHost(_) => Data::Bytes(match connection.target.take_data(slot) {
                CommandData::Heap(bytes) => bytes.into(),
                pooled @ CommandData::Pooled(_) => Bytes::from_owner(pooled),
            }),
            _ => Data::None,
        };
        let refused = match Request::new(io, data, &mut self.shared.keys, self.device) {
            Err(status) => Some(status),
            Ok(Request { namespace, command, answer }) => {
                let id = connection.id;
                let number = self.shared.flights.insert(Flight::Io { connection: id, slot, answer, owed });
                match self.device.submit(self.shared.face, namespace, number, command) {
                    Ok(()) => None,
                    Err(error) => {
                        self.shared.flights.remove(number);
                        Some(refusal(error))
                    }
                }
            }
        };
        match refused {
            None => connection.in_flight += 1,
            Some(status) => {
                connection.settle(owed);
                connection.respond(slot, Response::status(status));
            }
        }
        true
    }

    /// Tells the device of a controller with namespaces. False if it takes no more of them.
    fn introduce(&mut self, id: ControllerId, role: QueueRole) -> bool {
        let discovery =
            self.shared.associations.get_mut(id).is_none_or(|association| association.is_discovery());
        role == QueueRole::Io || discovery || self.device.add_controller(id.0)
    }

    fn connect(&mut self, connection: &mut Connection, slot: Slot, entry: &SubmissionEntry) {
        let data = connection.target.take_data(slot);
        if !self.may_connect(connection, &data) {
            tracing::info!("NVMe/TCP Connect refused: its names are not those of its key");
            return connection.respond(slot, Response::status(connect_status::INVALID_HOST));
        }
        match self.shared.associations.connect(entry, &data, connection.id, self.shared.now) {
            Err(refusal) => {
                tracing::info!(status = %refusal.status, parameter = refusal.result, "NVMe/TCP Connect refused");
                let result = u64::from(refusal.result);
                connection.respond(slot, Response { result, ..Response::status(refusal.status) });
            }
            Ok(joined) => {
                if !self.introduce(joined.controller, joined.role) {
                    self.shared.associations.leave(joined.controller, connection.id);
                    return connection.respond(slot, Response::status(connect_status::CONTROLLER_BUSY));
                }
                connection.role = match joined.role {
                    QueueRole::Admin => Role::Admin(joined.controller),
                    QueueRole::Io => Role::Io(joined.controller),
                };
                connection.target.set_queue(joined.entries, joined.flow);
                let result = u64::from(joined.controller.0);
                connection.respond(slot, Response { result, ..Response::status(Status::SUCCESS) });
            }
        }
    }
}

/// The status of a command that the device did not take.
pub(super) fn refusal(error: SubmitError) -> Status {
    match error {
        SubmitError::Refused(status) => status,
        // Room was asked for before; whoever retries finds it.
        SubmitError::Busy(_) => Status::ABORT_REQUESTED,
    }
}

#[inline]
fn need(data: DataNeed) -> Need {
    match data {
        DataNeed::None => Need::None,
        DataNeed::FromHost(bytes) => Need::FromHost(bytes),
        DataNeed::ToHost(bytes) => Need::ToHost(bytes),
    }
}
