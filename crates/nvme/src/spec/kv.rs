//! Formats of the Key Value command set (KV 1.0d sections 3.1 and 3.2): the inline key, the store options, the List
//! data structure, and builders of submission entries.
//!
//! Input: keys and numbers.
//! Output: fields of an entry, or bytes of a List data structure that never exceed the host's buffer.

use crate::spec::command::SubmissionEntry;
use crate::spec::opcode::IoOpcode;
use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::transmute;

/// Maximum bytes of a key that an entry can carry inline (KV 2.1.5).
pub const KV_KEY_BYTES_MAX: usize = 16;

/// Bytes of the Number of Returned Keys field that begins a List data structure (figure 15).
pub const LIST_HEADER_BYTES: usize = 4;

/// A key that fits in an entry: 1 to 16 bytes. Two keys of different length are different keys.
///
/// It is aligned, so that its copies are whole words: copies at odd offsets wait for the stores of the copy before.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(8))]
pub struct InlineKey {
    field: [u8; KV_KEY_BYTES_MAX],
    bytes: u8,
}

impl InlineKey {
    /// Returns a key of these bytes, or `None` if there are none or more than 16.
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        let bytes = u8::try_from(key.len()).ok().filter(|&bytes| bytes > 0)?;
        let mut field = [0; KV_KEY_BYTES_MAX];
        field.get_mut(..key.len())?.copy_from_slice(key);
        Some(Self { field, bytes })
    }

    /// Returns the key that an entry carries, or `None` if its length field is zero or above 16.
    #[must_use]
    #[inline]
    pub fn from_entry(entry: &SubmissionEntry) -> Option<Self> {
        let bytes = entry.kv_key_bytes();
        (1..=KV_KEY_BYTES_MAX)
            .contains(&usize::from(bytes))
            .then(|| Self { field: entry.kv_key_field(), bytes })
    }

    /// Returns the key's bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.field[..usize::from(self.bytes)]
    }

    fn write_to(self, entry: &mut SubmissionEntry, options: StoreOptions) {
        let [cdw2, cdw3, cdw14, cdw15]: [U32; 4] = transmute!(self.field);
        entry.cdw2 = cdw2;
        entry.cdw3 = cdw3;
        entry.cdw14 = cdw14;
        entry.cdw15 = cdw15;
        entry.cdw11 = U32::new(u32::from(self.bytes) | (u32::from(options.0) << 8));
    }
}

impl fmt::Debug for InlineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InlineKey({} bytes)", self.bytes)
    }
}

/// CDW11 15:8. In a Store: the conditions and the compression hint (figure 29). In a Retrieve: bit 8 requests raw data
/// (figure 19), and bits 15 and 14, which the specification reserves, are vendor specific.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions(pub u8);

impl StoreOptions {
    /// No option.
    pub const NONE: Self = Self(0);
    /// Bit 8: store only if the key exists.
    pub const ONLY_IF_EXISTS: Self = Self(1);
    /// Bit 9: store only if the key does not exist.
    pub const ONLY_IF_ABSENT: Self = Self(1 << 1);
    /// Bit 10: the value shall not be compressed.
    pub const NO_COMPRESSION: Self = Self(1 << 2);
    /// Bit 8 of a Retrieve: return the value as stored, not decompressed.
    pub const RETRIEVE_RAW: Self = Self(1);
    /// Bit 15 of a Retrieve, vendor specific: the value is read from the byte on whose number is in CDW12. Without it CDW12 is
    /// reserved.
    pub const RETRIEVE_FROM: Self = Self(1 << 7);
    /// Bit 14 of a Retrieve, vendor specific: the pages of a long value that are read stay in device DRAM.
    pub const RETRIEVE_KEEP: Self = Self(1 << 6);

    /// Returns true if every bit of `other` is set in `self`.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets of bits.
    #[must_use]
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A contiguous range of client memory that a command moves data to or from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataPointer {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
}

/// Builds a Store entry; the submitter fills in the command id.
#[must_use]
pub fn store(namespace: u32, key: InlineKey, value: DataPointer, options: StoreOptions) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::Store, namespace, value);
    key.write_to(&mut entry, options);
    entry
}

