//! Pinning: memory that the kernel must not take away or move, because a device or the kernel works on it.
//!
//! Input: [`MemoryRange`] that is mapped. Output: pages that stay resident ([`lock`]), that a ring addresses by slot
//! ([`uring`]), that a device accesses at I/O virtual addresses ([`vfio`]), and the limit of a process
//! ([`MemlockBudget`]). Invariant: pinning changes where pages may move, never who may access them: bytes that a device
//! works on are in a [`LentSpan`](crate::reservation::LentSpan) or borrowed for that time.
//!
//! # What this does not do
//! Locked pages stay resident, which avoids faults; the kernel may still move them, so their physical address must not
//! be given to a device.

pub mod per_request;
pub mod uring;
pub mod vfio;

mod budget;

pub use budget::{MemlockBudget, OverBudget};

use rustix::io::Errno;
use std::fmt;

/// The address and length of a range of mapped memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryRange {
    address: usize,
    bytes: usize,
}

impl MemoryRange {
    pub(crate) fn new(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Describes any range. Every operation on it is harmless if the range is not mapped; code that lets a device write
    /// to it must make sure that the memory is lent to the device.
    #[must_use]
    pub fn at(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Describes the caller's bytes. They must stay borrowed as long as a device may access them through this.
    #[must_use]
    pub fn of(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_ptr().addr(), bytes: bytes.len() }
    }

    /// Returns the first address in this process.
    #[must_use]
    pub fn address(self) -> usize {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// The cause of a failed pin call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinCause {
    /// The process lacks permission (EPERM).
    NotPermitted,
    /// The limit on locked memory is reached, or there is no memory (ENOMEM, EDQUOT).
    OverLimit,
    /// Some pages are not available now (EAGAIN).
    Busy,
    /// The range is not mapped, or its pages cannot be pinned (EFAULT).
    NotMapped,
    /// The address is mapped already (EEXIST).
    Exists,
    /// The container has reached its limit of mappings (ENOSPC).
    TooMany,
    /// Every slot of the table is taken (ENFILE).
    TableFull,
    /// The range exceeds the limit of one registration (EOVERFLOW).
    TooLong,
    /// No I/O virtual address is free for such a long range (EADDRNOTAVAIL).
    NoAddress,
    /// The range is empty, does not consist of whole pages, or is invalid otherwise (EINVAL).
    Unaligned,
    /// The kernel or its filter of system calls does not support the call (ENOSYS, ENOTTY, EOPNOTSUPP).
    Unsupported,
    /// Any other error.
    Other,
}

/// An error of pinning or unpinning pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} of {bytes} bytes failed (error {errno}): {cause}")]
pub struct PinError {
    /// The system call.
    pub call: &'static str,
    /// The length of the memory.
    pub bytes: usize,
    /// The cause.
    pub cause: PinCause,
    /// The kernel's error number.
    pub errno: i32,
}

impl PinError {
    pub(crate) fn new(call: &'static str, bytes: usize, errno: i32) -> Self {
        let cause = match Errno::from_raw_os_error(errno) {
            Errno::PERM | Errno::ACCESS => PinCause::NotPermitted,
            Errno::NOMEM | Errno::DQUOT => PinCause::OverLimit,
            Errno::AGAIN | Errno::BUSY => PinCause::Busy,
            Errno::FAULT => PinCause::NotMapped,
            Errno::EXIST => PinCause::Exists,
            Errno::NOSPC => PinCause::TooMany,
            Errno::NFILE => PinCause::TableFull,
            Errno::OVERFLOW => PinCause::TooLong,
            Errno::ADDRNOTAVAIL => PinCause::NoAddress,
            Errno::INVAL => PinCause::Unaligned,
            Errno::NOSYS | Errno::NOTTY | Errno::OPNOTSUPP | Errno::NXIO => PinCause::Unsupported,
            _ => PinCause::Other,
        };
        Self { call, bytes, cause, errno }
    }
}

impl fmt::Display for PinCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => {
                "give the process CAP_IPC_LOCK or a limit on locked memory above 0 (ulimit -l)"
            }
            Self::OverLimit => "raise the limit on locked memory (ulimit -l, LimitMEMLOCK=), or pin less",
            Self::Busy => "some pages are not available now: try again, or free memory",
            Self::NotMapped => "the range is not mapped, or lies in a file whose pages cannot be pinned",
            Self::Exists => "the address is mapped already: mapping state inconsistent, abort",
            Self::TooMany => {
                "too many mappings: pin longer ranges, or raise dma_entry_limit of vfio_iommu_type1"
            }
            Self::TableFull => {
                "every slot of the table is taken: open it with more, or register longer ranges"
            }
            Self::TooLong => "one registration takes at most 1 GiB: register shorter ranges",
            Self::NoAddress => "the device's addresses are used up: unmap something, or map shorter ranges",
            Self::Unaligned => "invalid argument: use a range of whole pages that is not empty",
            Self::Unsupported => "the kernel does not support it: choose another way to pin",
            Self::Other => "see the error number",
        })
    }
}

