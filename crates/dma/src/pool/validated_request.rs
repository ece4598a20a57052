//! A validated request: whole pages, an alignment in pages, a node that exists.
//!
//! Input: a [`PoolRequest`] and the limits of a pool. Output: a [`ValidatedRequest`], or the reason why this pool can never serve it.
//! Invariant: an empty pool can serve a validated request.

use super::budget::PinTier;
use super::cache::CacheClass;
use super::error::PoolError;
use super::request::{PoolRequest, RequestShape, ZeroPolicy};
use super::tier_routing::TierRouting;
use headwater_host::reservation::PAGE_BYTES;

/// The chunks that may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkUse {
    /// A slot of the static tier, else the chunks of the pool.
    StaticSlot,
    /// The chunks of the pool.
    Pooled,
    /// A chunk of its own, else what is free in those of the pool.
    OwnPreferred,
    /// A chunk of its own, charged to this tier.
    Own(PinTier),
}

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
    pub(super) chunk_use: ChunkUse,
    /// The size class that serves it, if its span may come from a cache and return to one.
    pub(super) class: Option<CacheClass>,
}

/// The limits of a pool's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestLimits {
    /// Largest alignment.
    pub(super) align_max: usize,
    /// Largest request in bytes.
    pub(super) bytes_max: usize,
    /// The limits of the tiers.
    pub(super) routing: TierRouting,
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
        let chunk_use = match limits.routing.tier(pages) {
            PinTier::Static => ChunkUse::StaticSlot,
            PinTier::Pool => ChunkUse::Pooled,
            PinTier::Dynamic => ChunkUse::OwnPreferred,
        };
        let zeroed = request.zeroed;
        let mut validated =
            Self { bytes, pages, align_pages, segments_max, arena, zeroed, chunk_use, class: None };
        if align_pages == 1 && chunk_use != ChunkUse::OwnPreferred {
            // A span as long as a large request would be served to one, if it were in a cache.
            validated.class = CacheClass::serving(bytes)
                .filter(|class| limits.routing.tier(class.pages()) != PinTier::Dynamic);
        }
        Ok(validated)
    }

    /// Returns the request served by a chunk of its own, charged to `tier`.
    pub(super) fn in_own_chunk(self, tier: PinTier) -> Self {
        Self { chunk_use: ChunkUse::Own(tier), class: None, ..self }
    }

    /// Returns the bytes that the cap must have left to serve it by pinning, in a pool with this granule.
    pub(super) fn pin_bytes(&self, granule: usize) -> usize {
        let bytes = self.pages as usize * PAGE_BYTES;
        match self.chunk_use {
            ChunkUse::StaticSlot | ChunkUse::Pooled => bytes.next_multiple_of(granule),
            ChunkUse::OwnPreferred | ChunkUse::Own(_) => bytes,
        }
    }

    /// Returns the tier by the length of the request, or the one that it named.
    pub(super) fn tier(&self) -> PinTier {
        match self.chunk_use {
            ChunkUse::StaticSlot => PinTier::Static,
            ChunkUse::Pooled => PinTier::Pool,
            ChunkUse::OwnPreferred => PinTier::Dynamic,
            ChunkUse::Own(tier) => tier,
        }
    }

    /// Returns its pages, rounded up to those of its class, so that a cache can keep them after release.
    #[inline]
    pub(super) fn class_pages(&self) -> u32 {
        self.class.map_or(self.pages, CacheClass::pages)
    }
}
