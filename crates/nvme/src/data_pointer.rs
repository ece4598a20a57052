//! Translation of an entry's data pointer, PRPs or an SGL, to ranges of host memory.
//!
//! Input: an entry, the length and direction of its data, and a function that reads lists from host memory.
//! Output: [`DataRange`]s in the order of the data, adjacent ranges merged, together exactly as long as the data; or
//! the status that the specification requires.
//! Invariant: for any content of host memory the work is bounded, by the pages of the data or by
//! [`SGL_DESCRIPTORS_MAX`](sgl::SGL_DESCRIPTORS_MAX); each word of a list is read once.
//!
//! # Not done here
//! Address resolution: the host's table decides whether a range is mapped.

pub mod prp;
pub mod sgl;

use crate::spec::command::SubmissionEntry;
use crate::spec::sgl::PointerKind;
use crate::spec::status::Status;
use headwater_dma::iova::{Iova, IovaRange};

pub use prp::prp_ranges;
pub use sgl::sgl_ranges;

/// The length in bytes and the direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTransfer {
    /// From host to controller.
    FromHost(u32),
    /// From controller to host.
    ToHost(u32),
}

impl HostTransfer {
    /// Returns the length, for either direction.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::FromHost(bytes) | Self::ToHost(bytes) => bytes,
        }
    }
}

/// The memory page size that the host selected (CC.MPS): a power of two from 4 KiB to 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBytes {
    shift: u8,
}

impl PageBytes {
    /// 4 KiB, MPS 0.
    pub const MIN: Self = Self { shift: 12 };

    /// Returns the page size for a value of CC.MPS, `None` above 15: the field has four bits.
    #[must_use]
    pub const fn of_mps(mps: u8) -> Option<Self> {
        match mps {
            0..=15 => Some(Self { shift: 12 + mps }),
            _ => None,
        }
    }

    /// Returns the page size of this many bytes, `None` if no value of CC.MPS encodes it.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Self> {
        (0..=15).filter_map(Self::of_mps).find(|page| page.get() == bytes)
    }

    /// Returns the page size in bytes.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        1 << self.shift
    }

    /// Returns the page size in 64-bit words.
    #[must_use]
    pub(crate) const fn words(self) -> usize {
        self.get() as usize / 8
    }

    /// Returns the offset of an address in its page.
    #[inline]
    pub(crate) const fn offset(self, address: u64) -> u64 {
        address & (self.get() as u64 - 1)
    }
}

/// The location of a part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRange {
    /// A range of host memory.
    Memory(IovaRange),
    /// This many bytes that the host discards (an SGL bit bucket).
    Discard(u32),
}

/// Translates the data pointer of an entry in the format that PSDT selects. Replaces `ranges`, also on error.
///
/// # Errors
/// Those of [`prp_ranges`] and [`sgl_ranges`]; [`Status::INVALID_FIELD`] if PSDT is reserved or selects an SGL for
/// metadata, which is not supported.
#[inline]
pub fn data_ranges(
    entry: &SubmissionEntry,
    transfer: HostTransfer,
    page: PageBytes,
    read: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
    ranges: &mut Vec<DataRange>,
) -> Result<(), Status> {
    match entry.pointer_kind() {
        PointerKind::Prp => prp_ranges(entry, transfer.bytes(), page, read, ranges),
        PointerKind::Sgl => sgl_ranges(entry, transfer, read, ranges),
        PointerKind::SglAndMetadataSgl | PointerKind::Reserved => {
            ranges.clear();
            Err(Status::INVALID_FIELD)
        }
    }
}

/// Appends a range of host memory; extends the last range if the new one is contiguous with it.
#[inline]
fn push_memory(ranges: &mut Vec<DataRange>, start: u64, bytes: u32) {
    if let Some(DataRange::Memory(last)) = ranges.last_mut()
        && last.start.0.checked_add(u64::from(last.bytes)) == Some(start)
        && let Some(both) = last.bytes.checked_add(bytes)
    {
        last.bytes = both;
        return;
    }
    ranges.push(DataRange::Memory(IovaRange { start: Iova(start), bytes }));
}

#[cfg(test)]
mod tests;
