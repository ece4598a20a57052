//! A queue whose commands a kernel ring executes, each in one or more steps.
//!
//! Input: commands. Output: one completion each. Invariant: a command keeps its slot and its data until its last step
//! is done; commands in flight, and completions not yet reaped that the device had no part in, never exceed the number
//! of slots.

use crate::backend::{ArmResult, CompletedCommand, IoLimits, QueueTransport, abort_unsupported};
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_host::device_ring::{DeviceRing, DeviceWork, RingCompletion, RingSubmitError};
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// The translation of commands into steps on one kind of device.
pub(crate) trait CommandSteps: Debug + Send {
    /// The ring's work.
    type Work: DeviceWork;
    /// The progress of a command in flight.
    type CommandProgress: Debug + Send;
    /// True if the kernel can cancel a command.
    const CANCELS: bool;

    /// Returns the limits of one command.
    fn limits(&self) -> IoLimits;

    /// Validates a command and sends its first step. Returns the command's progress.
    fn start(
        &self,
        command: &Command,
        send: impl FnOnce(Self::Work) -> Result<(), UnsentReason>,
    ) -> Result<Self::CommandProgress, UnsentReason>;

    /// Returns the action that follows the end of a step.
    fn next(
        &mut self,
        progress: &mut Self::CommandProgress,
        data: &TransferData,
        done: &RingCompletion,
    ) -> StepOutcome<Self::Work>;
}

/// The reason that no step was sent for a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UnsentReason {
    /// The command completes at once with this status.
    Completed(Status),
    /// The command is rejected.
    Rejected(SubmitError),
}

impl From<Status> for UnsentReason {
    fn from(status: Status) -> Self {
        Self::Completed(status)
    }
}

impl From<SubmitError> for UnsentReason {
    fn from(reason: SubmitError) -> Self {
        Self::Rejected(reason)
    }
}

impl From<RingSubmitError> for UnsentReason {
    fn from(error: RingSubmitError) -> Self {
        match error {
            RingSubmitError::Thread { errno } => Self::Rejected(SubmitError::NoThread { errno }),
            // The queue has a slot of the ring for each command, and its steps were validated.
            _ => Self::Completed(Status::INTERNAL_ERROR),
        }
    }
}

/// The action that follows the end of a step.
#[derive(Debug)]
pub(crate) enum StepOutcome<W> {
    /// Another step.
    Next(W),
    /// The completion: dword 0 and the status.
    Complete(u32, Status),
}

/// A command in flight.
#[derive(Debug)]
struct RingCommand<S> {
    token: u64,
    data: TransferData,
    progress: S,
}

/// A queue over a kernel ring.
#[derive(Debug)]
pub(crate) struct UringQueue<S: CommandSteps> {
    ring: DeviceRing<S::Work>,
    steps: S,
    /// The commands in flight, by slot; the slot is the ring's token.
    commands: Vec<Option<RingCommand<S::CommandProgress>>>,
    free: Vec<usize>,
    /// Completions of commands that were never sent to the device.
    ready: VecDeque<CompletedCommand>,
}

impl<S: CommandSteps> UringQueue<S> {
    pub(crate) fn new(ring: DeviceRing<S::Work>, steps: S) -> Self {
        let depth = ring.depth();
        let commands = (0..depth).map(|_| None).collect();
        Self { ring, steps, commands, free: (0..depth).rev().collect(), ready: VecDeque::new() }
    }

    /// Processes the end of a step. Returns the command's completion if the step was its last.
    #[inline]
    fn finish(&mut self, done: &RingCompletion) -> Option<CompletedCommand> {
        let slot = usize::try_from(done.token).ok()?;
        let flight = self.commands.get_mut(slot)?;
        let RingCommand { data, progress: stand, .. } = flight.as_mut()?;
        let (result, status) = match self.steps.next(stand, data, done) {
            StepOutcome::Complete(result, status) => (result, status),
            StepOutcome::Next(work) => match self.ring.submit(done.token, work) {
                Ok(()) => {
                    self.ring.kick();
                    return None;
                }
                Err(_) => (0, Status::INTERNAL_ERROR),
            },
        };
        let RingCommand { token, data, .. } = flight.take()?;
        self.free.push(slot);
        Some(CompletedCommand { completion: Completion { token, result, status }, data })
    }
}

impl<S: CommandSteps> QueueTransport for UringQueue<S> {
    fn limits(&self) -> IoLimits {
        self.steps.limits()
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        let Some(&slot) = self.free.last().filter(|_| self.ready.len() < self.free.len()) else {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        };
        let ring = &mut self.ring;
        let send = |work| ring.submit(slot as u64, work).map_err(UnsentReason::from);
        match self.steps.start(&command, send) {
            Ok(stand) => {
                self.free.pop();
                self.commands[slot] = Some(RingCommand { token, data: command.data, progress: stand });
            }
            Err(UnsentReason::Completed(status)) => {
                let completion = Completion { token, result: 0, status };
                self.ready.push_back(CompletedCommand { completion, data: command.data });
            }
            Err(UnsentReason::Rejected(reason)) => return Err(RejectedCommand { command, reason }),
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.kick();
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
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

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring.kick();
        if self.ring.descriptor().is_none() {
            return Err(IoError::Unsupported {
                reason: "a polled queue has no descriptor; open it without poll=1".to_owned(),
            });
        }
        Ok(if self.ready.is_empty() { ArmResult::Armed } else { ArmResult::Ready })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        if !S::CANCELS {
            return Err(abort_unsupported());
        }
        let is_it =
            |flight: &Option<RingCommand<_>>| flight.as_ref().is_some_and(|flight| flight.token == token);
        let sent = self.commands.iter().position(is_it).is_some_and(|slot| self.ring.cancel(slot as u64));
        if sent || self.ready.iter().any(|answer| answer.completion.token == token) {
            return Ok(());
        }
        Err(IoError::Unsupported {
            reason: format!(
                "the command of token {token} cannot be cancelled: it is not in flight, or runs as a system call; \
                 wait for its completion"
            ),
        })
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.commands.iter_mut().flatten().for_each(|flight| visit(&mut flight.token));
        self.ready.iter_mut().for_each(|done| visit(&mut done.completion.token));
    }

    fn in_flight(&self) -> u32 {
        narrow(self.commands.len() - self.free.len() + self.ready.len())
    }

    fn depth(&self) -> u32 {
        narrow(self.commands.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_without_a_thread_is_rejected_with_the_systems_error() {
        let reason = UnsentReason::from(RingSubmitError::Thread { errno: 24 });
        assert_eq!(reason, UnsentReason::Rejected(SubmitError::NoThread { errno: 24 }));
    }
}
