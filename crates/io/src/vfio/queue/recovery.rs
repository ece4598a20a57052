//! The search for overdue commands of a queue, and its recovery after a reset.
//!
//! Input: the state of the queue. Output: completions of the commands that the controller will not complete, and a new
//! queue. Invariant: a command is completed once; memory that a dead controller may still access is never reused.

use super::{NvmeQueue, POLL_SLEEP, QueueOwner};
use crate::error::SubmitError;
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::driver::IoQueueState;
use headwater_nvme::spec::status::Status;

/// Interval between two polls of the controller itself while commands are in flight.
const CONTROLLER_POLL_INTERVAL: Nanos = Nanos::from_millis(20);
impl<K: QueueOwner> NvmeQueue<K> {
    /// Creates the queue again after a reset, once every command of the old one has its completion.
    pub(super) fn recreate_queue(&mut self) -> Result<(), SubmitError> {
        self.wait_until_live();
        if self.queue.is_some() {
            return Ok(());
        }
        self.queue = Some(self.owner.create_queue(self.depth).map_err(|_| SubmitError::Gone)?);
        self.connected = false;
        Ok(())
    }

    /// Polls the controller until this queue is live or given up.
    pub(super) fn wait_until_live(&mut self) {
        while let Some(queue) = &self.queue {
            match queue.state() {
                IoQueueState::Live => return,
                IoQueueState::Waiting => {
                    self.owner.poll_controller(self.owner.now());
                    Clock::sleep(POLL_SLEEP);
                }
                IoQueueState::Lost | IoQueueState::Dead => self.complete_lost(),
            }
        }
    }

    /// Completes every command of a lost or dead queue, first with the completions that the controller posted before
    /// the end.
    pub(super) fn complete_lost(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        let is_dead = queue.state() == IoQueueState::Dead;
        while let Some(done) = queue.reap() {
            self.lost_completions.push_back(done.context.complete(done.result, done.status));
        }
        let commands = match queue.abandon() {
            Ok(commands) => commands,
            Err(queue) => {
                self.queue = Some(queue);
                return;
            }
        };
        let status = if is_dead { Status::HOST_PATHING_ERROR } else { Status::ABORTED_BY_HOST };
        let is_quiet = !is_dead || self.owner.is_quiet();
        for command in commands {
            if !is_quiet {
                // The caller gets its handle back; the memory is never reused.
                command.data.clone().leak();
            }
            self.lost_completions.push_back(command.complete(0, status));
        }
    }

    /// Checks for overdue commands and polls the controller, after no completion arrived for a while.
    #[cold]
    pub(super) fn poll_controller(&mut self, now: Nanos) {
        self.next_poll = now.after(CONTROLLER_POLL_INTERVAL);
        let Self { queue: Some(queue), owner, .. } = self else { return };
        match queue.state() {
            IoQueueState::Live => {
                let id = queue.id();
                queue.check_timeouts(now, |overdue| owner.report_overdue(id, overdue, now));
                if let Some(fault) = queue.fault() {
                    owner.report_fault(id, fault, now);
                }
                owner.poll_controller(now);
            }
            IoQueueState::Waiting => {
                self.next_poll = now;
                owner.poll_controller(now);
            }
            IoQueueState::Lost | IoQueueState::Dead => self.complete_lost(),
        }
    }
}
