//! Files of memory that their owner can shrink while another process has them mapped.
//!
//! Input: a length. Output: one file of each kind that clients use for their pools. Invariant: no file is sealed.

use headwater_host::fault_guard::FaultGuard;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;

/// Bytes of a huge page, of which the files have whole ones.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Returns files of that length, with their names, and makes the process survive accesses to their missing pages. The
/// file of huge pages is missing where the machine has none free, and standard error says so.
///
/// # Panics
/// If the machine has no memory or no `/dev/shm`.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test says what it skipped")]
pub fn unsealed_files(bytes: u64) -> Vec<(&'static str, OwnedFd)> {
    FaultGuard::install().unwrap();
    let plain = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
    let shared: OwnedFd = tempfile::tempfile_in("/dev/shm").unwrap().into();
    let mut files = vec![("memfd", plain), ("file of tmpfs", shared)];
    let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    let wanted = bytes / HUGE_PAGE_BYTES;
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.is_ok_and(|free| free.trim().parse::<u64>().is_ok_and(|free| free >= wanted)) {
        files.push(("memfd of huge pages", memfd_create(c"huge", MemfdFlags::HUGETLB).unwrap()));
    } else {
        eprintln!(
            "skipped for huge pages: none are free; `echo 16 > /proc/sys/vm/nr_hugepages` reserves some"
        );
    }
    for (_, file) in &files {
        ftruncate(file, bytes).unwrap();
    }
    files
}
