//! The sources of a record's bytes.
//!
//! Input: bytes of the device, or memory of a client. Output: one type for both, to append. Invariant: client bytes are
//! read once.

use crate::command::ValueSource;
use headwater_dma::iova::ClientSegments;

/// Bytes to append.
#[derive(Clone, Copy, Debug)]
pub enum RecordSource<'a> {
    /// Bytes of the device.
    Bytes(&'a [u8]),
    /// Client memory, read once.
    Client(&'a ClientSegments),
    /// A part of client memory, read once.
    Part {
        /// The whole client memory.
        segments: &'a ClientSegments,
        /// Offset of the part.
        offset: usize,
        /// Length of the part.
        len: usize,
    },
}

impl<'a> RecordSource<'a> {
    /// Returns the bytes of a command's value.
    #[must_use]
    #[inline]
    pub(crate) fn of(value: &'a ValueSource) -> Self {
        match value {
            ValueSource::Bytes(bytes) => Self::Bytes(bytes),
            // What the device received lies in extents already.
            ValueSource::Received { rest, .. } => Self::Bytes(rest),
            ValueSource::Client(segments) => Self::Client(segments),
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Client(segments) => segments.bytes(),
            Self::Part { len, .. } => *len,
        }
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