/// Builds a Retrieve entry.
#[must_use]
pub fn retrieve(namespace: u32, key: InlineKey, buffer: DataPointer) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::Retrieve, namespace, buffer);
    key.write_to(&mut entry, StoreOptions::NONE);
    entry
}

/// Builds a Retrieve entry of a part of a value with vendor specific options: the bytes from `offset` on, and
/// [`StoreOptions::RETRIEVE_KEEP`] or [`StoreOptions::NONE`]. Without an option, and with an offset of 0, it is the entry that
/// every device accepts. A device that has no such options may refuse the entry, or ignore them: see
/// [`RETRIEVE_VENDOR_OPTIONS`].
#[must_use]
pub fn retrieve_part(
    namespace: u32,
    key: InlineKey,
    buffer: DataPointer,
    (offset, options): (u32, StoreOptions),
) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::Retrieve, namespace, buffer);
    let from = if offset > 0 { StoreOptions::RETRIEVE_FROM } else { StoreOptions::NONE };
    key.write_to(&mut entry, options.union(from));
    entry.cdw12 = U32::new(offset);
    entry
}

/// Bit 0 of the first vendor specific byte of Identify Namespace of a key space: the device has the vendor specific options of
/// Retrieve, [`StoreOptions::RETRIEVE_FROM`] and [`StoreOptions::RETRIEVE_KEEP`]. It counts with [`VENDOR_SIGNATURE`] only.
pub const RETRIEVE_VENDOR_OPTIONS: u8 = 1;

/// The four bytes behind it, by which a host tells this vendor's byte from that of another vendor.
pub const VENDOR_SIGNATURE: [u8; 4] = *b"HWKV";

/// Returns true if the vendor specific bytes of Identify Namespace of a key space announce the vendor specific options of
/// Retrieve.
#[must_use]
pub fn has_retrieve_options(vendor: &[u8]) -> bool {
    let [features, signature @ ..] = vendor else { return false };
    features & RETRIEVE_VENDOR_OPTIONS != 0 && signature.starts_with(&VENDOR_SIGNATURE)
}

/// Builds a List entry that starts at `from`, or at the first key in the device's order.
#[must_use]
pub fn list(namespace: u32, from: Option<InlineKey>, buffer: DataPointer) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::List, namespace, buffer);
    if let Some(key) = from {
        key.write_to(&mut entry, StoreOptions::NONE);
    }
    entry
}

/// Builds a Delete entry.
#[must_use]
pub fn delete(namespace: u32, key: InlineKey) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::Delete, namespace, DataPointer::default());
    key.write_to(&mut entry, StoreOptions::NONE);
    entry
}

/// Builds an Exist entry.
#[must_use]
pub fn exist(namespace: u32, key: InlineKey) -> SubmissionEntry {
    let mut entry = entry_with_data(IoOpcode::Exist, namespace, DataPointer::default());
    key.write_to(&mut entry, StoreOptions::NONE);
    entry
}

/// Builds a Flush entry.
#[must_use]
pub fn flush(namespace: u32) -> SubmissionEntry {
    entry_with_data(IoOpcode::Flush, namespace, DataPointer::default())
}

/// Builds a UIO put entry: key and value by address.
#[must_use]
pub fn uio_put(namespace: u32, key: DataPointer, value: DataPointer) -> SubmissionEntry {
    uio_entry(IoOpcode::UioPut, namespace, key, value)
}

/// Builds a UIO get entry: key by address, the value goes to `buffer`.
#[must_use]
pub fn uio_get(namespace: u32, key: DataPointer, buffer: DataPointer) -> SubmissionEntry {
    uio_entry(IoOpcode::UioGet, namespace, key, buffer)
}

fn entry_with_data(opcode: IoOpcode, namespace: u32, data: DataPointer) -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode.number(),
        namespace: U32::new(namespace),
        prp1: U64::new(data.address),
        cdw10: U32::new(data.bytes),
        ..SubmissionEntry::default()
    }
}

