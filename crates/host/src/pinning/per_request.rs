//! Pinning for a single request, undone after it: the baseline for measuring the cost that a pool avoids.
//!
//! Input: lengths, or existing memory. Output: memory pinned as long as its value lives, or nothing but the elapsed
//! time. Invariant: everything that an operation maps, locks or registers is undone when it returns, or when its value
//! is dropped.

use crate::mapped_region::HUGE_PAGE_BYTES;
use io_uring::IoUring;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap_anonymous, munlock, munmap};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::{fmt, io, ptr, slice};

/// Memory of a single request: mapped and locked for it, unmapped when the value is dropped.
pub struct FreshMemory {
    start: NonNull<c_void>,
    bytes: usize,
}

impl FreshMemory {
    /// Maps new memory and locks it, which faults it in.
    ///
    /// # Errors
    /// The kernel has no memory, or does not let this process lock it. Nothing stays mapped.
    pub fn map_and_lock(bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at no address"))?;
        let memory = Self { start, bytes };
        // SAFETY: exactly the mapping just made; the contents of its pages do not change.
        unsafe { mlock(memory.start.as_ptr(), bytes) }?;
        Ok(memory)
    }
}

impl Drop for FreshMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that this value made, to which no borrow is left. Unmapping unlocks. A failure
        // leaves it mapped, which leaks but breaks nothing.
        let _ = unsafe { munmap(self.start.as_ptr(), self.bytes) };
    }
}

impl Deref for FreshMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: bounds and lifetime: `start` is the first of `bytes` bytes, mapped and zeroed by the kernel as long
        // as `self` lives. Alignment: of bytes. Aliasing: a shared borrow of `self` excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes) }
    }
}

impl DerefMut for FreshMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and a unique borrow of `self` excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes) }
    }
}

impl fmt::Debug for FreshMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreshMemory({} bytes)", self.bytes)
    }
}

/// Locks existing memory and unlocks it.
///
/// # Errors
/// The kernel does not let this process lock so much.
pub fn lock_resident(memory: &mut [u8]) -> io::Result<()> {
    let start = memory.as_mut_ptr().cast::<c_void>();
    // SAFETY: bounds, alignment: the range is the slice; the kernel rounds to pages, whose bytes it leaves alone.
    // Lifetime: it is unlocked before the borrow ends. Aliasing: nothing is read or written.
    unsafe { mlock(start, memory.len()) }?;
    // SAFETY: as above.
    unsafe { munlock(start, memory.len()) }?;
    Ok(())
}

/// Maps reserved huge pages, populated, then unmaps them.
///
/// # Errors
/// There are none (`vm.nr_hugepages`), or too few.
pub fn map_reserved_huge(bytes: usize) -> io::Result<()> {
    let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE;
    // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no memory that exists. It is
    // never read or written, so that a missing page cannot fault.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }?;
    // SAFETY: exactly the mapping just made, of which no other code has the address.
    unsafe { munmap(start, bytes) }?;
    Ok(())
}

/// A ring that only registers and unregisters memory.
pub struct BufferRegistrar {
    ring: IoUring,
}

impl BufferRegistrar {
    /// Opens a ring.
    ///
    /// # Errors
    /// The kernel has no `io_uring`, or refuses it to this process.
    pub fn open() -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(2)? })
    }

    /// Registers existing memory and unregisters it.
    ///
    /// # Errors
    /// The kernel does not pin it, most often because of the limit on locked memory.
    pub fn register(&self, memory: &mut [u8]) -> io::Result<()> {
        let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: bounds: the vector is the slice. Alignment: none is needed. Lifetime: it is unregistered below,
        // before the borrow ends; if that fails the kernel keeps the pages pinned but does not use them. Aliasing: no
        // request is ever made of this ring.
        unsafe { self.ring.submitter().register_buffers(&[vector]) }?;
        self.ring.submitter().unregister_buffers()
    }
}

impl fmt::Debug for BufferRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BufferRegistrar")
    }
}

#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a skipped test prints its reason")]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_zeroed_writable_and_of_requested_length() {
        match FreshMemory::map_and_lock(5_000) {
            Ok(mut memory) => {
                assert_eq!((memory.len(), memory.iter().all(|&byte| byte == 0)), (5_000, true));
                memory.fill(7);
                assert!(memory.iter().all(|&byte| byte == 7));
            }
            Err(error) => eprintln!("skipped: {error}"),
        }
        assert!(FreshMemory::map_and_lock(0).is_err());
    }

    #[test]
    fn registering_and_locking_leave_the_bytes_unchanged() {
        let mut memory = vec![9; 8_192];
        if let Err(error) = lock_resident(&mut memory) {
            eprintln!("not locked: {error}");
        }
        match BufferRegistrar::open().and_then(|ring| ring.register(&mut memory)) {
            Ok(()) => {}
            Err(error) => eprintln!("not registered: {error}"),
        }
        assert!(memory.iter().all(|&byte| byte == 9));
    }
}
