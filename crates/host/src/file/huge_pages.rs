//! Huge pages for files that lie in memory (tmpfs): one copy of the kernel moves up to 2 MiB instead of 4 KiB.
//!
//! Input: a file without contents and its length. Output: the bytes of it that lie in huge pages now. Invariant: the file
//! reads as zeros before and after; what the kernel has no huge pages for is left to an ordinary allocation.
//!
//! A file gets small pages from `fallocate` and `write`, unless the administrator changed that for the whole system. The
//! kernel joins the pages of a mapping into a huge one when it is asked to (`MADV_COLLAPSE`, 6.1), and clears what the
//! file lacks of it. The page stays one after the mapping has gone.

use crate::mapped_region::HUGE_PAGE_BYTES;
use crate::width::to_usize;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::ptr;

/// Bytes of a file that are mapped at once.
const WINDOW_BYTES: usize = 64 << 20;
/// The page of a huge one that is there before the kernel joins it: it joins nothing out of nothing.
const FIRST_PAGE_BYTES: u64 = 4_096;

/// Gives the first `bytes` bytes of a file in memory huge pages, until the kernel has no more or refuses. Returns the bytes
/// that lie in huge pages. The file has at least that length.
pub(super) fn take(file: &File, bytes: u64) -> u64 {
    let whole = bytes - bytes % HUGE_PAGE_BYTES as u64;
    let mut done = 0;
    while done < whole {
        let window = to_usize((whole - done).min(WINDOW_BYTES as u64));
        if take_window(file, done, window).is_err() {
            break;
        }
        done += window as u64;
    }
    done
}

/// Gives a window of the file huge pages.
fn take_window(file: &File, offset: u64, bytes: usize) -> Result<(), Errno> {
    for at in (0..bytes).step_by(HUGE_PAGE_BYTES) {
        fallocate(file, FallocateFlags::KEEP_SIZE, offset + at as u64, FIRST_PAGE_BYTES)?;
    }
    let window = FileWindow::map(file, offset, bytes)?;
    // SAFETY: bounds and alignment: exactly the pages of the mapping. Lifetime: `window` unmaps it later. Aliasing: no
    // reference points into it; the call changes how the file's bytes lie in memory and not what they are.
    let joined = unsafe { libc::madvise(window.start, bytes, libc::MADV_COLLAPSE) };
    if joined == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

/// A mapping of a part of a file, at an address at which its pages can be huge.
struct FileWindow {
    reserved: *mut c_void,
    reserved_bytes: usize,
    start: *mut c_void,
}

impl FileWindow {
    fn map(file: &File, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let reserved_bytes = bytes + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a private mapping at an address of the kernel's choice touches no memory that exists.
        let reserved = unsafe { mmap_anonymous(ptr::null_mut(), reserved_bytes, ProtFlags::empty(), flags) }?;
        let start = reserved.wrapping_byte_add(reserved.align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES));
        let window = Self { reserved, reserved_bytes, start };
        // SAFETY: bounds: `start` is less than a huge page behind the start of the reservation, which is a huge page longer
        // than the window. Alignment: offset and address are multiples of a huge page. Lifetime: `window` unmaps it.
        // Aliasing: what is replaced is the mapping that was made above, into which no code has an address.
        unsafe { mmap(start, bytes, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, file, offset) }?;
        Ok(window)
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: bounds and alignment: exactly the range that the kernel reserved. Lifetime: this is its only owner.
        // Aliasing: no reference into the range was ever made. A failure leaks address space but breaks nothing.
        let _ = unsafe { munmap(self.reserved, self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::is_in_memory;
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    /// A window and a part of one, and a part of a huge page.
    const BYTES: u64 = 67 << 20;
    const HUGE_BYTES: u64 = 66 << 20;

    /// Returns true if this kernel joins pages of files in memory.
    fn can_join() -> bool {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers =
            release.split(|byte: char| !byte.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        version >= (6, 1) && mode.is_ok_and(|mode| !mode.contains("[deny]"))
    }

    /// Returns the kilobytes of a mapping of the file that lie in huge pages.
    fn huge_kilobytes(file: &File) -> u64 {
        let window = FileWindow::map(file, 0, to_usize(BYTES)).unwrap();
        // SAFETY: exactly the pages of the mapping, which lie inside of the file; the call reads each of them.
        let touched = unsafe { libc::madvise(window.start, to_usize(BYTES), libc::MADV_POPULATE_READ) };
        assert_eq!(touched, 0, "{}", std::io::Error::last_os_error());
        let start = format!("{:x}-", window.start.addr());
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn file_in_memory_lies_in_huge_pages_and_reads_as_zeros() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(is_in_memory(&file));
        file.set_len(BYTES).unwrap();
        let huge = take(&file, BYTES);
        assert_eq!(huge, if can_join() { HUGE_BYTES } else { 0 });
        assert_eq!(huge_kilobytes(&file), huge >> 10, "the kernel has other pages than it said");
        assert!(file.metadata().unwrap().blocks() * 512 >= huge);
        let mut bytes = vec![1; to_usize(BYTES)];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(crate::copy::is_zero(&bytes));
        assert_eq!(file.metadata().unwrap().len(), BYTES);
    }

    #[test]
    fn bytes_of_a_file_survive_and_a_file_without_space_gets_none() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(BYTES).unwrap();
        file.write_all_at(&[7; 10_000], (4 << 20) - 5_000).unwrap();
        take(&file, BYTES);
        let mut bytes = [0; 10_002];
        file.read_exact_at(&mut bytes, (4 << 20) - 5_001).unwrap();
        assert_eq!((bytes[0], bytes[10_001]), (0, 0));
        assert!(bytes[1..10_001].iter().all(|&byte| byte == 7));
        let read_only = OpenOptions::new().read(true).open("/proc/self/exe").unwrap();
        assert_eq!(take(&read_only, BYTES), 0);
        assert!(!is_in_memory(&File::open("/proc/self/maps").unwrap()));
    }
}
