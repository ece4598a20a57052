//! The data pointer of an entry: from PRPs or an SGL to runs of host memory.
//!
//! In: an entry, how many bytes move and which way, and a way to read the lists that lie in host memory. Out:
//! [`DataRange`]s in the order of the data, neighbours joined, together exactly as long as the data; or the status of the
//! specification. Invariant: whatever lies in host memory, the work is bounded, by the pages of the data or by
//! [`SGL_DESCRIPTORS_MAX`](sgl::SGL_DESCRIPTORS_MAX); each word of a list is read once.
//!
//! # What this does not do
//! It resolves no address: whether there is memory behind a range is asked of the host's table.

pub mod prp;
pub mod sgl;

use crate::spec::command::SubmissionEntry;
use crate::spec::sgl::PointerKind;
use crate::spec::status::Status;
use headwater_dma::iova::{Iova, IovaRange};

pub use prp::prp_ranges;
pub use sgl::sgl_ranges;

/// How many bytes of data move with a command, and which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// From host to controller.
    FromHost(u32),
    /// From controller to host.
    ToHost(u32),
}

impl Transfer {
    /// How many, whichever way.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::FromHost(bytes) | Self::ToHost(bytes) => bytes,
        }
    }
}

/// Bytes of a memory page as the host chose it (CC.MPS): a power of two from 4 KiB to 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBytes {
    shift: u8,
}

impl PageBytes {
    /// 4 KiB, MPS 0.
    pub const MIN: Self = Self { shift: 12 };

    /// The page of a value of CC.MPS, `None` above 15: the field has four bits.
    #[must_use]
    pub const fn of_mps(mps: u8) -> Option<Self> {
        match mps {
            0..=15 => Some(Self { shift: 12 + mps }),
            _ => None,
        }
    }

    /// The page of so many bytes, `None` for what no value of CC.MPS says.
    #[must_use]
    pub fn of_bytes(bytes: u32) -> Option<Self> {
        (0..=15).filter_map(Self::of_mps).find(|page| page.get() == bytes)
    }

    /// How many bytes.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        1 << self.shift
    }

    /// How many 64-bit words.
    #[must_use]
    pub(crate) const fn words(self) -> usize {
        self.get() as usize / 8
    }

    /// Where in its page an address lies.
    #[inline]
    pub(crate) const fn offset(self, address: u64) -> u64 {
        address & (self.get() as u64 - 1)
    }
}

/// Where some of the data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRange {
    /// In host memory.
    Memory(IovaRange),
    /// Nowhere: the host does not want so many bytes (an SGL bit bucket).
    Discard(u32),
}

/// Reads the data pointer of an entry whose kind is as PSDT says. `ranges` are replaced, whatever comes of it.
///
/// # Errors
/// Those of [`prp_ranges`] and [`sgl_ranges`]; [`Status::INVALID_FIELD`] where PSDT says that metadata has an SGL, which
/// is not supported, or is reserved.
#[inline]
pub fn data_ranges(
    entry: &SubmissionEntry,
    transfer: Transfer,
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

/// Adds a run of host memory, to the one before it where it goes on.
#[inline]
fn push(ranges: &mut Vec<DataRange>, start: u64, bytes: u32) {
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
