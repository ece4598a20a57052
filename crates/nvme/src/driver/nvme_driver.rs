//! The host side of one controller: brings it up, operates it, and stops it.
//!
//! Input: a [`PciFunction`], [`HostMemory`], time. Output: [`IoQueue`]s, facts, notices, and the phase of the controller.
//! Nothing here blocks: [`poll`](Controller::poll) does the work that is possible now,
//! [`next_deadline`](Controller::next_deadline) returns the next deadline. Invariant: every accepted request has
//! exactly one outcome, for any behaviour of the controller. taken is answered once, whatever the controller does.

use super::admin_queue::{AdminMemory, AdminQueue};
use super::bring_up::NamespaceScan;
use super::capabilities::ControllerCapabilities;
use super::config::DriverConfig;
use super::controller_info::{ControllerInfo, ScannedNamespace};
use super::error::{DeathCause, ResetCause};
use super::events::AsyncNotice;
use super::lifecycle::{DriverPhase, SharedLifecycle};
use super::memory::HostMemory;
use super::pci_function::PciFunction;
use super::recovery::DriverState;
use super::requests::{HeldQueue, RequestOutcome};
use crate::spec::register::{ControllerRegister, status_bit};
use headwater_host::clock::Nanos;
use headwater_host::pinning::vfio::BusMastering;
use headwater_host::registers::DeviceRegisters;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Most completions taken in one poll.
const ANSWERS_MAX: u32 = 64;
/// Stray completions on the admin queue after which the controller is reset.
const STRAYS_MAX: u32 = 16;

/// The driver of one controller.
pub struct NvmeDriver<F: PciFunction, H: HostMemory> {
    pub(super) function: F,
    pub(super) memory: H,
    pub(super) config: DriverConfig,
    pub(super) lifecycle: SharedLifecycle,
    pub(super) state: DriverState,
    pub(super) capabilities: Option<ControllerCapabilities>,
    pub(super) admin_memory: Option<AdminMemory<H::Words>>,
    pub(super) admin: Option<AdminQueue<H::Words, F::Registers>>,
    pub(super) info: Option<ControllerInfo>,
    pub(super) namespaces: Vec<ScannedNamespace>,
    pub(super) scan: NamespaceScan,
    pub(super) queues: BTreeMap<u16, HeldQueue<H::Words>>,
    pub(super) outcomes: BTreeMap<u64, RequestOutcome<H::Words, F::Registers>>,
    pub(super) next_ticket: u64,
    pub(super) aborts: VecDeque<(u16, u16)>,
    pub(super) aborts_in_flight: u32,
    pub(super) event_notices: VecDeque<AsyncNotice>,
    /// Resets since the controller last stayed ready for the settle time.
    pub(super) resets_in_row: u32,
    pub(super) resets_total: u64,
    pub(super) reset_cause: Option<ResetCause>,
    pub(super) death_cause: Option<DeathCause>,
    /// True if a dead controller certainly accesses no memory.
    pub(super) is_dma_stopped: bool,
}

impl<F: PciFunction, H: HostMemory> NvmeDriver<F, H> {
    /// Creates a driver that has not touched its controller; call [`start`](Self::start) next.
    pub fn new(function: F, memory: H, config: DriverConfig) -> Self {
        Self {
            function,
            memory,
            config,
            lifecycle: SharedLifecycle::new(),
            state: DriverState::NotStarted,
            capabilities: None,
            admin_memory: None,
            admin: None,
            info: None,
            namespaces: Vec::new(),
            scan: NamespaceScan::default(),
            queues: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            next_ticket: 0,
            aborts: VecDeque::new(),
            aborts_in_flight: 0,
            event_notices: VecDeque::new(),
            resets_in_row: 0,
            resets_total: 0,
            reset_cause: None,
            death_cause: None,
            is_dma_stopped: true,
        }
    }

    /// Starts the bring-up: call [`poll`](Self::poll) until it returns [`DriverPhase::Ready`] or [`DriverPhase::Dead`].
    pub fn start(&mut self, now: Nanos) {
        if !matches!(self.state, DriverState::NotStarted) {
            return;
        }
        self.is_dma_stopped = false;
        if let Err(error) = self.function.set_mastering(BusMastering::On) {
            return self.enter_dead(DeathCause::Mastering(error));
        }
        self.begin_disable(super::recovery::AfterDisable::Enable, now);
    }

    /// Does the work that is possible now. Call it when the controller may have posted completions, and at
    /// [`next_deadline`](Self::next_deadline).
    pub fn poll(&mut self, now: Nanos) -> DriverPhase {
        match self.state {
            DriverState::NotStarted | DriverState::Dead => {}
            DriverState::Disabling { until, then } => self.poll_disabling(until, then, now),
            DriverState::Enabling { until } => self.poll_enabling(until, now),
            DriverState::ShuttingDown { until } => self.poll_shutdown(until, now),
            DriverState::BringUp | DriverState::Ready { .. } => self.serve(now),
        }
        self.lifecycle.phase()
    }

