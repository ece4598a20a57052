//! Reading of a value in parts, while the pages of its record stay in place.
//!
//! Input: found records, readers, the collector's need of blocks. Output: the bytes of a value's next part, and values that
//! are given up. Invariant: a value that is read is the one that was found at its opening, also if its key is written or
//! removed before its end.
//!
//! A value that is read never costs a client its room: when the device needs a block that only such values keep, it gives
//! them up. A reader whose record still exists finds it again where the collector moved it to; only one whose record was
//! replaced or removed ends early.

use super::evacuated_blocks::EraseLimits;
use super::extent_reads::RangeRead;
use super::held_values::{HashedKey, HeldValue, PartRead, ReaderName};
use super::{FoundRecord, Ftl, RecordPart, RecordPieces, StallReason};
use crate::command::{FrontEndId, ReadCaching, ValueReader};
use crate::index::IndexEntry;
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader};
use crate::media::{BlockId, Media};
use crate::mutant::{Mutant, mutant};
use headwater_dma::mover::MoveMemory;
use headwater_host::copy::{append_crc32c, crc32c};
use headwater_host::width::to_usize;
use std::ops::Range;

/// Bytes of a value that are passed over before other operations get a turn.
const PASSED_BYTES_MAX: usize = 256 << 10;
/// Values that are read may keep one block of so many from being erased.
const KEPT_SHARE: usize = 16;

impl<M: Media> Ftl<M> {
    /// Opens a reader of a found record whose header is readable. Returns false if one with its name is open.
    pub(crate) fn open_value(
        &mut self,
        front_end: FrontEndId,
        reader: &ValueReader,
        key: HashedKey,
        (address, header): (RecordAddress, RecordHeader),
    ) -> Result<bool, StallReason> {
        // The device would keep every value that was ever read, if no block were short.
        self.held_values.close_dropped();
        let name = (front_end, reader.number());
        if self.held_values.open.contains_key(&name) {
            return Ok(false);
        }
        let mut crc = 0;
        for piece in RecordPieces::new(self, address, 4, HEADER_BYTES + key.key.len() - 4) {
            crc = crc32c(crc, piece.map_err(|_| self.all_pages(address, header.payload_end()))?);
        }
        let mut blocks = self.blocks_of(address, &header);
        blocks.extend(self.extent_blocks_of(address, &header)?);
        self.held_values.hold(&blocks);
        let reader = reader.clone();
        let held = HeldValue { reader, key, header, address, blocks, bytes_done: 0, crc };
        self.held_values.open.insert(name, held);
        Ok(true)
    }

    /// Reads a part of a value, from `offset` on and at most `bytes_max` bytes, into a sink, which is cleared. The reader is closed
    /// by the end of the value, and by every result but [`PartRead::Done`]. `copied` is a range of the value that an earlier call
    /// of the same command put into the sink: if it is the beginning of the part, it stays.
    pub(crate) fn read_held_value(
        &mut self,
        front_end: FrontEndId,
        reader: &ValueReader,
        (sink, offset, bytes_max): (&mut Vec<u8>, u32, u32),
        copied: Option<&Range<usize>>,
    ) -> Result<PartRead, StallReason> {
        let name = (front_end, reader.number());
        let start = to_usize(offset.into());
        let is_next = |copied: &&Range<usize>| copied.start == start && copied.len() == sink.len();
        if copied.filter(is_next).is_none() {
            sink.clear();
        }
        let Some(held) = self.held_values.open.get(&name) else { return Ok(PartRead::NotOpen) };
        if held.blocks.is_empty() && !self.find_held_again(name)? {
            self.close_value(name);
            sink.clear();
            return Ok(PartRead::Gone);
        }
        let held = &self.held_values.open[&name];
        let value_bytes = held.header.value_len();
        if !(held.bytes_done..=value_bytes).contains(&start) {
            self.close_value(name);
            sink.clear();
            return Ok(PartRead::OutOfOrder);
        }
        let bytes = (value_bytes - start).min(bytes_max as usize);
        if held.header.extents > 0 {
            let bytes = bytes.min(self.range_bytes_max());
            return self.read_held_extents(name, start..start + bytes, sink);
        }
        self.pass_over(name, start)?;
        let held = &self.held_values.open[&name];
        let skip = HEADER_BYTES + usize::from(held.header.key_bytes) + start;
        sink.reserve(bytes);
        let mut crc = held.crc;
        for piece in RecordPieces::new(self, held.address, skip, bytes) {
            let Ok(piece) = piece else {
                sink.clear();
                return Err(self.pages(held.address, (skip, bytes)));
            };
            crc = append_crc32c(sink, piece, crc);
        }
        let sequence = held.header.sequence;
        let is_end = start + bytes == value_bytes;
        let intact = !is_end || crc == held.header.crc || mutant(Mutant::ReadChecksumIgnored);
        if sink.len() < bytes || !intact {
            self.close_value(name);
            sink.clear();
            return Ok(PartRead::Damaged);
        }
        if is_end {
            self.close_value(name);
        } else if let Some(held) = self.held_values.open.get_mut(&name) {
            (held.bytes_done, held.crc) = (start + bytes, crc);
        }
        Ok(PartRead::Done(sequence))
    }

