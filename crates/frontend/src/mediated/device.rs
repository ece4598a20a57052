//! A controller of the node's own, with the one queue that carries the commands of all clients.
//!
//! In: entries with the runs of their data, under tokens. Out: each token once, with the controller's answer, or with
//! [`Status::ABORTED_BY_HOST`] when a reset lost it. Invariant: a token comes back only when the controller certainly
//! touches none of its data any more.
//!
//! ```text
//!   (driver ready) -> queue asked for -> queue stands --reset--> what was answered, then the rest as aborted -> (again)
//! ```

use super::ranges::{PAGE_BYTES, PAGES, RangePage, RangePages};
use crate::core_device::CoreWork;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::controller::Priority;
use headwater_nvme::driver::{
    Controller, Death, DescribeError, Fate, Function, HostMemory, IoQueue, Namespace, Overdue, Phase,
    QueueError, QueueSpec, RequestError, SubmitFault, Ticket, Trouble,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::DeviceStats;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

/// Commands of all clients in flight at the controller.
const DEPTH: u32 = 1_023;
/// Between two looks at the bell while nothing comes.
const BELL_EVERY: Nanos = Nanos::from_micros(50);
/// Between two looks at a controller without interrupts, and at one that is to stop.
const LOOK: Nanos = Nanos::from_millis(1);
/// How long a controller may take to come up or to stop, beyond what the driver allows it.
const PATIENCE: Nanos = Nanos::from_millis(120_000);

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The token it was submitted with.
    pub token: u64,
    /// Dword 0 of the completion.
    pub result: u32,
    /// Its status.
    pub status: Status,
}

/// A command that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// There is no room, or no queue just now: ask again.
    Later,
    /// It can never work.
    Refused(Status),
}

/// What rings when the controller has interrupted.
#[derive(Clone, Debug)]
pub struct Bell {
    /// The descriptor.
    pub descriptor: WakeDescriptor,
    /// The vector of the I/O queue.
    pub vector: u16,
}

/// The controller.
pub struct HardwareDevice<F: Function, H: HostMemory> {
    driver: Controller<F, H>,
    queue: Option<Box<IoQueue<H::Words, F::Registers>>>,
    making: Option<Ticket>,
    depth: u32,
    /// Tokens of the queue's commands, by slot.
    tokens: Vec<u64>,
    /// Answers that no queue holds any more.
    late: VecDeque<Answer>,
    pages: RangePages<H::Words>,
    bell: Option<Bell>,
    /// When the bell was last looked at.
    heard: Nanos,
    told_dead: bool,
}

impl<F: Function, H: HostMemory> HardwareDevice<F, H> {
    /// A controller that nothing was done with; `memory` is the driver's, or of the same kind.
    ///
    /// # Errors
    /// There is no memory for the lists of ranges.
    pub fn new(driver: Controller<F, H>, memory: &mut H, bell: Option<Bell>) -> Result<Self, String> {
        let block = memory
            .take(PAGES * PAGE_BYTES, PAGE_BYTES)
            .ok_or("there is no memory that the device reaches")?;
        Ok(Self {
            driver,
            queue: None,
            making: None,
            depth: DEPTH,
            tokens: Vec::new(),
            late: VecDeque::new(),
            pages: RangePages::within(block),
            bell,
            heard: Nanos::ZERO,
            told_dead: false,
        })
    }

    /// Brings the controller up. Waits until its queue stands.
    ///
    /// # Errors
    /// Says why it does not.
    pub fn start(&mut self, clock: &Clock) -> Result<(), String> {
        let started = clock.now();
        self.driver.start(started);
        while !self.is_ready() {
            let now = clock.now();
            self.turn(now);
            if let Some(death) = self.death() {
                return Err(death.to_string());
            }
            if now.since(started) > PATIENCE {
                return Err("the controller does not become ready".to_owned());
            }
            Clock::sleep(Nanos::from_micros(100));
        }
        Ok(())
    }

