//! A handler of bus errors: the process survives an access to client memory whose page is gone.
//!
//! Input: address ranges that map files which another process can shrink. Output: for each range, a report that a page
//! was gone. Invariant: no access to a guarded range ends the process. The handler maps zeroes over the range, sets the
//! report and lets the access run again. A bus error outside these ranges has the effect that it had before.
//!
//! A signal handler is a property of the process. A program therefore installs it, and no library of this workspace
//! does.
//!
//! # What this does not do
//! It does not cancel what an access does with the zeroes. A copy is checked afterwards, by
//! [`SharedMemory::has_lost_pages`](crate::shared_memory::SharedMemory::has_lost_pages), before anything follows from it;
//! and the owner of the range polls the report and ends the client.

use crate::width::to_usize;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed, munmap};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most guarded ranges of the process at a time. The kernel limits a process to 65,530 mappings.
pub const GUARDED_RANGES_MAX: usize = 32_768;

/// Bytes of a page, the unit of a packed range.
const PAGE_BYTES: usize = 4_096;
/// Bits of a packed range that hold the number of pages; the bits above hold the first page.
const PAGES_BITS: u32 = 28;
/// Bytes that the handler replaces if the kernel does not replace the whole range.
const CHUNK_BYTES: usize = 2 << 20;

/// Proof that the process has the handler.
#[derive(Clone, Copy, Debug)]
pub struct FaultGuard(());

static INSTALLED: Mutex<bool> = Mutex::new(false);
/// The action that the process had before, for bus errors outside the guarded ranges.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static FAULTS: AtomicU64 = AtomicU64::new(0);

impl FaultGuard {
    /// Installs the handler for the whole process, once; later calls change nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn install() -> io::Result<Self> {
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed {
            return Ok(Self(()));
        }
        // SAFETY: bounds and alignment: an all-zero action is a valid value. Lifetime and aliasing: plain values of
        // this function.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        // SAFETY: bounds, alignment, lifetime: `previous` is a local value that the kernel fills in during the call.
        // Aliasing: it is borrowed exclusively; nothing is changed.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let previous = PREVIOUS.get_or_init(|| previous);
        action.sa_sigaction = handle_bus_error as *const () as libc::sighandler_t;
        action.sa_mask = previous.sa_mask;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: bounds, alignment, lifetime: `action` is a local value that the kernel copies during the call; the
        // handler is a function, which lives as long as the process. Aliasing: the handler uses atomics, the value that
        // `PREVIOUS` holds from before this call on, and system calls that are safe in a signal handler.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        *installed = true;
        Ok(Self(()))
    }

    /// Returns the proof, if the process has the handler.
    #[must_use]
    pub fn installed() -> Option<Self> {
        let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        installed.then_some(Self(()))
    }

    /// Returns the number of bus errors in guarded ranges since the process started. A poller that finds a new value
    /// checks the [`LostPages`] of its clients.
    #[must_use]
    #[inline]
    pub fn faults() -> u64 {
        FAULTS.load(Ordering::Acquire)
    }
}

/// The report that memory of one client had no page when it was accessed. A clone is the same report.
#[derive(Clone, Debug, Default)]
pub struct LostPages(Arc<AtomicBool>);

impl LostPages {
    /// The reason to end the client, for its log line and for the client.
    pub const REASON: &str =
        "a page of its memory is gone: its file was truncated, or its huge page pool or tmpfs is full";

    /// Returns true if an access found no page. Once true, it stays true.
    #[must_use]
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A place for one guarded range, which the handler reads without a lock.
struct GuardSlot {
    /// First page and number of pages in one word, so that both are read at once; 0 if there is no range.
    range: AtomicU64,
    /// The flag of the range's [`LostPages`], which the holder of the slot keeps alive.
    lost: AtomicPtr<AtomicBool>,
}

static SLOTS: [GuardSlot; GUARDED_RANGES_MAX] =
    [const { GuardSlot { range: AtomicU64::new(0), lost: AtomicPtr::new(std::ptr::null_mut()) } };
        GUARDED_RANGES_MAX];
/// Slots below this one may hold a range.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
static FREE_SLOTS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn free_slots() -> MutexGuard<'static, Vec<usize>> {
    FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A range of whole pages that is guarded until this is dropped, which happens before it is unmapped.
#[derive(Debug)]
pub(crate) struct GuardedRange {
    slot: usize,
    lost: LostPages,
}

impl GuardedRange {
    /// Guards a mapping that the caller has made and not yet accessed. Both numbers are multiples of the page size.
    ///
    /// # Errors
    /// [`Errno::NOSPC`] for more than [`GUARDED_RANGES_MAX`] ranges, or one that is too long.
    pub(crate) fn new(_: FaultGuard, start: usize, bytes: usize, lost: &LostPages) -> Result<Self, Errno> {
        let range = pack(start, bytes).ok_or(Errno::NOSPC)?;
        let mut free = free_slots();
        let slot = match free.pop() {
            Some(slot) => slot,
            None => {
                let used = SLOTS_USED.load(Ordering::Relaxed);
                if used == GUARDED_RANGES_MAX {
                    return Err(Errno::NOSPC);
                }
                // Changed under the lock of the free slots only.
                SLOTS_USED.store(used + 1, Ordering::Release);
                used
            }
        };
        SLOTS[slot].lost.store(Arc::as_ptr(&lost.0).cast_mut(), Ordering::Release);
        SLOTS[slot].range.store(range, Ordering::Release);
        Ok(Self { slot, lost: lost.clone() })
    }

