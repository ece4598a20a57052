//! Corruption: records that were certainly durable once and have a wrong checksum now.
//!
//! Input: the damaged and the intact records of the scan. Output: the damaged ones whose keys must report the damage
//! instead of an older value. Invariant: a record that a power cut may have torn is never among them: such a write was
//! not acknowledged, or lies in a block whose erase was interrupted, and another record of its key is still valid.

use super::super::replay::Line;
use crate::command::Sequence;
use crate::log::blocks::BlockEntry;
use crate::log::record::{FLAG_CLEAR, FLAG_TOMBSTONE, RecordAddress};
use crate::media::geometry::{BlockId, PageAddress};
use std::collections::{BTreeMap, BTreeSet};

/// Adds the corrupt records that were durable to the intact ones. `blank_pages` names for each block the first blank page
/// before a programmed one.
pub(super) fn add_corrupt(
    lines: &mut Vec<Line>,
    mut rotten: Vec<Line>,
    (blocks, blank_pages): (&[(BlockId, BlockEntry)], &BTreeMap<BlockId, PageAddress>),
    durable: Sequence,
) {
    if rotten.is_empty() {
        return;
    }
    let surely = Durable::new(lines, blocks, durable);
    // A power cut interrupted the erase of a block in which a page is blank that was durable. All its records had moved
    // before, and any byte that is left of them may have changed.
    let is_under_erase = |line: &Line| {
        let blank = blank_pages.get(&line.address.block());
        blank.is_some_and(|blank| surely.holds_page(line.order, *blank))
    };
    rotten.retain(|line| {
        line.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) == 0
            && line.sequence <= durable
            && surely.holds(line.order, line.address)
            && !is_under_erase(line)
    });
    // A moved copy has the same sequence; if one copy is intact, nothing is lost.
    let mut alone: BTreeSet<Sequence> = rotten.iter().map(|line| line.sequence).collect();
    for line in &*lines {
        alone.remove(&line.sequence);
    }
    for line in rotten.into_iter().filter(|line| alone.contains(&line.sequence)) {
        lines.push(Line { is_corrupt: true, ..line });
    }
}

/// The durable part of the log by addresses instead of sequences: a moved record is written long after its sequence.
pub(super) struct Durable {
    /// Order below which every page of every block is durable.
    blocks_below: u64,
    /// The record of each block up to whose page the block is durable.
    records: BTreeMap<BlockId, RecordAddress>,
}

impl Durable {
    pub(super) fn new(lines: &[Line], blocks: &[(BlockId, BlockEntry)], durable: Sequence) -> Self {
        // If a record that was new when appended is durable by its sequence, so is everything appended before it.
        let opened: BTreeMap<BlockId, Sequence> =
            blocks.iter().map(|(number, block)| (*number, block.open_sequence)).collect();
        let begun = blocks.iter().filter(|(_, block)| block.open_sequence <= durable);
        let mut records: BTreeMap<BlockId, RecordAddress> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.sequence <= durable) {
            let block = line.address.block();
            if opened.get(&block).is_some_and(|opened| line.sequence >= *opened) {
                let last = records.entry(block).or_insert(line.address);
                *last = line.address.max(*last);
            }
        }
        Self { blocks_below: begun.map(|(_, block)| block.order).max().unwrap_or(0), records }
    }

    /// Returns true if the record at an address in a block of this order was durable.
    pub(super) fn holds(&self, order: u64, address: RecordAddress) -> bool {
        self.holds_page(order, address.page())
    }

    fn holds_page(&self, order: u64, page: PageAddress) -> bool {
        let last = self.records.get(&page.block);
        order < self.blocks_below || last.is_some_and(|last| last.page() >= page)
    }
}
