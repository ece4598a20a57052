//! A queue of an attached client, which survives restarts of the daemon.
//!
//! Input: commands. Output: one completion each. When the daemon is gone, or shuts down and aborts the commands that it
//! did not start, the queue reconnects through its session and resubmits the unanswered commands in the order of
//! submission.
//!
//! ```text
//!   attached --line hung up--> (session reconnects, new rings, unanswered resubmitted) --> attached
//!      |                                   | no daemon answers, or the policy refuses
//!      +<-- completions                    v
//!                                        given up: every call fails
//! ```

use super::session::{AttachSession, lock};
use crate::backend::{ArmResult, CompletedCommand, IoLimits, QueueTransport};
use crate::command::Command;
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::ring_queue::{InFlightCommand, RingQueue};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// Empty polls between two system calls that check if the daemon still holds its end.
const POLLS_PER_CHECK: u32 = 16_384;
/// Longest sleep between two polls while commands wait for the next daemon.
const DRAIN_POLL_INTERVAL: Nanos = Nanos::from_millis(10);

/// A queue of an attached client.
#[derive(Debug)]
pub(super) struct AttachQueue {
    session: Arc<Mutex<AttachSession>>,
    epoch: u64,
    ring: RingQueue,
    limits: IoLimits,
    /// Commands aborted by a daemon that shuts down; resubmitted to the next one.
    aborted: Vec<InFlightCommand>,
    empty_polls: u32,
    given_up: bool,
}

impl AttachQueue {
    pub(super) fn new(
        session: Arc<Mutex<AttachSession>>,
        epoch: u64,
        ring: RingQueue,
        limits: IoLimits,
    ) -> Self {
        Self { session, epoch, ring, limits, aborted: Vec::new(), empty_polls: 0, given_up: false }
    }

    /// Reconnects to the daemon and resubmits the unanswered commands.
    #[cold]
    fn reconnect(&mut self) -> Result<(), IoError> {
        let found = self.try_reconnect();
        self.given_up = found.is_err();
        found
    }

    fn try_reconnect(&mut self) -> Result<(), IoError> {
        // Completions that arrived before the end are already reaped.
        let mut session = lock(&self.session);
        session.reconnect(self.epoch)?;
        let mut ring = session.ring_queue(self.ring.depth())?;
        self.epoch = session.epoch();
        drop(session);
        let mut again = self.ring.take_in_flight();
        again.append(&mut self.aborted);
        again.sort_by_key(InFlightCommand::order);
        if let Err((rest, error)) = ring.resubmit(again) {
            self.aborted = rest;
            return Err(error.into());
        }
        self.ring.move_lists(&mut ring);
        self.ring = ring;
        self.ring.ring()
    }
}

impl QueueTransport for AttachQueue {
    fn limits(&self) -> IoLimits {
        self.limits
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if self.given_up {
            return Err(RejectedCommand { command, reason: SubmitError::Gone });
        }
        // Commands that wait for the next daemon count towards the depth.
        if !self.aborted.is_empty() && self.in_flight() >= self.depth() {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        }
        self.ring.submit_command(command, token)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.ring()
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        while let Some((completion, command)) = self.ring.reap_command()? {
            if completion.status == Status::ABORTED_SQ_DELETION {
                // The daemon shuts down and did not start this one.
                self.aborted.push(command);
                continue;
            }
            self.empty_polls = 0;
            let data = self.ring.finish_command(command);
            return Ok(Some(CompletedCommand { completion, data }));
        }
        self.empty_polls += 1;
        if self.empty_polls >= POLLS_PER_CHECK {
            self.empty_polls = 0;
            if self.given_up || self.ring.check_hang_up() {
                // A completion posted before the end is still delivered.
                match self.ring.reap_command()? {
                    Some((completion, command)) if completion.status == Status::ABORTED_SQ_DELETION => {
                        self.aborted.push(command);
                    }
                    Some((completion, command)) => {
                        let data = self.ring.finish_command(command);
                        return Ok(Some(CompletedCommand { completion, data }));
                    }
                    None => {}
                }
                self.reconnect()?;
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = match (longest, self.aborted.is_empty()) {
            (longest, true) => longest,
            (longest, false) => {
                Some(longest.map_or(DRAIN_POLL_INTERVAL, |longest| longest.min(DRAIN_POLL_INTERVAL)))
            }
        };
        self.ring.sleep(longest)?;
        if self.ring.has_hung_up() {
            self.empty_polls = POLLS_PER_CHECK;
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        // Commands that wait for the next daemon make progress by polling only.
        if !self.aborted.is_empty() {
            return Ok(ArmResult::Ready);
        }
        let armed = self.ring.arm()?;
        if self.ring.has_hung_up() {
            self.empty_polls = POLLS_PER_CHECK;
        }
        Ok(armed)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.ring.visit_tokens(visit);
        self.aborted.iter_mut().for_each(|command| visit(&mut command.token));
    }

    fn in_flight(&self) -> u32 {
        let aborted = narrow(self.aborted.len());
        self.ring.in_flight().saturating_add(aborted)
    }

    fn depth(&self) -> u32 {
        self.ring.depth()
    }
}
