//! A device's queue as an exchange uses it, with the submission times of its commands.
//!
//! Input: commands with tokens. Output: answers with tokens; the sleep durations of the queue's thread. Invariant:
//! times are recorded only while a thread needs them.

use super::exchange::Line;
use crate::backend::{Answer, Armed};
use crate::command::{Command, Data};
use crate::completion::{Direction, Pace, Period, SizeClass, Work};
use crate::error::{IoError, Rejected};
use crate::queue::Queue;
use crate::timepiece::Timepiece;
use headwater_host::clock::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Interval between two polls of a queue without a descriptor.
const REST: Nanos = Nanos::from_micros(50);

/// The leader's means of sleeping without access to the queue.
#[derive(Debug)]
pub(super) enum Rest {
    /// A descriptor to wait for.
    Descriptor(OwnedFd),
    /// A fixed interval.
    Span,
}

impl Rest {
    pub(super) fn of(queue: &Queue) -> Self {
        let descriptor = queue.descriptor().and_then(|descriptor| descriptor.try_clone_to_owned().ok());
        descriptor.map_or(Self::Span, Self::Descriptor)
    }

    pub(super) fn sleep(&self, longest: Option<std::time::Duration>) -> Result<(), IoError> {
        let longest = longest.map(|longest| Nanos(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)));
        let Self::Descriptor(descriptor) = self else {
            Clock::sleep(longest.map_or(REST, |longest| longest.min(REST)));
            return Ok(());
        };
        let timeout = longest.map(Nanos::to_timespec);
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(IoError::Device { reason: format!("poll of the queue's descriptor: {errno}") }),
        }
    }
}

/// The timing state of a polling thread.
#[derive(Debug)]
struct Timing {
    period: Period,
    time: Timepiece,
    in_flight: BTreeMap<u64, (Nanos, SizeClass)>,
}

/// A device's queue with its timing state.
#[derive(Debug)]
pub(super) struct DeviceLine {
    queue: Queue,
    timing: Option<Timing>,
}

impl DeviceLine {
    pub(super) fn over(queue: Queue) -> Self {
        Self { queue, timing: None }
    }

    pub(super) fn into_queue(self) -> Queue {
        self.queue
    }

    pub(super) fn ring(&mut self) -> Result<(), IoError> {
        self.queue.ring()
    }

    pub(super) fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        self.queue.cancel(token)
    }

    /// Sets the pace of the polling thread.
    pub(super) fn set_pace(&mut self, pace: Pace, time: Timepiece) {
        match &mut self.timing {
            Some(timing) => timing.period.set_pace(pace),
            None => {
                let period = Period::new(pace);
                self.timing = Some(Timing { period, time, in_flight: BTreeMap::new() });
            }
        }
    }

    /// Returns the last sleep duration.
    pub(super) fn period(&self) -> Nanos {
        self.timing.as_ref().map_or(Nanos::ZERO, |timing| timing.period.chosen())
    }

    /// Returns the time to sleep before the next poll.
    pub(super) fn next_sleep(&mut self) -> Nanos {
        self.timing.as_mut().map_or(Nanos::ZERO, |timing| {
            timing.period.looked();
            let now = timing.time.now();
            timing.period.next(now, timing.in_flight.values().copied())
        })
    }

    /// Stores the requested and actual duration of a sleep.
    pub(super) fn woke(&mut self, asked: Nanos, took: Nanos) {
        if let Some(timing) = &mut self.timing {
            timing.period.woke(asked, took);
        }
    }
}

fn class_of(command: &Command) -> SizeClass {
    let direction = match &command.data {
        Data::FromDevice(_) | Data::Scatter(_) => Direction::Read,
        Data::ToDevice(_) | Data::Gather(_) => Direction::Write,
        Data::None => Direction::Other,
    };
    Work { direction, bytes: command.data.bytes() }.class()
}

impl Line for DeviceLine {
    type Command = Command;
    type Answer = Answer;
    type Rejected = Rejected;
    type Error = IoError;

    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        let class = self.timing.as_ref().map(|_| class_of(&command));
        self.queue.submit(command, token)?;
        if let (Some(timing), Some(class)) = (&mut self.timing, class) {
            timing.in_flight.insert(token, (timing.time.now(), class));
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Option<(u64, Answer)>, IoError> {
        let Some(answer) = self.queue.poll_with()? else {
            return Ok(None);
        };
        let token = answer.completion.token;
        if let Some(timing) = &mut self.timing
            && let Some((submitted, class)) = timing.in_flight.remove(&token)
        {
            let latency = timing.time.now().since(submitted);
            timing.period.answered(class, latency);
        }
        Ok(Some((token, answer)))
    }

    fn arm(&mut self) -> Result<bool, IoError> {
        match self.queue.arm() {
            Ok(armed) => Ok(armed == Armed::Waiting),
            // A queue without a descriptor is polled again after an interval.
            Err(IoError::Refused { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
