//! The SGL descriptor (NVMe Base 2.0 section 4.1.2): 16 bytes that name data, a list of further descriptors, or nothing.
//!
//! In: bytes of an entry or of a segment in host memory. Out: the descriptor by kind. Nothing here judges where it stands.

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
    /// Where what it describes lies.
    pub address: U64,
    /// Its length in bytes.
    pub bytes: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// SGL Identifier: type in 7:4, sub type in 3:0.
    pub identifier: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == SGL_DESCRIPTOR_BYTES);
const _: () = assert!(offset_of!(SglDescriptor, bytes) == 8);
const _: () = assert!(offset_of!(SglDescriptor, identifier) == 15);

/// What a descriptor describes, of the kinds that lie in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// Type 0h: data.
    DataBlock,
    /// Type 1h: data that the host does not want.
    BitBucket,
    /// Type 2h: the next segment, which is not the last.
    Segment,
    /// Type 3h: the last segment.
    LastSegment,
}

impl SglKind {
    /// The identifier of this kind with sub type 0h, an address.
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
    /// A descriptor of this kind.
    #[must_use]
    pub fn new(kind: SglKind, address: u64, bytes: u32) -> Self {
        Self {
            address: U64::new(address),
            bytes: U32::new(bytes),
            reserved: [0; 3],
            identifier: kind.identifier(),
        }
    }

    /// Its kind; `None` for other types, keyed ones among them, and for sub types other than an address.
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

/// What the data pointer of an entry is: PSDT, CDW0 15:14.
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
    /// What the data pointer is.
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

    /// The data pointer as an SGL descriptor.
    #[must_use]
    #[inline]
    pub fn sgl(&self) -> SglDescriptor {
        transmute!([self.prp1, self.prp2])
    }

    /// The same entry with an SGL for its data.
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
    fn descriptors_lie_where_the_specification_puts_them() {
        let descriptor = SglDescriptor::new(SglKind::LastSegment, 0x1122_3344_5566_7788, 0x99AA_BBCC);
        let entry = SubmissionEntry { flags: 0x83, ..SubmissionEntry::default() }.with_sgl(descriptor);
        assert_eq!(entry.flags, 0x43);
        assert_eq!(entry.pointer_kind(), PointerKind::Sgl);
        assert_eq!(entry.prp1.get(), 0x1122_3344_5566_7788);
        assert_eq!(entry.prp2.get(), 0x3000_0000_99AA_BBCC);
        assert_eq!(entry.sgl(), descriptor);
    }

    #[test]
    fn other_types_and_sub_types_have_no_kind() {
        for identifier in 0..=u8::MAX {
            let descriptor = SglDescriptor { identifier, ..SglDescriptor::default() };
            match descriptor.kind() {
                Some(kind) => assert_eq!(kind.identifier(), identifier),
                None => assert!(identifier >= 0x40 || identifier & 0xF != 0),
            }
        }
    }
}
