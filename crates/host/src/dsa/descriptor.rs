//! The work descriptor of a DSA device, by byte.
//!
//! Input: addresses and lengths. Output: 64 bytes that a portal takes. Invariant: a descriptor that a function here builds has
//! only fields and flags of its operation; the reserved ones are 0, as the device checks.
//!
//! Follows the Intel Data Streaming Accelerator Architecture Specification, chapters "Work Descriptor" and "Operations", and
//! `struct dsa_hw_desc` of the kernel's `linux/idxd.h`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The length of a descriptor, and its alignment in a batch.
pub const DESCRIPTOR_BYTES: usize = 64;

/// Bits of the flags in the word that also has the opcode.
const FLAG_BITS: u32 = 24;

/// The operation of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DsaOpcode {
    /// Does nothing, and completes.
    NoOp = 0x00,
    /// Runs a list of descriptors.
    Batch = 0x01,
    /// Completes when every descriptor before it has.
    Drain = 0x02,
    /// Copies bytes.
    MemoryMove = 0x03,
    /// Fills with a pattern of 8 bytes.
    Fill = 0x04,
    /// Compares two ranges.
    Compare = 0x05,
    /// Copies bytes to two places.
    Dualcast = 0x09,
    /// Computes a CRC-32C.
    CrcGeneration = 0x10,
    /// Copies bytes and computes their CRC-32C.
    CopyCrc = 0x11,
    /// Writes cache lines back to memory.
    CacheFlush = 0x20,
}

impl DsaOpcode {
    /// Every opcode that this driver uses.
    pub const ALL: [Self; 10] = [
        Self::NoOp,
        Self::Batch,
        Self::Drain,
        Self::MemoryMove,
        Self::Fill,
        Self::Compare,
        Self::Dualcast,
        Self::CrcGeneration,
        Self::CopyCrc,
        Self::CacheFlush,
    ];

    /// Returns the operation's name, for an operator.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoOp => "no-op",
            Self::Batch => "batch",
            Self::Drain => "drain",
            Self::MemoryMove => "copy",
            Self::Fill => "fill",
            Self::Compare => "compare",
            Self::Dualcast => "dualcast",
            Self::CrcGeneration => "CRC",
            Self::CopyCrc => "copy with CRC",
            Self::CacheFlush => "cache flush",
        }
    }

    /// Returns true for an operation over memory; false for one that only orders the queue.
    pub(super) const fn is_over_memory(self) -> bool {
        !matches!(self, Self::NoOp | Self::Batch | Self::Drain)
    }

    /// Returns the opcode of a byte; `None` for one that this driver does not use.
    #[must_use]
    pub fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u8 == byte)
    }
}

/// Flags of a descriptor, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsaFlags(u32);

impl DsaFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// In a batch: begins when all before it in the batch have ended, and ends the batch if one of them failed.
    pub const FENCE: Self = Self(0x0001);
    /// Waits for the kernel to resolve a page fault. Without it a page fault ends the descriptor.
    pub const BLOCK_ON_FAULT: Self = Self(0x0002);
    /// The address of the completion record is valid.
    pub const RECORD_VALID: Self = Self(0x0004);
    /// Asks for a completion record. Without it only an error writes one.
    pub const RECORD_ASKED: Self = Self(0x0008);
    /// Asks for an interrupt; user work queues have none.
    pub const INTERRUPT: Self = Self(0x0010);
    /// Writes go to the cache rather than to memory.
    pub const CACHE_CONTROL: Self = Self(0x0100);
    /// The device reads the destination back before it writes the completion record, so that no write is on its way behind it.
    /// Reserved where the device does not support that. Set for copies and fills alone: those are the operations of which it is
    /// known that devices take it.
    pub const DESTINATION_READBACK: Self = Self(0x4000);

    /// Returns the flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if all flags of the other are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if no flag is set that the operation does not know.
    #[must_use]
    pub(super) const fn is_allowed_for(self, opcode: DsaOpcode) -> bool {
        let always = Self::FENCE.with(Self::RECORD_VALID).with(Self::RECORD_ASKED).with(Self::INTERRUPT);
        let moves = always.with(Self::BLOCK_ON_FAULT);
        let known = match opcode {
            DsaOpcode::NoOp | DsaOpcode::Batch | DsaOpcode::Drain => always,
            DsaOpcode::Compare | DsaOpcode::CrcGeneration => moves,
            DsaOpcode::MemoryMove | DsaOpcode::Fill => {
                moves.with(Self::CACHE_CONTROL).with(Self::DESTINATION_READBACK)
            }
            DsaOpcode::Dualcast | DsaOpcode::CopyCrc | DsaOpcode::CacheFlush => {
                moves.with(Self::CACHE_CONTROL)
            }
        };
        self.0 & !known.0 == 0
    }
}

