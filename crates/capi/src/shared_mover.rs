//! A mover that threads of C share.
//!
//! ```text
//!  start --> started --ended--> kept --wait or poll--> results in the job of C, the memories are the program's again
//!  wait:  look under the lock; asleep without it, on an eventfd of its own and on the descriptors of all channels
//! ```
//! Input: jobs of C, tickets. Output: results in the jobs. Invariant: a started job is taken once, and never by a poll while a
//! thread waits for it: from its first look until it returns. A thread that takes what channels ended, and resets their
//! descriptors, wakes every thread that sleeps on them.
//!
//! # Lock order
//! The slot of a mover, then the state of the mover, then the slots of jobs and tickets.

#[path = "shared_mover/waiting.rs"]
mod waiting;

use crate::call_error::CallError;
use crate::handle_table::HandleTable;
use crate::move_error::MoveCallError;
use crate::open_job::{JOBS_MAX, MoveJobHandle, RunningJob};
use crate::wake_set::WakeSet;
use headwater_dma::mover::{MoveJob, Mover, STARTED_JOBS_MAX, TicketNumber};
use headwater_host::clock::Clock;
use headwater_host::gpu::HostRegistrations;
use headwater_host::pinning::MemoryRange;
use headwater_host::wake::{WakeDescriptor, WakeError};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A job that was started and not taken.
#[derive(Debug)]
pub struct MoveTicketHandle {
    _opaque: (),
}

/// The tickets of all movers. Each has a job, so that there are never more.
pub(crate) static TICKETS: HandleTable<OpenTicket, JOBS_MAX> = HandleTable::new("move ticket");

/// The object behind a ticket.
#[derive(Clone, Debug)]
pub(crate) struct OpenTicket {
    mover: Arc<SharedMover>,
    id: u64,
}

/// A mover, and what it has in flight.
#[derive(Debug)]
pub(crate) struct SharedMover {
    /// `None` once the mover is closed.
    state: Mutex<Option<MoverState>>,
    /// The descriptors of all channels.
    channels: WakeSet,
    clock: Clock,
    /// The memory that GPUs of the mover can reach.
    pub(crate) registrations: Option<HostRegistrations>,
}

/// The state of an open mover.
#[derive(Debug)]
pub(crate) struct MoverState {
    pub(crate) mover: Mover,
    started: Vec<StartedMove>,
    /// Threads that sleep, with the numbers of their sleeps.
    sleepers: Vec<(u64, WakeDescriptor)>,
    /// Descriptors of earlier sleeps.
    spare: Vec<WakeDescriptor>,
    ended_line: Option<EndedLine>,
    last_id: u64,
}

/// A job that was started and not taken.
#[derive(Debug)]
struct StartedMove {
    id: u64,
    number: TicketNumber,
    /// The number of its ticket's handle.
    ticket: usize,
    running: RunningJob,
    /// The job, once it has ended.
    ended: Option<MoveJob>,
    /// Threads that wait for it, awake or asleep.
    waiters: usize,
}

impl StartedMove {
    /// Returns true if a poll may take it.
    fn is_for_polls(&self) -> bool {
        self.ended.is_some() && self.waiters == 0
    }
}

/// The descriptor that is readable while a poll may find a job.
#[derive(Debug)]
struct EndedLine {
    /// Readable while an ended job is kept that no thread waits for, or the channels must be polled.
    kept: WakeDescriptor,
    /// Readable while `kept` or a channel is.
    set: WakeSet,
    is_kept: bool,
}

/// The way to the next end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextEnd {
    /// A descriptor of a channel becomes readable.
    Signalled,
    /// A work queue has a job, and must be polled.
    Polled,
}

impl SharedMover {
    /// Shares a mover that was just opened.
    pub(crate) fn new(mut mover: Mover, clock: Clock) -> Result<Self, WakeError> {
        let channels = WakeSet::of(&mover.prepare_sleep().unwrap_or_default())?;
        let state = MoverState {
            mover,
            started: Vec::new(),
            sleepers: Vec::new(),
            spare: Vec::new(),
            ended_line: None,
            last_id: 0,
        };
        Ok(Self { state: Mutex::new(Some(state)), channels, clock, registrations: None })
    }

