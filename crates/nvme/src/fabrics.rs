//! Hosts that come over a fabric: Connect makes a controller for each, and joins queues to it.
//!
//! In: Fabrics commands with their data, the connections they came by, time. Out: [`Joined`] queues, register values, and the
//! connections that must be closed. Invariant: a connection is at most one queue of one controller; a controller lives as
//! long as its admin queue; a queue number of a controller is one connection's.
//!
//! # What this does not do
//! It has no connection and sends nothing. Authentication is not offered; whoever must be kept out is kept from connecting.

mod connect;

use crate::controller::QueueId;
use crate::controller::admin::{
    AsyncAnswer, Controller, ControllerConfig, ControllerKind, Subsystem, Vitality,
};
use crate::controller::registers::RegisterEffect;
use crate::spec::command::SubmissionEntry;
use crate::spec::fabrics::PropertyFields;
use crate::spec::register::Register;
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

pub use connect::{Joined, Refusal};

/// Names a connection to whoever owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Names a controller that a host connected to: its CNTLID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerId(pub u16);

/// Which queue of a controller a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// The admin queue of a controller with namespaces, or of a discovery controller.
    Admin,
    /// An I/O queue.
    Io,
}

/// How a subsystem takes hosts.
#[derive(Clone, Debug)]
pub struct FabricsConfig {
    /// SUBNQN.
    pub subsystem_name: String,
    /// Most controllers at a time, discovery controllers included.
    pub controllers_max: usize,
    /// The first CNTLID; they are given out from here in turn.
    pub first_controller: u16,
    /// Most entries of a queue.
    pub queue_entries_max: u16,
    /// Most I/O queues of a controller.
    pub io_queues_max: u16,
    /// Keep Alive timeout of a discovery controller whose host named none.
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

/// Controllers from this CNTLID on are given out as hosts connect, and are gone with them; those below are always there.
pub const DYNAMIC_CONTROLLERS: u16 = 0x1000;
/// The last CNTLID that may be given out (FFF0h and above are reserved).
const CONTROLLER_LAST: u16 = 0xFFEF;

/// One controller and the connections that are its queues.
#[derive(Debug)]
pub struct Association {
    /// The controller.
    pub controller: Controller,
    host_name: String,
    host_identifier: [u8; 16],
    admin: ConnectionId,
    io: BTreeMap<u16, ConnectionId>,
    /// The generation of the subsystem's facts that the controller was last shown.
    seen: u64,
}

impl Association {
    /// The connection that is its admin queue.
    #[must_use]
    pub const fn admin_connection(&self) -> ConnectionId {
        self.admin
    }

    /// The connection that is a queue of it.
    #[must_use]
    pub fn connection(&self, queue: QueueId) -> Option<ConnectionId> {
        if queue == QueueId::ADMIN { Some(self.admin) } else { self.io.get(&queue.0).copied() }
    }

    /// Every connection it has, the admin queue first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        std::iter::once(self.admin).chain(self.io.values().copied()).collect()
    }

    /// Whether it tells of other subsystems only.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.controller.config().kind == ControllerKind::Discovery
    }
}

/// What a property command comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyAnswer {
    /// Dwords 0 and 1.
    pub result: u64,
    /// What else must be done.
    pub demand: PropertyDemand,
}

/// What writing a property demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyDemand {
    /// Nothing.
    Nothing,
    /// Close these connections.
    Close(Vec<ConnectionId>),
    /// Make everything acknowledged durable, then call [`Controller::shut_down`].
    Shutdown,
}

/// What [`Associations::poll`] found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Connections of hosts that were silent for longer than their Keep Alive timeout.
    pub expired: Vec<ConnectionId>,
    /// Answers to event requests, by the admin connection they go to.
    pub events: Vec<(ConnectionId, AsyncAnswer)>,
}

/// All of them.
#[derive(Debug)]
pub struct Associations {
    config: FabricsConfig,
    all: BTreeMap<ControllerId, Association>,
    next: u16,
}

impl Associations {
    /// None yet.
    #[must_use]
    pub fn new(config: FabricsConfig) -> Self {
        let next = config.first_controller;
        Self { config, all: BTreeMap::new(), next }
    }

    /// How hosts are taken.
    #[must_use]
    pub fn config(&self) -> &FabricsConfig {
        &self.config
    }

    /// Says what hosts call the subsystem; until then nobody can connect but to the discovery controller.
    pub fn set_subsystem_name(&mut self, name: String) {
        self.config.subsystem_name = name;
    }

    /// An association by its controller.
    pub fn get_mut(&mut self, id: ControllerId) -> Option<&mut Association> {
        self.all.get_mut(&id)
    }

