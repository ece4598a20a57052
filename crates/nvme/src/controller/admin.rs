//! One controller: registers, admin commands and events, without I/O, clock or host memory.
//!
//! Input: register accesses, admin entries with their data, the [`NvmSubsystem`] they refer to, and the time. Output:
//! values, [`RegisterEffect`]s, and one [`AdminStep`] for each admin command. A PCIe function and a fabrics target
//! drive the same object: the first by memory, the second by Property Get and Set and by capsules.
//!
//! # Out of scope
//! Queues and data transfer. Fabrics commands (7Fh) are handled elsewhere.

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

pub use config::{ControllerConfig, ControllerKind, ControllerTransport, MultipathMode};
pub use events::{AsyncEvent, AsyncEventCompletion};
pub use step::{
    AdminCompletion, AdminData, AdminStep, CompletionQueueRequest, NamespaceAction, SubmissionQueueRequest,
};
pub use subsystem::{
    CommandLimits, NamespaceFormat, NamespaceProperties, NvmSubsystem, SanitizeState, SanitizeStatus,
    SubsystemCapacity, SubsystemHealth, SubsystemIdentity,
};

use crate::controller::interrupts::{InterruptCoalescing, VectorCoalescing};
use crate::controller::queue::QueueId;
use crate::controller::registers::{ControllerRegisters, RegisterEffect};
use crate::controller::schedule::{ArbitrationSettings, QueueArbitration};
use crate::spec::admin::halves;
use crate::spec::command::SubmissionEntry;
use crate::spec::opcode::AdminOpcode;
use crate::spec::register::{ArbitrationMechanism, CommandSets, ConfigurationRegister};
use crate::spec::status::Status;
use errors::ErrorLog;
use events::AsyncEventState;
use features::FeatureValues;
use headwater_host::clock::Nanos;
use keep_alive::KeepAliveTimer;
use watch::{NamespaceWatch, WatchOutcome};

/// The outcome of [`DeviceController::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAliveStatus {
    /// The controller works.
    Alive,
    /// The host was silent for longer than its Keep Alive timer. The controller has failed (CSTS.CFS); on fabrics the
    /// association ends.
    KeepAliveExpired,
}

/// Critical warnings that the controller can report to a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HealthWarnings {
    spare_is_low: bool,
    is_read_only: bool,
}

impl HealthWarnings {
    fn of(health: &SubsystemHealth) -> Self {
        Self { spare_is_low: health.spare_is_low, is_read_only: health.is_read_only }
    }
}

/// The registers and admin state of one controller.
#[derive(Clone, Debug)]
pub struct DeviceController {
    config: ControllerConfig,
    registers: ControllerRegisters,
    features: FeatureValues,
    events: AsyncEventState,
    errors: ErrorLog,
    keep_alive: KeepAliveTimer,
    watch: NamespaceWatch,
    /// The number of sanitize operations that had started when this controller requested one whose end is not reported.
    sanitizes_before: Option<u64>,
    /// The SMART warnings at the last poll.
    reported_warnings: HealthWarnings,
    /// True once an I/O queue was created since CC.EN was set: the number of queues is fixed then.
    queues_created: bool,
}

impl DeviceController {
    /// Creates a controller in its state after power on.
    #[must_use]
    pub fn new(config: ControllerConfig) -> Self {
        Self {
            config,
            registers: ControllerRegisters::new(config.transport, config.capabilities()),
            features: FeatureValues::new(&config, Nanos::ZERO),
            events: AsyncEventState::default(),
            errors: ErrorLog::default(),
            keep_alive: KeepAliveTimer::default(),
            watch: NamespaceWatch::default(),
            sanitizes_before: None,
            reported_warnings: HealthWarnings::default(),
            queues_created: false,
        }
    }

    /// Returns the configuration it was created with.
    #[must_use]
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// Reads a register or part of one. On fabrics: Property Get.
    #[must_use]
    pub fn read_register(&self, offset: u32, bytes: u32) -> u64 {
        self.registers.read(offset, bytes)
    }

