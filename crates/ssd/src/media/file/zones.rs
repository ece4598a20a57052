//! The map of a flash file: the owner and the name of every field, by offset.
//!
//! Input: a geometry, or a file. Output: [`FileZone`]s. Invariant: the zones of one owner are consecutive and cover it, and the
//! owners cover the file; the offsets come from the structures and constants with which the medium writes.
//!
//! It is for tools and tests that aim at one field of a file.

use super::layout::{FieldOffset, FlashLayout, PIECE_BYTES, SLOT_BYTES, SUPERBLOCK_COPIES};
use super::startup::{CheckedFile, check_file};
use super::superblock::{SUPERBLOCK_FIELDS, VERSION};
use super::{FileMediaError, OpenAccess, StartupFile, version1};
use crate::media::{
    BlockId, CellNumber, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress,
};
use std::ops::Range;
use std::path::Path;

/// The structure that a part of the file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneOwner {
    /// The superblock.
    Superblock {
        /// Which of the copies, from 0.
        copy: u8,
    },
    /// A commit cell.
    Cell(CellNumber),
    /// The slot of a page.
    Slot(PageAddress),
}

/// One field of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileZone {
    /// The structure.
    pub owner: ZoneOwner,
    /// The field, as the structure names it.
    pub field: &'static str,
    /// The bytes of the file.
    pub range: Range<u64>,
}

/// The fields of a page's spare, which the log writes (`docs/formats/medium-2.md`).
const SPARE_FIELDS: &[FieldOffset] = &[
    ("magic", 0),
    ("version", 4),
    ("kind", 5),
    ("page", 6),
    ("class", 7),
    ("first", 8),
    ("used", 10),
    ("block", 12),
    ("data_crc", 16),
    ("namespaces_before", 20),
    ("order", 24),
    ("tick", 32),
    ("open_sequence", 40),
    ("durable_tick", 48),
    ("durable_sequence", 56),
    ("accepted_tick", 64),
    ("accepted_sequence", 72),
    ("continues", 80),
    ("sequence_before", 88),
    ("authentication", 96),
    ("zero", 112),
    ("crc", 124),
];

/// The parts of a commit cell: the commit record and what lies behind it.
const CELL_FIELDS: &[FieldOffset] = &[("record", 0), ("zero", 1_024)];

/// The map of one file, or of new files of one geometry.
#[derive(Clone, Copy, Debug)]
pub struct FileZones {
    layout: FlashLayout,
}

impl FileZones {
    /// Returns the map of a file of this geometry.
    #[must_use]
    pub fn new(geometry: FlashGeometry) -> Self {
        // The uuid does not move anything.
        Self { layout: FlashLayout::new(geometry, [0; 16]) }
    }

    /// Returns the map of a file of version 2, from its superblock. Errors call the file `path`.
    ///
    /// # Errors
    /// The file has another version or length, its superblock is damaged, or an access to it failed.
    pub fn of_file(file: &impl StartupFile, path: &Path) -> Result<Self, FileMediaError> {
        let CheckedFile { layout, version1, .. } = check_file(path, file, OpenAccess::ReadOnly)?;
        if version1.is_some() {
            let path = path.to_owned();
            return Err(FileMediaError::Version { path, found: version1::VERSION, known: VERSION });
        }
        Ok(Self { layout })
    }

    /// Returns the geometry.
    #[must_use]
    pub fn geometry(&self) -> FlashGeometry {
        self.layout.geometry
    }

    /// Returns the value that the checksums of the file's pages and commit records start from. The map of a new file has
    /// that of a file whose uuid is zero.
    #[must_use]
    pub fn checksum_seed(&self) -> u32 {
        self.layout.checksum_seed()
    }

    /// Returns the bytes of all slots.
    #[must_use]
    pub fn slots(&self) -> Range<u64> {
        self.layout.slots_offset..self.layout.tail_offset()
    }

