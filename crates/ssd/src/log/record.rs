//! The record: the format of a key and its value on flash (`docs/formats/record.md`).
//!
//! Input: header bytes from a page. Output: a checked [`RecordHeader`], or the reason why the bytes are not one.
//! Invariant: lengths in a header that [`RecordHeader::decode`] accepts are inside the limits, so later arithmetic
//! cannot overflow.

use crate::command::{Lba, NamespaceId, Sequence};
use crate::limits::{KEY_BYTES_MAX, LOG_VALUE_BYTES_MAX, SPACES, VALUE_BYTES_MAX};
use crate::log::prefix::NUMBER_MAX;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a record header.
pub const HEADER_BYTES: usize = 48;
/// Alignment of records and unit of their lengths.
pub const UNIT_BYTES: usize = 16;
/// Bytes of an extent in the list behind the key.
pub const EXTENT_ENTRY_BYTES: usize = 16;
/// Version of the format.
pub const RECORD_VERSION: u8 = 1;

const UNITS_PER_PAGE: u64 = (PAGE_DATA_BYTES / UNIT_BYTES) as u64;
const UNITS_PER_BLOCK: u64 = (BLOCK_DATA_BYTES / UNIT_BYTES) as u64;

/// Tombstone: the key is removed.
pub const FLAG_TOMBSTONE: u8 = 1;
/// Part of an all-or-nothing batch, and not its last record.
pub const FLAG_BATCH_MORE: u8 = 2;
/// Continues in the block that was opened next.
pub const FLAG_CHAINED: u8 = 4;
/// Clear: every record of the namespace with a lower sequence is removed.
pub const FLAG_CLEAR: u8 = 8;
/// Part of an all-or-nothing batch, and not its first record.
pub const FLAG_BATCH_REST: u8 = 16;
/// The key is a logical block address, 8 bytes.
pub const FLAG_LBA: u8 = 32;
/// Bytes of a key that is a logical block address.
pub const LBA_BYTES: usize = size_of::<Lba>();
/// Part of a batch of more than one record.
pub const FLAGS_BATCH: u8 = FLAG_BATCH_MORE | FLAG_BATCH_REST;
const FLAGS_KNOWN: u8 = FLAG_TOMBSTONE | FLAGS_BATCH | FLAG_CHAINED | FLAG_CLEAR | FLAG_LBA;

/// Returns the flags of the record at index `index` of an all-or-nothing batch whose last record has index `last`.
#[must_use]
#[inline]
pub const fn batch_flags(index: usize, last: usize) -> u8 {
    let more = if index < last { FLAG_BATCH_MORE } else { 0 };
    more | if index > 0 { FLAG_BATCH_REST } else { 0 }
}

/// Address of a record's header, in units of 16 bytes over the data areas of the whole medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordAddress(pub u64);

impl RecordAddress {
    /// Returns the address of an offset in a block's data; the offset must be a multiple of 16.
    #[must_use]
    #[inline]
    pub const fn in_block(block: BlockId, offset: usize) -> Self {
        Self(block.0 as u64 * UNITS_PER_BLOCK + (offset / UNIT_BYTES) as u64)
    }

    /// Returns the block.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "addresses are made from 26-bit block numbers")]
    pub const fn block(self) -> BlockId {
        BlockId((self.0 / UNITS_PER_BLOCK) as u32)
    }

    /// Returns the byte offset within the block's data.
    #[must_use]
    #[inline]
    pub const fn offset_in_block(self) -> usize {
        (self.0 % UNITS_PER_BLOCK) as usize * UNIT_BYTES
    }

    /// Returns the page in which the header starts.
    #[must_use]
    #[inline]
    pub const fn page(self) -> PageAddress {
        PageAddress::new(self.block(), (self.0 % UNITS_PER_BLOCK / UNITS_PER_PAGE) as u8)
    }
}

// The longest values are chained over blocks.
const _: () = assert!(LOG_VALUE_BYTES_MAX > BLOCK_DATA_BYTES);
const _: () = assert!(PAGES_PER_BLOCK < u8::MAX as usize);

impl fmt::Display for RecordAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} offset {}", self.block(), self.offset_in_block())
    }
}

/// Returns a record's length in units of 16 bytes: header, key, value and padding together.
#[must_use]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "lengths are limited to 16 MiB + 64 KiB + 48")]
pub const fn record_units(key_bytes: usize, value_bytes: usize) -> u32 {
    (HEADER_BYTES + key_bytes + value_bytes).div_ceil(UNIT_BYTES) as u32
}

/// Units of the longest record.
pub const RECORD_UNITS_MAX: u32 = record_units(KEY_BYTES_MAX, LOG_VALUE_BYTES_MAX);

