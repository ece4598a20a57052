//! What will be looked at soon, asked for before somebody gets there.
//!
//! In: the record that is read next, or the page of a victim that the collector has come to. Out: hints to the processor.
//! Invariant: nothing changes that anybody could see, and what is read here is believed by nobody: it is read and judged
//! again.
//!
//! A processor has few ways to memory at a time (16 lines on most). Whoever asks for a whole page at once waits until most
//! of it has come; so a record comes in by pieces, between the stages of the one before it.

use super::collect::page_of;
use super::{Gather, Utl};
use crate::index::{Entry, Index};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use crate::page::PageSpare;
use crate::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use headwater_host::copy::{prefetch, prefetch_read};

/// Longest record that is brought in before it is read; a longer one hides its own latency.
const AHEAD_BYTES_MAX: usize = 8 << 10;
/// Bytes asked for at a time.
const PIECE_BYTES: usize = 1 << 10;
/// Pages looked into together, so that the ways to memory overlap.
pub(super) const PAGES_AHEAD: usize = 8;

/// What is left to be asked for of the record that is read next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    address: RecordAddress,
    bytes: usize,
}

impl Ahead {
    /// Nothing is left.
    pub(super) const NOTHING: Self = Self { address: RecordAddress(0), bytes: 0 };
}

impl<M: Media> Utl<M> {
    /// Asks for the last line of a record that lies on two pages, which are found through the page tables one by one.
    #[inline]
    pub(crate) fn prefetch_end(&self, entry: Entry) {
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

    /// This record is read next. Asks for its first piece.
    #[inline]
    pub(crate) fn expect(&self, entry: Entry) {
        let bytes = entry.units as usize * UNIT_BYTES;
        if bytes <= AHEAD_BYTES_MAX {
            self.ahead.set(Ahead { address: entry.address, bytes });
            self.bring_in(PIECE_BYTES);
        }
    }

    /// Asks for a piece of the record that is read next.
    #[inline]
    pub(crate) fn bring_in_piece(&self) {
        self.bring_in(PIECE_BYTES);
    }

    /// Asks for all that is left of it.
    #[inline]
    pub(crate) fn bring_in_rest(&self) {
        self.bring_in(AHEAD_BYTES_MAX);
    }

    fn bring_in(&self, bytes_max: usize) {
        let Ahead { address, bytes } = self.ahead.get();
        let bytes_now = bytes.min(bytes_max);
        if bytes_now == 0 {
            return;
        }
        let mut pieces = Gather::new(self, address, 0, bytes_now);
        while let Some((page, within, bytes)) = pieces.next_span() {
            if let Some(data) = self.page(page) {
                prefetch(&data[within..within + bytes]);
            }
        }
        let offset = address.offset_in_block() + bytes_now;
        let left = if offset < BLOCK_DATA_BYTES { bytes - bytes_now } else { 0 };
        let address = if left > 0 { RecordAddress::in_block(address.block(), offset) } else { address };
        self.ahead.set(Ahead { address, bytes: left });
    }

    /// Has the records that start in the next pages of a block on their way, and where the index has them.
    pub(super) fn look_ahead(&self, block: BlockId, from: usize) {
        let end = usize::from(self.blocks.get(block).pages).min(from + PAGES_AHEAD);
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

    /// Walks the records whose headers and keys lie whole in a page.
    fn prefetch_entries(&self, data: &[u8], first: Option<usize>) {
        let mut next = first;
        while let Some((header, rest)) =
            next.and_then(|at| data.get(at..)?.split_first_chunk::<HEADER_BYTES>())
        {
            let Ok(header) = RecordHeader::decode(header) else { return };
            let Some(key) = rest.get(..usize::from(header.key_bytes)) else { return };
            self.index.prefetch(self.hasher.hash_of(&header, key));
            next = next.map(|at| at + header.units() as usize * UNIT_BYTES);
        }
    }
}

fn first_record(bytes: &[u8], page: usize) -> Option<usize> {
    let spare = PageSpare::decode(bytes, u8::try_from(page).ok()?)?;
    Some(usize::from(spare.first))
}
