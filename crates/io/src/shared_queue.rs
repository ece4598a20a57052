//! A queue that several handles on several threads share.
//!
//! Input: commands of many `QueueUser`s. Output: each seat's own completions. Invariant: a completion goes to the seat that
//! submitted the command, also if another thread found it; no waiter is missed (`exchange` holds the argument, and
//! `loom` checks it).
//!
//! A thread of the queue polls while a user's completion policy asks for one, at the pace of each user that does, and
//! notifies each as its own aggregation says; a user whose policy has no thread polls by itself. Without a thread, a waiting
//! user polls for all.

mod exchange;
mod paced_queue;
mod polling_thread;

use crate::backend::{ArmResult, CompletedCommand, IoLimits};
use crate::clock::IoClock;
use crate::command::Command;
use crate::completion::{CompletionAggregation, PollPace};
use crate::error::{IoError, RejectedCommand};
use crate::queue::Queue;
use exchange::{CompletionExchange, SeatPolicy, WakeCallback};
use headwater_host::clock::Nanos;
use headwater_host::sync::{Mutex, MutexGuard};
use headwater_host::wake::WakeDescriptor;
use paced_queue::{PacedQueue, QueueSleep};
use polling_thread::PollingThread;
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::task::Waker;

#[derive(Debug)]
struct SharedQueueState {
    exchange: Arc<CompletionExchange<PacedQueue>>,
    thread: Mutex<QueueThread>,
    sleeper: QueueSleep,
    limits: IoLimits,
    depth: u32,
}

/// The thread of a queue, and the users whose policies ask for it.
#[derive(Debug, Default)]
struct QueueThread {
    handle: Option<PollingThread>,
    users: BTreeSet<u32>,
}

impl SharedQueueState {
    fn thread(&self) -> MutexGuard<'_, QueueThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue for several handles. A clone is the same queue; dropping the last clone closes it.
#[derive(Clone, Debug)]
pub struct SharedQueue {
    shared: Arc<SharedQueueState>,
}

/// One user of a shared queue.
#[derive(Debug)]
pub(crate) struct QueueUser {
    shared: Arc<SharedQueueState>,
    number: u32,
    wakeup: Option<WakeDescriptor>,
}

impl SharedQueue {
    /// Shares a queue.
    #[must_use]
    pub fn new(queue: Queue) -> Self {
        let (limits, depth, sleeper) = (queue.limits(), queue.depth(), QueueSleep::of(&queue));
        let exchange = Arc::new(CompletionExchange::new(PacedQueue::over(queue)));
        let thread = Mutex::new(QueueThread::default());
        Self::over(SharedQueueState { exchange, thread, sleeper, limits, depth })
    }

    fn over(state: SharedQueueState) -> Self {
        Self { shared: Arc::new(state) }
    }

    /// Shares a queue with commands in flight, which belong to the returned seat.
    pub(crate) fn share_busy(queue: Queue) -> QueueUser {
        let in_flight = queue.in_flight();
        let shared = Self::new(queue);
        let seat = shared.add_user();
        shared.shared.exchange.adopt(seat.number, in_flight);
        seat
    }

    /// Adds a user.
    pub(crate) fn add_user(&self) -> QueueUser {
        QueueUser { shared: self.shared.clone(), number: self.shared.exchange.allocate_seat(), wakeup: None }
    }

    /// Stops the thread; waiting threads poll again.
    fn stop_thread(&self) {
        let thread = self.shared.thread().handle.take();
        drop(thread);
    }

    /// Returns the thread's last sleep between two polls.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.shared.exchange.with_queue(|line| line.period())
    }

    /// Returns the queue if this is its only user.
    ///
    /// # Errors
    /// Itself, if there is another user.
    pub fn into_queue(self) -> Result<Queue, Self> {
        self.stop_thread();
        let shared = Arc::try_unwrap(self.shared).map_err(|shared| Self { shared })?;
        let SharedQueueState { exchange, thread, sleeper, limits, depth } = shared;
        Arc::try_unwrap(exchange)
            .map(|exchange| exchange.into_queue().into_queue())
            .map_err(|exchange| Self::over(SharedQueueState { exchange, thread, sleeper, limits, depth }))
    }
}

impl QueueUser {
    /// Returns the queue.
    pub(crate) fn queue(&self) -> SharedQueue {
        SharedQueue { shared: self.shared.clone() }
    }

    /// Returns true if completions for this seat were found and not yet taken.
    pub(crate) fn has_completions(&self) -> bool {
        self.shared.exchange.has_answer(self.number)
    }

    /// Stops the thread and returns the queue, with this seat's commands in flight under their slots as tokens; returns
    /// itself if the queue has another user, or a completion has arrived.
    pub(crate) fn reclaim(self) -> Result<Queue, Self> {
        let first = self.number == 0 && Arc::strong_count(&self.shared) == 1;
        if first {
            self.queue().stop_thread();
        }
        if !first || self.has_completions() {
            return Err(self);
        }
        // The seat's reference is dropped before the queue is taken out; no other reference exists.
        let shared = self.queue();
        drop(self);
        shared.into_queue().map_err(|shared| shared.add_user())
    }

