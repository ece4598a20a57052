//! Queues and policies of a handle, changed while commands are in flight.
//!
//! In: the application's wishes. Out: the same handle. Invariant: a change loses no request, doubles none, and blocks for
//! none but [`detach`](Handle::detach), which waits for the commands of the queue that leaves.

use super::lane::{Attachment, Lane, Link};
use super::request::Operation;
use super::slots::Kind;
use super::{Handle, RequestError};
use crate::backend::Limits;
use crate::completion::{CompletionPolicy, Pace, Period};
use crate::error::IoError;
use crate::scheduler::{Merging, Scheduler, Scheduling, Window};
use crate::selector::{QueueName, Selector};
use headwater_host::clock::Nanos;
use std::task::Waker;

/// What a command can be where there is no queue.
const NO_LIMITS: Limits = Limits { transfer_bytes_max: 1 << 20, segments_max: 1, memory_align: 1 };

impl Handle {
    /// One more queue; its name, for selectors.
    pub fn attach(&mut self, attachment: impl Into<Attachment>) -> QueueName {
        let name = QueueName(self.names);
        self.names += 1;
        self.lanes.push(Lane::new(name, attachment.into()));
        self.queues_changed();
        name
    }

    /// A queue leaves: it gets nothing more, and is given back once its commands are answered, at most after `longest`; the
    /// answers are there to be taken. `None` if the time was over: it gets nothing all the same; call again.
    ///
    /// # Errors
    /// [`IoError::Request`] for a name that is none; [`IoError`] when a device is gone.
    pub fn detach(&mut self, name: QueueName, longest: Option<Nanos>) -> Result<Option<Attachment>, IoError> {
        let queues = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let unknown = RequestError::NoSuchQueue { answer: name.0, queues };
        let place = self.lanes.iter().position(|lane| lane.name == name).ok_or(unknown)?;
        self.lanes[place].leaving = true;
        self.move_waiting(place);
        let started = self.time.now();
        while self.lanes[place].in_flight() > 0 {
            let waited = self.time.now().since(started);
            if longest.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            self.look_and_rest(longest.map(|longest| longest.since(waited)))?;
        }
        let lane = self.lanes.remove(place);
        let gone = u32::try_from(place).unwrap_or(u32::MAX);
        for entry in self.slots.entries_mut().filter(|entry| entry.lane != u32::MAX && entry.lane > gone) {
            entry.lane -= 1;
        }
        self.queues_changed();
        Ok(Some(match lane.link {
            Link::Own(queue) => Attachment::Own(queue),
            Link::Shared(seat) => Attachment::Shared(seat.queue()),
        }))
    }

    /// What waits for a queue that leaves goes to the first that stays; if none does, it waits.
    fn move_waiting(&mut self, leaving: usize) {
        let stays = self.lanes.iter().position(|lane| !lane.leaving);
        let Some(stays) = stays.and_then(|lane| u32::try_from(lane).ok()) else {
            return;
        };
        for entry in self.slots.entries_mut() {
            let waits = matches!(entry.kind, Kind::Waiting | Kind::Member | Kind::Divided);
            if waits && usize::try_from(entry.lane) == Ok(leaving) {
                entry.lane = stays;
            }
        }
    }

    /// The names of the queues, in the order in which they were attached.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        self.lanes.iter().filter(|lane| !lane.leaving).map(|lane| lane.name).collect()
    }

    /// Chooses queues so from now on; what was submitted keeps its queue.
    pub fn set_selector(&mut self, selector: Selector) {
        self.selector = selector;
        self.policies_changed();
    }

    /// Schedules so from now on, what waits too.
    pub fn set_scheduling(&mut self, scheduling: Scheduling) {
        self.scheduler.change(scheduling);
        self.window = self.new_window();
        self.policies_changed();
    }

    /// The scheduling policy.
    #[must_use]
    pub fn scheduling(&self) -> &Scheduling {
        self.scheduler.scheduling()
    }

    /// Merges so from now on; groups that wait stay together.
    pub fn set_merging(&mut self, merging: Merging) {
        self.merging = merging;
        self.policies_changed();
    }

    /// Keeps at most so many commands at the devices; what is beyond waits, where the scheduler reaches it.
    pub fn set_in_flight_max(&mut self, most: u32) {
        self.window_max = most.max(1);
        self.window = self.new_window();
        self.policies_changed();
    }

    /// Lets so many requests wait beyond what the queues hold.
    pub fn set_waiting_max(&mut self, most: u32) {
        self.waiting_max = most;
        self.queues_changed();
    }

    /// Learns of completions so from now on.
    ///
    /// # Errors
    /// [`IoError`] when the kernel gives no thread or descriptor; the policy is what it was.
    pub fn set_completion(&mut self, policy: CompletionPolicy) -> Result<(), IoError> {
        let threaded = |policy| matches!(policy, CompletionPolicy::Thread(..));
        if threaded(self.completion) && !threaded(policy) {
            // What the threads found is taken before they go.
            self.turn()?;
        }
        let mut followed = Ok(());
        for lane in std::mem::take(&mut self.lanes) {
            let (lane, result) = lane.follow(policy, &self.time);
            self.lanes.push(lane);
            followed = followed.and(result);
        }
        if let Err(error) = followed {
            self.queues_changed();
            return Err(error);
        }
        if let CompletionPolicy::Paced(pace) = policy {
            self.period.set_pace(pace);
        }
        self.completion = policy;
        self.policies_changed();
        Ok(())
    }

    /// The completion policy.
    #[must_use]
    pub fn completion(&self) -> CompletionPolicy {
        self.completion
    }

    /// The span that was last slept between two looks of this handle.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period.chosen()
    }

    /// Who is woken when the threads of its queues have found something.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        for lane in &mut self.lanes {
            if let Link::Shared(seat) = &mut lane.link {
                seat.set_waker(waker.clone());
            }
        }
    }

    pub(super) fn new_window(&self) -> Window {
        Window::new(self.window_max.min(self.depth()), self.scheduler.device_target())
    }

    /// After any change of queues.
    pub(super) fn queues_changed(&mut self) {
        let least = |one: Limits, other: Limits| Limits {
            transfer_bytes_max: one.transfer_bytes_max.min(other.transfer_bytes_max),
            segments_max: one.segments_max.min(other.segments_max),
            memory_align: one.memory_align.max(other.memory_align),
        };
        self.limits = self.lanes.iter().map(Lane::limits).reduce(least).unwrap_or(NO_LIMITS);
        self.plain_bytes_max = self.geometry.command_bytes_max(Operation::Read, &self.limits);
        // Each request, and each part of a divided one at a device, has a place.
        self.slots.grow(self.most().saturating_add(self.depth()));
        self.window = self.new_window();
        self.policies_changed();
    }

    /// Whether the short way is open.
    fn policies_changed(&mut self) {
        let own = matches!(self.lanes.as_slice(), [Lane { link: Link::Own(_), leaving: false, .. }]);
        let first = matches!(self.selector, Selector::First);
        let inline = matches!(self.completion, CompletionPolicy::Inline);
        let fifo = matches!(self.scheduler.scheduling(), Scheduling::Fifo) && self.merging == Merging::Off;
        let unlimited = self.window_max >= self.depth();
        self.plain = own && first && inline && fifo && unlimited;
    }

    pub(super) fn fresh_policies() -> (Scheduler, Period) {
        (Scheduler::new(Scheduling::Fifo), Period::new(Pace::Adaptive))
    }
}
