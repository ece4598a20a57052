//! Reads the log: every intact page with records of the given blocks, and the records on them.
//!
//! Input: blocks in the order in which they were opened. Output: what each page says, by its tick, and each whole record
//! with the ticks that it lies on. Invariant: a record is taken only from intact pages with consecutive ticks, and only if
//! its own checksum matches.

use super::extents::ExtentRecord;
use super::page_reads::read_pages;
use super::replay::Line;
use crate::command::Sequence;
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::index::KeyHasher;
use crate::log::extent_list::{self, Extent};
use crate::log::page::{NO_RECORD, PageKind, PageSpare, PagesBefore};
use crate::log::prefix::{Prefix, Tick};
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use std::collections::BTreeMap;

/// An intact page with records.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPage {
    pub(super) address: PageAddress,
    pub(super) order: u64,
    pub(super) open_sequence: Sequence,
    pub(super) before: PagesBefore,
}

/// The contents of a part of the log.
#[derive(Debug, Default)]
pub(super) struct FoundWindow {
    pub(super) pages: BTreeMap<Tick, FoundPage>,
    /// The intact pages of each life of a block: bit `n` for page `n`.
    pub(super) intact: BTreeMap<(BlockId, u64), u64>,
    /// Whole records, each with the tick of its last page.
    pub(super) records: Vec<(Tick, Line)>,
    /// Those of them whose values have extents.
    pub(super) extents: Vec<ExtentRecord>,
    /// The longest prefixes that a page calls durable.
    pub(super) durable: Prefix,
    /// The ends of epochs that pages name.
    pub(super) accepted: Vec<Prefix>,
    /// The highest block order and epoch of any page.
    pub(super) highest_order: u64,
    /// The highest sequence that a page or record names.
    pub(super) sequence: Sequence,
    /// Records on intact pages whose own checksum differs: a device wrote them so.
    pub(super) damaged_records: u64,
}

