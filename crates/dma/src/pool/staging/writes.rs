//! The blocks of staged writes: slots that fill, drain and become free.
//!
//! Input: bytes to stage, results of the device. Output: slots that may be written to the device now. Invariant: a
//! write is handed out once, after every older write that overlaps it has completed; a block is reused when all its
//! slots have completed.
//!
//! ```text
//!                     batch closed,                 older writes
//!        stage        nothing older below           have completed           drain           complete
//! Empty ------> Open ------------------------> Ready <------------ Held     ------> Draining ------> Empty
//!                 |    batch closed, older writes overlap            ^     (Ready)
//!                 +--------------------------------------------------+
//! ```

use super::config::StagingShape;
use super::memory::StagingMemory;
use super::visible_writes::VisibleWrites;
use super::{DeviceRange, SlotId, SlotLocation, StageError};
use headwater_host::width::{narrow, to_usize};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WriteSlotState {
    #[default]
    Empty,
    /// In the batch that is still open.
    Open,
    /// In a closed batch, waiting for older writes.
    Held,
    /// Ready to be handed to the device.
    Ready,
    /// In flight at the device.
    Draining,
}

#[derive(Clone, Debug, Default)]
struct WriteSlot {
    state: WriteSlotState,
    generation: u32,
    tag: u64,
    offset: u64,
    length: usize,
    sequence: u64,
    /// Number of older overlapping writes that have not completed.
    older_pending: u32,
    /// Newer writes that wait for this one.
    newer_waiting: Vec<usize>,
}

impl WriteSlot {
    fn range(&self) -> Range<u64> {
        // The sum was checked when the write was staged.
        self.offset..self.offset + self.length as u64
    }
}

#[derive(Debug)]
struct WriteBlock<M> {
    memory: M,
    /// Slots taken since the block was last empty.
    used: usize,
    /// Slots of these that have not completed.
    live: usize,
}

/// All staged writes.
#[derive(Debug)]
pub(super) struct WriteSlots<M> {
    blocks: Vec<WriteBlock<M>>,
    slots: Vec<WriteSlot>,
    shape: StagingShape,
    /// The block that accepts writes.
    filling: usize,
    /// Slots of the batch that is not closed.
    open: Vec<usize>,
    ready: VecDeque<usize>,
    held: u32,
    visible: VisibleWrites,
    /// Sequence numbers of all staged writes.
    live: BTreeSet<u64>,
    next_sequence: u64,
}

impl<M: StagingMemory> WriteSlots<M> {
    pub(super) fn new(memories: Vec<M>, shape: StagingShape) -> Self {
        let slots = memories.len() * shape.slots_per_block;
        Self {
            blocks: memories.into_iter().map(|memory| WriteBlock { memory, used: 0, live: 0 }).collect(),
            slots: vec![WriteSlot::default(); slots],
            shape,
            filling: 0,
            open: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            visible: VisibleWrites::default(),
            live: BTreeSet::new(),
            next_sequence: 0,
        }
    }

    /// Returns true if the filling block has room for another write.
    pub(super) fn has_room(&self) -> bool {
        self.blocks[self.filling].used < self.shape.slots_per_block
    }

    /// Switches from a full block to an empty one.
    pub(super) fn switch_block(&mut self) -> Result<(), StageError> {
        let count = self.blocks.len();
        let empty =
            (1..count).map(|step| (self.filling + step) % count).find(|&at| self.blocks[at].used == 0);
        let Some(empty) = empty else {
            let nearest = self.blocks.iter().map(|block| block.live).min().unwrap_or(0);
            return Err(StageError::Full {
                completions: to_slot_count(nearest),
                undrained: self.undrained(),
            });
        };
        self.filling = empty;
        Ok(())
    }

    /// Stages a write in the filling block, which must have room.
    pub(super) fn stage(&mut self, offset: u64, bytes: &[u8], tag: u64) -> SlotId {
        let block = &mut self.blocks[self.filling];
        let index = self.filling * self.shape.slots_per_block + block.used;
        block.memory.copy_from(block.used * self.shape.slot_bytes, bytes);
        block.used += 1;
        block.live += 1;
        let slot = &mut self.slots[index];
        let is_new =
            slot.state == WriteSlotState::Empty && slot.older_pending == 0 && slot.newer_waiting.is_empty();
        assert!(is_new, "a write is staged in slot {index}, which has one: {slot:?}");
        slot.state = WriteSlotState::Open;
        slot.tag = tag;
        slot.offset = offset;
        slot.length = bytes.len();
        slot.sequence = self.next_sequence;
        let id = SlotId { index: to_slot_count(index), generation: slot.generation };
        let range = slot.range();
        self.live.insert(self.next_sequence);
        self.next_sequence += 1;
        self.open.push(index);
        // A hidden older write is hidden by a visible one that already waits for it.
        let slots = &mut self.slots;
        let mut behind = 0;
        self.visible.cover(range, index, |older| {
            if slots[older].newer_waiting.last() != Some(&index) {
                slots[older].newer_waiting.push(index);
                behind += 1;
            }
        });
        self.slots[index].older_pending = behind;
        id
    }

