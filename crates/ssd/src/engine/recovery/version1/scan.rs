//! Scans the blocks of the log that no checkpoint covers for records.
//!
//! Input: pages of the log in the order in which they were written. Output: one entry a record with a correct
//! checksum, and the properties of each block. Invariant: a record is reported as intact only if its CRC matches over
//! all of its bytes, across all pages and blocks that it spans.

use super::super::page_reads::read_pages;
use super::super::replay::Line;
use super::block_pages::BlockPages;
use super::survey::Survey;
use crate::command::Sequence;
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::index::KeyHasher;
use crate::log::blocks::{BlockEntry, BlockState, BlockUse};
use crate::log::page::{NO_RECORD, PageKind};
use crate::log::page_version1::PageSpare;
use crate::log::prefix::{EPOCH_SHIFT, Tick};
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The result of the scan.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) records: Vec<Line>,
    pub(super) blocks: Vec<(BlockId, BlockEntry)>,
    /// The highest durable sequence of any page.
    pub(super) durable: Sequence,
    /// The highest durable order of any page: the first pages of all blocks up to it were durable.
    pub(super) durable_order: u64,
    /// Records with a wrong checksum.
    pub(super) damaged: u64,
    /// Blocks with damage.
    pub(super) damaged_blocks: BTreeSet<BlockId>,
    /// The highest block order of any page.
    pub(super) highest_order: u64,
    /// Records with a wrong checksum whose header is valid and leads to the next record.
    pub(super) is_corrupt: Vec<Line>,
    /// For each block with a blank page before a programmed one, the first such page.
    pub(super) blank_pages: BTreeMap<BlockId, PageAddress>,
    /// Records found without the spare of their page, and the block whose collection must keep them.
    pub(super) unlisted_records: Vec<(BlockId, RecordAddress)>,
}

/// The source of the offsets at which the records of a page start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guide {
    /// The spare of the page.
    Spare,
    /// Only the end of the previous record: the page, or an earlier record on it, is damaged.
    PreviousRecord,
}

/// A chained record whose rest lies in the next block.
struct Chain {
    address: RecordAddress,
    order: u64,
    bytes: Vec<u8>,
    wanted: usize,
    /// False if one of its pages could not be read.
    is_readable: bool,
}

/// Scans every log block from `start_order` on.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) fn scan<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    survey: &Survey,
    start_order: u64,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Scanned, MediaError> {
    let blocks = survey.log_blocks(start_order);
    let total = blocks.len() as u64;
    let pages =
        blocks.iter().flat_map(|block| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let hasher = *ftl.hasher();
    let mut scanner = Scanner { survey, found: Scanned::default(), hasher, chain: None };
    let mut current: Option<BlockPages> = None;
    let mut done = 0;
    let (mut source, _) = ftl.reading(PageNeed::Log);
    read_pages(&mut source, now, pages, |page, bytes| {
        let gathering = current.get_or_insert_with(|| BlockPages::new(page.block));
        gathering.push(page, bytes);
        if gathering.is_whole() {
            if let Some(whole) = current.take() {
                scanner.scan_block(&whole);
            }
            done += 1;
            progress(OpenProgress { stage: "scan", done, total });
        }
    })?;
    ftl.count_damaged(scanner.found.damaged);
    Ok(scanner.found)
}

struct Scanner<'a> {
    survey: &'a Survey,
    found: Scanned,
    hasher: KeyHasher,
    chain: Option<Chain>,
}

