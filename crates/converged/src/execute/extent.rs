//! The blocks of one namespace, as a command finds them.
//!
//! In: block addresses of a namespace whose format is the one the command meant. Out: their records. Invariant: no block at
//! or behind the namespace's end is ever looked at.

use crate::command::{Lba, LbaRange, NamespaceId, Sequence};
use crate::index::{Index, KeyHash};
use crate::log::Source;
use crate::media::{Media, PageAddress};
use crate::namespace::table::Slot;
use crate::namespace::{BlockFormat, Namespace, NamespaceKind};
use crate::operation::Operation;
use crate::record::{LBA_BYTES, RecordHeader, UNIT_BYTES, record_units};
use crate::utl::{Found, Gather, NewRecord, Reach, Stall, Utl};
use headwater_nvme::spec::status::Status;

/// A block namespace: its number, format and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) namespace: NamespaceId,
    pub(super) format: BlockFormat,
    pub(super) size: u64,
}

/// A block's record.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockRecord {
    /// There is none: zeroes.
    Absent,
    /// This one.
    Present(Found, RecordHeader),
    /// One that cannot be read.
    Damaged,
}

/// Share of device DRAM, one part in so many, that one command's pages may take at once.
const DRAM_SHARE: usize = 8;

impl Extent {
    /// The namespace that an operation works on.
    ///
    /// # Errors
    /// It is none of blocks, or none with the format by which the operation counted its blocks.
    #[inline]
    pub(super) fn of<M: Media>(utl: &Utl<M>, operation: &Operation) -> Result<Self, Status> {
        let namespace = operation.namespace;
        match utl.table.get(namespace) {
            Slot::Made(Namespace { kind: NamespaceKind::Block(format), size, .. })
                if operation.format == Some(format) =>
            {
                Ok(Self { namespace, format, size })
            }
            Slot::Damaged => Err(Status::NAMESPACE_NOT_READY),
            // The format may have become another since the command was submitted: its blocks are not those it meant.
            _ => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// Whether all blocks of a range exist.
    #[inline]
    pub(super) fn check(&self, range: LbaRange) -> Result<(), Status> {
        let inside = range.start.0.checked_add(u64::from(range.blocks)).is_some_and(|end| end <= self.size);
        if inside { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE) }
    }

    /// Bytes of a record of one block.
    pub(super) const fn record_bytes(&self) -> usize {
        record_units(LBA_BYTES, self.format.bytes()) as usize * UNIT_BYTES
    }

    /// The record of a block, with every page of it within reach.
    #[inline]
    pub(super) fn find<M: Media>(&self, utl: &Utl<M>, lba: Lba) -> Result<BlockRecord, Stall> {
        let place = KeyHash::of_block(self.namespace, lba);
        Ok(match utl.find(place, self.namespace, &lba.0.to_le_bytes(), Reach::Value)? {
            None => BlockRecord::Absent,
            Some(found) => match found.header {
                Some(header) if header.value_bytes as usize == self.format.bytes() => {
                    BlockRecord::Present(found, header)
                }
                _ => BlockRecord::Damaged,
            },
        })
    }

    /// What the index has for a block, without a look at the record.
    #[inline]
    pub(super) fn entry<M: Media>(&self, utl: &Utl<M>, lba: Lba) -> Option<Found> {
        let entry = utl.index.find(KeyHash::of_block(self.namespace, lba), 0)?;
        Some(Found { entry, header: None })
    }

    /// How many blocks without a record follow the first of a range, in this range.
    pub(super) fn absent<M: Media>(&self, utl: &Utl<M>, range: LbaRange) -> u64 {
        let (first, end) = (range.start.0 + 1, range.start.0 + u64::from(range.blocks));
        let next = utl.index.next(KeyHash::of_block(self.namespace, Lba(first)));
        let next = next.filter(|(_, entry)| entry.namespace == self.namespace);
        next.map_or(end, |(place, _)| place.block().1.0.min(end)) - first
    }

    /// Writes the record of one block, or its tombstone, in place of the one there is.
    pub(super) fn write<M: Media>(
        &self,
        utl: &mut Utl<M>,
        lba: Lba,
        value: Option<Source<'_>>,
        batch: u8,
    ) -> Sequence {
        let old = self.entry(utl, lba);
        let (hash, key) = (KeyHash::of_block(self.namespace, lba), lba.0.to_le_bytes());
        let record = NewRecord { namespace: self.namespace, hash, key: &key, value, expiry_ms: 0, batch };
        utl.write(&record, old)
    }

    /// The pages that are not within reach of the blocks from here on, the nearest first, as many as may be asked for
    /// together.
    pub(super) fn pages_ahead<M: Media>(
        &self,
        utl: &Utl<M>,
        blocks: impl Iterator<Item = Lba>,
    ) -> Vec<PageAddress> {
        let limit = (utl.dram.frames_max() / DRAM_SHARE).max(1);
        let mut pages: Vec<PageAddress> = Vec::new();
        for lba in blocks {
            let Some(Found { entry, .. }) = self.entry(utl, lba) else {
                continue;
            };
            let bytes = entry.units as usize * UNIT_BYTES;
            for page in Gather::new(utl, entry.address, 0, bytes).missing() {
                // Neighbours share pages; a page that comes twice from afar is dropped below.
                if pages.last() != Some(&page) {
                    pages.push(page);
                }
            }
            if pages.len() >= limit {
                break;
            }
        }
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}
