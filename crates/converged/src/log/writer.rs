//! One append under way: the bytes of a record go into the open page, and into the next pages and blocks as each is full.
//!
//! In: pieces of a record, in order. Out: the same bytes in device DRAM, and their checksum. Invariant: a block that is
//! opened in the middle of a record says which record it goes on with.

use super::{Log, OpenBlock};
use crate::blocks::Blocks;
use crate::command::Sequence;
use crate::dram::Dram;
use crate::media::geometry::{PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use crate::page::PageKind;
use crate::record::RecordAddress;
use headwater_dma::iova::Segments;
use headwater_host::copy::{copy, copy_crc32c, crc32c};
use std::ops::Range;

/// One append under way.
pub(super) struct Writer<'a> {
    pub(super) log: &'a mut Log,
    pub(super) dram: &'a mut Dram,
    pub(super) blocks: &'a mut Blocks,
    pub(super) head: RecordAddress,
    pub(super) sequence: Sequence,
}

impl Writer<'_> {
    /// The rest of the open page, after opening the next page or block if the current one is full.
    fn room(&mut self) -> (&mut [u8], &mut usize) {
        let full = self.log.open.as_ref().is_none_or(|open| open.offset == PAGE_DATA_BYTES);
        if full {
            self.log.fill_page(PageKind::Log);
            let before = self.log.open.as_ref().map(|open| (open.block, open.page));
            if let Some((block, PAGES_PER_BLOCK)) = before {
                self.log.finish_block(self.dram, self.blocks);
                self.log.open_block(self.blocks, self.head.0 + 1);
                let next = self.log.open.as_ref().map_or(block, |open| open.block);
                self.blocks.chain(block, next);
                self.blocks.saw_sequence(next, self.sequence);
            }
        }
        let open = self.log.open.as_mut().expect("a block is open while a record is appended");
        if open.frame.is_none() {
            open.frame = Some(self.dram.take_frame().expect("frames were counted before the append"));
        }
        let OpenBlock { frame: Some(frame), offset, .. } = open else {
            unreachable!("the frame was just put there")
        };
        (&mut frame[..PAGE_DATA_BYTES], offset)
    }

    pub(super) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (page, offset) = self.room();
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE_DATA_BYTES - *offset));
            copy(&mut page[*offset..*offset + here.len()], here);
            *offset += here.len();
            bytes = rest;
        }
    }

    pub(super) fn put_crc(&mut self, mut bytes: &[u8], mut crc: u32) -> u32 {
        while !bytes.is_empty() {
            let (page, offset) = self.room();
            let (here, rest) = bytes.split_at(bytes.len().min(PAGE_DATA_BYTES - *offset));
            crc = copy_crc32c(&mut page[*offset..*offset + here.len()], here, crc);
            *offset += here.len();
            bytes = rest;
        }
        crc
    }

    /// The bytes are checked where they were copied to, because a client may change its own meanwhile.
    pub(super) fn put_client(&mut self, segments: &Segments, part: Range<usize>, mut crc: u32) -> u32 {
        let mut at = part.start;
        while at < part.end {
            let (page, offset) = self.room();
            let here = (part.end - at).min(PAGE_DATA_BYTES - *offset);
            let target = &mut page[*offset..*offset + here];
            segments.copy_in(at, target);
            crc = crc32c(crc, target);
            *offset += here;
            at += here;
        }
        crc
    }
}
