//! One cache for several threads.
//!
//! Input: the calls of a [`BlockCache`] from any thread. Output: the same results, each to the user that requested it.
//! Invariant: a thread that polls does the work of all users, so that no user depends on another's polls.
//!
//! One lock guards the cache and its backing device. It is held for a lookup and one copy, about two hundred
//! nanoseconds on a hit, and never while the device works. Shards would allow concurrent hits, but a run of pages, a
//! flush and the limit of dirty pages concern all shards at once; for hits without a lock, give each thread its own
//! cache and its own part of the device.

use super::backing::BackingDevice;
use super::request::{CacheRequest, CacheUser, FinishedRequest, RefusedCacheRequest, SubmitResult};
use super::statistics::CacheStatistics;
use super::{BlockCache, WritePolicy};
use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_host::clock::Nanos;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct SharedCacheState<L> {
    cache: BlockCache,
    lower: L,
}

/// A cache and its backing device, for several users. A clone is another handle to the same cache.
#[derive(Debug)]
pub struct SharedCache<L> {
    state: Arc<Mutex<SharedCacheState<L>>>,
}

impl<L> Clone for SharedCache<L> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state) }
    }
}

impl<L> SharedCache<L> {
    fn lock(&self) -> MutexGuard<'_, SharedCacheState<L>> {
        // A panic under the lock is a defect of this crate; the state machine checks its own invariants.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: BackingDevice> SharedCache<L> {
    /// Shares a cache over its own backing device.
    #[must_use]
    pub fn new(cache: BlockCache, lower: L) -> Self {
        Self { state: Arc::new(Mutex::new(SharedCacheState { cache, lower })) }
    }

    /// Returns the cache and its backing device from the last handle. Flush before, or dirty pages are lost.
    ///
    /// # Errors
    /// The handle, while there are other handles or users.
    pub fn into_parts(self) -> Result<(BlockCache, L), Self> {
        let inside = Arc::try_unwrap(self.state).map_err(|inside| Self { state: inside })?;
        let SharedCacheState { cache, lower } = inside.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((cache, lower))
    }

    /// Adds a user, for one thread at a time.
    #[must_use]
    pub fn join(&self) -> CacheMember<L> {
        let owner = self.lock().cache.join();
        CacheMember { shared: self.clone(), owner }
    }

    /// Returns the counters and the current state.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.lock().cache.statistics()
    }

    /// Sets the policy as [`BlockCache::set_policy`] does.
    pub fn set_policy(&self, policy: WritePolicy) {
        let SharedCacheState { cache, lower } = &mut *self.lock();
        cache.set_policy(lower, policy);
    }

    /// Calls a function with the cache and its backing device, under the lock.
    pub fn with_parts<R>(&self, call: impl FnOnce(&mut BlockCache, &mut L) -> R) -> R {
        let SharedCacheState { cache, lower } = &mut *self.lock();
        call(cache, lower)
    }
}

/// One user of a shared cache. It leaves when it is dropped; its requests continue.
#[derive(Debug)]
pub struct CacheMember<L> {
    shared: SharedCache<L>,
    owner: CacheUser,
}

impl<L: BackingDevice> CacheMember<L> {
    /// Reads as [`BlockCache::read_hit`] does, and starts work that became due.
    #[inline]
    pub fn read_hit(&mut self, offset: u64, into: &mut [u8]) -> bool {
        let SharedCacheState { cache, lower } = &mut *self.shared.lock();
        let hit = cache.read_hit(self.owner, offset, into);
        cache.run_due_work(lower);
        hit
    }

    /// Writes as [`BlockCache::write_hit`] does, and starts work that became due.
    #[inline]
    pub fn write_hit(&mut self, offset: u64, from: &[u8]) -> bool {
        let SharedCacheState { cache, lower } = &mut *self.shared.lock();
        let hit = cache.write_hit(self.owner, offset, from);
        cache.run_due_work(lower);
        hit
    }

    /// Submits as [`BlockCache::submit`] does.
    ///
    /// # Errors
    /// [`RefusedCacheRequest`], as there.
    pub fn submit(&mut self, request: CacheRequest, token: u64) -> Result<SubmitResult, RefusedCacheRequest> {
        let SharedCacheState { cache, lower } = &mut *self.shared.lock();
        cache.submit(lower, self.owner, request, token)
    }

    /// Does the work of all users, then returns the next finished request of this user.
    pub fn poll(&mut self, now: Nanos) -> Option<FinishedRequest> {
        let SharedCacheState { cache, lower } = &mut *self.shared.lock();
        cache.poll(lower, now);
        cache.take_finished(self.owner)
    }

    /// Resizes as [`BlockCache::resize`] does.
    ///
    /// # Errors
    /// [`IoError`], as there.
    pub fn resize(
        &mut self,
        pages: usize,
        token: u64,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<SubmitResult, IoError> {
        let SharedCacheState { cache, lower } = &mut *self.shared.lock();
        cache.resize(lower, self.owner, (pages, token), memory)
    }

    /// Cancels as [`BlockCache::cancel`] does.
    pub fn cancel(&mut self, token: u64) -> bool {
        self.shared.lock().cache.cancel(self.owner, token)
    }

    /// Returns true if the cache has no other user.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.shared.state) == 1
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &SharedCache<L> {
        &self.shared
    }
}

impl<L> Drop for CacheMember<L> {
    fn drop(&mut self) {
        self.shared.lock().cache.leave(self.owner);
    }
}