/// Reads the pages of these blocks.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) fn read_window<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    blocks: &[BlockId],
    lowest_order: u64,
    need: PageNeed,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<FoundWindow, MediaError> {
    let seed = ftl.media().traits().checksum_seed;
    let mut scanner =
        WindowScanner { found: FoundWindow::default(), hasher: *ftl.hasher(), unfinished: None };
    let pages =
        blocks.iter().flat_map(|block| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let total = (blocks.len() * PAGES_PER_BLOCK) as u64;
    let mut done = 0;
    let (mut source, _) = ftl.reading(need);
    read_pages(&mut source, now, pages, |page, bytes| {
        done += 1;
        progress(OpenProgress { stage: "scan", done, total });
        let spare =
            bytes.programmed().and_then(|bytes| Some((bytes, PageSpare::of_intact(bytes, page, seed)?)));
        if let Some((bytes, spare)) = spare {
            scanner.add_page(&spare, &bytes[..PAGE_DATA_BYTES], lowest_order);
        }
    })?;
    Ok(scanner.found)
}

/// A record whose rest lies on the next page.
struct UnfinishedRecord {
    address: RecordAddress,
    order: u64,
    bytes: Vec<u8>,
    last: Tick,
}

struct WindowScanner {
    found: FoundWindow,
    hasher: KeyHasher,
    unfinished: Option<UnfinishedRecord>,
}

impl WindowScanner {
    fn add_page(&mut self, spare: &PageSpare, data: &[u8], lowest_order: u64) {
        if matches!(spare.kind, PageKind::Checkpoint | PageKind::Extent) {
            return;
        }
        let found = &mut self.found;
        found.highest_order = found.highest_order.max(spare.order);
        found.durable = found.durable.max(spare.durable).max(spare.accepted);
        if found.accepted.last() != Some(&spare.accepted) {
            found.accepted.push(spare.accepted);
        }
        *found.intact.entry((spare.address.block, spare.order)).or_default() |= 1 << spare.address.page;
        let before = spare.open_sequence.0.saturating_sub(1);
        found.sequence = found.sequence.max(spare.before.sequence).max(Sequence(before));
        if spare.kind != PageKind::Log || spare.order < lowest_order {
            return;
        }
        let PageSpare { address, order, open_sequence, before, tick, .. } = *spare;
        found.pages.insert(tick, FoundPage { address, order, open_sequence, before });
        let start = self.finish_record(spare, data);
        if spare.first != NO_RECORD {
            self.add_records(spare, data, usize::from(spare.first).max(start));
        }
    }

    /// Appends the rest of a record that began on the page in front. Returns the offset behind it.
    fn finish_record(&mut self, spare: &PageSpare, data: &[u8]) -> usize {
        let Some(mut record) = self.unfinished.take().filter(|record| record.last.next() == spare.tick)
        else {
            return 0;
        };
        // The header itself may lie on two pages.
        let header_rest = HEADER_BYTES.saturating_sub(record.bytes.len());
        record.bytes.extend_from_slice(&data[..header_rest]);
        let Some(wanted) = record_bytes(&record.bytes) else {
            self.found.damaged_records += 1;
            return 0;
        };
        let end = data.len().min(header_rest + wanted.saturating_sub(record.bytes.len()));
        record.bytes.extend_from_slice(&data[header_rest..end]);
        record.last = spare.tick;
        if record.bytes.len() == wanted {
            self.add_record(&record.bytes, record.address, record.order, spare.tick);
        } else {
            self.unfinished = Some(record);
        }
        end
    }

    fn add_records(&mut self, spare: &PageSpare, data: &[u8], mut at: usize) {
        let page_start = usize::from(spare.address.page) * PAGE_DATA_BYTES;
        while at < usize::from(spare.used) {
            let address = RecordAddress::in_block(spare.address.block, page_start + at);
            let rest = &data[at..];
            let bytes = record_bytes(rest);
            if rest.len() >= HEADER_BYTES && bytes.is_none() {
                self.found.damaged_records += 1;
                return;
            }
            let Some(record) = bytes.and_then(|bytes| rest.get(..bytes)) else {
                let (bytes, order, last) = (rest.to_vec(), spare.order, spare.tick);
                self.unfinished = Some(UnfinishedRecord { address, order, bytes, last });
                return;
            };
            self.add_record(record, address, spare.order, spare.tick);
            at += record.len();
        }
    }

    fn add_record(&mut self, bytes: &[u8], address: RecordAddress, order: u64, last: Tick) {
        match self.line(bytes, address, order) {
            Some(line) => {
                self.found.sequence = self.found.sequence.max(line.sequence);
                if line.has_extents {
                    let (sequence, extents) = (line.sequence, extents_of(bytes).unwrap_or_default());
                    self.found.extents.push(ExtentRecord { last, sequence, extents });
                }
                self.found.records.push((last, line));
            }
            None => self.found.damaged_records += 1,
        }
    }

    fn line(&self, bytes: &[u8], address: RecordAddress, order: u64) -> Option<Line> {
        let header = RecordHeader::decode(bytes.first_chunk()?).ok()?;
        if crc32c(0, bytes.get(4..header.payload_end())?) != header.crc {
            return None;
        }
        Line::of_record(&self.hasher, &header, bytes, address, order)
    }
}

/// Returns the extents that a whole record names; `None` if its bytes are no list.
fn extents_of(bytes: &[u8]) -> Option<Vec<Extent>> {
    let header = RecordHeader::decode(bytes.first_chunk()?).ok()?;
    let list = HEADER_BYTES + usize::from(header.key_bytes);
    extent_list::decode(bytes.get(list..list + header.list_bytes())?)
}

/// Returns the length of the record that begins here; `None` if its header is not here or is none.
fn record_bytes(bytes: &[u8]) -> Option<usize> {
    let header = RecordHeader::decode(bytes.first_chunk()?).ok()?;
    Some(header.units() as usize * UNIT_BYTES)
}
