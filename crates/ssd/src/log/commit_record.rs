//! The commit record: what one flush makes durable, and where recovery begins (`docs/formats/medium-2.md`).
//!
//! Input: the state of the log at a commit. Output: 1,024 bytes for a commit cell, and the fields again. Invariant: a
//! record that [`CommitRecord::decode`] accepts carries the checksum of its own bytes and of its medium.

use super::health_counters::{HealthCounters, HealthLayout};
use super::prefix::{EPOCH_MAX, NUMBER_MAX, Prefix, Tick, is_up_to_epoch};
use crate::command::Sequence;
use crate::media::CELL_BYTES;
use headwater_host::copy::crc32c;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a record; the rest of its cell is zero.
pub const RECORD_BYTES: usize = 1_024;
/// Most ends of epochs that a record holds. An opening that needs another one is preceded by a checkpoint.
pub const EPOCH_ENDS_MAX: usize = 32;

const MAGIC: [u8; 8] = *b"HWCOMIT\0";
const VERSION: u32 = 2;
const CRC_COVERS: usize = RECORD_BYTES - 4;

/// The reason for which a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitKind {
    /// Pages became durable.
    Commit,
    /// A device opened the medium; the record has no pages.
    Opened,
    /// Nothing was written for a while; the record says what is durable.
    Idle,
    /// The device closed the medium.
    Closed,
}

/// A run of pages of a checkpoint, and the checksum of the bytes that it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamExtent {
    /// Number of its first page among the pages of the checkpoint.
    pub first: u32,
    /// Number of its pages.
    pub pages: u32,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// The checkpoint from which recovery begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRoot {
    /// Its number, from 1; 0 if there is none.
    pub number: u64,
    /// The order of the block with which the window begins.
    pub start_order: u64,
    /// The last tick in front of the window.
    pub start: Tick,
    /// Two copies of the map, and the index.
    pub maps: [StreamExtent; 2],
    /// The index.
    pub index: StreamExtent,
}