    /// Continues the checksum of a value that lies in the log up to `until`, where the next part begins. Stalls after each
    /// [`PASSED_BYTES_MAX`] bytes until it is there.
    fn pass_over(&mut self, name: ReaderName, until: usize) -> Result<(), StallReason> {
        let held = &self.held_values.open[&name];
        let end = until.min(held.bytes_done + PASSED_BYTES_MAX);
        let skip = HEADER_BYTES + usize::from(held.header.key_bytes) + held.bytes_done;
        let part = (skip, end - held.bytes_done);
        let mut crc = held.crc;
        for piece in RecordPieces::new(self, held.address, part.0, part.1) {
            crc = crc32c(crc, piece.map_err(|_| self.pages(held.address, part))?);
        }
        if let Some(held) = self.held_values.open.get_mut(&name) {
            (held.bytes_done, held.crc) = (end, crc);
        }
        if end < until { Err(StallReason::Turn) } else { Ok(()) }
    }

    /// Reads a range of a value that lies in extents, of which the sink has the first bytes or none. The record itself is checked
    /// before the first byte.
    fn read_held_extents(
        &mut self,
        name: ReaderName,
        range: Range<usize>,
        sink: &mut Vec<u8>,
    ) -> Result<PartRead, StallReason> {
        let HeldValue { address, header, bytes_done, .. } = self.held_values.open[&name];
        let entry =
            IndexEntry { units: header.units(), namespace: header.namespace, ..IndexEntry::probe(address) };
        let copied = sink.len();
        let mut intact = bytes_done + copied > 0 || self.is_intact(entry, &header)?;
        if intact && copied < range.len() {
            sink.reserve_exact(range.len() - copied);
            let mut memory = MoveMemory::Vec(std::mem::take(sink));
            let rest = range.start + copied..range.end;
            let sink_at = (&mut memory, copied);
            let read = self.read_range((address, &header), rest, sink_at, ReadCaching::ByLength);
            let is_moving = matches!(read, Err(StallReason::Moves(_)));
            // A job that goes on has the vector, and returns it.
            *sink = memory.into_vec().unwrap_or_default();
            if read.is_err() && !is_moving {
                sink.truncate(copied);
            }
            intact = read? == RangeRead::Done;
        }
        if !intact {
            self.close_value(name);
            sink.clear();
            return Ok(PartRead::Damaged);
        }
        if range.end == header.value_len() {
            self.close_value(name);
        } else if let Some(held) = self.held_values.open.get_mut(&name) {
            held.bytes_done = range.end;
        }
        Ok(PartRead::Done(header.sequence))
    }

    /// Closes a reader whose value cannot be read on. Ignored if it is not open.
    fn close_value(&mut self, (front_end, number): ReaderName) {
        if let Some(held) = self.held_values.open.remove(&(front_end, number)) {
            self.held_values.release(&held.blocks);
        }
    }

    /// Finds the record of a value whose blocks were given up. Returns false if it does not exist any more.
    fn find_held_again(&mut self, name: ReaderName) -> Result<bool, StallReason> {
        let held = &self.held_values.open[&name];
        let HashedKey { namespace, hash, key } = &held.key;
        let found = self.find(*hash, *namespace, key, RecordPart::Key)?;
        let Some(FoundRecord { entry, header: Some(header) }) = found else { return Ok(false) };
        if header.sequence != held.header.sequence {
            return Ok(false);
        }
        let mut blocks = self.blocks_of(entry.address, &header);
        blocks.extend(self.extent_blocks_of(entry.address, &header)?);
        self.held_values.hold(&blocks);
        if let Some(held) = self.held_values.open.get_mut(&name) {
            (held.address, held.blocks) = (entry.address, blocks);
        }
        Ok(true)
    }

    /// Returns the stall of a caller that needs so many bytes of a record behind the first `skip` ones.
    pub(super) fn pages(&self, address: RecordAddress, (skip, bytes): (usize, usize)) -> StallReason {
        let missing = RecordPieces::new(self, address, skip, bytes).missing();
        self.stall_for(missing)
    }

    /// Returns the blocks that a record lies in.
    fn blocks_of(&self, address: RecordAddress, header: &RecordHeader) -> Vec<BlockId> {
        let mut pieces = RecordPieces::new(self, address, 0, header.payload_end());
        let mut blocks = Vec::new();
        while let Some((page, ..)) = pieces.next_span() {
            if blocks.last() != Some(&page.block) {
                blocks.push(page.block);
            }
        }
        blocks
    }

    /// Gives up the values that keep the longest waiting block from being erased, for a device that finds no other block
    /// to collect. Returns true if there was one.
    pub(crate) fn give_up_longest_held(&mut self) -> bool {
        if self.held_values.blocks.is_empty() {
            return false;
        }
        let limits = self.erase_limits();
        let held = &self.held_values;
        let kept = self.collector.evacuated.kept_from_erase(limits, |block, _| held.keeps(block));
        let Some(block) = kept.into_iter().next() else { return false };
        if !self.held_values.close_dropped() {
            self.held_values.give_up_block(block);
        }
        true
    }

    /// Gives up values while they keep more than a small part of the device from being erased: what they keep makes the
    /// collector move more. Returns true if it did.
    pub(super) fn bound_held_values(&mut self, limits: EraseLimits) -> bool {
        if self.held_values.blocks.is_empty() {
            return false;
        }
        let held = &self.held_values;
        let keeps = |block, _| held.keeps(block);
        let kept = self.collector.evacuated.kept_from_erase(limits, keeps).len();
        kept > self.blocks().len() / KEPT_SHARE && self.give_up_longest_held()
    }
}
