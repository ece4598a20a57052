//! A device's queue as an exchange uses it, with the submission times of its commands.
//!
//! Input: commands with tokens, the pace of each seat. Output: answers with tokens; the sleep durations of the queue's
//! thread. Invariants: times are recorded only while a thread needs them; the thread sleeps no longer than the pace of any
//! seat with commands in flight allows.

use super::exchange::{ExchangeQueue, seat_of};
use crate::backend::{ArmResult, CompletedCommand};
use crate::clock::IoClock;
use crate::command::{Command, TransferData};
use crate::completion::{
    CommandProfile, PollPace, PollPeriod, SizeClass, SleepObservation, TransferDirection,
};
use crate::error::{IoError, RejectedCommand};
use crate::queue::Queue;
use headwater_host::clock::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Interval between two polls of a queue without a descriptor.
const POLL_INTERVAL: Nanos = Nanos::from_micros(50);

/// The leader's means of sleeping without access to the queue.
#[derive(Debug)]
pub(super) enum QueueSleep {
    /// A descriptor to wait for.
    Descriptor(OwnedFd),
    /// A fixed interval.
    Span,
}

impl QueueSleep {
    pub(super) fn of(queue: &Queue) -> Self {
        let descriptor = queue.descriptor().and_then(|descriptor| descriptor.try_clone_to_owned().ok());
        descriptor.map_or(Self::Span, Self::Descriptor)
    }

    pub(super) fn sleep(&self, longest: Option<std::time::Duration>) -> Result<(), IoError> {
        // A wait beyond 584 years lasts that long.
        let longest = longest.map(|longest| Nanos(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)));
        let Self::Descriptor(descriptor) = self else {
            Clock::sleep(longest.map_or(POLL_INTERVAL, |longest| longest.min(POLL_INTERVAL)));
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
struct PollTiming {
    period: PollPeriod,
    time: IoClock,
    in_flight: BTreeMap<u64, (Nanos, SizeClass)>,
    /// The paces of seats; a seat without one is polled for at the adaptive pace.
    paces: BTreeMap<u32, PollPace>,
}

impl PollTiming {
    fn pace_of(&self, token: u64) -> PollPace {
        self.paces.get(&seat_of(token)).copied().unwrap_or_default()
    }

    /// Returns the commands in flight by pace.
    fn by_pace(&self) -> Vec<(PollPace, Vec<(Nanos, SizeClass)>)> {
        let mut groups: Vec<(PollPace, Vec<(Nanos, SizeClass)>)> = Vec::new();
        for (&token, &command) in &self.in_flight {
            let pace = self.pace_of(token);
            match groups.iter_mut().find(|(of, _)| *of == pace) {
                Some((_, commands)) => commands.push(command),
                None => groups.push((pace, vec![command])),
            }
        }
        groups
    }
}

/// A device's queue with its timing state.
#[derive(Debug)]
pub(super) struct PacedQueue {
    queue: Queue,
    timing: Option<PollTiming>,
}

impl PacedQueue {
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

    /// Sets the pace at which the polling thread polls for a seat.
    pub(super) fn set_pace(&mut self, seat: u32, pace: PollPace, time: IoClock) {
        let timing = self.timing.get_or_insert_with(|| PollTiming {
            period: PollPeriod::new(pace),
            time,
            in_flight: BTreeMap::new(),
            paces: BTreeMap::new(),
        });
        timing.paces.insert(seat, pace);
        timing.period.set_pace(pace);
    }

    /// Removes the pace of a seat.
    pub(super) fn remove_pace(&mut self, seat: u32) {
        if let Some(timing) = &mut self.timing {
            timing.paces.remove(&seat);
        }
    }

    /// Returns the last sleep duration.
    pub(super) fn period(&self) -> Nanos {
        self.timing.as_ref().map_or(Nanos::ZERO, |timing| timing.period.last_chosen())
    }

    /// Returns the time to sleep before the next poll.
    pub(super) fn next_sleep(&mut self) -> Nanos {
        self.timing.as_mut().map_or(Nanos::ZERO, |timing| {
            timing.period.observe_poll();
            let now = timing.time.now();
            // One user with one pace is usual.
            if timing.paces.len() == 1
                && timing.in_flight.keys().all(|&token| timing.paces.contains_key(&seat_of(token)))
            {
                return timing.period.next_sleep(now, timing.in_flight.values().copied());
            }
            let groups = timing.by_pace();
            timing.period.next_sleep_of(now, groups.into_iter())
        })
    }

    /// Stores the length and the cost of a sleep.
    pub(super) fn record_sleep(&mut self, sleep: SleepObservation) {
        if let Some(timing) = &mut self.timing {
            timing.period.observe_sleep(sleep);
        }
    }
}

fn class_of(command: &Command) -> SizeClass {
    let direction = match &command.data {
        TransferData::FromDevice(_) | TransferData::Scatter(_) => TransferDirection::Read,
        TransferData::ToDevice(_) | TransferData::Gather(_) => TransferDirection::Write,
        TransferData::None => TransferDirection::Other,
    };
    CommandProfile { direction, bytes: command.data.bytes() }.class()
}

impl ExchangeQueue for PacedQueue {
    type Command = Command;
    type Answer = CompletedCommand;
    type Rejected = RejectedCommand;
    type Error = IoError;

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        let class = self.timing.as_ref().map(|_| class_of(&command));
        self.queue.submit(command, token)?;
        if let (Some(timing), Some(class)) = (&mut self.timing, class) {
            timing.in_flight.insert(token, (timing.time.now(), class));
        }
        Ok(())
    }

    fn poll_next(&mut self) -> Result<Option<(u64, CompletedCommand)>, IoError> {
        let Some(answer) = self.queue.poll_command()? else {
            return Ok(None);
        };
        let token = answer.completion.token;
        if let Some(timing) = &mut self.timing
            && let Some((submitted, class)) = timing.in_flight.remove(&token)
        {
            let latency = timing.time.now().since(submitted);
            timing.period.observe_completion(class, latency);
        }
        Ok(Some((token, answer)))
    }

    fn arm(&mut self) -> Result<bool, IoError> {
        match self.queue.arm() {
            Ok(armed) => Ok(armed == ArmResult::Armed),
            // A queue without a descriptor is polled again after an interval.
            Err(IoError::Unsupported { .. } | IoError::Limit { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