    /// Writes a register. On fabrics: Property Set. The caller must perform the effect.
    #[must_use]
    pub fn write_register(&mut self, offset: u32, bytes: u32, value: u64, now: Nanos) -> RegisterEffect {
        let effect = self.registers.write(offset, bytes, value);
        match effect {
            RegisterEffect::Enable(_) => self.keep_alive.restart(now),
            RegisterEffect::Disable => self.reset_state(now),
            _ => {}
        }
        effect
    }

    /// Completes [`RegisterEffect::Enable`]: the admin queues exist and commands may arrive.
    pub fn complete_enable(&mut self) {
        self.registers.complete_enable();
    }

    /// Completes [`RegisterEffect::Disable`]: every queue is gone.
    pub fn complete_disable(&mut self) {
        self.registers.complete_disable();
    }

    /// Completes [`RegisterEffect::Shutdown`]: every acknowledged write is durable.
    pub fn complete_shutdown(&mut self) {
        self.registers.complete_shutdown();
    }

    /// Marks the controller failed (CSTS.CFS), so that its host resets it.
    pub fn fail(&mut self) {
        self.registers.fail();
    }

    /// Resets the controller because the NSSR of any controller reset the NVM subsystem. Queues must be removed as
    /// after [`RegisterEffect::Disable`].
    pub fn reset_with_subsystem(&mut self, now: Nanos) {
        self.registers.reset_with_subsystem();
        self.reset_state(now);
    }

    /// Resets everything but the registers, as a Controller Level Reset does. The error log stays: its entries are
    /// counted over the life of the controller.
    fn reset_state(&mut self, now: Nanos) {
        self.features = FeatureValues::new(&self.config, now);
        self.events = AsyncEventState::default();
        self.keep_alive = KeepAliveTimer::default();
        self.watch = NamespaceWatch::default();
        self.sanitizes_before = None;
        self.reported_warnings = HealthWarnings::default();
        self.queues_created = false;
    }