/// A commit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitRecord {
    /// The reason.
    pub kind: CommitKind,
    /// Its number, from 1. Even numbers lie in front of the blocks, odd ones behind them.
    pub number: u64,
    /// The opening that wrote it.
    pub epoch: u64,
    /// The end of the commit.
    pub end: Prefix,
    /// A prefix that was durable when the record was written.
    pub durable: Prefix,
    /// The end of the epoch before.
    pub accepted: Prefix,
    /// Bit `n` is set if one of the last pages up to the end holds a record of namespace `n`, or a part of one: at least
    /// of [`PAGES_NAMED`](super::page::PAGES_NAMED) pages and of all pages of the commit.
    pub namespaces: u32,
    /// The checkpoint.
    pub root: CheckpointRoot,
    /// The ends of the epochs whose pages lie in the window, oldest first.
    pub epoch_ends: Vec<Prefix>,
    /// The counters of the SMART log when it was written; earlier programs wrote none.
    pub health: Option<HealthCounters>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PrefixLayout {
    tick: U64,
    sequence: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StreamLayout {
    first: U32,
    pages: U32,
    crc: U32,
    zero: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CommitRecordLayout {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    number: U64,
    epoch: U64,
    end: PrefixLayout,
    durable: PrefixLayout,
    accepted: PrefixLayout,
    namespaces: U32,
    epoch_ends: U32,
    checkpoint: U64,
    start_order: U64,
    start: U64,
    maps: [StreamLayout; 2],
    index: StreamLayout,
    classes: [u8; 128],
    ends: [PrefixLayout; EPOCH_ENDS_MAX],
    health: HealthLayout,
    zero: [u8; 148],
    crc: U32,
}

const _: () = assert!(size_of::<CommitRecordLayout>() == RECORD_BYTES);
const _: () = assert!(std::mem::offset_of!(CommitRecordLayout, crc) == CRC_COVERS);
const _: () = assert!(RECORD_BYTES <= CELL_BYTES);

impl From<Prefix> for PrefixLayout {
    fn from(prefix: Prefix) -> Self {
        Self { tick: prefix.tick.0.into(), sequence: prefix.sequence.0.into() }
    }
}

impl From<PrefixLayout> for Prefix {
    fn from(layout: PrefixLayout) -> Self {
        Self { tick: Tick(layout.tick.get()), sequence: Sequence(layout.sequence.get()) }
    }
}

impl From<StreamExtent> for StreamLayout {
    fn from(extent: StreamExtent) -> Self {
        Self {
            first: extent.first.into(),
            pages: extent.pages.into(),
            crc: extent.crc.into(),
            zero: U32::ZERO,
        }
    }
}

impl From<StreamLayout> for StreamExtent {
    fn from(layout: StreamLayout) -> Self {
        Self { first: layout.first.get(), pages: layout.pages.get(), crc: layout.crc.get() }
    }
}

impl CommitRecord {
    /// Encodes the record into a cell, whose rest becomes zero.
    ///
    /// # Panics
    /// The cell is shorter than a record, or the record has more than [`EPOCH_ENDS_MAX`] ends of epochs.
    pub fn encode(&self, cell: &mut [u8], seed: u32) {
        let count = self.epoch_ends.len();
        assert!(count <= EPOCH_ENDS_MAX, "a commit record has {count} ends of epochs");
        let mut ends = [PrefixLayout::from(Prefix::default()); EPOCH_ENDS_MAX];
        for (to, from) in ends.iter_mut().zip(&self.epoch_ends) {
            *to = (*from).into();
        }
        let mut layout = CommitRecordLayout {
            magic: MAGIC,
            version: VERSION.into(),
            kind: match self.kind {
                CommitKind::Commit => 1,
                CommitKind::Opened => 2,
                CommitKind::Idle => 3,
                CommitKind::Closed => 4,
            }
            .into(),
            number: self.number.into(),
            epoch: self.epoch.into(),
            end: self.end.into(),
            durable: self.durable.into(),
            accepted: self.accepted.into(),
            namespaces: self.namespaces.into(),
            epoch_ends: u32::try_from(count).expect("at most 32").into(),
            checkpoint: self.root.number.into(),
            start_order: self.root.start_order.into(),
            start: self.root.start.0.into(),
            maps: self.root.maps.map(StreamLayout::from),
            index: self.root.index.into(),
            classes: [0; 128],
            ends,
            health: self.health.into(),
            zero: [0; 148],
            crc: U32::ZERO,
        };
        layout.crc = crc32c(seed, &layout.as_bytes()[..CRC_COVERS]).into();
        let (record, rest) = cell.split_at_mut(RECORD_BYTES);
        record.copy_from_slice(layout.as_bytes());
        rest.fill(0);
    }

    /// Reads the record of a cell; `None` if the cell holds none of this medium.
    #[must_use]
    pub fn decode(cell: &[u8], seed: u32) -> Option<Self> {
        let bytes = cell.get(..RECORD_BYTES)?;
        let layout = CommitRecordLayout::ref_from_bytes(bytes).ok()?;
        let count = usize::try_from(layout.epoch_ends.get()).ok()?;
        if layout.magic != MAGIC
            || layout.version.get() != VERSION
            || layout.crc.get() != crc32c(seed, &bytes[..CRC_COVERS])
            || count > EPOCH_ENDS_MAX
        {
            return None;
        }
        let kind = match layout.kind.get() {
            1 => CommitKind::Commit,
            2 => CommitKind::Opened,
            3 => CommitKind::Idle,
            4 => CommitKind::Closed,
            _ => return None,
        };
        let record = Self {
            kind,
            number: layout.number.get(),
            epoch: layout.epoch.get(),
            end: layout.end.into(),
            durable: layout.durable.into(),
            accepted: layout.accepted.into(),
            namespaces: layout.namespaces.get(),
            root: CheckpointRoot {
                number: layout.checkpoint.get(),
                start_order: layout.start_order.get(),
                start: Tick(layout.start.get()),
                maps: layout.maps.map(StreamExtent::from),
                index: layout.index.into(),
            },
            epoch_ends: layout.ends[..count].iter().map(|end| (*end).into()).collect(),
            health: layout.health.counters(),
        };
        record.is_possible().then_some(record)
    }

    /// Returns the counters with which the opening begins that finds this record as the newest one.
    #[must_use]
    pub fn health_at_next_opening(&self) -> HealthCounters {
        let Some(health) = self.health else { return HealthCounters::default() };
        let is_unsafe = u64::from(self.kind != CommitKind::Closed);
        health + HealthCounters { unsafe_shutdowns: is_unsafe, ..HealthCounters::default() }
    }

    /// Returns true if a device may have written the record: with numbers that are given out, and nothing of a later epoch.
    fn is_possible(&self) -> bool {
        let [first, second] = self.root.maps;
        let pages = |part: StreamExtent| part.first.checked_add(part.pages).is_some();
        self.epoch <= EPOCH_MAX
            && self.number <= NUMBER_MAX
            && self.root.number <= u64::from(u32::MAX)
            && is_up_to_epoch(self.root.start_order, self.epoch)
            && is_up_to_epoch(self.root.start.0, self.epoch)
            && [first, second, self.root.index].into_iter().all(pages)
            && [self.end, self.durable, self.accepted]
                .iter()
                .chain(&self.epoch_ends)
                .all(|prefix| prefix.is_possible_in(self.epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CommitRecord {
        let prefix = |tick, sequence| Prefix { tick: Tick(tick), sequence: Sequence(sequence) };
        let stream = |first| StreamExtent { first, pages: first + 1, crc: 9 };
        CommitRecord {
            kind: CommitKind::Commit,
            number: 12,
            epoch: 3,
            end: prefix(8, 20),
            durable: prefix(7, 18),
            accepted: prefix(2, 6),
            namespaces: 5,
            root: CheckpointRoot {
                number: 2,
                start_order: 4,
                start: Tick(5),
                maps: [stream(0), stream(64)],
                index: stream(3),
            },
            epoch_ends: vec![prefix(1, 1), prefix(2, 6)],
            health: Some(HealthCounters { reads: 7, power_on_seconds: 1 << 40, ..HealthCounters::default() }),
        }
    }

    #[test]
    fn a_record_reads_back_as_written_on_its_own_medium() {
        let mut cell = vec![0xEE; CELL_BYTES];
        record().encode(&mut cell, 4);
        assert_eq!(CommitRecord::decode(&cell, 4), Some(record()));
        let bare = CommitRecord { health: None, ..record() };
        bare.encode(&mut cell, 4);
        assert_eq!(CommitRecord::decode(&cell, 4), Some(bare));
        assert_eq!(CommitRecord::decode(&cell, 5), None);
        assert!(cell[RECORD_BYTES..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut cell = vec![0; CELL_BYTES];
        record().encode(&mut cell, 4);
        for bit in 0..RECORD_BYTES * 8 {
            cell[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(CommitRecord::decode(&cell, 4), None, "bit {bit}");
            cell[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
