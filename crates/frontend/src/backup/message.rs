//! The messages of a backup: between the node that holds a snapshot and the process that copies it.
//!
//! Input: the parts of a flash file in a snapshot. Output: their bytes, and the parts again. All numbers are
//! little-endian. Invariant: a reader accepts no more items than it asks for.
//!
//! ```text
//!  client: request, known blocks          node: status "snapshot", header, records, blocks
//!  client: index of each copied block     node: a status when the snapshot is lost
//! ```

use headwater_ssd::log::commit_record::RECORD_BYTES;
use headwater_ssd::media::file::image::{FileImage, ImageBlock};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The name of the socket in the data directory.
pub const SOCKET_NAME: &str = "backup.sock";
/// Copies of the superblock.
const SUPERBLOCKS: usize = 4;
const MAGIC: [u8; 8] = *b"HWBACKUP";
const VERSION: u32 = 1;

/// The first message of a client. The known blocks follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BackupRequest {
    magic: [u8; 8],
    version: U32,
    /// The number of known blocks.
    pub known: U32,
}

impl BackupRequest {
    /// Makes the request of a client that has copied this many blocks already.
    #[must_use]
    pub fn new(known: u32) -> Self {
        Self { magic: MAGIC, version: VERSION.into(), known: known.into() }
    }

    /// Returns true if this side understands the request.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.magic == MAGIC && self.version.get() == VERSION
    }
}

/// A block of which the client has every page.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KnownBlock {
    /// The offset of its first page in the file.
    pub offset: U64,
    /// The order of its life.
    pub order: U64,
}

/// The later messages of a client: the index of a block of the snapshot that is copied.
pub type CopiedBlock = U32;

/// The status that a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupStatus {
    /// The parts of a snapshot follow.
    Snapshot,
    /// The device needed a block that the snapshot kept.
    LostNoSpace,
    /// A sanitize erases what the snapshot kept.
    LostSanitized,
    /// The medium failed.
    LostMediumFailed,
    /// The node stops.
    LostNodeStops,
    /// Another backup runs.
    RefusedBusy,
    /// The file has format version 1.
    RefusedVersion1,
    /// The request is malformed, or of another version.
    RefusedRequest,
}

impl BackupStatus {
    const ALL: [Self; 8] = [
        Self::Snapshot,
        Self::LostNoSpace,
        Self::LostSanitized,
        Self::LostMediumFailed,
        Self::LostNodeStops,
        Self::RefusedBusy,
        Self::RefusedVersion1,
        Self::RefusedRequest,
    ];

    /// Encodes the status.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        (self as u32 + 1).to_le_bytes()
    }

    /// Decodes a status; `None` if there is no such status.
    #[must_use]
    pub fn decode(bytes: [u8; 4]) -> Option<Self> {
        let number = u32::from_le_bytes(bytes).checked_sub(1)?;
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// The header of a snapshot. Records and blocks follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SnapshotHeader {
    /// The bytes of the flash file.
    pub file_bytes: U64,
    /// The last tick of the snapshot.
    pub tick: U64,
    /// The last sequence of the snapshot.
    pub sequence: U64,
    /// The offsets of the copies of the superblock.
    pub superblocks: [U64; SUPERBLOCKS],
    /// The bytes of a page in the file.
    pub page_bytes: U32,
    /// The number of commit records.
    pub records: U32,
    /// The number of blocks.
    pub blocks: U32,
    zero: U32,
}

impl SnapshotHeader {
    /// Makes the header of an image whose snapshot ends with a tick and a sequence.
    ///
    /// # Panics
    /// The image has not four copies of a superblock, or more than 2^32 blocks: it is not of a flash file.
    #[must_use]
    pub fn new(image: &FileImage, tick: u64, sequence: u64) -> Self {
        let count = |items: usize| U32::new(u32::try_from(items).expect("a file has fewer blocks than 2^32"));
        let mut superblocks = [U64::ZERO; SUPERBLOCKS];
        assert_eq!(image.superblocks.len(), SUPERBLOCKS, "a flash file has four copies of its superblock");
        for (to, &from) in superblocks.iter_mut().zip(&image.superblocks) {
            *to = from.into();
        }
        Self {
            file_bytes: image.file_bytes.into(),
            tick: tick.into(),
            sequence: sequence.into(),
            superblocks,
            page_bytes: image.page_bytes.into(),
            records: count(image.records.len()),
            blocks: count(image.blocks.len()),
            zero: U32::ZERO,
        }
    }
}

/// A commit record of a snapshot.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SnapshotRecord {
    /// Its offset in the file.
    pub offset: U64,
    /// Its bytes.
    pub bytes: [u8; RECORD_BYTES],
}

impl SnapshotRecord {
    /// Makes a record; bytes behind the length of a record are left out.
    #[must_use]
    pub fn new(offset: u64, from: &[u8]) -> Self {
        let mut record = Self::new_zeroed();
        record.offset = offset.into();
        record.bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        record
    }
}

/// A block of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SnapshotBlockEntry {
    /// The offset of its first page in the file.
    pub offset: U64,
    /// The order of its life.
    pub order: U64,
    /// The number of its pages.
    pub pages: U32,
    zero: U32,
}

impl From<&ImageBlock> for SnapshotBlockEntry {
    fn from(block: &ImageBlock) -> Self {
        Self {
            offset: block.offset.into(),
            order: block.order.into(),
            pages: u32::from(block.pages).into(),
            zero: U32::ZERO,
        }
    }
}

const _: () = assert!(size_of::<BackupRequest>() == 16 && size_of::<KnownBlock>() == 16);
const _: () = assert!(size_of::<SnapshotHeader>() == 72 && size_of::<SnapshotBlockEntry>() == 24);
const _: () = assert!(size_of::<SnapshotRecord>() == 1_032);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_decode_to_themselves_and_unknown_ones_to_nothing() {
        for status in BackupStatus::ALL {
            assert_eq!(BackupStatus::decode(status.encode()), Some(status));
        }
        for unknown in [0_u32, 9, u32::MAX] {
            assert_eq!(BackupStatus::decode(unknown.to_le_bytes()), None);
        }
    }

    #[test]
    fn request_of_another_version_is_not_valid() {
        let request = BackupRequest::new(3);
        assert!(request.is_valid() && request.known.get() == 3);
        let other = BackupRequest { version: U32::new(2), ..request };
        assert!(!other.is_valid());
    }
}
