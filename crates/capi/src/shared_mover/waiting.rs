//! Threads that wait for started jobs: for one, which they take, or for all that were started before.
//!
//! Input: tickets, and the longest time to wait. Output: jobs that have ended. Invariant: a thread sleeps without the lock of the
//! mover, and a thread that takes what channels ended wakes it; no poll takes a job that a thread waits for.

use super::{MoveTicketHandle, MoverState, NextEnd, OpenTicket, SharedMover, StartedMove, TICKETS};
use crate::call_error::CallError;
use crate::move_error::MoveCallError;
use headwater_dma::mover::MoveJob;
use headwater_host::clock::Nanos;
use headwater_host::wake::WakeDescriptor;
use std::ptr;
use std::sync::Arc;

/// The time that a waiting thread polls before it sleeps.
const SPIN_BEFORE_SLEEP: Nanos = Nanos::from_micros(20);
/// The longest sleep while a work queue has a job, whose end wakes no thread.
pub(super) const QUEUE_NAP: Nanos = Nanos::from_micros(50);

impl SharedMover {
    /// Waits until the jobs that were started before have ended, for at most `longest`. They are not taken.
    pub(crate) fn drain(&self, longest: Nanos) -> Result<(), CallError> {
        let last_id = self.with(|state| Ok(state.last_id))?;
        let begun = self.clock.now();
        loop {
            let waited = self.clock.now().since(begun);
            let looked = match self.with(|state| state.drain_or_pause(last_id, waited, longest)) {
                Ok(Some(pause)) => self.pause(pause),
                ended => return ended.map(|_| ()).or_else(end_of_closed),
            };
            if looked.is_err() {
                return looked.or_else(end_of_closed);
            }
        }
    }

