//! Changes of a handle's queues and policies while commands are in flight.
//!
//! Input: new queues and policies. Output: the same handle. Invariant: a change neither loses nor duplicates a request,
//! and none blocks except [`detach`](Handle::detach), which waits for the commands of the detached queue.

use super::attached_queue::{AttachedQueue, QueueAttachment, QueueLink};
use super::request::RequestOperation;
use super::request_table::SlotState;
use super::{HANDLE_TOKEN, Handle, RequestError};
use crate::backend::IoLimits;
use crate::completion::{CompletionPolicy, PollPace, PollPeriod};
use crate::error::IoError;
use crate::scheduler::{InFlightWindow, MergePolicy, RequestScheduler, SchedulingPolicy};
use crate::selector::{QueueName, QueueSelector};
use headwater_host::clock::Nanos;
use std::task::Waker;

/// The limits of a command while there is no queue.
const NO_LIMITS: IoLimits = IoLimits { transfer_bytes_max: 1 << 20, segments_max: 1, memory_align: 1 };

impl Handle {
    /// Attaches a queue, and returns its name for selectors.
    pub fn attach(&mut self, attachment: impl Into<QueueAttachment>) -> QueueName {
        let name = QueueName(self.names);
        self.names += 1;
        self.lanes.push(AttachedQueue::new(name, attachment.into()));
        self.queues_changed();
        name
    }

    /// Detaches a queue: it receives no new commands, and is returned once its commands have completed; their
    /// completions stay in the handle. Returns `None` if that takes more than `longest`: the queue still receives no
    /// commands; call again.
    ///
    /// # Errors
    /// [`IoError::Request`] for an unknown name; [`IoError`] when a device is gone.
    pub fn detach(
        &mut self,
        name: QueueName,
        longest: Option<Nanos>,
    ) -> Result<Option<QueueAttachment>, IoError> {
        let queues = u32::try_from(self.lanes.len()).unwrap_or(u32::MAX);
        let unknown = RequestError::NoSuchQueue { answer: name.0, queues };
        let index = self.lanes.iter().position(|lane| lane.name == name).ok_or(unknown)?;
        self.lanes[index].leaving = true;
        self.move_waiting(index);
        let started = self.time.now();
        while self.lanes[index].in_flight() > 0 {
            let waited = self.time.now().since(started);
            if longest.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            self.look_and_rest(longest.map(|longest| longest.since(waited)))?;
        }
        let lane = self.lanes.remove(index);
        let gone = u32::try_from(index).unwrap_or(u32::MAX);
        for entry in self.slots.entries_mut().filter(|entry| entry.lane != u32::MAX && entry.lane > gone) {
            entry.lane -= 1;
        }
        self.queues_changed();
        Ok(Some(match lane.link {
            QueueLink::Own(queue) => QueueAttachment::Own(queue),
            QueueLink::Shared(seat) => QueueAttachment::Shared(seat.queue()),
        }))
    }

    /// Moves requests that wait for the detached queue to the first remaining one; without one they wait.
    fn move_waiting(&mut self, leaving: usize) {
        let stays = self.lanes.iter().position(|lane| !lane.leaving);
        let Some(stays) = stays.and_then(|lane| u32::try_from(lane).ok()) else {
            return;
        };
        for entry in self.slots.entries_mut() {
            let waits = matches!(entry.kind, SlotState::Waiting | SlotState::Member | SlotState::Divided);
            if waits && usize::try_from(entry.lane) == Ok(leaving) {
                entry.lane = stays;
            }
        }
    }

