//! A queue: submit, poll, wait.
//!
//! In: commands with the caller's tokens. Out: the same tokens with what became of the commands, in any order. Invariant:
//! exactly one completion for each accepted command. A queue belongs to one thread at a time.

use crate::backend::{Answer, Armed, Limits, Transport};
use crate::command::Command;
use crate::error::{IoError, Rejected};
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::spec::status::Status;
use std::os::fd::BorrowedFd;

/// How long [`Queue::wait`] polls before it sleeps, unless it was told otherwise: about what two wake-ups cost.
pub const SPIN: Nanos = Nanos::from_micros(20);
/// Looks between two looks at the clock.
const LOOKS: u32 = 32;

/// What became of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's token.
    pub token: u64,
    /// Command specific: the full length of a value in bytes, for those that read one.
    pub result: u32,
    /// What became of it.
    pub status: Status,
}

impl Completion {
    /// The result of a command that succeeded.
    ///
    /// # Errors
    /// [`IoError::Status`] for any other.
    pub fn ok(self) -> Result<u32, IoError> {
        if self.status.is_success() { Ok(self.result) } else { Err(IoError::Status(self.status)) }
    }
}

/// One queue of a device.
#[derive(Debug)]
pub struct Queue {
    transport: Box<dyn Transport>,
    clock: Clock,
    spin: Nanos,
}

impl Queue {
    /// A queue over a transport.
    #[must_use]
    pub fn over(transport: Box<dyn Transport>) -> Self {
        Self { transport, clock: Clock::start(), spin: SPIN }
    }

    /// How long [`wait`](Self::wait) polls before it sleeps; [`Nanos::ZERO`] sleeps at once.
    pub fn set_spin(&mut self, spin: Nanos) {
        self.spin = spin;
    }

    /// Takes a command. It goes to the device with the next [`ring`](Self::ring), [`poll`](Self::poll) or
    /// [`wait`](Self::wait), so that several go together.
    ///
    /// # Errors
    /// [`Rejected`], with the command: nothing happened, and no completion will follow.
    #[inline]
    pub fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        self.transport.submit(command, token)
    }

    /// Shows what was submitted to the device.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), IoError> {
        self.transport.ring()
    }

    /// Takes the next completion, if one has come.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, IoError> {
        Ok(self.poll_with()?.map(|answer| answer.completion))
    }

    /// As [`poll`](Self::poll), with the buffers of the command.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    #[inline]
    pub fn poll_with(&mut self) -> Result<Option<Answer>, IoError> {
        self.transport.ring()?;
        self.transport.reap()
    }

    /// Waits for the next completion, at most for `longest`: polls for a while, then sleeps. `None` when the time is over
    /// or nothing is in flight.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    pub fn wait(&mut self, longest: Option<Nanos>) -> Result<Option<Completion>, IoError> {
        Ok(self.wait_with(longest)?.map(|answer| answer.completion))
    }

    /// As [`wait`](Self::wait), with the buffers of the command.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_with(&mut self, longest: Option<Nanos>) -> Result<Option<Answer>, IoError> {
        if self.spin == Nanos::ZERO && self.transport.sleep_rings() {
            return self.wait_asleep(longest);
        }
        self.transport.ring()?;
        let started = self.clock.now();
        let looks = if self.spin == Nanos::ZERO { 1 } else { LOOKS };
        loop {
            for _ in 0..looks {
                if let Some(answer) = self.transport.reap()? {
                    return Ok(Some(answer));
                }
                std::hint::spin_loop();
            }
            if self.transport.in_flight() == 0 {
                return Ok(None);
            }
            let waited = self.clock.now().since(started);
            if longest.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            if waited >= self.spin {
                self.transport.sleep(longest.map(|longest| longest.since(waited)))?;
            }
        }
    }

    /// Sleeps as soon as nothing is there: what was submitted starts with the call that sleeps.
    fn wait_asleep(&mut self, longest: Option<Nanos>) -> Result<Option<Answer>, IoError> {
        let until = longest.map(|longest| self.clock.now().after(longest));
        loop {
            if let Some(answer) = self.transport.reap()? {
                // A device that is gone now says so to the next call; this command has its answer.
                let _ = self.transport.ring();
                return Ok(Some(answer));
            }
            let left = until.map(|until| until.since(self.clock.now()));
            if left == Some(Nanos::ZERO) || self.transport.in_flight() == 0 {
                self.transport.ring()?;
                return Ok(None);
            }
            self.transport.sleep(left)?;
        }
    }

    /// Sleeps until a completion may have come, at most for `longest`.
    ///
    /// # Errors
    /// [`IoError`] when the kernel refuses or the device is gone.
    pub fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.transport.sleep(longest)
    }

    /// What one command can be.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.transport.limits()
    }

    /// What is readable once a completion has come, after [`arm`](Self::arm) asked for it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.transport.descriptor()
    }

    /// Rings, and asks for the descriptor to become readable with the next completion.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, or this way to it has no descriptor.
    pub fn arm(&mut self) -> Result<Armed, IoError> {
        self.transport.arm()
    }

    /// Asks the device to give a command up. It still has its one completion, which says whether it was.
    ///
    /// # Errors
    /// [`IoError::Refused`] where that is not offered; [`IoError`] when the device is gone.
    pub fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        self.transport.cancel(token)
    }

    /// Commands accepted and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.transport.in_flight()
    }

    /// Most commands in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.transport.depth()
    }
}
