//! The registers of one controller, and the handshakes that use them (NVMe Base 2.0 sections 3.1.3, 3.5, 3.6, 3.7).
//!
//! Input: reads and writes of any width at any offset, by a host that may violate the rules. Output: values, and the
//! [`RegisterEffect`] that the owner of the queues must perform. Invariant: an illegal write changes nothing, or fails
//! the controller (CSTS.CFS) where the specification says so; CSTS.RDY is cleared only after every queue is gone.
//!
//! ```text
//!               CC.EN 0 -> 1, valid                 enabled()
//!   Disabled ---------------------------> Enabling -----------> Ready
//!    ^    |                                | |  |               |  |
//!    |    | CC.EN 0 -> 1, invalid          | |  | fail()        |  | fail()
//!    |    +----------------> Failed <------|-+--+---------------|--+
//!    |                          |          |                    |
//!    |                          | CC.EN 1 -> 0, NSSR            |
//!    |       disabled()         v          v                    v
//!    +----------------------- Resetting <-----------------------+
//! ```
//!
//! A shutdown is independent of these states: SHN starts it in any state but Resetting, `complete_shutdown()` completes it, a
//! reset cancels it.

use crate::controller::admin::ControllerTransport;
use crate::spec::register::{
    ArbitrationMechanism, COMPLETION_ENTRY_SHIFT, CommandSets, ConfigurationRegister, ControllerRegister,
    SUBMISSION_ENTRY_SHIFT, SUBSYSTEM_RESET_SIGNATURE, ShutdownKind, VERSION_2_0, status_bit,
};

/// Reserved bits of ASQ and ACQ: both are page-aligned.
const BASE_RESERVED: u64 = 0xFFF;
/// The position of CAP.TO, whose value CRTO repeats in the same 500 ms units.
const READY_TIMEOUT_SHIFT: u32 = 24;

/// The addresses and lengths of the admin queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminQueueAddresses {
    /// ASQ.
    pub submission_base: u64,
    /// ACQ.
    pub completion_base: u64,
    /// AQA.ASQS plus one; 0 on fabrics, where Connect creates the queue.
    pub submission_slots: u32,
    /// AQA.ACQS plus one; 0 on fabrics.
    pub completion_slots: u32,
}

/// The action that a register write requires from the owner of queues and interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterEffect {
    /// Nothing.
    None,
    /// Create the admin queues, then call [`DeviceController::complete_enable`](super::DeviceController::complete_enable), or
    /// [`DeviceController::fail`](super::DeviceController::fail) if they cannot be created.
    Enable(AdminQueueAddresses),
    /// Accept no more commands, wait for those in flight, remove all queues, then call
    /// [`DeviceController::complete_disable`](super::DeviceController::complete_disable).
    Disable,
    /// Make every acknowledged write durable, then call [`DeviceController::complete_shutdown`](super::DeviceController::complete_shutdown).
    Shutdown(ShutdownKind),
    /// As [`Disable`](Self::Disable), for every controller of the subsystem
    /// ([`DeviceController::reset_with_subsystem`](super::DeviceController::reset_with_subsystem)).
    SubsystemReset,
    /// Read [`DeviceController::interrupt_mask`](super::DeviceController::interrupt_mask) again.
    InterruptMask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnableState {
    Disabled,
    Enabling,
    Ready,
    Failed,
    Resetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownState {
    None,
    Occurring,
    Complete,
}

/// The register values and the handshake states of one controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerRegisters {
    transport: ControllerTransport,
    capabilities: u64,
    state: EnableState,
    /// RDY: the admin queues exist. A failure does not clear it; only their removal does.
    queues_exist: bool,
    shutdown: ShutdownState,
    configuration: ConfigurationRegister,
    subsystem_reset_occurred: bool,
    interrupt_mask: u32,
    admin_attributes: u32,
    submission_base: u64,
    completion_base: u64,
}