/// The 64 bytes of a descriptor. The kernel fills in the address space (PASID), or the processor with ENQCMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub struct DsaDescriptor {
    /// Bits 19:0 the PASID, bit 31 the privilege. 0 from a user.
    pasid: U32,
    /// Bits 23:0 the flags, bits 31:24 the opcode.
    flags_and_opcode: U32,
    /// The address of the completion record, a multiple of 32.
    record: U64,
    /// The source; the pattern of a fill; the list of a batch.
    source: U64,
    /// The target; the second source of a compare.
    target: U64,
    /// The length in bytes; the number of descriptors of a batch.
    length: U32,
    /// The handle of an interrupt.
    interrupt: U16,
    reserved: U16,
    /// By operation: the seed of a CRC; the second target of a dualcast; the expected result of a compare.
    specific: U64,
    specific_rest: [U64; 2],
}

const _: () = {
    assert!(size_of::<DsaDescriptor>() == DESCRIPTOR_BYTES);
    assert!(align_of::<DsaDescriptor>() == DESCRIPTOR_BYTES);
    assert!(std::mem::offset_of!(DsaDescriptor, record) == 8);
    assert!(std::mem::offset_of!(DsaDescriptor, source) == 16);
    assert!(std::mem::offset_of!(DsaDescriptor, target) == 24);
    assert!(std::mem::offset_of!(DsaDescriptor, length) == 32);
    assert!(std::mem::offset_of!(DsaDescriptor, interrupt) == 36);
    assert!(std::mem::offset_of!(DsaDescriptor, specific) == 40);
};

impl DsaDescriptor {
    /// Returns a descriptor without addresses; it asks for no record yet.
    const fn new(opcode: DsaOpcode, source: u64, target: u64, length: u32, specific: u64) -> Self {
        Self {
            pasid: U32::new(0),
            flags_and_opcode: U32::new((opcode as u32) << FLAG_BITS),
            record: U64::new(0),
            source: U64::new(source),
            target: U64::new(target),
            length: U32::new(length),
            interrupt: U16::new(0),
            reserved: U16::new(0),
            specific: U64::new(specific),
            specific_rest: [U64::new(0); 2],
        }
    }

    /// Returns the descriptor that does nothing.
    #[must_use]
    pub const fn no_op() -> Self {
        Self::new(DsaOpcode::NoOp, 0, 0, 0, 0)
    }

    /// Returns the descriptor that runs `count` descriptors at an address that is a multiple of 64.
    #[must_use]
    pub const fn batch(list: u64, count: u32) -> Self {
        Self::new(DsaOpcode::Batch, list, 0, count, 0)
    }

    /// Returns the descriptor that waits for all before it.
    #[must_use]
    pub const fn drain() -> Self {
        Self::new(DsaOpcode::Drain, 0, 0, 0, 0)
    }

    /// Returns the descriptor that copies `bytes` bytes.
    #[must_use]
    pub const fn memory_move(source: u64, target: u64, bytes: u32) -> Self {
        Self::new(DsaOpcode::MemoryMove, source, target, bytes, 0)
    }

    /// Returns the descriptor that fills `bytes` bytes with one value.
    #[must_use]
    pub const fn fill(target: u64, bytes: u32, value: u8) -> Self {
        Self::new(DsaOpcode::Fill, u64::from_le_bytes([value; 8]), target, bytes, 0)
    }

    /// Returns the descriptor that compares `bytes` bytes. It succeeds also if they differ: the result says so.
    #[must_use]
    pub const fn compare(one: u64, other: u64, bytes: u32) -> Self {
        Self::new(DsaOpcode::Compare, one, other, bytes, 0)
    }

    /// Returns the descriptor that copies `bytes` bytes to two places, whose addresses are alike in their low 12 bits.
    #[must_use]
    pub const fn dualcast(source: u64, targets: [u64; 2], bytes: u32) -> Self {
        Self::new(DsaOpcode::Dualcast, source, targets[0], bytes, targets[1])
    }

