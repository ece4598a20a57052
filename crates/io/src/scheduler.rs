//! Which of the requests that wait in a handle goes to the device next.
//!
//! In: requests as [`Waiting`] (a number, a class, bytes, a deadline), and the time as an argument. Out: numbers, one at a
//! time. Invariant: what was pushed comes out exactly once, by [`pop`](Scheduler::pop) or by
//! [`remove`](Scheduler::remove), whichever policy was chosen in between; no policy lets a request wait for ever while
//! others are served.
//!
//! | policy | next is | nobody starves because |
//! | --- | --- | --- |
//! | [`Fifo`](Scheduling::Fifo) | who came first | it is a queue |
//! | [`Deadline`](Scheduling::Deadline) | whose deadline is first | every request has one, and they only come nearer |
//! | [`Share`](Scheduling::Share) | whose class had least for its weight, by bytes | weights are at least 1 |
//! | [`Priority`](Scheduling::Priority) | whose class is most urgent | a class is overtaken a bounded number of times |

mod deadline;
mod merge;
mod priority;
mod share;
mod window;

use deadline::Deadlines;
use headwater_host::clock::Nanos;
pub use merge::{Extent, Joined, Merger, Merging, Side};
use priority::Priorities;
use share::Shares;
use std::collections::VecDeque;
pub use window::Window;

/// How many classes of requests a handle tells apart.
pub const CLASSES: usize = 8;

/// A class of requests: what shares, priorities, deadlines and selectors go by. What it means is the policy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// That of requests that name none. By priority the most urgent.
    pub const FIRST: Self = Self(0);
    /// By priority the least urgent.
    pub const LAST: Self = Self(7);

    /// Class `number`, or `None` from [`CLASSES`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::LAST.0 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Its place in a table of [`CLASSES`].
    #[must_use]
    #[inline]
    pub(crate) fn place(self) -> usize {
        usize::from(self.0) % CLASSES
    }
}

/// What becomes of a request that has not begun by its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Late {
    /// It is served all the same, first of all.
    #[default]
    Serve,
    /// It is given up: answered [`ABORT_REQUESTED`](headwater_nvme::spec::status::Status::ABORT_REQUESTED) without having
    /// been begun. Under overload this keeps what is served in time.
    GiveUp,
}

/// A policy, and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// First come, first served. Costs nothing while the queues have room.
    #[default]
    Fifo,
    /// Earliest deadline first. Fewer commands are kept at the device when it answers later than half of the shortest.
    Deadline {
        /// By class: how long after its arrival a request that names no deadline of its own should be answered.
        within: [Nanos; CLASSES],
        /// What becomes of those that cannot be.
        late: Late,
    },
    /// Bytes in proportion to weights, among the classes that have something waiting.
    Share {
        /// By class; 0 counts as 1.
        weights: [u16; CLASSES],
    },
    /// The most urgent class first: 0 before 1, and so on.
    Priority {
        /// How often in a row a class that waits may be overtaken by more urgent ones.
        overtakes_max: u32,
    },
}

impl Scheduling {
    /// Earliest deadline first, the same for each class, late ones served.
    #[must_use]
    pub const fn deadline(within: Nanos) -> Self {
        Self::Deadline { within: [within; CLASSES], late: Late::Serve }
    }

    /// Weighted shares: one weight for each class, in order; the rest have 1.
    #[must_use]
    pub fn share(given: &[u16]) -> Self {
        let mut weights = [1; CLASSES];
        for (weight, given) in weights.iter_mut().zip(given) {
            *weight = (*given).max(1);
        }
        Self::Share { weights }
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Names it.
    pub slot: u32,
    /// Its class.
    pub class: Class,
    /// What it moves; of one that moves nothing, what it is held to cost.
    pub bytes: u64,
    /// When it came.
    pub arrived: Nanos,
    /// When it should be answered, if it says so itself.
    pub deadline: Option<Nanos>,
}

/// What a scheduler says to a device that has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This one.
    Serve(u32),
    /// Answer this one without beginning it: its deadline is over.
    GiveUp(u32),
}

/// A request with its place in the order of arrival.
#[derive(Clone, Copy, Debug)]
struct Queued {
    waiting: Waiting,
    order: u64,
}

