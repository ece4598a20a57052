//! The layout of a flash file of version 1: offsets and structures (`docs/formats/flash-file.md`).
//!
//! Input: bytes from a file. Output: offsets, and numbers that passed their checks. Invariant: every structure is read
//! through a check that is seeded with the file's uuid, so that bytes of another file are never accepted.

use super::super::layout::{PIECE_BYTES, SLOT_BYTES, is_valid_geometry, slots_bytes};
use super::super::superblock::{MAGIC, SuperblockFault, format_constant, piece_crc, version_of};
use super::VERSION;
use crate::media::{FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress};
use headwater_host::copy::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Generations in one piece of the erase table.
pub(super) const GENERATIONS_PER_PIECE: usize = 508;
/// Offset of the medium's own part in a slot.
const STAMP_OFFSET: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;

const SESSION_MAGIC: [u8; 8] = *b"HWSESSN\0";
const PIECE: u64 = PIECE_BYTES as u64;

/// The superblock, the first piece of the file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Version1Superblock {
    magic: [u8; 8],
    version: U32,
    blocks: U32,
    channels: U16,
    dies_per_channel: U16,
    pages_per_block: U32,
    data_bytes: U32,
    spare_bytes: U32,
    slot_bytes: U32,
    reserved: U32,
    slots_offset: U64,
    file_bytes: U64,
    uuid: [u8; 16],
    zero: [u8; 4_020],
    crc: U32,
}

const _: () = assert!(size_of::<Version1Superblock>() == PIECE_BYTES);
const _: () = assert!(std::mem::offset_of!(Version1Superblock, uuid) == 56);
const _: () = assert!(std::mem::offset_of!(Version1Superblock, crc) == 4_092);

/// A session record, one of two; each has its own piece.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SessionLayout {
    magic: [u8; 8],
    session: U64,
    zero: [u8; 4_076],
    crc: U32,
}

const _: () = assert!(size_of::<SessionLayout>() == PIECE_BYTES);

/// One piece of the erase table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TableLayout {
    /// Write counter of this piece; of two copies the higher one is valid.
    write: U64,
    number: U32,
    reserved: U32,
    generations: [U64; GENERATIONS_PER_PIECE],
    zero: [u8; 12],
    crc: U32,
}

const _: () = assert!(size_of::<TableLayout>() == PIECE_BYTES);
const _: () = assert!(std::mem::offset_of!(TableLayout, generations) == 16);

/// The stamp behind the spare of every programmed slot.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StampLayout {
    generation: U64,
    check: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<StampLayout>() == 16);
const _: () = assert!(STAMP_OFFSET + size_of::<StampLayout>() <= SLOT_BYTES);

/// The shape of one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version1Layout {
    pub(super) geometry: FlashGeometry,
    pub(super) uuid: [u8; 16],
    seed: u32,
}

/// One of two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyNumber {
    First,
    Second,
}

impl CopyNumber {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];

    fn index(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

impl Version1Layout {
    /// Returns the shape of the file with this geometry and uuid.
    pub(super) fn new(geometry: FlashGeometry, uuid: [u8; 16]) -> Self {
        Self { geometry, uuid, seed: crc32c(0, &uuid) }
    }

    /// Reads a superblock.
    pub(super) fn from_superblock(bytes: &[u8; PIECE_BYTES]) -> Result<Self, SuperblockFault> {
        match version_of(bytes)? {
            VERSION => {}
            other => return Err(SuperblockFault::Version(other)),
        }
        let found: Version1Superblock = zerocopy::transmute!(*bytes);
        let geometry = FlashGeometry {
            channels: found.channels.get(),
            dies_per_channel: found.dies_per_channel.get(),
            blocks: found.blocks.get(),
        };
        if !is_valid_geometry(geometry) {
            return Err(SuperblockFault::InvalidFields);
        }
        let layout = Self::new(geometry, found.uuid);
        if layout.superblock().as_bytes() == bytes { Ok(layout) } else { Err(SuperblockFault::InvalidFields) }
    }

    /// Returns the superblock that version 1 wrote for this file.
    fn superblock(&self) -> Version1Superblock {
        let mut found = Version1Superblock {
            magic: MAGIC,
            version: VERSION.into(),
            blocks: self.geometry.blocks.into(),
            channels: self.geometry.channels.into(),
            dies_per_channel: self.geometry.dies_per_channel.into(),
            pages_per_block: format_constant(PAGES_PER_BLOCK),
            data_bytes: format_constant(PAGE_DATA_BYTES),
            spare_bytes: format_constant(PAGE_SPARE_BYTES),
            slot_bytes: format_constant(SLOT_BYTES),
            reserved: U32::ZERO,
            slots_offset: self.slots_offset().into(),
            file_bytes: self.file_bytes().into(),
            uuid: self.uuid,
            zero: [0; 4_020],
            crc: U32::ZERO,
        };
        found.crc = piece_crc(0, found.as_bytes()).into();
        found
    }

    /// Returns the number of pieces of one copy of the erase table.
    fn table_pieces(&self) -> usize {
        (self.geometry.blocks as usize).div_ceil(GENERATIONS_PER_PIECE)
    }

    pub(super) fn session_offset(copy: CopyNumber) -> u64 {
        PIECE * (1 + copy.index())
    }

    pub(super) fn table_offset(&self, number: usize, copy: CopyNumber) -> u64 {
        let pieces = self.table_pieces() as u64;
        PIECE * (3 + copy.index() * pieces + number as u64)
    }

    pub(super) fn slots_offset(&self) -> u64 {
        PIECE * (3 + 2 * self.table_pieces() as u64)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.slots_offset() + slots_bytes(self.geometry)
    }

    /// Returns the session of a session record that passes its check.
    pub(super) fn read_session(&self, bytes: &[u8; PIECE_BYTES]) -> Option<u64> {
        let found = SessionLayout::ref_from_bytes(bytes).ok()?;
        let intact = found.magic == SESSION_MAGIC && found.crc.get() == piece_crc(self.seed, bytes);
        intact.then(|| found.session.get())
    }

    /// Reads one piece of the erase table: returns its write counter and fills `generations`, as far as it has room.
    pub(super) fn read_table(
        &self,
        number: usize,
        bytes: &[u8; PIECE_BYTES],
        generations: &mut [u64],
    ) -> Option<u64> {
        let found = TableLayout::ref_from_bytes(bytes).ok()?;
        if u32::try_from(number) != Ok(found.number.get()) || found.crc.get() != piece_crc(self.seed, bytes) {
            return None;
        }
        for (to, from) in generations.iter_mut().zip(&found.generations) {
            *to = from.get();
        }
        Some(found.write.get())
    }

    /// Returns true if a slot was programmed in this generation of its block.
    pub(super) fn is_programmed(&self, page: PageAddress, generation: u64, slot: &[u8]) -> bool {
        let Ok((stamp, _)) = StampLayout::ref_from_prefix(&slot[STAMP_OFFSET..]) else {
            return false;
        };
        stamp.generation.get() == generation && stamp.check.get() == self.stamp_check(page, generation)
    }

    fn stamp_check(&self, page: PageAddress, generation: u64) -> u32 {
        let page_index = page.index() as u64;
        crc32c(crc32c(self.seed, &generation.to_le_bytes()), &page_index.to_le_bytes())
    }
}
