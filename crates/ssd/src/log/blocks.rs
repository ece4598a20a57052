//! The block table: the contents of each block, the order in which blocks were opened, and the next block to collect.
//!
//! Input: opens, changes of live bytes, erases. Output: erased blocks to write to, victims, and the watermark: a
//! sequence below which the medium holds no record.
//!
//! ```text
//! Dirty --erase--> Erasing --done--> Ready --open--> Open --full--> Closed --evacuated--> Evacuated --erase--> Erasing
//!                                                                      \--damaged live record--> Quarantined
//! ```
//!
//! Invariant: only a Ready block is opened, and its order is higher than the order of every block opened before.

mod accounts;
mod adoption;
mod costs;
mod listing;
#[cfg(test)]
mod tests;
mod victim;

use self::accounts::NeededRecords;
use self::costs::BlockCosts;
use crate::command::Sequence;
use crate::limits::LOG_VALUE_BYTES_MAX;
use crate::log::prefix::{EPOCH_SHIFT, Tick};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, FlashGeometry, PAGES_PER_BLOCK};
use crate::mutant::{Mutant, mutant};
use std::collections::{BTreeMap, VecDeque};

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Holds nothing valid; must be erased before it is programmed.
    Dirty,
    /// An erase is in flight.
    Erasing,
    /// Erased.
    Ready,
    /// The log or a checkpoint writes to it.
    Open,
    /// Written; not written again before an erase.
    Closed,
    /// Holds no live record; erased once its moved records are durable.
    Evacuated,
    /// Holds a live record that cannot be read. Never erased, so that the damage stays visible.
    Quarantined,
}

/// The entry of one block.
#[derive(Clone, Copy, Debug)]
pub struct BlockEntry {
    /// Its state.
    pub state: BlockState,
    /// Order in which it was opened; 0 when it holds nothing.
    pub order: u64,
    /// Lowest sequence not given out when it was opened.
    pub open_sequence: Sequence,
    /// Highest sequence of any record in it.
    pub max_sequence: Sequence,
    /// Bytes of live records, without tombstones.
    pub live_bytes: u32,
    /// Bytes of tombstones and clear records.
    pub tombstone_bytes: u32,
    /// Highest sequence of a tombstone in it.
    pub tombstone_sequence: Sequence,
    /// Block that was opened next, in which a chained record continues.
    pub next: Option<BlockId>,
    /// Pages that were written.
    pub pages: u8,
    /// The last page with records; [`Tick`] 0 in a block from before the window.
    pub last_tick: Tick,
    /// The use for which it was opened. Only blocks of the log are collected.
    pub usage: BlockUse,
    /// True if it was freed since the map of the checkpoint that counts, which lists it. After a power cut it is not free
    /// before it is collected again, unless it was opened.
    pub listed: bool,
    /// True if recovery found damage in it: a record is used only if every record before it passes its check.
    pub has_damage: bool,
}

pub(crate) const EMPTY_ENTRY: BlockEntry = BlockEntry {
    state: BlockState::Dirty,
    order: 0,
    open_sequence: Sequence(0),
    max_sequence: Sequence(0),
    live_bytes: 0,
    tombstone_bytes: 0,
    tombstone_sequence: Sequence(0),
    next: None,
    pages: 0,
    last_tick: Tick(0),
    usage: BlockUse::Log,
    listed: false,
    has_damage: false,
};

impl BlockEntry {
    /// Returns the entry of a full block of a checkpoint.
    #[must_use]
    pub const fn of_checkpoint(order: u64) -> Self {
        let (state, usage) = (BlockState::Closed, BlockUse::Checkpoint);
        Self { state, order, usage, pages: FULL_PAGES, ..EMPTY_ENTRY }
    }

    /// Returns true if it is a block of the log, or free.
    #[must_use]
    #[inline]
    pub const fn is_of_log(&self) -> bool {
        matches!(self.usage, BlockUse::Log)
    }

    /// Returns true if it is a block of a checkpoint.
    #[must_use]
    #[inline]
    pub const fn is_checkpoint(&self) -> bool {
        matches!(self.usage, BlockUse::Checkpoint)
    }

    /// Returns true if it is an extent, which holds bytes of one value only.
    #[must_use]
    #[inline]
    pub const fn is_extent(&self) -> bool {
        matches!(self.usage, BlockUse::Extent)
    }
}

