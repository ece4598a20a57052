//! A queue whose commands a ring of the kernel's carries out, each in one step or in several.
//!
//! In: commands. Out: one answer for each. Invariant: a command keeps its place and its data until its last step is done; with
//! the answers that the device had no part in, no more are taken on than there are places.

use crate::backend::{Answer, Armed, Limits, Transport, no_cancelling};
use crate::command::{Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_host::device_ring::{DeviceRing, Done, Work};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// What commands become on one kind of device.
pub(crate) trait Steps: Debug + Send {
    /// What the ring does.
    type Work: Work;
    /// Where a command in flight stands.
    type Stand: Debug + Send;
    /// Whether the kernel gives a command up when it is asked to.
    const CANCELS: bool;

    /// What one command can be.
    fn limits(&self) -> Limits;

    /// Judges a command and sends its first step. Gives where it stands now.
    fn first(
        &self,
        command: &Command,
        send: impl FnOnce(Self::Work) -> Result<(), Status>,
    ) -> Result<Self::Stand, Unsent>;

    /// What follows on the end of a step.
    fn next(&mut self, stand: &mut Self::Stand, data: &Data, done: &Done) -> Turn<Self::Work>;
}

/// Why nothing was sent for a command.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The status answers it at once.
    Answered(Status),
    /// It is not taken.
    Rejected(SubmitError),
}

impl From<Status> for Unsent {
    fn from(status: Status) -> Self {
        Self::Answered(status)
    }
}

impl From<SubmitError> for Unsent {
    fn from(reason: SubmitError) -> Self {
        Self::Rejected(reason)
    }
}

/// What follows on the end of a step.
#[derive(Debug)]
pub(crate) enum Turn<W> {
    /// Another step.
    Next(W),
    /// The answer: dword 0 and the status.
    Over(u32, Status),
}

/// A command in flight.
#[derive(Debug)]
struct Flight<S> {
    token: u64,
    data: Data,
    stand: S,
}

/// A queue.
#[derive(Debug)]
pub(crate) struct UringQueue<S: Steps> {
    ring: DeviceRing<S::Work>,
    steps: S,
    /// By place, whose number is the token of the ring.
    flights: Vec<Option<Flight<S::Stand>>>,
    free: Vec<usize>,
    /// Answers of commands that the device never saw.
    ready: VecDeque<Answer>,
}

impl<S: Steps> UringQueue<S> {
    pub(crate) fn new(ring: DeviceRing<S::Work>, steps: S) -> Self {
        let depth = ring.depth();
        let flights = (0..depth).map(|_| None).collect();
        Self { ring, steps, flights, free: (0..depth).rev().collect(), ready: VecDeque::new() }
    }

    /// The answer that a step's end makes, if it was the last.
    #[inline]
    fn finish(&mut self, done: &Done) -> Option<Answer> {
        let place = usize::try_from(done.token).ok()?;
        let flight = self.flights.get_mut(place)?;
        let Flight { data, stand, .. } = flight.as_mut()?;
        let (result, status) = match self.steps.next(stand, data, done) {
            Turn::Over(result, status) => (result, status),
            Turn::Next(work) => match self.ring.submit(done.token, work) {
                Ok(()) => {
                    self.ring.kick();
                    return None;
                }
                Err(_) => (0, Status::INTERNAL_ERROR),
            },
        };
        let Flight { token, data, .. } = flight.take()?;
        self.free.push(place);
        Some(Answer { completion: Completion { token, result, status }, data })
    }
}

impl<S: Steps> Transport for UringQueue<S> {
    fn limits(&self) -> Limits {
        self.steps.limits()
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        let Some(&place) = self.free.last().filter(|_| self.ready.len() < self.free.len()) else {
            return Err(Rejected { command, reason: SubmitError::Full });
        };
        let ring = &mut self.ring;
        let send = |work| ring.submit(place as u64, work).map_err(|_| Status::INTERNAL_ERROR);
        match self.steps.first(&command, send) {
            Ok(stand) => {
                self.free.pop();
                self.flights[place] = Some(Flight { token, data: command.data, stand });
            }
            Err(Unsent::Answered(status)) => {
                let completion = Completion { token, result: 0, status };
                self.ready.push_back(Answer { completion, data: command.data });
            }
            Err(Unsent::Rejected(reason)) => return Err(Rejected { command, reason }),
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.kick();
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        if let Some(answer) = self.ready.pop_front() {
            return Ok(Some(answer));
        }
        while let Some(done) = self.ring.reap() {
            if let Some(answer) = self.finish(&done) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        if self.ready.is_empty() {
            self.ring.wait(longest);
        } else {
            self.ring.kick();
        }
        Ok(())
    }

    fn sleep_rings(&self) -> bool {
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        self.ring.kick();
        if self.ring.descriptor().is_none() {
            return Err(IoError::Refused {
                reason: "a polled queue has no descriptor; open it without poll=1".to_owned(),
            });
        }
        Ok(if self.ready.is_empty() { Armed::Waiting } else { Armed::Ready })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        if !S::CANCELS {
            return Err(no_cancelling());
        }
        let is_it = |flight: &Option<Flight<_>>| flight.as_ref().is_some_and(|flight| flight.token == token);
        let asked = self.flights.iter().position(is_it).is_some_and(|place| self.ring.cancel(place as u64));
        if asked || self.ready.iter().any(|answer| answer.completion.token == token) {
            return Ok(());
        }
        Err(IoError::Refused {
            reason: format!(
                "nothing can be cancelled under token {token}: it is not in flight, or made by a plain call"
            ),
        })
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.flights.len() - self.free.len() + self.ready.len()).unwrap_or(u32::MAX)
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.flights.len()).unwrap_or(u32::MAX)
    }
}
