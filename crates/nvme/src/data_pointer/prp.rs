//! Translation of Physical Region Pages (NVMe Base 2.0 section 4.1.1).
//!
//! Input: PRP entries 1 and 2, and lists in host memory. Output: ranges of host memory. The first entry may have an
//! offset in its page; every other one is a whole page, except at the end of the data. The length determines the second
//! entry: unused, a page, or the address of a list. The last entry of a list page points to the next list page if more
//! than one entry is left.
//!
//! ```text
//!   PRP1 ----> |    data|     PRP2 ----> |    list: a, b, next |---> | c, d, e, .. |---> ..
//! ```

use super::{DataRange, PageBytes, push_memory};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;
use headwater_dma::iova::Iova;

/// Bytes of a PRP entry.
const ENTRY_BYTES: u64 = 8;
/// Entries read per call of `read`.
const CHUNK: usize = 64;

/// Translates the PRPs of `bytes` bytes of data. Replaces `ranges`, also on error.
///
/// # Errors
/// [`Status::PRP_OFFSET_INVALID`] for a first entry that is not dword aligned, a page entry with an offset, a list that
/// is not qword aligned or a further list page with an offset. The error of `read` if a list is not readable.
pub fn prp_ranges(
    entry: &SubmissionEntry,
    bytes: u32,
    page: PageBytes,
    read: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
    ranges: &mut Vec<DataRange>,
) -> Result<(), Status> {
    ranges.clear();
    if bytes == 0 {
        return Ok(());
    }
    let first = entry.prp1.get();
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    let room = u64::from(page.get()) - page.offset(first);
    let in_first = u32::try_from(room).map_or(bytes, |room| bytes.min(room));
    push_memory(ranges, first, in_first);
    let left = bytes - in_first;
    match left {
        0 => Ok(()),
        _ if left <= page.get() => push_page(ranges, page, entry.prp2.get(), left),
        _ => PrpListReader { at: entry.prp2.get(), left, page }.read_list(read, ranges),
    }
}

#[inline]
fn push_page(ranges: &mut Vec<DataRange>, page: PageBytes, start: u64, bytes: u32) -> Result<(), Status> {
    if page.offset(start) != 0 {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    push_memory(ranges, start, bytes);
    Ok(())
}

/// The state of reading a PRP list.
struct PrpListReader {
    /// Address of the next entry.
    at: u64,
    /// Bytes of data that the remaining entries describe.
    left: u32,
    page: PageBytes,
}

impl PrpListReader {
    /// Reads all list pages. Each iteration but the first reads a whole list page, so the data bounds their number.
    fn read_list(
        mut self,
        mut read: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
        ranges: &mut Vec<DataRange>,
    ) -> Result<(), Status> {
        if !self.at.is_multiple_of(ENTRY_BYTES) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        loop {
            let slots = (u64::from(self.page.get()) - self.page.offset(self.at)) / ENTRY_BYTES;
            let entries = u64::from(self.left.div_ceil(self.page.get()));
            if entries <= slots {
                return self.read_entries(entries, &mut read, ranges);
            }
            self.read_entries(slots - 1, &mut read, ranges)?;
            let mut next = [0; 8];
            read(Iova(self.at), &mut next)?;
            self.at = u64::from_le_bytes(next);
            if self.page.offset(self.at) != 0 {
                return Err(Status::PRP_OFFSET_INVALID);
            }
        }
    }

    /// Reads this many entries of the same list page.
    fn read_entries(
        &mut self,
        mut entries: u64,
        read: &mut impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
        ranges: &mut Vec<DataRange>,
    ) -> Result<(), Status> {
        let mut chunk = [[0; 8]; CHUNK];
        while entries > 0 {
            let count = usize::try_from(entries).map_or(CHUNK, |entries| entries.min(CHUNK));
            let chunk = &mut chunk[..count];
            read(Iova(self.at), chunk.as_flattened_mut())?;
            for entry in chunk {
                let bytes = self.left.min(self.page.get());
                push_page(ranges, self.page, u64::from_le_bytes(*entry), bytes)?;
                self.left -= bytes;
                // Wraps only at the end of the address space, where the page ends too.
                self.at = self.at.wrapping_add(ENTRY_BYTES);
                entries -= 1;
            }
        }
        Ok(())
    }
}
