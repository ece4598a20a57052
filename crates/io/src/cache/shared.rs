//! One cache for several threads.
//!
//! Input: the calls of a [`BlockCache`] from any thread. Output: the same results, each to the user that requested it.
//! Invariant: a thread that polls does the work of all users, so that no user depends on another's polls. The thread of
//! the cache, if it has one, writes back pages by their age although no user calls, and calls the wakers of users.
//!
//! One lock guards the cache and its backing device. It is held for a lookup and one copy, about two hundred
//! nanoseconds on a hit, and never while the device works. Shards would allow concurrent hits, but a run of pages, a
//! flush and the limit of dirty pages concern all shards at once; for hits without a lock, give each thread its own
//! cache and its own part of the device.

use super::background::{BackgroundState, BackgroundWork, ThreadSleep};
use super::backing::BackingDevice;
use super::request::{
    CacheRequest, CacheUser, FinishedRequest, RefusedCacheRequest, RequestTag, SubmitResult,
};
use super::statistics::CacheStatistics;
use super::{BlockCache, WritePolicy};
use crate::buffer::Buffer;
use crate::clock::IoClock;
use crate::completion::SleepObservation;
use crate::error::IoError;
use crate::scheduler::RequestClass;
use headwater_host::clock::{Clock, Nanos};
use headwater_nvme::spec::status::Status;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The longest sleep of the thread while pages are dirty: a write-back that a caller started, and that no caller polls
/// for, continues after this time.
const DIRTY_SLEEP_MAX: Nanos = Nanos::from_millis(100);
/// The sleep of the thread while write-backs or jobs of the mover are in flight.
const WRITE_BACK_SLEEP: Nanos = Nanos(500_000);
/// The longest sleep of the thread while requests of users with wakers are in progress; their deadlines are checked as
/// often.
const AWAITED_SLEEP_MAX: Nanos = Nanos::from_millis(1);
/// The longest time for which the last user waits for the write-back of dirty pages when it leaves.
pub const CLOSE_WAIT_MAX: Nanos = Nanos::from_millis(2_000);

#[derive(Debug)]
struct SharedCacheState<L> {
    cache: BlockCache,
    lower: L,
    clock: IoClock,
    /// The last time at which every user with a waker and a request was woken.
    woken_at: Nanos,
    /// A sleep of the thread between two polls: its requested length, its start, and the processor time at its start.
    slept: Option<(Nanos, Nanos, Nanos)>,
    /// The time by which the last write-back ends, once it has begun.
    close_by: Option<Nanos>,
    close_wait: Nanos,
}

impl<L: BackingDevice> BackgroundWork for SharedCacheState<L> {
    fn run_due(&mut self) -> ThreadSleep {
        let now = self.clock.now();
        if let Some((asked, began, used)) = self.slept.take() {
            let cpu = Some(Clock::thread_cpu().since(used));
            self.lower.observe_sleep(SleepObservation { asked, took: now.since(began), cpu });
        }
        self.cache.poll(&mut self.lower, now);
        if now.since(self.woken_at) >= AWAITED_SLEEP_MAX {
            self.woken_at = now;
            self.cache.wake_awaiting();
        }
        if self.cache.awaited() > 0 {
            let span = self.lower.poll_interval().min(AWAITED_SLEEP_MAX);
            if span == Nanos::ZERO {
                return ThreadSleep::None;
            }
            self.slept = Some((span, now, Clock::thread_cpu()));
            return ThreadSleep::For(span.to_duration());
        }
        if self.cache.write_backs_in_flight() > 0 || self.cache.moves_in_flight() > 0 {
            return ThreadSleep::For(WRITE_BACK_SLEEP.to_duration());
        }
        match self.cache.next_deadline().filter(|_| !self.cache.is_gone()) {
            Some(at) => ThreadSleep::For(at.since(now).min(DIRTY_SLEEP_MAX).to_duration()),
            None => ThreadSleep::UntilNotified,
        }
    }

    #[inline]
    fn needs_thread(&self, sleep: ThreadSleep) -> bool {
        let limit = AWAITED_SLEEP_MAX.to_duration();
        let is_long = match sleep {
            ThreadSleep::None => false,
            ThreadSleep::For(span) => span > limit,
            ThreadSleep::UntilNotified => true,
        };
        (is_long && self.cache.awaited() > 0)
            || self.cache.has_woken()
            || (sleep == ThreadSleep::UntilNotified && self.cache.acknowledged() > 0 && !self.cache.is_gone())
    }