    /// Returns the descriptor that computes the CRC-32C of `bytes` bytes. Without the flag that bypasses it, the device
    /// inverts the seed before and the result after, and takes the bits of a byte in the reflected order: with seed 0 the
    /// result is the usual CRC-32C, and a result is the seed by which the next bytes continue it.
    #[must_use]
    pub const fn crc(source: u64, bytes: u32, seed: u32) -> Self {
        Self::new(DsaOpcode::CrcGeneration, source, 0, bytes, seed as u64)
    }

    /// Returns the descriptor that copies `bytes` bytes and computes their CRC-32C, as [`crc`](Self::crc).
    #[must_use]
    pub const fn copy_crc(source: u64, target: u64, bytes: u32, seed: u32) -> Self {
        Self::new(DsaOpcode::CopyCrc, source, target, bytes, seed as u64)
    }

    /// Returns the descriptor that writes the cache lines of `bytes` bytes back to memory.
    #[must_use]
    pub const fn cache_flush(target: u64, bytes: u32) -> Self {
        Self::new(DsaOpcode::CacheFlush, 0, target, bytes, 0)
    }

    /// Returns the descriptor with more flags.
    #[must_use]
    pub fn with_flags(mut self, flags: DsaFlags) -> Self {
        self.flags_and_opcode.set(self.flags_and_opcode.get() | flags.0);
        self
    }

    /// Returns the descriptor with the address of its completion record, and the flags that ask for it.
    #[must_use]
    pub fn with_record(mut self, record: u64) -> Self {
        self.record.set(record);
        self.with_flags(DsaFlags::RECORD_VALID.with(DsaFlags::RECORD_ASKED))
    }

    /// Returns the operation; `None` for one that this driver does not use.
    #[must_use]
    pub fn opcode(&self) -> Option<DsaOpcode> {
        let [.., opcode] = self.flags_and_opcode.get().to_le_bytes();
        DsaOpcode::of(opcode)
    }

    /// Returns the flags.
    #[must_use]
    pub fn flags(&self) -> DsaFlags {
        DsaFlags(self.flags_and_opcode.get() & ((1 << FLAG_BITS) - 1))
    }

    /// Returns the address of the completion record.
    #[must_use]
    pub fn record(&self) -> u64 {
        self.record.get()
    }

    /// Returns the address of the source, or the list of a batch.
    #[must_use]
    pub fn source(&self) -> u64 {
        self.source.get()
    }

    /// Returns the value of a fill whose pattern is one byte.
    #[must_use]
    pub fn fill_value(&self) -> u8 {
        let [value, ..] = self.source.get().to_le_bytes();
        value
    }

    /// Returns the address of the target, or the second source of a compare.
    #[must_use]
    pub fn target(&self) -> u64 {
        self.target.get()
    }

    /// Returns the address of the second target of a dualcast.
    #[must_use]
    pub fn second_target(&self) -> u64 {
        self.specific.get()
    }

    /// Returns the seed of a CRC.
    #[must_use]
    pub fn seed(&self) -> u32 {
        let [a, b, c, d, ..] = self.specific.get().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// Returns the length in bytes, or the number of descriptors of a batch.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length.get()
    }

