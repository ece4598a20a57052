//! Formats of the NVM command set (NVM Command Set 1.0 section 3.2): the fields of block commands, the range lists of
//! Dataset Management and Copy, and builders of submission entries.
//!
//! Input: block ranges and options. Output: fields of an entry, or an entry. The interpreter validates the values.

use crate::spec::command::SubmissionEntry;
use crate::spec::kv::DataPointer;
use crate::spec::opcode::NvmOpcode;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// CDW12 15:0: number of blocks, 0's based.
const COUNT: u32 = 0xFFFF;
/// CDW12 30: Force Unit Access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 31: Limited Retry.
const LIMITED_RETRY: u32 = 1 << 31;
/// CDW12 29:26, PRINFO (in a Copy: PRINFOW), and 24, Storage Tag Check.
const PROTECTION: u32 = 0xF << 26 | 1 << 24;
/// CDW12 15:12 of a Copy, PRINFOR, and 25, Storage Tag Check Read.
const PROTECTION_OF_SOURCES: u32 = 0xF << 12 | 1 << 25;
/// CDW12 25 of Write Zeroes: deallocate if reads then return zeroes.
const DEALLOCATE: u32 = 1 << 25;
/// CDW12 23:20, Directive Type.
const DIRECTIVE_TYPE: u32 = 0xF << 20;
/// CDW11 2 of Dataset Management: deallocate the ranges.
const ATTRIBUTE_DEALLOCATE: u32 = 1 << 2;

/// Options of CDW12 that a host may set on commands that have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockOptions(u32);

impl BlockOptions {
    /// No option.
    pub const NONE: Self = Self(0);
    /// Data is durable before the command completes; for a read, the data that is read.
    pub const FORCE_UNIT_ACCESS: Self = Self(FORCE_UNIT_ACCESS);
    /// Limited retry of failed media accesses.
    pub const LIMITED_RETRY: Self = Self(LIMITED_RETRY);
    /// Write Zeroes: deallocate.
    pub const DEALLOCATE: Self = Self(DEALLOCATE);

    /// Returns the union of both sets of bits.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if every bit of `other` is set in `self`.
    #[must_use]
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// One range of Dataset Management (3.2.3): 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DatasetRange {
    /// Context Attributes: hints.
    pub context: U32,
    /// Length in logical blocks; 0 is an empty range.
    pub blocks: U32,
    /// Starting LBA.
    pub start: U64,
}

const _: () = assert!(size_of::<DatasetRange>() == 16);
const _: () = assert!(offset_of!(DatasetRange, blocks) == 4);
const _: () = assert!(offset_of!(DatasetRange, start) == 8);

/// One source range of a Copy, descriptor format 0h (3.2.2): 32 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CopyRange {
    /// Reserved.
    pub reserved0: U64,
    /// Starting LBA.
    pub start: U64,
    /// Number of logical blocks, 0's based.
    pub blocks0: U16,
    /// Reserved.
    pub reserved18: [u8; 6],
    /// Expected initial logical block reference tag; unused in formats without protection.
    pub reference_tag: U32,
    /// Expected logical block application tag mask.
    pub application_tag_mask: U16,
    /// Expected logical block application tag.
    pub application_tag: U16,
}

const _: () = assert!(size_of::<CopyRange>() == 32);
const _: () = assert!(offset_of!(CopyRange, start) == 8);
const _: () = assert!(offset_of!(CopyRange, blocks0) == 16);
const _: () = assert!(offset_of!(CopyRange, reference_tag) == 24);
const _: () = assert!(offset_of!(CopyRange, application_tag) == 30);

impl SubmissionEntry {
    /// Returns the Starting LBA; for a Copy, the first block of its destination.
    #[must_use]
    #[inline]
    pub fn nvm_start(&self) -> u64 {
        (u64::from(self.cdw11.get()) << 32) | u64::from(self.cdw10.get())
    }

    /// Returns the number of blocks; the field is 0's based.
    #[must_use]
    #[inline]
    pub fn nvm_blocks(&self) -> u32 {
        let [low, high, _, _] = self.cdw12.to_bytes();
        u32::from(u16::from_le_bytes([low, high])) + 1
    }

