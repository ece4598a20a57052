//! The layout of a flash file: offsets and structures (`docs/formats/flash-file.md`).
//!
//! Input: a geometry, or bytes from a file. Output: offsets, and bytes that passed their checks. Invariant: every
//! structure is read through a check that is seeded with the file's uuid, so that bytes of another file are never
//! accepted.

use super::super::{FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress};
use headwater_dma::frame::FRAME_BYTES;
use headwater_host::copy::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version this code reads and writes.
pub(super) const VERSION: u32 = 1;
/// Alignment and size unit of every structure except the slots.
pub(super) const PIECE_BYTES: usize = 4_096;
/// Generations in one page of the erase table.
pub(super) const GENERATIONS_PER_PIECE: usize = 508;
/// Bytes of one page slot in the file.
pub(super) const SLOT_BYTES: usize = FRAME_BYTES;
/// Offset of the medium's own part in a slot.
pub(super) const STAMP_OFFSET: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;

const MAGIC: [u8; 8] = *b"HWFLASH\0";
const SESSION_MAGIC: [u8; 8] = *b"HWSESSN\0";

/// The name of a field, and its offset in its structure.
pub(super) type FieldOffset = (&'static str, usize);

/// Lists the fields of a structure in order. A field that is left out does not compile.
macro_rules! field_offsets {
    ($layout:ident: $($field:ident),+ $(,)?) => {{
        let _: fn($layout) = |$layout { $($field: _),+ }| {};
        &[$((stringify!($field), std::mem::offset_of!($layout, $field))),+]
    }};
}

/// The superblock, the first piece of the file; written once.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SuperblockLayout {
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

const _: () = assert!(size_of::<SuperblockLayout>() == PIECE_BYTES);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, uuid) == 56);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, crc) == 4_092);

pub(super) const SUPERBLOCK_FIELDS: &[FieldOffset] = field_offsets!(
    SuperblockLayout: magic, version, blocks, channels, dies_per_channel, pages_per_block, data_bytes, spare_bytes,
    slot_bytes, reserved, slots_offset, file_bytes, uuid, zero, crc,
);

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

pub(super) const SESSION_FIELDS: &[FieldOffset] = field_offsets!(SessionLayout: magic, session, zero, crc);

/// One page of the erase table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TableLayout {
    /// Write counter of this table page; of two copies the higher one is valid.
    write: U64,
    number: U32,
    reserved: U32,
    generations: [U64; GENERATIONS_PER_PIECE],
    zero: [u8; 12],
    crc: U32,
}

const _: () = assert!(size_of::<TableLayout>() == PIECE_BYTES);
const _: () = assert!(std::mem::offset_of!(TableLayout, generations) == 16);

pub(super) const TABLE_FIELDS: &[FieldOffset] =
    field_offsets!(TableLayout: write, number, reserved, generations, zero, crc);

/// The stamp that the medium adds behind the spare of every slot it programs.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StampLayout {
    generation: U64,
    check: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<StampLayout>() == 16);
const _: () = assert!(STAMP_OFFSET + size_of::<StampLayout>() <= SLOT_BYTES);

pub(super) const STAMP_BYTES: usize = size_of::<StampLayout>();
pub(super) const STAMP_FIELDS: &[FieldOffset] = field_offsets!(StampLayout: generation, check, reserved);

/// The reason why a superblock was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SuperblockFault {
    /// The magic is missing.
    NotFlash,
    /// Its check fails.
    Damaged,
    /// The version is not the one this code reads.
    Version(u32),
    /// The check passes, but the fields are not valid.
    InvalidFields,
}

