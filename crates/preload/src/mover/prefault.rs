//! Pages made present before a long copy or fill, by one call of the kernel instead of one fault a page.
//!
//! Input: the target of a copy or a fill, or units of a mapped file. Output: pages that are present as far as the kernel makes
//! them; the copy takes the faults of the rest, with the effects that they have without this library. Invariants: only whole
//! pages of the range are populated, and no byte changes; nothing is allocated, no function of the C library is called, and
//! `errno` stays as it was.
//!
//! A populating call costs more for a page that is present than a copy of its bytes in the cache: so the kernel is asked first
//! which pages are absent (`mincore`), a window at a time, and about all pages of a window only if its first or its last one is
//! absent: the answer takes time for each page. Of a mapping of a file it says what the page cache has, and not what
//! is mapped: such pages fault, unless the mapping is one of this library, which notes what it populated.

use super::counters::{COUNTERS, count};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length from which the target of a copy is prefaulted. Until the settings are read, and on a kernel that cannot, no length
/// has so many.
pub(super) static PREFAULT_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

const PAGE_BYTES: usize = 4_096;
/// The bytes that are looked up and populated by one call each, so that a signal waits for no longer one.
const WINDOW_BYTES: usize = 1 << 20;
const WINDOW_PAGES: usize = WINDOW_BYTES / PAGE_BYTES;

/// The access that pages are made present for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageAccess {
    Read,
    Write,
}

/// Makes the absent pages of a target present, if it is long enough. A target that is not mapped or not writable stays as it is.
pub(super) fn prefault_target(start: usize, bytes: usize) {
    if bytes >= PREFAULT_BYTES.load(Ordering::Relaxed) {
        prefault_range(start, bytes);
    }
}

/// Makes the absent pages of a range present, up to the first window that the kernel refuses.
fn prefault_range(start: usize, bytes: usize) {
    let end = start.saturating_add(bytes) & !(PAGE_BYTES - 1);
    let Some(mut at) = start.checked_next_multiple_of(PAGE_BYTES) else { return };
    while at < end {
        let window = WINDOW_BYTES.min(end - at);
        if !prefault_window(at, window) {
            return;
        }
        at += window;
    }
}

/// Makes the absent pages of a window present, unless its first and its last one are. Returns false if the kernel refuses.
fn prefault_window(start: usize, bytes: usize) -> bool {
    let has_ends = is_present(start) && is_present(start + bytes - PAGE_BYTES);
    has_ends || populate_absent(start, bytes)
}

/// Returns true if a page is mapped and present.
fn is_present(page: usize) -> bool {
    let mut present = 0;
    // SAFETY: the byte is that of the one page.
    let is_mapped = unsafe { find_present(page, PAGE_BYTES, &raw mut present) };
    is_mapped && present & 1 == 1
}

/// Makes the absent pages of a window present, of which some are. Returns false if the kernel refuses.
fn populate_absent(start: usize, bytes: usize) -> bool {
    // Without a value: the compiler would make a call of `memset` of one.
    let mut present = MaybeUninit::<[u8; WINDOW_PAGES]>::uninit();
    let buffer = present.as_mut_ptr().cast::<u8>();
    // SAFETY: the buffer has a byte for each page of a window, and the window is not longer.
    if !unsafe { find_present(start, bytes, buffer) } {
        return false;
    }
    // SAFETY: the kernel has written one byte for each page.
    let present = unsafe { std::slice::from_raw_parts(buffer, bytes / PAGE_BYTES) };
    match absent_pages(present) {
        Some((first, last)) => {
            populate(start + first * PAGE_BYTES, (last + 1 - first) * PAGE_BYTES, PageAccess::Write)
        }
        None => true,
    }
}

/// Returns the first and the last absent page; `None` if more than half of the pages between them are present.
fn absent_pages(present: &[u8]) -> Option<(usize, usize)> {
    let is_absent = |page: &u8| page & 1 == 0;
    let first = present.iter().position(is_absent)?;
    let last = present.iter().rposition(is_absent)?;
    let absent = present.iter().filter(|page| is_absent(page)).count();
    (2 * absent > last - first).then_some((first, last))
}

/// Makes whole pages present. Returns false if the kernel refuses.
pub(super) fn populate(start: usize, bytes: usize, access: PageAccess) -> bool {
    match advise(start, bytes, access) {
        Ok(()) => {
            count(&COUNTERS.prefaults, 1);
            count(&COUNTERS.prefaulted_bytes, bytes as u64);
            true
        }
        Err(error) => {
            count(&COUNTERS.prefaults_refused, 1);
            // A mapping that does not permit the access has the same error as a kernel before 5.14, which refuses the call for no
            // bytes too.
            if error == Errno::INVAL && advise(0, 0, access) == Err(Errno::INVAL) {
                PREFAULT_BYTES.store(usize::MAX, Ordering::Relaxed);
            }
            false
        }
    }
}

fn advise(start: usize, bytes: usize, access: PageAccess) -> Result<(), Errno> {
    let advice = match access {
        PageAccess::Read => Advice::LinuxPopulateRead,
        PageAccess::Write => Advice::LinuxPopulateWrite,
    };
    // SAFETY: the advice makes pages present, as an access does, and changes no byte of any range.
    unsafe { madvise(std::ptr::without_provenance_mut(start), bytes, advice) }
}

