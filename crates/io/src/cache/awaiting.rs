//! The interface between a cache and its thread: the work that no call does.
//!
//! Input: none. Output: counts of what is in progress, and the wakers of users. Invariant: a user with a waker is woken
//! after each of its requests.

use super::BlockCache;
use super::frames::FrameList;
use super::request::CacheUser;
use crate::clock::IoClock;
use std::task::Waker;

impl BlockCache {
    /// Sets the waker of a user.
    pub(super) fn set_waker(&mut self, owner: CacheUser, waker: Waker) {
        self.users.set_waker(owner.0, waker);
    }

    /// Returns the number of requests in progress of users with wakers.
    #[inline]
    pub(super) fn awaited(&self) -> usize {
        self.users.awaited()
    }

    /// Returns true if a user with a waker has a finished request that it was not woken for.
    #[inline]
    pub(super) fn has_woken(&self) -> bool {
        self.users.has_woken()
    }

    /// Marks every user with a waker and a request as to be woken.
    pub(super) fn wake_awaiting(&mut self) {
        self.users.wake_awaiting();
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.users.take_wakers()
    }

    /// Returns the number of dirty pages for whose write-back no request waits.
    #[inline]
    pub(super) fn acknowledged(&self) -> usize {
        self.acknowledged
    }

    /// Returns the number of write-backs in flight.
    pub(super) fn write_backs_in_flight(&self) -> u32 {
        self.write_backs
    }

    /// Returns true if the device is gone.
    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// Makes every dirty page urgent, those too whose last write-back failed.
    pub(super) fn write_back_all(&mut self) {
        self.mark_urgent(FrameList::Failed);
        self.mark_urgent(FrameList::Dirty);
    }

    /// Returns true while pages are being written back or wait for it; a page whose write-back failed does not.
    pub(super) fn is_writing_back(&self) -> bool {
        let waiting = self.frames.len(FrameList::Urgent) + self.frames.len(FrameList::Dirty);
        self.gone.is_none() && (self.write_backs > 0 || waiting > 0)
    }

    /// Takes over the time before a write, if no page is dirty: the age of a page counts from its write, and the last poll
    /// may be long ago.
    #[inline]
    pub(super) fn observe_time(&mut self, clock: &IoClock) {
        if self.dirty == 0 {
            self.now = self.now.max(clock.now());
        }
    }
}