    /// Closes the open batch. Returns how many slots were in it.
    pub(super) fn close(&mut self) -> usize {
        for &index in &self.open {
            let slot = &mut self.slots[index];
            if slot.older_pending == 0 {
                slot.state = WriteSlotState::Ready;
                self.ready.push_back(index);
            } else {
                slot.state = WriteSlotState::Held;
                self.held += 1;
            }
        }
        let count = self.open.len();
        self.open.clear();
        count
    }

    /// Returns the next write for the device, if one is ready.
    pub(super) fn next_ready(&mut self) -> Option<(SlotId, DeviceRange, SlotLocation)> {
        let index = self.ready.pop_front()?;
        let slot = &mut self.slots[index];
        let is_next = slot.state == WriteSlotState::Ready && slot.older_pending == 0;
        assert!(is_next, "the write of slot {index} is handed out too early or twice: {slot:?}");
        slot.state = WriteSlotState::Draining;
        let id = SlotId { index: to_slot_count(index), generation: slot.generation };
        let range = DeviceRange { offset: slot.offset, bytes: slot.length };
        Some((id, range, self.shape.location(index)))
    }

    /// Completes a slot that the device has answered. Calls `leaves` with the range of the write and the memory and
    /// offset of its bytes, before they are freed. Returns the write's tag, or `None` if no such write is in flight.
    pub(super) fn complete(&mut self, id: SlotId, leaves: impl FnOnce(Range<u64>, &M, usize)) -> Option<u64> {
        let index = usize::try_from(id.index).ok()?;
        let slot = self.slots.get_mut(index)?;
        if slot.state != WriteSlotState::Draining || slot.generation != id.generation {
            return None;
        }
        slot.state = WriteSlotState::Empty;
        slot.generation = slot.generation.wrapping_add(1);
        let (range, tag, sequence) = (slot.range(), slot.tag, slot.sequence);
        let mut waiting = std::mem::take(&mut slot.newer_waiting);
        let place = self.shape.location(index);
        let block = &mut self.blocks[place.block];
        self.visible.uncover(range.clone(), index);
        leaves(range, &block.memory, place.at);
        assert!(block.live > 0, "a write completed in block {}, which has none", place.block);
        block.live -= 1;
        if block.live == 0 {
            block.used = 0;
        }
        self.live.remove(&sequence);
        for newer in waiting.drain(..) {
            let slot = &mut self.slots[newer];
            assert!(slot.older_pending > 0, "the write of slot {newer} waits for no older one");
            slot.older_pending -= 1;
            if slot.older_pending == 0 && slot.state == WriteSlotState::Held {
                slot.state = WriteSlotState::Ready;
                self.held -= 1;
                self.ready.push_back(newer);
            }
        }
        // The list is kept for its capacity.
        self.slots[index].newer_waiting = waiting;
        Some(tag)
    }

    /// Copies the staged bytes of `range` over `into`, which holds the device's. Returns the number of bytes copied.
    pub(super) fn overlay(&self, range: Range<u64>, into: &mut [u8]) -> usize {
        let mut bytes = 0;
        for (part, index) in self.visible.within(range.clone()) {
            let slot = &self.slots[index];
            assert!(slot.state != WriteSlotState::Empty, "slot {index} is visible and has no write");
            let place = self.shape.location(index);
            let from = |base: u64| to_usize(part.start - base);
            let length = to_usize(part.end - part.start);
            let to = from(range.start);
            let at = place.at + from(slot.offset);
            self.blocks[place.block].memory.copy_to(at, &mut into[to..to + length]);
            bytes += length;
        }
        bytes
    }

    /// Returns the number of staged bytes in a range.
    pub(super) fn staged_bytes(&self, range: Range<u64>) -> u64 {
        self.visible.within(range).map(|(part, _)| part.end - part.start).sum()
    }

    /// Returns the sequence number of the next write.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Returns the sequence number of the oldest staged write.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.live.first().copied()
    }

    /// Returns the number of staged writes.
    pub(super) fn staged(&self) -> usize {
        self.live.len()
    }

    /// Returns the number of writes not yet handed to the device.
    pub(super) fn undrained(&self) -> u32 {
        to_slot_count(self.open.len() + self.ready.len()).saturating_add(self.held)
    }

    /// Returns the memory of a block.
    pub(super) fn memory(&self, block: usize) -> Option<&M> {
        self.blocks.get(block).map(|block| &block.memory)
    }
}

impl StagingShape {
    /// Returns the location of a slot.
    pub(super) fn location(&self, index: usize) -> SlotLocation {
        SlotLocation {
            block: index / self.slots_per_block,
            at: index % self.slots_per_block * self.slot_bytes,
        }
    }
}

/// Converts a number of slots, which [`StagingShape::of`] limits to 32 bits.
pub(super) fn to_slot_count(count: usize) -> u32 {
    narrow(count)
}