    /// Lets a thread that waits sleep, or look again at once.
    fn pause(&self, pause: WaitPause) -> Result<(), CallError> {
        match pause {
            WaitPause::Spin => std::hint::spin_loop(),
            WaitPause::Sleep { number, wake, until } => {
                self.channels.sleep(&wake, until);
                self.with(|state| {
                    state.end_sleep(number, wake);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Waits for a started job for at most `longest`, and takes it.
    pub(crate) fn wait(&self, ticket: *const MoveTicketHandle, longest: Nanos) -> Result<(), CallError> {
        let OpenTicket { mover, id } = TICKETS.with_waiting(ticket, |open| Ok(open.clone()))?;
        if !ptr::eq(Arc::as_ptr(&mover), self) {
            return Err(MoveCallError::OtherMover.into());
        }
        let mut waiting = WaitingThread { shared: self, id, is_counted: false };
        let begun = self.clock.now();
        loop {
            let waited = self.clock.now().since(begun);
            match waiting.look(waited, longest)? {
                TakeOutcome::Taken(started, job) => {
                    started.running.finish(*job);
                    return Ok(());
                }
                TakeOutcome::NotEnded(pause) => self.pause(pause)?,
            }
        }
    }
}

/// Returns the outcome of a drain whose mover another thread closed: a mover is closed only when no job is started.
fn end_of_closed(error: CallError) -> Result<(), CallError> {
    if matches!(error, CallError::NotOpen(_)) { Ok(()) } else { Err(error) }
}

/// A thread that waits for a job. It counts from its first look until it returns, so that no poll takes the job from it.
pub(super) struct WaitingThread<'a> {
    pub(super) shared: &'a SharedMover,
    pub(super) id: u64,
    pub(super) is_counted: bool,
}

impl WaitingThread<'_> {
    /// Looks for the job: takes it, or says how the wait goes on. With an error the wait has ended.
    pub(super) fn look(&mut self, waited: Nanos, longest: Nanos) -> Result<TakeOutcome, CallError> {
        let id = self.id;
        let was_counted = std::mem::replace(&mut self.is_counted, true);
        let outcome = self.shared.with(|state| {
            if !was_counted {
                state.add_waiter(id);
            }
            let outcome = state.take_or_sleep(id, waited, longest);
            if outcome.is_err() {
                state.remove_waiter(id);
                // A job that has ended by now is one for polls.
                state.settle();
            }
            outcome
        });
        self.is_counted = matches!(outcome, Ok(TakeOutcome::NotEnded(_)));
        outcome
    }
}

impl Drop for WaitingThread<'_> {
    /// Ends the wait of a thread that panics, or whose mover cannot be used.
    fn drop(&mut self) {
        if self.is_counted {
            // A mover that is closed has no job any more.
            let _ = self.shared.with(|state| {
                state.remove_waiter(self.id);
                Ok(())
            });
        }
    }
}

/// The outcome of a look for a job.
pub(super) enum TakeOutcome {
    Taken(StartedMove, Box<MoveJob>),
    /// The job has not ended.
    NotEnded(WaitPause),
}

/// The pause of a thread until it looks again.
pub(super) enum WaitPause {
    /// It looks again at once.
    Spin,
    /// It sleeps for at most `until`.
    Sleep { number: u64, wake: WakeDescriptor, until: Nanos },
}

impl MoverState {
    /// Counts one more thread that waits for a job, if the job was not taken.
    fn add_waiter(&mut self, id: u64) {
        if let Some(started) = self.started.iter_mut().find(|started| started.id == id) {
            started.waiters += 1;
        }
    }

    /// Counts one thread less that waits for a job, if the job was not taken.
    fn remove_waiter(&mut self, id: u64) {
        if let Some(started) = self.started.iter_mut().find(|started| started.id == id) {
            started.waiters -= 1;
        }
    }

    /// Takes a started job if it has ended, or prepares the sleep of the thread that waits for it.
    fn take_or_sleep(&mut self, id: u64, waited: Nanos, longest: Nanos) -> Result<TakeOutcome, CallError> {
        self.collect();
        let at = self.started.iter().position(|started| started.id == id);
        let at = at.ok_or(CallError::NotOpen("move ticket"))?;
        if let Some(job) = self.started[at].ended.take() {
            let (started, job) = self.take(at, job);
            return Ok(TakeOutcome::Taken(started, Box::new(job)));
        }
        if waited >= longest {
            return Err(MoveCallError::NotEnded { waited }.into());
        }
        self.prepare_pause(waited, longest).map(TakeOutcome::NotEnded)
    }

    /// Returns `None` if the jobs up to a number have ended, or prepares the sleep of the thread that waits for them.
    pub(super) fn drain_or_pause(
        &mut self,
        last_id: u64,
        waited: Nanos,
        longest: Nanos,
    ) -> Result<Option<WaitPause>, CallError> {
        // What has ended by now is for polls.
        self.settle();
        let is_running = |started: &&StartedMove| started.id <= last_id && started.ended.is_none();
        let running = self.started.iter().filter(is_running).count();
        if running == 0 {
            return Ok(None);
        }
        if waited >= longest {
            return Err(MoveCallError::NotDrained { jobs: running, waited }.into());
        }
        self.prepare_pause(waited, longest).map(Some)
    }

    /// Prepares the pause of a thread that waits for the next end of a job.
    fn prepare_pause(&mut self, waited: Nanos, longest: Nanos) -> Result<WaitPause, CallError> {
        if waited < SPIN_BEFORE_SLEEP {
            self.settle();
            return Ok(WaitPause::Spin);
        }
        let wake = match self.spare.pop() {
            Some(wake) => wake,
            None => WakeDescriptor::new().map_err(MoveCallError::from)?,
        };
        let number = self.next_id();
        self.sleepers.push((number, wake.clone()));
        let rest = longest.since(waited);
        let until = match self.prepare_next_end() {
            NextEnd::Signalled => rest,
            NextEnd::Polled => rest.min(QUEUE_NAP),
        };
        self.settle();
        Ok(WaitPause::Sleep { number, wake, until })
    }

    /// Ends the sleep of a thread, which may wait on.
    pub(super) fn end_sleep(&mut self, number: u64, wake: WakeDescriptor) {
        self.sleepers.retain(|(sleeper, _)| *sleeper != number);
        // A wake-up that came late would end the next sleep at once.
        let _ = wake.take();
        self.spare.push(wake);
    }
}