    /// Returns true if the controller executes commands: CSTS.RDY is set and no shutdown was requested.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.registers.is_ready() && !self.registers.is_shut_down()
    }

    /// Returns true if the controller failed and waits for a reset.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.registers.has_failed()
    }

    /// Returns CC.
    #[must_use]
    pub fn configuration(&self) -> ConfigurationRegister {
        self.registers.configuration()
    }

    /// Returns the interrupt mask that INTMS and INTMC set, for functions without MSI-X.
    #[must_use]
    pub fn interrupt_mask(&self) -> u32 {
        self.registers.interrupt_mask()
    }

    /// Returns the arbitration mechanism of the submission queues (CC.AMS).
    #[must_use]
    pub fn queue_arbitration(&self) -> QueueArbitration {
        match self.configuration().arbitration() {
            Some(ArbitrationMechanism::WeightedRoundRobin) => QueueArbitration::WeightedWithUrgent,
            _ => QueueArbitration::RoundRobin,
        }
    }

    /// Returns the Arbitration feature, for the owner of the queues.
    #[must_use]
    pub fn arbitration(&self) -> ArbitrationSettings {
        self.features.arbitration()
    }

    /// Returns the Interrupt Coalescing feature, for the owner of the interrupts.
    #[must_use]
    pub fn coalescing(&self) -> InterruptCoalescing {
        self.features.coalescing()
    }

    /// Returns the Interrupt Vector Configuration feature of one vector.
    #[must_use]
    pub fn vector_coalescing(&self, vector: u16) -> VectorCoalescing {
        self.features.vector_coalescing(vector)
    }

    /// Returns the number of I/O queues of each kind that the host may create.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        self.features.io_queues()
    }

    /// Sets the host identifier that Connect carried (fabrics).
    pub fn set_host_identifier(&mut self, identifier: [u8; 16]) {
        self.features.set_host_identifier(identifier);
    }

    /// Returns the host identifier, zero until one is set.
    #[must_use]
    pub fn host_identifier(&self) -> [u8; 16] {
        self.features.host_identifier()
    }

    /// Sets the Keep Alive timer that Connect carried (fabrics); 0 for none.
    pub fn set_keep_alive(&mut self, timeout_ms: u32, now: Nanos) {
        self.keep_alive.set(timeout_ms, now);
    }

    /// Reports changes of the subsystem as events and checks the Keep Alive timer.
    pub fn poll(&mut self, subsystem: &impl NvmSubsystem, now: Nanos) -> KeepAliveStatus {
        self.report_changes(subsystem);
        if self.registers.is_ready() && self.keep_alive.has_expired(now) {
            self.registers.fail();
            return KeepAliveStatus::KeepAliveExpired;
        }
        KeepAliveStatus::Alive
    }

    /// Returns the Keep Alive deadline, by which [`poll`](Self::poll) must be called even if nothing changes.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.keep_alive.deadline().filter(|_| self.registers.is_ready())
    }

    fn report_changes(&mut self, subsystem: &impl NvmSubsystem) {
        if self.watch.update(subsystem, self.config.id) == WatchOutcome::Changed {
            self.notify(AsyncEvent::NamespaceAttribute);
        }
        let sanitize = subsystem.sanitize();
        // Until the subsystem starts the operation, its state is that of an earlier one.
        let has_started = self.sanitizes_before.is_some_and(|before| sanitize.started != before);
        if has_started && !matches!(sanitize.state, SanitizeState::Running(_)) {
            self.sanitizes_before = None;
            self.notify(AsyncEvent::SanitizeCompleted);
        }
        let warnings = HealthWarnings::of(&subsystem.health());
        let before = std::mem::replace(&mut self.reported_warnings, warnings);
        if warnings.spare_is_low && !before.spare_is_low {
            self.notify(AsyncEvent::SpareLow);
        }
        if warnings.is_read_only && !before.is_read_only {
            self.notify(AsyncEvent::ReliabilityDegraded);
        }
    }

    /// Enqueues an event for the host, if the host enabled it.
    pub fn notify(&mut self, event: AsyncEvent) {
        self.events.notify(event, self.features.async_events());
    }

    /// Adds a faulty command of an I/O queue, or a faulty doorbell write, to the error log.
    pub fn record_error(&mut self, queue: QueueId, command: u16, nsid: u32, status: Status) {
        self.errors.record(queue.0, command, nsid, status);
    }

    /// Removes an Asynchronous Event Request that its host has given up, without a completion.
    pub fn forget_event_request(&mut self, command_id: u16) {
        self.events.forget(command_id);
    }

    /// Returns the next completion of an Asynchronous Event Request, if there is one.
    pub fn take_async_event(&mut self) -> Option<AsyncEventCompletion> {
        self.events.take()
    }

    /// Returns the direction and length of an admin command's data.
    ///
    /// # Errors
    /// The status that refuses the command: an unsupported opcode, or more data than the maximum transfer size.
    pub fn admin_data(&self, entry: &SubmissionEntry) -> Result<AdminData, Status> {
        data::admin_data(&self.config, entry)
    }

    /// Executes an admin command as far as the controller can alone. `data` are the bytes that
    /// [`admin_data`](Self::admin_data) requires.
    pub fn admin(
        &mut self,
        entry: &SubmissionEntry,
        data: &[u8],
        subsystem: &impl NvmSubsystem,
        now: Nanos,
    ) -> AdminStep {
        self.report_changes(subsystem);
        let step = self.dispatch(entry, data, subsystem, now).unwrap_or_else(AdminStep::refused);
        if let AdminStep::Done(AdminCompletion { status, .. }) = &step
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
        subsystem: &impl NvmSubsystem,
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
                self.identify(entry, subsystem).map(AdminCompletion::with_data).map(AdminStep::Done)
            }
            AdminOpcode::GetLogPage => {
                self.log_page(entry, subsystem).map(AdminCompletion::with_data).map(AdminStep::Done)
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
                self.keep_alive.restart(now);
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

    /// Returns true if the host selected an I/O command set; without one every I/O command is an invalid opcode (CC.CSS 111b).
    #[must_use]
    pub fn has_io_commands(&self) -> bool {
        self.configuration().command_sets() != Some(CommandSets::AdminOnly)
    }

    /// Returns true if the host can see Key Value namespaces: it selected more than the NVM command set.
    fn has_key_value(&self) -> bool {
        self.configuration().command_sets() != Some(CommandSets::Nvm)
    }
}
