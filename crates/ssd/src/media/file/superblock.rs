//! The superblock of a flash file: its four copies tell the shape of the file and what a program must know to open it.
//!
//! Input: a layout, or the bytes of one copy. Output: the bytes of a copy, or a superblock that passed its checks.
//! Invariant: the copies of one superblock differ in their number and their check only, also in bytes that this version
//! does not know.

use super::layout::{FieldOffset, FlashLayout, PIECE_BYTES, SLOT_BYTES, field_offsets, is_valid_geometry};
use crate::media::{FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK};
use headwater_host::copy::crc32c;
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version that this code writes.
pub(super) const VERSION: u32 = 2;

pub(super) const MAGIC: [u8; 8] = *b"HWFLASH\0";

/// Cells on one side of a file: at least as many as fit in front of the slots of an upgraded file.
pub(super) const CELLS: std::ops::RangeInclusive<u32> = 3..=1_024;

/// A copy of the superblock.
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
    copy: U32,
    slots_offset: U64,
    file_bytes: U64,
    uuid: [u8; 16],
    incompatible: U64,
    read_compatible: U64,
    compatible: U64,
    revision: U64,
    previous_crc: U32,
    cells_front: U32,
    cells_tail: U32,
    reserved: U32,
    hash_seed: U64,
    hash_mask: U64,
    version_1_session: U64,
    cipher: [u8; 512],
    zero: [u8; 3_436],
    crc: U32,
}

const _: () = assert!(size_of::<SuperblockLayout>() == PIECE_BYTES);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, copy) == 36);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, incompatible) == 72);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, hash_seed) == 120);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, cipher) == 144);
const _: () = assert!(std::mem::offset_of!(SuperblockLayout, crc) == 4_092);

pub(super) const SUPERBLOCK_FIELDS: &[FieldOffset] = field_offsets!(
    SuperblockLayout: magic, version, blocks, channels, dies_per_channel, pages_per_block, data_bytes, spare_bytes,
    slot_bytes, copy, slots_offset, file_bytes, uuid, incompatible, read_compatible, compatible, revision,
    previous_crc, cells_front, cells_tail, reserved, hash_seed, hash_mask, version_1_session, cipher, zero, crc,
);

/// The feature bits of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureBits {
    /// A program that does not know one of them must not open the file.
    pub incompatible: u64,
    /// A program that does not know one of them may only read the file.
    pub read_compatible: u64,
    /// A program may ignore them.
    pub compatible: u64,
}

impl FeatureBits {
    /// Incompatible: values may lie in extents.
    pub const EXTENTS: u64 = 1;
    /// Incompatible: the file was upgraded, and may hold blocks of version 1.
    pub const HOLDS_VERSION_1: u64 = 1 << 5;
    /// The features that this program knows.
    pub const KNOWN: Self =
        Self { incompatible: Self::EXTENTS | Self::HOLDS_VERSION_1, read_compatible: 0, compatible: 0 };
}

/// The fault of one copy of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SuperblockFault {
    /// The file ends before it, or its place is unknown because no other copy tells it.
    Missing,
    /// The system could not read it.
    Unreadable {
        /// The kernel's error number, if it gave one.
        errno: Option<i32>,
    },
    /// The magic is missing.
    NotFlash,
    /// Its checksum fails.
    Damaged,
    /// It has another format version.
    Version(u32),
    /// The checksum passes, but the fields are not valid.
    InvalidFields,
    /// It is intact, but lies where another copy belongs.
    Misplaced,
    /// It is intact, but differs from the copies that count: an interrupted change, an older state or another file.
    Differs {
        /// Its revision.
        revision: u64,
    },
}

impl fmt::Display for SuperblockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("is missing"),
            Self::Unreadable { errno: Some(errno) } => write!(f, "cannot be read (errno {errno})"),
            Self::Unreadable { errno: None } => f.write_str("cannot be read"),
            Self::NotFlash => f.write_str("is no superblock"),
            Self::Damaged => f.write_str("fails its checksum"),
            Self::Version(version) => write!(f, "has version {version}"),
            Self::InvalidFields => f.write_str("has invalid fields"),
            Self::Misplaced => f.write_str("is another copy"),
            Self::Differs { revision } => write!(f, "differs, with revision {revision}"),
        }
    }
}

