//! The blocks of staged writes: slots that fill, drain and come free.
//!
//! In: bytes to stage, answers of the device. Out: slots that may be written to the device now. Invariant: a write is
//! handed out once, after every older write that overlaps it has completed; a block is used again when all its slots have
//! completed.
//!
//! ```text
//!                     batch closed,                 older writes
//!        stage        nothing older below           have completed           drain           complete
//! Empty ------> Open ------------------------> Ready <------------ Held     ------> Draining ------> Empty
//!                 |    batch closed, older writes overlap            ^     (Ready)
//!                 +--------------------------------------------------+
//! ```

use super::config::Shape;
use super::memory::StagingMemory;
use super::visible::Visible;
use super::{DeviceRange, Place, SlotId, StageError};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Where a slot is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Empty,
    /// In the batch that is not closed yet.
    Open,
    /// In a closed batch, behind older writes.
    Held,
    /// The device may have it.
    Ready,
    /// The device has it.
    Draining,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    state: State,
    generation: u32,
    tag: u64,
    offset: u64,
    length: usize,
    sequence: u64,
    /// Older writes that overlap this one and have not completed.
    behind: u32,
    /// Newer writes that wait for this one.
    before: Vec<usize>,
}

impl Slot {
    fn range(&self) -> Range<u64> {
        // Lengths are at most a slot's, and the sum was checked when the write was staged.
        self.offset..self.offset + u64::try_from(self.length).unwrap_or(0)
    }
}

#[derive(Debug)]
struct Block<M> {
    memory: M,
    /// Slots taken since the block was last empty.
    used: usize,
    /// Of these, how many have not completed.
    live: usize,
}

/// Every staged write.
#[derive(Debug)]
pub(super) struct Writes<M> {
    blocks: Vec<Block<M>>,
    slots: Vec<Slot>,
    shape: Shape,
    /// The block that takes writes.
    filling: usize,
    /// The batch that is not closed.
    open: Vec<usize>,
    ready: VecDeque<usize>,
    held: u32,
    visible: Visible,
    /// Sequences of all that is staged.
    live: BTreeSet<u64>,
    next_sequence: u64,
}

impl<M: StagingMemory> Writes<M> {
    pub(super) fn new(memories: Vec<M>, shape: Shape) -> Self {
        let slots = memories.len() * shape.slots_per_block;
        Self {
            blocks: memories.into_iter().map(|memory| Block { memory, used: 0, live: 0 }).collect(),
            slots: vec![Slot::default(); slots],
            shape,
            filling: 0,
            open: Vec::new(),
            ready: VecDeque::new(),
            held: 0,
            visible: Visible::default(),
            live: BTreeSet::new(),
            next_sequence: 0,
        }
    }

    /// Whether the filling block takes another write.
    pub(super) fn has_place(&self) -> bool {
        self.blocks[self.filling].used < self.shape.slots_per_block
    }

    /// Turns from a full block to an empty one.
    pub(super) fn swap(&mut self) -> Result<(), StageError> {
        let count = self.blocks.len();
        let empty =
            (1..count).map(|step| (self.filling + step) % count).find(|&at| self.blocks[at].used == 0);
        let Some(empty) = empty else {
            let nearest = self.blocks.iter().map(|block| block.live).min().unwrap_or(0);
            return Err(StageError::Full {
                completions: u32::try_from(nearest).unwrap_or(u32::MAX),
                undrained: self.undrained(),
            });
        };
        self.filling = empty;
        Ok(())
    }

    /// Stages a write in the filling block, which has a place.
    pub(super) fn stage(&mut self, offset: u64, bytes: &[u8], tag: u64) -> SlotId {
        let block = &mut self.blocks[self.filling];
        let index = self.filling * self.shape.slots_per_block + block.used;
        block.memory.copy_from(block.used * self.shape.slot_bytes, bytes);
        block.used += 1;
        block.live += 1;
        let slot = &mut self.slots[index];
        debug_assert!(slot.state == State::Empty && slot.behind == 0 && slot.before.is_empty());
        slot.state = State::Open;
        slot.tag = tag;
        slot.offset = offset;
        slot.length = bytes.len();
        slot.sequence = self.next_sequence;
        let id = SlotId { index: narrow(index), generation: slot.generation };
        let range = slot.range();
        self.live.insert(self.next_sequence);
        self.next_sequence += 1;
        self.open.push(index);
        // What does not show under this write is hidden by something that does, which waits for it already.
        let slots = &mut self.slots;
        let mut behind = 0;
        self.visible.cover(range, index, |older| {
            if slots[older].before.last() != Some(&index) {
                slots[older].before.push(index);
                behind += 1;
            }
        });
        self.slots[index].behind = behind;
        id
    }