    fn take_wakers(&mut self) -> Vec<Waker> {
        if self.cache.has_woken() { self.cache.take_wakers() } else { Vec::new() }
    }

    fn run_last(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        let close_by = match self.close_by {
            Some(by) => by,
            None => {
                self.cache.write_back_all();
                *self.close_by.insert(now.after(self.close_wait))
            }
        };
        self.cache.poll(&mut self.lower, now);
        (self.cache.is_writing_back() && now < close_by).then(|| WRITE_BACK_SLEEP.to_duration())
    }
}

/// The access of all users of a cache: while it exists, the cache is in use.
struct CacheAccess<L: BackingDevice> {
    core: Arc<BackgroundState<SharedCacheState<L>>>,
    clock: IoClock,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<L: BackingDevice> CacheAccess<L> {
    fn stop_thread(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.core.stop();
        // The last user may leave in a waker that this thread calls; then the thread ends by itself.
        if thread.thread().id() != std::thread::current().id() {
            // A panic of the thread is already reported by the panic hook.
            drop(thread.join());
        }
    }
}

impl<L: BackingDevice> Drop for CacheAccess<L> {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

/// A cache and its backing device, for several users. A clone is another handle to the same cache. If the cache has a
/// thread, the last handle waits for the write-back of its dirty pages when it is dropped, at most for
/// [`CLOSE_WAIT_MAX`].
pub struct SharedCache<L: BackingDevice> {
    access: Arc<CacheAccess<L>>,
}

impl<L: BackingDevice> fmt::Debug for SharedCache<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedCache")
    }
}

impl<L: BackingDevice> Clone for SharedCache<L> {
    fn clone(&self) -> Self {
        Self { access: Arc::clone(&self.access) }
    }
}

impl<L: BackingDevice + Send + 'static> SharedCache<L> {
    /// Starts the thread of the cache, if it does not run: it writes back pages when they are old enough although no user
    /// calls, and polls for the requests of users with wakers.
    ///
    /// # Errors
    /// [`IoError`] when the kernel creates no thread.
    pub fn start_thread(&self) -> Result<(), IoError> {
        let mut thread = self.access.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let core = Arc::clone(&self.access.core);
            let started = Builder::new().name("cache".to_owned()).spawn(move || {
                // Sets the timer slack of this thread, so that its sleeps between polls end in time.
                Clock::sleep_precisely(Nanos::ZERO);
                core.run();
            });
            *thread = Some(started.map_err(|error| IoError::Device {
                reason: format!("cannot start the thread of the cache: {error}; raise the limit on threads"),
            })?);
        }
        Ok(())
    }
}

impl<L: BackingDevice> SharedCache<L> {
    /// Shares a cache over its own backing device.
    #[must_use]
    pub fn new(cache: BlockCache, lower: L) -> Self {
        let clock = IoClock::machine();
        let (woken_at, close_wait) = (Nanos::ZERO, CLOSE_WAIT_MAX);
        let state = SharedCacheState {
            cache,
            lower,
            clock: clock.clone(),
            woken_at,
            slept: None,
            close_by: None,
            close_wait,
        };
        let core = Arc::new(BackgroundState::new(state));
        Self { access: Arc::new(CacheAccess { core, clock, thread: Mutex::new(None) }) }
    }

    fn with<R>(&self, call: impl FnOnce(&mut SharedCacheState<L>) -> R) -> R {
        self.access.core.with(call)
    }

    /// Returns the clock by which pages age: all users share it.
    #[must_use]
    pub fn clock(&self) -> IoClock {
        self.access.clock.clone()
    }

    /// Returns the cache and its backing device from the last handle, once its thread has ended. Flush before, or dirty
    /// pages are lost that the thread cannot write back in time.
    ///
    /// # Errors
    /// The handle, while there are other handles or users.
    pub fn into_parts(self) -> Result<(BlockCache, L), Self> {
        let access = Arc::try_unwrap(self.access).map_err(|access| Self { access })?;
        access.stop_thread();
        let core = Arc::clone(&access.core);
        drop(access);
        match Arc::try_unwrap(core) {
            Ok(core) => {
                let SharedCacheState { cache, lower, .. } = core.into_inner();
                Ok((cache, lower))
            }
            Err(_) => unreachable!("the thread of a cache ended and kept the cache"),
        }
    }

