//! Chooses the next of the requests that wait in a handle.
//!
//! Input: requests as [`WaitingRequest`] (a slot, a class, bytes, a deadline), and the time as an argument. Output: slots, one
//! at a time. Invariant: each pushed request comes out exactly once, by [`pop`](RequestScheduler::pop) or
//! [`remove`](RequestScheduler::remove), also across changes of policy; no policy lets a request wait for ever while it serves
//! later ones.
//!
//! | policy | next is | no starvation because |
//! | --- | --- | --- |
//! | [`Fifo`](SchedulingPolicy::Fifo) | the first to arrive | requests leave in arrival order |
//! | [`Deadline`](SchedulingPolicy::Deadline) | the earliest deadline | every request has one, and deadlines come nearer |
//! | [`Share`](SchedulingPolicy::Share) | the class with the fewest bytes for its weight | weights are at least 1 |
//! | [`Priority`](SchedulingPolicy::Priority) | the most urgent class | a class is overtaken a bounded number of times |

mod deadline;
mod merge;
mod priority;
mod share;
mod window;

use deadline::DeadlineQueue;
use headwater_host::clock::Nanos;
pub use merge::{MergeExtent, MergePolicy, MergeResult, MergeSide, RequestMerger};
use priority::PriorityQueues;
use share::FairShares;
use std::collections::VecDeque;
pub use window::InFlightWindow;

/// The number of request classes of a handle.
pub const CLASSES: usize = 8;

/// A class of requests, used by shares, priorities, deadlines and selectors. The policy defines its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestClass(u8);

impl RequestClass {
    /// The default class. By priority the most urgent.
    pub const FIRST: Self = Self(0);
    /// The last class. By priority the least urgent.
    pub const LAST: Self = Self(7);

    /// Returns class `number`, or `None` from [`CLASSES`] on.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::LAST.0 { Some(Self(number)) } else { None }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns its index in a table of [`CLASSES`].
    #[must_use]
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0) % CLASSES
    }
}

/// The treatment of a request that was not submitted by its deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// The request is still served, before all later ones.
    #[default]
    Serve,
    /// The request is cancelled: it completes with
    /// [`ABORT_REQUESTED`](headwater_nvme::spec::status::Status::ABORT_REQUESTED) without submission. Under overload
    /// this keeps the served requests in time.
    Cancel,
}

/// A scheduling policy with its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served. It costs nothing while the queues have room.
    #[default]
    Fifo,
    /// Earliest deadline first. Fewer commands are kept in flight when latency exceeds half of the shortest deadline.
    Deadline {
        /// The default deadline of each class, relative to arrival.
        deadlines: [Nanos; CLASSES],
        /// The treatment of late requests.
        late_policy: LatePolicy,
    },
    /// Bytes in proportion to weights, among the classes with waiting requests.
    Share {
        /// The weight of each class; 0 counts as 1.
        weights: [u16; CLASSES],
    },
    /// The most urgent class first: 0 before 1, and so on.
    Priority {
        /// The most times in a row that more urgent classes may overtake a waiting one.
        overtakes_max: u32,
    },
}

impl SchedulingPolicy {
    /// Returns an earliest-deadline-first policy with one deadline for all classes, which serves late requests.
    #[must_use]
    pub const fn deadline(within: Nanos) -> Self {
        Self::Deadline { deadlines: [within; CLASSES], late_policy: LatePolicy::Serve }
    }

    /// Returns a policy of weighted shares: one weight for each class, in order; remaining classes have 1.
    #[must_use]
    pub fn share(given: &[u16]) -> Self {
        let mut weights = [1; CLASSES];
        for (weight, given) in weights.iter_mut().zip(given) {
            *weight = (*given).max(1);
        }
        Self::Share { weights }
    }
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// The slot that identifies it.
    pub slot: u32,
    /// Its class.
    pub class: RequestClass,
    /// The bytes it moves, or its nominal cost if it moves none.
    pub bytes: u64,
    /// The time of arrival.
    pub arrived_at: Nanos,
    /// Its own deadline, if it has one.
    pub deadline: Option<Nanos>,
}

/// The scheduler's decision for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerDecision {
    /// Submit this request.
    Serve(u32),
    /// Cancel this request without submission: its deadline has passed.
    Cancel(u32),
}

/// A waiting request with its arrival number.
#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    waiting: WaitingRequest,
    order: u64,
}

#[derive(Debug)]
enum SchedulerState {
    Fifo(VecDeque<QueuedRequest>),
    Deadline(DeadlineQueue),
    Share(FairShares),
    Priority(PriorityQueues),
}

