//! The block table: what each block holds, in which order blocks were opened, and which to collect next.
//!
//! In: opens, live bytes added and taken away, erases. Out: erased blocks to write to, victims, and the watermark below
//! which no record can be left on the medium.
//!
//! ```text
//!  Dirty --erase--> Erasing --done--> Ready --open--> Open --full--> Closed --evacuated--> Evacuated --erase--> Erasing
//!                                                                       \--damaged live record--> Quarantined
//! ```
//!
//! Invariant: a block is opened only when it is Ready, and its order is higher than that of every block before it.

mod victim;

use crate::command::Sequence;
use crate::limits::VALUE_BYTES_MAX;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, Geometry};
use crate::record::{RecordAddress, UNIT_BYTES};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a block is good for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Holds nothing that counts, and must be erased before it is programmed.
    Dirty,
    /// An erase is under way.
    Erasing,
    /// Erased.
    Ready,
    /// The log or a checkpoint writes to it.
    Open,
    /// Written, and not to be written again before an erase.
    Closed,
    /// Nothing in it is live any more; erased when its moved records are durable.
    Evacuated,
    /// Holds a live record that cannot be read. Never erased, so that the damage is reported and not hidden.
    Quarantined,
}

/// Everything known of one block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// What it is good for.
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
    /// Block that was opened next, where a chained record goes on.
    pub next: Option<BlockId>,
    /// Pages that were written.
    pub pages: u8,
    /// Checkpoint blocks are not collected.
    pub checkpoint: bool,
    /// Recovery met damage in it: every record is checked before one behind it is believed.
    pub suspect: bool,
}

const NOTHING: Block = Block {
    state: BlockState::Dirty,
    order: 0,
    open_sequence: Sequence(0),
    max_sequence: Sequence(0),
    live_bytes: 0,
    tombstone_bytes: 0,
    tombstone_sequence: Sequence(0),
    next: None,
    pages: 0,
    checkpoint: false,
    suspect: false,
};

/// Orders of checkpoint blocks have this bit, so that the log's own orders have no holes but those of erased blocks.
const CHECKPOINT_ORDER: u64 = 1 << 39;

/// The bits of a block order below its epoch. Each opening of a device begins a new epoch.
pub const EPOCH_SHIFT: u32 = 40;

/// How far the erase of a block is from being durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Erase {
    Accepted,
    Done,
    Flushing,
}

#[derive(Clone, Copy, Debug)]
struct Fading {
    block: BlockId,
    open_sequence: Sequence,
    erase: Erase,
}

/// The table of all blocks.
#[derive(Debug)]
pub struct Blocks {
    table: Vec<Block>,
    /// What each closed block would cost to collect; the highest number for all others. Scanned for every victim.
    costs: Vec<u32>,
    dirty: VecDeque<BlockId>,
    ready: VecDeque<BlockId>,
    /// Log blocks that hold records, by order: the first sets the watermark.
    by_order: BTreeMap<u64, BlockId>,
    /// Evacuated, but the erase is not yet durable: they still hold back the watermark.
    fading: Vec<Fading>,
    /// Blocks that were neither adopted nor erased yet: pages of an earlier life may lie in them, behind a first page
    /// that an interrupted erase has blanked.
    unknown: BTreeSet<BlockId>,
    erasing: usize,
    order_next: u64,
    checkpoint_order: u64,
    live_bytes: u64,
    tombstone_bytes: u64,
}

