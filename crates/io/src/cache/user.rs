//! The users of a cache: their requests in progress, finished requests, and reported failures.
//!
//! Input: finished requests, failed writes, reads. Output: the same for each user. Invariant: each user receives each
//! failed write-back once, by a flush or by its next write; a user's number is not reused while it has requests in progress.

use super::request::{CacheUser, FinishedRequest};
use super::streams::ReadStreams;
use crate::scheduler::RequestClass;
use headwater_host::width::narrow;
use std::collections::VecDeque;
use std::ops::Range;
use std::task::Waker;

/// The users of a cache.
#[derive(Debug, Default)]
pub(super) struct CacheUsers {
    users: Vec<UserState>,
    /// The write-backs that failed after their writes were acknowledged.
    failures: u64,
    /// The requests in progress of users with a waker.
    awaited: usize,
    /// The users with finished requests whose wakers were not called since.
    woken: Vec<u32>,
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
    /// The class of the transfers that its hits cause later.
    class: RequestClass,
    /// Called when a request finishes, by the thread of the cache.
    waker: Option<Waker>,
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
            if user.waker.take().is_some() {
                self.awaited -= user.pending;
            }
        }
    }

    pub(super) fn is_joined(&self, owner: u32) -> bool {
        self.users.get(owner as usize).is_some_and(|user| !user.has_left)
    }

    /// Counts a request in progress.
    pub(super) fn count_request(&mut self, owner: u32) {
        let user = &mut self.users[owner as usize];
        user.pending += 1;
        self.awaited += usize::from(user.waker.is_some());
    }

    /// Sets the waker of a user.
    pub(super) fn set_waker(&mut self, owner: u32, waker: Waker) {
        let user = &mut self.users[owner as usize];
        if user.waker.replace(waker).is_none() {
            self.awaited += user.pending;
        }
    }

    /// Returns the number of requests in progress whose users have wakers.
    pub(super) fn awaited(&self) -> usize {
        self.awaited
    }

    /// Returns true if wakers wait to be called.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Marks every user with a waker and a request in progress, whose deadline may have passed.
    pub(super) fn wake_awaiting(&mut self) {
        if self.awaited > 0 {
            let due = |user: &UserState| user.waker.is_some() && user.pending > 0;
            self.woken.extend((0..).zip(&self.users).filter(|(_, user)| due(user)).map(|(number, _)| number));
        }
    }

    /// Returns the wakers of the marked users, each once.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut woken = std::mem::take(&mut self.woken);
        woken.sort_unstable();
        woken.dedup();
        let waker_of = |owner: u32| self.users.get(owner as usize)?.waker.clone();
        woken.into_iter().filter_map(waker_of).collect()
    }

    /// Sets the class of the transfers that hits of a user cause.
    pub(super) fn set_class(&mut self, owner: u32, class: RequestClass) {
        if let Some(user) = self.users.get_mut(owner as usize) {
            user.class = class;
        }
    }

    #[inline]
    pub(super) fn class(&self, owner: u32) -> RequestClass {
        self.users.get(owner as usize).map_or(RequestClass::FIRST, |user| user.class)
    }

    pub(super) fn finish(&mut self, owner: u32, finished: FinishedRequest) {
        let user = &mut self.users[owner as usize];
        user.pending -= 1;
        if user.waker.is_some() {
            self.awaited -= 1;
            self.woken.push(owner);
        }
        if !user.has_left {
            user.finished.push_back(finished);
        }
    }

    #[inline]
    pub(super) fn take(&mut self, owner: u32) -> Option<FinishedRequest> {
        self.users.get_mut(owner as usize)?.finished.pop_front()
    }

    /// Takes the finished request of a user that was added last; its caller receives it at once, without a call of the waker.
    pub(super) fn take_last(&mut self, owner: u32) -> Option<FinishedRequest> {
        let finished = self.users.get_mut(owner as usize)?.finished.pop_back()?;
        if self.woken.last() == Some(&owner) {
            self.woken.pop();
        }
        Some(finished)
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

    /// Returns true if a failure was not reported to the user.
    #[inline]
    pub(super) fn has_news(&self, owner: u32) -> bool {
        self.users.get(owner as usize).is_some_and(|user| user.failures_reported != self.failures)
    }

    /// Marks all failures as reported to the user, and returns true if there were new ones.
    pub(super) fn report_failures(&mut self, owner: u32) -> bool {
        let user = &mut self.users[owner as usize];
        std::mem::replace(&mut user.failures_reported, self.failures) != self.failures
    }
}
