//! A long record whose pages are built before its place in the log is known.
//!
//! Input: the payload of a record, part by part. Output: frames that hold it as its pages will, and the checksum of the
//! payload. Invariant: nothing of a draft is in the log before [`RecordLog::append_draft`] takes it whole, so that other
//! records, commits and power cuts in between know nothing of it.
//!
//! Such a record begins on a page of its own: only then are its pages the same wherever it is placed.

use super::RecordLog;
use super::blocks::BlockTable;
use super::page::PageKind;
use super::page_cache::PageCache;
use super::page_sum::PageSum;
use super::record::{HEADER_BYTES, RecordAddress, RecordHeader};
use super::record_source::RecordSource;
use super::record_writer::RecordWriter;
use crate::media::geometry::PAGE_DATA_BYTES;
use headwater_dma::frame::MediaFrame;
use headwater_dma::iova::ClientSegments;
use headwater_host::copy::{copy_crc32c, crc32c, join_crc32c};
use std::fmt;

/// One page of a record that is being built.
pub(super) struct DraftPage {
    pub(super) frame: MediaFrame,
    pub(super) sum: PageSum,
}

/// The pages of a record that is being built.
pub struct RecordDraft {
    pages: Vec<DraftPage>,
    /// Bytes of the record so far, header included.
    bytes: usize,
    /// Checksum of the payload so far.
    crc: u32,
}

impl fmt::Debug for RecordDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordDraft").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Default for RecordDraft {
    fn default() -> Self {
        Self { pages: Vec::new(), bytes: HEADER_BYTES, crc: 0 }
    }
}

impl RecordDraft {
    /// Returns the bytes of the payload so far.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.bytes - HEADER_BYTES
    }

    /// Returns the bytes of the frames that it holds.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.pages.len() * PAGE_DATA_BYTES
    }

    /// Copies the next bytes of the payload.
    ///
    /// # Panics
    /// There is no frame: the caller did not reserve them.
    pub fn put(&mut self, dram: &mut PageCache, piece: RecordSource<'_>) {
        match piece {
            RecordSource::Bytes(mut bytes) => {
                while !bytes.is_empty() {
                    let crc = self.crc;
                    let (page, sum) = self.open_page(dram);
                    let (here, rest) = bytes.split_at(bytes.len().min(page.len()));
                    let target = &mut page[..here.len()];
                    self.crc = sum.put(target, crc, |target, crc| copy_crc32c(target, here, crc));
                    self.bytes += here.len();
                    bytes = rest;
                }
            }
            RecordSource::Client(segments) => self.put_client(dram, segments, (0, segments.bytes())),
            RecordSource::Part { segments, offset, len } => self.put_client(dram, segments, (offset, len)),
        }
    }

    /// Copies bytes of client memory. The checksum covers the copy, because a client may change its memory during it.
    fn put_client(&mut self, dram: &mut PageCache, segments: &ClientSegments, (offset, len): (usize, usize)) {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let crc = self.crc;
            let (page, sum) = self.open_page(dram);
            let here = (end - at).min(page.len());
            // Memory that the client can take away is checked before the draft is appended.
            self.crc =
                sum.put(&mut page[..here], crc, |target, crc| segments.copy_in_crc32c(at, target, crc).1);
            self.bytes += here;
            at += here;
        }
    }

    /// Returns the free rest of the last page, or of a new one if it is full, and the checksum of the page.
    fn open_page(&mut self, dram: &mut PageCache) -> (&mut [u8], &mut PageSum) {
        if self.bytes.div_ceil(PAGE_DATA_BYTES) > self.pages.len()
            || self.bytes.is_multiple_of(PAGE_DATA_BYTES)
        {
            let frame = dram.take_frame().expect("frames were reserved for the part");
            // The header is the last that the first page gets.
            let sum = if self.pages.is_empty() { PageSum::UNKNOWN } else { PageSum::EMPTY };
            self.pages.push(DraftPage { frame, sum });
        }
        let DraftPage { frame, sum } = self.pages.last_mut().expect("a page was pushed above");
        (&mut frame[self.bytes % PAGE_DATA_BYTES..PAGE_DATA_BYTES], sum)
    }

    /// Writes the header in front of the payload, and returns the pages of the record.
    ///
    /// # Panics
    /// The draft has another length than the header says.
    pub(super) fn finish(mut self, header: &RecordHeader) -> Vec<DraftPage> {
        let payload_bytes = self.payload_bytes();
        assert_eq!(self.bytes, header.payload_end(), "a draft has another length than its record");
        let mut encoded = header.encode();
        let crc = join_crc32c(crc32c(0, &encoded[4..]), self.crc, payload_bytes);
        encoded[..4].copy_from_slice(&crc.to_le_bytes());
        self.pages[0].frame[..HEADER_BYTES].copy_from_slice(&encoded);
        self.pages
    }

    /// Returns the frames of a draft that is given up.
    pub(crate) fn discard(self, dram: &mut PageCache) {
        self.pages.into_iter().for_each(|page| dram.return_frame(page.frame));
    }
}

impl RecordLog {
    /// Appends a record whose pages are built, and returns its address. It begins on a page of its own. The caller checked
    /// the room of its bytes and of one page more.
    ///
    /// # Panics
    /// There is no room: the caller did not check it.
    pub fn append_draft(
        &mut self,
        dram: &mut PageCache,
        blocks: &mut BlockTable,
        header: &RecordHeader,
        draft: RecordDraft,
    ) -> RecordAddress {
        if self.open.as_ref().is_some_and(|open| open.offset > 0) {
            self.fill_page(PageKind::Log, blocks);
            self.close_full_block(dram, blocks);
        }
        let flags = self.place(dram, blocks, header);
        let header = RecordHeader { flags, ..*header };
        self.appended = self.appended.max(header.sequence);
        let open = self.open.as_mut().expect("a block was opened for the record");
        open.first = 0;
        let address = RecordAddress::in_block(open.block, open.page * PAGE_DATA_BYTES);
        if let Some(frame) = open.frame.take() {
            dram.return_frame(frame);
        }
        blocks.raise_max_sequence(address.block(), header.sequence);
        let mut left = header.payload_end();
        let mut writer = RecordWriter::new(self, dram, blocks, (address, &header));
        for page in draft.finish(&header) {
            let used = left.min(PAGE_DATA_BYTES);
            writer.put_page(page, used);
            left -= used;
        }
        self.align();
        self.close_full_page(dram, blocks);
        address
    }
}