impl SchedulerState {
    fn of(scheduling: &SchedulingPolicy) -> Self {
        match scheduling {
            SchedulingPolicy::Fifo => Self::Fifo(VecDeque::new()),
            SchedulingPolicy::Deadline { deadlines: within, late_policy: late } => {
                Self::Deadline(DeadlineQueue::new(*within, *late))
            }
            SchedulingPolicy::Share { weights } => Self::Share(FairShares::new(*weights)),
            SchedulingPolicy::Priority { overtakes_max } => {
                Self::Priority(PriorityQueues::new(*overtakes_max))
            }
        }
    }
}

/// The waiting requests under one policy.
#[derive(Debug)]
pub struct RequestScheduler {
    scheduling: SchedulingPolicy,
    state: SchedulerState,
    waiting: usize,
    arrivals: u64,
}

impl RequestScheduler {
    /// Returns an empty scheduler.
    #[must_use]
    pub fn new(scheduling: SchedulingPolicy) -> Self {
        Self { state: SchedulerState::of(&scheduling), scheduling, waiting: 0, arrivals: 0 }
    }

    /// Returns the policy.
    #[must_use]
    pub fn scheduling(&self) -> &SchedulingPolicy {
        &self.scheduling
    }

    /// Returns the number of waiting requests.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Returns true if no request waits.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Changes the policy; waiting requests move to it in the order of arrival.
    pub fn set_policy(&mut self, scheduling: SchedulingPolicy) {
        let mut all = match &mut self.state {
            SchedulerState::Fifo(queue) => std::mem::take(queue).into(),
            SchedulerState::Deadline(deadlines) => deadlines.take_all(),
            SchedulerState::Share(shares) => shares.take_all(),
            SchedulerState::Priority(priorities) => priorities.take_all(),
        };
        all.sort_unstable_by_key(|queued: &QueuedRequest| queued.order);
        self.state = SchedulerState::of(&scheduling);
        self.scheduling = scheduling;
        for queued in all {
            self.enqueue(queued);
        }
    }

    /// Adds a request.
    pub fn push(&mut self, waiting: WaitingRequest) {
        self.arrivals += 1;
        self.waiting += 1;
        self.enqueue(QueuedRequest { waiting, order: self.arrivals });
    }

    fn enqueue(&mut self, queued: QueuedRequest) {
        match &mut self.state {
            SchedulerState::Fifo(queue) => queue.push_back(queued),
            SchedulerState::Deadline(deadlines) => deadlines.push(queued),
            SchedulerState::Share(shares) => shares.push(queued),
            SchedulerState::Priority(priorities) => priorities.push(queued),
        }
    }

    /// Charges a class for bytes that were merged into a waiting request.
    pub fn charge_class(&mut self, class: RequestClass, bytes: u64) {
        if let SchedulerState::Share(shares) = &mut self.state {
            shares.charge(class, bytes);
        }
    }

    /// Removes and returns the next request, for a device with room.
    pub fn pop(&mut self, now: Nanos) -> Option<SchedulerDecision> {
        let next = match &mut self.state {
            SchedulerState::Fifo(queue) => {
                queue.pop_front().map(|queued| SchedulerDecision::Serve(queued.waiting.slot))
            }
            SchedulerState::Deadline(deadlines) => deadlines.pop(now),
            SchedulerState::Share(shares) => shares.pop().map(SchedulerDecision::Serve),
            SchedulerState::Priority(priorities) => priorities.pop().map(SchedulerDecision::Serve),
        };
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// Removes a cancelled request. Returns false if it does not wait here.
    pub fn remove(&mut self, slot: u32) -> bool {
        let removed = match &mut self.state {
            SchedulerState::Fifo(queue) => take_from(queue, slot),
            SchedulerState::Deadline(deadlines) => deadlines.remove(slot),
            SchedulerState::Share(shares) => shares.remove(slot),
            SchedulerState::Priority(priorities) => priorities.remove(slot),
        };
        self.waiting -= usize::from(removed);
        removed
    }

    /// Returns the device latency above which fewer commands are kept in flight, if the policy has one.
    #[must_use]
    pub fn latency_target(&self) -> Option<Nanos> {
        match &self.scheduling {
            SchedulingPolicy::Deadline { deadlines: within, .. } => {
                let shortest = within.iter().min().copied().unwrap_or_default();
                Some(Nanos(shortest.0 / 2))
            }
            _ => None,
        }
    }
}

fn take_from(queue: &mut VecDeque<QueuedRequest>, slot: u32) -> bool {
    let at = queue.iter().position(|queued| queued.waiting.slot == slot);
    at.and_then(|at| queue.remove(at)).is_some()
}

#[cfg(test)]
mod tests;