    /// Returns true if every reserved field is 0.
    #[must_use]
    pub(super) fn has_clear_reserve(&self) -> bool {
        let is_used = matches!(
            self.opcode(),
            Some(DsaOpcode::Dualcast | DsaOpcode::CrcGeneration | DsaOpcode::CopyCrc)
        );
        self.pasid.get() == 0
            && self.reserved.get() == 0
            && (is_used || self.specific.get() == 0)
            && self.specific_rest.iter().all(|word| word.get() == 0)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Returns the bytes of a descriptor in groups of 8.
    fn words(descriptor: DsaDescriptor) -> Vec<[u8; 8]> {
        let (words, rest) = descriptor.as_bytes().as_chunks::<8>();
        assert!(rest.is_empty());
        words.to_vec()
    }

    #[test]
    fn descriptors_have_the_bytes_of_the_specification() {
        let (zero, source) = ([0; 8], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        let (target, second) = ([0, 0xB0, 0xAA, 0, 0, 0, 0, 0], [0, 0xD0, 0xCC, 0, 0, 0, 0, 0]);
        let (from, to, also) = (0x1122_3344_5566_7788, 0x00AA_B000, 0x00CC_D000);
        let length = [0x04, 0x03, 0x02, 0x01, 0, 0, 0, 0];
        let opcode = |opcode: u8| [0, 0, 0, 0, 0, 0, 0, opcode];
        let seed = [0xEF, 0xBE, 0xAD, 0xDE, 0, 0, 0, 0];
        let bytes = 0x0102_0304;
        let golden = [
            (DsaDescriptor::no_op(), [opcode(0x00), zero, zero, zero, zero, zero]),
            (
                DsaDescriptor::batch(from, 7),
                [opcode(0x01), zero, source, zero, [7, 0, 0, 0, 0, 0, 0, 0], zero],
            ),
            (DsaDescriptor::drain(), [opcode(0x02), zero, zero, zero, zero, zero]),
            (DsaDescriptor::memory_move(from, to, bytes), [opcode(0x03), zero, source, target, length, zero]),
            (DsaDescriptor::fill(to, bytes, 0xA5), [opcode(0x04), zero, [0xA5; 8], target, length, zero]),
            (DsaDescriptor::compare(from, to, bytes), [opcode(0x05), zero, source, target, length, zero]),
            (
                DsaDescriptor::dualcast(from, [to, also], bytes),
                [opcode(0x09), zero, source, target, length, second],
            ),
            (DsaDescriptor::crc(from, bytes, 0xDEAD_BEEF), [opcode(0x10), zero, source, zero, length, seed]),
            (
                DsaDescriptor::copy_crc(from, to, bytes, 0xDEAD_BEEF),
                [opcode(0x11), zero, source, target, length, seed],
            ),
            (DsaDescriptor::cache_flush(to, bytes), [opcode(0x20), zero, zero, target, length, zero]),
        ];
        for (descriptor, [head, record, one, two, long, specific]) in golden {
            let expected = vec![head, record, one, two, long, specific, zero, zero];
            assert_eq!(words(descriptor), expected, "{descriptor:?}");
            assert!(descriptor.has_clear_reserve());
        }
    }

    #[test]
    fn flags_and_record_have_the_bits_of_the_specification() {
        let descriptor = DsaDescriptor::memory_move(0x1000, 0x2000, 64)
            .with_record(0x3020)
            .with_flags(DsaFlags::FENCE.with(DsaFlags::BLOCK_ON_FAULT).with(DsaFlags::CACHE_CONTROL));
        let found = words(descriptor);
        // Flags 0x0001 fence, 0x0002 block on fault, 0x0004 and 0x0008 record, 0x0100 cache control.
        assert_eq!(found[0], [0, 0, 0, 0, 0x0F, 0x01, 0x00, 0x03]);
        assert_eq!(found[1], [0x20, 0x30, 0, 0, 0, 0, 0, 0]);
        assert_eq!(descriptor.opcode(), Some(DsaOpcode::MemoryMove));
        assert!(descriptor.flags().has(DsaFlags::FENCE) && !descriptor.flags().has(DsaFlags::INTERRUPT));
        assert!(descriptor.flags().is_allowed_for(DsaOpcode::MemoryMove));
        assert!(!descriptor.flags().is_allowed_for(DsaOpcode::Drain));
        assert_eq!(words(DsaDescriptor::drain().with_flags(DsaFlags::INTERRUPT))[0][4], 0x10);
        // Flag 0x4000 destination readback, beside 0x000C of the record.
        let read_back =
            DsaDescriptor::fill(0x2000, 64, 1).with_record(0x3020).with_flags(DsaFlags::DESTINATION_READBACK);
        assert_eq!(words(read_back)[0], [0, 0, 0, 0, 0x0C, 0x40, 0x00, 0x04]);
        for opcode in DsaOpcode::ALL {
            let is_allowed = DsaFlags::DESTINATION_READBACK.is_allowed_for(opcode);
            assert_eq!(is_allowed, matches!(opcode, DsaOpcode::MemoryMove | DsaOpcode::Fill), "{opcode:?}");
        }
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        let descriptor = DsaDescriptor::dualcast(1, [2, 3], 4).with_record(32);
        assert_eq!((descriptor.source(), descriptor.target(), descriptor.second_target()), (1, 2, 3));
        assert_eq!((descriptor.length(), descriptor.record()), (4, 32));
        assert_eq!(DsaDescriptor::crc(0, 1, 0x0102_0304).seed(), 0x0102_0304);
        assert_eq!(DsaDescriptor::fill(0, 1, 9).fill_value(), 9);
        for byte in 0..=u8::MAX {
            assert_eq!(DsaOpcode::of(byte).map_or(byte, |opcode| opcode as u8), byte);
        }
        assert_eq!(DsaOpcode::of(0x12), None, "DIF is not used");
    }
}
