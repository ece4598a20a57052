//! The node's controller, with the one queue that carries the commands of all clients.
//!
//! Input: entries with the address runs of their data, under tokens. Output: each token once, with the controller's
//! completion, or with [`Status::ABORTED_BY_HOST`] when a reset lost it. Invariant: a token is returned only when the
//! controller certainly accesses none of its data any more.
//!
//! ```text
//!   (driver ready) -> queue requested -> queue live --reset--> completed commands, then the rest as aborted -> (again)
//! ```

use super::range_pages::{PAGE_BYTES, PAGES, RangePage, RangePages};
use crate::core_device::CoreWork;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{
    DataPointerError, DeathCause, DriverPhase, HostMemory, IoQueue, IoQueueState, NvmeDriver, OverdueCommand,
    PciFunction, QueueError, QueueSpec, RequestError, RequestTicket, ResetCause, ScannedNamespace,
    SubmitFault,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::DeviceStats;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

/// Maximum commands of all clients in flight at the controller.
const DEPTH: u32 = 1_023;
/// Minimum time between two resets of the interrupt eventfd.
const EVENTFD_PERIOD: Nanos = Nanos::from_micros(50);
/// Poll period for a controller without interrupts, and for one that shuts down or recovers.
const POLL_PERIOD: Nanos = Nanos::from_millis(1);
/// Time limit for the controller to start or to shut down, on top of the driver's own limits.
const TRANSITION_TIMEOUT: Nanos = Nanos::from_millis(120_000);

/// The completion of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerCompletion {
    /// The token it was submitted with.
    pub token: u64,
    /// Dword 0 of the completion.
    pub result: u32,
    /// Its status.
    pub status: Status,
}

/// The reason why a command was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerRefusal {
    /// The queue is full or not live now: submit again later.
    Later,
    /// The command is invalid and always refused.
    Refused(Status),
}

/// The eventfd that the controller's interrupt signals.
#[derive(Clone, Debug)]
pub struct InterruptEventfd {
    /// The descriptor.
    pub descriptor: WakeDescriptor,
    /// The vector of the I/O queue.
    pub vector: u16,
}

/// An I/O queue of the controller. The context of a command is the token of its submitter.
type HardwareQueue<F, H> = IoQueue<<H as HostMemory>::Words, <F as PciFunction>::Registers, u64>;

/// The node's NVMe controller.
pub struct HardwareDevice<F: PciFunction, H: HostMemory> {
    driver: NvmeDriver<F, H>,
    queue: Option<Box<HardwareQueue<F, H>>>,
    queue_ticket: Option<RequestTicket>,
    depth: u32,
    /// Completions of a queue that a reset has ended.
    lost_queue_completions: VecDeque<ControllerCompletion>,
    pages: RangePages<H::Words>,
    interrupt: Option<InterruptEventfd>,
    /// Time of the last reset of the eventfd.
    last_eventfd_reset: Nanos,
    death_logged: bool,
}

impl<F: PciFunction, H: HostMemory> HardwareDevice<F, H> {
    /// Creates a device over a controller that was not started; `memory` is the driver's, or of the same kind.
    ///
    /// # Errors
    /// There is no memory for the lists of ranges.
    pub fn new(
        driver: NvmeDriver<F, H>,
        memory: &mut H,
        interrupt: Option<InterruptEventfd>,
    ) -> Result<Self, String> {
        let block = memory
            .take(PAGES * PAGE_BYTES, PAGE_BYTES)
            .ok_or("no memory that the device can access is left for the lists of ranges")?;
        Ok(Self {
            driver,
            queue: None,
            queue_ticket: None,
            depth: DEPTH,
            lost_queue_completions: VecDeque::new(),
            pages: RangePages::in_block(block),
            interrupt,
            last_eventfd_reset: Nanos::ZERO,
            death_logged: false,
        })
    }

    /// Starts the controller. Blocks until its queue is live.
    ///
    /// # Errors
    /// The reason of the failure.
    pub fn start(&mut self, clock: &Clock) -> Result<(), String> {
        let started = clock.now();
        self.driver.start(started);
        while !self.is_ready() {
            let now = clock.now();
            self.poll_controller(now);
            if let Some(death) = self.death() {
                return Err(death.to_string());
            }
            if now.since(started) > TRANSITION_TIMEOUT {
                return Err(format!(
                    "the controller is not ready after {} s",
                    TRANSITION_TIMEOUT.0 / 1_000_000_000
                ));
            }
            Clock::sleep(Nanos::from_micros(100));
        }
        Ok(())
    }