fn uio_entry(opcode: IoOpcode, namespace: u32, key: DataPointer, value: DataPointer) -> SubmissionEntry {
    let [cdw2, cdw3]: [U32; 2] = transmute!(U64::new(key.address));
    SubmissionEntry {
        opcode: opcode.number(),
        namespace: U32::new(namespace),
        cdw2,
        cdw3,
        metadata_pointer: U64::new(u64::from(key.bytes)),
        prp1: U64::new(value.address),
        prp2: U64::new(u64::from(value.bytes)),
        ..SubmissionEntry::default()
    }
}

/// An encoder of the List data structure: the number of keys, then each key with its length, padded to four bytes
/// (figures 15 and 16). Invariant: the structure never exceeds the limit given to `new` and holds only complete keys.
#[derive(Debug)]
pub struct ListEncoder {
    /// Encoded keys that [`take_keys`](Self::take_keys) has not returned yet.
    data: Vec<u8>,
    keys: u32,
    bytes_left: usize,
}

/// An error: the key does not fit in the rest of the host's buffer. The List data structure is complete without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key of {key_bytes} bytes does not fit the {bytes_left} bytes left of the buffer; send another List"
)]
pub struct ListFull {
    /// Length of the key.
    pub key_bytes: usize,
    /// Bytes left in the buffer.
    pub bytes_left: usize,
}

impl ListEncoder {
    /// Creates an encoder for a host buffer of `bytes_max` bytes, or returns `None` if the key count does not fit.
    #[must_use]
    pub fn new(bytes_max: usize) -> Option<Self> {
        let bytes_left = bytes_max.checked_sub(LIST_HEADER_BYTES)?;
        Some(Self { data: Vec::new(), keys: 0, bytes_left })
    }

    /// Appends one key.
    ///
    /// # Errors
    /// [`ListFull`] if the whole key does not fit, or its length exceeds the 16-bit length field.
    pub fn push(&mut self, key: &[u8]) -> Result<(), ListFull> {
        let full = ListFull { key_bytes: key.len(), bytes_left: self.bytes_left };
        let length = u16::try_from(key.len()).map_err(|_| full)?;
        let entry_bytes = list_entry_bytes(key.len());
        self.bytes_left = self.bytes_left.checked_sub(entry_bytes).ok_or(full)?;
        let end = self.data.len() + entry_bytes;
        self.data.extend_from_slice(&length.to_le_bytes());
        self.data.extend_from_slice(key);
        self.data.resize(end, 0);
        self.keys += 1;
        Ok(())
    }

    /// Returns the number of keys appended so far.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Returns the bytes left in the host's buffer.
    #[must_use]
    pub fn bytes_left(&self) -> usize {
        self.bytes_left
    }

    /// Takes the bytes of the keys appended since the last call. The caller copies them to the host buffer after those
    /// taken before; the first bytes of the buffer are reserved for [`header`](Self::header).
    #[must_use]
    pub fn take_keys(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.data)
    }

    /// Returns the bytes that precede all keys.
    #[must_use]
    pub fn header(&self) -> [u8; LIST_HEADER_BYTES] {
        self.keys.to_le_bytes()
    }

    /// Returns the whole List data structure, provided that [`take_keys`](Self::take_keys) was not called.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        [&self.header()[..], &self.data].concat()
    }
}

