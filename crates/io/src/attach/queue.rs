//! A queue of an attached client, which outlives the daemon at its other end.
//!
//! In: commands. Out: one completion each. When the daemon is gone, or goes and says so by aborting what it did not begin,
//! the queue finds it again through its session and sends what was not answered once more, in the order of submission.
//!
//! ```text
//!   attached --line hung up--> (session reconnects, new rings, unanswered sent again) --> attached
//!      |                                   | nobody answers, or the policy refuses
//!      +<-- completions                    v
//!                                        given up: every call says so
//! ```

use super::session::{Session, lock};
use crate::backend::Transport;
use crate::command::Command;
use crate::error::{IoError, SubmitError};
use crate::queue::Completion;
use crate::ring_queue::{RingQueue, Unanswered, entry_of};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use std::sync::{Arc, Mutex};

/// Looks in vain between two questions to the kernel whether the daemon still holds its end.
const LOOKS: u32 = 16_384;
/// Longest sleep between two looks for a daemon that drains.
const DRAIN_LOOK: Nanos = Nanos::from_millis(10);

/// One queue.
#[derive(Debug)]
pub(super) struct AttachQueue {
    session: Arc<Mutex<Session>>,
    epoch: u64,
    ring: RingQueue,
    /// Aborted by a daemon that goes; to be sent to the next one.
    aborted: Vec<Unanswered>,
    looks: u32,
    given_up: bool,
}

impl AttachQueue {
    pub(super) fn new(session: Arc<Mutex<Session>>, epoch: u64, ring: RingQueue) -> Self {
        Self { session, epoch, ring, aborted: Vec::new(), looks: 0, given_up: false }
    }

    /// Finds the daemon again and sends what was not answered.
    #[cold]
    fn find_again(&mut self) -> Result<(), IoError> {
        let found = self.try_again();
        self.given_up = found.is_err();
        found
    }

    fn try_again(&mut self) -> Result<(), IoError> {
        // Answers that came before the end count.
        let mut session = lock(&self.session);
        session.reconnect(self.epoch)?;
        let mut ring = session.ring_queue(self.ring.depth())?;
        self.epoch = session.epoch();
        drop(session);
        let mut again = self.ring.take_unanswered();
        again.append(&mut self.aborted);
        again.sort_by_key(Unanswered::order);
        for command in again {
            ring.submit_entry(command.entry, command.token)?;
        }
        self.ring = ring;
        self.ring.ring()
    }
}

impl Transport for AttachQueue {
    #[inline]
    fn submit(&mut self, command: &Command, token: u64) -> Result<(), SubmitError> {
        if self.given_up {
            return Err(SubmitError::Gone);
        }
        // What waits for the next daemon keeps its place in the queue.
        if !self.aborted.is_empty() && self.in_flight() >= self.depth() {
            return Err(SubmitError::Full);
        }
        self.ring.submit_entry(entry_of(command), token)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.ring()
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<Completion>, IoError> {
        while let Some((completion, command)) = self.ring.reap_with()? {
            if completion.status == Status::ABORTED_SQ_DELETION {
                // The daemon goes and did not begin this one.
                self.aborted.push(command);
                continue;
            }
            self.looks = 0;
            return Ok(Some(completion));
        }
        self.looks += 1;
        if self.looks >= LOOKS {
            self.looks = 0;
            if self.given_up || self.ring.look_for_hang_up() {
                // What was answered before the end counts.
                if let Some((completion, _)) = self.ring.reap_with()?
                    && completion.status != Status::ABORTED_SQ_DELETION
                {
                    return Ok(Some(completion));
                }
                self.find_again()?;
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = match (longest, self.aborted.is_empty()) {
            (longest, true) => longest,
            (longest, false) => Some(longest.map_or(DRAIN_LOOK, |longest| longest.min(DRAIN_LOOK))),
        };
        self.ring.sleep(longest)?;
        if self.ring.has_hung_up() {
            self.looks = LOOKS;
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        let aborted = u32::try_from(self.aborted.len()).unwrap_or(u32::MAX);
        self.ring.in_flight().saturating_add(aborted)
    }

    fn depth(&self) -> u32 {
        self.ring.depth()
    }
}
