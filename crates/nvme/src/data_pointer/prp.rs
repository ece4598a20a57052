//! Physical Region Pages (NVMe Base 2.0 section 4.1.1).
//!
//! In: PRP entries 1 and 2, and lists in host memory. Out: runs of host memory. The first entry may begin inside a page;
//! every other one is a whole page but for the end of the data. What the second entry is follows from the length: nothing,
//! a page, or the address of a list, whose last place in a page leads to the next list page while more than one entry is
//! left.
//!
//! ```text
//!   PRP1 ----> |    data|     PRP2 ----> |    list: a, b, next |---> | c, d, e, .. |---> ..
//! ```

use super::{DataRange, PageBytes, push};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;
use headwater_dma::iova::Iova;

/// Bytes of a PRP entry.
const ENTRY_BYTES: u64 = 8;
/// Entries read at a time.
const CHUNK: usize = 64;

/// Finds the runs of `bytes` bytes. `ranges` are replaced, whatever comes of it.
///
/// # Errors
/// [`Status::PRP_OFFSET_INVALID`] for a first entry that is not dword aligned, a page that does not begin at its front, a
/// list that is not qword aligned or does not go on at the front of a page. What `read` says, where a list is not there.
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
    push(ranges, first, in_first);
    let left = bytes - in_first;
    match left {
        0 => Ok(()),
        _ if left <= page.get() => push_page(ranges, page, entry.prp2.get(), left),
        _ => List { at: entry.prp2.get(), left, page }.walk(read, ranges),
    }
}

#[inline]
fn push_page(ranges: &mut Vec<DataRange>, page: PageBytes, start: u64, bytes: u32) -> Result<(), Status> {
    if page.offset(start) != 0 {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    push(ranges, start, bytes);
    Ok(())
}

/// A list on its way.
struct List {
    /// The next entry.
    at: u64,
    /// Bytes of data that the entries to come describe.
    left: u32,
    page: PageBytes,
}

impl List {
    /// Each round but the first goes through a whole list page, so there are as many as the data needs.
    fn walk(
        mut self,
        mut read: impl FnMut(Iova, &mut [u8]) -> Result<(), Status>,
        ranges: &mut Vec<DataRange>,
    ) -> Result<(), Status> {
        if !self.at.is_multiple_of(ENTRY_BYTES) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        loop {
            let places = (u64::from(self.page.get()) - self.page.offset(self.at)) / ENTRY_BYTES;
            let entries = u64::from(self.left.div_ceil(self.page.get()));
            if entries <= places {
                return self.take(entries, &mut read, ranges);
            }
            self.take(places - 1, &mut read, ranges)?;
            let mut next = [0; 8];
            read(Iova(self.at), &mut next)?;
            self.at = u64::from_le_bytes(next);
            if self.page.offset(self.at) != 0 {
                return Err(Status::PRP_OFFSET_INVALID);
            }
        }
    }

    /// Takes so many entries of the same list page.
    fn take(
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
                // Only the end of the address space wraps, and there the page ends too.
                self.at = self.at.wrapping_add(ENTRY_BYTES);
                entries -= 1;
            }
        }
        Ok(())
    }
}
