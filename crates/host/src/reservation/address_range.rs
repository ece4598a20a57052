//! The system calls of a reservation: reserving addresses, committing pages to parts of them and decommitting those.
//!
//! Input: runs that the reservation has checked. Output: memory, or the kernel's error. Invariant: the whole range
//! belongs to the reservation from `reserve` to `unmap`, whichever call fails in between, except for runs that are
//! reported [`BackingError::Lost`].

use super::backing::{Backing, PAGE_BYTES};
use super::page_run::PageRun;
use crate::numa::{BindError, NodeId, bind_range};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::mm::{madvise, mmap, mmap_anonymous, mprotect, mremap_fixed, munlock, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

/// An error of committing or decommitting a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackingError {
    /// The kernel refused; the run is as it was.
    Refused(Errno),
    /// The kernel failed half way, and the run's addresses may belong to another mapping now: never access them again.
    Lost(Errno),
}

/// A reserved range of addresses.
pub(super) struct AddressRange {
    start: NonNull<u8>,
    bytes: usize,
    shared: Option<OwnedFd>,
    node: Option<NodeId>,
}

// SAFETY: a mapping belongs to the process and to no thread; the methods that change it take `&mut`.
unsafe impl Send for AddressRange {}
// SAFETY: through `&AddressRange` only its addresses can be read.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// Reserves `bytes` bytes, a multiple of the page size, that start on a multiple of `align`, a power of two. They
    /// have no pages. With a file, they are a shared mapping of it from its start.
    pub(super) fn reserve(bytes: usize, align: usize, shared: Option<OwnedFd>) -> Result<Self, Errno> {
        let asked = bytes.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: a private mapping at an address of the kernel's choice touches no memory that exists.
        let found = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), asked, ProtFlags::empty(), flags)
        }?;
        let lead = found.align_offset(align).min(align);
        let start = found.wrapping_byte_add(lead);
        unmap_part(found, lead);
        unmap_part(start.wrapping_byte_add(bytes), align - lead);
        if let Some(file) = &shared {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: what is replaced is the mapping that was made above, into which no code has an address.
            let mapped = unsafe { mmap(start, bytes, ProtFlags::empty(), flags, file, 0) };
            // A failure may have left a hole that another mapping now fills: what is there now is not unmapped.
            let _ = mapped?;
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, bytes, shared, node: None })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Binds pages that are committed from now on to one node.
    pub(super) fn bind(&mut self, node: NodeId) -> Result<(), BindError> {
        bind_range(self.start.as_ptr().addr(), self.bytes, node)?;
        self.node = Some(node);
        Ok(())
    }

    pub(super) fn shared(&self) -> Option<&OwnedFd> {
        self.shared.as_ref()
    }

    /// Commits zeroed, writable pages of one kind to a run that has none, every one of them present afterwards.
    pub(super) fn commit(&mut self, run: PageRun, backing: Backing) -> Result<(), BackingError> {
        if backing.is_pooled() {
            self.commit_pooled(run, backing)
        } else {
            self.commit_ordinary(run, backing)
        }
    }

    fn commit_ordinary(&mut self, run: PageRun, backing: Backing) -> Result<(), BackingError> {
        let (start, bytes) = self.run_address(run);
        let advice = match backing {
            Backing::Transparent => Advice::LinuxHugepage,
            _ => Advice::LinuxNoHugepage,
        };
        let all = || {
            // SAFETY: the run lies in this range, nothing is committed in it and so no code has an address into it.
            unsafe { mprotect(start, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
            // A kernel without huge pages supports neither advice; then the pages are small, which is what remains.
            // SAFETY: the advice changes how the run is backed, not what it holds.
            let advised = unsafe { madvise(start, bytes, advice) };
            if backing == Backing::Transparent {
                advised?;
            }
            populate(start, bytes)
        };
        let backed: Result<(), Errno> = all();
        backed.map_err(|errno| {
            // Pages that were committed before the failure are released.
            let _ = self.decommit_ordinary(run);
            BackingError::Refused(errno)
        })
    }

    /// Maps huge pages elsewhere and moves them into place once all are present: a fixed mapping that fails half way
    /// would leave a hole in the range.
    fn commit_pooled(&mut self, run: PageRun, backing: Backing) -> Result<(), BackingError> {
        if self.shared.is_some() {
            return Err(BackingError::Refused(Errno::OPNOTSUPP));
        }
        let (start, bytes) = self.run_address(run);
        let size = if backing == Backing::Huge1G { MapFlags::HUGE_1GB } else { MapFlags::HUGE_2MB };
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | size;
        // SAFETY: a private mapping at an address of the kernel's choice touches no memory that exists.
        let made =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let made = made.map_err(BackingError::Refused)?;
        // The range's policy does not apply to a mapping outside it; `bind` reported whether the node can be used.
        let bound = self.node.map_or(Ok(()), |node| bind_range(made.addr(), bytes, node));
        if bound.is_err() {
            unmap_part(made, bytes);
            return Err(BackingError::Refused(Errno::INVAL));
        }
        if let Err(errno) = populate(made, bytes) {
            unmap_part(made, bytes);
            return Err(BackingError::Refused(errno));
        }
        // SAFETY: the source is the mapping made above, into which no code has an address; what is replaced lies in
        // this range, nothing is committed there, and so no code has an address into it either.
        let moved = unsafe { mremap_fixed(made, bytes, bytes, MremapFlags::MAYMOVE, start) };
        let Err(errno) = moved else {
            return Ok(());
        };
        unmap_part(made, bytes);
        // The kernel may have unmapped the target before it failed. If no other mapping took the addresses since, they
        // are reserved again.
        if self.reserve_hole(start, bytes) {
            Err(BackingError::Refused(errno))
        } else {
            Err(BackingError::Lost(errno))
        }
    }

    /// Reserves again the addresses of a possible hole; returns `false` if another mapping has them.
    fn reserve_hole(&self, start: *mut c_void, bytes: usize) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: without replacing, a mapping touches no memory that exists. A kernel that does not support the flag
        // takes the address for a hint, which the comparison below detects.
        match unsafe { mmap_anonymous(start, bytes, ProtFlags::empty(), flags) } {
            Ok(found) if found == start => true,
            Ok(elsewhere) => {
                unmap_part(elsewhere, bytes);
                false
            }
            Err(_) => false,
        }
    }

    /// Removes the pages of a run, which were of this kind. No code may have an address into it any more.
    pub(super) fn decommit(&mut self, run: PageRun, backing: Backing) -> Result<(), BackingError> {
        if !backing.is_pooled() {
            return self.decommit_ordinary(run).map_err(BackingError::Refused);
        }
        let (start, bytes) = self.run_address(run);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the run lies in this range and the caller guarantees that no code has an address into it.
        match unsafe { mmap_anonymous(start, bytes, ProtFlags::empty(), flags) } {
            Ok(_) => {
                // Best effort: the next commit of ordinary pages here should come from the range's node again, and the
                // same policy was accepted for the same range before.
                let _ = self.node.map(|node| bind_range(start.addr(), bytes, node));
                Ok(())
            }
            Err(errno) => Err(BackingError::Lost(errno)),
        }
    }

    fn decommit_ordinary(&mut self, run: PageRun) -> Result<(), Errno> {
        let (start, bytes) = self.run_address(run);
        // The kernel does not discard locked pages; a lock left on unclaimed pages protects nothing.
        // SAFETY: unlocking does not change the contents of the pages.
        let _ = unsafe { munlock(start, bytes) };
        if let Some(file) = &self.shared {
            let offset = start.addr() - self.start.as_ptr().addr();
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, punch, offset as u64, bytes as u64)?;
        } else {
            // SAFETY: the run lies in this range and no code has an address into it; its bytes read as 0 afterwards.
            unsafe { madvise(start, bytes, Advice::LinuxDontNeed) }?;
        }
        // The pages are gone. If the kernel cannot split its mapping now, the run stays accessible and empty, and the
        // next commit finds it so.
        // SAFETY: no code has an address into the run.
        let _ = unsafe { mprotect(start, bytes, MprotectFlags::empty()) };
        Ok(())
    }

    /// Unmaps the whole range.
    ///
    /// # Safety
    /// No code has an address into it that it will use again, and no run of it was lost.
    pub(super) unsafe fn unmap(&mut self) {
        unmap_part(self.start.as_ptr().cast(), self.bytes);
    }

    fn run_address(&self, run: PageRun) -> (*mut c_void, usize) {
        let start = self.start.as_ptr().wrapping_add(run.first as usize * PAGE_BYTES);
        (start.cast(), run.bytes())
    }
}

/// Makes every page of a writable mapping present, with an error where an access would have raised a signal; and
/// excludes it from children of a fork, which must not share pages that a device writes.
fn populate(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the advice concerns children that are made later; it does not change the contents of the pages.
    unsafe { madvise(start, bytes, Advice::LinuxDontFork) }?;
    loop {
        // SAFETY: the caller's mapping is writable and no code has an address into it; faulting pages in writes
        // nothing.
        match unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) } {
            Err(Errno::INTR) => {}
            // "Bad address" means that an access would have raised a bus error.
            Err(Errno::FAULT | Errno::HWPOISON) => return Err(Errno::NOMEM),
            other => return other,
        }
    }
}

/// Unmaps a part of a mapping to which no address is in use.
fn unmap_part(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: called only with page-aligned parts of a mapping of this module that its owner no longer uses. A
        // failure leaves the pages mapped, which leaks address space but breaks nothing.
        let _ = unsafe { munmap(start, bytes) };
    }
}
