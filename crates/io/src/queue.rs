//! A queue: submit, poll, wait.
//!
//! Input: commands with the caller's tokens. Output: the same tokens with the commands' results, in any order.
//! Invariant: exactly one completion for each accepted command. One thread uses a queue at a time.

use crate::backend::{ArmResult, CompletedCommand, IoLimits, QueueTransport};
use crate::command::Command;
use crate::error::{IoError, RejectedCommand};
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::spec::status::Status;
use std::os::fd::BorrowedFd;

/// The default time that [`Queue::wait`] polls before it sleeps: about the cost of two wake-ups.
pub const SPIN_DEFAULT: Nanos = Nanos::from_micros(20);
/// The number of polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;

/// The result of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's token.
    pub token: u64,
    /// The command-specific result: for commands that read a value, its full length in bytes.
    pub result: u32,
    /// The status.
    pub status: Status,
}

impl Completion {
    /// Returns the result of a successful command.
    ///
    /// # Errors
    /// [`IoError::Status`] for a failed command.
    pub fn into_result(self) -> Result<u32, IoError> {
        if self.status.is_success() { Ok(self.result) } else { Err(IoError::Status(self.status)) }
    }
}

/// One queue of a device.
#[derive(Debug)]
pub struct Queue {
    /// A handle with one queue of its own calls it directly.
    pub(crate) transport: Box<dyn QueueTransport>,
    clock: Clock,
    spin: Nanos,
}

impl Queue {
    /// Returns a queue over a transport.
    #[must_use]
    pub fn over(transport: Box<dyn QueueTransport>) -> Self {
        Self { transport, clock: Clock::start(), spin: SPIN_DEFAULT }
    }

    /// Sets how long [`wait`](Self::wait) polls before it sleeps; with [`Nanos::ZERO`] it sleeps at once.
    pub fn set_spin(&mut self, spin: Nanos) {
        self.spin = spin;
    }

    /// Accepts a command. It reaches the device with the next [`ring`](Self::ring), [`poll`](Self::poll) or
    /// [`wait`](Self::wait), so that several are submitted together.
    ///
    /// # Errors
    /// [`RejectedCommand`], with the command: it had no effect, and no completion follows.
    #[inline]
    pub fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        self.transport.submit(command, token)
    }

    /// Makes submitted commands visible to the device.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), IoError> {
        self.transport.ring()
    }

    /// Returns the next completion, if there is one.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, IoError> {
        Ok(self.poll_command()?.map(|answer| answer.completion))
    }

    /// Polls as [`poll`](Self::poll) does, and also returns the buffers of the command.
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    #[inline]
    pub fn poll_command(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.transport.poll()
    }

    /// Waits for the next completion, at most for `longest`: polls for a while, then sleeps. Returns `None` when the
    /// time is over or nothing is in flight.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    pub fn wait(&mut self, timeout: Option<Nanos>) -> Result<Option<Completion>, IoError> {
        Ok(self.wait_command(timeout)?.map(|answer| answer.completion))
    }

    /// Waits as [`wait`](Self::wait) does, and also returns the buffers of the command.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_command(&mut self, timeout: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        if self.spin == Nanos::ZERO && self.transport.sleep_rings() {
            return self.wait_asleep(timeout);
        }
        self.transport.ring()?;
        let started = self.clock.now();
        let looks = if self.spin == Nanos::ZERO { 1 } else { POLLS_PER_CLOCK_READ };
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
            if timeout.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            if waited >= self.spin {
                self.transport.sleep(timeout.map(|longest| longest.since(waited)))?;
            }
        }
    }

    /// Sleeps as soon as no completion is ready: the system call that sleeps also submits.
    fn wait_asleep(&mut self, timeout: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        let until = timeout.map(|longest| self.clock.now().after(longest));
        loop {
            if let Some(answer) = self.transport.reap()? {
                // If the device is gone, the next call reports it; this command has its completion.
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

    /// Sleeps until a completion may have arrived, at most for `longest`.
    ///
    /// # Errors
    /// [`IoError`] when the kernel refuses or the device is gone.
    pub fn sleep(&mut self, timeout: Option<Nanos>) -> Result<(), IoError> {
        self.transport.sleep(timeout)
    }

    /// Returns the limits of one command.
    #[must_use]
    pub fn limits(&self) -> IoLimits {
        self.transport.limits()
    }

    /// Returns the descriptor that becomes readable with a completion after [`arm`](Self::arm).
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.transport.descriptor()
    }

    /// Rings, and requests that the descriptor become readable with the next completion.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, or the backend has no descriptor.
    pub fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.transport.arm()
    }

    /// Sends an abort of a command. The command still completes once, and its status tells whether it was aborted.
    ///
    /// # Errors
    /// [`IoError::Unsupported`] if the backend has no abort; [`IoError`] when the device is gone.
    pub fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        self.transport.cancel(token)
    }

    /// Visits the token of every command in flight, to find it or to change it.
    pub(crate) fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.transport.visit_tokens(visit);
    }

    /// Returns the number of commands accepted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.transport.in_flight()
    }

    /// Returns the most commands in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.transport.depth()
    }
}
