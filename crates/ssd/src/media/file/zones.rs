//! The map of a flash file: the owner and the name of every field, by offset.
//!
//! Input: a geometry. Output: [`FileZone`]s. Invariant: the zones of one owner are consecutive and cover it, and the
//! owners cover the file; the offsets come from the structures and constants with which the medium writes.
//!
//! It is for tools and tests that aim at one field of a file.

use super::layout::{
    CopyNumber, FieldOffset, FlashLayout, PIECE_BYTES, SESSION_FIELDS, SLOT_BYTES, STAMP_BYTES, STAMP_FIELDS,
    STAMP_OFFSET, SUPERBLOCK_FIELDS, TABLE_FIELDS,
};
use crate::media::{FlashGeometry, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use std::ops::Range;

/// The structure that a part of the file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneOwner {
    /// The superblock.
    Superblock,
    /// A session record.
    Session {
        /// Which of the two copies, from 0.
        copy: usize,
    },
    /// A piece of the erase table.
    Table {
        /// Its number, from 0.
        number: usize,
        /// Which of the two copies, from 0.
        copy: usize,
    },
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

/// The map of the files of one geometry.
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

    /// Returns the length of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes()
    }

    /// Returns every structure in front of the slots, in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> Vec<ZoneOwner> {
        let copies = 0..CopyNumber::BOTH.len();
        let tables =
            copies.clone().flat_map(|copy| (0..self.layout.table_pieces()).map(move |number| (number, copy)));
        [ZoneOwner::Superblock]
            .into_iter()
            .chain(copies.map(|copy| ZoneOwner::Session { copy }))
            .chain(tables.map(|(number, copy)| ZoneOwner::Table { number, copy }))
            .collect()
    }

    /// Returns the bytes of a structure.
    #[must_use]
    pub fn range(&self, owner: ZoneOwner) -> Range<u64> {
        let copy_number = |copy: usize| CopyNumber::BOTH[copy.min(1)];
        let (start, bytes) = match owner {
            ZoneOwner::Superblock => (0, PIECE_BYTES),
            ZoneOwner::Session { copy } => (FlashLayout::session_offset(copy_number(copy)), PIECE_BYTES),
            ZoneOwner::Table { number, copy } => {
                (self.layout.table_offset(number, copy_number(copy)), PIECE_BYTES)
            }
            ZoneOwner::Slot(page) => (self.layout.slot_offset(page), SLOT_BYTES),
        };
        start..start + bytes as u64
    }

    /// Returns the fields of a structure, in order.
    #[must_use]
    pub fn fields(&self, owner: ZoneOwner) -> Vec<FileZone> {
        let whole = self.range(owner);
        let fields: Vec<FieldOffset> = match owner {
            ZoneOwner::Superblock => SUPERBLOCK_FIELDS.to_vec(),
            ZoneOwner::Session { .. } => SESSION_FIELDS.to_vec(),
            ZoneOwner::Table { .. } => TABLE_FIELDS.to_vec(),
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
        let Some(in_slots) = offset.checked_sub(self.layout.slots_offset()) else {
            return self.metadata().into_iter().find(|&owner| self.range(owner).contains(&offset));
        };
        let index = usize::try_from(in_slots / SLOT_BYTES as u64).ok()?;
        let block = u32::try_from(index / PAGES_PER_BLOCK).ok().filter(|&block| block < self.blocks())?;
        let page = u8::try_from(index % PAGES_PER_BLOCK).ok()?;
        Some(ZoneOwner::Slot(PageAddress::new(crate::media::BlockId(block), page)))
    }

    fn blocks(&self) -> u32 {
        self.layout.geometry.blocks
    }
}

/// Returns the parts of a slot: data, spare, the fields of the stamp, and the padding behind them.
fn slot_fields() -> Vec<FieldOffset> {
    let stamp = STAMP_FIELDS.iter().map(|&(name, offset)| (name, STAMP_OFFSET + offset));
    [("data", 0), ("spare", PAGE_DATA_BYTES)]
        .into_iter()
        .chain(stamp)
        .chain([("padding", STAMP_OFFSET + STAMP_BYTES)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_cover_the_whole_file_in_order_and_name_their_owner() {
        let geometry = FlashGeometry::with_blocks(600);
        let zones = FileZones::new(geometry);
        let mut owners = zones.metadata();
        assert_eq!(owners.len(), 1 + 2 + 2 * 2);
        for block in 0..geometry.blocks {
            let pages = (0..64).map(|page| PageAddress::new(crate::media::BlockId(block), page));
            owners.extend(pages.map(ZoneOwner::Slot));
        }
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
