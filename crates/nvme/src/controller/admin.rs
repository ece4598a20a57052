//! One controller: registers, admin commands, events. No I/O, no clock, no memory of a host.
//!
//! In: register accesses, admin entries with the data that came with them, the [`Subsystem`] they ask about, and time.
//! Out: values, [`RegisterEffect`]s, and for each admin command one [`AdminStep`]. A PCIe function and a fabrics target
//! drive the same object: the first by memory, the second by Property Get and Set and by capsules.
//!
//! # What this does not do
//! It has no queues and moves no data. Fabrics commands (7Fh) never come here.

mod config;
mod data;
mod errors;
mod events;
mod features;
mod identify;
mod keep_alive;
mod logs;
mod namespaces;
mod queues;
mod step;
mod subsystem;
mod watch;

pub use config::{ControllerConfig, ControllerKind, Sharing, Transport};
pub use events::{AsyncAnswer, AsyncEvent};
pub use step::{
    AdminAnswer, AdminData, AdminStep, CompletionQueueRequest, NamespaceAction, SubmissionQueueRequest,
};
pub use subsystem::{
    Capacity, CommandLimits, Health, Identity, NamespaceFacts, NamespaceFormat, SanitizeFacts, SanitizeState,
    Subsystem,
};

use crate::controller::interrupts::{Coalescing, VectorCoalescing};
use crate::controller::queue::QueueId;
use crate::controller::registers::{RegisterEffect, Registers};
use crate::controller::schedule::{ArbitrationSettings, Mechanism};
use crate::spec::admin::halves;
use crate::spec::command::SubmissionEntry;
use crate::spec::opcode::AdminOpcode;
use crate::spec::register::{ArbitrationMechanism, CommandSets, Configuration};
use crate::spec::status::Status;
use errors::ErrorLog;
use events::Events;
use features::Features;
use headwater_host::clock::Nanos;
use keep_alive::KeepAlive;
use watch::{Look, NamespaceWatch};

/// What a turn of [`Controller::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vitality {
    /// Everything goes on.
    Alive,
    /// The host was silent for longer than its Keep Alive timer. The controller has failed (CSTS.CFS); on fabrics the
    /// association ends.
    KeepAliveExpired,
}

/// Critical warnings that a host can be told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Warnings {
    spare_is_low: bool,
    is_read_only: bool,
}

impl Warnings {
    fn of(health: &Health) -> Self {
        Self { spare_is_low: health.spare_is_low, is_read_only: health.is_read_only }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    registers: Registers,
    features: Features,
    events: Events,
    errors: ErrorLog,
    keep_alive: KeepAlive,
    watch: NamespaceWatch,
    /// A sanitize operation that this controller began and whose end it has not told.
    sanitizing: bool,
    /// Which warnings of SMART were there at the last look.
    warned: Warnings,
    /// Since CC.EN: after the first I/O queue the number of queues is fixed.
    queues_created: bool,
}

impl Controller {
    /// A controller as it is after power on.
    #[must_use]
    pub fn new(config: ControllerConfig) -> Self {
        Self {
            config,
            registers: Registers::new(config.transport, config.capabilities()),
            features: Features::new(&config, Nanos::ZERO),
            events: Events::default(),
            errors: ErrorLog::default(),
            keep_alive: KeepAlive::default(),
            watch: NamespaceWatch::default(),
            sanitizing: false,
            warned: Warnings::default(),
            queues_created: false,
        }
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Reads a register, or part of one. On fabrics: Property Get.
    #[must_use]
    pub fn read_register(&self, offset: u32, bytes: u32) -> u64 {
        self.registers.read(offset, bytes)
    }

    /// Writes a register. On fabrics: Property Set. The effect must be carried out.
    #[must_use]
    pub fn write_register(&mut self, offset: u32, bytes: u32, value: u64, now: Nanos) -> RegisterEffect {
        let effect = self.registers.write(offset, bytes, value);
        match effect {
            RegisterEffect::Enable(_) => self.keep_alive.hear(now),
            RegisterEffect::Disable => self.forget(now),
            _ => {}
        }
        effect
    }

    /// Carried out: the admin queues stand, commands may come.
    pub fn enabled(&mut self) {
        self.registers.enabled();
    }

    /// Carried out: every queue is gone.
    pub fn disabled(&mut self) {
        self.registers.disabled();
    }

    /// Carried out: everything acknowledged is durable.
    pub fn shut_down(&mut self) {
        self.registers.shut_down();
    }

    /// The controller cannot go on (CSTS.CFS); its host will reset it.
    pub fn fail(&mut self) {
        self.registers.fail();
    }

    /// The NVM subsystem is reset, by whichever controller's NSSR. Queues must go as after
    /// [`RegisterEffect::Disable`].
    pub fn reset_with_subsystem(&mut self, now: Nanos) {
        self.registers.reset_with_subsystem();
        self.forget(now);
    }

    /// Everything but the registers, as a Controller Level Reset leaves it. The error log stays: its entries are counted
    /// over the life of the controller.
    fn forget(&mut self, now: Nanos) {
        self.features = Features::new(&self.config, now);
        self.events = Events::default();
        self.keep_alive = KeepAlive::default();
        self.watch = NamespaceWatch::default();
        self.warned = Warnings::default();
        self.queues_created = false;
    }

    /// Whether commands are carried out: CSTS.RDY, and no shutdown.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.registers.is_ready() && !self.registers.is_shut_down()
    }