    /// Returns the length of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes
    }

    /// Returns every structure that is not a slot, in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> Vec<ZoneOwner> {
        let cells = (0..self.layout.cells.0 + self.layout.cells.1).map(CellNumber).map(ZoneOwner::Cell);
        let copies = (0..SUPERBLOCK_COPIES).map(|copy| ZoneOwner::Superblock { copy });
        let mut owners: Vec<_> = copies.chain(cells).collect();
        owners.sort_by_key(|&owner| self.range(owner).start);
        owners
    }

    /// Returns the bytes of a structure; none if there is no such structure.
    #[must_use]
    pub fn range(&self, owner: ZoneOwner) -> Range<u64> {
        let (start, bytes) = match owner {
            ZoneOwner::Superblock { copy } => (self.layout.superblock_offset(copy), PIECE_BYTES),
            ZoneOwner::Cell(cell) => match self.layout.cell_offset(cell) {
                Some(offset) => (offset, PIECE_BYTES),
                None => (self.layout.file_bytes, 0),
            },
            ZoneOwner::Slot(page) => (self.layout.slot_offset(page), SLOT_BYTES),
        };
        start..start + bytes as u64
    }

    /// Returns the fields of a structure, in order.
    #[must_use]
    pub fn fields(&self, owner: ZoneOwner) -> Vec<FileZone> {
        let whole = self.range(owner);
        let fields: Vec<FieldOffset> = match owner {
            ZoneOwner::Superblock { .. } => SUPERBLOCK_FIELDS.to_vec(),
            ZoneOwner::Cell(_) => CELL_FIELDS.to_vec(),
            ZoneOwner::Slot(_) => slot_fields(),
        };
        let starts = fields.iter().map(|&(_, offset)| whole.start + offset as u64);
        let ends = starts.clone().skip(1).chain([whole.end]);
        fields
            .iter()
            .zip(starts.zip(ends))
            .map(|(&(field, _), (start, end))| FileZone { owner, field, range: start..end })
            .collect()
    }

    /// Returns the structure that a byte of the file belongs to.
    #[must_use]
    pub fn owner_at(&self, offset: u64) -> Option<ZoneOwner> {
        if !self.slots().contains(&offset) {
            return self.metadata().into_iter().find(|&owner| self.range(owner).contains(&offset));
        }
        let index = usize::try_from((offset - self.layout.slots_offset) / SLOT_BYTES as u64).ok()?;
        let block = u32::try_from(index / PAGES_PER_BLOCK).ok()?;
        let page = u8::try_from(index % PAGES_PER_BLOCK).ok()?;
        Some(ZoneOwner::Slot(PageAddress::new(BlockId(block), page)))
    }
}

/// Returns the parts of a slot: data, the fields of the spare, and the padding behind them.
fn slot_fields() -> Vec<FieldOffset> {
    let spare = SPARE_FIELDS.iter().map(|&(name, offset)| (name, PAGE_DATA_BYTES + offset));
    let padding = ("padding", PAGE_DATA_BYTES + PAGE_SPARE_BYTES);
    [("data", 0)].into_iter().chain(spare).chain([padding]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_cover_the_whole_file_in_order_and_name_their_owner() {
        let geometry = FlashGeometry::with_blocks(40);
        let zones = FileZones::new(geometry);
        let mut owners = zones.metadata();
        assert_eq!(owners.len(), 4 + 64);
        let front = owners.partition_point(|&owner| zones.range(owner).start < zones.layout.slots_offset);
        assert_eq!(front, 2 + 32);
        let pages = (0..geometry.blocks).flat_map(|block| {
            (0..64).map(move |page| ZoneOwner::Slot(PageAddress::new(BlockId(block), page)))
        });
        owners.splice(front..front, pages);
        let mut end = 0;
        for owner in owners {
            for zone in zones.fields(owner) {
                assert_eq!(zone.range.start, end, "{zone:?}");
                assert!(zone.range.end > zone.range.start, "{zone:?}");
                assert_eq!(zones.owner_at(zone.range.start), Some(owner));
                assert_eq!(zones.owner_at(zone.range.end - 1), Some(owner));
                end = zone.range.end;
            }
            assert_eq!(end, zones.range(owner).end);
        }
        assert_eq!(end, zones.file_bytes());
        assert_eq!(zones.owner_at(end), None);
    }
}
