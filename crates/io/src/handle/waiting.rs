//! Waits for completions as the completion policy says.
//!
//! Input: the longest wait. Output: a completion, or none when the time is over. Invariant: a waiter does not sleep
//! while a completion is ready, nor while nothing is outstanding.

use super::Handle;
use super::attached_queue::{AttachedQueue, QueueLink};
use crate::backend::{ArmResult, CompletedCommand};
use crate::completion::{CompletionAggregator, CompletionPolicy, NotificationTime};
use crate::error::IoError;
use crate::queue::SPIN;
use headwater_host::clock::Nanos;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// The number of polls between two readings of the clock.
const LOOKS: u32 = 32;
/// The sleep between two polls of several queues of which one has no descriptor.
const REST: Nanos = Nanos::from_micros(50);

impl Handle {
    /// Waits for the next completion, at most for `longest`. Returns `None` when the time is over or nothing is
    /// outstanding.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol.
    pub fn wait(&mut self, longest: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        for _ in 0..LOOKS {
            if let Some(answer) = self.poll()? {
                return Ok(Some(answer));
            }
            if !self.is_inline() || self.unanswered() == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.wait_for(longest, |handle| handle.poll())
    }

    /// Waits until `look` returns something.
    pub(super) fn wait_for<T>(
        &mut self,
        longest: Option<Nanos>,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, IoError>,
    ) -> Result<Option<T>, IoError> {
        let started = self.time.now();
        loop {
            for _ in 0..if self.is_inline() { LOOKS } else { 1 } {
                if let Some(found) = look(self)? {
                    return Ok(Some(found));
                }
                std::hint::spin_loop();
            }
            if self.unanswered() == 0 {
                return Ok(None);
            }
            let waited = self.time.now().since(started);
            if longest.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            if !self.is_inline() || waited >= self.time.spin(SPIN) {
                self.rest(longest.map(|longest| longest.since(waited)))?;
            }
        }
    }

    /// Rings the doorbells, and requests that the [`descriptors`](Self::descriptors) become readable with the next
    /// completion.
    ///
    /// # Errors
    /// [`IoError::Refused`] for a queue without a descriptor (use a completion thread instead); [`IoError`] when a
    /// device is gone.
    pub fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring()?;
        if !self.ready.is_empty() {
            return Ok(ArmResult::Ready);
        }
        let mut all = ArmResult::Waiting;
        for lane in &mut self.lanes {
            if lane.arm()? == ArmResult::Ready {
                all = ArmResult::Ready;
            }
        }
        Ok(all)
    }

    /// Iterates over the descriptors, one for each queue, that become readable with a completion after
    /// [`arm`](Self::arm).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lanes.iter().filter_map(AttachedQueue::descriptor)
    }

    fn is_inline(&self) -> bool {
        matches!(self.completion, CompletionPolicy::Inline)
    }

    /// Polls the queues once, and sleeps if nothing completed.
    pub(super) fn look_and_rest(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let had = self.ready.len();
        self.turn()?;
        if self.ready.len() == had && self.awaited.is_none() {
            self.rest(longest)?;
        }
        Ok(())
    }

    /// Sleeps until a completion may have arrived, as the policy says.
    fn rest(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = self.until_deadline(longest);
        match self.completion {
            CompletionPolicy::Inline => self.sleep_on_queues(longest),
            CompletionPolicy::Paced(_) => {
                let now = self.time.now();
                let span = self.period.next(now, self.slots.in_flight());
                let span = longest.map_or(span, |longest| span.min(longest));
                if span == Nanos::ZERO {
                    self.time.looked();
                } else {
                    self.time.sleep(span);
                    self.period.woke(span, self.time.now().since(now));
                }
                Ok(())
            }
            CompletionPolicy::Interrupt(aggregation) => {
                self.sleep_on_queues(longest)?;
                let mut aggregator = CompletionAggregator::new(aggregation);
                if aggregator.is_none() {
                    return Ok(());
                }
                let now = self.time.now();
                aggregator.came(1, now);
                if let NotificationTime::At(at) = aggregator.due(now)
                    && self.unanswered() > 1
                {
                    let span = at.since(now);
                    self.time.sleep(longest.map_or(span, |longest| span.min(longest)));
                }
                Ok(())
            }
            CompletionPolicy::Thread(..) => self.sleep_on_seats(longest),
        }
    }

    /// Shortens a wait to the next deadline of a request.
    fn until_deadline(&self, longest: Option<Nanos>) -> Option<Nanos> {
        let first = self.deadlines.first().map(|&(at, _)| at.since(self.time.now()));
        first.into_iter().chain(longest).min()
    }

    /// Sleeps until a queue signals a completion.
    fn sleep_on_queues(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        match self.lanes.as_mut_slice() {
            [AttachedQueue { link: QueueLink::Own(queue), .. }] => queue.sleep(longest),
            [AttachedQueue { link: QueueLink::Shared(seat), .. }] => seat.sleep(longest),
            lanes => {
                let mut descriptors = true;
                for lane in lanes.iter_mut() {
                    match lane.arm() {
                        Ok(ArmResult::Ready) => return Ok(()),
                        Ok(ArmResult::Waiting) => {}
                        Err(IoError::Refused { .. }) => descriptors = false,
                        Err(error) => return Err(error),
                    }
                }
                let polled: Vec<_> = lanes
                    .iter()
                    .filter_map(AttachedQueue::descriptor)
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let descriptors = descriptors && polled.len() == lanes.len();
                if polled.is_empty() {
                    self.time.sleep(longest.map_or(REST, |longest| longest.min(REST)));
                    return Ok(());
                }
                let longest = if descriptors {
                    longest
                } else {
                    Some(longest.map_or(REST, |longest| longest.min(REST)))
                };
                wait_any(polled, longest)
            }
        }
    }

    /// Sleeps until the thread of a shared queue has found a completion for this handle.
    fn sleep_on_seats(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        if let [AttachedQueue { link: QueueLink::Shared(seat), .. }] = self.lanes.as_mut_slice() {
            return seat.sleep(longest);
        }
        self.sleep_on_queues(longest)
    }
}

/// Sleeps until one of the descriptors is readable.
fn wait_any(mut polled: Vec<PollFd<'_>>, longest: Option<Nanos>) -> Result<(), IoError> {
    let timeout = longest.map(Nanos::to_timespec);
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(IoError::Device { reason: format!("poll: {errno}") }),
    }
}
