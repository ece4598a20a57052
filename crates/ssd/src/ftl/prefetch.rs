//! Prefetch: hints to the processor for memory that will be read soon.
//!
//! Input: the record that is read next, or the collector's position in a victim. Output: prefetch instructions.
//! Invariant: no state changes that a caller can see; data read here is only a hint and is revalidated on use.
//!
//! A processor has few outstanding memory reads (16 lines on most). A request for a whole page at once waits until most
//! of it has come; so a record is prefetched in pieces, between the stages of the record before it.

use super::garbage_collector::page_of;
use super::{Ftl, RecordPieces};
use crate::index::{IndexEntry, RecordIndex};
use crate::log::page::PageSpare;
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use headwater_host::copy::{prefetch, prefetch_read};

/// Longest record that is prefetched; a longer one hides its own latency.
const PREFETCH_BYTES_MAX: usize = 8 << 10;
/// Bytes prefetched at a time.
const PIECE_BYTES: usize = 1 << 10;
/// Pages prefetched together, so that their memory reads overlap.
pub(super) const PREFETCH_PAGES: usize = 8;

/// The part of the next record to read that is not prefetched yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingPrefetch {
    address: RecordAddress,
    bytes: usize,
}

impl PendingPrefetch {
    /// Nothing to prefetch.
    pub(super) const NOTHING: Self = Self { address: RecordAddress(0), bytes: 0 };
}

impl<M: Media> Ftl<M> {
    /// Prefetches the last line of a record that spans two pages, because each page needs its own address translation.
    #[inline]
    pub(crate) fn prefetch_end(&self, entry: IndexEntry) {
        let end = entry.address.offset_in_block() + entry.units as usize * UNIT_BYTES - 1;
        let (page, within) = (end / PAGE_DATA_BYTES, end % PAGE_DATA_BYTES);
        if page != usize::from(entry.address.page().page)
            && page < PAGES_PER_BLOCK
            && let Some(line) =
                self.page(page_of(entry.address.block(), page)).and_then(|data| data.get(within))
        {
            prefetch_read(line);
        }
    }

    /// Sets the record that is read next, and prefetches its first piece.
    #[inline]
    pub(crate) fn prefetch_next(&self, entry: IndexEntry) {
        let bytes = entry.units as usize * UNIT_BYTES;
        if bytes <= PREFETCH_BYTES_MAX {
            self.pending_prefetch.set(PendingPrefetch { address: entry.address, bytes });
            self.prefetch_bytes(PIECE_BYTES);
        }
    }

    /// Prefetches the next piece of that record.
    #[inline]
    pub(crate) fn prefetch_piece(&self) {
        self.prefetch_bytes(PIECE_BYTES);
    }

    /// Prefetches the rest of that record.
    #[inline]
    pub(crate) fn prefetch_rest(&self) {
        self.prefetch_bytes(PREFETCH_BYTES_MAX);
    }

    fn prefetch_bytes(&self, bytes_max: usize) {
        let PendingPrefetch { address, bytes } = self.pending_prefetch.get();
        let bytes_now = bytes.min(bytes_max);
        if bytes_now == 0 {
            return;
        }
        let mut pieces = RecordPieces::new(self, address, 0, bytes_now);
        while let Some((page, within, bytes)) = pieces.next_span() {
            if let Some(data) = self.page(page) {
                prefetch(&data[within..within + bytes]);
            }
        }
        let offset = address.offset_in_block() + bytes_now;
        let left = if offset < BLOCK_DATA_BYTES { bytes - bytes_now } else { 0 };
        let address = if left > 0 { RecordAddress::in_block(address.block(), offset) } else { address };
        self.pending_prefetch.set(PendingPrefetch { address, bytes: left });
    }

    /// Prefetches the records that start in the next pages of a block, and their index entries.
    pub(super) fn prefetch_pages(&self, block: BlockId, from: usize) {
        let end = usize::from(self.blocks().get(block).pages).min(from + PREFETCH_PAGES);
        let pages = || (from..end).filter_map(|page| Some((page, self.page(page_of(block, page))?)));
        for (_, bytes) in pages() {
            prefetch_read(&bytes[PAGE_DATA_BYTES]);
        }
        for (page, bytes) in pages() {
            if let Some(line) = first_record(bytes, page).and_then(|first| bytes.get(first)) {
                prefetch_read(line);
            }
        }
        for (page, bytes) in pages() {
            self.prefetch_entries(&bytes[..PAGE_DATA_BYTES], first_record(bytes, page));
        }
    }

    /// Prefetches the index entries of the records whose headers and keys are entirely in a page.
    fn prefetch_entries(&self, data: &[u8], first: Option<usize>) {
        let mut next = first;
        while let Some((header, rest)) =
            next.and_then(|at| data.get(at..)?.split_first_chunk::<HEADER_BYTES>())
        {
            let Ok(header) = RecordHeader::decode(header) else { return };
            let Some(key) = rest.get(..usize::from(header.key_bytes)) else { return };
            self.index().prefetch(self.hasher().index_key(&header, key));
            next = next.map(|at| at + header.units() as usize * UNIT_BYTES);
        }
    }
}

fn first_record(bytes: &[u8], page: usize) -> Option<usize> {
    let spare = PageSpare::decode(bytes, u8::try_from(page).ok()?)?;
    Some(usize::from(spare.first))
}