    /// Returns true if commands are accepted now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lost_queue_completions.is_empty()
            && self.queue.as_ref().is_some_and(|queue| queue.state() == IoQueueState::Live)
    }

    /// Returns the reason why the controller failed permanently, if it did: every command fails then.
    #[must_use]
    pub fn death(&self) -> Option<DeathCause> {
        self.driver.death_cause()
    }

    /// Returns the namespaces, including unusable ones.
    #[must_use]
    pub fn namespaces(&self) -> &[ScannedNamespace] {
        self.driver.namespaces()
    }

    /// Returns the maximum bytes of one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.driver.transfer_bytes_max()
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &NvmeDriver<F, H> {
        &self.driver
    }

    /// Returns the driver, mutable, for operations beyond this device's queue.
    pub(super) fn driver_mut(&mut self) -> &mut NvmeDriver<F, H> {
        &mut self.driver
    }

    /// Submits a command. [`ring`](Self::ring) notifies the controller.
    ///
    /// # Errors
    /// [`ControllerRefusal`]: the call had no effect.
    pub fn submit(
        &mut self,
        token: u64,
        entry: SubmissionEntry,
        runs: &[IovaRange],
    ) -> Result<(), ControllerRefusal> {
        let queue = self
            .queue
            .as_mut()
            .filter(|_| self.lost_queue_completions.is_empty())
            .ok_or(ControllerRefusal::Later)?;
        match queue.submit(entry, runs, token).map_err(|(fault, _)| fault) {
            Ok(_) => Ok(()),
            Err(SubmitFault::Full | SubmitFault::NotLive) => Err(ControllerRefusal::Later),
            Err(SubmitFault::Data(DataPointerError::Unaligned { .. } | DataPointerError::Gap { .. })) => {
                Err(ControllerRefusal::Refused(Status::PRP_OFFSET_INVALID))
            }
            Err(_) => Err(ControllerRefusal::Refused(Status::INVALID_FIELD)),
        }
    }

    /// Rings the doorbells: new submissions, and free completion slots.
    pub fn ring(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.ring();
        }
    }

    /// Returns the next completion.
    #[inline]
    pub fn next_completion(&mut self) -> Option<ControllerCompletion> {
        if let Some(answer) = self.lost_queue_completions.pop_front() {
            return Some(answer);
        }
        let done = self.queue.as_mut()?.reap()?;
        Some(ControllerCompletion { token: done.context, result: done.result, status: done.status })
    }

    /// Writes a list of ranges to memory that the controller reads; `None` when the maximum is in flight.
    pub fn put_ranges(&mut self, ranges: &[DatasetRange]) -> Option<(RangePage, IovaRange)> {
        self.pages.write_list(ranges)
    }

    /// Returns a list's page to the pool, after its command completed or was not accepted.
    pub fn return_range_page(&mut self, page: RangePage) {
        self.pages.return_page(page);
    }

    /// Polls the driver and the queue. Returns true if there was progress.
    pub fn poll_controller(&mut self, now: Nanos) -> bool {
        let phase = self.driver.poll(now);
        if let Some(death) = self.driver.death_cause()
            && !std::mem::replace(&mut self.death_logged, true)
        {
            tracing::error!(%death, "the controller failed permanently; every command fails from now on");
        }
        let moved = match self.queue.as_ref().map(|queue| queue.state()) {
            Some(IoQueueState::Live) => self.check_overdue(now),
            Some(IoQueueState::Waiting) => false,
            Some(IoQueueState::Lost | IoQueueState::Dead) => self.lose_queue(),
            None if phase == DriverPhase::Ready => self.create_queue(now),
            None => false,
        };
        moved | self.reset_eventfd(now)
    }

    /// Reports overdue commands, and invalid completions of the controller, to the driver.
    fn check_overdue(&mut self, now: Nanos) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        let (driver, id) = (&mut self.driver, queue.id());
        if let Some(fault) = queue.fault() {
            driver.reset_for(ResetCause::QueueViolation { queue: id, fault }, now);
            return true;
        }
        queue.check_timeouts(now, |overdue| match overdue {
            // If there is no room for the abort, the reset follows one timeout later anyway.
            OverdueCommand::Abort(command) => drop(driver.abort(id, command, now)),
            OverdueCommand::Stuck(command) => {
                driver.reset_for(ResetCause::CommandTimeout { queue: id, command }, now);
            }
        });
        false
    }

    /// Ends a queue that the controller lost: its remaining commands complete as aborted.
    fn lose_queue(&mut self) -> bool {
        while let Some(answer) = self.queue.as_mut().and_then(|queue| queue.reap()) {
            self.lost_queue_completions.push_back(ControllerCompletion {
                token: answer.context,
                result: answer.result,
                status: answer.status,
            });
        }
        let Some(queue) = self.queue.take() else { return false };
        match queue.abandon() {
            Ok(tokens) => {
                let aborted =
                    |token| ControllerCompletion { token, result: 0, status: Status::ABORTED_BY_HOST };
                tracing::warn!(lost = tokens.len(), trouble = ?self.driver.reset_cause(), "the controller was reset");
                self.lost_queue_completions.extend(tokens.into_iter().map(aborted));
            }
            Err(queue) => self.queue = Some(queue),
        }
        true
    }

    fn create_queue(&mut self, now: Nanos) -> bool {
        let Some(ticket) = self.queue_ticket else {
            let vector = self.interrupt.as_ref().map(|interrupt| interrupt.vector);
            let spec = QueueSpec { depth: self.depth, vector, priority: QueuePriority::Medium };
            match self.driver.request_queue(spec, now) {
                Ok(ticket) => self.queue_ticket = Some(ticket),
                Err(RequestError::Depth { max: most, .. }) if most < self.depth => self.depth = most,
                // Retried by the next turn, until the driver has room and memory, or fails permanently.
                Err(_) => return false,
            }
            return true;
        };
        let Some(made) = self.driver.take_queue(ticket) else { return false };
        self.queue_ticket = None;
        match made {
            Ok(queue) => {
                let earlier = self.queue.replace(Box::new(queue.carrying()));
                assert!(earlier.is_none(), "a queue is replaced while the controller may access its data");
            }
            Err(QueueError::Refused(status)) => {
                self.driver.reset_for(ResetCause::Refused { command: "an I/O queue", status }, now);
            }
            Err(_) => {}
        }
        true
    }

    /// Resets the eventfd periodically. Later interrupts signal it again. Returns true if the queue has work.
    fn reset_eventfd(&mut self, now: Nanos) -> bool {
        let Some(interrupt) = &self.interrupt else { return false };
        if now.since(self.last_eventfd_reset) < EVENTFD_PERIOD {
            return false;
        }
        self.last_eventfd_reset = now;
        let _ = interrupt.descriptor.take();
        self.queue.as_ref().is_some_and(|queue| queue.has_work())
    }
}