/// Locks pages in memory, faulting in those that are not present.
///
/// # Errors
/// [`PinError`] names the remedy; pages before the one that failed may be locked, which [`unlock`] undoes.
pub fn lock(memory: MemoryRange) -> Result<(), PinError> {
    let place = std::ptr::without_provenance_mut(memory.address);
    // SAFETY: the kernel reads and writes no byte for this call; an address of other memory is an error or harmless.
    let locked = unsafe { rustix::mm::mlock(place, memory.bytes) };
    locked.map_err(|errno| PinError::new("mlock", memory.bytes, errno.raw_os_error()))
}

/// Unlocks pages. Locks do not count: one call undoes any number.
///
/// # Errors
/// [`PinError`] if the range is not mapped.
pub fn unlock(memory: MemoryRange) -> Result<(), PinError> {
    let place = std::ptr::without_provenance_mut(memory.address);
    // SAFETY: as for `lock`: the contents of the pages do not change.
    let unlocked = unsafe { rustix::mm::munlock(place, memory.bytes) };
    unlocked.map_err(|errno| PinError::new("munlock", memory.bytes, errno.raw_os_error()))
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
mod tests {
    use super::*;
    use crate::reservation::{Backing, BackingOrder, PageRun, Reservation};

    #[test]
    fn locked_pages_are_counted_and_can_be_decommitted() {
        let run = PageRun { first: 0, pages: 64 };
        let mut reservation = Reservation::new(run.bytes()).unwrap();
        reservation.commit(run, BackingOrder::only(Backing::Small)).unwrap();
        let memory = reservation.memory(run).unwrap();
        if let Err(error) = lock(memory) {
            return eprintln!("skipped: {error}");
        }
        assert!(MemlockBudget::read().locked_bytes >= run.bytes() as u64);
        reservation.decommit(run).unwrap();
        let error = lock(memory).unwrap_err();
        assert_eq!((error.call, error.bytes), ("mlock", run.bytes()));
        reservation.commit(run, BackingOrder::TRANSPARENT).unwrap();
        lock(memory).unwrap();
        unlock(memory).unwrap();
    }

    #[test]
    fn pin_errors_have_distinct_causes_and_name_the_remedy() {
        let cause = |errno| PinError::new("mlock", 4_096, errno).cause;
        assert_eq!(cause(libc::EPERM), PinCause::NotPermitted);
        assert_eq!(cause(libc::ENOMEM), PinCause::OverLimit);
        assert_eq!(cause(libc::EAGAIN), PinCause::Busy);
        assert_eq!(cause(libc::EEXIST), PinCause::Exists);
        assert_eq!(cause(libc::ENOSPC), PinCause::TooMany);
        assert_eq!(cause(libc::ENOSYS), PinCause::Unsupported);
        assert_eq!(cause(libc::EIO), PinCause::Other);
        let text = PinError::new("mlock", 4_096, libc::ENOMEM).to_string();
        assert!(text.contains("4096") && text.contains("ulimit -l"), "{text}");
    }
}
