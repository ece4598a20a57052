//! The memories of a move job as C names them: the program's own, and buffers of a device.
//!
//! Input: addresses and lengths. Output: what a step may name, and memories for the mover. Invariant: no two memories of a
//! job have a common byte, unless the job only reads both.

use crate::call_error::CallError;
use crate::move_error::MoveCallError;
use headwater::Buffer;
use headwater_dma::mover::MoveMemory;
use headwater_host::lent_bytes::LentBytes;
use std::ptr;

/// The job reads the memory.
pub const HW_MOVE_READ: u32 = 0;
/// The job reads and writes the memory.
pub const HW_MOVE_WRITE: u32 = 1;

/// The use that a job may make of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    Read,
    ReadAndWrite,
}

impl MemoryUse {
    /// Reads one of the HW_MOVE_ constants of a memory.
    pub(crate) fn of(access: u32) -> Result<Self, CallError> {
        match access {
            HW_MOVE_READ => Ok(Self::Read),
            HW_MOVE_WRITE => Ok(Self::ReadAndWrite),
            _ => Err(CallError::InvalidValue {
                field: "access",
                value: access.into(),
                choice: "HW_MOVE_READ or HW_MOVE_WRITE",
            }),
        }
    }
}

/// The owner of the bytes of a memory.
#[derive(Debug)]
enum MemoryOwner {
    Program,
    /// The handle keeps the bytes as long as the job has the memory.
    Device(Buffer),
}

/// A memory of a job.
#[derive(Debug)]
pub(crate) struct JobMemory {
    owner: MemoryOwner,
    address: usize,
    bytes: usize,
    allowed: MemoryUse,
}

impl JobMemory {
    /// Names memory of the program.
    ///
    /// # Safety
    /// As for [`LentBytes::to_read`], or [`LentBytes::to_write`] with the access to write, whenever a job that has the
    /// memory runs.
    pub(crate) unsafe fn of_program(
        start: *const u8,
        bytes: usize,
        allowed: MemoryUse,
    ) -> Result<Self, MoveCallError> {
        let address = start.expose_provenance();
        if bytes == 0 {
            return Err(MoveCallError::EmptyMemory);
        }
        if isize::try_from(bytes).is_err() || address.checked_add(bytes).is_none() {
            return Err(MoveCallError::MemoryOverflow { address, bytes });
        }
        Ok(Self { owner: MemoryOwner::Program, address, bytes, allowed })
    }

    /// Names a buffer of a device, or a part of one.
    pub(crate) fn of_device(buffer: Buffer, allowed: MemoryUse) -> Result<Self, MoveCallError> {
        let (address, bytes) = (buffer.process_address(), buffer.bytes());
        if bytes == 0 {
            return Err(MoveCallError::EmptyMemory);
        }
        Ok(Self { owner: MemoryOwner::Device(buffer), address, bytes, allowed })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.allowed == MemoryUse::ReadAndWrite
    }

    /// Returns the offset of its first byte in the memory that the mover gets.
    pub(crate) fn base(&self) -> usize {
        match &self.owner {
            MemoryOwner::Program => 0,
            MemoryOwner::Device(buffer) => buffer.memory().1,
        }
    }

    /// Returns true if both have a common byte, which the job may write by one of them.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let meet = self.address < other.address + other.bytes && other.address < self.address + self.bytes;
        meet && (self.is_writable() || other.is_writable())
    }

    /// Returns the memory for a run of the job.
    pub(crate) fn lend(&self) -> MoveMemory {
        match &self.owner {
            MemoryOwner::Device(buffer) => MoveMemory::Shared(buffer.memory().0.clone()),
            MemoryOwner::Program if self.is_writable() => {
                let start = ptr::with_exposed_provenance_mut(self.address);
                // SAFETY: the promise of the caller of `of_program`, which holds while the job runs; the value is dropped
                // when the job returns. No second memory of the job has a byte of it.
                MoveMemory::Lent(unsafe { LentBytes::to_write(start, self.bytes) })
            }
            MemoryOwner::Program => {
                let start = ptr::with_exposed_provenance(self.address);
                // SAFETY: the promise of the caller of `of_program`, which holds while the job runs; the value is dropped
                // when the job returns. Memories of the job that have a byte of it are only read too.
                MoveMemory::Lent(unsafe { LentBytes::to_read(start, self.bytes) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(of: &[u8], from: usize, bytes: usize, allowed: MemoryUse) -> JobMemory {
        // SAFETY: the memory is never lent.
        unsafe { JobMemory::of_program(of[from..].as_ptr(), bytes, allowed) }.unwrap()
    }

    #[test]
    fn memories_conflict_where_a_common_byte_is_written() {
        let bytes = [0; 64];
        for (from, length, meets) in
            [(0, 16, false), (0, 17, true), (31, 1, true), (32, 8, false), (20, 2, true)]
        {
            for (first, second) in [
                (MemoryUse::Read, MemoryUse::Read),
                (MemoryUse::Read, MemoryUse::ReadAndWrite),
                (MemoryUse::ReadAndWrite, MemoryUse::Read),
                (MemoryUse::ReadAndWrite, MemoryUse::ReadAndWrite),
            ] {
                let (one, two) = (part(&bytes, 16, 16, first), part(&bytes, from, length, second));
                let is_written = first != MemoryUse::Read || second != MemoryUse::Read;
                assert_eq!(
                    one.conflicts_with(&two),
                    meets && is_written,
                    "{from} {length} {first:?} {second:?}"
                );
                assert_eq!(
                    two.conflicts_with(&one),
                    meets && is_written,
                    "{from} {length} {first:?} {second:?}"
                );
            }
        }
    }

    #[test]
    fn empty_memory_and_memory_beyond_the_address_space_are_refused() {
        let named = |address: usize, bytes| {
            // SAFETY: the memory is never lent.
            unsafe { JobMemory::of_program(ptr::without_provenance(address), bytes, MemoryUse::Read) }
        };
        assert!(matches!(named(4_096, 0), Err(MoveCallError::EmptyMemory)));
        for (address, bytes) in [(usize::MAX, 1), (usize::MAX - 9, 11), (8, isize::MAX.unsigned_abs() + 1)] {
            let refused = named(address, bytes);
            assert!(matches!(refused, Err(MoveCallError::MemoryOverflow { .. })), "{address:#x} {bytes}");
        }
        assert!(named(8, isize::MAX.unsigned_abs()).is_ok() && named(usize::MAX - 9, 9).is_ok());
    }
}
