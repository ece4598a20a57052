//! Who gets which answer, and who looks for all.
//!
//! In: commands of seats, answers of the one queue behind it. Out: each seat's answers. Invariant: while answers are owed to
//! somebody who waits, either somebody looks (the leader, or the queue's thread), or one who waits has been called to.
//!
//! ```text
//!   wait:  nothing mine --nobody looks--> lead: arm, sleep outside the lock, look, hand out, call the next leader
//!                       --somebody does-> follow: wait to be called
//! ```
//!
//! Lock order: there is one lock. Nobody is called, and nobody sleeps, while it is held.

use headwater_host::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The queue behind an exchange.
pub(crate) trait Line {
    /// What is submitted.
    type Command;
    /// What comes of it.
    type Answer;
    /// Why a command is not taken; it comes back inside.
    type Rejected;
    /// Why there is no queue any more.
    type Error;

    /// Takes a command; `Ok` means exactly one answer with this token.
    fn submit(&mut self, command: Self::Command, token: u64) -> Result<(), Self::Rejected>;

    /// Shows the device what was submitted, and takes the next answer if one has come.
    fn look(&mut self) -> Result<Option<(u64, Self::Answer)>, Self::Error>;

    /// Asks to be told of the next answer. False: look again now.
    fn arm(&mut self) -> Result<bool, Self::Error>;
}

/// The token of a command: whose it is, and its place there.
pub(crate) fn token(seat: u32, place: u32) -> u64 {
    u64::from(seat) << 32 | u64::from(place)
}

fn parts(token: u64) -> (usize, u32) {
    let [a, b, c, d, e, f, g, h] = token.to_le_bytes();
    let seat = u32::from_le_bytes([e, f, g, h]);
    (usize::try_from(seat).unwrap_or(usize::MAX), u32::from_le_bytes([a, b, c, d]))
}

/// What is done when something was found for a seat.
#[derive(Clone)]
pub(crate) struct Call(Arc<dyn Fn() + Send + Sync>);

impl Call {
    pub(crate) fn new(call: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn run(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Call")
    }
}

#[derive(Debug)]
struct Mail<A> {
    answers: VecDeque<(u32, A)>,
    /// Commands whose answer this seat has not taken.
    owed: u32,
    /// It waits to be called.
    waits: bool,
    /// Something was found that it was not called for.
    untold: u32,
    called: Arc<Condvar>,
    call: Option<Call>,
    /// Nobody sits here; answers are dropped.
    empty: bool,
}

impl<A> Mail<A> {
    fn new() -> Self {
        Self {
            answers: VecDeque::new(),
            owed: 0,
            waits: false,
            untold: 0,
            called: Arc::new(Condvar::new()),
            call: None,
            empty: false,
        }
    }
}

/// Who looks for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Nobody,
    /// One who waits: it looks, or sleeps until it should.
    User,
    /// The queue's own thread, always.
    Thread,
    /// That thread, which waits for something to do.
    IdleThread,
}

impl Lead {
    fn is_thread(self) -> bool {
        matches!(self, Self::Thread | Self::IdleThread)
    }
}

struct Inner<L: Line> {
    line: L,
    seats: Vec<Mail<L::Answer>>,
    lead: Lead,
    /// The thread is to end.
    stopping: bool,
    /// Answers that are enough for the thread to tell of.
    enough: u32,
}

/// The exchange.
pub(crate) struct Exchange<L: Line> {
    inner: Mutex<Inner<L>>,
    work: Condvar,
}

impl<L: Line> fmt::Debug for Exchange<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

/// Whom to call once the lock is open.
type Calls = Vec<Call>;

