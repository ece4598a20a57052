//! A queue that several handles, on several threads, use together.
//!
//! In: commands of many `Seat`s. Out: each seat's own answers. Invariant: an answer goes to the seat whose command it was,
//! also when another thread found it; nobody who waits is forgotten (`exchange` says how, and `loom` has gone through it).
//!
//! A thread of the queue's own may do the looking ([`start_thread`](SharedQueue::start_thread)); without one, whoever waits
//! looks for all.

mod exchange;
mod line;
mod polling_thread;

use crate::backend::{Answer, Armed, Limits};
use crate::command::Command;
use crate::completion::{Aggregation, Pace};
use crate::error::{IoError, Rejected};
use crate::queue::Queue;
use crate::timepiece::Timepiece;
use exchange::{Call, Exchange};
use headwater_host::clock::Nanos;
use headwater_host::sync::Mutex;
use headwater_host::wake::WakeDescriptor;
use line::{DeviceLine, Rest};
use polling_thread::PollingThread;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

#[derive(Debug)]
struct Shared {
    exchange: Arc<Exchange<DeviceLine>>,
    thread: Mutex<Option<PollingThread>>,
    rest: Rest,
    limits: Limits,
    depth: u32,
}

/// A queue for several handles. A clone is the same queue; it is closed with the last of them.
#[derive(Clone, Debug)]
pub struct SharedQueue {
    shared: Arc<Shared>,
}

/// One user of a shared queue.
#[derive(Debug)]
pub(crate) struct Seat {
    shared: Arc<Shared>,
    number: u32,
    bell: Option<WakeDescriptor>,
}

impl SharedQueue {
    /// Shares a queue.
    #[must_use]
    pub fn new(queue: Queue) -> Self {
        let (limits, depth, rest) = (queue.limits(), queue.depth(), Rest::of(&queue));
        let exchange = Arc::new(Exchange::new(DeviceLine::over(queue)));
        Self { shared: Arc::new(Shared { exchange, thread: Mutex::new(None), rest, limits, depth }) }
    }

    /// Shares a queue that has commands in flight: they are those of the seat that comes with it.
    pub(crate) fn adopting(queue: Queue) -> Seat {
        let in_flight = queue.in_flight();
        let shared = Self::new(queue);
        let seat = shared.seat();
        shared.shared.exchange.adopt(seat.number, in_flight);
        seat
    }

    /// A place at it.
    pub(crate) fn seat(&self) -> Seat {
        Seat { shared: self.shared.clone(), number: self.shared.exchange.sit_down(), bell: None }
    }

    /// Lets a thread look for completions from now on, at this pace; it tells each user as `aggregation` says. A thread
    /// that runs already goes on with the new settings.
    ///
    /// # Errors
    /// [`IoError`] when the kernel gives no thread.
    pub fn start_thread(
        &self,
        pace: Pace,
        aggregation: Aggregation,
        time: &Timepiece,
    ) -> Result<(), IoError> {
        let mut thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.exchange.with_line(|line| line.set_pace(pace, time.clone()));
        self.shared.exchange.set_enough(aggregation.count);
        if thread.is_none() {
            *thread = Some(PollingThread::start(self.shared.exchange.clone(), time.clone(), aggregation)?);
        }
        Ok(())
    }

    /// Ends the thread; whoever waits looks again.
    pub fn stop_thread(&self) {
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(thread);
    }

    /// The span that the thread slept last between two looks.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.shared.exchange.with_line(|line| line.period())
    }

    /// The queue back, if nobody else uses it.
    ///
    /// # Errors
    /// Itself, if somebody does.
    pub fn into_queue(self) -> Result<Queue, Self> {
        self.stop_thread();
        let shared = Arc::try_unwrap(self.shared).map_err(|shared| Self { shared })?;
        let Shared { exchange, rest, limits, depth, .. } = shared;
        Arc::try_unwrap(exchange).map(|exchange| exchange.into_line().into_queue()).map_err(|exchange| Self {
            shared: Arc::new(Shared { exchange, thread: Mutex::new(None), rest, limits, depth }),
        })
    }
}

impl Seat {
    /// The queue.
    pub(crate) fn queue(&self) -> SharedQueue {
        SharedQueue { shared: self.shared.clone() }
    }

    /// Whether answers lie here that were not taken.
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.exchange.has_answer(self.number)
    }

    /// The queue back, its thread ended, with this seat's commands in flight under their places as tokens; itself if somebody
    /// else uses the queue, or an answer came meanwhile.
    pub(crate) fn reclaim(self) -> Result<Queue, Self> {
        let first = self.number == 0 && Arc::strong_count(&self.shared) == 1;
        if first {
            self.queue().stop_thread();
        }
        if !first || self.has_mail() {
            return Err(self);
        }
        // The seat's own handle goes before the queue is taken out; nobody else has one.
        let shared = self.queue();
        drop(self);
        shared.into_queue().map_err(|shared| shared.seat())
    }

    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.shared.exchange.owed(self.number)
    }

    pub(crate) fn submit(&mut self, command: Command, place: u32) -> Result<(), Rejected> {
        self.shared.exchange.submit(self.number, command, place)
    }

    pub(crate) fn ring(&mut self) -> Result<(), IoError> {
        self.shared.exchange.with_line(|line| line.ring())
    }

    pub(crate) fn poll(&mut self) -> Result<Option<Answer>, IoError> {
        let answer = self.shared.exchange.take(self.number)?;
        Ok(answer.map(|(place, mut answer)| {
            answer.completion.token = place.into();
            answer
        }))
    }

    pub(crate) fn cancel(&mut self, place: u32) -> Result<(), IoError> {
        let token = exchange::token(self.number, place);
        self.shared.exchange.with_line(|line| line.cancel(token))
    }

    /// Sleeps until an answer may be there, at most for `longest`.
    pub(crate) fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let rest = &self.shared.rest;
        self.shared.exchange.wait(self.number, longest.map(Nanos::to_duration), |longest| rest.sleep(longest))
    }

    /// A descriptor that is readable once something was found for this seat by the queue's thread.
    pub(crate) fn make_descriptor(&mut self) -> Result<(), IoError> {
        if self.bell.is_none() {
            let bell = WakeDescriptor::new()?;
            let rung = bell.clone();
            // A bell that the kernel does not let us ring has a sleeper whom nobody can tell.
            self.call(Some(Call::new(move || {
                let _ = rung.wake();
            })));
            self.bell = Some(bell);
        }
        Ok(())
    }

    /// Who is woken when something was found for this seat.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.bell = None;
        self.call(Some(Call::new(move || waker.wake_by_ref())));
    }

    fn call(&self, call: Option<Call>) {
        self.shared.exchange.set_call(self.number, call);
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    /// Asks for the bell to be rung. Only the thread of the queue rings it: without one this is refused, and whoever waits
    /// has to look.
    pub(crate) fn arm(&mut self) -> Result<Armed, IoError> {
        if self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            let reason = "nobody looks into this shared queue for others: let a thread do it".to_owned();
            return Err(IoError::Refused { reason });
        }
        self.make_descriptor()?;
        if let Some(bell) = &self.bell {
            bell.take()?;
        }
        Ok(if self.shared.exchange.has_answer(self.number) { Armed::Ready } else { Armed::Waiting })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.exchange.stand_up(self.number);
    }
}