    /// Returns the Force Unit Access bit.
    #[must_use]
    #[inline]
    pub fn nvm_force_unit_access(&self) -> bool {
        self.cdw12.get() & FORCE_UNIT_ACCESS != 0
    }

    /// Returns the options in CDW12 31:16, including bits that have no name here.
    #[must_use]
    #[inline]
    pub fn nvm_options(&self) -> BlockOptions {
        BlockOptions(self.cdw12.get() & !COUNT)
    }

    /// Returns true if protection information is to be generated or checked.
    #[must_use]
    #[inline]
    pub fn nvm_protection(&self) -> bool {
        self.cdw12.get() & PROTECTION != 0
    }

    /// Returns true if a Copy is to check protection information of its sources.
    #[must_use]
    #[inline]
    pub fn nvm_source_protection(&self) -> bool {
        self.cdw12.get() & PROTECTION_OF_SOURCES != 0
    }

    /// Returns true if a Write or Copy sets a Directive Type.
    #[must_use]
    #[inline]
    pub fn nvm_directive(&self) -> bool {
        self.cdw12.get() & DIRECTIVE_TYPE != 0
    }

    /// Returns the number of ranges of a Dataset Management; the field is 0's based.
    #[must_use]
    #[inline]
    pub fn nvm_dataset_ranges(&self) -> u16 {
        let [ranges, _, _, _] = self.cdw10.to_bytes();
        u16::from(ranges) + 1
    }

    /// Returns true if a Dataset Management deallocates its ranges.
    #[must_use]
    #[inline]
    pub fn nvm_dataset_deallocate(&self) -> bool {
        self.cdw11.get() & ATTRIBUTE_DEALLOCATE != 0
    }

    /// Returns the number of source ranges of a Copy; the field is 0's based.
    #[must_use]
    #[inline]
    pub fn nvm_copy_ranges(&self) -> u16 {
        let [ranges, _, _, _] = self.cdw12.to_bytes();
        u16::from(ranges) + 1
    }

    /// Returns the Descriptor Format of a Copy's source ranges.
    #[must_use]
    #[inline]
    pub fn nvm_copy_format(&self) -> u8 {
        let [_, format, _, _] = self.cdw12.to_bytes();
        format & 0xF
    }
}

/// The blocks of a command: the first, and their number, 1 to 65,536.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// Builds a Read entry; the submitter fills in the command id.
#[must_use]
#[inline]
pub fn read(namespace: u32, range: BlockRange, data: u64, options: BlockOptions) -> SubmissionEntry {
    entry(NvmOpcode::Read, namespace, range, data, options)
}

/// Builds a Write entry.
#[must_use]
#[inline]
pub fn write(namespace: u32, range: BlockRange, data: u64, options: BlockOptions) -> SubmissionEntry {
    entry(NvmOpcode::Write, namespace, range, data, options)
}

/// Builds a Compare entry.
#[must_use]
#[inline]
pub fn compare(namespace: u32, range: BlockRange, data: u64, options: BlockOptions) -> SubmissionEntry {
    entry(NvmOpcode::Compare, namespace, range, data, options)
}

/// Builds a Write Zeroes entry.
#[must_use]
#[inline]
pub fn write_zeroes(namespace: u32, range: BlockRange, options: BlockOptions) -> SubmissionEntry {
    entry(NvmOpcode::WriteZeroes, namespace, range, 0, options)
}

/// Builds a Verify entry.
#[must_use]
#[inline]
pub fn verify(namespace: u32, range: BlockRange, options: BlockOptions) -> SubmissionEntry {
    entry(NvmOpcode::Verify, namespace, range, 0, options)
}

/// Builds a Dataset Management entry that deallocates the ranges of a list of 1 to 256 [`DatasetRange`]s.
#[must_use]
pub fn deallocate(namespace: u32, list: DataPointer) -> SubmissionEntry {
    SubmissionEntry {
        opcode: NvmOpcode::DatasetManagement.number(),
        namespace: U32::new(namespace),
        prp1: U64::new(list.address),
        cdw10: U32::new(count_from_0(list.bytes, size_of::<DatasetRange>())),
        cdw11: U32::new(ATTRIBUTE_DEALLOCATE),
        ..SubmissionEntry::default()
    }
}