/// The use for which a block is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    /// The log.
    Log,
    /// A checkpoint.
    Checkpoint,
    /// A part of a value outside of the log.
    Extent,
}

/// Bit set in the orders of extents, so that the log's own orders have no gaps except those of erased blocks.
const EXTENT_ORDER: u64 = 1 << 38;

/// Returns true if the order is that of an extent.
#[must_use]
pub const fn is_extent_order(order: u64) -> bool {
    order & EXTENT_ORDER != 0 && !is_checkpoint_order(order)
}

/// Bit set in the orders of checkpoint blocks, so that the log's own orders have no gaps except those of erased blocks.
const CHECKPOINT_ORDER: u64 = 1 << 39;

/// Returns true if the order is that of a block of a checkpoint.
#[must_use]
pub const fn is_checkpoint_order(order: u64) -> bool {
    order & CHECKPOINT_ORDER != 0
}

/// Pages of a block that is full.
pub(super) const FULL_PAGES: u8 = 64;
const _: () = assert!(FULL_PAGES as usize == PAGES_PER_BLOCK);

/// Bytes of an extent that count as live.
const EXTENT_LIVE_BYTES: u32 = 262_144;
const _: () = assert!(EXTENT_LIVE_BYTES as usize == BLOCK_DATA_BYTES);

/// A block that was freed, and that the map of a checkpoint may still list.
#[derive(Clone, Copy, Debug)]
struct FreedBlock {
    block: BlockId,
    open_sequence: Sequence,
    /// Number of maps that were written before it was freed.
    maps: u64,
}

/// The table of all blocks.
#[derive(Debug)]
pub struct BlockTable {
    entries: Vec<BlockEntry>,
    /// Cost of collecting each closed block.
    costs: BlockCosts,
    /// The needed records of each page.
    needed: NeededRecords,
    dirty: VecDeque<BlockId>,
    ready: VecDeque<BlockId>,
    /// Log blocks that hold records, by order: the first one sets the watermark.
    by_order: BTreeMap<u64, BlockId>,
    /// Freed blocks that still hold back the watermark: where the index of a checkpoint is damaged, recovery reads the
    /// blocks of its map.
    freed: Vec<FreedBlock>,
    /// Number of maps written.
    maps: u64,
    erasing: usize,
    /// Ready blocks that the map of the checkpoint that counts lists.
    listed_ready: usize,
    order_next: u64,
    checkpoint_order: u64,
    extent_order: u64,
    live_bytes: u64,
    tombstone_bytes: u64,
}

impl BlockTable {
    /// Makes a table of blocks that must all be erased before use.
    #[must_use]
    pub fn new(geometry: FlashGeometry) -> Self {
        Self {
            entries: vec![EMPTY_ENTRY; geometry.blocks as usize],
            costs: BlockCosts::new(geometry.blocks as usize),
            needed: NeededRecords::new(geometry.blocks as usize),
            dirty: (0..geometry.blocks).map(BlockId).collect(),
            ready: VecDeque::new(),
            by_order: BTreeMap::new(),
            freed: Vec::new(),
            maps: 0,
            erasing: 0,
            listed_ready: 0,
            order_next: 1,
            checkpoint_order: 0,
            extent_order: 0,
            live_bytes: 0,
            tombstone_bytes: 0,
        }
    }

    /// Returns the entry of a block.
    #[must_use]
    #[inline]
    pub fn get(&self, block: BlockId) -> &BlockEntry {
        &self.entries[block.index()]
    }

    /// Returns the entry of a block; `None` if there is no such block.
    #[must_use]
    pub fn get_checked(&self, block: BlockId) -> Option<&BlockEntry> {
        self.entries.get(block.index())
    }

