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
//! A shutdown is independent of these states: SHN starts it in any state but Resetting, `shut_down()` completes it, a
//! reset cancels it.

use crate::controller::admin::Transport;
use crate::spec::register::{
    ArbitrationMechanism, COMPLETION_ENTRY_SHIFT, CommandSets, Configuration, Register,
    SUBMISSION_ENTRY_SHIFT, SUBSYSTEM_RESET_SIGNATURE, ShutdownKind, VERSION_2_0, status_bit,
};

/// Reserved bits of ASQ and ACQ: both are page-aligned.
const BASE_RESERVED: u64 = 0xFFF;
/// The position of CAP.TO, whose value CRTO repeats in the same 500 ms units.
const READY_TIMEOUT_SHIFT: u32 = 24;

/// The addresses and lengths of the admin queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminQueuePlaces {
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
    /// Create the admin queues, then call [`Controller::enabled`](super::Controller::enabled), or
    /// [`Controller::fail`](super::Controller::fail) if they cannot be created.
    Enable(AdminQueuePlaces),
    /// Accept no more commands, wait for those in flight, remove all queues, then call
    /// [`Controller::disabled`](super::Controller::disabled).
    Disable,
    /// Make every acknowledged write durable, then call [`Controller::shut_down`](super::Controller::shut_down).
    Shutdown(ShutdownKind),
    /// As [`Disable`](Self::Disable), for every controller of the subsystem
    /// ([`Controller::reset_with_subsystem`](super::Controller::reset_with_subsystem)).
    SubsystemReset,
    /// Read [`Controller::interrupt_mask`](super::Controller::interrupt_mask) again.
    InterruptMask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Disabled,
    Enabling,
    Ready,
    Failed,
    Resetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    None,
    Occurring,
    Complete,
}

/// The register values and the handshake states of one controller.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    transport: Transport,
    capabilities: u64,
    state: State,
    /// RDY: the admin queues exist. A failure does not clear it; only their removal does.
    queues_stand: bool,
    shutdown: Shutdown,
    configuration: Configuration,
    subsystem_reset_occurred: bool,
    interrupt_mask: u32,
    admin_attributes: u32,
    submission_base: u64,
    completion_base: u64,
}