impl<L: Line> Exchange<L> {
    pub(crate) fn new(line: L) -> Self {
        let inner = Inner { line, seats: Vec::new(), lead: Lead::Nobody, stopping: false, enough: 1 };
        Self { inner: Mutex::new(inner), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn into_line(self) -> L {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).line
    }

    /// Something else with the queue, under the lock.
    pub(crate) fn with_line<T>(&self, work: impl FnOnce(&mut L) -> T) -> T {
        work(&mut self.lock().line)
    }

    /// A seat: one that was left and is owed nothing, or a new one.
    pub(crate) fn sit_down(&self) -> u32 {
        let mut inner = self.lock();
        let left = inner.seats.iter().position(|mail| mail.empty && mail.owed == 0);
        let seat = left.unwrap_or(inner.seats.len());
        if left.is_none() {
            inner.seats.push(Mail::new());
        } else {
            inner.seats[seat] = Mail::new();
        }
        u32::try_from(seat).unwrap_or(u32::MAX)
    }

    /// The seat is left: answers that still come are dropped, with what they lent.
    pub(crate) fn stand_up(&self, seat: u32) {
        let mut inner = self.lock();
        let mail = inner.mail(seat);
        mail.empty = true;
        mail.call = None;
        let taken = u32::try_from(mail.answers.len()).unwrap_or(u32::MAX);
        mail.owed = mail.owed.saturating_sub(taken);
        let dropped = std::mem::take(&mut mail.answers);
        drop(inner);
        drop(dropped);
    }

    /// Commands that were in flight before there was an exchange are this seat's.
    pub(crate) fn adopt(&self, seat: u32, in_flight: u32) {
        self.lock().mail(seat).owed += in_flight;
    }

    pub(crate) fn set_call(&self, seat: u32, call: Option<Call>) {
        self.lock().mail(seat).call = call;
    }

    /// Commands of this seat whose answer it has not taken.
    pub(crate) fn owed(&self, seat: u32) -> u32 {
        self.lock().mail(seat).owed
    }

    pub(crate) fn has_answer(&self, seat: u32) -> bool {
        let mut inner = self.lock();
        let mail = inner.mail(seat);
        mail.untold = 0;
        !mail.answers.is_empty()
    }

    pub(crate) fn submit(&self, seat: u32, command: L::Command, place: u32) -> Result<(), L::Rejected> {
        let mut inner = self.lock();
        inner.line.submit(command, token(seat, place))?;
        inner.mail(seat).owed += 1;
        if inner.lead == Lead::IdleThread {
            inner.lead = Lead::Thread;
            drop(inner);
            self.work.notify_one();
        }
        Ok(())
    }

    /// The next answer of a seat. Looks, unless a thread does.
    pub(crate) fn take(&self, seat: u32) -> Result<Option<(u32, L::Answer)>, L::Error> {
        let mut inner = self.lock();
        let mut calls = Calls::new();
        let mut looked = Ok(());
        if inner.mail(seat).answers.is_empty() && !inner.lead.is_thread() {
            looked = inner.hand_out(&mut calls);
        }
        let mail = inner.mail(seat);
        mail.untold = 0;
        let answer = mail.answers.pop_front();
        mail.owed -= u32::from(answer.is_some());
        drop(inner);
        calls.iter().for_each(Call::run);
        match answer {
            None => looked.map(|()| None),
            some => Ok(some),
        }
    }

    /// Sleeps until the seat has an answer, nothing is owed to it, or the time is over; it may also end for no reason.
    pub(crate) fn wait(
        &self,
        seat: u32,
        longest: Option<Duration>,
        sleep: impl FnOnce(Option<Duration>) -> Result<(), L::Error>,
    ) -> Result<(), L::Error> {
        let mut inner = self.lock();
        let mail = inner.mail(seat);
        if !mail.answers.is_empty() || mail.owed == 0 {
            return Ok(());
        }
        if inner.lead != Lead::Nobody {
            // Who is called to lead and goes away instead calls the next.
            self.follow(inner, seat, longest);
            return Ok(());
        }
        inner.lead = Lead::User;
        let mut ended = inner.line.arm();
        if let Ok(true) = ended {
            drop(inner);
            ended = sleep(longest).map(|()| true);
            inner = self.lock();
        }
        let mut calls = Calls::new();
        let looked = inner.hand_out(&mut calls);
        if inner.lead == Lead::User {
            inner.lead = Lead::Nobody;
        }
        inner.call_leader();
        drop(inner);
        calls.iter().for_each(Call::run);
        ended.and(looked)
    }

    fn follow(&self, mut inner: MutexGuard<'_, Inner<L>>, seat: u32, longest: Option<Duration>) {
        let called = inner.mail(seat).called.clone();
        inner.mail(seat).waits = true;
        let mut inner = match longest {
            None => called.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(longest) => called.wait_timeout(inner, longest).unwrap_or_else(PoisonError::into_inner).0,
        };
        inner.mail(seat).waits = false;
        // Called for an answer, or at the end of the time: if the leader left meanwhile, the call to lead goes on.
        inner.call_leader();
    }

    /// The queue's thread tells of so many answers at once.
    pub(crate) fn set_enough(&self, answers: u32) {
        self.lock().enough = answers.max(1);
    }

    /// Answers that were found and not told of.
    pub(crate) fn untold(&self) -> u32 {
        self.lock().seats.iter().map(|mail| mail.untold).sum()
    }

    /// Tells of them.
    pub(crate) fn tell_all(&self) {
        let mut calls = Calls::new();
        self.lock().tell(1, &mut calls);
        calls.iter().for_each(Call::run);
    }

    /// A thread leads from now on.
    pub(crate) fn begin_thread(&self) {
        let mut inner = self.lock();
        inner.lead = Lead::Thread;
        inner.stopping = false;
    }

    /// The thread is to end.
    pub(crate) fn stop_thread(&self) {
        self.lock().stopping = true;
        self.work.notify_one();
    }

    /// Nobody leads any more: whoever waits does it again.
    pub(crate) fn end_thread(&self) {
        let mut inner = self.lock();
        inner.lead = Lead::Nobody;
        for mail in &mut inner.seats {
            mail.called.notify_one();
        }
    }

    /// A look of the queue's thread, which then does what `after` finds under the lock. `None` when the thread is to end.
    pub(crate) fn thread_turn<T>(&self, after: impl FnOnce(&mut L) -> T) -> Option<Result<T, L::Error>> {
        let mut inner = self.lock();
        if inner.stopping {
            return None;
        }
        let mut calls = Calls::new();
        let looked = inner.hand_out(&mut calls);
        let found = after(&mut inner.line);
        drop(inner);
        calls.iter().for_each(Call::run);
        Some(looked.map(|()| found))
    }

    /// Whether answers are owed that have not come.
    pub(crate) fn has_work(&self) -> bool {
        self.lock().owes()
    }

    /// The thread waits until there is something to do. False when it is to end.
    pub(crate) fn thread_rest(&self) -> bool {
        let mut inner = self.lock();
        loop {
            if inner.stopping {
                return false;
            }
            if inner
                .seats
                .iter()
                .any(|mail| mail.owed > u32::try_from(mail.answers.len()).unwrap_or(u32::MAX))
            {
                return true;
            }
            inner.lead = Lead::IdleThread;
            inner = self.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.lead = Lead::Thread;
        }
    }
}

impl<L: Line> Inner<L> {
    /// # Panics
    /// For a seat that nobody was given.
    fn mail(&mut self, seat: u32) -> &mut Mail<L::Answer> {
        &mut self.seats[seat as usize]
    }