    /// Controllers with namespaces, in ascending order.
    pub fn controllers(&self) -> impl Iterator<Item = u16> + '_ {
        self.all.iter().filter(|(_, association)| !association.is_discovery()).map(|(id, _)| id.0)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Property Get (Base 2.0 section 6.5): only registers that exist, in their own width.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for any other.
    pub fn property_get(&self, id: ControllerId, entry: &SubmissionEntry) -> Result<PropertyAnswer, Status> {
        let fields = PropertyFields::of(entry);
        let association = self.all.get(&id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let register = Register::at(fields.offset).filter(|register| is_property(*register));
        let register = register.filter(|register| fields.bytes == Some(register.bytes()));
        let register = register.ok_or(Status::INVALID_FIELD)?;
        let result = association.controller.read_register(register.offset(), register.bytes());
        Ok(PropertyAnswer { result, demand: PropertyDemand::Nothing })
    }

    /// Property Set (Base 2.0 section 6.6): CC, and NSSR.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for any other.
    pub fn property_set(
        &mut self,
        id: ControllerId,
        entry: &SubmissionEntry,
        now: Nanos,
    ) -> Result<PropertyAnswer, Status> {
        let fields = PropertyFields::of(entry);
        let association = self.all.get_mut(&id).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        let writable = [Register::Configuration.offset(), Register::SubsystemReset.offset()];
        if fields.bytes != Some(4) || !writable.contains(&fields.offset) {
            return Err(Status::INVALID_FIELD);
        }
        let controller = &mut association.controller;
        let demand = match controller.write_register(fields.offset, 4, fields.value, now) {
            RegisterEffect::None | RegisterEffect::InterruptMask => PropertyDemand::Nothing,
            RegisterEffect::Enable(_) => {
                controller.enabled();
                PropertyDemand::Nothing
            }
            RegisterEffect::Disable => {
                controller.disabled();
                PropertyDemand::Close(std::mem::take(&mut association.io).into_values().collect())
            }
            RegisterEffect::Shutdown(_) => PropertyDemand::Shutdown,
            // A reset ends every association of the subsystem (Base 2.0 section 3.7.1.1).
            RegisterEffect::SubsystemReset => PropertyDemand::Close(
                std::mem::take(&mut self.all).values().flat_map(Association::connections).collect(),
            ),
        };
        Ok(PropertyAnswer { result: 0, demand })
    }

    /// A connection is gone. If it was an admin queue its controller goes with it, and the connections returned must go too.
    pub fn leave(&mut self, id: ControllerId, connection: ConnectionId) -> Vec<ConnectionId> {
        let Some(association) = self.all.get_mut(&id) else {
            return Vec::new();
        };
        if association.admin == connection {
            return self.all.remove(&id).map_or_else(Vec::new, |gone| gone.io.into_values().collect());
        }
        association.io.retain(|_, other| *other != connection);
        Vec::new()
    }

    /// Looks at the clock and at what changed. Associations whose hosts fell silent are gone afterwards.
    pub fn poll(&mut self, subsystem: &impl Subsystem, now: Nanos) -> Findings {
        let mut findings = Findings::default();
        let generation = subsystem.generation();
        self.all.retain(|_, association| {
            let due = association.controller.next_deadline().is_some_and(|deadline| deadline < now);
            if due || association.seen != generation {
                association.seen = generation;
                if association.controller.poll(subsystem, now) == Vitality::KeepAliveExpired {
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

    /// When [`poll`](Self::poll) next has something to find but a change.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.all.values().filter_map(|association| association.controller.next_deadline()).min()
    }

    /// A free CNTLID, in turn, so that one that was just given back is not soon another host's.
    fn vacancy(&mut self) -> Option<ControllerId> {
        if self.all.len() >= self.config.controllers_max {
            return None;
        }
        loop {
            let id = ControllerId(self.next);
            self.next = if id.0 >= CONTROLLER_LAST { self.config.first_controller } else { id.0 + 1 };
            if !self.all.contains_key(&id) {
                return Some(id);
            }
        }
    }

    fn make_controller(&self, id: ControllerId, kind: ControllerKind) -> Controller {
        let config = match kind {
            ControllerKind::Io => ControllerConfig::fabrics(id.0),
            ControllerKind::Discovery => ControllerConfig::discovery(id.0),
        };
        let io_queues_max = config.io_queues_max.min(self.config.io_queues_max);
        let queue_slots_max = u32::from(self.config.queue_entries_max);
        Controller::new(ControllerConfig { io_queues_max, queue_slots_max, ..config })
    }
}

/// Registers that are properties of a fabrics controller (Base 2.0 figure 35).
fn is_property(register: Register) -> bool {
    matches!(
        register,
        Register::Capabilities
            | Register::Version
            | Register::Configuration
            | Register::Status
            | Register::SubsystemReset
            | Register::ReadyTimeouts
    )
}
