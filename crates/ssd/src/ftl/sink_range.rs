//! The part of a value that a read copies, and its place in the sink.
//!
//! Input: the numbers of a command, and the header of the record that was found. Output: the bytes to skip and to copy, which lie
//! in the value whatever the numbers are.

use crate::log::record::RecordHeader;

/// The part of a value that a sink receives, and its offset there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinkRange {
    /// Bytes of client memory before the part; a vector is always appended to.
    pub(crate) offset: usize,
    /// Bytes of the value before the part.
    pub(crate) skip: u32,
    /// Most bytes to copy.
    pub(crate) bytes_max: u32,
}

impl SinkRange {
    /// Returns the range of the first bytes of a value, at the start of the sink.
    pub(crate) const fn front(bytes_max: u32) -> Self {
        Self { offset: 0, skip: 0, bytes_max }
    }

    /// Returns the range of a part of a value, at the start of the sink.
    pub(crate) const fn part(skip: u32, bytes_max: u32) -> Self {
        Self { offset: 0, skip, bytes_max }
    }

    /// Returns the bytes of a value that are before the part, and those of the part, if the sink has room for it.
    #[inline]
    pub(crate) fn bytes_of(self, header: &RecordHeader) -> (usize, usize) {
        let skip = header.value_bytes.min(self.skip);
        (skip as usize, (header.value_bytes - skip).min(self.bytes_max) as usize)
    }
}
