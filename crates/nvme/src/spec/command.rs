//! The submission queue entry: 64 bytes, little-endian (NVMe Base 2.0 section 3.3.3.1; KV 1.0d section 3.1).
//!
//! Input: eight 64-bit words as fetched from ring memory. Output: fields by name. Two layouts share the entry: the KV
//! set keeps a key of up to 16 bytes in dwords 2, 3, 14 and 15; the UIO put and get give key and value by address and
//! length, at the offsets of NVMe's own fields. The interpreter validates the values.

use crate::spec::kv::{KV_KEY_BYTES_MAX, StoreOptions};
use std::fmt;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

/// 64-bit words of one entry in ring memory.
pub const SUBMISSION_WORDS: usize = 8;

/// FUSE, reserved bits and PSDT of dword 0: all must be zero for a plain command with PRPs.
const PLAIN_FLAGS: u8 = 0;

/// One command in the layout of a submission queue slot.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubmissionEntry {
    /// CDW0 7:0, Opcode.
    pub opcode: u8,
    /// CDW0 15:8: FUSE in 1:0, reserved 5:2, PSDT in 7:6.
    pub flags: u8,
    /// CDW0 31:16, Command Identifier.
    pub command_id: U16,
    /// CDW1, Namespace Identifier.
    pub namespace: U32,
    /// CDW2: KV key bytes 3:0; UIO address of the key, low half.
    pub cdw2: U32,
    /// CDW3: KV key bytes 7:4; UIO address of the key, high half.
    pub cdw3: U32,
    /// MPTR, Metadata Pointer; UIO length of the key.
    pub metadata_pointer: U64,
    /// PRP Entry 1 (first half of DPTR); UIO address of the value.
    pub prp1: U64,
    /// PRP Entry 2 (second half of DPTR); UIO length of the value.
    pub prp2: U64,
    /// CDW10: Store, value size; Retrieve and List, host buffer size. Bytes.
    pub cdw10: U32,
    /// CDW11: key length in 7:0, options in 15:8.
    pub cdw11: U32,
    /// CDW12, reserved in the KV set; with a vendor specific option of a Retrieve, the first byte to read.
    pub cdw12: U32,
    /// CDW13, reserved in the KV set.
    pub cdw13: U32,
    /// CDW14: KV key bytes 11:8.
    pub cdw14: U32,
    /// CDW15: KV key bytes 15:12.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<SubmissionEntry>() == 64);
const _: () = assert!(size_of::<SubmissionEntry>() == SUBMISSION_WORDS * size_of::<u64>());
const _: () = assert!(offset_of!(SubmissionEntry, command_id) == 2);
const _: () = assert!(offset_of!(SubmissionEntry, namespace) == 4);
const _: () = assert!(offset_of!(SubmissionEntry, cdw2) == 8);
const _: () = assert!(offset_of!(SubmissionEntry, metadata_pointer) == 16);
const _: () = assert!(offset_of!(SubmissionEntry, prp1) == 24);
const _: () = assert!(offset_of!(SubmissionEntry, prp2) == 32);
const _: () = assert!(offset_of!(SubmissionEntry, cdw10) == 40);
const _: () = assert!(offset_of!(SubmissionEntry, cdw11) == 44);
const _: () = assert!(offset_of!(SubmissionEntry, cdw12) == 48);
const _: () = assert!(offset_of!(SubmissionEntry, cdw14) == 56);
const _: () = assert!(offset_of!(SubmissionEntry, cdw15) == 60);

impl SubmissionEntry {
    /// Returns the entry held in these words of ring memory.
    #[must_use]
    #[inline]
    pub fn from_words(words: [u64; SUBMISSION_WORDS]) -> Self {
        let words: [U64; SUBMISSION_WORDS] = words.map(U64::new);
        transmute!(words)
    }

    /// Returns the words that ring memory holds for this entry.
    #[must_use]
    #[inline]
    pub fn to_words(&self) -> [u64; SUBMISSION_WORDS] {
        let words: &[U64; SUBMISSION_WORDS] = transmute_ref!(self);
        std::array::from_fn(|word| words[word].get())
    }

    /// Returns true if the command is fused with another, describes its data by SGL, or sets a reserved bit of dword 0.
    #[must_use]
    #[inline]
    pub fn has_special_flags(&self) -> bool {
        self.flags != PLAIN_FLAGS
    }