impl Scanner<'_> {
    fn scan_block(&mut self, pages: &BlockPages) {
        let Some(life) = pages.life() else { return };
        self.found.highest_order = self.found.highest_order.max(life.order);
        let taken = self.found.blocks.last().is_some_and(|(_, block)| block.order >= life.order);
        // If the first page still belongs to an older life, the first page of the present life was never programmed
        // whole: none of the present life was durable, and all records of the older life had moved before the erase.
        let outlived = self.survey.spare(pages.block).is_some_and(|first| first.order != life.order);
        if life.kind == PageKind::Checkpoint || !self.survey.is_accepted(life.order) || taken || outlived {
            return;
        }
        if pages.has_holes(&life) {
            self.found.damaged_blocks.insert(pages.block);
        }
        self.found.blank_pages.extend(pages.blank_before_programmed().map(|page| (pages.block, page)));
        let mut max_sequence = Sequence(0);
        let before = self.found.records.len();
        let mut next = self.finish_chain(pages, &life);
        for number in 0..usize::from(pages.programmed) {
            let Some(spare) = pages.spare(number, &life) else {
                next = next.and_then(|at| self.scan_unreadable_page(pages, number, at, &life));
                continue;
            };
            self.found.durable = self.found.durable.max(spare.durable_sequence);
            self.found.durable_order = self.found.durable_order.max(spare.durable_order);
            if spare.kind == PageKind::Log && spare.first != NO_RECORD {
                let start = number * PAGE_DATA_BYTES;
                let span = start + usize::from(spare.first)..start + usize::from(spare.used);
                next = self.scan_page(pages, span, &life, Guide::Spare);
            }
            // After a page that was sealed before it was full, the next record starts on the next page.
            next = next
                .map(|at| if at / PAGE_DATA_BYTES == number { (number + 1) * PAGE_DATA_BYTES } else { at });
        }
        for line in &self.found.records[before..] {
            max_sequence = max_sequence.max(line.sequence);
        }
        if let Some(chain) = &self.chain {
            max_sequence =
                max_sequence.max(header_of(&chain.bytes).map_or(Sequence(0), |header| header.sequence));
        }
        let block = BlockEntry {
            state: BlockState::Closed,
            order: life.order,
            open_sequence: life.open_sequence,
            max_sequence,
            live_bytes: 0,
            tombstone_bytes: 0,
            tombstone_sequence: Sequence(0),
            next: None,
            pages: pages.programmed,
            last_tick: Tick(0),
            usage: BlockUse::Log,
            listed: false,
            has_damage: self.found.damaged_blocks.contains(&pages.block),
        };
        self.found.blocks.push((pages.block, block));
    }

    fn count_damage(&mut self, block: BlockId) {
        self.found.damaged += 1;
        self.found.damaged_blocks.insert(block);
        if let Some((_, found)) = self.found.blocks.iter_mut().rev().find(|(number, _)| *number == block) {
            found.has_damage = true;
        }
    }

    /// Appends the rest of a chained record at the start of a block. Returns the offset of the first record of the
    /// block, for the case that the spare of its page is unreadable.
    fn finish_chain(&mut self, pages: &BlockPages, life: &PageSpare) -> Option<usize> {
        let last = self.found.blocks.last().map(|(_, block)| block);
        let follows = last.is_some_and(|last| last.order + 1 == life.order && !last.has_damage);
        let first = pages.spare(0, life);
        let Some(mut chain) = self.chain.take() else {
            let begins_epoch = life.order & ((1 << EPOCH_SHIFT) - 1) == 0;
            return (follows || begins_epoch).then_some(0);
        };
        if !first.map_or(follows, |spare| spare.continues == chain.address.0 + 1) {
            self.count_damage(chain.address.block());
            return None;
        }
        let here = (chain.wanted - chain.bytes.len()).min(pages.data.len());
        chain.bytes.extend_from_slice(&pages.data[..here]);
        chain.is_readable &= pages.is_readable(0..here);
        if chain.bytes.len() < chain.wanted {
            self.chain = Some(chain);
            return None;
        }
        // A chained record counts as part of the block of its header.
        if !chain.is_readable {
            self.count_damage(chain.address.block());
            self.add_corrupt_record(&chain.bytes, chain.address, chain.order);
        } else if !self.add_record(&chain.bytes, chain.address, chain.order) {
            self.add_corrupt_record(&chain.bytes, chain.address, chain.order);
        } else if first.is_none() {
            self.found.unlisted_records.push((pages.block, chain.address));
        }
        Some(here)
    }

    /// Scans a page whose spare cannot be read, from the end of the previous record on.
    fn scan_unreadable_page(
        &mut self,
        pages: &BlockPages,
        number: usize,
        at: usize,
        life: &PageSpare,
    ) -> Option<usize> {
        let end = (number + 1) * PAGE_DATA_BYTES;
        if at >= end {
            Some(at)
        } else if !pages.is_readable(at..end) {
            self.count_damage(pages.block);
            None
        } else {
            self.scan_page(pages, at..end, life, Guide::PreviousRecord)
        }
    }

    /// Scans the records that start in one page. Returns the offset after the last of them.
    fn scan_page(
        &mut self,
        pages: &BlockPages,
        span: Range<usize>,
        life: &PageSpare,
        mut guide: Guide,
    ) -> Option<usize> {
        let mut at = span.start;
        while at + HEADER_BYTES <= pages.data.len() && at < span.end {
            let header = header_of(&pages.data[at..]).filter(|header| {
                // Of a corrupt record at least the key is needed.
                pages.is_readable(at..at + HEADER_BYTES + usize::from(header.key_bytes))
            });
            let Some(header) = header else {
                self.count_damage(pages.block);
                return None;
            };
            let address = RecordAddress::in_block(pages.block, at);
            let bytes = header.units() as usize * UNIT_BYTES;
            if at + bytes > pages.data.len() {
                let mut chained = Vec::with_capacity(bytes);
                chained.extend_from_slice(&pages.data[at..]);
                let is_readable = pages.is_readable(at..pages.data.len());
                let order = life.order;
                self.chain = Some(Chain { address, order, bytes: chained, wanted: bytes, is_readable });
                return None;
            }
            let next = at + bytes;
            let is_readable = pages.is_readable(at..next);
            if !is_readable {
                self.count_damage(pages.block);
            }
            if is_readable && self.add_record(&pages.data[at..next], address, life.order) {
                if guide == Guide::PreviousRecord {
                    self.found.unlisted_records.push((pages.block, address));
                }
            } else if is_next(pages, &span, next, life) {
                self.add_corrupt_record(&pages.data[at..next], address, life.order);
                guide = Guide::PreviousRecord;
            } else {
                // The lengths in a damaged header are useless; the spare of the next page gives its first record.
                return None;
            }
            at = next;
        }
        Some(at)
    }

    /// Adds a record with a wrong checksum whose header leads to the start of the next record.
    fn add_corrupt_record(&mut self, bytes: &[u8], address: RecordAddress, order: u64) {
        if let Some(line) =
            header_of(bytes).and_then(|header| Line::of_record(&self.hasher, &header, bytes, address, order))
        {
            self.found.is_corrupt.push(line);
        }
    }

    /// Adds one whole record. Returns false if its checksum is wrong.
    fn add_record(&mut self, bytes: &[u8], address: RecordAddress, order: u64) -> bool {
        let header =
            header_of(bytes).filter(|header| crc32c(0, &bytes[4..header.payload_end()]) == header.crc);
        let Some(header) = header else {
            self.count_damage(address.block());
            return false;
        };
        let Some(line) = Line::of_record(&self.hasher, &header, bytes, address, order) else {
            self.count_damage(address.block());
            return false;
        };
        self.found.records.push(line);
        true
    }
}

/// Returns true if a record starts at `next`, or the records of the page end there.
fn is_next(pages: &BlockPages, span: &Range<usize>, next: usize, life: &PageSpare) -> bool {
    if next >= span.end {
        return next == span.end || pages.ends_at(next, life);
    }
    let header = header_of(&pages.data[next..]);
    header.is_some_and(|header| {
        let payload = pages.data.get(next + 4..next + header.payload_end());
        payload.is_some_and(|payload| crc32c(0, payload) == header.crc)
    })
}

fn header_of(bytes: &[u8]) -> Option<RecordHeader> {
    RecordHeader::decode(bytes.first_chunk()?).ok()
}
