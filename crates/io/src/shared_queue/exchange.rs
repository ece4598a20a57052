//! The distribution of answers among the seats of a shared queue, and the election of the thread that polls for all.
//!
//! Input: commands of seats, answers of the one queue behind it. Output: each seat's answers. Invariants: while a
//! waiting seat is owed answers, either a thread polls (the leader, or the queue's thread), or a waiter has been
//! notified to poll; each seat is notified as its own policy says, whatever the policies of other seats.
//!
//! ```text
//!   wait:  no answer --no leader--> lead: arm, sleep outside the lock, poll, deliver, notify the next leader
//!                    --a leader---> follow: wait for a notification
//! ```
//!
//! Lock order: there is one lock. No callback runs, and no thread sleeps, while it is held.

use headwater_host::clock::Nanos;
use headwater_host::sync::{Condvar, Mutex, MutexGuard};
use headwater_host::width::narrow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

#[path = "seat_policy.rs"]
mod seat_policy;
pub(crate) use seat_policy::SeatPolicy;

/// The queue behind an exchange.
pub(crate) trait ExchangeQueue {
    /// A command.
    type Command;
    /// The answer to a command.
    type Answer;
    /// The error of a rejected command, which it returns.
    type Rejected;
    /// The error of a queue that has ended.
    type Error;

    /// Submits a command; `Ok` means exactly one answer with this token.
    fn submit(&mut self, command: Self::Command, token: u64) -> Result<(), Self::Rejected>;

    /// Rings the doorbell for submitted commands, and takes the next answer if one has arrived.
    fn poll_next(&mut self) -> Result<Option<(u64, Self::Answer)>, Self::Error>;

    /// Arms the notification of the next answer. Returns false if the caller must poll again now.
    fn arm(&mut self) -> Result<bool, Self::Error>;
}

/// Returns the token of a command: its seat, and its slot there.
pub(crate) fn token(seat: u32, slot: u32) -> u64 {
    u64::from(seat) << 32 | u64::from(slot)
}

/// Returns the seat of a command.
pub(crate) fn seat_of(token: u64) -> u32 {
    narrow(token >> 32)
}

fn split_token(token: u64) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h] = token.to_le_bytes();
    let seat = u32::from_le_bytes([e, f, g, h]);
    (seat as usize, u32::from_le_bytes([a, b, c, d]))
}

/// A callback that notifies a seat of answers.
#[derive(Clone)]
pub(crate) struct WakeCallback(Arc<dyn Fn() + Send + Sync>);

impl WakeCallback {
    pub(crate) fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn run(&self) {
        (self.0)();
    }
}

impl fmt::Debug for WakeCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeCallback")
    }
}

#[derive(Debug)]
struct SeatState<A> {
    answers: VecDeque<(u32, A)>,
    /// The number of commands whose answer this seat has not taken.
    outstanding: u32,
    /// True while a thread of this seat waits for a notification.
    is_waiting: bool,
    /// The number of answers found since the last notification.
    unnotified: u32,
    /// The time at which the queue's thread first saw them.
    unnotified_since: Option<Nanos>,
    policy: SeatPolicy,
    wakeup: Arc<Condvar>,
    callback: Option<WakeCallback>,
    /// True if the seat is free; its answers are dropped.
    is_free: bool,
}

impl<A> SeatState<A> {
    fn new() -> Self {
        Self {
            answers: VecDeque::new(),
            outstanding: 0,
            is_waiting: false,
            unnotified: 0,
            unnotified_since: None,
            policy: SeatPolicy::Polls,
            wakeup: Arc::new(Condvar::new()),
            callback: None,
            is_free: false,
        }
    }
}

impl<A> SeatState<A> {
    /// Notifies the seat of its answers.
    fn notify(&mut self, calls: &mut WakeCallbacks) {
        (self.unnotified, self.unnotified_since) = (0, None);
        if self.is_waiting {
            self.wakeup.notify_one();
        }
        calls.extend(self.callback.clone());
    }
}