    /// Closes the open batch. Returns how many slots were in it.
    pub(super) fn close(&mut self) -> usize {
        for &index in &self.open {
            let slot = &mut self.slots[index];
            if slot.behind == 0 {
                slot.state = State::Ready;
                self.ready.push_back(index);
            } else {
                slot.state = State::Held;
                self.held += 1;
            }
        }
        let count = self.open.len();
        self.open.clear();
        count
    }

    /// The next write for the device, if one may go.
    pub(super) fn next_ready(&mut self) -> Option<(SlotId, DeviceRange, Place)> {
        let index = self.ready.pop_front()?;
        let slot = &mut self.slots[index];
        slot.state = State::Draining;
        let id = SlotId { index: narrow(index), generation: slot.generation };
        let range = DeviceRange { offset: slot.offset, bytes: slot.length };
        Some((id, range, self.shape.place(index)))
    }

    /// The device has answered for a slot. Tells the range of the write, the memory and the place where its bytes lie, for
    /// the last time. Returns the write's tag, or `None` if the device does not have such a write.
    pub(super) fn complete(&mut self, id: SlotId, leaves: impl FnOnce(Range<u64>, &M, usize)) -> Option<u64> {
        let index = usize::try_from(id.index).ok()?;
        let slot = self.slots.get_mut(index)?;
        if slot.state != State::Draining || slot.generation != id.generation {
            return None;
        }
        slot.state = State::Empty;
        slot.generation = slot.generation.wrapping_add(1);
        let (range, tag, sequence) = (slot.range(), slot.tag, slot.sequence);
        let mut waiting = std::mem::take(&mut slot.before);
        let place = self.shape.place(index);
        let block = &mut self.blocks[place.block];
        self.visible.uncover(range.clone(), index);
        leaves(range, &block.memory, place.at);
        block.live -= 1;
        if block.live == 0 {
            block.used = 0;
        }
        self.live.remove(&sequence);
        for newer in waiting.drain(..) {
            let slot = &mut self.slots[newer];
            slot.behind -= 1;
            if slot.behind == 0 && slot.state == State::Held {
                slot.state = State::Ready;
                self.held -= 1;
                self.ready.push_back(newer);
            }
        }
        // The list goes back for its capacity.
        self.slots[index].before = waiting;
        Some(tag)
    }

    /// Copies the bytes that are staged in `range` over `into`, which holds the device's. Returns how many.
    pub(super) fn overlay(&self, range: Range<u64>, into: &mut [u8]) -> usize {
        let mut bytes = 0;
        for (part, index) in self.visible.within(range.clone()) {
            let place = self.shape.place(index);
            let from = |base: u64| usize::try_from(part.start - base).unwrap_or(0);
            let length = usize::try_from(part.end - part.start).unwrap_or(0);
            let to = from(range.start);
            let at = place.at + from(self.slots[index].offset);
            self.blocks[place.block].memory.copy_to(at, &mut into[to..to + length]);
            bytes += length;
        }
        bytes
    }

    /// How many bytes of a range are staged.
    pub(super) fn staged_bytes(&self, range: Range<u64>) -> u64 {
        self.visible.within(range).map(|(part, _)| part.end - part.start).sum()
    }

    /// The sequence that the next write will have.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The oldest write that is still staged.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.live.first().copied()
    }

    /// Writes staged.
    pub(super) fn staged(&self) -> usize {
        self.live.len()
    }

    /// Writes that the device does not have yet.
    pub(super) fn undrained(&self) -> u32 {
        narrow(self.open.len() + self.ready.len()).saturating_add(self.held)
    }

    /// The memory of a block.
    pub(super) fn memory(&self, block: usize) -> Option<&M> {
        self.blocks.get(block).map(|block| &block.memory)
    }
}

impl Shape {
    /// Where a slot lies.
    pub(super) fn place(&self, index: usize) -> Place {
        Place { block: index / self.slots_per_block, at: index % self.slots_per_block * self.slot_bytes }
    }
}

/// Slots are few enough for 32 bits: [`Shape::of`] has seen to it.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