impl Registers {
    pub(crate) fn new(transport: Transport, capabilities: u64) -> Self {
        Self {
            transport,
            capabilities,
            state: State::Disabled,
            queues_stand: false,
            shutdown: Shutdown::None,
            configuration: Configuration::default(),
            subsystem_reset_occurred: false,
            interrupt_mask: 0,
            admin_attributes: 0,
            submission_base: 0,
            completion_base: 0,
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state == State::Failed
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shutdown != Shutdown::None
    }

    pub(crate) fn configuration(&self) -> Configuration {
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
        if let Some(register) = Register::at(offset) {
            return low_half(self.value(register));
        }
        let wide = offset.checked_sub(4).and_then(Register::at).filter(|register| register.bytes() == 8);
        wide.map_or(0, |register| high_half(self.value(register)))
    }

    fn value(&self, register: Register) -> u64 {
        let on_pcie = |value: u64| if self.transport == Transport::Pcie { value } else { 0 };
        match register {
            Register::Capabilities => self.capabilities,
            Register::Version => u64::from(VERSION_2_0),
            Register::InterruptMaskSet | Register::InterruptMaskClear => {
                on_pcie(u64::from(self.interrupt_mask))
            }
            Register::Configuration => u64::from(self.configuration.0),
            Register::Status => u64::from(self.status()),
            Register::SubsystemReset => 0,
            Register::AdminQueueAttributes => on_pcie(u64::from(self.admin_attributes)),
            Register::AdminSubmissionBase => on_pcie(self.submission_base),
            Register::AdminCompletionBase => on_pcie(self.completion_base),
            Register::ReadyTimeouts => self.capabilities >> READY_TIMEOUT_SHIFT & 0xFF,
        }
    }

    fn status(&self) -> u32 {
        let ready = if self.queues_stand { status_bit::READY } else { 0 };
        let failed = if self.state == State::Failed { status_bit::FATAL } else { 0 };
        let shutdown = match self.shutdown {
            Shutdown::None => 0,
            Shutdown::Occurring => status_bit::SHUTDOWN_OCCURRING,
            Shutdown::Complete => status_bit::SHUTDOWN_COMPLETE,
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
        let on_pcie = self.transport == Transport::Pcie;
        let disabled = self.state == State::Disabled;
        match Register::at(offset) {
            Some(Register::Configuration) => return self.configure(Configuration(value)),
            Some(Register::Status) if value & status_bit::SUBSYSTEM_RESET_OCCURRED != 0 => {
                self.subsystem_reset_occurred = false;
            }
            Some(Register::SubsystemReset) if value == SUBSYSTEM_RESET_SIGNATURE => {
                return RegisterEffect::SubsystemReset;
            }
            Some(Register::InterruptMaskSet) if on_pcie => {
                self.interrupt_mask |= value;
                return RegisterEffect::InterruptMask;
            }
            Some(Register::InterruptMaskClear) if on_pcie => {
                self.interrupt_mask &= !value;
                return RegisterEffect::InterruptMask;
            }
            Some(Register::AdminQueueAttributes) if on_pcie && disabled => {
                self.admin_attributes = value & 0x0FFF_0FFF;
            }
            Some(Register::AdminSubmissionBase) if on_pcie && disabled => {
                self.submission_base = with_low(self.submission_base, value) & !BASE_RESERVED;
            }
            Some(Register::AdminCompletionBase) if on_pcie && disabled => {
                self.completion_base = with_low(self.completion_base, value) & !BASE_RESERVED;
            }
            None if on_pcie && disabled && offset == Register::AdminSubmissionBase.offset() + 4 => {
                self.submission_base = with_high(self.submission_base, value);
            }
            None if on_pcie && disabled && offset == Register::AdminCompletionBase.offset() + 4 => {
                self.completion_base = with_high(self.completion_base, value);
            }
            _ => {}
        }
        RegisterEffect::None
    }

    /// Applies a write to CC.
    fn configure(&mut self, written: Configuration) -> RegisterEffect {
        let written = Configuration(written.0 & Configuration::MEANINGFUL);
        match (self.state, written.is_enabled()) {
            (State::Resetting, _) => RegisterEffect::None,
            (State::Disabled, false) => {
                self.configuration = written;
                self.begin_shutdown()
            }
            (State::Disabled, true) => {
                self.configuration = written;
                self.shutdown = Shutdown::None;
                match self.admin_queues() {
                    Some(queues) => {
                        self.state = State::Enabling;
                        RegisterEffect::Enable(queues)
                    }
                    None => {
                        self.state = State::Failed;
                        RegisterEffect::None
                    }
                }
            }
            (State::Enabling | State::Ready | State::Failed, false) => {
                self.configuration = Configuration(written.0);
                self.state = State::Resetting;
                self.shutdown = Shutdown::None;
                RegisterEffect::Disable
            }
            (State::Enabling | State::Ready | State::Failed, true) => {
                let fixed = Configuration::FIXED_WHILE_ENABLED;
                self.configuration = Configuration(self.configuration.0 & fixed | written.0 & !fixed);
                self.begin_shutdown()
            }
        }
    }

    fn begin_shutdown(&mut self) -> RegisterEffect {
        match self.configuration.shutdown() {
            Some(kind) if self.shutdown == Shutdown::None => {
                self.shutdown = Shutdown::Occurring;
                RegisterEffect::Shutdown(kind)
            }
            _ => RegisterEffect::None,
        }
    }

    /// Returns the admin queues, or `None` if CC or AQA request a setting that the controller does not support.
    fn admin_queues(&self) -> Option<AdminQueuePlaces> {
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
        if self.transport == Transport::Fabrics {
            return Some(AdminQueuePlaces::default());
        }
        let queues = AdminQueuePlaces {
            submission_base: self.submission_base,
            completion_base: self.completion_base,
            submission_slots: (self.admin_attributes & 0xFFF) + 1,
            completion_slots: (self.admin_attributes >> 16 & 0xFFF) + 1,
        };
        // A queue of one slot can never hold an entry (section 3.3.1.4).
        (queues.submission_slots > 1 && queues.completion_slots > 1).then_some(queues)
    }

    /// Completes enabling: the admin queues exist.
    pub(crate) fn enabled(&mut self) {
        if self.state == State::Enabling {
            self.state = State::Ready;
            self.queues_stand = true;
        }
    }

    /// Completes disabling: every queue is gone.
    pub(crate) fn disabled(&mut self) {
        if self.state == State::Resetting {
            self.state = State::Disabled;
            self.queues_stand = false;
            self.interrupt_mask = 0;
        }
    }

    /// Completes a shutdown.
    pub(crate) fn shut_down(&mut self) {
        if self.shutdown == Shutdown::Occurring {
            self.shutdown = Shutdown::Complete;
        }
    }

    /// Marks the controller failed.
    pub(crate) fn fail(&mut self) {
        if matches!(self.state, State::Enabling | State::Ready) {
            self.state = State::Failed;
        }
    }

    /// Resets with the subsystem: every value but RDY and NSSRO returns to its default.
    pub(crate) fn reset_with_subsystem(&mut self) {
        *self = Self {
            state: State::Resetting,
            queues_stand: self.queues_stand,
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
