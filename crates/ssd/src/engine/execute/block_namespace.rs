//! Lookup and writing of the blocks of one namespace.
//!
//! Input: block addresses, in the format that the namespace had at submission and still has. Output: their records.
//! Invariant: no block at or after the namespace's end is accessed.

use crate::command::{Lba, LbaRange, NamespaceId, Sequence};
use crate::engine::operation::DeviceOperation;
use crate::ftl::namespace_table::NamespaceDefinition;
use crate::ftl::{FoundRecord, Ftl, NewRecord, RecordPart, RecordPieces, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::log::RecordSource;
use crate::log::record::{LBA_BYTES, RecordHeader, UNIT_BYTES, record_units};
use crate::media::{Media, PageAddress};
use crate::namespace::{BlockFormat, Namespace, NamespaceKind};
use headwater_nvme::spec::status::Status;

/// A block namespace: its number, format and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockNamespace {
    pub(super) namespace: NamespaceId,
    pub(super) format: BlockFormat,
    pub(super) size: u64,
}

/// The record of a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum BlockRecord {
    /// No record: the block reads as zeroes.
    Absent,
    /// A readable record.
    Present(FoundRecord, RecordHeader),
    /// A record that cannot be read.
    Damaged,
}

/// Divisor of device DRAM that gives the share which the pages of one command may take at once.
const DRAM_SHARE: usize = 8;

impl BlockNamespace {
    /// Returns the namespace that an operation works on.
    ///
    /// # Errors
    /// The status if it is no block namespace, or no longer has the format with which the operation counted its blocks.
    #[inline]
    pub(super) fn of<M: Media>(ftl: &Ftl<M>, operation: &DeviceOperation) -> Result<Self, Status> {
        let namespace = operation.namespace;
        match ftl.namespace_table().get(namespace) {
            NamespaceDefinition::Created(Namespace { kind: NamespaceKind::Block(format), size, .. })
                if operation.format == Some(format) =>
            {
                Ok(Self { namespace, format, size })
            }
            NamespaceDefinition::Damaged => Err(Status::NAMESPACE_NOT_READY),
            // The format may have changed since the command was submitted: then its block numbers mean other data.
            _ => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// Checks that all blocks of a range lie inside the namespace.
    #[inline]
    pub(super) fn check_range(&self, range: LbaRange) -> Result<(), Status> {
        let inside = range.start.0.checked_add(u64::from(range.blocks)).is_some_and(|end| end <= self.size);
        if inside { Ok(()) } else { Err(Status::LBA_OUT_OF_RANGE) }
    }

    /// Returns the bytes of a record of one block.
    pub(super) const fn record_bytes(&self) -> usize {
        record_units(LBA_BYTES, self.format.bytes()) as usize * UNIT_BYTES
    }

    /// Finds the record of a block, or stalls until all its pages are in device DRAM.
    #[inline]
    pub(super) fn find<M: Media>(&self, ftl: &Ftl<M>, lba: Lba) -> Result<BlockRecord, StallReason> {
        let hash = KeyHash::of_block(self.namespace, lba);
        Ok(match ftl.find(hash, self.namespace, &lba.0.to_le_bytes(), RecordPart::Whole)? {
            None => BlockRecord::Absent,
            Some(found) => match found.header {
                Some(header) if header.value_bytes as usize == self.format.bytes() => {
                    BlockRecord::Present(found, header)
                }
                _ => BlockRecord::Damaged,
            },
        })
    }

    /// Returns the index entry of a block, without reading the record.
    #[inline]
    pub(super) fn entry<M: Media>(&self, ftl: &Ftl<M>, lba: Lba) -> Option<FoundRecord> {
        let entry = ftl.index().find(KeyHash::of_block(self.namespace, lba), 0)?;
        Some(FoundRecord { entry, header: None })
    }

    /// Returns the number of blocks without a record that directly follow the first block of a range, inside the range.
    pub(super) fn absent_run<M: Media>(&self, ftl: &Ftl<M>, range: LbaRange) -> u64 {
        let (first, end) = (range.start.0 + 1, range.start.0 + u64::from(range.blocks));
        let next = ftl.index().next(KeyHash::of_block(self.namespace, Lba(first)));
        let next = next.filter(|(_, entry)| entry.namespace == self.namespace);
        next.map_or(end, |(hash, _)| hash.namespace_and_lba().1.0.min(end)) - first
    }

    /// Writes the record of one block, or its tombstone, in place of the present record.
    pub(super) fn write<M: Media>(
        &self,
        ftl: &mut Ftl<M>,
        lba: Lba,
        value: Option<RecordSource<'_>>,
        batch: u8,
    ) -> Sequence {
        let old = self.entry(ftl, lba);
        let (hash, key) = (KeyHash::of_block(self.namespace, lba), lba.0.to_le_bytes());
        let record = NewRecord { namespace: self.namespace, hash, key: &key, value, expiry_ms: 0, batch };
        ftl.write(&record, old)
    }

    /// Returns the pages of the next blocks that are not in device DRAM, sorted, up to the limit of one request.
    pub(super) fn missing_pages<M: Media>(
        &self,
        ftl: &Ftl<M>,
        blocks: impl Iterator<Item = Lba>,
    ) -> Vec<PageAddress> {
        let limit = (ftl.page_cache().frames_max() / DRAM_SHARE).max(1);
        let mut pages: Vec<PageAddress> = Vec::new();
        for lba in blocks {
            let Some(FoundRecord { entry, .. }) = self.entry(ftl, lba) else {
                continue;
            };
            let bytes = entry.units as usize * UNIT_BYTES;
            for page in RecordPieces::new(ftl, entry.address, 0, bytes).missing() {
                // Neighbouring records share pages; other duplicates are removed below.
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