/// The thread that polls for all seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollLeader {
    Vacant,
    /// A waiting seat: it polls, or sleeps until the device has an answer.
    User,
    /// The queue's own thread, which stays the leader.
    Thread,
    /// The queue's own thread while it waits for commands.
    IdleThread,
}

impl PollLeader {
    fn is_thread(self) -> bool {
        matches!(self, Self::Thread | Self::IdleThread)
    }
}

struct ExchangeState<L: ExchangeQueue> {
    queue: L,
    seats: Vec<SeatState<L::Answer>>,
    lead: PollLeader,
    /// The number of the last thread that began.
    begun: u32,
    /// The threads up to this number have to end. A thread may begin while an earlier one still ends.
    stopped: u32,
}

/// The exchange of commands and answers between the seats and their queue.
pub(crate) struct CompletionExchange<L: ExchangeQueue> {
    inner: Mutex<ExchangeState<L>>,
    work: Condvar,
}

impl<L: ExchangeQueue> fmt::Debug for CompletionExchange<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompletionExchange")
    }
}

/// The callbacks to run once the lock is released.
type WakeCallbacks = Vec<WakeCallback>;

impl<L: ExchangeQueue> CompletionExchange<L> {
    pub(crate) fn new(queue: L) -> Self {
        let inner =
            ExchangeState { queue, seats: Vec::new(), lead: PollLeader::Vacant, begun: 0, stopped: 0 };
        Self { inner: Mutex::new(inner), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ExchangeState<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_queue(self) -> L {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).queue
    }

    /// Runs `work` on the queue, under the lock.
    pub(crate) fn with_queue<T>(&self, work: impl FnOnce(&mut L) -> T) -> T {
        work(&mut self.lock().queue)
    }

    /// Allocates a seat: a free one that is owed nothing, or a new one.
    pub(crate) fn allocate_seat(&self) -> u32 {
        let mut inner = self.lock();
        let left = inner.seats.iter().position(|state| state.is_free && state.outstanding == 0);
        let seat = left.unwrap_or(inner.seats.len());
        if left.is_none() {
            inner.seats.push(SeatState::new());
        } else {
            inner.seats[seat] = SeatState::new();
        }
        narrow(seat)
    }

    /// Frees a seat: answers that still arrive are dropped, with their buffers.
    pub(crate) fn free_seat(&self, seat: u32) {
        let mut inner = self.lock();
        let state = inner.seat_state(seat);
        state.is_free = true;
        state.callback = None;
        state.outstanding = state.outstanding.saturating_sub(narrow(state.answers.len()));
        let dropped = std::mem::take(&mut state.answers);
        drop(inner);
        drop(dropped);
    }

    /// Assigns commands that were in flight before the exchange existed to this seat.
    pub(crate) fn adopt(&self, seat: u32, in_flight: u32) {
        self.lock().seat_state(seat).outstanding += in_flight;
    }

    pub(crate) fn set_callback(&self, seat: u32, call: Option<WakeCallback>) {
        self.lock().seat_state(seat).callback = call;
    }

    /// Returns the number of commands whose answer this seat has not taken.
    pub(crate) fn outstanding(&self, seat: u32) -> u32 {
        self.lock().seat_state(seat).outstanding
    }

    pub(crate) fn has_answer(&self, seat: u32) -> bool {
        let mut inner = self.lock();
        let state = inner.seat_state(seat);
        state.unnotified = 0;
        !state.answers.is_empty()
    }

    pub(crate) fn submit(&self, seat: u32, command: L::Command, slot: u32) -> Result<(), L::Rejected> {
        let mut inner = self.lock();
        inner.queue.submit(command, token(seat, slot))?;
        inner.seat_state(seat).outstanding += 1;
        if inner.lead == PollLeader::IdleThread {
            inner.lead = PollLeader::Thread;
            drop(inner);
            // An earlier thread of the queue may still wait too.
            self.work.notify_all();
        }
        Ok(())
    }

    /// Takes the next answer of a seat. Polls the queue, unless the queue's thread polls for this seat.
    pub(crate) fn take(&self, seat: u32) -> Result<Option<(u32, L::Answer)>, L::Error> {
        let mut inner = self.lock();
        let mut calls = WakeCallbacks::new();
        let mut polled = Ok(());
        let polls = !inner.lead.is_thread() || inner.seat_state(seat).policy == SeatPolicy::Polls;
        if inner.seat_state(seat).answers.is_empty() && polls {
            polled = inner.deliver_all(&mut calls);
        }
        let state = inner.seat_state(seat);
        state.unnotified = 0;
        let answer = state.answers.pop_front();
        state.outstanding -= u32::from(answer.is_some());
        drop(inner);
        calls.iter().for_each(WakeCallback::run);
        match answer {
            None => polled.map(|()| None),
            some => Ok(some),
        }
    }

    /// Sleeps until the seat has an answer, it is owed none, or the time has passed; the sleep may also end spuriously.
    pub(crate) fn wait(
        &self,
        seat: u32,
        longest: Option<Duration>,
        sleep: impl FnOnce(Option<Duration>) -> Result<(), L::Error>,
    ) -> Result<(), L::Error> {
        let mut inner = self.lock();
        let state = inner.seat_state(seat);
        if !state.answers.is_empty() || state.outstanding == 0 {
            return Ok(());
        }
        if inner.lead != PollLeader::Vacant {
            // A follower that is notified to lead, but returns instead, notifies the next one.
            self.follow(inner, seat, longest);
            return Ok(());
        }
        inner.lead = PollLeader::User;
        let mut ended = inner.queue.arm();
        if let Ok(true) = ended {
            drop(inner);
            ended = sleep(longest).map(|()| true);
            inner = self.lock();
        }
        let mut calls = WakeCallbacks::new();
        let polled = inner.deliver_all(&mut calls);
        if inner.lead == PollLeader::User {
            inner.lead = PollLeader::Vacant;
        }
        inner.notify_next_leader();
        drop(inner);
        calls.iter().for_each(WakeCallback::run);
        ended.and(polled)
    }

    fn follow(&self, mut inner: MutexGuard<'_, ExchangeState<L>>, seat: u32, longest: Option<Duration>) {
        let called = inner.seat_state(seat).wakeup.clone();
        inner.seat_state(seat).is_waiting = true;
        let mut inner = match longest {
            None => called.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(longest) => called.wait_timeout(inner, longest).unwrap_or_else(PoisonError::into_inner).0,
        };
        inner.seat_state(seat).is_waiting = false;
        // Woken by an answer or by the timeout: if there is no leader now, pass the notification to lead on.
        inner.notify_next_leader();
    }

    /// Sets the completion policy of a seat.
    pub(crate) fn set_policy(&self, seat: u32, policy: SeatPolicy) {
        self.lock().seat_state(seat).policy = policy;
    }

    /// Returns true if the notification of a seat can be due by time.
    pub(crate) fn is_timed(&self) -> bool {
        self.lock().seats.iter().any(|state| state.policy.limit().is_some())
    }

    /// Notifies every seat whose first unnotified answer has waited as long as its policy allows. Returns the time at which
    /// the next seat is due.
    pub(crate) fn notify_due(&self, now: Nanos) -> Option<Nanos> {
        let mut calls = WakeCallbacks::new();
        let mut next = None;
        let mut inner = self.lock();
        for state in &mut inner.seats {
            let Some(limit) = state.policy.limit().filter(|_| state.unnotified > 0) else {
                state.unnotified_since = None;
                continue;
            };
            let due = state.unnotified_since.get_or_insert(now).after(limit);
            if due <= now {
                state.notify(&mut calls);
            } else {
                next = Some(next.map_or(due, |next: Nanos| next.min(due)));
            }
        }
        drop(inner);
        calls.iter().for_each(WakeCallback::run);
        next
    }

    /// Makes a thread of the queue the leader, and returns its number.
    pub(crate) fn begin_thread(&self) -> u32 {
        let mut inner = self.lock();
        inner.lead = PollLeader::Thread;
        inner.begun += 1;
        inner.begun
    }

    /// Signals a thread to end.
    pub(crate) fn stop_thread(&self, thread: u32) {
        let mut inner = self.lock();
        inner.stopped = inner.stopped.max(thread);
        drop(inner);
        self.work.notify_all();
    }

    /// Removes a thread as leader, and notifies every waiter to poll again, unless another thread has begun.
    pub(crate) fn end_thread(&self, thread: u32) {
        let mut inner = self.lock();
        if inner.begun != thread {
            return;
        }
        inner.lead = PollLeader::Vacant;
        for state in &mut inner.seats {
            state.wakeup.notify_one();
        }
    }

    /// Polls for the queue's thread, then runs `after` under the lock. Returns `None` when the thread has to end.
    pub(crate) fn poll_on_thread<T>(
        &self,
        thread: u32,
        after: impl FnOnce(&mut L) -> T,
    ) -> Option<Result<T, L::Error>> {
        let mut inner = self.lock();
        if inner.stopped >= thread {
            return None;
        }
        let mut calls = WakeCallbacks::new();
        let polled = inner.deliver_all(&mut calls);
        let found = after(&mut inner.queue);
        drop(inner);
        calls.iter().for_each(WakeCallback::run);
        Some(polled.map(|()| found))
    }

    /// Returns true if owed answers have not arrived.
    pub(crate) fn has_work(&self) -> bool {
        self.lock().has_outstanding()
    }

    /// Waits, as the queue's thread, until a command is in flight. Returns false when the thread has to end.
    pub(crate) fn wait_for_work(&self, thread: u32) -> bool {
        let mut inner = self.lock();
        loop {
            if inner.stopped >= thread {
                return false;
            }
            if inner.seats.iter().any(|state| state.outstanding as usize > state.answers.len()) {
                return true;
            }
            inner.lead = PollLeader::IdleThread;
            inner = self.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
            if inner.begun == thread {
                inner.lead = PollLeader::Thread;
            }
        }
    }
}

impl<L: ExchangeQueue> ExchangeState<L> {
    /// Returns the state of a seat.
    ///
    /// # Panics
    /// For a seat that was never allocated.
    fn seat_state(&mut self, seat: u32) -> &mut SeatState<L::Answer> {
        &mut self.seats[seat as usize]
    }

