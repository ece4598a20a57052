//! Where the bytes of a record come from.
//!
//! In: bytes of ours, or memory of a client. Out: the same, as one thing to append. Invariant: a client's bytes are read once.

use headwater_dma::iova::Segments;

/// Bytes to be appended.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Ours.
    Bytes(&'a [u8]),
    /// A client's, read once.
    Client(&'a Segments),
    /// Some of a client's, read once.
    Part {
        /// All of them.
        segments: &'a Segments,
        /// Where these start.
        at: usize,
        /// How many these are.
        len: usize,
    },
}

impl Source<'_> {
    /// How many there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Client(segments) => segments.bytes(),
            Self::Part { len, .. } => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
