//! Changes of a handle's queues and policies while commands are in flight.
//!
//! Input: new queues and policies. Output: the same handle. Invariant: a change neither loses nor duplicates a request,
//! and none blocks except [`detach`](Handle::detach), which waits for the commands of the detached queue.

use super::attached_queue::{AttachedQueue, QueueAttachment, QueueLink};
use super::request::RequestOperation;
use super::request_table::SlotState;
use super::{HANDLE_TOKEN, Handle};
use crate::backend::IoLimits;
use crate::completion::{CompletionPolicy, PollPace, PollPeriod};
use crate::error::IoError;
use crate::error::RequestError;
use crate::scheduler::{InFlightWindow, MergePolicy, RequestScheduler, SchedulingPolicy};
use crate::selector::{QueueName, QueueSelector};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use std::task::Waker;

/// The limits of a command while there is no queue.
const NO_LIMITS: IoLimits = IoLimits { transfer_bytes_max: 1 << 20, segments_max: 1, memory_align: 1 };

impl Handle {
    /// Attaches a queue, and returns its name for selectors.
    pub fn attach(&mut self, attachment: impl Into<QueueAttachment>) -> QueueName {
        let name = QueueName(self.next_name);
        self.next_name += 1;
        self.queues.push(AttachedQueue::new(name, attachment.into()));
        self.update_queues();
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
        timeout: Option<Nanos>,
    ) -> Result<Option<QueueAttachment>, IoError> {
        let queues = narrow(self.queues.len());
        let unknown = RequestError::NoSuchQueue { name: name.0, queues };
        let index = self.queues.iter().position(|queue| queue.name == name).ok_or(unknown)?;
        self.queues[index].detaching = true;
        self.reassign_waiting(index);
        let started = self.clock.now();
        while self.queues[index].in_flight() > 0 {
            let waited = self.clock.now().since(started);
            if timeout.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            self.poll_or_sleep(timeout.map(|longest| longest.since(waited)))?;
        }
        let queue = self.queues.remove(index);
        let gone = narrow(index);
        for entry in
            self.slots.used_entries_mut().filter(|entry| entry.queue != u32::MAX && entry.queue > gone)
        {
            entry.queue -= 1;
        }
        self.update_queues();
        Ok(Some(match queue.link {
            QueueLink::Own(queue) => QueueAttachment::Own(queue),
            QueueLink::Shared(seat) => QueueAttachment::Shared(seat.queue()),
        }))
    }

    /// Moves requests that wait for the detached queue to the first remaining one; without one they wait.
    fn reassign_waiting(&mut self, leaving: usize) {
        let stays = self.queues.iter().position(|queue| !queue.detaching);
        let Some(stays) = stays.and_then(|queue| u32::try_from(queue).ok()) else {
            return;
        };
        for entry in self.slots.used_entries_mut() {
            let waits = matches!(entry.state, SlotState::Waiting | SlotState::Member | SlotState::Divided);
            if waits && usize::try_from(entry.queue) == Ok(leaving) {
                entry.queue = stays;
            }
        }
    }