/// The header in its flash format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RecordHeaderLayout {
    /// CRC-32C of everything after it.
    pub crc: U32,
    /// [`RECORD_VERSION`].
    pub version: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// Key length in bytes.
    pub key_bytes: U16,
    /// Value length in bytes.
    pub value_bytes: U32,
    /// Namespace, from 1.
    pub namespace: U16,
    /// Extents of the value.
    pub extents: U16,
    /// Position in the order of all writes.
    pub sequence: U64,
    /// Epoch of the accepting primary.
    pub epoch: U32,
    /// CRC16 slot of the key.
    pub slot: U16,
    /// Zero.
    pub reserved: U16,
    /// Idempotency id of a remote write.
    pub request_id: U64,
    /// Wall time in milliseconds at which the record expires, 0 for never.
    pub expiry_ms: U64,
}

const _: () = assert!(size_of::<RecordHeaderLayout>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RecordHeaderLayout, sequence) == 16);
const _: () = assert!(std::mem::offset_of!(RecordHeaderLayout, request_id) == 32);
const _: () = assert!(std::mem::offset_of!(RecordHeaderLayout, expiry_ms) == 40);

/// A header with checked fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// CRC-32C of everything after it.
    pub crc: u32,
    /// `FLAG_*`.
    pub flags: u8,
    /// Key length in bytes.
    pub key_bytes: u16,
    /// Bytes behind the key: the value, or the list of its extents and its rest.
    pub value_bytes: u32,
    /// Blocks outside of the log that hold the first bytes of the value.
    pub extents: u16,
    /// Namespace of the key.
    pub namespace: NamespaceId,
    /// Position in the order of all writes.
    pub sequence: Sequence,
    /// Wall time in milliseconds at which the record expires, 0 for never.
    pub expiry_ms: u64,
}

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The version is not one that this program reads.
    #[error("record version {0} is not known; this program reads version {RECORD_VERSION}")]
    Version(u8),
    /// A field has a value that no writer produces.
    #[error("field `{0}` of a record header is out of range")]
    Field(&'static str),
    /// The checksum does not match.
    #[error("record checksum mismatch")]
    Checksum,
}

