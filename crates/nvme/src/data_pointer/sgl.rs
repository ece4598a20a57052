//! Translation of scatter gather lists in host memory (NVMe Base 2.0 section 4.1.2).
//!
//! Input: the descriptor of an entry, and segments in host memory. Output: ranges of host memory, and bytes that the
//! host discards. A list may describe more than the data (SGLS reports it); descriptors beyond the data are not
//! evaluated. Keyed and transport descriptors belong to other transports and are refused.
//!
//! ```text
//!   entry: segment ---> | data | bit bucket | data | segment ---> | data | last segment ---> | data | data |
//! ```

use super::{DataRange, HostTransfer, push_memory};
use crate::spec::command::SubmissionEntry;
use crate::spec::sgl::{SGL_DESCRIPTOR_BYTES, SglDescriptor, SglKind};
use crate::spec::status::Status;
use headwater_dma::iova::Iova;
use zerocopy::IntoBytes;

/// Maximum descriptors of one command. It bounds the work for segments that form a cycle.
pub const SGL_DESCRIPTORS_MAX: u32 = 8_192;

/// Descriptors read per call of `read`.
const CHUNK: usize = 32;

/// Translates the SGL of an entry. Replaces `ranges`, also on error.
///
/// # Errors
/// - [`Status::SGL_TYPE_INVALID`] for a type or sub type that is not valid in host memory.
/// - [`Status::INVALID_SGL_SEGMENT`] for a segment that is empty or no whole number of descriptors, a last segment with
///   a successor, or another segment without one.
/// - [`Status::INVALID_SGL_COUNT`] for a segment descriptor that is not the last of its segment, or more than
///   [`SGL_DESCRIPTORS_MAX`] descriptors.
/// - [`Status::DATA_SGL_LENGTH_INVALID`] for a list that ends before the data.
/// - The error of `read` if a segment is not readable.
pub fn sgl_ranges(
    entry: &SubmissionEntry,
    transfer: HostTransfer,
    mut read: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
    ranges: &mut Vec<DataRange>,
) -> Result<(), Status> {
    ranges.clear();
    if transfer.bytes() == 0 {
        return Ok(());
    }
    let mut walk = SglReader { left: transfer.bytes(), descriptors: 0, transfer, ranges };
    let first = entry.sgl();
    let mut next = match kind(&first)? {
        SglKind::DataBlock | SglKind::BitBucket => {
            walk.push_range(&first)?;
            None
        }
        SglKind::Segment | SglKind::LastSegment => Some(first),
    };
    while walk.left > 0 {
        let segment = next.ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        next = walk.read_segment(&segment, &mut read)?;
    }
    Ok(())
}

fn kind(descriptor: &SglDescriptor) -> Result<SglKind, Status> {
    descriptor.kind().ok_or(Status::SGL_TYPE_INVALID)
}

/// The state of reading an SGL.
struct SglReader<'a> {
    /// Bytes of data that are not described yet.
    left: u32,
    /// Descriptors of the segments read so far.
    descriptors: u32,
    transfer: HostTransfer,
    ranges: &'a mut Vec<DataRange>,
}

impl SglReader<'_> {
    /// Reads a segment until the data is described; returns the descriptor of the next segment.
    fn read_segment(
        &mut self,
        segment: &SglDescriptor,
        read: &mut impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
    ) -> Result<Option<SglDescriptor>, Status> {
        let bytes = usize::try_from(segment.bytes.get()).map_err(|_| Status::INVALID_SGL_SEGMENT)?;
        if bytes == 0 || bytes % SGL_DESCRIPTOR_BYTES != 0 {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        let count = bytes / SGL_DESCRIPTOR_BYTES;
        self.descriptors = u32::try_from(count)
            .ok()
            .and_then(|count| self.descriptors.checked_add(count))
            .filter(|&descriptors| descriptors <= SGL_DESCRIPTORS_MAX)
            .ok_or(Status::INVALID_SGL_COUNT)?;
        let is_last = kind(segment)? == SglKind::LastSegment;
        let mut at = segment.address.get();
        let mut left = count;
        let mut chunk = [SglDescriptor::default(); CHUNK];
        while left > 0 {
            let chunk = &mut chunk[..left.min(CHUNK)];
            read(Iova(at), chunk.as_mut_bytes())?;
            for descriptor in chunk {
                left -= 1;
                // `read` fails for a segment that extends over the end of the address space.
                at = at.wrapping_add(16);
                match kind(descriptor)? {
                    SglKind::DataBlock | SglKind::BitBucket => self.push_range(descriptor)?,
                    SglKind::Segment | SglKind::LastSegment if left > 0 => {
                        return Err(Status::INVALID_SGL_COUNT);
                    }
                    SglKind::Segment | SglKind::LastSegment if is_last => {
                        return Err(Status::INVALID_SGL_SEGMENT);
                    }
                    SglKind::Segment | SglKind::LastSegment => return Ok(Some(*descriptor)),
                }
                if self.left == 0 {
                    return Ok(None);
                }
            }
        }
        if is_last { Ok(None) } else { Err(Status::INVALID_SGL_SEGMENT) }
    }

    /// Adds the range of a data or bit bucket descriptor, limited to the bytes left.
    #[inline]
    fn push_range(&mut self, descriptor: &SglDescriptor) -> Result<(), Status> {
        let bytes = descriptor.bytes.get().min(self.left);
        if bytes == 0 {
            return Ok(());
        }
        match (kind(descriptor)?, self.transfer) {
            // In a transfer from the host a bit bucket has no effect.
            (SglKind::BitBucket, HostTransfer::FromHost(_)) => return Ok(()),
            (SglKind::BitBucket, HostTransfer::ToHost(_)) => self.ranges.push(DataRange::Discard(bytes)),
            _ => push_memory(self.ranges, descriptor.address.get(), bytes),
        }
        self.left -= bytes;
        Ok(())
    }
}
