//! The blocks of reads: slots that the device fills, and bytes that were staged when a read began.
//!
//! Input: ranges; writes that complete while a read is in flight. Output: the device's bytes with newer ones over them.
//! Invariant: a read sees every byte that was staged when it began, regardless of what completes before it ends.

use super::config::StagingShape;
use super::memory::StagingMemory;
use super::writes::to_slot_count;
use super::{DeviceRange, ReadId, SlotLocation, StageError};
use headwater_host::width::to_usize;
use std::ops::Range;

/// Bytes of writes that completed while the read was in flight, the newest of each.
#[derive(Clone, Debug, Default)]
struct ReadPatch {
    bytes: Vec<u8>,
    /// For each unit of the read, true if `bytes` contains it.
    units: Vec<bool>,
}

#[derive(Clone, Debug, Default)]
struct ReadSlot {
    busy: bool,
    generation: u32,
    offset: u64,
    length: usize,
    patch: ReadPatch,
}

impl ReadSlot {
    fn range(&self) -> Range<u64> {
        // Checked when the read began.
        self.offset..self.offset + self.length as u64
    }
}

/// All reads in flight at the device.
#[derive(Debug)]
pub(super) struct ReadSlots<M> {
    memories: Vec<M>,
    slots: Vec<ReadSlot>,
    free: Vec<usize>,
    shape: StagingShape,
}

impl<M: StagingMemory> ReadSlots<M> {
    pub(super) fn new(memories: Vec<M>, shape: StagingShape) -> Self {
        let count = memories.len() * shape.slots_per_block;
        Self { memories, slots: vec![ReadSlot::default(); count], free: (0..count).rev().collect(), shape }
    }

    /// Takes a slot for a validated read.
    pub(super) fn begin(
        &mut self,
        offset: u64,
        length: usize,
    ) -> Result<(ReadId, DeviceRange, SlotLocation), StageError> {
        let full = StageError::ReadsFull { in_flight: to_slot_count(self.in_flight()) };
        let index = self.free.pop().ok_or(full)?;
        let slot = &mut self.slots[index];
        assert!(!slot.busy, "a read begins in slot {index}, which has one");
        slot.busy = true;
        slot.offset = offset;
        slot.length = length;
        let id = ReadId { index: to_slot_count(index), generation: slot.generation };
        Ok((id, DeviceRange { offset, bytes: length }, self.shape.location(index)))
    }

    /// Saves the bytes of a completed write for the reads in flight that must see them, also where a newer write hides
    /// them, because that one may fail. Overlapping writes complete in their order, so the newest stays.
    pub(super) fn save_completed(&mut self, range: &Range<u64>, memory: &M, at: usize) {
        if self.free.len() == self.slots.len() {
            return;
        }
        let (unit, slot_bytes) = (self.unit(), self.shape.slot_bytes);
        for slot in self.slots.iter_mut().filter(|slot| slot.busy) {
            let read = slot.range();
            let part = range.start.max(read.start)..range.end.min(read.end);
            if part.start < part.end {
                let within = |base: u64, point: u64| to_usize(point - base);
                let to = within(read.start, part.start)..within(read.start, part.end);
                let patch = &mut slot.patch;
                patch.bytes.resize(slot_bytes, 0);
                patch.units.resize(slot_bytes / unit, false);
                memory.copy_to(at + within(range.start, part.start), &mut patch.bytes[to.clone()]);
                patch.units[to.start / unit..to.end / unit].fill(true);
            }
        }
    }

    /// Returns the device range of a read, if it is in flight.
    pub(super) fn range(&self, id: ReadId) -> Option<Range<u64>> {
        let slot = self.slots.get(id.index as usize)?;
        (slot.busy && slot.generation == id.generation).then(|| slot.range())
    }

    /// Copies the device's bytes, and over them the saved bytes of writes that completed since the read began. The id
    /// must be one that [`Self::range`] accepts, and `into` as long as the read.
    pub(super) fn copy(&self, id: ReadId, into: &mut [u8]) {
        let index = id.index as usize;
        let slot = &self.slots[index];
        let place = self.shape.location(index);
        self.memories[place.block].copy_to(place.at, into);
        let unit = self.unit();
        for (number, _) in slot.patch.units.iter().enumerate().filter(|(_, kept)| **kept) {
            let bytes = number * unit..(number + 1) * unit;
            into[bytes.clone()].copy_from_slice(&slot.patch.bytes[bytes]);
        }
    }

    /// Frees the slot of a read.
    pub(super) fn end(&mut self, id: ReadId) {
        let index = id.index as usize;
        let slot = &mut self.slots[index];
        slot.busy = false;
        slot.generation = slot.generation.wrapping_add(1);
        slot.patch.units.fill(false);
        self.free.push(index);
    }

    /// Returns the number of reads in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the memory of a block, to be filled by a device that copies.
    pub(super) fn memory_mut(&mut self, block: usize) -> Option<&mut M> {
        self.memories.get_mut(block)
    }

    /// Returns the memory of a block.
    pub(super) fn memory(&self, block: usize) -> Option<&M> {
        self.memories.get(block)
    }

    fn unit(&self) -> usize {
        to_usize(self.shape.unit_bytes)
    }
}