    /// Returns all blocks with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (BlockId, &BlockEntry)> + '_ {
        (0..).map(BlockId).zip(&self.entries)
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of blocks that hold nothing and are not being erased: dirty or ready.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.dirty.len() + self.ready.len()
    }

    /// Returns the number of free blocks that are free after a power cut too.
    #[must_use]
    pub fn unlisted_free_count(&self) -> usize {
        self.free_count() - self.listed_ready
    }

    /// Returns the number of blocks being erased.
    #[must_use]
    pub fn erasing_count(&self) -> usize {
        self.erasing
    }

    /// Returns the number of blocks that can be opened now.
    #[must_use]
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Returns the bytes of live records and tombstones on the whole medium.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the bytes of tombstones among the live bytes.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes
    }

    /// Returns the order of the next opened block.
    #[must_use]
    pub fn order_next(&self) -> u64 {
        self.order_next
    }

    /// Takes a block that waits for an erase and marks it as being erased.
    pub fn take_dirty(&mut self) -> Option<BlockId> {
        let block = self.dirty.pop_front()?;
        self.entries[block.index()].state = BlockState::Erasing;
        self.erasing += 1;
        Some(block)
    }

    /// Returns a block whose erase was rejected to the dirty blocks.
    pub fn put_back_dirty(&mut self, block: BlockId) {
        self.entries[block.index()].state = BlockState::Dirty;
        self.dirty.push_front(block);
        self.erasing -= 1;
    }

    /// Completes an erase. Blocks that a power cut would take back are opened first.
    pub fn complete_erase(&mut self, block: BlockId) {
        self.erasing -= 1;
        let listed = self.get(block).listed;
        self.entries[block.index()] = BlockEntry { state: BlockState::Ready, listed, ..EMPTY_ENTRY };
        if listed {
            self.listed_ready += 1;
            self.ready.push_front(block);
        } else {
            self.ready.push_back(block);
        }
    }

    /// Raises the last page with records of a block.
    pub fn set_last_tick(&mut self, block: BlockId, tick: Tick) {
        let entry = &mut self.entries[block.index()];
        entry.last_tick = entry.last_tick.max(tick);
    }

    /// Opens a ready block. All of an extent counts as live from the start.
    pub fn open(&mut self, open_sequence: Sequence, usage: BlockUse) -> Option<BlockId> {
        let block = self.ready.pop_front()?;
        self.listed_ready -= usize::from(self.get(block).listed);
        let epoch = self.order_next >> EPOCH_SHIFT << EPOCH_SHIFT;
        let order = match usage {
            BlockUse::Log => {
                self.order_next += 1;
                self.order_next - 1
            }
            BlockUse::Checkpoint => {
                self.checkpoint_order += 1;
                epoch | CHECKPOINT_ORDER | self.checkpoint_order
            }
            BlockUse::Extent => {
                self.extent_order += 1;
                epoch | EXTENT_ORDER | self.extent_order
            }
        };
        let live_bytes = if usage == BlockUse::Extent { EXTENT_LIVE_BYTES } else { 0 };
        let opened =
            BlockEntry { state: BlockState::Open, order, open_sequence, usage, live_bytes, ..EMPTY_ENTRY };
        self.entries[block.index()] = opened;
        self.needed.clear(block);
        self.live_bytes += u64::from(live_bytes);
        if usage == BlockUse::Log {
            self.by_order.insert(order, block);
        }
        Some(block)
    }

    /// Returns the order below which the extents lie that were opened so far.
    #[must_use]
    pub fn extents_below(&self) -> u64 {
        self.order_next >> EPOCH_SHIFT << EPOCH_SHIFT | EXTENT_ORDER | (self.extent_order + 1)
    }

    /// Sets the block in which the last record of `block` continues.
    pub fn set_next(&mut self, block: BlockId, next: BlockId) {
        self.entries[block.index()].next = Some(next);
    }

    /// Returns the block in which a chained record of `block` continues: the block opened right after it, unless that
    /// block was erased or reopened since.
    #[must_use]
    #[inline]
    pub fn next_in_chain(&self, block: BlockId) -> Option<BlockId> {
        let entry = self.entries.get(block.index())?;
        let next = entry.next?;
        let follows = self.entries.get(next.index())?.order == entry.order + 1;
        follows.then_some(next)
    }

    /// Returns true if a chained record that starts in `from` may continue in `to`; false once a block of the chain was
    /// reopened.
    #[must_use]
    pub fn chain_reaches(&self, from: BlockId, to: BlockId) -> bool {
        let mut block = self.next_in_chain(from);
        for _ in 0..=LOG_VALUE_BYTES_MAX / BLOCK_DATA_BYTES + 1 {
            match block {
                Some(next) if next == to => return true,
                Some(next) => block = self.next_in_chain(next),
                None => return false,
            }
        }
        false
    }

    /// Closes an open block, which is not written any more.
    pub fn close(&mut self, block: BlockId, pages: u8) {
        let entry = &mut self.entries[block.index()];
        entry.state = BlockState::Closed;
        entry.pages = pages;
        self.update_cost(block);
    }

    /// Quarantines a block that holds a live record which cannot be read.
    pub fn quarantine(&mut self, block: BlockId) {
        self.entries[block.index()].state = BlockState::Quarantined;
        self.update_cost(block);
    }

    /// Marks a block as evacuated: it holds nothing live.
    pub fn mark_evacuated(&mut self, block: BlockId) {
        let entry = &mut self.entries[block.index()];
        entry.state = BlockState::Evacuated;
        self.live_bytes -= u64::from(entry.live_bytes) + u64::from(entry.tombstone_bytes);
        self.tombstone_bytes -= u64::from(entry.tombstone_bytes);
        entry.live_bytes = 0;
        entry.tombstone_bytes = 0;
        self.update_cost(block);
    }

    /// Marks an evacuated block as being erased. It holds back the watermark until no map lists it.
    pub fn mark_erasing(&mut self, block: BlockId) {
        self.erasing += 1;
        let entry = &mut self.entries[block.index()];
        entry.state = BlockState::Erasing;
        let open_sequence = entry.open_sequence;
        if self.by_order.remove(&entry.order).is_some() {
            entry.listed = !mutant(Mutant::ListedBlocksCounted);
            self.note_freed(block, open_sequence);
        }
    }

    /// Notes a block that was freed, and that the map of the present checkpoint lists.
    pub fn note_freed(&mut self, block: BlockId, open_sequence: Sequence) {
        self.freed.push(FreedBlock { block, open_sequence, maps: self.maps });
    }

    /// Notes that a map is being written; blocks freed from now on may be listed by it. Returns its number.
    pub fn begin_map(&mut self) -> u64 {
        self.maps += 1;
        self.maps
    }

    /// Notes that a durable record names the checkpoint with this map: recovery reads no block that was freed before.
    pub fn finish_map(&mut self, map: u64) {
        for freed in self.freed.extract_if(.., |freed| freed.maps < map) {
            self.entries[freed.block.index()].listed = false;
        }
        self.listed_ready = self.ready.iter().filter(|block| self.entries[block.index()].listed).count();
    }

    /// Returns the watermark. No block that a recovery may read holds a record with a lower sequence, except moved copies
    /// in younger blocks.
    #[must_use]
    pub fn watermark(&self) -> Sequence {
        self.watermark_without(None)
    }

    /// Returns what the watermark would be without a block.
    fn watermark_without(&self, block: Option<BlockId>) -> Sequence {
        let oldest = self.by_order.values().find(|oldest| block != Some(**oldest));
        let oldest = oldest.map(|oldest| self.get(*oldest).open_sequence);
        let freed = self.freed.iter().map(|freed| freed.open_sequence).min();
        oldest.into_iter().chain(freed).min().unwrap_or(Sequence(u64::MAX))
    }

    /// Returns true if nothing in a block of the log is needed: no live record, and no tombstone of a record that another
    /// block may hold.
    #[must_use]
    pub fn is_needless(&self, block: BlockId) -> bool {
        let entry = self.get(block);
        let is_free_of_tombstones =
            entry.tombstone_bytes == 0 || entry.tombstone_sequence < self.watermark_without(Some(block));
        entry.live_bytes == 0 && is_free_of_tombstones
    }

    /// Opens a block that waits for an erase, for a checkpoint that is written past the medium.
    ///
    /// # Panics
    /// Blocks were erased and wait to be opened.
    pub fn open_unerased(&mut self) -> Option<BlockId> {
        let block = self.take_dirty()?;
        self.complete_erase(block);
        let opened = self.open(Sequence(0), BlockUse::Checkpoint);
        assert_eq!(opened, Some(block), "another block was erased before");
        opened
    }

    /// Discards a block that holds nothing valid; it must be erased before use.
    pub fn discard(&mut self, block: BlockId) {
        let BlockEntry { order, live_bytes, tombstone_bytes, .. } = *self.get(block);
        self.by_order.remove(&order);
        self.live_bytes -= u64::from(live_bytes) + u64::from(tombstone_bytes);
        self.tombstone_bytes -= u64::from(tombstone_bytes);
        self.entries[block.index()] = EMPTY_ENTRY;
        self.update_cost(block);
        self.dirty.push_back(block);
    }
}
