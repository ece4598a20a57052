//! The users of a cache: their requests in progress, finished requests, and reported failures.
//!
//! Input: finished requests, failed writes, reads. Output: the same for each user. Invariant: each user receives each
//! failed write-back once, by a flush; a user's number is not reused while it has requests in progress.

use super::request::{CacheUser, FinishedRequest};
use super::streams::ReadStreams;
use headwater_host::width::narrow;
use std::collections::VecDeque;
use std::ops::Range;

/// The users of a cache.
#[derive(Debug, Default)]
pub(super) struct CacheUsers {
    users: Vec<UserState>,
    /// The write-backs that failed after their writes were acknowledged.
    failures: u64,
}

#[derive(Debug, Default)]
struct UserState {
    finished: VecDeque<FinishedRequest>,
    streams: ReadStreams,
    last_page: Option<u64>,
    /// The failures reported to it.
    failures_reported: u64,
    /// The requests in progress.
    pending: usize,
    has_left: bool,
}

impl CacheUsers {
    pub(super) fn join(&mut self) -> CacheUser {
        let user = UserState { failures_reported: self.failures, ..UserState::default() };
        let vacant = self.users.iter().position(|user| user.has_left && user.pending == 0);
        let at = vacant.unwrap_or_else(|| {
            self.users.push(UserState::default());
            self.users.len() - 1
        });
        self.users[at] = user;
        CacheUser(narrow(at))
    }

    pub(super) fn leave(&mut self, owner: CacheUser) {
        if let Some(user) = self.users.get_mut(owner.0 as usize) {
            user.has_left = true;
            user.finished.clear();
        }
    }

    pub(super) fn is_joined(&self, owner: u32) -> bool {
        self.users.get(owner as usize).is_some_and(|user| !user.has_left)
    }

    /// Counts a request in progress.
    pub(super) fn count_request(&mut self, owner: u32) {
        self.users[owner as usize].pending += 1;
    }

    pub(super) fn finish(&mut self, owner: u32, finished: FinishedRequest) {
        let user = &mut self.users[owner as usize];
        user.pending -= 1;
        if !user.has_left {
            user.finished.push_back(finished);
        }
    }

    #[inline]
    pub(super) fn take(&mut self, owner: u32) -> Option<FinishedRequest> {
        self.users.get_mut(owner as usize)?.finished.pop_front()
    }

    /// Notes the last page used, and returns true if it is the same as before.
    #[inline]
    pub(super) fn replace_last_page(&mut self, owner: u32, page: u64) -> bool {
        let user = self.users.get_mut(owner as usize);
        user.is_some_and(|user| user.last_page.replace(page) == Some(page))
    }

    /// Notes a read, and returns the pages to prefetch, if any.
    #[inline]
    pub(super) fn record_read(&mut self, owner: u32, first: u64, end: u64, most: u32) -> Option<Range<u64>> {
        self.users.get_mut(owner as usize)?.streams.record_read(first, end, most)
    }

    /// Notes a failed write-back of an acknowledged write.
    pub(super) fn record_failure(&mut self) {
        self.failures += 1;
    }

    /// Marks all failures as reported to the user, and returns true if there were new ones.
    pub(super) fn report_failures(&mut self, owner: u32) -> bool {
        let user = &mut self.users[owner as usize];
        std::mem::replace(&mut user.failures_reported, self.failures) != self.failures
    }
}
