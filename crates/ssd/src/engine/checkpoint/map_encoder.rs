//! The encoder of a checkpoint's map, which takes a part of the block table each turn.
//!
//! Input: the translation layer, which changes between the parts. Output: the bytes of the map, of which a few pages are
//! buffered. Invariant: the length of the map is known when it begins, because the second copy starts behind the first.
//!
//! The parts differ in age, and the map is right all the same:
//!
//! * A block of the map was opened before the window, so no record enters it any more. It can only lose records and
//!   tombstones to later blocks, and be freed. What it lost lies in the window, or in an older block that the map lists for
//!   the same reason. The checkpoint is named only when that is durable.
//! * The index is encoded behind the map, so it has no entry in a block that was freed before its part of the map.
//! * A block that is freed while the map is encoded is listed or not. The block table counts it as listed from the beginning
//!   of the map ([`begin_map`](crate::log::blocks::BlockTable::begin_map)): it holds back the watermark until a later map
//!   counts. So the tombstones of its records are kept, in the window or in a block of the map.
//! * Sequences of clears, doubts and the last sequence are those of the beginning. Settled keys of a later sequence are left
//!   out: the window has their removals.
//!
//! Blocks and settled keys that are gone are replaced by entries of no block and of no sequence, which recovery passes over.

use super::stream::{CheckpointBlockLayout, CheckpointHeadLayout, StreamBuffer};
use crate::command::Sequence;
use crate::ftl::Ftl;
use crate::ftl::doubt::Doubts;
use crate::limits::{NAMESPACES, SPACES};
use crate::log::blocks::EMPTY_ENTRY;
use crate::log::commit_record::CheckpointRoot;
use crate::media::geometry::PAGE_DATA_BYTES;
use crate::media::{BlockId, Media};
use crate::mutant::{Mutant, mutant};
use headwater_host::width::narrow;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Bytes of a settled key.
const SETTLED_BYTES: usize = 24;

/// The part of a map that is encoded next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapPart {
    /// The blocks from this order on.
    Blocks {
        from: u64,
    },
    Doubts,
    /// The settled keys from this digest on; `None` behind the last one.
    Settled {
        from: Option<u128>,
    },
    /// Every part is encoded.
    End,
}

/// The encoder of a map.
#[derive(Debug)]
pub(crate) struct MapEncoder {
    buffer: StreamBuffer,
    part: MapPart,
    /// Only blocks with a lower order are listed.
    start_order: u64,
    /// Entries that the head announces for blocks, less those that are encoded.
    blocks_left: usize,
    /// The last sequence at the beginning.
    sequence: Sequence,
    doubts_below: [Sequence; SPACES],
    /// Settled keys at the beginning, less those that are encoded.
    settled_left: usize,
    version_1_below: u64,
    /// Pages of the whole map.
    pages: u32,
}

impl MapEncoder {
    /// Begins a map: encodes its head and the clears.
    pub(crate) fn new<M: Media>(ftl: &Ftl<M>, root: &CheckpointRoot) -> Self {
        let blocks = ftl.blocks().log_blocks_count_below(root.start_order);
        let hidden = Doubts::default();
        let doubts = if mutant(Mutant::DoubtNotInCheckpoint) { &hidden } else { ftl.doubts() };
        let settled = doubts.settled().len();
        let mut buffer = StreamBuffer::default();
        buffer.push(CheckpointHeadLayout::of_map(ftl, root, narrow(blocks)).as_bytes());
        for namespace in ftl.counts().iter().take(NAMESPACES) {
            buffer.push(&namespace.cleared.0.to_le_bytes());
        }
        let tail = SPACES * size_of::<u64>() + size_of::<u64>() + settled * SETTLED_BYTES + size_of::<u64>();
        let bytes = buffer.len() + blocks * size_of::<CheckpointBlockLayout>() + tail;
        Self {
            buffer,
            part: MapPart::Blocks { from: 0 },
            start_order: root.start_order,
            blocks_left: blocks,
            sequence: ftl.last_sequence(),
            doubts_below: *doubts.below(),
            settled_left: settled,
            version_1_below: ftl.version_1_below(),
            pages: narrow(bytes.div_ceil(PAGE_DATA_BYTES)),
        }
    }

    /// Returns the pages of the whole map.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns true if every part is encoded.
    pub(crate) fn is_whole(&self) -> bool {
        self.part == MapPart::End
    }

