//! Controller lifecycle: disable, enable, shut down, and give up (NVMe Base 2.0 sections 3.5, 3.6 and 3.7).
//!
//! Input: causes of resets. Output: a controller that is ready again, or dead with a reason. Invariant: recovery ends:
//! each step has a time limit, and there are at most [`DriverConfig::resets_max`](super::DriverConfig::resets_max)
//! resets in a row. Commands are lost only when the controller certainly accesses no memory: CSTS.RDY fell, or the
//! function was reset, or its bus mastering is off.
//!
//! ```text
//!            start                  RDY 0                  RDY 1                last step
//!   Off ------------> Disabling ------------> Enabling -----------> BringUp ------------> Ready
//!                      ^   | late: function     | late, CFS           | refused, late       | CFS, late, asked
//!                      |   v reset; fails       v                     v                     v
//!                      |  Dead       <-- too many in a row, else a reset: Disabling <-------+
//!                      +--------------------------------------------------------------------+
//! ```

use super::admin_queue::{ADMIN_SLOTS, AdminMemory, AdminQueue};
use super::bring_up::BringUpStep;
use super::capabilities::{CapabilityFault, CommandSetSelection, ControllerCapabilities};
use super::error::{DeathCause, ResetCause};
use super::lifecycle::DriverPhase;
use super::memory::HostMemory;
use super::nvme_driver::NvmeDriver;
use super::pci_function::PciFunction;
use crate::ring::layout::QueueSlots;
use crate::spec::register::{
    COMPLETION_ENTRY_SHIFT, ConfigurationRegister, ControllerRegister, SUBMISSION_ENTRY_SHIFT, status_bit,
};
use headwater_host::clock::Nanos;
use headwater_host::pinning::vfio::BusMastering;
use headwater_host::registers::DeviceRegisters;

/// Time limit of a shutdown for controllers that report none (RTD3E 0).
const SHUTDOWN_TIMEOUT: Nanos = Nanos::from_millis(5_000);
/// Upper bound of that limit: RTD3E can report more than an hour.
const SHUTDOWN_TIMEOUT_MAX: Nanos = Nanos::from_millis(30_000);
/// SHN in CC, and its value for a normal shutdown.
const SHUTDOWN_MASK: u32 = 0b11 << 14;
const SHUTDOWN_NORMAL: u32 = 0b01 << 14;
/// SHST in CSTS.
const SHUTDOWN_STATUS: u32 = 0b11 << 2;

/// The state of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) enum DriverState {
    /// Not started.
    NotStarted,
    /// CC.EN is 0, CSTS.RDY must fall.
    Disabling { until: Nanos, then: AfterDisable },
    /// CC.EN is 1, CSTS.RDY must rise.
    Enabling { until: Nanos },
    /// The driver sends the commands of bring-up.
    BringUp,
    /// It accepts I/O queues and commands.
    Ready { since: Nanos },
    /// CC.SHN is set, CSTS.SHST must report completion.
    ShuttingDown { until: Nanos },
    /// Closed or failed for good.
    Dead,
}

/// The step after disabling.
#[derive(Clone, Copy, Debug)]
pub(super) enum AfterDisable {
    /// Enabling.
    Enable,
    /// Closing.
    Close,
}

impl<F: PciFunction, H: HostMemory> NvmeDriver<F, H> {
    /// Resets the controller. Commands in flight are lost, which their queues report; queues must be created again.
    pub fn reset(&mut self, now: Nanos) {
        self.start_reset(ResetCause::Requested, now);
    }

    /// Resets the controller because of a fault that one of its queues found.
    pub fn reset_for(&mut self, trouble: ResetCause, now: Nanos) {
        self.start_reset(trouble, now);
    }

    /// Shuts the controller down: once it is dead, all acknowledged data is durable.
    pub fn close(&mut self, now: Nanos) {
        match self.state {
            DriverState::Dead | DriverState::ShuttingDown { .. } => {}
            DriverState::Ready { .. } => {
                self.lifecycle.set(DriverPhase::Recovering);
                let micros = self.info.as_ref().map_or(0, |facts| facts.shutdown_micros);
                let patience =
                    Nanos::from_micros(u64::from(micros)).clamp(SHUTDOWN_TIMEOUT, SHUTDOWN_TIMEOUT_MAX);
                let registers = self.function.registers();
                let configuration = registers.load32(ControllerRegister::Configuration.offset() as usize);
                let shut = configuration & !SHUTDOWN_MASK | SHUTDOWN_NORMAL;
                registers.store32(ControllerRegister::Configuration.offset() as usize, shut);
                self.state = DriverState::ShuttingDown { until: now.after(patience) };
            }
            DriverState::NotStarted => self.enter_dead(DeathCause::Closed),
            _ => self.begin_disable(AfterDisable::Close, now),
        }
    }

    pub(super) fn start_reset(&mut self, trouble: ResetCause, now: Nanos) {
        if !self.is_serving() && !matches!(self.state, DriverState::Enabling { .. }) {
            return;
        }
        self.reset_cause = Some(trouble);
        self.resets_in_row += 1;
        self.resets_total += 1;
        self.begin_disable(AfterDisable::Enable, now);
    }

