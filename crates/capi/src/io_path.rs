//! The I/O path of a handle: directly to its queues, or through a block cache.
//!
//! Input: requests. Output: answers. Invariant: the cache is added and removed while no request is in flight, and
//! removed only when everything in it is on the device.

use crate::call_error::CallError;
use crate::device_memory::{AllocationError, allocate_buffer};
use headwater::host::clock::Nanos;
use headwater::io::cache::{CacheConfig, PAGE_BYTES, WritePolicy};
use headwater::io::cached_handle::CachedHandle;
use headwater::io::error::CacheError;
use headwater::io::handle::{Handle, IoRequest, RequestCancellation};
use headwater::io::{CompletedCommand, SubmitError};
use headwater::{ClientNamespace, IoError};

/// The I/O path of a handle.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it stays in a table, and the path without a cache is the fast one"
)]
pub(crate) enum IoPath {
    Direct(Handle),
    Cached(Box<CachedHandle>),
    /// Through a cache that it shares with other handles.
    Joined(Box<CachedHandle>),
    /// The state while a cache is added or removed; permanent if that fails.
    Closed,
}

/// The size and policy of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSize {
    pub(crate) pages: usize,
    pub(crate) policy: WritePolicy,
}

impl IoPath {
    /// Runs a request from its submission to its answer.
    pub(crate) fn run(&mut self, request: IoRequest) -> Result<(), CallError> {
        let ran = match self {
            Self::Direct(handle) => handle.run(request),
            Self::Cached(handle) | Self::Joined(handle) => handle.run(request),
            Self::Closed => return Err(CallError::Io(SubmitError::Gone.into())),
        };
        ran.map(drop).map_err(|failed| failed.error.into())
    }

    pub(crate) fn submit(&mut self, request: IoRequest, token: u64) -> Result<(), CallError> {
        let submitted = match self {
            Self::Direct(handle) => handle.submit(request, token),
            Self::Cached(handle) | Self::Joined(handle) => handle.submit(request, token),
            Self::Closed => return Err(CallError::Io(SubmitError::Gone.into())),
        };
        submitted.map_err(|refused| CallError::Request(refused.error))
    }

    pub(crate) fn ring(&mut self) -> Result<(), CallError> {
        self.with(|handle| Ok(handle.ring()?))
    }

    pub(crate) fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        match self {
            Self::Direct(handle) => handle.poll(),
            Self::Cached(handle) | Self::Joined(handle) => handle.poll(),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn wait(&mut self, longest: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        match self {
            Self::Direct(handle) => handle.wait(longest),
            Self::Cached(handle) | Self::Joined(handle) => handle.wait(longest),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn cancel(&mut self, token: u64) -> Result<(), CallError> {
        match self {
            Self::Direct(handle) => match handle.cancel(token) {
                RequestCancellation::NotSubmitted | RequestCancellation::AbortSent => Ok(()),
                RequestCancellation::TooLate => Err(CallError::TooLate),
                RequestCancellation::Unknown => Err(CallError::UnknownTag),
            },
            Self::Cached(handle) | Self::Joined(handle) => {
                handle.cancel(token).then_some(()).ok_or(CallError::UnknownTag)
            }
            Self::Closed => Err(CallError::UnknownTag),
        }
    }

    /// Runs `work` on the handle of the queues.
    pub(crate) fn with<R>(
        &mut self,
        work: impl FnOnce(&mut Handle) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        match self {
            Self::Direct(handle) => work(handle),
            Self::Cached(handle) | Self::Joined(handle) => handle.with_handle(work),
            Self::Closed => Err(CallError::Io(SubmitError::Gone.into())),
        }
    }

    /// Adds a cache, resizes it, or removes it (`None`).
    pub(crate) fn set_cache(
        &mut self,
        cache: Option<CacheSize>,
        facts: &ClientNamespace,
        device: usize,
    ) -> Result<(), CallError> {
        let mut memory = |bytes| {
            allocate_buffer(device, bytes).map_err(|error| match error {
                AllocationError::Device(_) => IoError::Submit(SubmitError::Gone),
                AllocationError::Pool(error) => error,
            })
        };
        match (std::mem::replace(self, Self::Closed), cache) {
            (Self::Direct(handle), Some(_)) if handle.outstanding() > 0 => {
                *self = Self::Direct(handle);
                Err(CallError::RequestsInFlight)
            }
            (Self::Direct(handle), Some(cache)) => {
                let config = cache_config(cache);
                *self = Self::Cached(Box::new(CachedHandle::new(handle, facts, config, &mut memory)?));
                Ok(())
            }
            (Self::Cached(handle), None) if handle.outstanding() > 0 => {
                *self = Self::Cached(handle);
                Err(CallError::RequestsInFlight)
            }
            (Self::Cached(handle), None) => match handle.into_handle() {
                Ok(handle) => {
                    *self = Self::Direct(handle);
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
            (Self::Joined(mut handle), Some(cache)) => {
                let resized = handle.resize(cache.pages, &mut memory);
                *self = Self::Joined(handle);
                Ok(resized?)
            }
            (Self::Joined(handle), None) => {
                *self = Self::Joined(handle);
                Err(IoError::from(CacheError::InUse).into())
            }
            (same, _) => {
                *self = same;
                Ok(())
            }
        }
    }

    /// Leaves the cache before the handle ends: flushes, and keeps the handle of the queues if they are its own.
    pub(crate) fn leave_cache(&mut self, facts: &ClientNamespace, device: usize) -> Result<(), CallError> {
        match std::mem::replace(self, Self::Closed) {
            Self::Joined(mut handle) if !handle.has_own_queues() => Ok(handle.flush()?),
            Self::Joined(handle) => match handle.into_handle() {
                Ok(handle) => {
                    *self = Self::Direct(handle);
                    Ok(())
                }
                Err((handle, error)) => {
                    // The failure is reported, and the queues are detached all the same: the cache keeps the pages.
                    let left = handle.leave();
                    *self = left.map_or(Self::Closed, Self::Direct);
                    Err(error.into())
                }
            },
            other => {
                *self = other;
                self.set_cache(None, facts, device)
            }
        }
    }

    /// Sets the write policy of the cache, if there is one.
    pub(crate) fn set_policy(&mut self, policy: WritePolicy) {
        if let Self::Cached(handle) | Self::Joined(handle) = self {
            handle.set_policy(policy);
        }
    }

    /// Returns the bytes of the cache, 0 without one.
    pub(crate) fn cache_bytes(&self) -> u64 {
        match self {
            Self::Cached(handle) | Self::Joined(handle) => {
                handle.cache().with_parts(|cache, _| cache.config().pages * PAGE_BYTES) as u64
            }
            _ => 0,
        }
    }
}

/// Builds a cache configuration with blocks small enough for a small cache.
fn cache_config(cache: CacheSize) -> CacheConfig {
    let defaults = CacheConfig::default();
    let block_pages = cache.pages.next_power_of_two().min(defaults.block_pages);
    CacheConfig { policy: cache.policy, pages: cache.pages, block_pages, ..defaults }
}
