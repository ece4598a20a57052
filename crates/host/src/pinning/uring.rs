//! Registered buffers of a ring: memory that io_uring has pinned and addresses by slot number.
//!
//! Input: ranges of mapped memory. Output: slots for [`FixedBuffer`](crate::uring::FixedBuffer) transfers. Invariant:
//! a slot is free or has one range, the same in this table and in the kernel's, except where the kernel has refused to
//! empty a slot.
//!
//! A range that is unregistered while a transfer on it is in flight stays pinned until that completes: the kernel
//! counts references.
//!
//! # What this does not do
//! It does not keep memory mapped. A slot whose memory was unmapped still names the old pages, which the kernel does
//! not reuse; unregister first.

mod registration;

#[cfg(test)]
mod tests;

pub(crate) use registration::{RegistrationBudget, SlotRegistration, process_registered_bytes};

use super::{MemoryRange, PinError};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::width::narrow;
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;

/// The maximum slots of one table (IORING_MAX_REG_BUFFERS).
pub const SLOTS_MAX: u32 = 1 << 14;
/// The maximum bytes of one slot.
pub const REGISTRATION_BYTES_MAX: usize = 1 << 30;

const REGISTER: &str = "io_uring register buffers";
const UPDATE: &str = "io_uring update buffers";
/// Constants of `linux/io_uring.h`.
const IORING_REGISTER_BUFFERS2: libc::c_uint = 15;
const IORING_REGISTER_BUFFERS_UPDATE: libc::c_uint = 16;
const IORING_RSRC_REGISTER_SPARSE: u32 = 1;

/// `struct io_uring_rsrc_register`.
#[repr(C)]
struct RegisterCall {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct UpdateCall {
    first: u32,
    reserved: u32,
    data: u64,
    tags: u64,
    count: u32,
    reserved_too: u32,
}

/// `struct iovec`, as numbers. All zero is an empty slot.
#[derive(Clone, Copy)]
#[repr(C)]
struct BufferVector {
    address: usize,
    bytes: usize,
}

const _: () = assert!(size_of::<RegisterCall>() == 32 && size_of::<UpdateCall>() == 32);
const _: () = assert!(size_of::<BufferVector>() == 2 * size_of::<usize>());

/// The table of one ring. Any thread may use it while the ring works.
pub struct BufferTable {
    /// A duplicate of the ring's descriptor, so that the ring outlives the table.
    ring: OwnedFd,
    slots: Mutex<Vec<Option<MemoryRange>>>,
    /// The number of changes of the slots, from 1.
    changes: AtomicU64,
}

impl BufferTable {
    /// Gives a ring a table of empty slots.
    pub(crate) fn open(ring: Option<BorrowedFd<'_>>, slots: u32) -> Result<Self, PinError> {
        let ring = ring.ok_or(PinError::new(REGISTER, 0, libc::ENOSYS))?;
        if slots == 0 || slots > SLOTS_MAX {
            return Err(PinError::new(REGISTER, 0, libc::EINVAL));
        }
        let copy = ring.try_clone_to_owned();
        let ring = copy.map_err(|error| PinError::new(REGISTER, 0, error.raw_os_error().unwrap_or(0)))?;
        let call =
            RegisterCall { count: slots, flags: IORING_RSRC_REGISTER_SPARSE, reserved: 0, data: 0, tags: 0 };
        // SAFETY: bounds, alignment and lifetime: the kernel reads one structure, whose length it is given, from this
        // stack. Aliasing: it writes nothing.
        let answer = unsafe { register(&ring, IORING_REGISTER_BUFFERS2, &call) };
        answer.map_err(|errno| PinError::new(REGISTER, 0, errno.raw_os_error()))?;
        Ok(Self { ring, slots: Mutex::new(vec![None; slots as usize]), changes: AtomicU64::new(1) })
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        narrow(self.locked().len())
    }

    /// Returns the number of free slots.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.locked().iter().filter(|slot| slot.is_none()).count()
    }

    /// Returns the memory of a slot.
    #[must_use]
    pub fn slot_memory(&self, slot: u32) -> Option<MemoryRange> {
        self.locked().get(slot as usize).copied().flatten()
    }

    /// Returns a counter that grows with every change of a slot, so that a copy of [`slot_contents`](Self::slot_contents) can be cached.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns the memory of every slot.
    pub(crate) fn slot_contents(&self) -> Vec<Option<MemoryRange>> {
        self.locked().clone()
    }

    /// Counts a change of the slots, which the caller has locked.
    fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns true if the bytes lie in the memory of a slot.
    pub(crate) fn covers(&self, slot: u32, address: usize, bytes: usize) -> bool {
        self.slot_memory(slot).is_some_and(|memory| {
            let offset = address.checked_sub(memory.address());
            let end = offset.and_then(|offset| offset.checked_add(bytes));
            bytes > 0 && end.is_some_and(|end| end <= memory.bytes())
        })
    }

    /// Pins ranges and registers them in consecutive slots. Returns the first slot.
    ///
    /// # Errors
    /// [`PinError`] names the remedy: no consecutive free slots, a range that is empty or longer than
    /// [`REGISTRATION_BYTES_MAX`], no memory that may be locked (ENOMEM, EPERM), or pages that cannot be pinned
    /// (EOPNOTSUPP, EFAULT). Nothing is registered then.
    pub fn register(&self, ranges: &[MemoryRange]) -> Result<u32, PinError> {
        let mut slots = self.locked();
        let full = PinError::new(UPDATE, total(ranges), libc::ENFILE);
        let first = find_free_slots(&slots, ranges.len()).ok_or(full)?;
        self.register_at(&mut slots, first, ranges)?;
        Ok(narrow(first))
    }

