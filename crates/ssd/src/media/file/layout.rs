//! The layout of a flash file: where its structures lie (`docs/formats/medium-2.md`).
//!
//! Input: a geometry, and the numbers of a superblock. Output: offsets. Invariant: every structure begins at a multiple
//! of 512 bytes, all but the slots at a multiple of 4,096.

use super::super::{CELL_BYTES, CELLS_PER_SIDE, CellNumber, FlashGeometry, PAGES_PER_BLOCK, PageAddress};
use headwater_dma::frame::FRAME_BYTES;
use headwater_host::copy::crc32c;

/// Alignment and size unit of every structure except the slots.
pub(super) const PIECE_BYTES: usize = 4_096;
/// Bytes of one page slot in the file.
pub(super) const SLOT_BYTES: usize = FRAME_BYTES;
/// Bytes of the slots of one block.
pub(super) const BLOCK_BYTES: usize = PAGES_PER_BLOCK * SLOT_BYTES;
/// Copies of the superblock.
pub(super) const SUPERBLOCK_COPIES: u8 = 4;

const PIECE: u64 = PIECE_BYTES as u64;
/// The offset of the first cell, behind the first two copies of the superblock.
const FRONT_CELLS_OFFSET: u64 = 2 * PIECE;

const _: () = assert!(CELL_BYTES == PIECE_BYTES);
const _: () = assert!(BLOCK_BYTES.is_multiple_of(PIECE_BYTES));

/// The name of a field, and its offset in its structure.
pub(super) type FieldOffset = (&'static str, usize);

/// Lists the fields of a structure in order. A field that is left out does not compile.
macro_rules! field_offsets {
    ($layout:ident: $($field:ident),+ $(,)?) => {{
        let _: fn($layout) = |$layout { $($field: _),+ }| {};
        &[$((stringify!($field), std::mem::offset_of!($layout, $field))),+]
    }};
}
pub(super) use field_offsets;

/// The shape of one flash file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlashLayout {
    pub(super) geometry: FlashGeometry,
    pub(super) uuid: [u8; 16],
    /// Number of commit cells in front of the blocks, and behind them.
    pub(super) cells: (u16, u16),
    /// The offset of the first slot.
    pub(super) slots_offset: u64,
    /// The bytes of the file.
    pub(super) file_bytes: u64,
}

impl FlashLayout {
    /// Returns the layout of a new file.
    pub(super) fn new(geometry: FlashGeometry, uuid: [u8; 16]) -> Self {
        let slots_offset = FRONT_CELLS_OFFSET + u64::from(CELLS_PER_SIDE) * PIECE;
        Self::of_version_2(geometry, uuid, (CELLS_PER_SIDE, CELLS_PER_SIDE), slots_offset)
    }

    /// Returns the layout of a file whose slots begin at `slots_offset`, behind its front cells.
    pub(super) fn of_version_2(
        geometry: FlashGeometry,
        uuid: [u8; 16],
        cells: (u16, u16),
        slots_offset: u64,
    ) -> Self {
        let tail = 2 * PIECE + u64::from(cells.1) * PIECE;
        let file_bytes = slots_offset + slots_bytes(geometry) + tail;
        Self { geometry, uuid, cells, slots_offset, file_bytes }
    }

    /// Returns the layout of an upgraded file, whose slots stay where they are: as many front cells as fit, up to these.
    pub(super) fn of_upgraded(
        geometry: FlashGeometry,
        uuid: [u8; 16],
        (front_max, tail): (u16, u16),
        slots_offset: u64,
    ) -> Self {
        let fit = slots_offset.saturating_sub(FRONT_CELLS_OFFSET) / PIECE;
        let front = u16::try_from(fit).unwrap_or(u16::MAX).min(front_max);
        Self::of_version_2(geometry, uuid, (front, tail), slots_offset)
    }

    /// Returns the value that the checksums of pages and commit records start from.
    pub(super) fn checksum_seed(&self) -> u32 {
        crc32c(0, &self.uuid)
    }

    /// Returns true if nothing in front of the slots overlaps them, and they begin where a piece could.
    pub(super) fn has_room_for_front_cells(&self) -> bool {
        self.slots_offset.is_multiple_of(PIECE)
            && self.slots_offset >= FRONT_CELLS_OFFSET + u64::from(self.cells.0) * PIECE
    }

    /// Returns the offset of a copy of the superblock, of which there are [`SUPERBLOCK_COPIES`].
    pub(super) fn superblock_offset(&self, copy: u8) -> u64 {
        match copy {
            0 => 0,
            1 => PIECE,
            2 => self.tail_offset(),
            _ => self.file_bytes - PIECE,
        }
    }

    /// Returns the offset of a commit cell; `None` if there is no such cell.
    pub(super) fn cell_offset(&self, cell: CellNumber) -> Option<u64> {
        let (front, tail) = self.cells;
        match cell.0.checked_sub(front) {
            None => Some(FRONT_CELLS_OFFSET + u64::from(cell.0) * PIECE),
            Some(behind) if behind < tail => Some(self.tail_offset() + (1 + u64::from(behind)) * PIECE),
            Some(_) => None,
        }
    }

    pub(super) fn slot_offset(&self, page: PageAddress) -> u64 {
        self.slots_offset + page.index() as u64 * SLOT_BYTES as u64
    }

    /// Returns the offset of the first byte behind the slots.
    pub(super) fn tail_offset(&self) -> u64 {
        self.slots_offset + slots_bytes(self.geometry)
    }
}

/// Returns the bytes of all slots.
pub(super) fn slots_bytes(geometry: FlashGeometry) -> u64 {
    u64::from(geometry.blocks) * BLOCK_BYTES as u64
}

/// Returns true if a geometry is valid for a file.
pub(super) fn is_valid_geometry(geometry: FlashGeometry) -> bool {
    geometry.channels > 0
        && geometry.dies_per_channel > 0
        && (1..=super::super::geometry::BLOCKS_MAX).contains(&geometry.blocks)
}