    /// Whether commands are taken now.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.late.is_empty() && self.queue.as_ref().is_some_and(|queue| queue.fate() == Fate::Live)
    }

    /// Why the controller is given up, if it is: no command works any more.
    #[must_use]
    pub fn death(&self) -> Option<Death> {
        self.driver.death()
    }

    /// The namespaces; also those that cannot be used.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        self.driver.namespaces()
    }

    /// Most bytes of one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.driver.transfer_bytes_max()
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Controller<F, H> {
        &self.driver
    }

    /// The driver, to ask it for more than this device does of itself.
    pub(super) fn driver_mut(&mut self) -> &mut Controller<F, H> {
        &mut self.driver
    }

    /// Submits a command. It is shown to the controller by [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`NotTaken`]: nothing happened.
    pub fn submit(&mut self, token: u64, entry: SubmissionEntry, runs: &[IovaRange]) -> Result<(), NotTaken> {
        let queue = self.queue.as_mut().filter(|_| self.late.is_empty()).ok_or(NotTaken::Later)?;
        match queue.submit(entry, runs) {
            Ok(command) => {
                let slot = queue.slot(command);
                self.tokens[slot] = token;
                Ok(())
            }
            Err(SubmitFault::Full | SubmitFault::NotLive) => Err(NotTaken::Later),
            Err(SubmitFault::Data(DescribeError::Unaligned { .. } | DescribeError::Gap { .. })) => {
                Err(NotTaken::Refused(Status::PRP_OFFSET_INVALID))
            }
            Err(_) => Err(NotTaken::Refused(Status::INVALID_FIELD)),
        }
    }

    /// Shows what was submitted, and gives the controller room for answers.
    pub fn ring(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.ring();
        }
    }

    /// Takes the next answer.
    #[inline]
    pub fn next_answer(&mut self) -> Option<Answer> {
        if let Some(answer) = self.late.pop_front() {
            return Some(answer);
        }
        let done = self.queue.as_mut()?.reap()?;
        Some(Answer { token: self.tokens[done.slot], result: done.result, status: done.status })
    }

    /// Writes a list of ranges where the controller reads it; `None` when as many are in flight as can be.
    pub fn put_ranges(&mut self, ranges: &[DatasetRange]) -> Option<(RangePage, IovaRange)> {
        self.pages.put(ranges)
    }

    /// The list's command is answered, or was not taken.
    pub fn give_back(&mut self, page: RangePage) {
        self.pages.give_back(page);
    }

    /// Keeps driver and queue going. Returns whether anything moved.
    pub fn turn(&mut self, now: Nanos) -> bool {
        let phase = self.driver.poll(now);
        if let Some(death) = self.driver.death()
            && !std::mem::replace(&mut self.told_dead, true)
        {
            tracing::error!(%death, "the controller is given up; every command fails from now on");
        }
        let moved = match self.queue.as_ref().map(|queue| queue.fate()) {
            Some(Fate::Live) => self.watch(now),
            Some(Fate::Waiting) => false,
            Some(Fate::Lost | Fate::Dead) => self.lose_queue(),
            None if phase == Phase::Ready => self.make_queue(now),
            None => false,
        };
        moved | self.hear(now)
    }

    /// Looks after commands that take too long, and after a controller that answers what nobody asked.
    fn watch(&mut self, now: Nanos) -> bool {
        let Some(queue) = &mut self.queue else { return false };
        let (driver, id) = (&mut self.driver, queue.id());
        if let Some(fault) = queue.fault() {
            driver.report(Trouble::Queue { queue: id, fault }, now);
            return true;
        }
        queue.watch(now, |overdue| match overdue {
            // An abort for which there is no room is made up for by the reset that follows a timeout later.
            Overdue::Abort(command) => drop(driver.abort(id, command, now)),
            Overdue::Stuck(command) => driver.report(Trouble::Stuck { queue: id, command }, now),
        });
        false
    }

    /// The queue is forgotten by the controller: what it has not answered is over.
    fn lose_queue(&mut self) -> bool {
        while let Some(answer) = self.queue.as_mut().and_then(|queue| queue.reap()) {
            let token = self.tokens[answer.slot];
            self.late.push_back(Answer { token, result: answer.result, status: answer.status });
        }
        let Some(queue) = self.queue.take() else { return false };
        match queue.abandon() {
            Ok(slots) => {
                let aborted = |slot: usize| Answer {
                    token: self.tokens[slot],
                    result: 0,
                    status: Status::ABORTED_BY_HOST,
                };
                tracing::warn!(lost = slots.len(), trouble = ?self.driver.trouble(), "the controller was reset");
                self.late.extend(slots.into_iter().map(aborted));
            }
            Err(queue) => self.queue = Some(queue),
        }
        true
    }

    fn make_queue(&mut self, now: Nanos) -> bool {
        let Some(ticket) = self.making else {
            let vector = self.bell.as_ref().map(|bell| bell.vector);
            let spec = QueueSpec { depth: self.depth, vector, priority: Priority::Medium };
            match self.driver.make_queue(spec, now) {
                Ok(ticket) => self.making = Some(ticket),
                Err(RequestError::Depth { most, .. }) if most < self.depth => self.depth = most,
                // There will be room, memory or another phase; or the driver gives up.
                Err(_) => return false,
            }
            return true;
        };
        let Some(made) = self.driver.take_queue(ticket) else { return false };
        self.making = None;
        match made {
            Ok(queue) => {
                self.tokens = vec![0; queue.depth() as usize];
                self.queue = Some(queue);
            }
            Err(QueueError::Refused(status)) => {
                self.driver.report(Trouble::Refused { what: "an I/O queue", status }, now);
            }
            Err(_) => {}
        }
        true
    }

    /// Takes back what the bell says once nothing comes any more. What comes after that rings it again.
    fn hear(&mut self, now: Nanos) -> bool {
        let Some(bell) = &self.bell else { return false };
        if now.since(self.heard) < BELL_EVERY {
            return false;
        }
        self.heard = now;
        let _ = bell.descriptor.take();
        self.queue.as_ref().is_some_and(|queue| queue.has_work())
    }
}