/// A copy of the superblock that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSuperblock {
    /// The number of the copy, from 0.
    pub copy: u8,
    /// Its fault.
    pub fault: SuperblockFault,
}

impl fmt::Display for BadSuperblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {} {}", self.copy, self.fault)
    }
}

/// A superblock, without the number and the check of the copy that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// All bytes of a copy, with zeros in the place of its number and its check.
    bytes: Box<[u8; PIECE_BYTES]>,
    pub(super) layout: FlashLayout,
    pub(super) features: FeatureBits,
    pub(super) revision: u64,
}

impl Superblock {
    /// Makes the superblock of a new file.
    pub(super) fn new(layout: FlashLayout) -> Self {
        let found = SuperblockLayout {
            magic: MAGIC,
            version: VERSION.into(),
            blocks: layout.geometry.blocks.into(),
            channels: layout.geometry.channels.into(),
            dies_per_channel: layout.geometry.dies_per_channel.into(),
            pages_per_block: format_constant(PAGES_PER_BLOCK),
            data_bytes: format_constant(PAGE_DATA_BYTES),
            spare_bytes: format_constant(PAGE_SPARE_BYTES),
            slot_bytes: format_constant(SLOT_BYTES),
            copy: U32::ZERO,
            slots_offset: layout.slots_offset.into(),
            file_bytes: layout.file_bytes.into(),
            uuid: layout.uuid,
            incompatible: FeatureBits::EXTENTS.into(),
            read_compatible: U64::ZERO,
            compatible: U64::ZERO,
            revision: U64::new(1),
            previous_crc: U32::ZERO,
            cells_front: u32::from(layout.cells.0).into(),
            cells_tail: u32::from(layout.cells.1).into(),
            reserved: U32::ZERO,
            hash_seed: U64::ZERO,
            hash_mask: U64::ZERO,
            version_1_session: U64::ZERO,
            cipher: [0; 512],
            zero: [0; 3_436],
            crc: U32::ZERO,
        };
        let bytes: [u8; PIECE_BYTES] = zerocopy::transmute!(found);
        let features = FeatureBits { incompatible: FeatureBits::EXTENTS, ..FeatureBits::default() };
        Self { bytes: Box::new(bytes), layout, features, revision: 1 }
    }

    /// Makes the first superblock of a file that was upgraded in this session of version 1.
    pub(super) fn upgraded(layout: FlashLayout, session: u64) -> Self {
        let new = Self::new(layout);
        let mut found: SuperblockLayout = zerocopy::transmute!(*new.bytes);
        found.incompatible = (FeatureBits::EXTENTS | FeatureBits::HOLDS_VERSION_1).into();
        found.version_1_session = session.into();
        new.with(&found)
    }

    /// Makes the next revision, which says that the file holds no block of version 1.
    pub(super) fn without_version_1(&self) -> Self {
        self.with_incompatible(self.features.incompatible & !FeatureBits::HOLDS_VERSION_1)
    }

    /// Makes the next revision, which says that values may lie in extents.
    pub(super) fn with_extents(&self) -> Self {
        self.with_incompatible(self.features.incompatible | FeatureBits::EXTENTS)
    }

    /// Makes the next revision, with these incompatible features.
    fn with_incompatible(&self, incompatible: u64) -> Self {
        let [.., a, b, c, d] = self.encode(0);
        let mut found: SuperblockLayout = zerocopy::transmute!(*self.bytes);
        found.previous_crc = u32::from_le_bytes([a, b, c, d]).into();
        found.revision += 1;
        found.incompatible = incompatible.into();
        self.with(&found)
    }

