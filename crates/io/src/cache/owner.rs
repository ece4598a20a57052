//! The users of a cache: what each began, what is finished for it, what it was told.
//!
//! In: finished requests, failed writes, reads. Out: the same to whom they concern. Invariant: each user is told of each
//! failed write-back once, by a flush; a number is given to nobody else while something under it is under way.

use super::request::{Finished, Owner};
use super::streams::Streams;
use std::collections::VecDeque;
use std::ops::Range;

/// All users.
#[derive(Debug, Default)]
pub(super) struct Owners {
    users: Vec<User>,
    /// Write-backs that failed after their writes were acknowledged.
    failures: u64,
}

#[derive(Debug, Default)]
struct User {
    finished: VecDeque<Finished>,
    streams: Streams,
    last_page: Option<u64>,
    /// Failures that it was told of.
    told: u64,
    /// Requests under way.
    pending: usize,
    is_gone: bool,
}

impl Owners {
    pub(super) fn join(&mut self) -> Owner {
        let user = User { told: self.failures, ..User::default() };
        let vacant = self.users.iter().position(|user| user.is_gone && user.pending == 0);
        let at = vacant.unwrap_or_else(|| {
            self.users.push(User::default());
            self.users.len() - 1
        });
        self.users[at] = user;
        Owner(u32::try_from(at).unwrap_or(u32::MAX))
    }

    pub(super) fn leave(&mut self, owner: Owner) {
        if let Some(user) = self.users.get_mut(owner.0 as usize) {
            user.is_gone = true;
            user.finished.clear();
        }
    }

    pub(super) fn is_here(&self, owner: u32) -> bool {
        self.users.get(owner as usize).is_some_and(|user| !user.is_gone)
    }

    /// Counts a request that will be finished.
    pub(super) fn begin(&mut self, owner: u32) {
        self.users[owner as usize].pending += 1;
    }

    pub(super) fn finish(&mut self, owner: u32, finished: Finished) {
        let user = &mut self.users[owner as usize];
        user.pending -= 1;
        if !user.is_gone {
            user.finished.push_back(finished);
        }
    }

    #[inline]
    pub(super) fn take(&mut self, owner: u32) -> Option<Finished> {
        self.users.get_mut(owner as usize)?.finished.pop_front()
    }

    /// Whether the user's last use was of this page, too; from now on it was.
    #[inline]
    pub(super) fn is_same_page(&mut self, owner: u32, page: u64) -> bool {
        let user = self.users.get_mut(owner as usize);
        user.is_some_and(|user| user.last_page.replace(page) == Some(page))
    }

    /// Notes a read; the pages to read ahead, if it is time.
    #[inline]
    pub(super) fn note(&mut self, owner: u32, first: u64, end: u64, most: u32) -> Option<Range<u64>> {
        self.users.get_mut(owner as usize)?.streams.note(first, end, most)
    }

    /// A write-back failed whose write was acknowledged.
    pub(super) fn note_failure(&mut self) {
        self.failures += 1;
    }

    /// Whether there is a failure that the user was not told of; now it is.
    pub(super) fn tell(&mut self, owner: u32) -> bool {
        let user = &mut self.users[owner as usize];
        std::mem::replace(&mut user.told, self.failures) != self.failures
    }
}