    fn lock(&self) -> MutexGuard<'_, Option<MoverState>> {
        // A panic of the mover leaves its jobs with it; they are not taken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on the state, unless the mover is closed.
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut MoverState) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        work(self.lock().as_mut().ok_or(CallError::NotOpen("mover"))?)
    }

    /// Ends the mover and its channels, if no job is started and no thread uses it.
    pub(crate) fn close(&self) -> Result<(), CallError> {
        let mut place = match self.state.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(CallError::Busy("mover")),
        };
        let jobs = place.as_ref().map_or(0, |state| state.started.len());
        if jobs > 0 {
            return Err(MoveCallError::JobsStarted { jobs }.into());
        }
        place.take();
        Ok(())
    }

    /// Registers memory with the driver of the GPUs.
    pub(crate) fn register(&self, range: MemoryRange) -> Result<(), CallError> {
        let registrations = self.registrations.as_ref().ok_or(MoveCallError::NoGpu)?;
        registrations.register(range).map_err(|failure| registration_error(range, failure))
    }

    /// Unregisters memory, which no job of the mover uses.
    pub(crate) fn unregister(&self, range: MemoryRange) -> Result<(), CallError> {
        let registrations = self.registrations.as_ref().ok_or(MoveCallError::NoGpu)?;
        // A job that runs has the lock.
        self.with(|state| match state.started.len() {
            0 => registrations.unregister(range).map_err(|failure| registration_error(range, failure)),
            jobs => Err(MoveCallError::JobsUseMemory { jobs }.into()),
        })
    }

    /// Does a job, and returns when it is done.
    pub(crate) fn run(&self, job: *const MoveJobHandle) -> Result<(), CallError> {
        let (running, mut lent) = RunningJob::begin(job, &self.clock)?;
        self.with(|state| {
            state.mover.run(&mut lent).map_err(MoveCallError::from)?;
            state.settle();
            Ok(())
        })?;
        running.finish(lent);
        Ok(())
    }

    /// Starts a job, and returns the handle of its ticket.
    pub(crate) fn start(
        self: &Arc<Self>,
        job: *const MoveJobHandle,
    ) -> Result<*mut MoveTicketHandle, CallError> {
        self.with(|state| {
            // The mover counts those that it keeps itself; ended ones are kept here.
            if state.started.len() >= STARTED_JOBS_MAX {
                return Err(MoveCallError::Full { max: STARTED_JOBS_MAX }.into());
            }
            let (running, lent) = RunningJob::begin(job, &self.clock)?;
            let id = state.next_id();
            let ticket: *mut MoveTicketHandle = TICKETS.add(OpenTicket { mover: Arc::clone(self), id })?;
            match state.mover.start(lent) {
                Ok(started) => state.started.push(StartedMove {
                    id,
                    number: started.number(),
                    ticket: ticket.addr(),
                    running,
                    ended: None,
                    waiters: 0,
                }),
                Err(refused) => {
                    TICKETS.remove(ticket)?;
                    return Err(MoveCallError::from(refused.reason).into());
                }
            }
            state.settle();
            Ok(ticket)
        })
    }

    /// Takes a started job that has ended and that no thread waits for. Never waits, also not for the mover.
    pub(crate) fn poll(&self) -> Result<*mut MoveJobHandle, CallError> {
        let taken = match self.state.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            place => {
                let mut place = place.unwrap_or_else(|error| match error {
                    TryLockError::Poisoned(poisoned) => poisoned.into_inner(),
                    TryLockError::WouldBlock => unreachable!("this case was matched"),
                });
                place.as_mut().ok_or(CallError::NotOpen("mover"))?.take_any()
            }
        };
        let (started, job) = taken.ok_or(MoveCallError::NoneEnded)?;
        Ok(started.running.finish(job))
    }

    /// Returns the descriptor that is readable while a poll may find a job. It belongs to the mover.
    pub(crate) fn ended_descriptor(&self) -> Result<RawFd, CallError> {
        self.with(|state| {
            if state.ended_line.is_none() {
                let kept = WakeDescriptor::new().map_err(MoveCallError::from)?;
                let set = WakeSet::of(&[kept.as_fd(), self.channels.as_fd()]).map_err(MoveCallError::from)?;
                state.ended_line = Some(EndedLine { kept, set, is_kept: false });
            }
            state.settle();
            let line = state.ended_line.as_ref().ok_or(CallError::NotOpen("mover"))?;
            Ok(line.set.as_fd().as_raw_fd())
        })
    }
}

