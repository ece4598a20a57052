//! One append: the bytes of a record go into the open page, and into the next pages and blocks when each is full.
//!
//! Input: pieces of a record, in order. Output: the same bytes in device DRAM, and their checksum. Invariant: a block
//! that is opened inside a record carries the address of that record.

use super::page_sum::PageSum;
use super::record_draft::DraftPage;
use super::{OpenBlock, RecordLog};
use crate::command::Sequence;
use crate::log::blocks::BlockTable;
use crate::log::page::PageKind;
use crate::log::page_cache::PageCache;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::media::geometry::{PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use crate::mutant::{Mutant, mutant};
use headwater_dma::iova::ClientSegments;
use headwater_host::copy::copy_crc32c;
use std::ops::Range;

/// The state of one append.
pub(super) struct RecordWriter<'a> {
    pub(super) log: &'a mut RecordLog,
    pub(super) dram: &'a mut PageCache,
    pub(super) blocks: &'a mut BlockTable,
    pub(super) record: RecordAddress,
    pub(super) sequence: Sequence,
    /// The bit of its namespace.
    pub(super) namespace: u32,
}

/// The open page, and what is filled of it.
struct OpenPage<'a> {
    data: &'a mut [u8],
    offset: &'a mut usize,
    sum: &'a mut PageSum,
}

impl<'a> RecordWriter<'a> {
    /// Begins the append of a record.
    pub(super) fn new(
        log: &'a mut RecordLog,
        dram: &'a mut PageCache,
        blocks: &'a mut BlockTable,
        (record, header): (RecordAddress, &RecordHeader),
    ) -> Self {
        let namespace = 1 << header.namespace.0;
        Self { log, dram, blocks, record, sequence: header.sequence, namespace }
    }

    /// Returns the open block with room in its open page. Opens the next page or block if the current one is full.
    fn open_room(&mut self) -> &mut OpenBlock {
        let full = self.log.open.as_ref().is_none_or(|open| open.offset == PAGE_DATA_BYTES);
        if full {
            self.log.fill_page(PageKind::Log, self.blocks);
            let before = self.log.open.as_ref().map(|open| (open.block, open.page));
            if let Some((block, PAGES_PER_BLOCK)) = before {
                self.log.finish_block(self.dram, self.blocks);
                let continues = if mutant(Mutant::ChainNotNamed) { 0 } else { self.record.0 + 1 };
                self.log.open_block(self.blocks, continues);
                let next = self.log.open.as_ref().map_or(block, |open| open.block);
                self.blocks.set_next(block, next);
                self.blocks.raise_max_sequence(next, self.sequence);
            }
        }
        let open = self.log.open.as_mut().expect("a block is open while a record is appended");
        open.namespaces |= self.namespace;
        open
    }

    /// Returns the open page.
    fn open_page(&mut self) -> OpenPage<'_> {
        self.open_room();
        let open = self.log.open.as_mut().expect("a block is open while a record is appended");
        if open.frame.is_none() {
            open.frame = Some(self.dram.take_frame().expect("frames were counted before the append"));
        }
        let OpenBlock { frame: Some(frame), offset, sum, .. } = open else {
            unreachable!("the frame was set above")
        };
        OpenPage { data: &mut frame[..PAGE_DATA_BYTES], offset, sum }
    }

    /// Prepares the open page for a record with this many bytes behind its header.
    pub(super) fn prepare(&mut self, payload_bytes: usize) {
        self.open_page().sum.prepare(payload_bytes);
    }

    /// Makes a frame with `used` bytes of the record the open page, at whose start the log is.
    pub(super) fn put_page(&mut self, page: DraftPage, used: usize) {
        let open = self.open_room();
        assert!(open.frame.is_none() && open.offset == 0, "a page of a record begins inside of another page");
        open.sum = page.sum;
        open.frame = Some(page.frame);
        open.offset = used;
    }

    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let OpenPage { data, offset, sum } = self.open_page();
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE_DATA_BYTES - *offset));
            sum.copy(&mut data[*offset..*offset + here.len()], here);
            *offset += here.len();
            bytes = rest;
        }
    }

    pub(super) fn put_crc(&mut self, mut bytes: &[u8], mut crc: u32) -> u32 {
        while !bytes.is_empty() {
            let OpenPage { data, offset, sum } = self.open_page();
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE_DATA_BYTES - *offset));
            let target = &mut data[*offset..*offset + here.len()];
            crc = sum.put(target, crc, |target, crc| copy_crc32c(target, here, crc));
            *offset += here.len();
            bytes = rest;
        }
        crc
    }

    /// Appends bytes of client memory. The checksum covers the copy, because a client may change its memory during the
    /// append. Memory that it can take away is copied before the append, because a started append cannot fail.
    pub(super) fn put_client(&mut self, segments: &ClientSegments, part: Range<usize>, mut crc: u32) -> u32 {
        let mut at = part.start;
        while at < part.end {
            let OpenPage { data, offset, sum } = self.open_page();
            let here = (part.end - at).min(PAGE_DATA_BYTES - *offset);
            crc = sum.put(&mut data[*offset..*offset + here], crc, |target, crc| {
                let (copied, crc) = segments.copy_in_crc32c(at, target, crc);
                assert!(
                    copied == here,
                    "memory that the client can take away was not copied before the append"
                );
                crc
            });
            *offset += here;
            at += here;
        }
        crc
    }
}
