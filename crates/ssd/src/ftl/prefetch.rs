//! Prefetch for the collector: hints to the processor for memory that it will read soon.
//!
//! Input: the collector's position in a victim. Output: prefetch instructions. Invariant: no state changes that a caller
//! can see; data read here is only a hint and is revalidated on use.

use super::Ftl;
use super::garbage_collector::page_of;
use crate::index::RecordIndex;
use crate::log::record::{HEADER_BYTES, RecordHeader, UNIT_BYTES};
use crate::media::Media;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PageAddress};
use headwater_host::copy::prefetch_read;

/// Pages prefetched together, so that their memory reads overlap.
pub(super) const PREFETCH_PAGES: usize = 8;

impl<M: Media> Ftl<M> {
    /// Prefetches the records that start in the next pages of a block, and their index entries.
    pub(super) fn prefetch_pages(&self, block: BlockId, from: usize) {
        let end = usize::from(self.blocks().get(block).pages).min(from + PREFETCH_PAGES);
        let pages = || (from..end).filter_map(|page| Some((page, self.page(page_of(block, page))?)));
        for (_, bytes) in pages() {
            prefetch_read(&bytes[PAGE_DATA_BYTES]);
        }
        for (page, bytes) in pages() {
            if let Some(line) =
                self.first_record(bytes, page_of(block, page)).and_then(|first| bytes.get(first))
            {
                prefetch_read(line);
            }
        }
        for (page, bytes) in pages() {
            self.prefetch_entries(&bytes[..PAGE_DATA_BYTES], self.first_record(bytes, page_of(block, page)));
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

    fn first_record(&self, bytes: &[u8], page: PageAddress) -> Option<usize> {
        Some(usize::from(self.flash.record_page(bytes, page)?.first))
    }
}
