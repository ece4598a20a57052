//! A request for memory.
//!
//! Input: a length and, if needed, alignment, zeroing, node and shape. Output: a [`PoolRequest`]. Invariant: it is a plain
//! value; the pool validates it.

use super::placement::NodeId;
use headwater_host::reservation::PAGE_BYTES;

/// Zeroing of the bytes. A buffer that is not zeroed holds bytes this process wrote there earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPolicy {
    /// Bytes are not cleared.
    #[default]
    No,
    /// Bytes are zeroed, at the cost of the request.
    Yes,
}

/// Contiguity of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestShape {
    /// One contiguous run.
    #[default]
    Contiguous,
    /// Up to `segments_max` runs, all of whole pages except for the end of the last, as PRP lists allow (NVMe Base 2.1,
    /// 4.3.1). A single run is preferred.
    ScatterGather {
        /// Maximum number of segments.
        segments_max: u32,
    },
}

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRequest {
    /// Length in bytes, at least 1.
    pub bytes: usize,
    /// Alignment of the buffer, or of its first segment: a power of two. Buffers are always page-aligned.
    pub align: usize,
    /// Zeroing of the bytes.
    pub zeroed: ZeroPolicy,
    /// The memory node, or `None` for the closest to the calling thread.
    pub node: Option<NodeId>,
    /// One piece or several.
    pub shape: RequestShape,
}

impl PoolRequest {
    /// Creates a request for `bytes` contiguous bytes, page-aligned, from the closest node.
    #[must_use]
    #[inline]
    pub const fn bytes(bytes: usize) -> Self {
        Self { bytes, align: 1, zeroed: ZeroPolicy::No, node: None, shape: RequestShape::Contiguous }
    }

    /// Returns the request with an alignment of `align` bytes.
    #[must_use]
    pub const fn aligned(self, align: usize) -> Self {
        Self { align, ..self }
    }

    /// Returns the request with zeroed bytes.
    #[must_use]
    pub const fn zeroed(self) -> Self {
        Self { zeroed: ZeroPolicy::Yes, ..self }
    }

    /// Returns the request limited to this node.
    #[must_use]
    pub const fn on(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// Returns the request with up to `segments_max` pieces allowed.
    #[must_use]
    pub const fn scattered(self, segments_max: u32) -> Self {
        Self { shape: RequestShape::ScatterGather { segments_max }, ..self }
    }

    /// Returns true if any pages of its length will do: alignment up to a page, no zeroing, no node, a segment at least.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.align.is_power_of_two()
            && self.align <= PAGE_BYTES
            && self.zeroed == ZeroPolicy::No
            && self.node.is_none()
            && !matches!(self.shape, RequestShape::ScatterGather { segments_max: 0 })
    }
}