    /// Whether it failed and waits for a reset.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.registers.has_failed()
    }

    /// CC.
    #[must_use]
    pub fn configuration(&self) -> Configuration {
        self.registers.configuration()
    }

    /// INTMS less INTMC, for functions without MSI-X.
    #[must_use]
    pub fn interrupt_mask(&self) -> u32 {
        self.registers.interrupt_mask()
    }

    /// How submission queues take turns (CC.AMS).
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        match self.configuration().arbitration() {
            Some(ArbitrationMechanism::WeightedRoundRobin) => Mechanism::WeightedWithUrgent,
            _ => Mechanism::RoundRobin,
        }
    }

    /// The Arbitration feature, for the owner of the queues.
    #[must_use]
    pub fn arbitration(&self) -> ArbitrationSettings {
        self.features.arbitration()
    }

    /// The Interrupt Coalescing feature, for the owner of the interrupts.
    #[must_use]
    pub fn coalescing(&self) -> Coalescing {
        self.features.coalescing()
    }

    /// The Interrupt Vector Configuration feature of one vector.
    #[must_use]
    pub fn vector_coalescing(&self, vector: u16) -> VectorCoalescing {
        self.features.vector_coalescing(vector)
    }

    /// How many I/O queues of each kind the host may create.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        self.features.io_queues()
    }

    /// Fabrics: the host identifier that came with Connect.
    pub fn set_host_identifier(&mut self, identifier: [u8; 16]) {
        self.features.set_host_identifier(identifier);
    }

    /// The host identifier, zero before one was given.
    #[must_use]
    pub fn host_identifier(&self) -> [u8; 16] {
        self.features.host_identifier()
    }

    /// Fabrics: the Keep Alive timer that came with Connect; 0 for none.
    pub fn set_keep_alive(&mut self, timeout_ms: u32, now: Nanos) {
        self.keep_alive.set(timeout_ms, now);
    }

    /// Looks at what changed and what time it is.
    pub fn poll(&mut self, subsystem: &impl Subsystem, now: Nanos) -> Vitality {
        self.observe(subsystem);
        if self.registers.is_ready() && self.keep_alive.has_expired(now) {
            self.registers.fail();
            return Vitality::KeepAliveExpired;
        }
        Vitality::Alive
    }

    /// When [`poll`](Self::poll) next has something to find but a change.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.keep_alive.deadline().filter(|_| self.registers.is_ready())
    }

    fn observe(&mut self, subsystem: &impl Subsystem) {
        if self.watch.look(subsystem, self.config.id) == Look::Changed {
            self.notify(AsyncEvent::NamespaceAttribute);
        }
        if self.sanitizing && !matches!(subsystem.sanitize().state, SanitizeState::Running(_)) {
            self.sanitizing = false;
            self.notify(AsyncEvent::SanitizeCompleted);
        }
        let warnings = Warnings::of(&subsystem.health());
        let before = std::mem::replace(&mut self.warned, warnings);
        if warnings.spare_is_low && !before.spare_is_low {
            self.notify(AsyncEvent::SpareLow);
        }
        if warnings.is_read_only && !before.is_read_only {
            self.notify(AsyncEvent::ReliabilityDegraded);
        }
    }

    /// Something happened that the host may want to know.
    pub fn notify(&mut self, event: AsyncEvent) {
        self.events.notify(event, self.features.async_events());
    }

    /// A command of an I/O queue, or a doorbell, was wrong in a way that belongs in the error log.
    pub fn record_error(&mut self, queue: QueueId, command: u16, nsid: u32, status: Status) {
        self.errors.record(queue.0, command, nsid, status);
    }

    /// The next answer to an Asynchronous Event Request, if there is one.
    pub fn take_async_event(&mut self) -> Option<AsyncAnswer> {
        self.events.take()
    }

    /// What data comes with an admin command.
    ///
    /// # Errors
    /// The status that refuses the command: an opcode this controller does not take, or more data than it moves.
    pub fn admin_data(&self, entry: &SubmissionEntry) -> Result<AdminData, Status> {
        data::admin_data(&self.config, entry)
    }

    /// Carries an admin command out as far as a controller can alone. `data` are the bytes that
    /// [`admin_data`](Self::admin_data) asked for.
    pub fn admin(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl Subsystem,
        now: Nanos,
    ) -> AdminStep {
        self.observe(subsystem);
        let step = self.dispatch(entry, data, subsystem, now).unwrap_or_else(AdminStep::refused);
        if let AdminStep::Done(AdminAnswer { status, .. }) = &step
            && !status.is_success()
        {
            self.errors.record(0, entry.command_id.get(), entry.namespace.get(), *status);
        }
        step
    }

    fn dispatch(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl Subsystem,
        now: Nanos,
    ) -> Result<AdminStep, Status> {
        let need = self.admin_data(entry)?;
        if let AdminData::FromHost(bytes) = need
            && usize::try_from(bytes).is_ok_and(|bytes| data.len() < bytes)
        {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        let opcode = AdminOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
        match opcode {
            AdminOpcode::Identify => {
                self.identify(entry, subsystem).map(AdminAnswer::with_data).map(AdminStep::Done)
            }
            AdminOpcode::GetLogPage => {
                self.log_page(entry, subsystem).map(AdminAnswer::with_data).map(AdminStep::Done)
            }
            AdminOpcode::GetFeatures => self.get_features(entry, subsystem, now).map(AdminStep::Done),
            AdminOpcode::SetFeatures => self.set_features(entry, data, subsystem, now),
            AdminOpcode::CreateCompletionQueue => self.create_completion_queue(entry),
            AdminOpcode::CreateSubmissionQueue => self.create_submission_queue(entry),
            AdminOpcode::DeleteCompletionQueue => self.io_queue(entry).map(AdminStep::DeleteCompletionQueue),
            AdminOpcode::DeleteSubmissionQueue => self.io_queue(entry).map(AdminStep::DeleteSubmissionQueue),
            AdminOpcode::DoorbellBufferConfig => queues::doorbell_buffer(entry),
            AdminOpcode::Abort => Ok(self.abort(entry)),
            AdminOpcode::AsyncEventRequest => {
                self.events.request(entry.command_id.get()).map(|()| AdminStep::Held)
            }
            AdminOpcode::KeepAlive => {
                self.keep_alive.hear(now);
                Ok(AdminStep::success())
            }
            AdminOpcode::NamespaceManagement => self.manage_namespace(entry, data, subsystem),
            AdminOpcode::NamespaceAttachment => self.attach_namespace(entry, data, subsystem),
            AdminOpcode::FormatNvm => self.format(entry, subsystem),
            AdminOpcode::Sanitize => self.sanitize(entry, subsystem),
        }
    }

    fn abort(&mut self, entry: &SubmissionEntry) -> AdminStep {
        let [queue, command] = halves(entry.cdw10.get());
        if queue == 0 && self.events.abort(command) {
            return AdminStep::success();
        }
        AdminStep::Abort { queue: QueueId(queue), command }
    }

    /// Whether namespaces of Key Value exist for this host: it chose more than the NVM command set.
    fn has_key_value(&self) -> bool {
        self.configuration().command_sets() != Some(CommandSets::Nvm)
    }
}