impl RecordHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`RecordError`] names the invalid field.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, RecordError> {
        let layout: RecordHeaderLayout = zerocopy::transmute!(*bytes);
        if layout.version != RECORD_VERSION {
            return Err(RecordError::Version(layout.version));
        }
        let header = Self {
            crc: layout.crc.get(),
            flags: layout.flags,
            key_bytes: layout.key_bytes.get(),
            value_bytes: layout.value_bytes.get(),
            extents: layout.extents.get(),
            namespace: NamespaceId(u8::try_from(layout.namespace.get()).unwrap_or(0)),
            sequence: Sequence(layout.sequence.get()),
            expiry_ms: layout.expiry_ms.get(),
        };
        let system = header.namespace == NamespaceId::SYSTEM;
        if header.namespace.index() >= SPACES || system && !header.is_block() {
            return Err(RecordError::Field("namespace"));
        }
        if header.flags & !FLAGS_KNOWN != 0 {
            return Err(RecordError::Field("flags"));
        }
        if header.value_bytes as usize > LOG_VALUE_BYTES_MAX {
            return Err(RecordError::Field("value length"));
        }
        let list_bytes = header.list_bytes();
        let may_have_extents = header.flags & !FLAG_CHAINED == 0;
        if list_bytes > header.value_bytes as usize
            || header.value_len() > VALUE_BYTES_MAX
            || list_bytes > 0 && !may_have_extents
        {
            return Err(RecordError::Field("extents"));
        }
        let lba_fits = !header.is_block() || usize::from(header.key_bytes) == LBA_BYTES;
        if (header.key_bytes == 0) != header.is_clear() || !lba_fits {
            return Err(RecordError::Field("key length"));
        }
        if header.sequence.0 == 0 || header.sequence.0 > NUMBER_MAX {
            return Err(RecordError::Field("sequence"));
        }
        Ok(header)
    }

    /// Encodes the header. The checksum field is 0 until the whole record is known.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let layout = RecordHeaderLayout {
            crc: U32::new(self.crc),
            version: RECORD_VERSION,
            flags: self.flags,
            key_bytes: U16::new(self.key_bytes),
            value_bytes: U32::new(self.value_bytes),
            namespace: U16::new(u16::from(self.namespace.0)),
            extents: U16::new(self.extents),
            sequence: U64::new(self.sequence.0),
            epoch: U32::ZERO,
            slot: U16::ZERO,
            reserved: U16::ZERO,
            request_id: U64::ZERO,
            expiry_ms: U64::new(self.expiry_ms),
        };
        zerocopy::transmute!(layout)
    }

    /// Returns the length in 16-byte units.
    #[must_use]
    #[inline]
    pub const fn units(&self) -> u32 {
        record_units(self.key_bytes as usize, self.value_bytes as usize)
    }

    /// Returns the bytes of header, key and value without padding, where the bytes under the checksum end.
    #[must_use]
    #[inline]
    pub const fn payload_end(&self) -> usize {
        HEADER_BYTES + self.key_bytes as usize + self.value_bytes as usize
    }

    /// Returns the bytes of the list of extents, which lies between the key and the rest of the value.
    #[must_use]
    #[inline]
    pub const fn list_bytes(&self) -> usize {
        self.extents as usize * EXTENT_ENTRY_BYTES
    }

    /// Returns the bytes of the value that lie in extents.
    #[must_use]
    #[inline]
    pub const fn extent_bytes(&self) -> usize {
        self.extents as usize * BLOCK_DATA_BYTES
    }

    /// Returns the length of the value in bytes, wherever they lie.
    #[must_use]
    #[inline]
    pub const fn value_len(&self) -> usize {
        self.extent_bytes() + (self.value_bytes as usize).saturating_sub(self.list_bytes())
    }

    /// Returns the length of the value in bytes, as commands give it.
    #[must_use]
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a value has at most 256 MiB")]
    pub const fn value_len_u32(&self) -> u32 {
        self.value_len() as u32
    }

    /// Returns true if the record is a tombstone.
    #[must_use]
    #[inline]
    pub const fn is_tombstone(&self) -> bool {
        self.flags & FLAG_TOMBSTONE != 0
    }

    /// Returns true if the record clears its namespace.
    #[must_use]
    #[inline]
    pub const fn is_clear(&self) -> bool {
        self.flags & FLAG_CLEAR != 0
    }

    /// Returns true if the record's key is a logical block address.
    #[must_use]
    #[inline]
    pub const fn is_block(&self) -> bool {
        self.flags & FLAG_LBA != 0
    }

    /// Returns the logical block of a record with this key; `None` for any other key.
    #[must_use]
    #[inline]
    pub fn lba(&self, key: &[u8]) -> Option<Lba> {
        let bytes = key.try_into().ok().filter(|_| self.is_block())?;
        Some(Lba(u64::from_le_bytes(bytes)))
    }

    /// Returns true if the record is expired at this wall time.
    #[must_use]
    #[inline]
    pub const fn is_expired(&self, wall_ms: u64) -> bool {
        self.expiry_ms != 0 && self.expiry_ms <= wall_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            crc: 7,
            flags: FLAG_BATCH_MORE,
            key_bytes: 3,
            value_bytes: 100,
            extents: 0,
            namespace: NamespaceId(2),
            sequence: Sequence(9),
            expiry_ms: 11,
        }
    }

    #[test]
    fn a_header_reads_back_as_written() {
        assert_eq!(RecordHeader::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn header_bytes_match_the_format_page() {
        let bytes = header().encode();
        assert_eq!(bytes[0..4], [7, 0, 0, 0]);
        assert_eq!(bytes[4], RECORD_VERSION);
        assert_eq!(bytes[5], FLAG_BATCH_MORE);
        assert_eq!(bytes[6..8], [3, 0]);
        assert_eq!(bytes[8..12], [100, 0, 0, 0]);
        assert_eq!(bytes[12..16], [2, 0, 0, 0]);
        assert_eq!(bytes[16..24], [9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[40..48], [11, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn invalid_fields_are_refused() {
        let mut bytes = header().encode();
        bytes[4] = 2;
        assert_eq!(RecordHeader::decode(&bytes), Err(RecordError::Version(2)));
        for (change, field) in [
            (RecordHeader { namespace: NamespaceId(0), ..header() }, "namespace"),
            (RecordHeader { namespace: NamespaceId(17), ..header() }, "namespace"),
            (RecordHeader { flags: 0x80, ..header() }, "flags"),
            (RecordHeader { value_bytes: u32::MAX, ..header() }, "value length"),
            (RecordHeader { extents: 7, value_bytes: 111, flags: 0, ..header() }, "extents"),
            (RecordHeader { extents: 1_025, value_bytes: 20_000, flags: 0, ..header() }, "extents"),
            (RecordHeader { extents: 1, ..header() }, "extents"),
            (RecordHeader { key_bytes: 0, ..header() }, "key length"),
            (RecordHeader { flags: FLAG_LBA, ..header() }, "key length"),
            (RecordHeader { sequence: Sequence(0), ..header() }, "sequence"),
        ] {
            assert_eq!(RecordHeader::decode(&change.encode()), Err(RecordError::Field(field)));
        }
    }

    #[test]
    fn the_key_of_a_block_is_its_address() {
        let block = RecordHeader { flags: FLAG_LBA, key_bytes: 8, ..header() };
        assert_eq!(RecordHeader::decode(&block.encode()), Ok(block));
        assert_eq!(block.lba(&[1, 2, 0, 0, 0, 0, 0, 0]), Some(Lba(0x201)));
        assert_eq!(block.lba(&[1]), None);
        assert_eq!(header().lba(&[0; 8]), None);
        let table = RecordHeader { namespace: NamespaceId::SYSTEM, ..block };
        assert_eq!(RecordHeader::decode(&table.encode()), Ok(table));
    }

    #[test]
    fn addresses_split_into_block_page_and_offset() {
        let address = RecordAddress::in_block(BlockId(3), 4_096 * 5 + 32);
        assert_eq!(address.block(), BlockId(3));
        assert_eq!(address.offset_in_block(), 4_096 * 5 + 32);
        assert_eq!(address.page(), PageAddress::new(BlockId(3), 5));
    }
}