impl MoverState {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the numbers of started jobs that have not ended, and of those that have.
    pub(crate) fn started_jobs(&self) -> (usize, usize) {
        let ended = self.started.iter().filter(|started| started.ended.is_some()).count();
        (self.started.len() - ended, ended)
    }

    /// Takes what channels have ended, and wakes the threads that sleep if that was anything. Returns true if it was.
    fn collect(&mut self) -> bool {
        let mut has_any = false;
        while let Some((number, job)) = self.mover.poll_any() {
            // Every started job was noted under the same lock.
            if let Some(started) = self.started.iter_mut().find(|started| started.number == number) {
                started.ended = Some(job);
            }
            has_any = true;
        }
        if has_any {
            self.wake_sleepers();
        }
        has_any
    }

    fn wake_sleepers(&self) {
        for (_, wake) in &self.sleepers {
            // A thread that cannot be woken has a limit of its own on its sleep, or the descriptors of the channels.
            let _ = wake.wake();
        }
    }

    /// Ends an access to the mover: takes what has ended, and prepares the descriptors for the next end.
    pub(crate) fn settle(&mut self) {
        self.collect();
        if self.ended_line.is_none() && self.sleepers.is_empty() {
            return;
        }
        let next = self.prepare_next_end();
        let (running, _) = self.started_jobs();
        let has_any = self.started.iter().any(StartedMove::is_for_polls);
        let Some(line) = &mut self.ended_line else { return };
        let must_keep = has_any || running > 0 && next == NextEnd::Polled;
        if must_keep != line.is_kept {
            // The eventfd is open and its counter is far from full, so that neither call fails.
            let _ = if must_keep { line.kept.wake() } else { line.kept.take().map(drop) };
            line.is_kept = must_keep;
        }
    }

    /// Resets the descriptors of the channels, which become readable with the next end.
    fn prepare_next_end(&mut self) -> NextEnd {
        loop {
            if self.mover.prepare_sleep().is_some() {
                return NextEnd::Signalled;
            }
            if !self.collect() {
                return NextEnd::Polled;
            }
        }
    }

    /// Takes the job at a place among the started ones; its ticket ends.
    fn take(&mut self, at: usize, job: MoveJob) -> (StartedMove, MoveJob) {
        let started = self.started.remove(at);
        let ticket = ptr::without_provenance::<MoveTicketHandle>(started.ticket);
        // The ticket is open as long as its job is started.
        drop(TICKETS.remove(ticket));
        // A second thread that waits for the same ticket finds that it has ended.
        self.wake_sleepers();
        self.settle();
        (started, job)
    }

    /// Takes any job that has ended and that no thread waits for.
    fn take_any(&mut self) -> Option<(StartedMove, MoveJob)> {
        self.settle();
        let at = self.started.iter().position(StartedMove::is_for_polls)?;
        let job = self.started[at].ended.take()?;
        Some(self.take(at, job))
    }
}

fn registration_error(range: MemoryRange, failure: impl std::fmt::Display) -> CallError {
    let reason = failure.to_string();
    MoveCallError::Registration { address: range.address(), bytes: range.bytes(), reason }.into()
}

#[cfg(test)]
#[path = "shared_mover/tests.rs"]
mod tests;
