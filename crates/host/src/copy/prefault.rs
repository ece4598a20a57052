//! Pages made present before a copy, by one call of the kernel instead of one fault a page.
//!
//! Input: the target or the source of a long copy. Output: a [`PrefaultOutcome`]. Invariants: only pages that lie in the range as
//! a whole are populated, and no byte changes; a kernel that refuses leaves the pages to the faults of the copy.
//!
//! A populating call costs more for a page that is present than a copy of its bytes in the cache. So the kernel is asked first
//! which pages are absent (`mincore`), a window at a time, and about all pages of a window only if its first or its last one is
//! absent: the answer takes time for each page. Of a mapping of a file it says what the page cache has: pages that are
//! there and are not mapped yet count as present, and fault.

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// The length in bytes from which a copy has its pages made present: the calls of the kernel cost a shorter one too much.
pub const PREFAULT_BYTES_MIN: usize = 1 << 20;

/// The bytes that are looked up and populated by one call each, so that a signal waits for no longer one.
const WINDOW_BYTES: usize = 1 << 20;
/// The most pages of a window: no page of a kernel is shorter.
const WINDOW_PAGES: usize = WINDOW_BYTES / 4_096;

/// The result of a prefault. None of them is an error of the copy, which takes the faults of the pages that are still absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefaultOutcome {
    /// The kernel populated the absent pages.
    Populated {
        /// Their bytes; 0 if all pages were present, or if the range has no whole page.
        bytes: usize,
    },
    /// The kernel has no such call: it is older than Linux 5.14.
    Unsupported,
    /// The kernel refused a part, because the mapping does not permit the access, the range is not mapped, its file system is full,
    /// or a page is broken.
    Refused {
        /// The bytes that it had populated in front of that part.
        populated_bytes: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Makes the pages present that a copy is about to write. The bytes stay as they are.
pub fn prefault_write(target: &mut [u8]) -> PrefaultOutcome {
    KERNEL.prefault(addresses(target), PrefaultAccess::Write)
}

/// Makes the pages present that a copy is about to write first, such as those of the spare capacity of a vector.
pub fn prefault_spare(target: &mut [MaybeUninit<u8>]) -> PrefaultOutcome {
    KERNEL.prefault(addresses(target), PrefaultAccess::Write)
}

/// Makes the pages present that a copy, or a device, is about to read.
pub fn prefault_read(source: &[u8]) -> PrefaultOutcome {
    KERNEL.prefault(addresses(source), PrefaultAccess::Read)
}

fn addresses<T>(slice: &[T]) -> Range<usize> {
    let range = slice.as_ptr_range();
    range.start.addr()..range.end.addr()
}

/// The access that pages are made present for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefaultAccess {
    Read,
    Write,
}

/// The calls of a kernel.
trait PageCalls {
    /// Sets the low bit of each byte whose page is present; pages follow each other from `start` on.
    fn find_present(&self, start: usize, page_bytes: usize, present: &mut [u8]) -> Result<(), Errno>;

    /// Populates whole pages. A kernel without the call refuses it for no bytes too.
    fn populate(&self, start: usize, bytes: usize, access: PrefaultAccess) -> Result<(), Errno>;
}

/// The kernel of this machine.
#[derive(Debug)]
struct KernelPages;

impl PageCalls for KernelPages {
    fn find_present(&self, start: usize, page_bytes: usize, present: &mut [u8]) -> Result<(), Errno> {
        let (from, bytes) = (std::ptr::without_provenance_mut(start), present.len() * page_bytes);
        // SAFETY: the kernel reads nothing of the range, and writes one byte a page, as many as `present` has.
        let result = unsafe { libc::mincore(from, bytes, present.as_mut_ptr()) };
        if result == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }

    fn populate(&self, start: usize, bytes: usize, access: PrefaultAccess) -> Result<(), Errno> {
        let advice = match access {
            PrefaultAccess::Read => Advice::LinuxPopulateRead,
            PrefaultAccess::Write => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the advice makes pages present, as an access does, and changes no byte of any range.
        unsafe { madvise(std::ptr::without_provenance_mut(start), bytes, advice) }
    }
}

static KERNEL: PagePrefault<KernelPages> = PagePrefault::new(KernelPages);

/// Prefaults by a kernel, of which a missing call is tried once.
#[derive(Debug)]
struct PagePrefault<C> {
    calls: C,
    is_unsupported: AtomicBool,
}

impl<C> PagePrefault<C> {
    const fn new(calls: C) -> Self {
        Self { calls, is_unsupported: AtomicBool::new(false) }
    }
}

impl<C: PageCalls> PagePrefault<C> {
    fn prefault(&self, range: Range<usize>, access: PrefaultAccess) -> PrefaultOutcome {
        if self.is_unsupported.load(Ordering::Relaxed) {
            return PrefaultOutcome::Unsupported;
        }
        let page_bytes = rustix::param::page_size();
        let inner = whole_pages(range, page_bytes);
        let mut populated_bytes = 0;
        for start in inner.clone().step_by(WINDOW_BYTES) {
            let window = start..inner.end.min(start.saturating_add(WINDOW_BYTES));
            match self.prefault_window(window, page_bytes, access) {
                Ok(bytes) => populated_bytes += bytes,
                Err(Errno::INVAL) if self.lacks_call(access) => return PrefaultOutcome::Unsupported,
                Err(errno) => return PrefaultOutcome::Refused { populated_bytes, errno },
            }
        }
        PrefaultOutcome::Populated { bytes: populated_bytes }
    }

    /// Populates the absent pages of a window, unless its first and its last one are present. Returns their bytes.
    fn prefault_window(
        &self,
        window: Range<usize>,
        page_bytes: usize,
        access: PrefaultAccess,
    ) -> Result<usize, Errno> {
        if self.is_present(window.start, page_bytes)?
            && self.is_present(window.end - page_bytes, page_bytes)?
        {
            return Ok(0);
        }
        let mut present = [0; WINDOW_PAGES];
        let present = &mut present[..window.len() / page_bytes];
        self.calls.find_present(window.start, page_bytes, present)?;
        let absent = absent_pages(present);
        let bytes = absent.len() * page_bytes;
        if bytes > 0 {
            self.calls.populate(window.start + absent.start * page_bytes, bytes, access)?;
        }
        Ok(bytes)
    }

    fn is_present(&self, page: usize, page_bytes: usize) -> Result<bool, Errno> {
        let mut present = [0];
        self.calls.find_present(page, page_bytes, &mut present)?;
        Ok(present[0] & 1 == 1)
    }

