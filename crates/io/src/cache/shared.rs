//! One cache for several threads.
//!
//! In: the calls of a [`Cache`], from any thread. Out: the same answers, each to the user that asked. Invariant: whoever
//! polls does the work of all: no user waits for another to come by.
//!
//! One lock guards the cache and the way down. It is held for a look-up and one copy, some two hundred nanoseconds on a hit, and
//! never while the device works. Shards would let hits go side by side, but a run of pages, a flush and the share of
//! dirty pages concern all shards at once; whoever wants hits without a lock gives each thread a cache, and a part of the
//! device, of its own.

use super::lower::Lower;
use super::request::{Finished, Owner, Refused, Request, Submitted};
use super::statistics::CacheStatistics;
use super::{Cache, WritePolicy};
use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_host::clock::Nanos;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct Inside<L> {
    cache: Cache,
    lower: L,
}

/// A cache and its way down, for several users. A clone is another handle to the same one.
#[derive(Debug)]
pub struct SharedCache<L> {
    inside: Arc<Mutex<Inside<L>>>,
}

impl<L> Clone for SharedCache<L> {
    fn clone(&self) -> Self {
        Self { inside: Arc::clone(&self.inside) }
    }
}

impl<L> SharedCache<L> {
    fn lock(&self) -> MutexGuard<'_, Inside<L>> {
        // A panic under the lock was one of ours; the state machine checks what it rests on.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: Lower> SharedCache<L> {
    /// A cache over its own way down.
    #[must_use]
    pub fn new(cache: Cache, lower: L) -> Self {
        Self { inside: Arc::new(Mutex::new(Inside { cache, lower })) }
    }

    /// The cache and its way down, from the last handle to them. What is dirty is flushed before, or lost.
    ///
    /// # Errors
    /// The handle, while there are others or users.
    pub fn into_parts(self) -> Result<(Cache, L), Self> {
        let inside = Arc::try_unwrap(self.inside).map_err(|inside| Self { inside })?;
        let Inside { cache, lower } = inside.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((cache, lower))
    }

    /// A new user, for one thread at a time.
    #[must_use]
    pub fn join(&self) -> Member<L> {
        let owner = self.lock().cache.join();
        Member { shared: self.clone(), owner }
    }

    /// What it counted, and how things stand.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.lock().cache.statistics()
    }

    /// [`Cache::set_policy`].
    pub fn set_policy(&self, policy: WritePolicy) {
        let Inside { cache, lower } = &mut *self.lock();
        cache.set_policy(lower, policy);
    }

    /// Calls with the cache and its way down, under the lock.
    pub fn with<R>(&self, call: impl FnOnce(&mut Cache, &mut L) -> R) -> R {
        let Inside { cache, lower } = &mut *self.lock();
        call(cache, lower)
    }
}

/// One user of a shared cache. It leaves when it is dropped; what it began goes on.
#[derive(Debug)]
pub struct Member<L> {
    shared: SharedCache<L>,
    owner: Owner,
}

impl<L: Lower> Member<L> {
    /// [`Cache::read_hit`], and what a hit makes due.
    #[inline]
    pub fn read_hit(&mut self, offset: u64, into: &mut [u8]) -> bool {
        let Inside { cache, lower } = &mut *self.shared.lock();
        let hit = cache.read_hit(self.owner, offset, into);
        cache.do_due(lower);
        hit
    }

    /// [`Cache::write_hit`], and what a hit makes due.
    #[inline]
    pub fn write_hit(&mut self, offset: u64, from: &[u8]) -> bool {
        let Inside { cache, lower } = &mut *self.shared.lock();
        let hit = cache.write_hit(self.owner, offset, from);
        cache.do_due(lower);
        hit
    }

    /// [`Cache::submit`].
    ///
    /// # Errors
    /// [`Refused`], as there.
    pub fn submit(&mut self, request: Request, token: u64) -> Result<Submitted, Refused> {
        let Inside { cache, lower } = &mut *self.shared.lock();
        cache.submit(lower, self.owner, request, token)
    }

    /// Does the work of all users, then takes the next request of this one that is finished.
    pub fn poll(&mut self, now: Nanos) -> Option<Finished> {
        let Inside { cache, lower } = &mut *self.shared.lock();
        cache.turn(lower, now);
        cache.take(self.owner)
    }

    /// [`Cache::resize`].
    ///
    /// # Errors
    /// [`IoError`], as there.
    pub fn resize(
        &mut self,
        pages: usize,
        token: u64,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Submitted, IoError> {
        let Inside { cache, lower } = &mut *self.shared.lock();
        cache.resize(lower, self.owner, (pages, token), memory)
    }

    /// [`Cache::cancel`].
    pub fn cancel(&mut self, token: u64) -> bool {
        self.shared.lock().cache.cancel(self.owner, token)
    }

    /// Whether nobody else uses the cache.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.shared.inside) == 1
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> &SharedCache<L> {
        &self.shared
    }
}

impl<L> Drop for Member<L> {
    fn drop(&mut self) {
        self.shared.lock().cache.leave(self.owner);
    }
}
