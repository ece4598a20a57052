//! The distribution of answers among the seats of a shared queue, and the election of the thread that polls for all.
//!
//! Input: commands of seats, answers of the one queue behind it. Output: each seat's answers. Invariant: while a
//! waiting seat is owed answers, either a thread polls (the leader, or the queue's thread), or a waiter has been
//! notified to poll.
//!
//! ```text
//!   wait:  no answer --no leader--> lead: arm, sleep outside the lock, poll, deliver, notify the next leader
//!                    --a leader---> follow: wait for a notification
//! ```
//!
//! Lock order: there is one lock. No callback runs, and no thread sleeps, while it is held.

use headwater_host::sync::{Condvar, Mutex, MutexGuard};
use headwater_host::width::narrow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

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
            wakeup: Arc::new(Condvar::new()),
            callback: None,
            is_free: false,
        }
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
    /// True once the thread has to end.
    stopping: bool,
    /// The number of answers from which the thread notifies a seat.
    notify_threshold: u32,
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
        let inner = ExchangeState {
            queue,
            seats: Vec::new(),
            lead: PollLeader::Vacant,
            stopping: false,
            notify_threshold: 1,
        };
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
            self.work.notify_one();
        }
        Ok(())
    }

    /// Takes the next answer of a seat. Polls the queue unless its thread does.
    pub(crate) fn take(&self, seat: u32) -> Result<Option<(u32, L::Answer)>, L::Error> {
        let mut inner = self.lock();
        let mut calls = WakeCallbacks::new();
        let mut polled = Ok(());
        if inner.seat_state(seat).answers.is_empty() && !inner.lead.is_thread() {
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

    /// Sets the number of answers from which the queue's thread notifies a seat.
    pub(crate) fn set_notify_threshold(&self, answers: u32) {
        self.lock().notify_threshold = answers.max(1);
    }

    /// Returns the number of answers without a notification.
    pub(crate) fn unnotified(&self) -> u32 {
        self.lock().seats.iter().map(|state| state.unnotified).sum()
    }

    /// Notifies every seat with such answers.
    pub(crate) fn notify_all(&self) {
        let mut calls = WakeCallbacks::new();
        self.lock().notify_seats(1, &mut calls);
        calls.iter().for_each(WakeCallback::run);
    }

    /// Makes the queue's thread the leader.
    pub(crate) fn begin_thread(&self) {
        let mut inner = self.lock();
        inner.lead = PollLeader::Thread;
        inner.stopping = false;
    }

    /// Signals the thread to end.
    pub(crate) fn stop_thread(&self) {
        self.lock().stopping = true;
        self.work.notify_one();
    }

    /// Removes the thread as leader, and notifies every waiter to poll again.
    pub(crate) fn end_thread(&self) {
        let mut inner = self.lock();
        inner.lead = PollLeader::Vacant;
        for state in &mut inner.seats {
            state.wakeup.notify_one();
        }
    }

    /// Polls for the queue's thread, then runs `after` under the lock. Returns `None` when the thread has to end.
    pub(crate) fn poll_on_thread<T>(&self, after: impl FnOnce(&mut L) -> T) -> Option<Result<T, L::Error>> {
        let mut inner = self.lock();
        if inner.stopping {
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
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut inner = self.lock();
        loop {
            if inner.stopping {
                return false;
            }
            if inner.seats.iter().any(|state| state.outstanding as usize > state.answers.len()) {
                return true;
            }
            inner.lead = PollLeader::IdleThread;
            inner = self.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.lead = PollLeader::Thread;
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
        let enough = if self.lead.is_thread() && polled.is_ok() { self.notify_threshold } else { 1 };
        self.notify_seats(enough, calls);
        if polled.is_err() {
            self.seats.iter().for_each(|state| state.wakeup.notify_one());
        }
        polled
    }

    /// Notifies the seats that have enough answers, or all that they are owed.
    fn notify_seats(&mut self, enough: u32, calls: &mut WakeCallbacks) {
        for state in &mut self.seats {
            let all = state.outstanding as usize <= state.answers.len();
            if state.unnotified >= enough || (state.unnotified > 0 && all) {
                state.unnotified = 0;
                if state.is_waiting {
                    state.wakeup.notify_one();
                }
                calls.extend(state.callback.clone());
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
