//! A validated request: whole pages, an alignment in pages, a node that exists.
//!
//! Input: a [`PoolRequest`] and the limits of a pool. Output: a [`ValidatedRequest`], or the reason why this pool can never serve it.
//! Invariant: an empty pool can serve a validated request.

use super::cache::CacheClass;
use super::error::PoolError;
use super::request::{PoolRequest, RequestShape, ZeroPolicy};
use headwater_host::reservation::PAGE_BYTES;

/// A validated request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValidatedRequest {
    pub(super) bytes: usize,
    pub(super) pages: u32,
    pub(super) align_pages: u32,
    pub(super) segments_max: u32,
    /// Index of the only arena allowed.
    pub(super) arena: Option<usize>,
    pub(super) zeroed: ZeroPolicy,
}

/// The limits of a pool's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    /// Largest alignment.
    pub(super) align_max: usize,
    /// Largest request in bytes.
    pub(super) bytes_max: usize,
}

impl ValidatedRequest {
    /// Validates a request. `arena_of` returns the arena index of a node.
    pub(super) fn validate(
        request: &PoolRequest,
        limits: RequestLimits,
        arena_of: impl FnOnce(super::placement::NodeId) -> Option<usize>,
    ) -> Result<Self, PoolError> {
        let bytes = request.bytes;
        if bytes == 0 {
            return Err(PoolError::Zero);
        }
        if !request.align.is_power_of_two() || request.align > limits.align_max {
            return Err(PoolError::Align { align: request.align, max: limits.align_max });
        }
        let rounded = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(PoolError::Overflow { bytes })?;
        let segments_max = match request.shape {
            RequestShape::Contiguous => 1,
            RequestShape::ScatterGather { segments_max: 0 } => return Err(PoolError::NoSegments),
            RequestShape::ScatterGather { segments_max } => segments_max,
        };
        let over = PoolError::OverCap { bytes, max: limits.bytes_max };
        if rounded > limits.bytes_max {
            return Err(over);
        }
        let pages = u32::try_from(rounded / PAGE_BYTES).map_err(|_| over)?;
        let align_pages = u32::try_from(request.align.div_ceil(PAGE_BYTES)).map_err(|_| over)?;
        let arena = match request.node {
            None => None,
            Some(node) => Some(arena_of(node).ok_or(PoolError::NoSuchNode { node })?),
        };
        Ok(Self { bytes, pages, align_pages, segments_max, arena, zeroed: request.zeroed })
    }

    /// Returns the size class that serves it, if it may come from a cache.
    #[inline]
    pub(super) fn class(&self) -> Option<CacheClass> {
        if self.align_pages == 1 { CacheClass::serving(self.bytes) } else { None }
    }

    /// Returns its pages, rounded up to those of its class, so that a cache can keep them after release.
    #[inline]
    pub(super) fn class_pages(&self) -> u32 {
        self.class().map_or(self.pages, CacheClass::pages)
    }
}
