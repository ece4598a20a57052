//! Work for a device: memory that is handed over, and operations on ranges of it.
//!
//! Input: a value that owns memory, and operations that name ranges by number and offset. Output: descriptors whose addresses
//! lie in that memory. Invariant: a range is checked before its address is taken, and nothing but the device accesses the
//! memory from then on, because its owner is not touched until the device is done.

use super::descriptor::{DsaDescriptor, DsaFlags, DsaOpcode};
use crate::shared_memory::SharedMemory;

/// The bytes of a memory from some offset on, as far as they are consecutive.
#[derive(Debug)]
pub enum WorkBytes<'a> {
    /// Bytes that only the owner of the work can access.
    Writable(&'a mut [u8]),
    /// Bytes that are only read.
    ReadOnly(&'a [u8]),
    /// Bytes that other processes may access too, from an offset of the region on.
    Shared {
        /// The region.
        region: &'a SharedMemory,
        /// The offset of the first byte.
        offset: usize,
        /// The number of bytes.
        bytes: usize,
    },
}

/// A value that owns the memories of some work.
pub trait WorkMemory: Send + 'static {
    /// Returns the bytes of a memory from an offset on, as far as they are consecutive; `None` if there are none that a device
    /// can access.
    fn piece(&mut self, memory: usize, offset: usize) -> Option<WorkBytes<'_>>;
}

/// A byte in a memory of some work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkPlace {
    /// The number of the memory.
    pub memory: usize,
    /// The offset in it, in bytes.
    pub offset: usize,
}

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

/// An operation that the memory does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "operation {operation} names {bytes} bytes of memory {memory} at offset {offset}, which a device cannot access so"
)]
pub struct OperationError {
    /// The operation, counted from 0.
    pub operation: usize,
    /// The memory.
    pub memory: usize,
    /// The offset.
    pub offset: usize,
    /// The length.
    pub bytes: u32,
}

/// The access of a device to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkAccess {
    Read,
    Write,
}

/// Addresses of ranges of some work, and what keeps them valid beside the work itself.
pub(super) struct AddressedWork<'a, W> {
    pub(super) work: &'a mut W,
    /// Handles to shared regions, so that they stay mapped whatever the work does with its own.
    pub(super) kept: &'a mut Vec<SharedMemory>,
    /// The number of the operation, for errors.
    pub(super) operation: usize,
}

impl<W: WorkMemory> AddressedWork<'_, W> {
    /// Returns the descriptor of an operation, without its record.
    pub(super) fn descriptor(&mut self, queued: &QueuedOperation) -> Result<DsaDescriptor, OperationError> {
        use WorkAccess::{Read, Write};
        let bytes = queued.operation.bytes();
        let descriptor = match queued.operation {
            DsaOperation::Move { from, to, .. } => DsaDescriptor::memory_move(
                self.address(from, bytes, Read)?,
                self.address(to, bytes, Write)?,
                bytes,
            ),
            DsaOperation::MoveCrc { from, to, seed, .. } => {
                let (from, to) = (self.address(from, bytes, Read)?, self.address(to, bytes, Write)?);
                DsaDescriptor::copy_crc(from, to, bytes, seed)
            }
            DsaOperation::Dualcast { from, to: [first, second], .. } => {
                let to = [self.address(first, bytes, Write)?, self.address(second, bytes, Write)?];
                DsaDescriptor::dualcast(self.address(from, bytes, Read)?, to, bytes)
            }
            DsaOperation::Fill { to, value, .. } => {
                DsaDescriptor::fill(self.address(to, bytes, Write)?, bytes, value)
            }
            DsaOperation::Compare { one, other, .. } => DsaDescriptor::compare(
                self.address(one, bytes, Read)?,
                self.address(other, bytes, Read)?,
                bytes,
            ),
            DsaOperation::Crc { of, seed, .. } => {
                DsaDescriptor::crc(self.address(of, bytes, Read)?, bytes, seed)
            }
            DsaOperation::Flush { of, .. } => {
                DsaDescriptor::cache_flush(self.address(of, bytes, Read)?, bytes)
            }
        };
        let fence =
            if queued.fence == OperationFence::AfterEarlier { DsaFlags::FENCE } else { DsaFlags::NONE };
        let has_target = DsaFlags::CACHE_CONTROL.is_allowed_for(queued.operation.opcode());
        let cache = if queued.cache == CacheTarget::Cache
            && has_target
            && !matches!(queued.operation, DsaOperation::Flush { .. })
        {
            DsaFlags::CACHE_CONTROL
        } else {
            DsaFlags::NONE
        };
        Ok(descriptor.with_flags(fence.with(cache)))
    }

    /// Returns the address of a range.
    fn address(&mut self, place: WorkPlace, bytes: u32, access: WorkAccess) -> Result<u64, OperationError> {
        let WorkPlace { memory, offset } = place;
        let refused = OperationError { operation: self.operation, memory, offset, bytes };
        let wanted = usize::try_from(bytes).map_err(|_| refused)?;
        let (address, found) = match self.work.piece(memory, offset).ok_or(refused)? {
            WorkBytes::Writable(piece) => (piece.as_mut_ptr().expose_provenance(), piece.len()),
            WorkBytes::ReadOnly(_) if access == WorkAccess::Write => return Err(refused),
            WorkBytes::ReadOnly(piece) => (piece.as_ptr().expose_provenance(), piece.len()),
            WorkBytes::Shared { region, offset, bytes } => {
                let inside = offset.checked_add(bytes).is_some_and(|end| end <= region.bytes());
                if !inside {
                    return Err(refused);
                }
                if !self.kept.iter().any(|kept| kept.is_same(region)) {
                    self.kept.push(region.clone());
                }
                (region.address() + offset, bytes)
            }
        };
        if wanted > found || wanted == 0 {
            return Err(refused);
        }
        Ok(address as u64)
    }
}
