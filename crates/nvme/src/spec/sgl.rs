//! The SGL descriptor (NVMe Base 2.0 section 4.1.2): 16 bytes that describe data, a segment of descriptors, or a bit
//! bucket.
//!
//! Input: bytes of an entry or of a segment in host memory. Output: the descriptor by kind. Its position is validated
//! by `data_pointer::sgl`.

use crate::spec::command::SubmissionEntry;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// Bytes of a descriptor.
pub const SGL_DESCRIPTOR_BYTES: usize = 16;

/// One descriptor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address of the data or segment.
    pub address: U64,
    /// Length in bytes.
    pub bytes: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL Identifier: type in 7:4, sub type in 3:0.
    pub identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == SGL_DESCRIPTOR_BYTES);
const _: () = assert!(offset_of!(SglDescriptor, bytes) == 8);
const _: () = assert!(offset_of!(SglDescriptor, identifier) == 15);

/// The kinds of descriptor that are valid in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// Type 0h: data.
    DataBlock,
    /// Type 1h: data that the host discards.
    BitBucket,
    /// Type 2h: the next segment, which is not the last.
    Segment,
    /// Type 3h: the last segment.
    LastSegment,
}

impl SglKind {
    /// Returns the identifier of this kind with sub type 0h, an address.
    #[must_use]
    pub const fn identifier(self) -> u8 {
        match self {
            Self::DataBlock => 0x00,
            Self::BitBucket => 0x10,
            Self::Segment => 0x20,
            Self::LastSegment => 0x30,
        }
    }
}

impl SglDescriptor {
    /// Creates a descriptor of this kind.
    #[must_use]
    pub fn new(kind: SglKind, address: u64, bytes: u32) -> Self {
        Self {
            address: U64::new(address),
            bytes: U32::new(bytes),
            reserved: [0; 3],
            identifier: kind.identifier(),
        }
    }

    /// Returns the kind; `None` for other types, such as keyed ones, and for sub types other than an address.
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> Option<SglKind> {
        match self.identifier {
            0x00 => Some(SglKind::DataBlock),
            0x10 => Some(SglKind::BitBucket),
            0x20 => Some(SglKind::Segment),
            0x30 => Some(SglKind::LastSegment),
            _ => None,
        }
    }
}

/// The format of an entry's data pointer: PSDT, CDW0 15:14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerKind {
    /// 00b: PRPs.
    Prp,
    /// 01b: an SGL; metadata by address.
    Sgl,
    /// 10b: an SGL; metadata by an SGL.
    SglAndMetadataSgl,
    /// 11b: reserved.
    Reserved,
}

impl SubmissionEntry {
    /// Returns the format of the data pointer.
    #[must_use]
    #[inline]
    pub const fn pointer_kind(&self) -> PointerKind {
        match self.flags >> 6 {
            0b00 => PointerKind::Prp,
            0b01 => PointerKind::Sgl,
            0b10 => PointerKind::SglAndMetadataSgl,
            _ => PointerKind::Reserved,
        }
    }

    /// Returns the data pointer as an SGL descriptor.
    #[must_use]
    #[inline]
    pub fn sgl(&self) -> SglDescriptor {
        transmute!([self.prp1, self.prp2])
    }

    /// Returns the same entry with an SGL as its data pointer.
    #[must_use]
    pub fn with_sgl(mut self, descriptor: SglDescriptor) -> Self {
        let [prp1, prp2]: [U64; 2] = transmute!(descriptor);
        self.prp1 = prp1;
        self.prp2 = prp2;
        self.flags = self.flags & 0x3F | 0x40;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sgl_descriptor_has_the_specified_layout() {
        let descriptor = SglDescriptor::new(SglKind::LastSegment, 0x1122_3344_5566_7788, 0x99AA_BBCC);
        let entry = SubmissionEntry { flags: 0x83, ..SubmissionEntry::default() }.with_sgl(descriptor);
        assert_eq!(entry.flags, 0x43);
        assert_eq!(entry.pointer_kind(), PointerKind::Sgl);
        assert_eq!(entry.prp1.get(), 0x1122_3344_5566_7788);
        assert_eq!(entry.prp2.get(), 0x3000_0000_99AA_BBCC);
        assert_eq!(entry.sgl(), descriptor);
    }

    #[test]
    fn unsupported_types_and_sub_types_have_no_kind() {
        for identifier in 0..=u8::MAX {
            let descriptor = SglDescriptor { identifier, ..SglDescriptor::default() };
            match descriptor.kind() {
                Some(kind) => assert_eq!(kind.identifier(), identifier),
                None => assert!(identifier >= 0x40 || identifier & 0xF != 0),
            }
        }
    }
}
