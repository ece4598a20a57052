//! Reads of values that lie in extents: page by page, each page by its own proof, past the page cache.
//!
//! Input: a record with extents, and a range of its value. Output: the bytes, in order; or the pages that must be read first.
//! Invariant: a byte is returned only from an intact page of the life of its block that the record names, or from the rest of
//! the value in an intact record.

use super::{Ftl, RecordPieces, StallReason};
use crate::log::extent_list::Extent;
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::width::narrow;
use std::ops::Range;

/// The result of reading a range of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeRead {
    /// Its bytes were passed on.
    Done,
    /// A page or the record does not prove what was written.
    Damaged,
}

impl<M: Media> Ftl<M> {
    /// Passes a range of a value's bytes, which lies within the value, to `each`, piece by piece. Nothing is passed before a
    /// stall.
    pub(crate) fn read_range(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
        range: Range<usize>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<RangeRead, StallReason> {
        let in_extents = range.start..range.end.min(header.extent_bytes());
        let pages = if in_extents.is_empty() {
            Vec::new()
        } else {
            match self.extent_pages_of(address, header, &in_extents)? {
                Some(pages) => pages,
                None => return Ok(RangeRead::Damaged),
            }
        };
        let extent_bytes = header.extent_bytes();
        let rest = range.start.max(extent_bytes)..range.end.max(extent_bytes);
        let skip =
            HEADER_BYTES + usize::from(header.key_bytes) + header.list_bytes() + rest.start - extent_bytes;
        let mut missing = RecordPieces::new(self, address, skip, rest.len()).missing();
        missing.extend(pages.iter().filter(|page| self.page(**page).is_none()));
        if !missing.is_empty() {
            return Err(self.stall_for(missing));
        }
        for (nth, page) in (in_extents.start / PAGE_DATA_BYTES..).zip(&pages) {
            let Some(bytes) = self.page(*page).filter(|bytes| self.is_proven_extent(bytes, *page)) else {
                return Ok(RangeRead::Damaged);
            };
            let from = in_extents.start.saturating_sub(nth * PAGE_DATA_BYTES);
            let to = PAGE_DATA_BYTES.min(in_extents.end - nth * PAGE_DATA_BYTES);
            each(&bytes[from..to]);
        }
        let mut left = rest.len();
        for piece in RecordPieces::new(self, address, skip, rest.len()) {
            let piece = piece.map_err(|page| self.stall_for(vec![page]))?;
            left -= piece.len();
            each(piece);
        }
        Ok(if left == 0 { RangeRead::Done } else { RangeRead::Damaged })
    }

    /// Returns the pages of extents that hold a range of a value; `None` if one of them is not this value's any more.
    fn extent_pages_of(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
        range: &Range<usize>,
    ) -> Result<Option<Vec<PageAddress>>, StallReason> {
        let Some(extents) = self.extents_of(address, header)? else { return Ok(None) };
        let pages = range.start / PAGE_DATA_BYTES..range.end.div_ceil(PAGE_DATA_BYTES);
        let blocks = range.start / BLOCK_DATA_BYTES..range.end.div_ceil(BLOCK_DATA_BYTES);
        if !extents[blocks].iter().all(|extent| self.is_own_extent(*extent)) {
            return Ok(None);
        }
        let page_of = |page: usize| {
            let at = page * PAGE_DATA_BYTES;
            PageAddress::new(
                extents[at / BLOCK_DATA_BYTES].block,
                narrow(at % BLOCK_DATA_BYTES / PAGE_DATA_BYTES),
            )
        };
        Ok(Some(pages.map(page_of).collect()))
    }

    /// Returns true if the block of an extent still has the life that its record names.
    pub(super) fn is_own_extent(&self, extent: Extent) -> bool {
        let entry = self.blocks().get_checked(extent.block);
        entry.is_some_and(|entry| entry.is_extent() && entry.order == extent.order)
    }

    /// Returns true if a page is the one that was programmed. A page in device DRAM was proven when it was read; one that the
    /// medium shows is not.
    fn is_proven_extent(&self, bytes: &[u8], page: PageAddress) -> bool {
        let order = self.blocks().get(page.block).order;
        !self.flash.traits().addressable
            || self.proof().holds(bytes, page, order)
            || mutant(Mutant::ReadChecksumIgnored)
    }

    /// Returns the stall of a caller that needs these pages, none of which is in memory.
    pub(super) fn stall_for(&self, missing: Vec<PageAddress>) -> StallReason {
        match missing.iter().find(|page| self.failed_pages.contains(page)) {
            Some(page) => StallReason::Unreadable(*page),
            None => StallReason::Pages(missing),
        }
    }

    /// Returns the blocks of a value's extents, for a reader that keeps them; none if its record names none.
    pub(super) fn extent_blocks_of(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
    ) -> Result<Vec<BlockId>, StallReason> {
        if header.extents == 0 {
            return Ok(Vec::new());
        }
        let extents = self.extents_of(address, header)?.unwrap_or_default();
        let own = extents.into_iter().filter(|extent| self.is_own_extent(*extent));
        Ok(own.map(|extent| extent.block).collect())
    }
}