/// Returns the bytes that a key takes in a List data structure, padding included.
const fn list_entry_bytes(key_bytes: usize) -> usize {
    (2 + key_bytes).next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_keys_hold_one_to_sixteen_bytes() {
        assert_eq!(InlineKey::new(b""), None);
        assert_eq!(InlineKey::new(&[7; 17]), None);
        assert_eq!(InlineKey::new(&[7; 300]), None);
        for bytes in 1..=16 {
            let key: Vec<u8> = (1..=bytes).collect();
            let inline = InlineKey::new(&key).unwrap();
            let entry = store(1, inline, DataPointer::default(), StoreOptions::ONLY_IF_ABSENT);
            let back = InlineKey::from_entry(&entry).unwrap();
            assert_eq!(back.as_bytes(), key);
            assert_eq!(entry.kv_options(), StoreOptions::ONLY_IF_ABSENT);
            assert_eq!(entry.cdw11.get() >> 16, 0, "reserved");
        }
    }

    #[test]
    fn retrieve_of_a_part_names_its_first_byte_in_dword_12() {
        let key = InlineKey::new(b"key").unwrap();
        let buffer = DataPointer { address: 0x1000, bytes: 700 };
        assert_eq!(retrieve_part(1, key, buffer, (0, StoreOptions::NONE)), retrieve(1, key, buffer));
        let part = retrieve_part(1, key, buffer, (9, StoreOptions::NONE));
        assert_eq!((part.cdw11.get(), part.cdw12.get()), (3 | 1 << 15, 9));
        assert_eq!(part.kv_data_bytes(), 700);
        let kept = retrieve_part(1, key, buffer, (9, StoreOptions::RETRIEVE_KEEP));
        assert_eq!((kept.cdw11.get(), kept.cdw12.get()), (3 | 1 << 15 | 1 << 14, 9));
        let kept = retrieve_part(1, key, buffer, (0, StoreOptions::RETRIEVE_KEEP));
        assert_eq!((kept.cdw11.get(), kept.cdw12.get()), (3 | 1 << 14, 0));
    }

    #[test]
    fn vendor_options_count_with_their_signature_only() {
        assert!(has_retrieve_options(b"\x01HWKV\0"));
        assert!(has_retrieve_options(b"\xFFHWKV"));
        for other in [&b""[..], b"\x01", b"\x01HWK", b"\0HWKV", b"\xFEHWKV", b"\x01hwkv\0", &[0; 256]] {
            assert!(!has_retrieve_options(other), "{other:?}");
        }
    }

    #[test]
    fn list_data_has_the_specified_layout() {
        let mut list = ListEncoder::new(64).unwrap();
        list.push(b"ab").unwrap();
        list.push(b"c").unwrap();
        list.push(b"defg").unwrap();
        assert_eq!(list.keys(), 3);
        assert_eq!(
            list.finish(),
            [
                3, 0, 0, 0, // NRK
                2, 0, b'a', b'b', // no padding
                1, 0, b'c', 0, // one byte of padding
                4, 0, b'd', b'e', b'f', b'g', 0, 0, // two bytes of padding
            ]
        );
    }

    #[test]
    fn list_taken_in_pieces_equals_list_encoded_at_once() {
        let mut whole = ListEncoder::new(40).unwrap();
        let mut pieces = ListEncoder::new(40).unwrap();
        let mut taken = Vec::new();
        for key in [&b"ab"[..], b"c", b"defg", b"0123456789abcdef", b"no"] {
            assert_eq!(whole.push(key), pieces.push(key));
            assert_eq!(whole.bytes_left(), pieces.bytes_left());
            taken.extend(pieces.take_keys());
        }
        assert_eq!(whole.keys(), 4);
        assert_eq!([&pieces.header()[..], &taken].concat(), whole.finish());
    }

    #[test]
    fn list_holds_only_complete_keys() {
        assert!(ListEncoder::new(3).is_none());
        let mut list = ListEncoder::new(11).unwrap();
        list.push(b"ab").unwrap();
        assert_eq!(list.push(b"c"), Err(ListFull { key_bytes: 1, bytes_left: 3 }));
        assert_eq!(list.finish(), [1, 0, 0, 0, 2, 0, b'a', b'b']);
    }

    #[test]
    fn uio_entries_name_key_and_value_by_address() {
        let key = DataPointer { address: 0x1122_3344_5566_7788, bytes: 300 };
        let value = DataPointer { address: 0x99AA, bytes: 5 };
        let entry = uio_put(2, key, value);
        assert_eq!(entry.uio_key_address(), key.address);
        assert_eq!(entry.uio_key_bytes(), 300);
        assert_eq!(entry.uio_value_address(), value.address);
        assert_eq!(entry.uio_value_bytes(), 5);
        assert_eq!(entry.namespace.get(), 2);
    }
}