    /// Returns the report that an access to the range sets.
    pub(crate) fn lost(&self) -> &LostPages {
        &self.lost
    }
}

impl Drop for GuardedRange {
    fn drop(&mut self) {
        SLOTS[self.slot].range.store(0, Ordering::Release);
        free_slots().push(self.slot);
    }
}

fn pack(start: usize, bytes: usize) -> Option<u64> {
    let (first, pages) = ((start / PAGE_BYTES) as u64, (bytes / PAGE_BYTES) as u64);
    let fits = pages > 0 && pages < 1 << PAGES_BITS && first < 1 << (u64::BITS - PAGES_BITS);
    fits.then_some((first << PAGES_BITS) | pages)
}

/// Returns start and length of a packed range; 0 bytes if there is none.
fn unpack(range: u64) -> (usize, usize) {
    // Both came from a usize.
    let (first, pages) = (to_usize(range >> PAGES_BITS), to_usize(range & ((1 << PAGES_BITS) - 1)));
    (first * PAGE_BYTES, pages * PAGE_BYTES)
}

/// Handles SIGBUS. The access that raised it runs again after the return. Nothing here changes `errno` unless the
/// previous action takes over.
extern "C" fn handle_bus_error(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: bounds, alignment, lifetime: the kernel passes a filled-in value that lives until the handler returns.
    // Aliasing: it is only read.
    let info = unsafe { &*info };
    // SAFETY: a plain load: every SIGBUS has the layout with an address.
    let address = unsafe { info.si_addr() }.addr();
    // The code of a signal that a process sent is not positive; its address means nothing.
    if info.si_code > 0 && replace_range(address) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else {
        return;
    };
    // SAFETY: bounds, alignment, lifetime: `previous` is a value that the kernel returned, in a static. Aliasing: it is
    // only read. The call is safe in a signal handler.
    unsafe { libc::sigaction(signal, std::ptr::from_ref(previous), std::ptr::null_mut()) };
    if info.si_code <= 0 {
        // SAFETY: the call takes no pointer and is safe in a signal handler; the signal is delivered after the return.
        unsafe { libc::raise(signal) };
    }
}

/// Maps zeroes over the guarded range that holds the address. Returns false if there is none.
fn replace_range(address: usize) -> bool {
    let used = SLOTS_USED.load(Ordering::Acquire);
    for slot in &SLOTS[..used] {
        let (start, bytes) = unpack(slot.range.load(Ordering::Acquire));
        let Some(offset) = address.checked_sub(start).filter(|&offset| offset < bytes) else {
            continue;
        };
        let chunk = offset - offset % CHUNK_BYTES;
        let replaced = map_zeroes(start, bytes) || map_zeroes(start + chunk, CHUNK_BYTES.min(bytes - chunk));
        if replaced {
            // SAFETY: bounds and alignment: the pointer is that of an `AtomicBool` in an `Arc`. Lifetime: the range
            // contains the address of an access that has not ended, so its mapping and the `GuardedRange`, which holds
            // the `Arc`, still exist. Aliasing: the flag is atomic.
            unsafe { &*slot.lost.load(Ordering::Acquire) }.store(true, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::Release);
        }
        return replaced;
    }
    false
}

/// Maps zeroes over a part of a guarded range. Returns false if the kernel refuses; then the range is as before.
fn map_zeroes(start: usize, bytes: usize) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: bounds: the kernel chooses a range of `bytes` bytes or fails. Alignment: it starts on a page. Lifetime: it
    // is moved or unmapped below. Aliasing: a null hint without FIXED replaces no mapping. It is one system call, which
    // rustix makes without libc.
    let Ok(zeroes) = (unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }) else {
        return false;
    };
    let target = std::ptr::without_provenance_mut::<c_void>(start);
    // A mapping that is made in place can fail after the kernel has removed the old one.
    // SAFETY: bounds: from a mapping of that length to whole pages of one guarded range, which its holder has mapped and
    // not unmapped, because an access to it has not ended. Alignment: both consist of whole pages. Lifetime: the moved
    // mapping ends when the holder unmaps the range. Aliasing: no reference points into the range; every access to it
    // tolerates that other processes change its bytes, and so tolerates zeroes. A system call as above.
    let moved = unsafe { mremap_fixed(zeroes, bytes, bytes, MremapFlags::MAYMOVE, target) };
    if moved.is_err() {
        // SAFETY: exactly the range that the kernel returned above, and that nothing uses.
        let _ = unsafe { munmap(zeroes, bytes) };
    }
    moved.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_memory::SharedMemory;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::os::fd::AsFd as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};

    #[test]
    fn packed_ranges_survive_a_round_trip_and_too_long_ones_are_refused() {
        for (start, bytes) in [(0x7FFF_FFFF_F000, 4_096), (4_096, 1 << 39), (0x5555_0000_0000, 3 << 30)] {
            assert_eq!(unpack(pack(start, bytes).unwrap()), (start, bytes));
        }
        assert_eq!(pack(4_096, 1 << 40), None);
        assert_eq!(pack(4_096, 0), None);
        assert_eq!(unpack(0), (0, 0));
    }

    #[test]
    fn slots_are_reused() {
        let guard = FaultGuard::install().unwrap();
        let lost = LostPages::default();
        for _ in 0..3 * GUARDED_RANGES_MAX {
            let range = GuardedRange::new(guard, 4_096, 4_096, &lost).unwrap();
            assert!(!range.lost().is_set());
        }
    }

    /// Runs one test of this program in a process of its own, in which `variable` is set. Returns its exit status.
    fn status_of_child(test: &str, variable: &str) -> ExitStatus {
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program);
        child.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(variable, "1");
        child.output().unwrap().status
    }

    #[test]
    fn bus_error_outside_guarded_ranges_still_ends_the_process() {
        const VARIABLE: &str = "HEADWATER_TEST_BUS_ERROR";
        const NAME: &str = "fault_guard::tests::bus_error_outside_guarded_ranges_still_ends_the_process";
        if std::env::var_os(VARIABLE).is_none() {
            assert_eq!(status_of_child(NAME, VARIABLE).signal(), Some(libc::SIGBUS));
            return;
        }
        let guard = FaultGuard::install().unwrap();
        let lost = LostPages::default();
        let _elsewhere = GuardedRange::new(guard, 4_096, 4_096, &lost).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4_096).unwrap();
        let access = ProtFlags::READ;
        // SAFETY: the kernel chooses the address of one page, which is only used below.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4_096, access, MapFlags::SHARED, &file, 0) };
        file.set_len(0).unwrap();
        // SAFETY: none: the page is gone, and the access must end this process.
        let byte = unsafe { mapped.unwrap().cast::<u8>().read_volatile() };
        panic!("read {byte} from a page that is gone");
    }

    #[test]
    fn sent_signal_still_ends_the_process() {
        const VARIABLE: &str = "HEADWATER_TEST_SENT_SIGNAL";
        const NAME: &str = "fault_guard::tests::sent_signal_still_ends_the_process";
        if std::env::var_os(VARIABLE).is_none() {
            assert_eq!(status_of_child(NAME, VARIABLE).signal(), Some(libc::SIGBUS));
            return;
        }
        FaultGuard::install().unwrap();
        let own = rustix::process::getpid();
        // The action of Rust's runtime, which is the previous one, ignores the first signal and restores the default.
        for _ in 0..100 {
            rustix::process::kill_process(own, rustix::process::Signal::BUS).unwrap();
            // The signal may be delivered to another thread of this process.
            crate::clock::Clock::sleep(crate::clock::Nanos::from_millis(10));
        }
        panic!("the signals had no effect");
    }

    /// Checks the fallback of the handler: it replaces a part of a range if the process may not map all of it.
    #[test]
    fn ranges_longer_than_the_process_may_map_are_replaced_in_parts() {
        const VARIABLE: &str = "HEADWATER_TEST_DATA_LIMIT";
        const NAME: &str = "fault_guard::tests::ranges_longer_than_the_process_may_map_are_replaced_in_parts";
        const BYTES: usize = 512 << 20;
        if std::env::var_os(VARIABLE).is_none() {
            assert!(status_of_child(NAME, VARIABLE).success());
            return;
        }
        FaultGuard::install().unwrap();
        let lost = LostPages::default();
        let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let region = SharedMemory::map_client(file.as_fd(), 0, BYTES, &lost).unwrap();
        let limit = Rlimit { current: Some(256 << 20), maximum: Some(256 << 20) };
        setrlimit(Resource::Data, limit).unwrap();
        ftruncate(&file, 0).unwrap();
        let mut bytes = [7; 4_096];
        for place in [0, BYTES / 2 - 100, BYTES - 4_096] {
            region.copy_in(place, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 4_096]);
        }
        assert!(lost.is_set());
    }

    #[test]
    fn ranges_of_tens_of_gibibytes_are_replaced_whole() {
        FaultGuard::install().unwrap();
        let lost = LostPages::default();
        let file = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
        let bytes = 48 << 30;
        ftruncate(&file, bytes as u64).unwrap();
        let region = SharedMemory::map_client(file.as_fd(), 0, bytes, &lost).unwrap();
        region.copy_out(bytes - 5, b"hello").unwrap();
        let mut found = [0; 5];
        region.copy_in(bytes - 5, &mut found).unwrap();
        assert_eq!((&found, lost.is_set()), (b"hello", false));
        ftruncate(&file, 4_096).unwrap();
        region.copy_in(bytes - 5, &mut found).unwrap();
        assert_eq!((&found, lost.is_set()), (&[0; 5], true));
    }
}