    /// Returns the bytes that are encoded and not consumed.
    pub(crate) fn buffer(&mut self) -> &mut StreamBuffer {
        &mut self.buffer
    }

    /// Returns true if a page can be written: a full one, or the last one.
    pub(crate) fn has_page(&self) -> bool {
        self.buffer.len() >= PAGE_DATA_BYTES || self.is_whole() && self.buffer.len() > 0
    }

    /// Returns true if every byte was encoded and consumed.
    pub(crate) fn is_written(&self) -> bool {
        self.is_whole() && self.buffer.len() == 0
    }

    /// Encodes until a page can be written, at most this many entries of blocks and settled keys. Returns how many it took.
    pub(crate) fn fill<M: Media>(&mut self, ftl: &Ftl<M>, entries_max: usize) -> usize {
        let mut taken = 0;
        while !self.has_page() && taken < entries_max {
            taken += self.push_part(ftl, entries_max - taken);
        }
        taken
    }

    /// Appends the next part, of at most this many entries and about a page. Returns how many entries it took.
    fn push_part<M: Media>(&mut self, ftl: &Ftl<M>, entries_max: usize) -> usize {
        let room = PAGE_DATA_BYTES.saturating_sub(self.buffer.len());
        match self.part {
            MapPart::Blocks { .. } if self.blocks_left == 0 => self.part = MapPart::Doubts,
            MapPart::Blocks { from } => {
                let entries = room.div_ceil(size_of::<CheckpointBlockLayout>()).min(entries_max);
                return self.push_blocks(ftl, from, entries);
            }
            MapPart::Doubts => {
                for below in self.doubts_below {
                    self.buffer.push(&below.0.to_le_bytes());
                }
                self.buffer.push(&(self.settled_left as u64).to_le_bytes());
                self.part = MapPart::Settled { from: Some(0) };
            }
            MapPart::Settled { .. } if self.settled_left == 0 => {
                self.buffer.push(&self.version_1_below.to_le_bytes());
                self.part = MapPart::End;
            }
            MapPart::Settled { from } => {
                return self.push_settled(ftl, from, room.div_ceil(SETTLED_BYTES).min(entries_max));
            }
            MapPart::End => {}
        }
        0
    }

    fn push_blocks<M: Media>(&mut self, ftl: &Ftl<M>, from: u64, entries_max: usize) -> usize {
        let mut next = None;
        let mut taken = 0;
        for (number, block) in ftl.blocks().log_blocks_between(from, self.start_order).take(entries_max) {
            self.buffer.push(CheckpointBlockLayout::new(number, block).as_bytes());
            next = Some(block.order + 1);
            taken += 1;
        }
        self.blocks_left =
            self.blocks_left.checked_sub(taken).expect("a block was opened in front of the window");
        if taken < entries_max {
            // No block is left: the rest was freed since the beginning.
            let fill = self.blocks_left.min(entries_max - taken);
            let nowhere = CheckpointBlockLayout::new(BlockId(ftl.geometry().blocks), &EMPTY_ENTRY);
            if !mutant(Mutant::FreedBlocksNotFilled) {
                (0..fill).for_each(|_| self.buffer.push(nowhere.as_bytes()));
            }
            self.blocks_left -= fill;
            taken += fill;
        }
        self.part = MapPart::Blocks { from: next.unwrap_or(from) };
        taken
    }

    fn push_settled<M: Media>(&mut self, ftl: &Ftl<M>, from: Option<u128>, entries_max: usize) -> usize {
        let mut next = None;
        let mut visited = 0;
        if let Some(from) = from {
            for (digest, removed) in ftl.doubts().settled_from(from).take(entries_max) {
                if removed <= self.sequence {
                    self.push_key(digest, removed);
                }
                next = digest.checked_add(1);
                visited += 1;
            }
        }
        if visited == entries_max {
            self.part = MapPart::Settled { from: next };
            return visited;
        }
        let fill = self.settled_left.min(entries_max - visited);
        (0..fill).for_each(|_| self.push_key(0, Sequence(0)));
        self.part = MapPart::Settled { from: None };
        visited + fill
    }

    fn push_key(&mut self, digest: u128, removed: Sequence) {
        let [low, high] = [digest, digest >> 64].map(|half| U64::new(narrow(half & u128::from(u64::MAX))));
        self.buffer.push([low, high, U64::new(removed.0)].as_bytes());
        self.settled_left = self.settled_left.checked_sub(1).expect("a settled key is older than the map");
    }
}

#[cfg(test)]
mod tests;