/// The shape of one flash file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlashLayout {
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

    pub(super) fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    fn index(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

const PIECE: u64 = PIECE_BYTES as u64;

impl FlashLayout {
    pub(super) fn new(geometry: FlashGeometry, uuid: [u8; 16]) -> Self {
        Self { geometry, uuid, seed: crc32c(0, &uuid) }
    }

    /// Returns the number of pages of one copy of the erase table.
    pub(super) fn table_pieces(&self) -> usize {
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

    pub(super) fn slot_offset(&self, page: PageAddress) -> u64 {
        self.slots_offset() + page.index() as u64 * SLOT_BYTES as u64
    }

    pub(super) fn file_bytes(&self) -> u64 {
        let slots = u64::from(self.geometry.blocks) * PAGES_PER_BLOCK as u64;
        self.slots_offset() + slots * SLOT_BYTES as u64
    }

    pub(super) fn superblock(&self) -> SuperblockLayout {
        let mut found = SuperblockLayout {
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

    /// Reads a superblock. Magic, version and check have the same offsets in every version.
    pub(super) fn from_superblock(bytes: &[u8; PIECE_BYTES]) -> Result<Self, SuperblockFault> {
        let Ok(found) = SuperblockLayout::ref_from_bytes(bytes) else {
            return Err(SuperblockFault::NotFlash);
        };
        if found.magic != MAGIC {
            return Err(SuperblockFault::NotFlash);
        }
        if found.crc.get() != piece_crc(0, bytes) {
            return Err(SuperblockFault::Damaged);
        }
        if found.version.get() != VERSION {
            return Err(SuperblockFault::Version(found.version.get()));
        }
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

    pub(super) fn session_piece(&self, session: u64) -> [u8; PIECE_BYTES] {
        let mut found =
            SessionLayout { magic: SESSION_MAGIC, session: session.into(), zero: [0; 4_076], crc: U32::ZERO };
        found.crc = piece_crc(self.seed, found.as_bytes()).into();
        zerocopy::transmute!(found)
    }

    pub(super) fn read_session(&self, bytes: &[u8; PIECE_BYTES]) -> Option<u64> {
        let found = SessionLayout::ref_from_bytes(bytes).ok()?;
        let sound = found.magic == SESSION_MAGIC && found.crc.get() == piece_crc(self.seed, bytes);
        sound.then(|| found.session.get())
    }

    /// Writes one page of the erase table into a piece. Generations beyond the last block are zero.
    pub(super) fn write_table(&self, number: usize, write: u64, generations: &[u64], piece: &mut [u8]) {
        let mut found = TableLayout {
            write: write.into(),
            number: table_number(number).into(),
            reserved: U32::ZERO,
            generations: [U64::ZERO; GENERATIONS_PER_PIECE],
            zero: [0; 12],
            crc: U32::ZERO,
        };
        for (to, from) in found.generations.iter_mut().zip(generations) {
            *to = (*from).into();
        }
        found.crc = piece_crc(self.seed, found.as_bytes()).into();
        piece.copy_from_slice(found.as_bytes());
    }

    /// Reads one page of the erase table: returns its write counter and fills `generations`, as far as it has room.
    pub(super) fn read_table(
        &self,
        number: usize,
        bytes: &[u8; PIECE_BYTES],
        generations: &mut [u64],
    ) -> Option<u64> {
        let found = TableLayout::ref_from_bytes(bytes).ok()?;
        if found.number.get() != table_number(number) || found.crc.get() != piece_crc(self.seed, bytes) {
            return None;
        }
        for (to, from) in generations.iter_mut().zip(&found.generations) {
            *to = from.get();
        }
        Some(found.write.get())
    }

    /// Stamps a slot as programmed in a generation of its block, and zeroes the bytes behind the stamp.
    pub(super) fn stamp(&self, page: PageAddress, generation: u64, slot: &mut [u8]) {
        let stamp = StampLayout {
            generation: generation.into(),
            check: self.stamp_check(page, generation).into(),
            reserved: U32::ZERO,
        };
        let (head, rest) = slot[STAMP_OFFSET..].split_at_mut(size_of::<StampLayout>());
        head.copy_from_slice(stamp.as_bytes());
        rest.fill(0);
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

/// Returns true if a geometry is valid for a file.
pub(super) fn is_valid_geometry(geometry: FlashGeometry) -> bool {
    geometry.channels > 0
        && geometry.dies_per_channel > 0
        && (1..=super::super::geometry::BLOCKS_MAX).contains(&geometry.blocks)
}

/// Computes the check of a piece: it covers everything before the check, which comes last.
fn piece_crc(seed: u32, piece: &[u8]) -> u32 {
    crc32c(seed, &piece[..PIECE_BYTES - 4])
}

fn table_number(number: usize) -> u32 {
    // A table has at most BLOCKS_MAX / 508 pages.
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Converts a constant of the format, all of which are below 2^13.
fn format_constant(constant: usize) -> U32 {
    U32::new(u32::try_from(constant).unwrap_or(u32::MAX))
}