impl<F: PciFunction, H: HostMemory> CoreWork for HardwareDevice<F, H> {
    fn poll(&mut self, now: Nanos, _wall: UnixMillis) -> bool {
        self.poll_controller(now)
    }

    fn next_deadline(&self, now: Nanos, _wall: UnixMillis) -> Option<Nanos> {
        let busy = self.queue.as_ref().filter(|queue| queue.in_flight() > 0);
        let waits = !self.lost_queue_completions.is_empty() || busy.is_some_and(|queue| queue.has_work());
        let at_once = waits.then_some(now);
        // The end of a controller reset raises no interrupt.
        let phase = self.driver.lifecycle().phase();
        let recovers =
            phase == DriverPhase::Recovering || (phase == DriverPhase::Ready && self.queue.is_none());
        let polls = self.interrupt.is_none() && busy.is_some();
        let next_poll = (recovers || polls).then(|| now.after(POLL_PERIOD));
        let next_check = busy.map(|queue| queue.next_timeout_check());
        [at_once, next_poll, next_check, self.driver.next_deadline()].into_iter().flatten().min()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.interrupt.as_ref().map(|interrupt| interrupt.descriptor.as_fd())
    }

    fn stats(&self) -> DeviceStats {
        let in_flight = self.queue.as_ref().map_or(0, |queue| u64::from(queue.in_flight()));
        DeviceStats { in_flight, ..DeviceStats::default() }
    }

    /// Shuts the controller down as the specification requires, so that acknowledged writes are durable.
    fn shutdown(&mut self, clock: &Clock) -> Result<(), String> {
        let started = clock.now();
        let before = self.death();
        self.driver.close(started);
        while self.driver.poll(clock.now()) != DriverPhase::Dead {
            if clock.now().since(started) > TRANSITION_TIMEOUT {
                return Err(format!(
                    "the controller has not shut down after {} s",
                    TRANSITION_TIMEOUT.0 / 1_000_000_000
                ));
            }
            Clock::sleep(POLL_PERIOD);
        }
        match (before, self.death()) {
            (Some(death), _) => Err(death.to_string()),
            (None, Some(DeathCause::Closed) | None) => Ok(()),
            (None, Some(death)) => Err(death.to_string()),
        }
    }
}

impl<F: PciFunction, H: HostMemory> fmt::Debug for HardwareDevice<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HardwareDevice")
            .field("driver", &self.driver)
            .field("lost_queue_completions", &self.lost_queue_completions.len())
            .finish_non_exhaustive()
    }
}
