//! Joining a cache with queues of its own, leaving it, and closing it.
//!
//! Input: handles without requests in progress. Output: the same handles. Invariant: a handle is returned with nothing in
//! flight, and a cache is closed within the time that the caller allows.

use super::{BufferForm, CachedHandle, SplitRequest};
use crate::cache::{CacheRequest, HandleBacking, SharedCache};
use crate::client_namespace::ClientNamespace;
use crate::error::{CacheError, IoError};
use crate::handle::{Handle, IoRequest};
use crate::scheduler::RequestClass;
use headwater_host::clock::Nanos;
use std::task::Waker;

impl CachedHandle {
    /// Creates another handle on a cache, with queues and policies of its own: `handle` carries the transfers that the
    /// requests of the new handle cause, in the order of its scheduler. It must cover the blocks of the cache.
    ///
    /// # Errors
    /// [`CacheError::OtherRange`] and [`CacheError::UserNumber`], with the handle.
    pub fn join_with(
        cache: &SharedCache<HandleBacking>,
        facts: &ClientNamespace,
        handle: Handle,
    ) -> Result<Self, (Box<Handle>, IoError)> {
        let joined = Self::join(cache, facts);
        let user = joined.member.user();
        match cache.with_parts(|_, lower| lower.add_handle(user, handle)) {
            Ok(()) => Ok(joined),
            Err((handle, error)) => Err((handle, error.into())),
        }
    }

    /// Returns true if this handle has queues and policies of its own.
    #[must_use]
    pub fn has_own_queues(&self) -> bool {
        let user = self.member.user();
        self.member.cache().with_parts(|_, lower| lower.has_handle(user))
    }

    /// Returns the own handle of a user that leaves, or removes the cache and returns its handle: flushes and waits.
    ///
    /// # Errors
    /// The failure of the flush, or a refusal because the cache has other users and this handle has no queues of its own;
    /// with this handle unchanged.
    pub fn into_handle(mut self) -> Result<Handle, (Box<Self>, IoError)> {
        if let Err(failed) = self.run(IoRequest::flush()) {
            return Err((Box::new(self), failed.error));
        }
        if self.has_own_queues() {
            return self.take_own_handle();
        }
        let Self { member, facts, path, .. } = self;
        let cache = member.cache().clone();
        drop(member);
        match cache.into_parts() {
            Ok((_, lower)) => Ok(lower.into_handle()),
            Err(cache) => {
                let again = Self { path, ..Self::join(&cache, &facts) };
                Err((Box::new(again), CacheError::InUse.into()))
            }
        }
    }

    /// Waits until the own handle has nothing in flight, and returns it.
    fn take_own_handle(mut self) -> Result<Handle, (Box<Self>, IoError)> {
        let user = self.member.user();
        loop {
            let (taken, failure) =
                self.member.cache().with_parts(|_, lower| (lower.take_handle(user), lower.take_failure()));
            if let Some(handle) = taken {
                return Ok(handle);
            }
            if let Some(error) = failure {
                return Err((Box::new(self), error));
            }
            self.poll_cache();
            std::hint::spin_loop();
        }
    }

    /// Leaves the cache without a flush: its pages stay there. Returns the own handle, once it has nothing in flight, if
    /// this user has one and the device is there.
    #[must_use]
    pub fn leave(self) -> Option<Handle> {
        if self.has_own_queues() { self.take_own_handle().ok() } else { None }
    }

    /// Returns true if no other handle uses the cache.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.member.is_alone()
    }

    /// Flushes within a time. A flush that is late goes on; the next one waits for it.
    ///
    /// # Errors
    /// The failure of the flush or of an earlier write-back; [`CacheError::CloseTimeout`] if it did not complete in time.
    pub fn flush_within(&mut self, longest: Nanos) -> Result<(), IoError> {
        let key = self.insert_request(SplitRequest::of(0, BufferForm::None, 1, None));
        self.submit_piece(CacheRequest::Flush, RequestClass::FIRST, (key, 0));
        match self.wait_for_key_within(key, Some(longest)) {
            Some(answer) => answer.completion.into_result().map(drop),
            None => {
                // The result of the late flush is of no request any more.
                self.requests.remove(&key);
                let dirty_bytes = self.statistics().dirty_bytes;
                Err(CacheError::CloseTimeout { dirty_bytes, waited: longest }.into())
            }
        }
    }

    /// Flushes within a time, and leaves the cache. Reports every failed write-back that this handle was not told of. The
    /// last handle of a cache removes it; it waits no longer than `longest` for dirty pages.
    ///
    /// # Errors
    /// The failure of the flush; [`CacheError::CloseTimeout`] if it did not complete in time.
    pub fn close(mut self, longest: Nanos) -> Result<(), IoError> {
        let flushed = self.flush_within(longest);
        if self.is_alone() {
            // The time is used up: the thread of the cache tries once more and does not wait.
            self.member.cache().set_close_wait(Nanos::ZERO);
        }
        flushed
    }

    /// Starts the thread of the cache, and makes it call a waker when requests of this handle have finished.
    pub(crate) fn start_waking(&mut self, waker: &Waker) -> Result<(), IoError> {
        self.member.cache().start_thread()?;
        self.member.set_waker(waker.clone());
        Ok(())
    }
}
