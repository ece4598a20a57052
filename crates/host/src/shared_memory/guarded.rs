//! Client memory that its owner can shrink: files of tmpfs and hugetlbfs without a seal.
//!
//! Input: a descriptor that a client sent. Output: a region. Invariant: an access whose page is gone reads zeroes, and
//! sets the [`LostPages`] of the client, instead of ending the process.

use super::{
    MapDescriptorError, MapError, MappingOrigin, PAGE_BYTES, RegionMapping, SharedMemory, is_hugetlbfs,
};
use crate::fault_guard::{FaultGuard, GuardedRange, LostPages};
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// The `f_type` that `fstatfs` reports for tmpfs, and for a memfd.
const TMPFS: u64 = 0x0102_1994;

/// A mapping of whole pages of a file, which may be larger than the region on it.
#[derive(Debug)]
pub(super) struct GuardedMapping {
    start: NonNull<u8>,
    bytes: usize,
    /// `None` only while it is being unmapped.
    guard: Option<GuardedRange>,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the pages belong to the process, not to a thread, and are
// unmapped once. Aliasing: the pointer is used to unmap them only.
unsafe impl Send for GuardedMapping {}

// SAFETY: as for Send; a shared handle gives out the report only.
unsafe impl Sync for GuardedMapping {}

impl GuardedMapping {
    /// Returns the report of the client that owns the memory.
    pub(super) fn lost(&self) -> Option<&LostPages> {
        self.guard.as_ref().map(GuardedRange::lost)
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        // Before the addresses can be used for another mapping.
        self.guard = None;
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: bounds and alignment: exactly the range that the kernel returned. Lifetime: the last handle of the
        // region drops this, so no copy runs or will. Aliasing: no reference into the range was ever made. A failure
        // leaves the pages mapped, which leaks address space but breaks nothing.
        let _ = unsafe { munmap(start, self.bytes) };
    }
}

impl SharedMemory {
    /// Maps a range of a file that a client sent. A memfd that is sealed against shrinking is mapped as by
    /// [`map_descriptor`](Self::map_descriptor). If the process has a [`FaultGuard`], other files in memory are mapped
    /// too: memfds, and files of tmpfs and hugetlbfs. An access to such a region whose page is gone sets `lost`.
    ///
    /// # Errors
    /// As [`map_descriptor`](Self::map_descriptor) without a guard, and [`MapDescriptorError::NotMemory`] with one.
    pub fn map_client(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        lost: &LostPages,
    ) -> Result<Self, MapDescriptorError> {
        match Self::map_descriptor(descriptor, offset, bytes) {
            Err(error @ (MapDescriptorError::Unsealed | MapDescriptorError::HugePages)) => {
                let guard = FaultGuard::installed().ok_or(error)?;
                Self::map_guarded(guard, descriptor, offset, bytes, lost)
            }
            other => other,
        }
    }

