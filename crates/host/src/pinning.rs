//! Pinning: memory that the kernel must not take away or move, because somebody beside the CPU works on it.
//!
//! In: [`Memory`] that is mapped. Out: pages that stay ([`lock`]), that a ring knows by number ([`uring`]), that a device
//! finds at addresses of its own ([`vfio`]), and what a process may lock at all ([`MemlockBudget`]). Invariant: pinning changes where memory may go, never who may touch it: bytes that a device works
//! on are in a [`LentSpan`](crate::reservation::LentSpan) or borrowed meanwhile.
//!
//! # What this does not do
//! Locked pages stay in memory, which spares faults; the kernel may still move them, so their physical place is no
//! address to give to a device.

pub mod per_request;
pub mod uring;
pub mod vfio;

mod budget;

pub use budget::{MemlockBudget, OverBudget};

use rustix::io::Errno;
use std::fmt;

/// A range of mapped memory of ours, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory {
    address: usize,
    bytes: usize,
}

impl Memory {
    pub(crate) fn new(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// A range that somebody else describes. Everything that is done with it is harmless to memory that is not mapped, and
    /// whoever lets a device write to memory that is answers for it being lent.
    #[must_use]
    pub fn at(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// The caller's own bytes. As long as a device may reach them by this, they have to stay borrowed.
    #[must_use]
    pub fn of(bytes: &mut [u8]) -> Self {
        Self { address: bytes.as_ptr().addr(), bytes: bytes.len() }
    }

    /// Where it starts in this process.
    #[must_use]
    pub fn address(self) -> usize {
        self.address
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bytes
    }
}

/// What stands behind a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinCause {
    /// The process may not (EPERM).
    NotPermitted,
    /// The limit on locked memory is reached, or there is no memory (ENOMEM, EDQUOT).
    OverLimit,
    /// Some pages could not be had now (EAGAIN).
    Busy,
    /// The range is not mapped, or its pages cannot be pinned (EFAULT).
    NotMapped,
    /// Something is mapped there already (EEXIST).
    Exists,
    /// As many mappings stand as one container takes (ENOSPC).
    TooMany,
    /// Every number of the table is taken (ENFILE).
    TableFull,
    /// The range is longer than one registration takes (EOVERFLOW).
    TooLong,
    /// No address of the device's is free for so long a range (EADDRNOTAVAIL).
    NoAddress,
    /// The kernel takes no such range (EINVAL).
    Unaligned,
    /// The kernel or its filter of system calls does not know the call (ENOSYS, ENOTTY, EOPNOTSUPP).
    Unsupported,
    /// Something else.
    Other,
}

/// Pages could not be pinned or let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} of {bytes} bytes failed (error {errno}): {cause}")]
pub struct PinError {
    /// What was asked of the kernel.
    pub call: &'static str,
    /// For how much memory.
    pub bytes: usize,
    /// What it amounts to.
    pub cause: PinCause,
    /// The kernel's number.
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
            Self::Busy => "some pages could not be had now: try again, or free memory",
            Self::NotMapped => "the range is not mapped, or lies in a file whose pages cannot be pinned",
            Self::Exists => {
                "something is mapped there already: the books do not agree with the kernel's, stop"
            }
            Self::TooMany => {
                "too many mappings: pin longer ranges, or raise dma_entry_limit of vfio_iommu_type1"
            }
            Self::TableFull => {
                "every number of the table is taken: open it with more, or register longer ranges"
            }
            Self::TooLong => "one registration takes at most 1 GiB: register shorter ranges",
            Self::NoAddress => "the device's addresses are used up: unmap something, or map shorter ranges",
            Self::Unaligned => "the range is not made of pages that the kernel takes here",
            Self::Unsupported => "the kernel does not offer it: choose another way to pin",
            Self::Other => "see the error number",
        })
    }
}

/// Keeps pages in memory, bringing in those that are not there.
///
/// # Errors
/// [`PinError`] says what to change; pages before the one that failed may be locked, which [`unlock`] undoes.
pub fn lock(memory: Memory) -> Result<(), PinError> {
    let place = std::ptr::without_provenance_mut(memory.address);
    // SAFETY: the kernel reads and writes no byte on our behalf; an address that is not ours is an error or harmless.
    let locked = unsafe { rustix::mm::mlock(place, memory.bytes) };
    locked.map_err(|errno| PinError::new("mlock", memory.bytes, errno.raw_os_error()))
}

/// Lets the kernel take pages away again. Locks do not count: one call undoes any number.
///
/// # Errors
/// [`PinError`] if the range is not mapped.
pub fn unlock(memory: Memory) -> Result<(), PinError> {
    let place = std::ptr::without_provenance_mut(memory.address);
    // SAFETY: as for `lock`: nothing that the pages hold changes.
    let unlocked = unsafe { rustix::mm::munlock(place, memory.bytes) };
    unlocked.map_err(|errno| PinError::new("munlock", memory.bytes, errno.raw_os_error()))
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a test that cannot run here says why")]
mod tests {
    use super::*;
    use crate::reservation::{Backing, PageRun, Reservation, Wish};

    #[test]
    fn locked_pages_are_counted_and_can_still_be_taken_away() {
        let run = PageRun { first: 0, pages: 64 };
        let mut reservation = Reservation::new(run.bytes()).unwrap();
        reservation.commit(run, Wish::only(Backing::Small)).unwrap();
        let memory = reservation.memory(run).unwrap();
        if let Err(error) = lock(memory) {
            return eprintln!("skipped: {error}");
        }
        assert!(MemlockBudget::read().locked_bytes >= run.bytes() as u64);
        reservation.decommit(run).unwrap();
        let error = lock(memory).unwrap_err();
        assert_eq!((error.call, error.bytes), ("mlock", run.bytes()));
        reservation.commit(run, Wish::TRANSPARENT).unwrap();
        lock(memory).unwrap();
        unlock(memory).unwrap();
    }

    #[test]
    fn refusals_are_told_apart_and_say_what_to_do() {
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