impl<F: Function, H: HostMemory> CoreWork for HardwareDevice<F, H> {
    fn poll(&mut self, now: Nanos, _wall: UnixMillis) -> bool {
        self.turn(now)
    }

    fn next_deadline(&self, now: Nanos, _wall: UnixMillis) -> Option<Nanos> {
        let busy = self.queue.as_ref().filter(|queue| queue.in_flight() > 0);
        let waits = !self.late.is_empty() || busy.is_some_and(|queue| queue.has_work());
        let late = waits.then_some(now);
        // A controller that is being reset says by no interrupt that it is done.
        let phase = self.driver.life().phase();
        let coming = phase == Phase::Recovering || (phase == Phase::Ready && self.queue.is_none());
        let deaf = self.bell.is_none() && busy.is_some();
        let look = (coming || deaf).then(|| now.after(LOOK));
        let watch = busy.map(|queue| queue.next_watch());
        [late, look, watch, self.driver.next_deadline()].into_iter().flatten().min()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.descriptor.as_fd())
    }

    fn stats(&self) -> DeviceStats {
        let in_flight = self.queue.as_ref().map_or(0, |queue| u64::from(queue.in_flight()));
        DeviceStats { in_flight, ..DeviceStats::default() }
    }

    /// Shuts the controller down as the specification asks, so that it loses nothing that it acknowledged.
    fn shutdown(&mut self, clock: &Clock) -> Result<(), String> {
        let started = clock.now();
        let before = self.death();
        self.driver.close(started);
        while self.driver.poll(clock.now()) != Phase::Dead {
            if clock.now().since(started) > PATIENCE {
                return Err("the controller does not shut down".to_owned());
            }
            Clock::sleep(LOOK);
        }
        match (before, self.death()) {
            (Some(death), _) => Err(death.to_string()),
            (None, Some(Death::Closed) | None) => Ok(()),
            (None, Some(death)) => Err(death.to_string()),
        }
    }
}

impl<F: Function, H: HostMemory> fmt::Debug for HardwareDevice<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HardwareDevice")
            .field("driver", &self.driver)
            .field("late", &self.late.len())
            .finish_non_exhaustive()
    }
}
