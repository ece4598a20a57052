//! The ends of started jobs: taken, and waited for.
//!
//! Input: tokens, and the longest time to wait. Output: jobs that have ended. Invariant: an owner sleeps only while no channel that
//! it waits for has ended a job, or must be polled; under virtual time it never sleeps.

use super::{EndedMove, MoveEngines};
use crate::mover::MoveJob;
use headwater_host::clock::Nanos;
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::BorrowedFd;

/// The time that a waiting owner polls before it sleeps.
const SPIN_BEFORE_SLEEP: Nanos = Nanos::from_micros(20);

impl MoveEngines {
    /// Returns true if a started job has ended and was not taken.
    pub(in crate::mover) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Returns a started job if it has ended.
    fn take(&mut self, token: u64) -> Option<MoveJob> {
        if let Some(started) = self.started.iter().find(|started| started.token == token) {
            self.collect(started.channel);
        }
        let at = self.ended.iter().position(|ended| ended.token == token)?;
        Some(self.ended.swap_remove(at).job)
    }

    /// Takes what the channels ended.
    pub(in crate::mover) fn collect_all(&mut self) {
        (0..self.channels.len()).for_each(|channel| self.collect(channel));
    }

    /// Returns any started job that has ended, with its token.
    pub(in crate::mover) fn take_any(&mut self) -> Option<(u64, MoveJob)> {
        self.collect_all();
        let EndedMove { token, job, .. } = (!self.ended.is_empty()).then(|| self.ended.remove(0))?;
        Some((token, job))
    }

    /// Returns a started job when it has ended, at the latest after `longest`: polls for a while, then sleeps.
    pub(in crate::mover) fn wait(&mut self, token: u64, longest: Nanos) -> Option<MoveJob> {
        let begun = self.clock.now();
        loop {
            if let Some(job) = self.take(token) {
                return Some(job);
            }
            let waited = self.clock.now().since(begun);
            let awaited = self.started.iter().find(|started| started.token == token)?.channel;
            if waited >= longest {
                return None;
            }
            self.pause(|channel| channel == awaited, waited, longest);
        }
    }

    /// Waits until every started job has ended, at the latest for `longest`: polls for a while, then sleeps. Returns true if all
    /// have ended.
    pub(in crate::mover) fn drain(&mut self, longest: Nanos) -> bool {
        let begun = self.clock.now();
        loop {
            self.collect_all();
            if self.started.is_empty() {
                return true;
            }
            let waited = self.clock.now().since(begun);
            if waited >= longest {
                return false;
            }
            // A channel that has no job may be dead: nothing wakes the owner from there.
            let awaited: Vec<usize> = self.started.iter().map(|started| started.channel).collect();
            self.pause(|channel| awaited.contains(&channel), waited, longest);
        }
    }

    /// Waits a moment, or sleeps until one of the channels that are waited for ends a job.
    fn pause(&mut self, is_awaited: impl Fn(usize) -> bool, waited: Nanos, longest: Nanos) {
        let mut awaited = self.channels.iter_mut().enumerate().filter(|(channel, _)| is_awaited(*channel));
        if waited < SPIN_BEFORE_SLEEP || !awaited.all(|(_, used)| used.channel.prepare_sleep()) {
            return self.clock.wait();
        }
        let awaited = self.wake_descriptors().enumerate().filter(|(channel, _)| is_awaited(*channel));
        let wakes: Option<Vec<PollFd<'_>>> =
            awaited.map(|(_, wake)| Some(PollFd::from_borrowed_fd(wake?, PollFlags::IN))).collect();
        let Some(mut wakes) = wakes else { return self.clock.wait() };
        // An error is a signal, or a kernel without memory: the loop looks again.
        let _ = poll(&mut wakes, Some(&longest.since(waited).to_timespec()));
    }

    /// Prepares a sleep on the descriptors of all channels; `None` if a channel must be polled.
    pub(in crate::mover) fn prepare_sleep(&mut self) -> Option<Vec<BorrowedFd<'_>>> {
        let may_sleep = self.channels.iter_mut().all(|used| used.channel.prepare_sleep());
        may_sleep.then(|| self.wake_descriptors().collect()).flatten()
    }
}