    /// Whether answers are owed that have not come.
    fn owes(&self) -> bool {
        self.seats.iter().any(|mail| mail.owed > u32::try_from(mail.answers.len()).unwrap_or(u32::MAX))
    }

    /// Everything that has come, to whose it is.
    fn hand_out(&mut self, calls: &mut Calls) -> Result<(), L::Error> {
        let looked = loop {
            match self.line.look() {
                Ok(Some((token, answer))) => {
                    let (seat, place) = parts(token);
                    let Some(mail) = self.seats.get_mut(seat) else {
                        continue;
                    };
                    if mail.empty {
                        mail.owed = mail.owed.saturating_sub(1);
                        continue;
                    }
                    mail.answers.push_back((place, answer));
                    mail.untold += 1;
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let enough = if self.lead.is_thread() && looked.is_ok() { self.enough } else { 1 };
        self.tell(enough, calls);
        if looked.is_err() {
            self.seats.iter().for_each(|mail| mail.called.notify_one());
        }
        looked
    }

    /// Calls those for whom there is enough, or all that they wait for.
    fn tell(&mut self, enough: u32, calls: &mut Calls) {
        for mail in &mut self.seats {
            let all = mail.owed <= u32::try_from(mail.answers.len()).unwrap_or(u32::MAX);
            if mail.untold >= enough || (mail.untold > 0 && all) {
                mail.untold = 0;
                if mail.waits {
                    mail.called.notify_one();
                }
                calls.extend(mail.call.clone());
            }
        }
    }

    /// Whoever still waits has nobody who looks: one of them leads now.
    fn call_leader(&self) {
        if self.lead == Lead::Nobody
            && let Some(next) = self.seats.iter().find(|mail| mail.waits)
        {
            next.called.notify_one();
        }
    }
}

#[cfg(all(test, loom))]
#[path = "models.rs"]
mod models;
