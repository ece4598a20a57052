//! Memory that is handed to a device: ranges are checked before their addresses are taken.
//!
//! Input: a value that owns memory, and ranges by number and offset. Output: addresses that lie in that memory. Invariant: a range
//! is checked before its address is taken, and nothing but the device accesses the memory from then on, because its owner is
//! not touched until the device is done.

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
pub(crate) enum WorkAccess {
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
pub(crate) struct WorkAddresses {
    /// By memory and offset.
    pieces: Vec<AddressedPiece>,
    /// Handles to the shared regions, so that they stay mapped whatever the work does with its own.
    kept: Vec<SharedMemory>,
}

impl WorkAddresses {
    /// Takes the addresses of the memories.
    pub(crate) fn of<W: WorkMemory>(work: &mut W) -> Self {
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
    pub(crate) fn into_kept(self) -> Vec<SharedMemory> {
        self.kept
    }

    /// Returns the address of a range, which lies in one piece.
    pub(crate) fn address(
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