    /// Returns true if owed answers have not arrived.
    fn has_outstanding(&self) -> bool {
        self.seats.iter().any(|state| state.outstanding as usize > state.answers.len())
    }

    /// Polls the queue and delivers every answer to its seat.
    fn deliver_all(&mut self, calls: &mut WakeCallbacks) -> Result<(), L::Error> {
        let polled = loop {
            match self.queue.poll_next() {
                Ok(Some((token, answer))) => {
                    let (seat, slot) = split_token(token);
                    let Some(state) = self.seats.get_mut(seat) else {
                        continue;
                    };
                    if state.is_free {
                        state.outstanding = state.outstanding.saturating_sub(1);
                        continue;
                    }
                    state.answers.push_back((slot, answer));
                    state.unnotified += 1;
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let aggregates = self.lead.is_thread() && polled.is_ok();
        self.notify_seats(aggregates, calls);
        if polled.is_err() {
            self.seats.iter().for_each(|state| state.wakeup.notify_one());
        }
        polled
    }

    /// Notifies the seats that have enough answers, or all that they are owed.
    fn notify_seats(&mut self, aggregates: bool, calls: &mut WakeCallbacks) {
        for state in &mut self.seats {
            let all = state.outstanding as usize <= state.answers.len();
            let enough = if aggregates { state.policy.threshold() } else { 1 };
            if state.unnotified >= enough || (state.unnotified > 0 && all) {
                state.notify(calls);
            }
        }
    }

    /// Notifies a waiter to lead, if there is no leader.
    fn notify_next_leader(&self) {
        if self.lead == PollLeader::Vacant
            && let Some(next) = self.seats.iter().find(|state| state.is_waiting)
        {
            next.wakeup.notify_one();
        }
    }
}

#[cfg(all(test, loom))]
#[path = "models.rs"]
mod models;
