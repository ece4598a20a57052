//! What a caller asks for.
//!
//! In: a length and, where they matter, boundary, zeroes, node and shape. Out: a [`Request`]. Invariant: it is a plain
//! value; the pool judges it.

use super::placement::NodeId;
use headwater_host::reservation::PAGE_BYTES;

/// Whether the bytes must be zero. A buffer that is not zeroed holds whatever this process last wrote there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zeroed {
    /// Whatever is there.
    #[default]
    No,
    /// Zeroes, written at the cost of the request.
    Yes,
}

/// Whether the memory must be one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// One run of addresses.
    #[default]
    Contiguous,
    /// Up to so many runs, all of whole pages but the end of the last: what PRP lists can say (NVMe Base 2.1, 4.3.1).
    /// A single run is preferred.
    ScatterGather {
        /// Most segments.
        segments_max: u32,
    },
}

/// One request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Length in bytes, at least 1.
    pub bytes: usize,
    /// The boundary at which the buffer, or its first segment, starts: a power of two. Buffers start on pages anyway.
    pub align: usize,
    /// Whether the bytes must be zero.
    pub zeroed: Zeroed,
    /// The node of memory, or whichever is closest to the calling thread.
    pub node: Option<NodeId>,
    /// One piece or several.
    pub shape: Shape,
}

impl Request {
    /// `bytes` bytes in one piece, on a page, from wherever is close.
    #[must_use]
    #[inline]
    pub const fn bytes(bytes: usize) -> Self {
        Self { bytes, align: 1, zeroed: Zeroed::No, node: None, shape: Shape::Contiguous }
    }

    /// The same, starting at a multiple of `align` bytes.
    #[must_use]
    pub const fn aligned(self, align: usize) -> Self {
        Self { align, ..self }
    }

    /// The same, all zero.
    #[must_use]
    pub const fn zeroed(self) -> Self {
        Self { zeroed: Zeroed::Yes, ..self }
    }

    /// The same, on this node and no other.
    #[must_use]
    pub const fn on(self, node: NodeId) -> Self {
        Self { node: Some(node), ..self }
    }

    /// The same, in up to `segments_max` pieces.
    #[must_use]
    pub const fn scattered(self, segments_max: u32) -> Self {
        Self { shape: Shape::ScatterGather { segments_max }, ..self }
    }

    /// Whether any pages of its length will do: no boundary above a page's, no zeroes, no node.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.align.is_power_of_two()
            && self.align <= PAGE_BYTES
            && self.zeroed == Zeroed::No
            && self.node.is_none()
    }
}
