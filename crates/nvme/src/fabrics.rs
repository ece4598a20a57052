//! Associations of hosts over a fabric: Connect creates a controller for each host and attaches queues to it.
//!
//! Input: Fabrics commands with their data, the connections that carried them, and the time. Output: [`JoinedQueue`] queues,
//! register values, and connections to close. Invariant: a connection is at most one queue of one controller; a
//! controller lives as long as its admin queue; a queue number of a controller belongs to one connection.
//!
//! # Out of scope
//! Connections and sending. Authentication is not offered; the caller must refuse connections of unwanted hosts.

mod connect;

use crate::controller::QueueId;
use crate::controller::admin::{
    AsyncEventCompletion, ControllerConfig, ControllerKind, DeviceController, KeepAliveStatus, NvmSubsystem,
};
use crate::controller::registers::RegisterEffect;
use crate::spec::command::SubmissionEntry;
use crate::spec::fabrics::PropertyFields;
use crate::spec::register::ControllerRegister;
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

pub use connect::{ConnectRefusal, JoinedQueue};

/// The id of a connection, assigned by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The id of a controller that a host connected to: its CNTLID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerId(pub u16);

/// The role of a connection as a queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// The admin queue of an I/O controller or of a discovery controller.
    Admin,
    /// An I/O queue.
    Io,
}

/// The configuration of a subsystem on fabrics.
#[derive(Clone, Debug)]
pub struct FabricsConfig {
    /// SUBNQN.
    pub subsystem_name: String,
    /// The maximum number of controllers at a time, including discovery controllers.
    pub controllers_max: usize,
    /// The first CNTLID; ids are assigned in rotation from here.
    pub first_controller: u16,
    /// The maximum number of entries of a queue.
    pub queue_entries_max: u16,
    /// The maximum number of I/O queues of a controller.
    pub io_queues_max: u16,
    /// The Keep Alive timeout of a discovery controller whose host set none.
    pub discovery_keep_alive_ms: u32,
}

impl Default for FabricsConfig {
    fn default() -> Self {
        Self {
            subsystem_name: String::new(),
            controllers_max: 64,
            first_controller: DYNAMIC_CONTROLLERS,
            queue_entries_max: 128,
            io_queues_max: 16,
            discovery_keep_alive_ms: 120_000,
        }
    }
}

/// The first CNTLID assigned when a host connects and released when it leaves; controllers with smaller ids are
/// permanent.
pub const DYNAMIC_CONTROLLERS: u16 = 0x1000;
/// The last assignable CNTLID (FFF0h and above are reserved).
const CONTROLLER_LAST: u16 = 0xFFEF;

/// One controller and the connections that are its queues.
#[derive(Debug)]
pub struct Association {
    /// The controller.
    pub controller: DeviceController,
    host_name: String,
    host_identifier: [u8; 16],
    admin: ConnectionId,
    io: BTreeMap<u16, ConnectionId>,
    /// The subsystem's generation at the controller's last poll.
    polled_generation: u64,
}

impl Association {
    /// Returns the connection of the admin queue.
    #[must_use]
    pub const fn admin_connection(&self) -> ConnectionId {
        self.admin
    }

    /// Returns the connection of a queue.
    #[must_use]
    pub fn connection(&self, queue: QueueId) -> Option<ConnectionId> {
        if queue == QueueId::ADMIN { Some(self.admin) } else { self.io.get(&queue.0).copied() }
    }

    /// Returns all its connections, the admin queue first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        std::iter::once(self.admin).chain(self.io.values().copied()).collect()
    }

    /// Returns true if the controller is a discovery controller.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.controller.config().kind == ControllerKind::Discovery
    }
}

/// The outcome of a property command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyOutcome {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The remaining action for the caller.
    pub action: PropertyAction,
}

/// The action that a property write requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyAction {
    /// Nothing.
    Nothing,
    /// Close these connections.
    Close(Vec<ConnectionId>),
    /// Make every acknowledged write durable, then call [`DeviceController::complete_shutdown`](crate::controller::DeviceController::complete_shutdown).
    Shutdown,
}

/// The outcome of [`AssociationTable::poll`].
#[derive(Debug, Default)]
pub struct AssociationEvents {
    /// Connections of hosts that were silent for longer than their Keep Alive timeout.
    pub expired: Vec<ConnectionId>,
    /// Completions of Asynchronous Event Requests, with their admin connections.
    pub events: Vec<(ConnectionId, AsyncEventCompletion)>,
}

/// All associations of a subsystem.
#[derive(Debug)]
pub struct AssociationTable {
    config: FabricsConfig,
    by_controller: BTreeMap<ControllerId, Association>,
    next: u16,
}

impl AssociationTable {
    /// Creates an empty set of associations.
    #[must_use]
    pub fn new(config: FabricsConfig) -> Self {
        let next = config.first_controller;
        Self { config, by_controller: BTreeMap::new(), next }
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &FabricsConfig {
        &self.config
    }

    /// Sets the SUBNQN. Until then hosts can connect to the discovery controller only.
    pub fn set_subsystem_name(&mut self, name: String) {
        self.config.subsystem_name = name;
    }

    /// Returns an association by its controller.
    pub fn get_mut(&mut self, id: ControllerId) -> Option<&mut Association> {
        self.by_controller.get_mut(&id)
    }

    /// Returns the ids of I/O controllers, in ascending order.
    pub fn controllers(&self) -> impl Iterator<Item = u16> + '_ {
        self.by_controller.iter().filter(|(_, association)| !association.is_discovery()).map(|(id, _)| id.0)
    }