#[derive(Debug)]
enum State {
    Fifo(VecDeque<Queued>),
    Deadline(Deadlines),
    Share(Shares),
    Priority(Priorities),
}

impl State {
    fn of(scheduling: &Scheduling) -> Self {
        match scheduling {
            Scheduling::Fifo => Self::Fifo(VecDeque::new()),
            Scheduling::Deadline { within, late } => Self::Deadline(Deadlines::new(*within, *late)),
            Scheduling::Share { weights } => Self::Share(Shares::new(*weights)),
            Scheduling::Priority { overtakes_max } => Self::Priority(Priorities::new(*overtakes_max)),
        }
    }
}

/// The requests that wait, under one policy at a time.
#[derive(Debug)]
pub struct Scheduler {
    scheduling: Scheduling,
    state: State,
    waiting: usize,
    arrivals: u64,
}

impl Scheduler {
    /// Nothing waits.
    #[must_use]
    pub fn new(scheduling: Scheduling) -> Self {
        Self { state: State::of(&scheduling), scheduling, waiting: 0, arrivals: 0 }
    }

    /// The policy.
    #[must_use]
    pub fn scheduling(&self) -> &Scheduling {
        &self.scheduling
    }

    /// How many wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nothing waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Another policy from now on, for what waits too, in the order in which it came.
    pub fn change(&mut self, scheduling: Scheduling) {
        let mut all = match &mut self.state {
            State::Fifo(queue) => std::mem::take(queue).into(),
            State::Deadline(deadlines) => deadlines.take_all(),
            State::Share(shares) => shares.take_all(),
            State::Priority(priorities) => priorities.take_all(),
        };
        all.sort_unstable_by_key(|queued: &Queued| queued.order);
        self.state = State::of(&scheduling);
        self.scheduling = scheduling;
        for queued in all {
            self.put(queued);
        }
    }

    /// A request comes.
    pub fn push(&mut self, waiting: Waiting) {
        self.arrivals += 1;
        self.waiting += 1;
        self.put(Queued { waiting, order: self.arrivals });
    }

    fn put(&mut self, queued: Queued) {
        match &mut self.state {
            State::Fifo(queue) => queue.push_back(queued),
            State::Deadline(deadlines) => deadlines.push(queued),
            State::Share(shares) => shares.push(queued),
            State::Priority(priorities) => priorities.push(queued),
        }
    }

    /// A request that waits has become longer: others go with it.
    pub fn extend(&mut self, class: Class, bytes: u64) {
        if let State::Share(shares) = &mut self.state {
            shares.charge(class, bytes);
        }
    }

    /// The next, for a device that has room.
    pub fn pop(&mut self, now: Nanos) -> Option<Next> {
        let next = match &mut self.state {
            State::Fifo(queue) => queue.pop_front().map(|queued| Next::Serve(queued.waiting.slot)),
            State::Deadline(deadlines) => deadlines.pop(now),
            State::Share(shares) => shares.pop().map(Next::Serve),
            State::Priority(priorities) => priorities.pop().map(Next::Serve),
        };
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// Takes a request out: it was cancelled. False if it does not wait here.
    pub fn remove(&mut self, slot: u32) -> bool {
        let removed = match &mut self.state {
            State::Fifo(queue) => take_from(queue, slot),
            State::Deadline(deadlines) => deadlines.remove(slot),
            State::Share(shares) => shares.remove(slot),
            State::Priority(priorities) => priorities.remove(slot),
        };
        self.waiting -= usize::from(removed);
        removed
    }

    /// How late a device may answer before fewer commands are kept there, if the policy minds.
    #[must_use]
    pub fn device_target(&self) -> Option<Nanos> {
        match &self.scheduling {
            Scheduling::Deadline { within, .. } => {
                let shortest = within.iter().min().copied().unwrap_or_default();
                Some(Nanos(shortest.0 / 2))
            }
            _ => None,
        }
    }
}

fn take_from(queue: &mut VecDeque<Queued>, slot: u32) -> bool {
    let at = queue.iter().position(|queued| queued.waiting.slot == slot);
    at.and_then(|at| queue.remove(at)).is_some()
}

#[cfg(test)]
mod tests;
