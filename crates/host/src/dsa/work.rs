//! Work for a device: memory that is handed over, and operations on ranges of it.
//!
//! Input: a value that owns memory, and operations that name ranges by number and offset. Output: descriptors whose addresses
//! lie in that memory. Invariant: a range is checked before its address is taken, and nothing but the device accesses the
//! memory from then on, because its owner is not touched until the device is done.

use super::descriptor::{DsaDescriptor, DsaFlags, DsaOpcode};
use crate::shared_memory::SharedMemory;

/// Consecutive bytes of a memory.
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
///
/// It shows all of them in one borrow, so that all exist at once; and it is not touched from the end of that borrow until the
/// device is done. So each of them stays where it is as long as the device has its address.
pub trait WorkMemory: Send + 'static {
    /// Calls `each` with every consecutive piece of its memories, and the place of its first byte. What it leaves out, a device
    /// cannot access.
    fn for_each_piece<'a>(&'a mut self, each: &mut dyn FnMut(WorkPlace, WorkBytes<'a>));
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

/// A piece of a memory, as a device sees it.
#[derive(Clone, Copy, Debug)]
struct AddressedPiece {
    place: WorkPlace,
    address: usize,
    bytes: usize,
    is_writable: bool,
}

/// The addresses of all memories of some work.
#[derive(Debug, Default)]
pub(super) struct WorkAddresses {
    /// By memory and offset.
    pieces: Vec<AddressedPiece>,
    /// Handles to the shared regions, so that they stay mapped whatever the work does with its own.
    kept: Vec<SharedMemory>,
}

impl WorkAddresses {
    /// Takes the addresses of the memories.
    pub(super) fn of<W: WorkMemory>(work: &mut W) -> Self {
        let mut addresses = Self::default();
        work.for_each_piece(&mut |place, bytes| addresses.add(place, bytes));
        addresses.pieces.sort_unstable_by_key(|piece| (piece.place.memory, piece.place.offset));
        addresses
    }

    fn add(&mut self, place: WorkPlace, bytes: WorkBytes<'_>) {
        let (address, bytes, is_writable) = match bytes {
            WorkBytes::Writable(bytes) => (bytes.as_mut_ptr().expose_provenance(), bytes.len(), true),
            WorkBytes::ReadOnly(bytes) => (bytes.as_ptr().expose_provenance(), bytes.len(), false),
            WorkBytes::Shared { region, offset, bytes } => {
                let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= region.bytes());
                if !is_inside {
                    return;
                }
                if !self.kept.iter().any(|kept| kept.is_same(region)) {
                    self.kept.push(region.clone());
                }
                (region.address() + offset, bytes, true)
            }
        };
        self.pieces.push(AddressedPiece { place, address, bytes, is_writable });
    }

    /// Returns the handles that keep shared regions mapped.
    pub(super) fn into_kept(self) -> Vec<SharedMemory> {
        self.kept
    }

    /// Returns the descriptor of an operation, without its record. `nth` is its number, for errors.
    pub(super) fn descriptor(
        &self,
        nth: usize,
        queued: &QueuedOperation,
    ) -> Result<DsaDescriptor, OperationError> {
        let bytes = queued.operation.bytes();
        let read = |place| self.address(nth, place, bytes, WorkAccess::Read);
        let write = |place| self.address(nth, place, bytes, WorkAccess::Write);
        let descriptor = match queued.operation {
            DsaOperation::Move { from, to, .. } => DsaDescriptor::memory_move(read(from)?, write(to)?, bytes),
            DsaOperation::MoveCrc { from, to, seed, .. } => {
                DsaDescriptor::copy_crc(read(from)?, write(to)?, bytes, seed)
            }
            DsaOperation::Dualcast { from, to: [first, second], .. } => {
                DsaDescriptor::dualcast(read(from)?, [write(first)?, write(second)?], bytes)
            }
            DsaOperation::Fill { to, value, .. } => DsaDescriptor::fill(write(to)?, bytes, value),
            DsaOperation::Compare { one, other, .. } => {
                DsaDescriptor::compare(read(one)?, read(other)?, bytes)
            }
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
            CacheTarget::Cache | CacheTarget::Memory => DsaFlags::NONE,
        };
        Ok(descriptor.with_flags(fence.with(cache)))
    }

    /// Returns the address of a range, which lies in one piece.
    fn address(
        &self,
        operation: usize,
        WorkPlace { memory, offset }: WorkPlace,
        bytes: u32,
        access: WorkAccess,
    ) -> Result<u64, OperationError> {
        let refused = OperationError { operation, memory, offset, bytes };
        let behind =
            self.pieces.partition_point(|piece| (piece.place.memory, piece.place.offset) <= (memory, offset));
        let piece = behind.checked_sub(1).and_then(|at| self.pieces.get(at)).ok_or(refused)?;
        let skip = offset - piece.place.offset;
        let wanted = usize::try_from(bytes).map_err(|_| refused)?;
        let is_inside =
            piece.place.memory == memory && wanted > 0 && skip <= piece.bytes && wanted <= piece.bytes - skip;
        let is_allowed = access == WorkAccess::Read || piece.is_writable;
        if is_inside && is_allowed { Ok((piece.address + skip) as u64) } else { Err(refused) }
    }
}