    /// Adds a user, for one thread at a time.
    #[must_use]
    pub fn join(&self) -> CacheMember<L> {
        let owner = self.with(|state| state.cache.join());
        CacheMember { shared: self.clone(), owner }
    }

    /// Returns the counters and the current state.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.with(|state| state.cache.statistics())
    }

    /// Sets the policy as [`BlockCache::set_policy`] does.
    pub fn set_policy(&self, policy: WritePolicy) {
        self.with(|state| state.cache.set_policy(&mut state.lower, policy));
    }

    /// Sets the longest time for which the last user waits for the write-back of dirty pages when it leaves.
    pub fn set_close_wait(&self, longest: Nanos) {
        self.with(|state| state.close_wait = longest);
    }

    /// Calls a function with the cache and its backing device, under the lock.
    pub fn with_parts<R>(&self, call: impl FnOnce(&mut BlockCache, &mut L) -> R) -> R {
        self.with(|state| call(&mut state.cache, &mut state.lower))
    }
}

/// One user of a shared cache. It leaves when it is dropped; its requests continue.
#[derive(Debug)]
pub struct CacheMember<L: BackingDevice> {
    shared: SharedCache<L>,
    owner: CacheUser,
}

impl<L: BackingDevice> CacheMember<L> {
    /// Returns the user.
    #[must_use]
    pub fn user(&self) -> CacheUser {
        self.owner
    }

    /// Reads as [`BlockCache::read_hit`] does, and starts work that became due.
    #[inline]
    pub fn read_hit(&mut self, offset: u64, into: &mut [u8]) -> bool {
        self.shared.with(|SharedCacheState { cache, lower, .. }| {
            let hit = cache.read_hit(self.owner, offset, into);
            cache.run_due_work(lower);
            hit
        })
    }

    /// Writes as [`BlockCache::write_hit`] does, and starts work that became due.
    #[inline]
    pub fn write_hit(&mut self, offset: u64, from: &[u8]) -> bool {
        self.shared.with(|SharedCacheState { cache, lower, clock, .. }| {
            cache.observe_time(clock);
            let hit = cache.write_hit(self.owner, offset, from);
            cache.run_due_work(lower);
            hit
        })
    }

    /// Submits as [`BlockCache::submit`] does.
    ///
    /// # Errors
    /// [`RefusedCacheRequest`], as there.
    pub fn submit(
        &mut self,
        request: CacheRequest,
        tag: impl Into<RequestTag>,
    ) -> Result<SubmitResult, RefusedCacheRequest> {
        self.shared.with(|SharedCacheState { cache, lower, clock, .. }| {
            cache.observe_time(clock);
            cache.submit(lower, self.owner, request, tag)
        })
    }

    /// Does the work of all users, then returns the next finished request of this user.
    pub fn poll(&mut self, now: Nanos) -> Option<FinishedRequest> {
        self.shared.with(|SharedCacheState { cache, lower, .. }| {
            cache.poll(lower, now);
            cache.take_finished(self.owner)
        })
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
        self.shared.with(|SharedCacheState { cache, lower, .. }| {
            cache.resize(lower, self.owner, (pages, token), memory)
        })
    }

    /// Cancels as [`BlockCache::cancel`] does.
    pub fn cancel(&mut self, token: u64) -> bool {
        self.shared.with(|state| state.cache.cancel(self.owner, token))
    }

    /// Returns the status of a failed write-back that was not reported to this user, once.
    pub fn take_failure(&mut self) -> Option<Status> {
        self.shared.with(|state| state.cache.take_failure(self.owner))
    }

    /// Sets the class of the transfers that hits of this user cause.
    pub fn set_class(&mut self, class: RequestClass) {
        self.shared.with(|state| state.cache.set_class(self.owner, class));
    }

    /// Sets the waker that the thread of the cache calls when requests of this user have finished.
    pub fn set_waker(&mut self, waker: Waker) {
        self.shared.with(|state| state.cache.set_waker(self.owner, waker));
    }

    /// Returns true if the cache has no other user.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.shared.access) == 1
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &SharedCache<L> {
        &self.shared
    }
}

impl<L: BackingDevice> Drop for CacheMember<L> {
    fn drop(&mut self) {
        self.shared.with(|SharedCacheState { cache, lower, .. }| {
            cache.leave(self.owner);
            lower.user_left(self.owner);
        });
    }
}
