//! The I/O path of a handle: directly to its queues, or through a block cache.
//!
//! Input: requests. Output: answers. Invariant: the cache is added and removed while no request is in flight, and
//! removed only when everything in it is on the device.

use crate::device::memory_of;
use crate::fault::Fault;
use headwater::host::clock::Nanos;
use headwater::io::cache::{CacheConfig, PAGE_BYTES, WritePolicy};
use headwater::io::cached_handle::CachedHandle;
use headwater::io::handle::{Handle, IoRequest, RequestCancellation};
use headwater::io::{CompletedCommand, SubmitError};
use headwater::{ClientNamespace, IoError};

/// The I/O path of a handle.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it stays in a table, and the path without a cache is the fast one"
)]
pub(crate) enum Way {
    Straight(Handle),
    Cached(Box<CachedHandle>),
    /// The state while a cache is added or removed; permanent if that fails.
    Closed,
}

/// The size and policy of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheWish {
    pub(crate) pages: usize,
    pub(crate) policy: WritePolicy,
}

impl Way {
    /// Runs a request from its submission to its answer.
    pub(crate) fn run(&mut self, request: IoRequest) -> Result<(), Fault> {
        let ran = match self {
            Self::Straight(handle) => handle.run(request),
            Self::Cached(handle) => handle.run(request),
            Self::Closed => return Err(Fault::Io(SubmitError::Gone.into())),
        };
        ran.map(drop).map_err(|failed| failed.error.into())
    }

    pub(crate) fn submit(&mut self, request: IoRequest, token: u64) -> Result<(), Fault> {
        let submitted = match self {
            Self::Straight(handle) => handle.submit(request, token),
            Self::Cached(handle) => handle.submit(request, token),
            Self::Closed => return Err(Fault::Io(SubmitError::Gone.into())),
        };
        submitted.map_err(|refused| Fault::Request(refused.error))
    }

    pub(crate) fn ring(&mut self) -> Result<(), Fault> {
        self.with(|handle| Ok(handle.ring()?))
    }

    pub(crate) fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        match self {
            Self::Straight(handle) => handle.poll(),
            Self::Cached(handle) => handle.poll(),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn wait(&mut self, longest: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        match self {
            Self::Straight(handle) => handle.wait(longest),
            Self::Cached(handle) => handle.wait(longest),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn cancel(&mut self, token: u64) -> Result<(), Fault> {
        match self {
            Self::Straight(handle) => match handle.cancel(token) {
                RequestCancellation::Waiting | RequestCancellation::Asked => Ok(()),
                RequestCancellation::TooLate => Err(Fault::TooLate),
                RequestCancellation::Unknown => Err(Fault::Tag),
            },
            Self::Cached(handle) => handle.cancel(token).then_some(()).ok_or(Fault::Tag),
            Self::Closed => Err(Fault::Tag),
        }
    }

    /// Runs `work` on the handle of the queues.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut Handle) -> Result<R, Fault>) -> Result<R, Fault> {
        match self {
            Self::Straight(handle) => work(handle),
            Self::Cached(handle) => handle.with_handle(work),
            Self::Closed => Err(Fault::Io(SubmitError::Gone.into())),
        }
    }

    /// Adds a cache, resizes it, or removes it (`None`).
    pub(crate) fn set_cache(
        &mut self,
        cache: Option<CacheWish>,
        facts: &ClientNamespace,
        device: usize,
    ) -> Result<(), Fault> {
        let mut memory = |bytes| memory_of(device, bytes).unwrap_or(Err(IoError::Submit(SubmitError::Gone)));
        match (std::mem::replace(self, Self::Closed), cache) {
            (Self::Straight(handle), Some(_)) if handle.unanswered() > 0 => {
                *self = Self::Straight(handle);
                Err(Fault::OnTheWay)
            }
            (Self::Straight(handle), Some(cache)) => {
                let config = config_of(cache);
                *self = Self::Cached(Box::new(CachedHandle::new(handle, facts, config, &mut memory)?));
                Ok(())
            }
            (Self::Cached(handle), None) if handle.unanswered() > 0 => {
                *self = Self::Cached(handle);
                Err(Fault::OnTheWay)
            }
            (Self::Cached(handle), None) => match handle.into_handle() {
                Ok(handle) => {
                    *self = Self::Straight(handle);
                    Ok(())
                }
                Err((handle, error)) => {
                    *self = Self::Cached(handle);
                    Err(error.into())
                }
            },
            (Self::Cached(mut handle), Some(cache)) => {
                let resized = handle.resize(cache.pages, &mut memory);
                *self = Self::Cached(handle);
                Ok(resized?)
            }
            (same, _) => {
                *self = same;
                Ok(())
            }
        }
    }

    /// Sets the write policy of the cache, if there is one.
    pub(crate) fn set_policy(&mut self, policy: WritePolicy) {
        if let Self::Cached(handle) = self {
            handle.set_policy(policy);
        }
    }

    /// Returns the bytes of the cache, 0 without one.
    pub(crate) fn cache_bytes(&self) -> u64 {
        match self {
            Self::Cached(handle) => handle.cache().with(|cache, _| cache.config().pages * PAGE_BYTES) as u64,
            _ => 0,
        }
    }
}

/// Builds a cache configuration with blocks small enough for a small cache.
fn config_of(cache: CacheWish) -> CacheConfig {
    let defaults = CacheConfig::default();
    let block_pages = cache.pages.next_power_of_two().min(defaults.block_pages);
    CacheConfig { policy: cache.policy, pages: cache.pages, block_pages, ..defaults }
}