    /// Returns the number of associations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_controller.len()
    }

    /// Returns true if there is no association.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_controller.is_empty()
    }

    /// Executes Property Get (Base 2.0 section 6.5): existing registers only, in their own width.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for any other offset or width.
    pub fn property_get(&self, id: ControllerId, entry: &SubmissionEntry) -> Result<PropertyOutcome, Status> {
        let fields = PropertyFields::from_entry(entry);
        let association = self.by_controller.get(&id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let register = ControllerRegister::at(fields.offset).filter(|register| is_property(*register));
        let register = register.filter(|register| fields.bytes == Some(register.bytes()));
        let register = register.ok_or(Status::INVALID_FIELD)?;
        let result = association.controller.read_register(register.offset(), register.bytes());
        Ok(PropertyOutcome { result, action: PropertyAction::Nothing })
    }

    /// Executes Property Set (Base 2.0 section 6.6): CC and NSSR.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for any other offset or width.
    pub fn property_set(
        &mut self,
        id: ControllerId,
        entry: &SubmissionEntry,
        now: Nanos,
    ) -> Result<PropertyOutcome, Status> {
        let fields = PropertyFields::from_entry(entry);
        let association = self.by_controller.get_mut(&id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let writable =
            [ControllerRegister::Configuration.offset(), ControllerRegister::SubsystemReset.offset()];
        if fields.bytes != Some(4) || !writable.contains(&fields.offset) {
            return Err(Status::INVALID_FIELD);
        }
        let controller = &mut association.controller;
        let demand = match controller.write_register(fields.offset, 4, fields.value, now) {
            RegisterEffect::None | RegisterEffect::InterruptMask => PropertyAction::Nothing,
            RegisterEffect::Enable(_) => {
                controller.complete_enable();
                PropertyAction::Nothing
            }
            RegisterEffect::Disable => {
                controller.complete_disable();
                PropertyAction::Close(std::mem::take(&mut association.io).into_values().collect())
            }
            RegisterEffect::Shutdown(_) => PropertyAction::Shutdown,
            // A reset ends every association of the subsystem (Base 2.0 section 3.7.1.1).
            RegisterEffect::SubsystemReset => PropertyAction::Close(
                std::mem::take(&mut self.by_controller).values().flat_map(Association::connections).collect(),
            ),
        };
        Ok(PropertyOutcome { result: 0, action: demand })
    }

    /// Removes a closed connection. If it was an admin queue, also removes its controller and returns the connections
    /// to close.
    pub fn remove_connection(&mut self, id: ControllerId, connection: ConnectionId) -> Vec<ConnectionId> {
        let Some(association) = self.by_controller.get_mut(&id) else {
            return Vec::new();
        };
        if association.admin == connection {
            return self
                .by_controller
                .remove(&id)
                .map_or_else(Vec::new, |gone| gone.io.into_values().collect());
        }
        association.io.retain(|_, io| *io != connection);
        Vec::new()
    }

    /// Polls controllers whose Keep Alive timer is due or whose subsystem changed. Removes associations whose timer
    /// expired.
    pub fn poll(&mut self, subsystem: &impl NvmSubsystem, now: Nanos) -> AssociationEvents {
        let mut findings = AssociationEvents::default();
        let generation = subsystem.generation();
        self.by_controller.retain(|_, association| {
            let due = association.controller.next_deadline().is_some_and(|deadline| deadline < now);
            if due || association.polled_generation != generation {
                association.polled_generation = generation;
                if association.controller.poll(subsystem, now) == KeepAliveStatus::KeepAliveExpired {
                    findings.expired.extend(association.connections());
                    return false;
                }
            }
            while let Some(answer) = association.controller.take_async_event() {
                findings.events.push((association.admin, answer));
            }
            true
        });
        findings
    }

    /// Returns the earliest Keep Alive deadline, by which [`poll`](Self::poll) must be called even if nothing changes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.by_controller.values().filter_map(|association| association.controller.next_deadline()).min()
    }

    /// Returns a free CNTLID, in rotation, so that a released id is not soon reassigned to another host.
    fn next_free_id(&mut self) -> Option<ControllerId> {
        if self.by_controller.len() >= self.config.controllers_max {
            return None;
        }
        loop {
            let id = ControllerId(self.next);
            self.next = if id.0 >= CONTROLLER_LAST { self.config.first_controller } else { id.0 + 1 };
            if !self.by_controller.contains_key(&id) {
                return Some(id);
            }
        }
    }

    fn create_controller(&self, id: ControllerId, kind: ControllerKind) -> DeviceController {
        let config = match kind {
            ControllerKind::Io => ControllerConfig::fabrics(id.0),
            ControllerKind::Discovery => ControllerConfig::discovery(id.0),
        };
        let io_queues_max = config.io_queues_max.min(self.config.io_queues_max);
        let queue_slots_max = u32::from(self.config.queue_entries_max);
        DeviceController::new(ControllerConfig { io_queues_max, queue_slots_max, ..config })
    }
}

/// Registers that are properties of a fabrics controller (Base 2.0 figure 35).
fn is_property(register: ControllerRegister) -> bool {
    matches!(
        register,
        ControllerRegister::Capabilities
            | ControllerRegister::Version
            | ControllerRegister::Configuration
            | ControllerRegister::Status
            | ControllerRegister::SubsystemReset
            | ControllerRegister::ReadyTimeouts
    )
}