impl Blocks {
    /// A table of blocks that all must be erased before use.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            table: vec![NOTHING; geometry.blocks as usize],
            costs: vec![u32::MAX; geometry.blocks as usize],
            dirty: (0..geometry.blocks).map(BlockId).collect(),
            ready: VecDeque::new(),
            by_order: BTreeMap::new(),
            fading: Vec::new(),
            unknown: BTreeSet::new(),
            erasing: 0,
            order_next: 1,
            checkpoint_order: 0,
            live_bytes: 0,
            tombstone_bytes: 0,
        }
    }

    /// One block.
    #[must_use]
    #[inline]
    pub fn get(&self, block: BlockId) -> &Block {
        &self.table[block.index()]
    }

    /// All blocks with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (BlockId, &Block)> + '_ {
        (0..).map(BlockId).zip(&self.table)
    }

    /// How many blocks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Blocks that hold nothing: dirty, being erased or ready.
    #[must_use]
    pub fn free(&self) -> usize {
        self.dirty.len() + self.ready.len()
    }

    /// Blocks being erased.
    #[must_use]
    pub fn erasing_now(&self) -> usize {
        self.erasing
    }

    /// Blocks that can be opened now.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Bytes of live records and tombstones on the whole medium.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of tombstones among them.
    #[must_use]
    pub fn tombstone_bytes(&self) -> u64 {
        self.tombstone_bytes
    }

    /// Whether an erase is not durable yet.
    #[must_use]
    pub fn is_fading(&self) -> bool {
        !self.fading.is_empty()
    }

    /// Order that the next opened block will get.
    #[must_use]
    pub fn order_next(&self) -> u64 {
        self.order_next
    }

    /// A block that waits for an erase, marked as being erased.
    pub fn take_dirty(&mut self) -> Option<BlockId> {
        let block = self.dirty.pop_front()?;
        self.table[block.index()].state = BlockState::Erasing;
        self.erasing += 1;
        if self.unknown.remove(&block) {
            self.fading.push(Fading { block, open_sequence: Sequence(0), erase: Erase::Accepted });
        }
        Some(block)
    }

    /// Whether a block may hold records that nobody has counted, so that no tombstone can go.
    #[must_use]
    pub fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// The erase of a block was refused for now.
    pub fn put_back_dirty(&mut self, block: BlockId) {
        self.table[block.index()].state = BlockState::Dirty;
        self.dirty.push_front(block);
        self.erasing -= 1;
        let fading = self.fading.iter().position(|fading| fading.block == block);
        if let Some(at) = fading {
            self.fading.swap_remove(at);
            self.unknown.insert(block);
        }
    }

    /// An erase is done.
    pub fn erased(&mut self, block: BlockId) {
        self.erasing -= 1;
        let fading =
            self.fading.iter_mut().find(|fading| fading.block == block && fading.erase == Erase::Accepted);
        if let Some(fading) = fading {
            fading.erase = Erase::Done;
        }
        self.table[block.index()] = Block { state: BlockState::Ready, ..NOTHING };
        self.ready.push_back(block);
    }

    /// Opens a ready block for the log or a checkpoint.
    pub fn open(&mut self, open_sequence: Sequence, checkpoint: bool) -> Option<BlockId> {
        let block = self.ready.pop_front()?;
        let order = if checkpoint {
            self.checkpoint_order += 1;
            self.order_next >> EPOCH_SHIFT << EPOCH_SHIFT | CHECKPOINT_ORDER | self.checkpoint_order
        } else {
            self.order_next += 1;
            self.order_next - 1
        };
        self.table[block.index()] =
            Block { state: BlockState::Open, order, open_sequence, checkpoint, ..NOTHING };
        if !checkpoint {
            self.by_order.insert(order, block);
        }
        Some(block)
    }

    /// Remembers where the records of `block` go on.
    pub fn chain(&mut self, block: BlockId, next: BlockId) {
        self.table[block.index()].next = Some(next);
    }

    /// Where a chained record goes on behind `block`: the block that was opened right after it, if it is still in the
    /// life it had then.
    #[must_use]
    #[inline]
    pub fn follow(&self, block: BlockId) -> Option<BlockId> {
        let entry = self.table.get(block.index())?;
        let next = entry.next?;
        (self.table.get(next.index())?.order == entry.order + 1).then_some(next)
    }

    /// Whether a chained record that starts in `from` may go on in `to`: not once `from` has begun another life.
    #[must_use]
    pub fn leads_to(&self, from: BlockId, to: BlockId) -> bool {
        let mut block = self.follow(from);
        for _ in 0..=VALUE_BYTES_MAX / BLOCK_DATA_BYTES + 1 {
            match block {
                Some(next) if next == to => return true,
                Some(next) => block = self.follow(next),
                None => return false,
            }
        }
        false
    }

    /// An open block will not be written any more.
    pub fn close(&mut self, block: BlockId, pages: u8) {
        let entry = &mut self.table[block.index()];
        entry.state = BlockState::Closed;
        entry.pages = pages;
        self.note_cost(block);
    }

    /// A live record that cannot be read was found in the block.
    pub fn quarantine(&mut self, block: BlockId) {
        self.table[block.index()].state = BlockState::Quarantined;
        self.note_cost(block);
    }

    /// Nothing in the block is live any more.
    pub fn evacuated(&mut self, block: BlockId) {
        let entry = &mut self.table[block.index()];
        entry.state = BlockState::Evacuated;
        self.live_bytes -= u64::from(entry.live_bytes) + u64::from(entry.tombstone_bytes);
        self.tombstone_bytes -= u64::from(entry.tombstone_bytes);
        entry.live_bytes = 0;
        entry.tombstone_bytes = 0;
        self.note_cost(block);
    }

    /// The erase of an evacuated block was accepted. Until the erase is durable the block holds back the watermark.
    pub fn erasing(&mut self, block: BlockId) {
        self.erasing += 1;
        let entry = &mut self.table[block.index()];
        entry.state = BlockState::Erasing;
        let open_sequence = entry.open_sequence;
        if self.by_order.remove(&entry.order).is_some() {
            self.fading.push(Fading { block, open_sequence, erase: Erase::Accepted });
        }
    }

    /// A flush begins: it will make every completed erase durable.
    pub fn flush_started(&mut self) {
        self.fading.iter_mut().filter(|fading| fading.erase == Erase::Done).for_each(|fading| {
            fading.erase = Erase::Flushing;
        });
    }

    /// The flush is done: what it covered is durable.
    pub fn flush_done(&mut self) {
        self.fading.retain(|fading| fading.erase != Erase::Flushing);
    }

    /// No record with a sequence below this is left on the medium but those that were moved into younger blocks: every
    /// block that was opened before this sequence was given out is gone.
    #[must_use]
    pub fn watermark(&self) -> Sequence {
        let oldest = self.by_order.values().next().map(|block| self.get(*block).open_sequence);
        let fading = self.fading.iter().map(|fading| fading.open_sequence).min();
        let unknown = self.has_unknown().then_some(Sequence(0));
        oldest.into_iter().chain(fading).chain(unknown).min().unwrap_or(Sequence(u64::MAX))
    }

    /// Adds a record of `units` at `address` to the blocks it lies in; `sign` takes it away again.
    fn account(
        &mut self,
        address: RecordAddress,
        units: u32,
        mut change: impl FnMut(&mut Block, u32) -> u32,
    ) -> u64 {
        let mut changed = 0;
        let mut block = address.block();
        let mut offset = address.offset_in_block();
        let mut left = units as usize * UNIT_BYTES;
        while left > 0 {
            let here = left.min(BLOCK_DATA_BYTES - offset);
            let entry = &mut self.table[block.index()];
            changed += u64::from(change(entry, u32::try_from(here).unwrap_or(u32::MAX)));
            if entry.state == BlockState::Closed {
                self.costs[block.index()] = entry.live_bytes + entry.tombstone_bytes;
            }
            left -= here;
            offset = 0;
            match self.follow(block) {
                Some(next) => block = next,
                None => break,
            }
        }
        changed
    }

    /// A live record was written.
    pub fn add_live(&mut self, address: RecordAddress, units: u32) {
        self.live_bytes += self.account(address, units, |block, bytes| {
            block.live_bytes += bytes;
            bytes
        });
    }

    /// A live record was replaced, removed or moved away.
    ///
    /// # Panics
    /// When more is taken away than was added: the table's own promise is broken.
    pub fn remove_live(&mut self, address: RecordAddress, units: u32) {
        self.live_bytes -= self.account(address, units, |block, bytes| {
            assert!(block.live_bytes >= bytes, "more live bytes taken from a block than it had");
            block.live_bytes -= bytes;
            bytes
        });
    }

    /// A tombstone was written.
    pub fn add_tombstone(&mut self, address: RecordAddress, units: u32, sequence: Sequence) {
        let added = self.account(address, units, |block, bytes| {
            block.tombstone_bytes += bytes;
            block.tombstone_sequence = block.tombstone_sequence.max(sequence);
            bytes
        });
        self.live_bytes += added;
        self.tombstone_bytes += added;
    }

    /// A tombstone was moved away.
    pub fn remove_tombstone(&mut self, address: RecordAddress, units: u32) {
        let removed = self.account(address, units, |block, bytes| {
            // Media that was tampered with may show a tombstone that was never counted.
            let counted = bytes.min(block.tombstone_bytes);
            block.tombstone_bytes -= counted;
            counted
        });
        self.live_bytes -= removed;
        self.tombstone_bytes -= removed;
    }

    /// A record with this sequence was written into the block.
    #[inline]
    pub fn saw_sequence(&mut self, block: BlockId, sequence: Sequence) {
        let entry = &mut self.table[block.index()];
        entry.max_sequence = entry.max_sequence.max(sequence);
    }

    /// A block that recovery found in use.
    pub fn adopt(&mut self, block: BlockId, found: Block) {
        if !found.checkpoint {
            self.by_order.insert(found.order, block);
        }
        self.live_bytes += u64::from(found.live_bytes) + u64::from(found.tombstone_bytes);
        self.tombstone_bytes += u64::from(found.tombstone_bytes);
        self.table[block.index()] = found;
        self.note_cost(block);
    }

    /// Ends adoption: every block that was not adopted must be erased before use. Orders go on in a new epoch, above
    /// those of any block on the medium, adopted or not. Returns the highest order adopted.
    pub fn adopted_all(&mut self, highest_seen: u64) -> u64 {
        let log = self.table.iter().filter(|block| !block.checkpoint);
        let accepted = log.map(|block| block.order).max().unwrap_or(0);
        let epoch = (highest_seen.max(accepted) >> EPOCH_SHIFT) + 1;
        self.order_next = epoch << EPOCH_SHIFT;
        let table = &self.table;
        self.dirty.retain(|block| table[block.index()].state == BlockState::Dirty);
        self.unknown = self.dirty.iter().copied().collect();
        accepted
    }

    /// A block that turned out to hold nothing that counts; it must be erased before use.
    pub fn discard(&mut self, block: BlockId) {
        let order = self.get(block).order;
        self.by_order.remove(&order);
        self.table[block.index()] = NOTHING;
        self.note_cost(block);
        self.dirty.push_back(block);
    }
}

#[cfg(test)]
mod tests;