    /// Returns the KV Key Length in bytes, unvalidated: up to 255, although only 16 fit.
    #[must_use]
    #[inline]
    pub fn kv_key_bytes(&self) -> u8 {
        let [length, _, _, _] = self.cdw11.to_bytes();
        length
    }

    /// Returns the 16 bytes of the KV inline key field; those beyond the key length have no meaning.
    #[must_use]
    #[inline]
    pub fn kv_key_field(&self) -> [u8; KV_KEY_BYTES_MAX] {
        transmute!([self.cdw2, self.cdw3, self.cdw14, self.cdw15])
    }

    /// Returns the KV options byte, CDW11 15:8.
    #[must_use]
    #[inline]
    pub fn kv_options(&self) -> StoreOptions {
        let [_, options, _, _] = self.cdw11.to_bytes();
        StoreOptions(options)
    }

    /// Returns, for a KV Store, the Value Size in bytes; for a KV Retrieve or List, the Host Buffer Size in bytes.
    #[must_use]
    #[inline]
    pub fn kv_data_bytes(&self) -> u32 {
        self.cdw10.get()
    }

    /// Returns the UIO address of the key (adr1).
    #[must_use]
    #[inline]
    pub fn uio_key_address(&self) -> u64 {
        (u64::from(self.cdw3.get()) << 32) | u64::from(self.cdw2.get())
    }

    /// Returns the UIO length of the key in bytes (len1).
    #[must_use]
    #[inline]
    pub fn uio_key_bytes(&self) -> u64 {
        self.metadata_pointer.get()
    }

    /// Returns the UIO address of the value or of its buffer (adr2).
    #[must_use]
    #[inline]
    pub fn uio_value_address(&self) -> u64 {
        self.prp1.get()
    }

    /// Returns the UIO length of the value or of its buffer in bytes (len2).
    #[must_use]
    #[inline]
    pub fn uio_value_bytes(&self) -> u64 {
        self.prp2.get()
    }
}

impl fmt::Debug for SubmissionEntry {
    /// Shows the command, never its key: key bytes are user data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmissionEntry")
            .field("opcode", &format_args!("{:02x}h", self.opcode))
            .field("flags", &format_args!("{:02x}h", self.flags))
            .field("command_id", &self.command_id.get())
            .field("namespace", &self.namespace.get())
            .field("cdw10", &self.cdw10.get())
            .field("cdw11", &format_args!("{:08x}h", self.cdw11.get()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submission_entry_fields_have_the_specified_offsets() {
        let mut bytes = [0_u8; 64];
        for (offset, byte) in (0_u8..).zip(bytes.iter_mut()) {
            *byte = offset;
        }
        let entry: SubmissionEntry = transmute!(bytes);
        assert_eq!(entry.opcode, 0);
        assert_eq!(entry.flags, 1);
        assert_eq!(entry.command_id.get(), 0x0302);
        assert_eq!(entry.namespace.get(), 0x0706_0504);
        assert_eq!(entry.kv_key_field(), [8, 9, 10, 11, 12, 13, 14, 15, 56, 57, 58, 59, 60, 61, 62, 63]);
        assert_eq!(entry.kv_key_bytes(), 44);
        assert_eq!(entry.kv_options().0, 45);
        assert_eq!(entry.kv_data_bytes(), 0x2B2A_2928);
        assert_eq!(entry.uio_key_address(), 0x0F0E_0D0C_0B0A_0908);
        assert_eq!(entry.uio_key_bytes(), 0x1716_1514_1312_1110);
        assert_eq!(entry.uio_value_address(), 0x1F1E_1D1C_1B1A_1918);
        assert_eq!(entry.uio_value_bytes(), 0x2726_2524_2322_2120);
    }

    #[test]
    fn submission_words_are_little_endian_and_round_trip() {
        let entry = SubmissionEntry {
            opcode: 0x81,
            command_id: U16::new(0x1234),
            cdw15: U32::new(0xAABB_CCDD),
            ..SubmissionEntry::default()
        };
        let words = entry.to_words();
        assert_eq!(words[0], 0x1234_0081);
        assert_eq!(words[7], 0xAABB_CCDD_0000_0000);
        assert_eq!(SubmissionEntry::from_words(words), entry);
    }

    #[test]
    fn debug_never_shows_the_key() {
        let entry =
            SubmissionEntry { cdw2: U32::new(u32::from_le_bytes(*b"sEcR")), ..SubmissionEntry::default() };
        let shown = format!("{entry:?}");
        assert!(!shown.contains(&entry.cdw2.get().to_string()));
        assert!(!shown.contains("sEcR"));
    }
}