    /// Pins ranges and replaces the contents of the slots from `first` on.
    ///
    /// # Errors
    /// As for [`register`](Self::register), or there are not that many slots. The slots from `first` on are empty then,
    /// unless the ranges were refused before the system call.
    pub fn update(&self, first: u32, ranges: &[MemoryRange]) -> Result<(), PinError> {
        let mut slots = self.locked();
        let end = (first as usize).checked_add(ranges.len()).filter(|&end| end <= slots.len());
        if end.is_none() || ranges.is_empty() {
            return Err(PinError::new(UPDATE, total(ranges), libc::EINVAL));
        }
        self.register_at(&mut slots, first as usize, ranges)
    }

    /// Empties slots. Their memory is unpinned when the last transfer on it completes.
    ///
    /// # Errors
    /// There are no such slots, or the kernel refuses; then they count as taken for good.
    pub fn unregister(&self, numbers: Range<u32>) -> Result<(), PinError> {
        let mut slots = self.locked();
        let range = numbers.start as usize..numbers.end as usize;
        let Some(places) = slots.get_mut(range.clone()).filter(|places| !places.is_empty()) else {
            return Err(PinError::new(UPDATE, 0, libc::EINVAL));
        };
        let bytes = places.iter().flatten().map(|memory| memory.bytes()).sum();
        let empty = vec![BufferVector { address: 0, bytes: 0 }; places.len()];
        let done = self.update_slots(range.start, &empty);
        let all = done.is_ok_and(|done| done == empty.len());
        if all {
            places.fill(None);
            self.count_change();
            return Ok(());
        }
        let errno = done.err().unwrap_or(Errno::IO);
        Err(PinError::new(UPDATE, bytes, errno.raw_os_error()))
    }

    fn register_at(
        &self,
        slots: &mut [Option<MemoryRange>],
        first: usize,
        ranges: &[MemoryRange],
    ) -> Result<(), PinError> {
        for range in ranges {
            if range.bytes() == 0 {
                return Err(PinError::new(UPDATE, 0, libc::EINVAL));
            }
            if range.bytes() > REGISTRATION_BYTES_MAX {
                return Err(PinError::new(UPDATE, range.bytes(), libc::EOVERFLOW));
            }
        }
        let vector = |range: &MemoryRange| BufferVector { address: range.address(), bytes: range.bytes() };
        let vectors: Vec<BufferVector> = ranges.iter().map(vector).collect();
        let mut at = 0;
        // The kernel returns the number of slots done if there is one, and the error only if there is none.
        let refusal = loop {
            match self.update_slots(first + at, &vectors[at..]) {
                Ok(0) => break Errno::IO,
                Ok(done) => at += done.min(vectors.len() - at),
                Err(errno) => break errno,
            }
            if at == vectors.len() {
                let places = slots.iter_mut().skip(first).zip(ranges);
                places.for_each(|(place, range)| *place = Some(*range));
                self.count_change();
                return Ok(());
            }
        };
        // Empty all of these slots instead of leaving some old and some new.
        let empty = vec![BufferVector { address: 0, bytes: 0 }; vectors.len()];
        if self.update_slots(first, &empty).is_ok_and(|done| done == empty.len()) {
            slots.iter_mut().skip(first).take(ranges.len()).for_each(|place| *place = None);
            self.count_change();
        }
        Err(PinError::new(UPDATE, ranges[at].bytes(), refusal.raw_os_error()))
    }

    /// Registers vectors in slots from `first` on and returns how many the kernel did.
    fn update_slots(&self, first: usize, vectors: &[BufferVector]) -> Result<usize, Errno> {
        let number = |count: usize| u32::try_from(count).map_err(|_| Errno::INVAL);
        let call = UpdateCall {
            first: number(first)?,
            reserved: 0,
            data: vectors.as_ptr().expose_provenance() as u64,
            tags: 0,
            count: number(vectors.len())?,
            reserved_too: 0,
        };
        // SAFETY: bounds, alignment and lifetime: the kernel reads one structure from this stack and the vectors, as
        // many as are counted, which are borrowed for the call. Aliasing: it writes none of it. The memory that the
        // vectors name is pinned and neither read nor written now; any address is harmless.
        unsafe { register(&self.ring, IORING_REGISTER_BUFFERS_UPDATE, &call) }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Option<MemoryRange>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executes a registration call that takes one structure.
///
/// # Safety
/// The structure is the one that the operation takes, and what it names may be read by the kernel during the call.
unsafe fn register<T>(ring: &OwnedFd, operation: libc::c_uint, call: &T) -> Result<usize, Errno> {
    // SAFETY: the caller's promise; the structure's length is passed with it.
    let answer = unsafe {
        let call = std::ptr::from_ref(call);
        libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), operation, call, size_of::<T>())
    };
    usize::try_from(answer).map_err(|_| {
        let errno = io::Error::last_os_error().raw_os_error();
        Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))
    })
}

fn total(ranges: &[MemoryRange]) -> usize {
    ranges.iter().map(|range| range.bytes()).sum()
}

/// Returns the first of `count` consecutive free slots.
fn find_free_slots(slots: &[Option<MemoryRange>], count: usize) -> Option<usize> {
    let mut free = 0;
    for (at, slot) in slots.iter().enumerate() {
        free = if slot.is_none() { free + 1 } else { 0 };
        if count > 0 && free == count {
            return Some(at + 1 - count);
        }
    }
    None
}

impl fmt::Debug for BufferTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.locked();
        write!(f, "BufferTable({} of {} taken)", slots.iter().flatten().count(), slots.len())
    }
}
