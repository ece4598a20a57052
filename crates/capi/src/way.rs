//! The way of a handle's requests: straight to its queues, or through a block cache before them.
//!
//! In: requests. Out: answers. Invariant: the cache is put on and taken off while nothing is on the way, and taken off only
//! when everything in it is on the device.

use crate::device::memory_of;
use crate::fault::Fault;
use headwater::host::clock::Nanos;
use headwater::io::cache::{CacheConfig, PAGE_BYTES, WritePolicy};
use headwater::io::cached_handle::CachedHandle;
use headwater::io::handle::{Cancelled, Handle, Request};
use headwater::io::{Answer, SubmitError};
use headwater::{IoError, NamespaceFacts};

/// The way.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lies in a table for good, and the straight way is the fast one"
)]
pub(crate) enum Way {
    Straight(Handle),
    Cached(Box<CachedHandle>),
    /// Between the two, and after a failure there for good.
    Closed,
}

/// What a cache is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheWish {
    pub(crate) pages: usize,
    pub(crate) policy: WritePolicy,
}

impl Way {
    /// Any request, from its submission to its answer.
    pub(crate) fn run(&mut self, request: Request) -> Result<(), Fault> {
        let ran = match self {
            Self::Straight(handle) => handle.run(request),
            Self::Cached(handle) => handle.run(request),
            Self::Closed => return Err(Fault::Io(SubmitError::Gone.into())),
        };
        ran.map(drop).map_err(|failed| failed.error.into())
    }

    pub(crate) fn submit(&mut self, request: Request, token: u64) -> Result<(), Fault> {
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

    pub(crate) fn poll(&mut self) -> Result<Option<Answer>, IoError> {
        match self {
            Self::Straight(handle) => handle.poll(),
            Self::Cached(handle) => handle.poll(),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn wait(&mut self, longest: Option<Nanos>) -> Result<Option<Answer>, IoError> {
        match self {
            Self::Straight(handle) => handle.wait(longest),
            Self::Cached(handle) => handle.wait(longest),
            Self::Closed => Ok(None),
        }
    }

    pub(crate) fn cancel(&mut self, token: u64) -> Result<(), Fault> {
        match self {
            Self::Straight(handle) => match handle.cancel(token) {
                Cancelled::Waiting | Cancelled::Asked => Ok(()),
                Cancelled::TooLate => Err(Fault::TooLate),
                Cancelled::Unknown => Err(Fault::Tag),
            },
            Self::Cached(handle) => handle.cancel(token).then_some(()).ok_or(Fault::Tag),
            Self::Closed => Err(Fault::Tag),
        }
    }

    /// Works with the handle on the queues.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut Handle) -> Result<R, Fault>) -> Result<R, Fault> {
        match self {
            Self::Straight(handle) => work(handle),
            Self::Cached(handle) => handle.with_handle(work),
            Self::Closed => Err(Fault::Io(SubmitError::Gone.into())),
        }
    }

    /// Puts a cache on, changes its size, or takes it off (`None`).
    pub(crate) fn set_cache(
        &mut self,
        wish: Option<CacheWish>,
        facts: &NamespaceFacts,
        device: usize,
    ) -> Result<(), Fault> {
        let mut memory = |bytes| memory_of(device, bytes).unwrap_or(Err(IoError::Submit(SubmitError::Gone)));
        match (std::mem::replace(self, Self::Closed), wish) {
            (Self::Straight(handle), Some(_)) if handle.unanswered() > 0 => {
                *self = Self::Straight(handle);
                Err(Fault::OnTheWay)
            }
            (Self::Straight(handle), Some(wish)) => {
                let config = config_of(wish);
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
            (Self::Cached(mut handle), Some(wish)) => {
                let resized = handle.resize(wish.pages, &mut memory);
                *self = Self::Cached(handle);
                Ok(resized?)
            }
            (same, _) => {
                *self = same;
                Ok(())
            }
        }
    }

    /// When writes through a cache are answered from now on.
    pub(crate) fn set_policy(&mut self, policy: WritePolicy) {
        if let Self::Cached(handle) = self {
            handle.set_policy(policy);
        }
    }

    /// Bytes of the cache.
    pub(crate) fn cache_bytes(&self) -> u64 {
        match self {
            Self::Cached(handle) => handle.cache().with(|cache, _| cache.config().pages * PAGE_BYTES) as u64,
            _ => 0,
        }
    }
}

/// Memory in blocks that a small cache does not waste.
fn config_of(wish: CacheWish) -> CacheConfig {
    let defaults = CacheConfig::default();
    let block_pages = wish.pages.next_power_of_two().min(defaults.block_pages);
    CacheConfig { policy: wish.policy, pages: wish.pages, block_pages, ..defaults }
}