    /// Starts or joins the thread of the queue, which polls for this user at this pace and notifies it as `aggregation`
    /// says. Other users keep their policies.
    pub(crate) fn start_thread(
        &self,
        pace: PollPace,
        aggregation: CompletionAggregation,
        time: &IoClock,
    ) -> Result<(), IoError> {
        let mut thread = self.shared.thread();
        self.shared.exchange.with_queue(|queue| queue.set_pace(self.number, pace, time.clone()));
        let CompletionAggregation { count, time: limit } = aggregation;
        self.shared.exchange.set_policy(self.number, SeatPolicy::Thread { count, time: limit });
        if thread.handle.is_none() {
            match PollingThread::start(self.shared.exchange.clone(), time.clone()) {
                Ok(handle) => thread.handle = Some(handle),
                Err(error) => {
                    self.poll_alone();
                    return Err(error);
                }
            }
        }
        thread.users.insert(self.number);
        Ok(())
    }

    /// Makes this user poll by itself. The thread ends with the last user that has it.
    pub(crate) fn release_thread(&self) {
        self.poll_alone();
        let mut thread = self.shared.thread();
        thread.users.remove(&self.number);
        let ended = if thread.users.is_empty() { thread.handle.take() } else { None };
        // The thread ends without the lock: a callback on it may ask for the state of the thread.
        drop(thread);
        drop(ended);
    }

    fn poll_alone(&self) {
        self.shared.exchange.with_queue(|queue| queue.remove_pace(self.number));
        self.shared.exchange.set_policy(self.number, SeatPolicy::Polls);
    }

    pub(crate) fn limits(&self) -> IoLimits {
        self.shared.limits
    }

    pub(crate) fn depth(&self) -> u32 {
        self.shared.depth
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.shared.exchange.outstanding(self.number)
    }

    pub(crate) fn submit(&mut self, command: Command, slot: u32) -> Result<(), RejectedCommand> {
        self.shared.exchange.submit(self.number, command, slot)
    }

    pub(crate) fn ring(&mut self) -> Result<(), IoError> {
        self.shared.exchange.with_queue(|line| line.ring())
    }

    pub(crate) fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        let answer = self.shared.exchange.take(self.number)?;
        Ok(answer.map(|(slot, mut answer)| {
            answer.completion.token = slot.into();
            answer
        }))
    }

    pub(crate) fn cancel(&mut self, slot: u32) -> Result<(), IoError> {
        let token = exchange::token(self.number, slot);
        self.shared.exchange.with_queue(|line| line.cancel(token))
    }

    /// Sleeps until a completion may be available, at most for `longest`.
    pub(crate) fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let sleeper = &self.shared.sleeper;
        self.shared
            .exchange
            .wait(self.number, longest.map(Nanos::to_duration), |longest| sleeper.sleep(longest))
    }

    /// Creates the descriptor that becomes readable once the queue's thread has found a completion for this seat.
    pub(crate) fn make_descriptor(&mut self) -> Result<(), IoError> {
        if self.wakeup.is_none() {
            let wakeup = WakeDescriptor::new()?;
            let signalled = wakeup.clone();
            // If the kernel refuses this wake-up, there is no other way to notify the sleeper.
            self.set_callback(Some(WakeCallback::new(move || {
                let _ = signalled.wake();
            })));
            self.wakeup = Some(wakeup);
        }
        Ok(())
    }

    /// Sets the waker that is notified of completions for this seat.
    pub(crate) fn set_waker(&mut self, waker: Waker) {
        self.wakeup = None;
        self.set_callback(Some(WakeCallback::new(move || waker.wake_by_ref())));
    }

    fn set_callback(&self, call: Option<WakeCallback>) {
        self.shared.exchange.set_callback(self.number, call);
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.wakeup.as_ref().map(|wakeup| wakeup.as_fd())
    }

    /// Arms the descriptor. Only the queue's thread signals it: without one this is refused, and the waiter has to
    /// poll.
    pub(crate) fn arm(&mut self) -> Result<ArmResult, IoError> {
        let thread = self.shared.thread();
        if thread.handle.is_none() || !thread.users.contains(&self.number) {
            let reason =
                "a shared queue without a completion thread has no descriptor; start one, or poll".to_owned();
            return Err(IoError::Unsupported { reason });
        }
        drop(thread);
        self.make_descriptor()?;
        if let Some(wakeup) = &self.wakeup {
            wakeup.take()?;
        }
        Ok(if self.shared.exchange.has_answer(self.number) { ArmResult::Ready } else { ArmResult::Armed })
    }
}

impl Drop for QueueUser {
    fn drop(&mut self) {
        self.release_thread();
        self.shared.exchange.free_seat(self.number);
    }
}

#[cfg(test)]
mod tests;