    fn map_guarded(
        guard: FaultGuard,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        lost: &LostPages,
    ) -> Result<Self, MapDescriptorError> {
        let errno_of = |errno| MapError { bytes, errno };
        let file = fstat(descriptor).map_err(errno_of)?;
        let system = fstatfs(descriptor).map_err(errno_of)?;
        let is_huge = is_hugetlbfs(&system);
        let in_memory = is_huge || u64::try_from(system.f_type).is_ok_and(|kind| kind == TMPFS);
        if !in_memory || FileType::from_raw_mode(file.st_mode) != FileType::RegularFile {
            return Err(MapDescriptorError::NotMemory);
        }
        let file_bytes = u64::try_from(file.st_size).unwrap_or(0);
        let page = if is_huge { u64::try_from(system.f_bsize).unwrap_or(PAGE_BYTES) } else { PAGE_BYTES };
        let out = MapDescriptorError::Range { offset, bytes, file_bytes };
        let end = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes)).ok_or(out)?;
        if end > file_bytes || bytes == 0 || !offset.is_multiple_of(PAGE_BYTES) {
            return Err(out);
        }
        // A huge page is mapped whole, also if the region begins or ends inside it.
        let first = offset - offset % page;
        let whole = end.checked_next_multiple_of(page).ok_or(out)? - first;
        let (whole, skip) =
            (usize::try_from(whole).map_err(|_| out)?, usize::try_from(offset - first).map_err(|_| out)?);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Huge pages that the client's pool lacks are not reserved here: an access without a page is guarded.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: bounds: the range lies in the file; if the file shrinks, the guard below handles the access.
        // Alignment: the offset is a multiple of the file's page size, the kernel chooses an address on a page.
        // Lifetime: ours until `GuardedMapping::drop` unmaps it. Aliasing: a null hint without FIXED replaces no
        // mapping.
        let mapped = unsafe { mmap(std::ptr::null_mut(), whole, access, flags, descriptor, first) };
        let start = mapped.map_err(errno_of)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(errno_of(rustix::io::Errno::NOMEM))?;
        // From here on the range is unmapped on drop, even if it cannot be guarded.
        let mut mapping = GuardedMapping { start, bytes: whole, guard: None };
        let range = GuardedRange::new(guard, start.addr().get(), whole, lost).map_err(errno_of)?;
        mapping.guard = Some(range);
        // Inside the mapping, so the sum is exact.
        let start = start.map_addr(|address| address.saturating_add(skip));
        let origin = MappingOrigin::Guarded(mapping);
        Ok(Self { mapping: Arc::new(RegionMapping { start, bytes, origin }) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::SharedPages;
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::{AsFd as _, OwnedFd};

    const BYTES: usize = 4 << 20;

    /// Returns files of 4 MiB in memory that can shrink, with their names. Huge pages only where the machine has some.
    #[expect(clippy::print_stderr, reason = "a test says what it skipped")]
    fn unsealed_files() -> Vec<(&'static str, OwnedFd)> {
        let plain = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        let sealable = memfd_create(c"sealable", MemfdFlags::ALLOW_SEALING).unwrap();
        let shared: OwnedFd = tempfile::tempfile_in("/dev/shm").unwrap().into();
        let mut files = vec![("memfd", plain), ("sealable memfd", sealable), ("file of tmpfs", shared)];
        let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        if free.is_ok_and(|free| free.trim().parse().is_ok_and(|free: u64| free >= 4)) {
            files.push(("memfd of huge pages", memfd_create(c"huge", MemfdFlags::HUGETLB).unwrap()));
        } else {
            eprintln!("skipped for huge pages: reserve 4 by `echo 4 > /proc/sys/vm/nr_hugepages`");
        }
        for (_, file) in &files {
            ftruncate(file, BYTES as u64).unwrap();
        }
        files
    }

    #[test]
    fn pages_that_are_gone_read_as_zeroes_and_are_reported() {
        FaultGuard::install().unwrap();
        for (name, file) in unsealed_files() {
            let (lost, other) = (LostPages::default(), LostPages::default());
            let region = SharedMemory::map_client(file.as_fd(), 4_096, BYTES - 8_192, &lost).unwrap();
            let beside = SharedMemory::map_client(file.as_fd(), 0, 4_096, &other).unwrap();
            region.copy_out(2 << 20, b"hello").unwrap();
            let again = SharedMemory::map_client(file.as_fd(), 2 << 20, 8_192, &other).unwrap();
            let mut found = [0; 5];
            again.copy_in(4_096, &mut found).unwrap();
            assert_eq!(&found, b"hello", "{name}: the region is the file");
            assert!(!lost.is_set() && !other.is_set());
            ftruncate(&file, 2 << 20).unwrap();
            region.copy_in(2 << 20, &mut found).unwrap();
            assert_eq!(found, [0; 5], "{name}");
            assert!(lost.is_set(), "{name}");
            assert!(!other.is_set(), "{name}: its own pages are still there");
            region.copy_out(0, &vec![7; BYTES - 8_192]).unwrap();
            beside.copy_in(0, &mut found).unwrap();
            assert!(!other.is_set(), "{name}");
            again.copy_out(8_000, b"x").unwrap();
            assert!(other.is_set(), "{name}: a store finds no page either");
        }
    }

    #[test]
    fn fused_copies_survive_pages_that_are_gone_and_count_what_was_copied() {
        FaultGuard::install().unwrap();
        for bytes in [3, 60, 200, 4_096, 9_000] {
            for is_in in [true, false] {
                let lost = LostPages::default();
                let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
                ftruncate(&file, 16_384).unwrap();
                let region = SharedMemory::map_client(file.as_fd(), 0, 16_384, &lost).unwrap();
                region.copy_out(0, &[5; 16_384]).unwrap();
                ftruncate(&file, 4_096).unwrap();
                // The first bytes lie on the page that is still there.
                let at = 4_096 - bytes.min(1_000) / 2;
                let mut own = vec![7; bytes];
                let crc = if is_in {
                    region.copy_in_crc32c(at, &mut own, 0).unwrap()
                } else {
                    region.copy_out_crc32c(at, &own, 0).unwrap()
                };
                assert_eq!(crc, crate::copy::crc32c(0, &own), "{bytes} {is_in}");
                assert!(own.iter().all(|byte| [0, 5, 7].contains(byte)), "{bytes} {is_in}");
                assert!(lost.is_set(), "{bytes} {is_in}");
            }
        }
    }

    #[test]
    fn joined_pages_report_their_loss() {
        FaultGuard::install().unwrap();
        let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        ftruncate(&file, 16_384).unwrap();
        let lost = LostPages::default();
        let region = SharedMemory::map_client(file.as_fd(), 0, 16_384, &lost).unwrap();
        let (sealed, _descriptor) = SharedMemory::memfd(4_096).unwrap();
        let page =
            |region: &SharedMemory, offset| SharedPages { region: region.clone(), offset, bytes: 4_096 };
        let joined = SharedMemory::join(&[page(&sealed, 0), page(&region, 8_192), page(&region, 0)]).unwrap();
        joined.copy_out(4_096, b"hello").unwrap();
        let mut found = [0; 5];
        region.copy_in(8_192, &mut found).unwrap();
        assert_eq!(&found, b"hello");
        drop(region);
        ftruncate(&file, 4_096).unwrap();
        joined.copy_in(8_192, &mut found).unwrap();
        assert!(!lost.is_set());
        joined.copy_in(4_096, &mut found).unwrap();
        assert_eq!(found, [0; 5]);
        assert!(lost.is_set());
    }

    #[test]
    fn threads_that_lose_the_same_pages_all_go_on() {
        FaultGuard::install().unwrap();
        let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let lost = LostPages::default();
        let region = SharedMemory::map_client(file.as_fd(), 0, BYTES, &lost).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (region, file) = (&region, &file);
                scope.spawn(move || {
                    let mut bytes = vec![0; 1 << 20];
                    for _ in 0..20 {
                        region.copy_in(thread << 20, &mut bytes).unwrap();
                        region.copy_out(thread << 20, &bytes).unwrap();
                    }
                    ftruncate(file, 0).unwrap();
                    region.copy_in(thread << 20, &mut bytes).unwrap();
                });
            }
        });
        assert!(lost.is_set());
    }

    #[test]
    fn invalid_ranges_and_files_outside_memory_are_refused() {
        FaultGuard::install().unwrap();
        let lost = LostPages::default();
        let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        ftruncate(&file, 8_192).unwrap();
        for (offset, bytes) in [(0, 8_193), (8_192, 1), (1, 4_096), (0, 0), (u64::MAX - 4_095, 4_096)] {
            let refused = SharedMemory::map_client(file.as_fd(), offset, bytes, &lost);
            assert!(matches!(refused, Err(MapDescriptorError::Range { .. })), "{offset} {bytes}");
        }
        let on_proc = std::fs::File::open("/proc/self/maps").unwrap();
        let (pipe, _end) = std::io::pipe().unwrap();
        let device = std::fs::File::open("/dev/zero").unwrap();
        for other in [on_proc.as_fd(), pipe.as_fd(), device.as_fd()] {
            let refused = SharedMemory::map_client(other, 0, 4_096, &lost);
            assert_eq!(refused.err(), Some(MapDescriptorError::NotMemory));
        }
        let folder = std::fs::File::open("/dev/shm").unwrap();
        let refused = SharedMemory::map_client(folder.as_fd(), 0, 4_096, &lost);
        assert_eq!(refused.err(), Some(MapDescriptorError::NotMemory));
    }
}
