//! Waits for completions as the completion policy says.
//!
//! Input: the longest wait. Output: a completion, or none when the time is over. Invariant: a waiter does not sleep
//! while a completion is ready, nor while nothing is outstanding.

use super::Handle;
use super::attached_queue::{AttachedQueue, QueueLink};
use crate::backend::{ArmResult, CompletedCommand};
use crate::completion::{CompletionAggregator, CompletionPolicy, NotificationTime, SleepObservation};
use crate::error::IoError;
use crate::queue::SPIN_DEFAULT;
use headwater_host::clock::Nanos;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// The number of polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;
/// The sleep between two polls of several queues of which one has no descriptor.
const POLL_INTERVAL: Nanos = Nanos::from_micros(50);

impl Handle {
    /// Waits for the next completion, at most for `longest`. Returns `None` when the time is over or nothing is
    /// outstanding.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol.
    pub fn wait(&mut self, timeout: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if let Some(answer) = self.poll()? {
                return Ok(Some(answer));
            }
            if !self.is_inline() || self.outstanding() == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        self.wait_for(timeout, |handle| handle.poll())
    }

    /// Waits until `look` returns something.
    pub(super) fn wait_for<T>(
        &mut self,
        timeout: Option<Nanos>,
        mut poll: impl FnMut(&mut Self) -> Result<Option<T>, IoError>,
    ) -> Result<Option<T>, IoError> {
        let started = self.clock.now();
        loop {
            for _ in 0..if self.is_inline() { POLLS_PER_CLOCK_READ } else { 1 } {
                if let Some(found) = poll(self)? {
                    return Ok(Some(found));
                }
                std::hint::spin_loop();
            }
            if self.outstanding() == 0 {
                return Ok(None);
            }
            let waited = self.clock.now().since(started);
            if timeout.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            if !self.is_inline() || waited >= self.clock.spin_limit(SPIN_DEFAULT) {
                self.sleep_by_policy(timeout.map(|longest| longest.since(waited)))?;
            }
        }
    }

    /// Rings the doorbells, and requests that the [`descriptors`](Self::descriptors) become readable with the next
    /// completion.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] for a queue without a descriptor (use a completion thread instead), [`IoError::Limit`]
    /// when no interrupt vector is left for it; [`IoError`] when a device is gone.
    pub fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring()?;
        if !self.completed.is_empty() {
            return Ok(ArmResult::Ready);
        }
        let mut all = ArmResult::Armed;
        for queue in &mut self.queues {
            if queue.arm()? == ArmResult::Ready {
                all = ArmResult::Ready;
            }
        }
        Ok(all)
    }

    /// Iterates over the descriptors, one for each queue, that become readable with a completion after
    /// [`arm`](Self::arm).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().filter_map(AttachedQueue::descriptor)
    }

    /// Returns the sleep before the next poll that a pace chooses, or `None` under a policy without a pace.
    pub(crate) fn next_pause(&mut self) -> Option<Nanos> {
        let paced = matches!(self.completion, CompletionPolicy::Paced(_));
        paced.then(|| self.period.next_sleep(self.clock.now(), self.slots.in_flight()))
    }

    /// Notes a sleep that followed [`next_pause`](Self::next_pause).
    pub(crate) fn observe_pause(&mut self, sleep: SleepObservation) {
        self.period.observe_sleep(sleep);
    }

    fn is_inline(&self) -> bool {
        matches!(self.completion, CompletionPolicy::Inline)
    }

    /// Polls the queues once, and sleeps if nothing completed.
    pub(super) fn poll_or_sleep(&mut self, timeout: Option<Nanos>) -> Result<(), IoError> {
        let had = self.completed.len();
        self.poll_queues()?;
        if self.completed.len() == had && self.awaited.is_none() {
            self.sleep_by_policy(timeout)?;
        }
        Ok(())
    }

    /// Sleeps until a completion may have arrived, as the policy says.
    fn sleep_by_policy(&mut self, timeout: Option<Nanos>) -> Result<(), IoError> {
        let longest = self.until_deadline(timeout);
        match self.completion {
            CompletionPolicy::Inline => self.sleep_on_queues(longest),
            CompletionPolicy::Paced(_) => {
                let now = self.clock.now();
                let span = self.period.next_sleep(now, self.slots.in_flight());
                let span = longest.map_or(span, |longest| span.min(longest));
                if span == Nanos::ZERO {
                    self.clock.pause_after_poll();
                } else {
                    self.period.observe_sleep(self.clock.sleep_observed(span));
                }
                Ok(())
            }
            CompletionPolicy::Interrupt(aggregation) => {
                self.sleep_on_queues(longest)?;
                let mut aggregator = CompletionAggregator::new(aggregation);
                if aggregator.is_immediate() {
                    return Ok(());
                }
                let now = self.clock.now();
                aggregator.add(1, now);
                if let NotificationTime::At(at) = aggregator.due(now)
                    && self.outstanding() > 1
                {
                    let span = at.since(now);
                    self.clock.sleep(longest.map_or(span, |longest| span.min(longest)));
                }
                Ok(())
            }
            CompletionPolicy::Thread(..) => self.sleep_on_shared(longest),
        }
    }

    /// Shortens a wait to the next deadline of a request.
    fn until_deadline(&self, timeout: Option<Nanos>) -> Option<Nanos> {
        let first = self.deadlines.first().map(|&(at, _)| at.since(self.clock.now()));
        first.into_iter().chain(timeout).min()
    }

    /// Sleeps until a queue signals a completion.
    fn sleep_on_queues(&mut self, timeout: Option<Nanos>) -> Result<(), IoError> {
        match self.queues.as_mut_slice() {
            [AttachedQueue { link: QueueLink::Own(queue), .. }] => queue.sleep(timeout),
            [AttachedQueue { link: QueueLink::Shared(seat), .. }] => seat.sleep(timeout),
            queues => {
                let mut descriptors = true;
                for queue in queues.iter_mut() {
                    match queue.arm() {
                        Ok(ArmResult::Ready) => return Ok(()),
                        Ok(ArmResult::Armed) => {}
                        Err(IoError::Unsupported { .. } | IoError::Limit { .. }) => descriptors = false,
                        Err(error) => return Err(error),
                    }
                }
                let polled: Vec<_> = queues
                    .iter()
                    .filter_map(AttachedQueue::descriptor)
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let descriptors = descriptors && polled.len() == queues.len();
                if polled.is_empty() {
                    self.clock.sleep(timeout.map_or(POLL_INTERVAL, |longest| longest.min(POLL_INTERVAL)));
                    return Ok(());
                }
                let longest = if descriptors {
                    timeout
                } else {
                    Some(timeout.map_or(POLL_INTERVAL, |longest| longest.min(POLL_INTERVAL)))
                };
                wait_any(polled, longest)
            }
        }
    }

    /// Sleeps until the thread of a shared queue has found a completion for this handle.
    fn sleep_on_shared(&mut self, timeout: Option<Nanos>) -> Result<(), IoError> {
        if let [AttachedQueue { link: QueueLink::Shared(seat), .. }] = self.queues.as_mut_slice() {
            return seat.sleep(timeout);
        }
        self.sleep_on_queues(timeout)
    }
}

/// Sleeps until one of the descriptors is readable.
fn wait_any(mut polled: Vec<PollFd<'_>>, timeout: Option<Nanos>) -> Result<(), IoError> {
    let timeout = timeout.map(Nanos::to_timespec);
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(IoError::Device { reason: format!("poll: {errno}") }),
    }
}
