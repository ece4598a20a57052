//! The values that clients read in parts, and the blocks that their records keep.
//!
//! Input: records that readers opened, blocks that are given up. Output: the blocks that must not be erased. Invariant: a
//! block is kept exactly while an open value that was not given up lies in it.

use crate::command::{FrontEndId, NamespaceId, Sequence, ValueReader};
use crate::index::KeyHash;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::media::BlockId;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The identity of a reader: its front end, and the number that the front end gave it.
pub(super) type ReaderName = (FrontEndId, u64);

/// A key, and the hash by which the index finds it.
#[derive(Clone, Debug)]
pub(crate) struct HashedKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) hash: KeyHash,
    pub(crate) key: Bytes,
}

/// A value that is read in parts.
#[derive(Debug)]
pub(super) struct HeldValue {
    /// The device's clone: the reader is closed when it is the last one.
    pub(super) reader: ValueReader,
    pub(super) key: HashedKey,
    pub(super) header: RecordHeader,
    pub(super) address: RecordAddress,
    /// The blocks of its record; empty once they are given up.
    pub(super) blocks: Vec<BlockId>,
    /// Bytes of the value that were read or passed over.
    pub(super) bytes_done: usize,
    /// Checksum of the record up to there.
    pub(super) crc: u32,
}

/// The result of reading the next part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartRead {
    /// Its bytes are in the sink. The record of the value has this sequence.
    Done(Sequence),
    /// The value that was read up to now does not exist any more.
    Gone,
    /// The record does not match its checksum.
    Damaged,
    /// No such reader is open.
    NotOpen,
    /// The part begins in front of the end of the last one, or behind the value.
    OutOfOrder,
}

/// The values that are read in parts.
#[derive(Debug, Default)]
pub(super) struct HeldValues {
    pub(super) open: BTreeMap<ReaderName, HeldValue>,
    /// The number of open values in each block that has any.
    pub(super) blocks: BTreeMap<BlockId, u32>,
}

impl HeldValues {
    /// Returns true if a block must not be erased.
    pub(super) fn keeps(&self, block: BlockId) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Forgets the readers that were closed. Returns true if there were any.
    pub(super) fn close_dropped(&mut self) -> bool {
        let closed: Vec<ReaderName> =
            self.open.iter().filter(|(_, held)| held.reader.is_last()).map(|(name, _)| *name).collect();
        for name in &closed {
            if let Some(held) = self.open.remove(name) {
                self.release(&held.blocks);
            }
        }
        !closed.is_empty()
    }

    /// Gives up all values.
    pub(super) fn give_up(&mut self) {
        self.open.values_mut().for_each(|held| held.blocks.clear());
        self.blocks.clear();
    }

    /// Gives up the values that lie in a block.
    pub(super) fn give_up_block(&mut self, block: BlockId) {
        let mut given_up = Vec::new();
        for held in self.open.values_mut().filter(|held| held.blocks.contains(&block)) {
            given_up.append(&mut held.blocks);
        }
        self.release(&given_up);
    }

    pub(super) fn hold(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            *self.blocks.entry(*block).or_insert(0) += 1;
        }
    }

    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            let count = self.blocks.get_mut(block).expect("a block of a value that is read is counted");
            *count -= 1;
            if *count == 0 {
                self.blocks.remove(block);
            }
        }
    }
}