    pub(super) fn begin_disable(&mut self, then: AfterDisable, now: Nanos) {
        self.lifecycle.set(DriverPhase::Recovering);
        let capabilities = match ControllerCapabilities::read(self.function.registers()) {
            Ok(capabilities) => capabilities,
            Err(CapabilityFault::Absent) if self.capabilities.is_some() => {
                return self.enter_dead(DeathCause::Removed);
            }
            Err(fault) => return self.enter_dead(DeathCause::Implausible(fault)),
        };
        self.capabilities = Some(capabilities);
        let at = ControllerRegister::Configuration.offset() as usize;
        let registers = self.function.registers();
        let configuration = registers.load32(at);
        if configuration & ConfigurationRegister::ENABLE != 0 {
            registers.store32(at, configuration & !(ConfigurationRegister::ENABLE | SHUTDOWN_MASK));
        }
        self.state = DriverState::Disabling { until: now.after(capabilities.ready_timeout), then };
        self.poll_disabling(now.after(capabilities.ready_timeout), then, now);
    }

    pub(super) fn poll_disabling(&mut self, until: Nanos, then: AfterDisable, now: Nanos) {
        let Some(status) = self.load(ControllerRegister::Status) else {
            return self.enter_dead(DeathCause::Removed);
        };
        if status & status_bit::READY == 0 {
            return self.finish_disable(then, now);
        }
        if now < until {
            return;
        }
        if let Err(error) = self.function.reset() {
            return self.enter_dead(DeathCause::Unstoppable(error));
        }
        match self.function.set_mastering(BusMastering::On) {
            Ok(()) => self.finish_disable(then, now),
            Err(error) => self.enter_dead(DeathCause::Mastering(error)),
        }
    }

    /// Continues when the controller accesses no memory any more and no queue exists at it.
    fn finish_disable(&mut self, then: AfterDisable, now: Nanos) {
        self.discard_queues();
        match (then, self.reset_cause) {
            (AfterDisable::Close, _) => self.enter_dead(DeathCause::Closed),
            (AfterDisable::Enable, Some(trouble)) if self.resets_in_row > self.config.resets_max => {
                self.enter_dead(DeathCause::GaveUp { resets: self.resets_in_row - 1, cause: trouble });
            }
            (AfterDisable::Enable, _) => {
                self.lifecycle.next_epoch();
                self.enable(now);
            }
        }
    }

    fn enable(&mut self, now: Nanos) {
        let Some(capabilities) = self.capabilities else { return self.enter_dead(DeathCause::NoMemory) };
        let Ok(slots) = QueueSlots::new(ADMIN_SLOTS) else { return self.enter_dead(DeathCause::NoMemory) };
        if self.admin_memory.is_none() {
            self.admin_memory = AdminMemory::take(&mut self.memory, capabilities.page.get() as usize, slots);
        }
        let Some(memory) = &self.admin_memory else { return self.enter_dead(DeathCause::NoMemory) };
        let registers = self.function.registers().clone();
        let (submissions, completions) = memory.bases();
        self.admin = Some(AdminQueue::new(memory, slots, registers.clone(), &capabilities));
        registers.store32(
            ControllerRegister::AdminQueueAttributes.offset() as usize,
            (ADMIN_SLOTS - 1) << 16 | (ADMIN_SLOTS - 1),
        );
        registers.store64(ControllerRegister::AdminSubmissionBase.offset() as usize, submissions);
        registers.store64(ControllerRegister::AdminCompletionBase.offset() as usize, completions);
        let sets = match capabilities.sets {
            CommandSetSelection::NvmOnly => 0,
            CommandSetSelection::All => 0b110 << 4,
        };
        let arbitration = u32::from(self.uses_weights(&capabilities)) << 11;
        let configuration = ConfigurationRegister::ENABLE
            | sets
            | u32::from(capabilities.page_code) << 7
            | arbitration
            | SUBMISSION_ENTRY_SHIFT << 16
            | COMPLETION_ENTRY_SHIFT << 20;
        // Ordered after the zeroing of the completion ring.
        registers.store32_release(ControllerRegister::Configuration.offset() as usize, configuration);
        // The next poll reads the status: otherwise resets in immediate succession would be a single attempt.
        self.state = DriverState::Enabling { until: now.after(capabilities.ready_timeout) };
    }

    pub(super) fn uses_weights(&self, capabilities: &ControllerCapabilities) -> bool {
        capabilities.weighted_round_robin && self.config.weights.is_some()
    }

    pub(super) fn poll_enabling(&mut self, until: Nanos, now: Nanos) {
        let Some(status) = self.load(ControllerRegister::Status) else {
            return self.enter_dead(DeathCause::Removed);
        };
        if status & status_bit::FATAL != 0 {
            return self.start_reset(ResetCause::Fatal { status }, now);
        }
        if status & status_bit::READY != 0 {
            self.state = DriverState::BringUp;
            return self.begin(BringUpStep::Controller, now);
        }
        if now >= until {
            self.start_reset(ResetCause::EnableTimeout { status }, now);
        }
    }

    pub(super) fn poll_shutdown(&mut self, until: Nanos, now: Nanos) {
        let Some(status) = self.load(ControllerRegister::Status) else {
            return self.enter_dead(DeathCause::Removed);
        };
        if status & SHUTDOWN_STATUS == status_bit::SHUTDOWN_COMPLETE
            || status & status_bit::FATAL != 0
            || now >= until
        {
            self.begin_disable(AfterDisable::Close, now);
        }
    }

    /// Moves to the final state. Disables bus mastering in any state of the controller.
    pub(super) fn enter_dead(&mut self, death: DeathCause) {
        self.is_dma_stopped =
            self.function.set_mastering(BusMastering::Off).is_ok() || self.function.reset().is_ok();
        self.fail_pending();
        if self.is_dma_stopped {
            self.queues.clear();
            self.admin = None;
        }
        self.death_cause.get_or_insert(death);
        self.state = DriverState::Dead;
        self.lifecycle.set(DriverPhase::Dead);
    }

    fn discard_queues(&mut self) {
        self.fail_pending();
        self.queues.clear();
        self.admin = None;
    }
}