    /// Returns the names of the queues in the order of attachment.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueName> {
        self.queues.iter().filter(|queue| !queue.detaching).map(|queue| queue.name).collect()
    }

    /// Sets the selector; requests already submitted keep their queue.
    pub fn set_selector(&mut self, selector: QueueSelector) {
        self.selector = selector;
        self.update_fast_path();
    }

    /// Sets the scheduling policy, for waiting requests too.
    pub fn set_scheduling(&mut self, scheduling: SchedulingPolicy) {
        self.scheduler.set_policy(scheduling);
        self.window = self.new_window();
        self.update_fast_path();
    }

    /// Returns the scheduling policy.
    #[must_use]
    pub fn scheduling(&self) -> &SchedulingPolicy {
        self.scheduler.scheduling()
    }

    /// Sets the merging policy; groups that wait stay together.
    pub fn set_merging(&mut self, merging: MergePolicy) {
        self.merging = merging;
        self.update_fast_path();
    }

    /// Limits the commands in flight at the devices; requests beyond the limit wait in the scheduler.
    pub fn set_in_flight_max(&mut self, max: u32) {
        self.in_flight_max = max.max(1);
        self.window = self.new_window();
        self.update_fast_path();
    }

    /// Sets the policy that finds completions.
    ///
    /// # Errors
    /// [`IoError`] when the kernel has no thread or descriptor left; the policy does not change.
    pub fn set_completion(&mut self, policy: CompletionPolicy) -> Result<(), IoError> {
        let threaded = |policy| matches!(policy, CompletionPolicy::Thread(..));
        if threaded(self.completion) && !threaded(policy) {
            // Take the completions that the threads found before the threads stop.
            self.poll_queues()?;
        }
        if threaded(policy) {
            self.register_plain();
        }
        let mut followed = Ok(());
        for queue in std::mem::take(&mut self.queues) {
            let (queue, result) = queue.apply_policy(policy, &self.clock);
            self.queues.push(queue);
            followed = followed.and(result);
        }
        if let Err(error) = followed {
            self.update_queues();
            return Err(error);
        }
        if let CompletionPolicy::Paced(pace) = policy {
            self.period.set_pace(pace);
        }
        self.completion = policy;
        self.update_fast_path();
        Ok(())
    }

    /// Moves the commands of the fast path into the request table: a shared queue names commands by their slots. Until they
    /// are taken, requests use the slow path.
    fn register_plain(&mut self) {
        let Self { queues, slots, slow_requests, .. } = self;
        for (index, queue) in (0..).zip(queues) {
            queue.visit_own_tokens(&mut |token| {
                if *token & HANDLE_TOKEN == 0 {
                    let Some(slot) = slots.take(*token, SlotState::FastPath, index) else {
                        unreachable!("the request table has a slot for every command of its queues");
                    };
                    *token = HANDLE_TOKEN | u64::from(slot);
                    *slow_requests += 1;
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
        self.period.last_chosen()
    }

    /// Sets the waker that the threads of its queues notify of completions.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        for queue in &mut self.queues {
            if let QueueLink::Shared(seat) = &mut queue.link {
                seat.set_waker(waker.clone());
            }
        }
    }

    pub(super) fn new_window(&self) -> InFlightWindow {
        InFlightWindow::new(self.in_flight_max.min(self.depth()), self.scheduler.latency_target())
    }

    /// Recomputes limits, slots and window after a change of queues.
    pub(super) fn update_queues(&mut self) {
        let least = |one: IoLimits, other: IoLimits| IoLimits {
            transfer_bytes_max: one.transfer_bytes_max.min(other.transfer_bytes_max),
            segments_max: one.segments_max.min(other.segments_max),
            memory_align: one.memory_align.max(other.memory_align),
        };
        self.limits = self.queues.iter().map(AttachedQueue::limits).reduce(least).unwrap_or(NO_LIMITS);
        self.command_bytes_max = self.geometry.command_bytes_max(RequestOperation::Read, &self.limits);
        // Each request has a slot, and so does each part of a divided request in flight.
        self.slots.grow(self.capacity().saturating_add(self.depth()));
        self.window = self.new_window();
        self.update_fast_path();
    }

    /// Recomputes whether the fast path is allowed.
    fn update_fast_path(&mut self) {
        let own = matches!(
            self.queues.as_slice(),
            [AttachedQueue { link: QueueLink::Own(_), detaching: false, .. }]
        );
        let first = matches!(self.selector, QueueSelector::First);
        let inline = matches!(self.completion, CompletionPolicy::Inline);
        let fifo =
            matches!(self.scheduler.scheduling(), SchedulingPolicy::Fifo) && self.merging == MergePolicy::Off;
        let unlimited = self.in_flight_max >= self.depth();
        self.fast_path = own && first && inline && fifo && unlimited;
    }

    pub(super) fn default_policies() -> (RequestScheduler, PollPeriod) {
        (RequestScheduler::new(SchedulingPolicy::Fifo), PollPeriod::new(PollPace::Adaptive))
    }
}