impl ControllerRegisters {
    pub(crate) fn new(transport: ControllerTransport, capabilities: u64) -> Self {
        Self {
            transport,
            capabilities,
            state: EnableState::Disabled,
            queues_exist: false,
            shutdown: ShutdownState::None,
            configuration: ConfigurationRegister::default(),
            subsystem_reset_occurred: false,
            interrupt_mask: 0,
            admin_attributes: 0,
            submission_base: 0,
            completion_base: 0,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state == EnableState::Ready
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state == EnableState::Failed
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shutdown != ShutdownState::None
    }

    pub(crate) fn configuration(&self) -> ConfigurationRegister {
        self.configuration
    }

    pub(crate) fn interrupt_mask(&self) -> u32 {
        self.interrupt_mask
    }

    /// Reads 1, 2, 4 or 8 bytes; an offset without a register, or a misaligned access, reads as zero.
    pub(crate) fn read(&self, offset: u32, bytes: u32) -> u64 {
        if !matches!(bytes, 1 | 2 | 4 | 8) || !offset.is_multiple_of(bytes) {
            return 0;
        }
        let low = u64::from(self.dword(offset & !3));
        match bytes {
            8 => low | u64::from(self.dword(offset.saturating_add(4))) << 32,
            _ => low >> (8 * (offset & 3)) & ((1 << (8 * bytes)) - 1),
        }
    }

    fn dword(&self, offset: u32) -> u32 {
        if let Some(register) = ControllerRegister::at(offset) {
            return low_half(self.value(register));
        }
        let wide =
            offset.checked_sub(4).and_then(ControllerRegister::at).filter(|register| register.bytes() == 8);
        wide.map_or(0, |register| high_half(self.value(register)))
    }

    fn value(&self, register: ControllerRegister) -> u64 {
        let on_pcie = |value: u64| if self.transport == ControllerTransport::Pcie { value } else { 0 };
        match register {
            ControllerRegister::Capabilities => self.capabilities,
            ControllerRegister::Version => u64::from(VERSION_2_0),
            ControllerRegister::InterruptMaskSet | ControllerRegister::InterruptMaskClear => {
                on_pcie(u64::from(self.interrupt_mask))
            }
            ControllerRegister::Configuration => u64::from(self.configuration.0),
            ControllerRegister::Status => u64::from(self.status()),
            ControllerRegister::SubsystemReset => 0,
            ControllerRegister::AdminQueueAttributes => on_pcie(u64::from(self.admin_attributes)),
            ControllerRegister::AdminSubmissionBase => on_pcie(self.submission_base),
            ControllerRegister::AdminCompletionBase => on_pcie(self.completion_base),
            ControllerRegister::ReadyTimeouts => self.capabilities >> READY_TIMEOUT_SHIFT & 0xFF,
        }
    }

    fn status(&self) -> u32 {
        let ready = if self.queues_exist { status_bit::READY } else { 0 };
        let failed = if self.state == EnableState::Failed { status_bit::FATAL } else { 0 };
        let shutdown = match self.shutdown {
            ShutdownState::None => 0,
            ShutdownState::Occurring => status_bit::SHUTDOWN_OCCURRING,
            ShutdownState::Complete => status_bit::SHUTDOWN_COMPLETE,
        };
        let reset = if self.subsystem_reset_occurred { status_bit::SUBSYSTEM_RESET_OCCURRED } else { 0 };
        ready | failed | shutdown | reset
    }

    /// Writes 4 or 8 aligned bytes; anything else is ignored.
    pub(crate) fn write(&mut self, offset: u32, bytes: u32, value: u64) -> RegisterEffect {
        if !matches!(bytes, 4 | 8) || !offset.is_multiple_of(bytes) {
            return RegisterEffect::None;
        }
        let low = self.write_dword(offset, low_half(value));
        if bytes == 4 {
            return low;
        }
        // A write covers two registers, of which at most one has an effect: CC after INTMC, NSSR before AQA.
        match self.write_dword(offset.saturating_add(4), high_half(value)) {
            RegisterEffect::None => low,
            effect => effect,
        }
    }

    fn write_dword(&mut self, offset: u32, value: u32) -> RegisterEffect {
        let on_pcie = self.transport == ControllerTransport::Pcie;
        let disabled = self.state == EnableState::Disabled;
        match ControllerRegister::at(offset) {
            Some(ControllerRegister::Configuration) => return self.configure(ConfigurationRegister(value)),
            Some(ControllerRegister::Status) if value & status_bit::SUBSYSTEM_RESET_OCCURRED != 0 => {
                self.subsystem_reset_occurred = false;
            }
            Some(ControllerRegister::SubsystemReset) if value == SUBSYSTEM_RESET_SIGNATURE => {
                return RegisterEffect::SubsystemReset;
            }
            Some(ControllerRegister::InterruptMaskSet) if on_pcie => {
                self.interrupt_mask |= value;
                return RegisterEffect::InterruptMask;
            }
            Some(ControllerRegister::InterruptMaskClear) if on_pcie => {
                self.interrupt_mask &= !value;
                return RegisterEffect::InterruptMask;
            }
            Some(ControllerRegister::AdminQueueAttributes) if on_pcie && disabled => {
                self.admin_attributes = value & 0x0FFF_0FFF;
            }
            Some(ControllerRegister::AdminSubmissionBase) if on_pcie && disabled => {
                self.submission_base = with_low(self.submission_base, value) & !BASE_RESERVED;
            }
            Some(ControllerRegister::AdminCompletionBase) if on_pcie && disabled => {
                self.completion_base = with_low(self.completion_base, value) & !BASE_RESERVED;
            }
            None if on_pcie && disabled && offset == ControllerRegister::AdminSubmissionBase.offset() + 4 => {
                self.submission_base = with_high(self.submission_base, value);
            }
            None if on_pcie && disabled && offset == ControllerRegister::AdminCompletionBase.offset() + 4 => {
                self.completion_base = with_high(self.completion_base, value);
            }
            _ => {}
        }
        RegisterEffect::None
    }

    /// Applies a write to CC.
    fn configure(&mut self, written: ConfigurationRegister) -> RegisterEffect {
        let written = ConfigurationRegister(written.0 & ConfigurationRegister::MEANINGFUL);
        match (self.state, written.is_enabled()) {
            (EnableState::Resetting, _) => RegisterEffect::None,
            (EnableState::Disabled, false) => {
                self.configuration = written;
                self.begin_shutdown()
            }
            (EnableState::Disabled, true) => {
                self.configuration = written;
                self.shutdown = ShutdownState::None;
                match self.admin_queues() {
                    Some(queues) => {
                        self.state = EnableState::Enabling;
                        RegisterEffect::Enable(queues)
                    }
                    None => {
                        self.state = EnableState::Failed;
                        RegisterEffect::None
                    }
                }
            }
            (EnableState::Enabling | EnableState::Ready | EnableState::Failed, false) => {
                self.configuration = ConfigurationRegister(written.0);
                self.state = EnableState::Resetting;
                self.shutdown = ShutdownState::None;
                RegisterEffect::Disable
            }
            (EnableState::Enabling | EnableState::Ready | EnableState::Failed, true) => {
                let fixed = ConfigurationRegister::FIXED_WHILE_ENABLED;
                self.configuration = ConfigurationRegister(self.configuration.0 & fixed | written.0 & !fixed);
                self.begin_shutdown()
            }
        }
    }

    fn begin_shutdown(&mut self) -> RegisterEffect {
        match self.configuration.shutdown() {
            Some(kind) if self.shutdown == ShutdownState::None => {
                self.shutdown = ShutdownState::Occurring;
                RegisterEffect::Shutdown(kind)
            }
            _ => RegisterEffect::None,
        }
    }

    /// Returns the admin queues, or `None` if CC or AQA request a setting that the controller does not support.
    fn admin_queues(&self) -> Option<AdminQueueAddresses> {
        let configuration = self.configuration;
        let wrr = self.capabilities & (1 << 17) != 0;
        let sets: Option<CommandSets> = configuration.command_sets();
        let possible = sets.is_some()
            && match configuration.arbitration() {
                Some(ArbitrationMechanism::RoundRobin) => true,
                Some(ArbitrationMechanism::WeightedRoundRobin) => wrr,
                None => false,
            }
            && configuration.page_shift() == 12
            && [0, SUBMISSION_ENTRY_SHIFT].contains(&configuration.submission_entry_shift())
            && [0, COMPLETION_ENTRY_SHIFT].contains(&configuration.completion_entry_shift());
        if !possible {
            return None;
        }
        if self.transport == ControllerTransport::Fabrics {
            return Some(AdminQueueAddresses::default());
        }
        let queues = AdminQueueAddresses {
            submission_base: self.submission_base,
            completion_base: self.completion_base,
            submission_slots: (self.admin_attributes & 0xFFF) + 1,
            completion_slots: (self.admin_attributes >> 16 & 0xFFF) + 1,
        };
        // A queue of one slot can never hold an entry (section 3.3.1.4).
        (queues.submission_slots > 1 && queues.completion_slots > 1).then_some(queues)
    }

    /// Completes enabling: the admin queues exist.
    pub(crate) fn complete_enable(&mut self) {
        if self.state == EnableState::Enabling {
            self.state = EnableState::Ready;
            self.queues_exist = true;
        }
    }

    /// Completes disabling: every queue is gone.
    pub(crate) fn complete_disable(&mut self) {
        if self.state == EnableState::Resetting {
            self.state = EnableState::Disabled;
            self.queues_exist = false;
            self.interrupt_mask = 0;
        }
    }

    /// Completes a shutdown.
    pub(crate) fn complete_shutdown(&mut self) {
        if self.shutdown == ShutdownState::Occurring {
            self.shutdown = ShutdownState::Complete;
        }
    }

    /// Marks the controller failed.
    pub(crate) fn fail(&mut self) {
        if matches!(self.state, EnableState::Enabling | EnableState::Ready) {
            self.state = EnableState::Failed;
        }
    }

    /// Resets with the subsystem: every value but RDY and NSSRO returns to its default.
    pub(crate) fn reset_with_subsystem(&mut self) {
        *self = Self {
            state: EnableState::Resetting,
            queues_exist: self.queues_exist,
            subsystem_reset_occurred: true,
            ..Self::new(self.transport, self.capabilities)
        };
    }
}

const fn low_half(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

const fn high_half(value: u64) -> u32 {
    low_half(value >> 32)
}

const fn with_low(value: u64, low: u32) -> u64 {
    value >> 32 << 32 | low as u64
}

const fn with_high(value: u64, high: u32) -> u64 {
    value & 0xFFFF_FFFF | (high as u64) << 32
}