    /// Returns true, and remembers it, if the kernel does not have the call: its error is the same as for a mapping that does not
    /// permit the access.
    fn lacks_call(&self, access: PrefaultAccess) -> bool {
        let lacks = self.calls.populate(0, 0, access) == Err(Errno::INVAL);
        if lacks {
            self.is_unsupported.store(true, Ordering::Relaxed);
        }
        lacks
    }
}

/// Returns the part of a range that has only whole pages.
fn whole_pages(range: Range<usize>, page_bytes: usize) -> Range<usize> {
    let end = range.end - range.end % page_bytes;
    let start = range.start.checked_next_multiple_of(page_bytes);
    start.filter(|start| *start < end).map_or(0..0, |start| start..end)
}

/// Returns the pages from the first absent one to the last; none if more than half of them are present.
fn absent_pages(present: &[u8]) -> Range<usize> {
    let is_absent = |page: &u8| page & 1 == 0;
    let (Some(first), Some(last)) = (present.iter().position(is_absent), present.iter().rposition(is_absent))
    else {
        return 0..0;
    };
    let pages = first..last + 1;
    let absent = present[pages.clone()].iter().filter(|page| is_absent(page)).count();
    if 2 * absent >= pages.len() { pages } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
    use std::cell::Cell;

    const BYTES: usize = 8 << 20;

    /// Fresh memory of short pages.
    struct FreshPages {
        start: *mut u8,
        bytes: usize,
    }

    impl FreshPages {
        fn map(bytes: usize, access: ProtFlags) -> Self {
            // SAFETY: the kernel chooses the address of a mapping that only this value knows.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
            let start = start.unwrap();
            // SAFETY: the advice changes how the mapping is backed. A kernel without huge pages refuses it, and has none.
            let _ = unsafe { madvise(start, bytes, Advice::LinuxNoHugepage) };
            Self { start: start.cast(), bytes }
        }

        fn writable() -> Self {
            Self::map(BYTES, ProtFlags::READ | ProtFlags::WRITE)
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: the mapping has so many bytes, is writable where this is called, and only this value has its address.
            unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
        }

        fn present(&self) -> Vec<bool> {
            let page_bytes = rustix::param::page_size();
            let mut present = vec![0; self.bytes / page_bytes];
            KernelPages.find_present(self.start.addr(), page_bytes, &mut present).unwrap();
            present.into_iter().map(|page| page & 1 == 1).collect()
        }
    }

    impl Drop for FreshPages {
        fn drop(&mut self) {
            // SAFETY: the mapping belongs to this value, which ends.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }

    /// Returns true if the kernel populates pages, and says which are absent. A kernel that does not has nothing to test.
    fn kernel_populates() -> bool {
        let mut fresh = FreshPages::writable();
        let is_absent = fresh.present().iter().all(|page| !page);
        is_absent && prefault_write(fresh.bytes()) == PrefaultOutcome::Populated { bytes: BYTES }
    }

    /// Returns the page faults of this thread that took no read of a device.
    fn faults() -> i64 {
        // SAFETY: an all-zero value is a valid one.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in a local value.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
        usage.ru_minflt
    }

    #[test]
    fn copy_into_a_prefaulted_target_takes_no_fault_a_page() {
        if !kernel_populates() {
            return;
        }
        let pages = i64::try_from(BYTES / rustix::param::page_size()).unwrap();
        let source = vec![7_u8; BYTES];
        let mut plain = FreshPages::writable();
        let before = faults();
        plain.bytes().copy_from_slice(&source);
        assert!(faults() - before >= pages, "a fresh page takes a fault");
        let mut prefaulted = FreshPages::writable();
        assert_eq!(prefault_write(prefaulted.bytes()), PrefaultOutcome::Populated { bytes: BYTES });
        assert!(prefaulted.bytes().iter().all(|byte| *byte == 0), "a prefault changed a byte");
        let before = faults();
        prefaulted.bytes().copy_from_slice(&source);
        let taken = faults() - before;
        assert!(taken < pages / 8, "{taken} faults in {pages} pages");
        assert!(*prefaulted.bytes() == source[..]);
        // Nothing is left to populate.
        assert_eq!(prefault_write(prefaulted.bytes()), PrefaultOutcome::Populated { bytes: 0 });
    }

    #[test]
    fn only_whole_pages_of_the_range_become_present() {
        if !kernel_populates() {
            return;
        }
        let page = rustix::param::page_size();
        let mut fresh = FreshPages::writable();
        let (first, end) = (5 * page + 1, 600 * page + 17);
        let outcome = prefault_write(&mut fresh.bytes()[first..end]);
        assert_eq!(outcome, PrefaultOutcome::Populated { bytes: 594 * page });
        for (nth, is_present) in fresh.present().into_iter().enumerate() {
            assert_eq!(is_present, (6..600).contains(&nth), "page {nth}");
        }
        // A range within a page, and one without bytes, have no whole page.
        for range in [700 * page + 1..702 * page - 1, 800 * page..800 * page] {
            let outcome = prefault_write(&mut fresh.bytes()[range]);
            assert_eq!(outcome, PrefaultOutcome::Populated { bytes: 0 });
        }
    }

    #[test]
    fn mostly_present_windows_are_left_alone() {
        assert_eq!(absent_pages(&[1; 8]), 0..0);
        assert_eq!(absent_pages(&[]), 0..0);
        assert_eq!(absent_pages(&[1, 1, 0, 0xFE, 1]), 2..4);
        assert_eq!(absent_pages(&[0, 1, 1, 0]), 0..4);
        assert_eq!(absent_pages(&[0, 1, 1, 1, 0]), 0..0);
    }

    #[test]
    fn read_only_mapping_refuses_writes_and_does_no_harm() {
        if !kernel_populates() {
            return;
        }
        let fixed = FreshPages::map(BYTES, ProtFlags::READ);
        let range = fixed.start.addr()..fixed.start.addr() + BYTES;
        let refused = PrefaultOutcome::Refused { populated_bytes: 0, errno: Errno::INVAL };
        assert_eq!(KERNEL.prefault(range.clone(), PrefaultAccess::Write), refused);
        assert!(fixed.present().iter().all(|page| !page));
        assert_eq!(KERNEL.prefault(range, PrefaultAccess::Read), PrefaultOutcome::Populated { bytes: BYTES });
        // The error of the mapping is not taken for that of a kernel without the call.
        assert!(kernel_populates());
    }

    #[test]
    fn refusal_says_what_was_populated_in_front_of_it() {
        if !kernel_populates() {
            return;
        }
        let fresh = FreshPages::writable();
        // SAFETY: no reference to the mapping exists, and the second half is not written from here on.
        let protected =
            unsafe { mprotect(fresh.start.wrapping_add(BYTES / 2).cast(), BYTES / 2, MprotectFlags::READ) };
        protected.unwrap();
        let range = fresh.start.addr()..fresh.start.addr() + BYTES;
        let refused = PrefaultOutcome::Refused { populated_bytes: BYTES / 2, errno: Errno::INVAL };
        assert_eq!(KERNEL.prefault(range, PrefaultAccess::Write), refused);
        assert_eq!(fresh.present().iter().filter(|page| **page).count(), fresh.present().len() / 2);
    }

    #[test]
    fn spare_capacity_of_a_vector_is_populated() {
        if !kernel_populates() {
            return;
        }
        // So many bytes are a mapping of their own with every allocator of a system.
        let mut fresh: Vec<u8> = Vec::with_capacity(5 * BYTES);
        let PrefaultOutcome::Populated { bytes } = prefault_spare(fresh.spare_capacity_mut()) else {
            panic!("the kernel populates memory of this process")
        };
        assert!(bytes > 0 && bytes <= fresh.capacity(), "{bytes}");
        assert_eq!(prefault_spare(fresh.spare_capacity_mut()), PrefaultOutcome::Populated { bytes: 0 });
        fresh.resize(3 * BYTES, 1);
        assert_eq!(prefault_read(&fresh), PrefaultOutcome::Populated { bytes: 0 });
    }

    /// A kernel that says of each page, by its number, if it is present, and populates pages without an error.
    struct NumberedPages {
        is_present: fn(usize) -> bool,
        asked: Cell<usize>,
        populated: Cell<usize>,
    }

    impl PageCalls for NumberedPages {
        fn find_present(&self, start: usize, page_bytes: usize, present: &mut [u8]) -> Result<(), Errno> {
            self.asked.set(self.asked.get() + present.len());
            for (at, byte) in present.iter_mut().enumerate() {
                *byte = u8::from((self.is_present)(start / page_bytes + at));
            }
            Ok(())
        }

        fn populate(&self, _: usize, bytes: usize, _: PrefaultAccess) -> Result<(), Errno> {
            self.populated.set(self.populated.get() + bytes);
            Ok(())
        }
    }

    #[test]
    fn window_with_present_ends_costs_no_answer_about_all_of_its_pages() {
        let pages = WINDOW_BYTES / rustix::param::page_size();
        let found = |is_present: fn(usize) -> bool| {
            let calls = NumberedPages { is_present, asked: Cell::new(0), populated: Cell::new(0) };
            let kernel = PagePrefault::new(calls);
            let outcome = kernel.prefault(0..2 * WINDOW_BYTES, PrefaultAccess::Write);
            let bytes = kernel.calls.populated.get();
            assert_eq!(outcome, PrefaultOutcome::Populated { bytes });
            (kernel.calls.asked.get(), bytes)
        };
        assert_eq!(found(|_| true), (4, 0));
        // The second page is not looked for, the first one is.
        assert_eq!(found(|page| page != 1), (4, 0));
        assert_eq!(found(|page| page != 0), (3 + pages, rustix::param::page_size()));
        let (asked, bytes) = found(|page| page == 0);
        assert!(asked > 2 * pages && bytes == 2 * WINDOW_BYTES - rustix::param::page_size());
    }

    /// A kernel whose pages are all absent, and that answers each populating call with an error.
    struct RefusingKernel {
        errno: Errno,
        knows_call: bool,
        calls: Cell<usize>,
    }

    impl PageCalls for RefusingKernel {
        fn find_present(&self, _: usize, _: usize, present: &mut [u8]) -> Result<(), Errno> {
            present.fill(0);
            Ok(())
        }

        fn populate(&self, _: usize, bytes: usize, _: PrefaultAccess) -> Result<(), Errno> {
            self.calls.set(self.calls.get() + 1);
            if bytes == 0 && self.knows_call { Ok(()) } else { Err(self.errno) }
        }
    }

    #[test]
    fn missing_call_is_tried_once_and_every_other_error_is_reported() {
        let kernel =
            |errno, knows_call| PagePrefault::new(RefusingKernel { errno, knows_call, calls: Cell::new(0) });
        let old = kernel(Errno::INVAL, false);
        for _ in 0..3 {
            assert_eq!(old.prefault(0..BYTES, PrefaultAccess::Write), PrefaultOutcome::Unsupported);
        }
        assert_eq!(old.calls.calls.get(), 2, "the call, and the question after it");
        for errno in [Errno::INVAL, Errno::FAULT, Errno::HWPOISON, Errno::NOMEM, Errno::PERM] {
            let kernel = kernel(errno, true);
            for _ in 0..2 {
                let refused = PrefaultOutcome::Refused { populated_bytes: 0, errno };
                assert_eq!(kernel.prefault(0..BYTES, PrefaultAccess::Write), refused);
            }
        }
    }
}