    /// Returns the names of the queues in the order of attachment.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        self.lanes.iter().filter(|lane| !lane.leaving).map(|lane| lane.name).collect()
    }

    /// Sets the selector; requests already submitted keep their queue.
    pub fn set_selector(&mut self, selector: QueueSelector) {
        self.selector = selector;
        self.policies_changed();
    }

    /// Sets the scheduling policy, for waiting requests too.
    pub fn set_scheduling(&mut self, scheduling: SchedulingPolicy) {
        self.scheduler.change(scheduling);
        self.window = self.new_window();
        self.policies_changed();
    }

    /// Returns the scheduling policy.
    #[must_use]
    pub fn scheduling(&self) -> &SchedulingPolicy {
        self.scheduler.scheduling()
    }

    /// Sets the merging policy; groups that wait stay together.
    pub fn set_merging(&mut self, merging: MergePolicy) {
        self.merging = merging;
        self.policies_changed();
    }

    /// Limits the commands in flight at the devices; requests beyond the limit wait in the scheduler.
    pub fn set_in_flight_max(&mut self, max: u32) {
        self.window_max = max.max(1);
        self.window = self.new_window();
        self.policies_changed();
    }

    /// Sets how many requests may wait beyond what the queues hold.
    pub fn set_waiting_max(&mut self, max: u32) {
        self.waiting_max = max;
        self.queues_changed();
    }

    /// Sets the policy that finds completions.
    ///
    /// # Errors
    /// [`IoError`] when the kernel has no thread or descriptor left; the policy does not change.
    pub fn set_completion(&mut self, policy: CompletionPolicy) -> Result<(), IoError> {
        let threaded = |policy| matches!(policy, CompletionPolicy::Thread(..));
        if threaded(self.completion) && !threaded(policy) {
            // Take the completions that the threads found before the threads stop.
            self.turn()?;
        }
        if threaded(policy) {
            self.register_plain();
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

    /// Moves the commands of the fast path into the request table: a shared queue names commands by their slots. Until they
    /// are taken, requests use the slow path.
    fn register_plain(&mut self) {
        let Self { lanes, slots, detours, .. } = self;
        for (index, lane) in (0..).zip(lanes) {
            lane.visit_own_tokens(&mut |token| {
                if *token & HANDLE_TOKEN == 0 {
                    let Some(slot) = slots.take(*token, SlotState::Plain, index) else {
                        unreachable!("the request table has a slot for every command of its queues");
                    };
                    *token = HANDLE_TOKEN | u64::from(slot);
                    *detours += 1;
                }
            });
        }
        self.plain_in_flight = 0;
    }

    /// Returns the completion policy.
    #[must_use]
    pub fn completion(&self) -> CompletionPolicy {
        self.completion
    }

    /// Returns the last sleep between two polls of this handle.
    #[must_use]
    pub fn period(&self) -> Nanos {
        self.period.chosen()
    }

    /// Sets the waker that the threads of its queues notify of completions.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        for lane in &mut self.lanes {
            if let QueueLink::Shared(seat) = &mut lane.link {
                seat.set_waker(waker.clone());
            }
        }
    }

    pub(super) fn new_window(&self) -> InFlightWindow {
        InFlightWindow::new(self.window_max.min(self.depth()), self.scheduler.device_target())
    }

    /// Recomputes limits, slots and window after a change of queues.
    pub(super) fn queues_changed(&mut self) {
        let least = |one: IoLimits, other: IoLimits| IoLimits {
            transfer_bytes_max: one.transfer_bytes_max.min(other.transfer_bytes_max),
            segments_max: one.segments_max.min(other.segments_max),
            memory_align: one.memory_align.max(other.memory_align),
        };
        self.limits = self.lanes.iter().map(AttachedQueue::limits).reduce(least).unwrap_or(NO_LIMITS);
        self.plain_bytes_max = self.geometry.command_bytes_max(RequestOperation::Read, &self.limits);
        // Each request has a slot, and so does each part of a divided request in flight.
        self.slots.grow(self.most().saturating_add(self.depth()));
        self.window = self.new_window();
        self.policies_changed();
    }

    /// Recomputes whether the fast path is allowed.
    fn policies_changed(&mut self) {
        let own =
            matches!(self.lanes.as_slice(), [AttachedQueue { link: QueueLink::Own(_), leaving: false, .. }]);
        let first = matches!(self.selector, QueueSelector::First);
        let inline = matches!(self.completion, CompletionPolicy::Inline);
        let fifo =
            matches!(self.scheduler.scheduling(), SchedulingPolicy::Fifo) && self.merging == MergePolicy::Off;
        let unlimited = self.window_max >= self.depth();
        self.plain = own && first && inline && fifo && unlimited;
    }

    pub(super) fn fresh_policies() -> (RequestScheduler, PollPeriod) {
        (RequestScheduler::new(SchedulingPolicy::Fifo), PollPeriod::new(PollPace::Adaptive))
    }
}