    /// Returns the shared state of the controller, which other threads may read.
    #[must_use]
    pub fn lifecycle(&self) -> &SharedLifecycle {
        &self.lifecycle
    }

    /// Returns why the controller is dead.
    #[must_use]
    pub fn death_cause(&self) -> Option<DeathCause> {
        self.death_cause
    }

    /// Returns true if a dead controller certainly accesses no memory. If false, memory given to it must never be
    /// reused. again.
    #[must_use]
    pub fn is_dma_stopped(&self) -> bool {
        self.is_dma_stopped
    }

    /// Returns the cause of the last reset.
    #[must_use]
    pub fn reset_cause(&self) -> Option<ResetCause> {
        self.reset_cause
    }

    /// Returns the number of resets so far.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets_total
    }

    /// Returns the properties of the controller, once it was ready.
    #[must_use]
    pub fn info(&self) -> Option<&ControllerInfo> {
        self.info.as_ref()
    }

    /// Returns the namespaces in the order of their identifiers; unusable ones are included with the reason.
    #[must_use]
    pub fn namespaces(&self) -> &[ScannedNamespace] {
        &self.namespaces
    }

    /// Returns the PCI function.
    #[must_use]
    pub fn function(&self) -> &F {
        &self.function
    }

    /// Removes and returns the next asynchronous event.
    pub fn take_notice(&mut self) -> Option<AsyncNotice> {
        self.event_notices.pop_front()
    }

    /// Returns the time at which [`poll`](Self::poll) has work even if the controller does nothing.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        match self.state {
            DriverState::NotStarted | DriverState::Dead => None,
            DriverState::Disabling { until, .. }
            | DriverState::Enabling { until }
            | DriverState::ShuttingDown { until } => Some(until),
            DriverState::BringUp | DriverState::Ready { .. } => {
                self.admin.as_ref().and_then(AdminQueue::next_deadline)
            }
        }
    }

    pub(super) fn load(&self, register: ControllerRegister) -> Option<u32> {
        self.function.registers().load32_present(register.offset() as usize)
    }

    /// Polls an enabled controller: reads its status, handles completions, sends waiting aborts.
    fn serve(&mut self, now: Nanos) {
        let Some(status) = self.load(ControllerRegister::Status) else {
            return self.enter_dead(DeathCause::Removed);
        };
        if status & status_bit::FATAL != 0 {
            return self.start_reset(ResetCause::Fatal { status }, now);
        }
        if status & status_bit::READY == 0 {
            return self.start_reset(ResetCause::NotReady { status }, now);
        }
        for _ in 0..ANSWERS_MAX {
            let Some(answered) = self.admin.as_mut().and_then(AdminQueue::reap) else { break };
            self.handle_completion(answered, now);
            if !self.is_serving() {
                return;
            }
        }
        if let Some(trouble) = self.admin_trouble(now) {
            return self.start_reset(trouble, now);
        }
        self.send_aborts(now);
        if let Some(admin) = &mut self.admin {
            admin.ring();
        }
        if let DriverState::Ready { since } = self.state
            && now.since(since) >= self.config.settle_time
        {
            self.resets_in_row = 0;
        }
    }

    fn admin_trouble(&self, now: Nanos) -> Option<ResetCause> {
        let admin = self.admin.as_ref()?;
        let (strays, head) = admin.faults();
        if let Some(head) = head {
            return Some(ResetCause::QueueViolation { queue: 0, fault: super::QueueFault::Head { head } });
        }
        if strays >= STRAYS_MAX {
            return Some(ResetCause::QueueViolation {
                queue: 0,
                fault: super::QueueFault::StrayCompletions { count: strays },
            });
        }
        admin.overdue_opcode(now).map(|opcode| ResetCause::AdminTimeout { opcode })
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.state, DriverState::BringUp | DriverState::Ready { .. })
    }
}

impl<F: PciFunction, H: HostMemory> Drop for NvmeDriver<F, H> {
    /// Stops the controller, so that it accesses no memory any more. If it does not stop, its memory is leaked.
    fn drop(&mut self) {
        if !matches!(self.state, DriverState::NotStarted | DriverState::Dead) {
            self.enter_dead(DeathCause::Closed);
        }
        if !self.is_dma_stopped {
            let queues: Vec<_> =
                std::mem::take(&mut self.queues).into_values().map(HeldQueue::into_memory).collect();
            Box::leak(Box::new((queues, self.admin_memory.take())));
        }
    }
}

impl<F: PciFunction, H: HostMemory> fmt::Debug for NvmeDriver<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeDriver")
            .field("state", &self.state)
            .field("resets", &self.resets_total)
            .field("queues", &self.queues.len())
            .field("death", &self.death_cause)
            .finish_non_exhaustive()
    }
}