    /// Makes a superblock of the same layout with these fields.
    fn with(&self, found: &SuperblockLayout) -> Self {
        let features = FeatureBits { incompatible: found.incompatible.get(), ..self.features };
        let revision = found.revision.get();
        let bytes: [u8; PIECE_BYTES] = zerocopy::transmute!(*found);
        Self { bytes: Box::new(bytes), layout: self.layout, features, revision }
    }

    /// Returns the bytes of one copy.
    pub(super) fn encode(&self, copy: u8) -> [u8; PIECE_BYTES] {
        let mut found: SuperblockLayout = zerocopy::transmute!(*self.bytes);
        found.copy = u32::from(copy).into();
        found.crc = piece_crc(0, found.as_bytes()).into();
        zerocopy::transmute!(found)
    }

    /// Checks the bytes that were found in the place of one copy.
    pub(super) fn decode(bytes: &[u8; PIECE_BYTES], copy: u8) -> Result<Self, SuperblockFault> {
        let mut found: SuperblockLayout = zerocopy::transmute!(*bytes);
        match version_of(bytes)? {
            VERSION => {}
            other => return Err(SuperblockFault::Version(other)),
        }
        let layout = valid_layout(&found).ok_or(SuperblockFault::InvalidFields)?;
        if found.copy.get() != u32::from(copy) {
            return Err(SuperblockFault::Misplaced);
        }
        let features = FeatureBits {
            incompatible: found.incompatible.get(),
            read_compatible: found.read_compatible.get(),
            compatible: found.compatible.get(),
        };
        let revision = found.revision.get();
        found.copy = U32::ZERO;
        found.crc = U32::ZERO;
        let bytes: [u8; PIECE_BYTES] = zerocopy::transmute!(found);
        Ok(Self { bytes: Box::new(bytes), layout, features, revision })
    }
}

/// Returns the version of a superblock of any version, whose magic, version and check have the same offsets.
pub(super) fn version_of(bytes: &[u8; PIECE_BYTES]) -> Result<u32, SuperblockFault> {
    let found: SuperblockLayout = zerocopy::transmute!(*bytes);
    if found.magic != MAGIC {
        return Err(SuperblockFault::NotFlash);
    }
    if found.crc.get() != piece_crc(0, bytes) {
        return Err(SuperblockFault::Damaged);
    }
    Ok(found.version.get())
}

/// Returns the layout that the fields of a superblock describe; `None` if they contradict each other.
fn valid_layout(found: &SuperblockLayout) -> Option<FlashLayout> {
    let geometry = FlashGeometry {
        channels: found.channels.get(),
        dies_per_channel: found.dies_per_channel.get(),
        blocks: found.blocks.get(),
    };
    let cells = |count: U32| u16::try_from(count.get()).ok().filter(|_| CELLS.contains(&count.get()));
    let constants = found.pages_per_block == format_constant(PAGES_PER_BLOCK)
        && found.data_bytes == format_constant(PAGE_DATA_BYTES)
        && found.spare_bytes == format_constant(PAGE_SPARE_BYTES)
        && found.slot_bytes == format_constant(SLOT_BYTES);
    let slots_offset = found.slots_offset.get();
    // No geometry needs more in front of its slots than all of its slots could take.
    if !is_valid_geometry(geometry) || !constants || slots_offset > 1 << 40 || found.revision.get() == 0 {
        return None;
    }
    let cells = (cells(found.cells_front)?, cells(found.cells_tail)?);
    let layout = FlashLayout::of_version_2(geometry, found.uuid, cells, slots_offset);
    (layout.has_room_for_front_cells() && layout.file_bytes == found.file_bytes.get()).then_some(layout)
}

/// Computes the check of a piece: it covers everything before the check, which comes last.
pub(super) fn piece_crc(seed: u32, piece: &[u8]) -> u32 {
    crc32c(seed, &piece[..PIECE_BYTES - 4])
}

/// Converts a constant of the format, all of which are below 2^13.
pub(super) fn format_constant(constant: usize) -> U32 {
    U32::new(u32::try_from(constant).unwrap_or(u32::MAX))
}
