//! Work for a device: operations on ranges of memory that is handed over.
//!
//! Input: operations that name ranges by number and offset. Output: descriptors whose addresses lie in the memory of the work,
//! which [`WorkMemory`](crate::work_memory::WorkMemory) describes.

use super::descriptor::{DsaDescriptor, DsaFlags, DsaOpcode};
use crate::work_memory::{OperationError, WorkAccess, WorkAddresses, WorkPlace};

/// An operation of a device. Each range has `bytes` bytes, and lies in one consecutive piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsaOperation {
    /// Copies.
    Move {
        /// The source.
        from: WorkPlace,
        /// The target.
        to: WorkPlace,
        /// The length.
        bytes: u32,
    },
    /// Copies and computes the CRC-32C.
    MoveCrc {
        /// The source.
        from: WorkPlace,
        /// The target.
        to: WorkPlace,
        /// The length.
        bytes: u32,
        /// The CRC of the bytes before.
        seed: u32,
    },
    /// Copies to two places, whose addresses are alike in their low 12 bits.
    Dualcast {
        /// The source.
        from: WorkPlace,
        /// The targets.
        to: [WorkPlace; 2],
        /// The length.
        bytes: u32,
    },
    /// Fills with one value.
    Fill {
        /// The target.
        to: WorkPlace,
        /// The length.
        bytes: u32,
        /// The value.
        value: u8,
    },
    /// Compares.
    Compare {
        /// The first range.
        one: WorkPlace,
        /// The second range.
        other: WorkPlace,
        /// The length.
        bytes: u32,
    },
    /// Computes the CRC-32C.
    Crc {
        /// The range.
        of: WorkPlace,
        /// The length.
        bytes: u32,
        /// The CRC of the bytes before.
        seed: u32,
    },
    /// Writes cache lines back to memory.
    Flush {
        /// The range.
        of: WorkPlace,
        /// The length.
        bytes: u32,
    },
}

impl DsaOperation {
    /// Returns its opcode.
    #[must_use]
    pub const fn opcode(&self) -> DsaOpcode {
        match self {
            Self::Move { .. } => DsaOpcode::MemoryMove,
            Self::MoveCrc { .. } => DsaOpcode::CopyCrc,
            Self::Dualcast { .. } => DsaOpcode::Dualcast,
            Self::Fill { .. } => DsaOpcode::Fill,
            Self::Compare { .. } => DsaOpcode::Compare,
            Self::Crc { .. } => DsaOpcode::CrcGeneration,
            Self::Flush { .. } => DsaOpcode::CacheFlush,
        }
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Move { bytes, .. }
            | Self::MoveCrc { bytes, .. }
            | Self::Dualcast { bytes, .. }
            | Self::Fill { bytes, .. }
            | Self::Compare { bytes, .. }
            | Self::Crc { bytes, .. }
            | Self::Flush { bytes, .. } => *bytes,
        }
    }
}

/// The order of an operation among those that are submitted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationFence {
    /// It may run before, beside and behind any other one.
    Unordered,
    /// It begins when all before it have ended; if one of them failed, it and all behind it are not begun.
    AfterEarlier,
}

/// The place that the written bytes go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheTarget {
    /// The last-level cache.
    Cache,
    /// Memory.
    Memory,
    /// Memory, from where the device reads them back before the operation has ended, if it is a copy or a fill: the bytes have
    /// arrived then. For a queue that [can](super::QueueLimits::can_read_back).
    MemoryReadBack,
}

/// An operation, and how it is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedOperation {
    /// The operation.
    pub operation: DsaOperation,
    /// Its order.
    pub fence: OperationFence,
    /// The place of the written bytes.
    pub cache: CacheTarget,
}

/// Returns the descriptor of an operation, without its record. `nth` is its number, for errors.
pub(super) fn descriptor_of(
    addresses: &WorkAddresses,
    nth: usize,
    queued: &QueuedOperation,
) -> Result<DsaDescriptor, OperationError> {
    let bytes = queued.operation.bytes();
    let read = |place| addresses.address(nth, place, bytes, WorkAccess::Read);
    let write = |place| addresses.address(nth, place, bytes, WorkAccess::Write);
    let descriptor = match queued.operation {
        DsaOperation::Move { from, to, .. } => DsaDescriptor::memory_move(read(from)?, write(to)?, bytes),
        DsaOperation::MoveCrc { from, to, seed, .. } => {
            DsaDescriptor::copy_crc(read(from)?, write(to)?, bytes, seed)
        }
        DsaOperation::Dualcast { from, to: [first, second], .. } => {
            DsaDescriptor::dualcast(read(from)?, [write(first)?, write(second)?], bytes)
        }
        DsaOperation::Fill { to, value, .. } => DsaDescriptor::fill(write(to)?, bytes, value),
        DsaOperation::Compare { one, other, .. } => DsaDescriptor::compare(read(one)?, read(other)?, bytes),
        DsaOperation::Crc { of, seed, .. } => DsaDescriptor::crc(read(of)?, bytes, seed),
        DsaOperation::Flush { of, .. } => DsaDescriptor::cache_flush(read(of)?, bytes),
    };
    let fence = match queued.fence {
        OperationFence::AfterEarlier => DsaFlags::FENCE,
        OperationFence::Unordered => DsaFlags::NONE,
    };
    let writes = !matches!(
        queued.operation,
        DsaOperation::Compare { .. } | DsaOperation::Crc { .. } | DsaOperation::Flush { .. }
    );
    let cache = match queued.cache {
        CacheTarget::Cache if writes => DsaFlags::CACHE_CONTROL,
        CacheTarget::MemoryReadBack
            if DsaFlags::DESTINATION_READBACK.is_allowed_for(queued.operation.opcode()) =>
        {
            DsaFlags::DESTINATION_READBACK
        }
        CacheTarget::Cache | CacheTarget::Memory | CacheTarget::MemoryReadBack => DsaFlags::NONE,
    };
    Ok(descriptor.with_flags(fence.with(cache)))
}