/// Asks the kernel which pages of a range are present: the low bit of a byte a page. Returns false if the range is not mapped.
///
/// # Safety
/// `present` is writable for a byte for each page of the range.
unsafe fn find_present(start: usize, bytes: usize, present: *mut u8) -> bool {
    let result: libc::c_long;
    // SAFETY: the kernel reads nothing of the range, and writes to `present` as many bytes as the caller promises. It changes
    // only the three registers that are named as outputs.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_mincore => result,
            in("rdi") start,
            in("rsi") bytes,
            in("rdx") present,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    const BYTES: usize = 4 << 20;

    /// Fresh memory of short pages.
    struct AbsentPages(usize);

    impl AbsentPages {
        fn map(access: ProtFlags) -> Self {
            // SAFETY: the kernel chooses the address of a mapping that only this value knows.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) };
            let start = start.unwrap();
            // SAFETY: the advice changes how the mapping is backed. A kernel without huge pages refuses it, and has none.
            let _ = unsafe { madvise(start, BYTES, Advice::LinuxNoHugepage) };
            Self(start.addr())
        }

        fn present(&self) -> Vec<bool> {
            let mut present = vec![0; BYTES / PAGE_BYTES];
            // SAFETY: the vector has a byte for each page.
            assert!(unsafe { find_present(self.0, BYTES, present.as_mut_ptr()) });
            present.into_iter().map(|page| page & 1 == 1).collect()
        }
    }

    impl Drop for AbsentPages {
        fn drop(&mut self) {
            // SAFETY: the mapping belongs to this value, which ends.
            let _ = unsafe { munmap(std::ptr::without_provenance_mut(self.0), BYTES) };
        }
    }

    /// Returns true if the kernel populates pages, and says which are absent. A kernel that does not has nothing to test.
    fn kernel_populates() -> bool {
        let fresh = AbsentPages::map(ProtFlags::READ | ProtFlags::WRITE);
        let is_absent = fresh.present().iter().all(|page| !page);
        is_absent && populate(fresh.0, BYTES, PageAccess::Write)
    }

    #[test]
    fn only_whole_pages_of_the_range_become_present() {
        if !kernel_populates() {
            return;
        }
        let fresh = AbsentPages::map(ProtFlags::READ | ProtFlags::WRITE);
        prefault_range(fresh.0 + 5 * PAGE_BYTES + 1, 600 * PAGE_BYTES + 17);
        for (nth, is_present) in fresh.present().into_iter().enumerate() {
            assert_eq!(is_present, (6..605).contains(&nth), "page {nth}");
        }
        prefault_range(fresh.0 + 700 * PAGE_BYTES + 1, 2 * PAGE_BYTES - 2);
        prefault_range(fresh.0 + 800 * PAGE_BYTES, 0);
        assert_eq!(fresh.present().into_iter().filter(|page| *page).count(), 599);
    }

    #[test]
    fn mapping_that_refuses_stays_as_it_is_and_errno_too() {
        if !kernel_populates() {
            return;
        }
        let fixed = AbsentPages::map(ProtFlags::READ);
        // SAFETY: the function takes nothing.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the error number of this thread.
        unsafe { *place = 77 };
        assert!(!prefault_window(fixed.0, WINDOW_BYTES) && !populate(fixed.0, BYTES, PageAccess::Write));
        // Neither the last page of the address space nor the first one is mapped.
        prefault_range(usize::MAX - 2 * PAGE_BYTES, PAGE_BYTES);
        prefault_range(1, 2 * PAGE_BYTES);
        // SAFETY: as above.
        assert_eq!(unsafe { *place }, 77);
        assert!(fixed.present().iter().all(|page| !page));
        // The error of the mapping is not taken for that of a kernel without the call.
        assert!(kernel_populates());
    }

    #[test]
    fn window_with_present_ends_is_left_alone() {
        if !kernel_populates() {
            return;
        }
        let fresh = AbsentPages::map(ProtFlags::READ | ProtFlags::WRITE);
        for page in [fresh.0, fresh.0 + WINDOW_BYTES - PAGE_BYTES] {
            assert!(populate(page, PAGE_BYTES, PageAccess::Write));
        }
        prefault_range(fresh.0, 2 * WINDOW_BYTES);
        let present = fresh.present();
        assert_eq!(present[..WINDOW_PAGES].iter().filter(|page| **page).count(), 2);
        assert!(present[WINDOW_PAGES..2 * WINDOW_PAGES].iter().all(|page| *page));
    }

    #[test]
    fn mostly_present_windows_are_left_alone() {
        assert_eq!(absent_pages(&[1; 8]), None);
        assert_eq!(absent_pages(&[1, 1, 0, 0xFE, 1]), Some((2, 3)));
        assert_eq!(absent_pages(&[0, 1, 1, 0]), Some((0, 3)));
        assert_eq!(absent_pages(&[0, 1, 1, 1, 0]), None);
    }
}