/// Builds a Copy entry with a list of 1 to 256 [`CopyRange`]s as its sources.
#[must_use]
pub fn copy(namespace: u32, to: u64, list: DataPointer, options: BlockOptions) -> SubmissionEntry {
    let ranges = BlockRange { start: to, blocks: count_from_0(list.bytes, size_of::<CopyRange>()) + 1 };
    entry(NvmOpcode::Copy, namespace, ranges, list.address, options)
}

#[inline]
fn entry(
    opcode: NvmOpcode,
    namespace: u32,
    range: BlockRange,
    data: u64,
    options: BlockOptions,
) -> SubmissionEntry {
    let cdw12 = (range.blocks.wrapping_sub(1) & COUNT) | options.0;
    // In words: the queue loads an entry in words, and a load of words that were just stored in smaller parts is slow.
    SubmissionEntry::from_words([
        u64::from(opcode.number()) | u64::from(namespace) << 32,
        0,
        0,
        data,
        0,
        range.start,
        cdw12.into(),
        0,
    ])
}

/// Returns the number of descriptors in a list of `list_bytes`, as an 8-bit 0's based field.
fn count_from_0(list_bytes: u32, descriptor_bytes: usize) -> u32 {
    let descriptors = u32::try_from(descriptor_bytes).map_or(0, |bytes| list_bytes / bytes);
    descriptors.wrapping_sub(1) & 0xFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvm_fields_have_the_specified_offsets() {
        let range = BlockRange { start: 0x1122_3344_5566_7788, blocks: 65_536 };
        let options = BlockOptions::FORCE_UNIT_ACCESS.union(BlockOptions::LIMITED_RETRY);
        let entry = write(5, range, 0x9000, options);
        assert_eq!((entry.opcode, entry.namespace.get(), entry.prp1.get()), (1, 5, 0x9000));
        assert_eq!((entry.cdw10.get(), entry.cdw11.get()), (0x5566_7788, 0x1122_3344));
        assert_eq!(entry.cdw12.get(), 0xC000_FFFF);
        assert_eq!((entry.nvm_start(), entry.nvm_blocks()), (range.start, range.blocks));
        assert!(entry.nvm_force_unit_access() && !entry.nvm_protection() && !entry.nvm_directive());
        assert_eq!(entry.nvm_options(), options);
        assert!(options.contains(BlockOptions::LIMITED_RETRY) && !options.contains(BlockOptions::DEALLOCATE));
        let with = |cdw12| SubmissionEntry { cdw12: U32::new(cdw12), ..entry };
        for bit in [24, 26, 27, 28, 29] {
            assert!(with(1 << bit).nvm_protection());
        }
        for bit in [12, 13, 14, 15, 25] {
            assert!(with(1 << bit).nvm_source_protection());
        }
        for bit in 20..24 {
            assert!(with(1 << bit).nvm_directive());
        }
    }

    #[test]
    fn range_counts_are_zero_based() {
        let list = |bytes| DataPointer { address: 0x1000, bytes };
        let deallocate = deallocate(1, list(256 * 16));
        assert_eq!((deallocate.cdw10.get(), deallocate.nvm_dataset_ranges()), (255, 256));
        assert!(deallocate.nvm_dataset_deallocate());
        let copy = copy(1, 77, list(3 * 32), BlockOptions::NONE);
        assert_eq!((copy.cdw12.get(), copy.nvm_copy_ranges(), copy.nvm_copy_format()), (2, 3, 0));
        assert_eq!(copy.nvm_start(), 77);
    }

    #[test]
    fn range_lists_have_the_specified_layout() {
        let range = DatasetRange { context: U32::new(1), blocks: U32::new(2), start: U64::new(3) };
        assert_eq!(range.as_bytes(), [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let source = CopyRange { start: U64::new(4), blocks0: U16::new(5), ..CopyRange::default() };
        assert_eq!((source.as_bytes()[8], source.as_bytes()[16]), (4, 5));
    }
}
