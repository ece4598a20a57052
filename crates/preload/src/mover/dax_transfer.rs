//! A positioned read or write of a file on persistent memory, through a mapping.
//!
//! ```text
//!  guarded? --> flags? --> file, range? --> mapping --> time of change --> copy --> done
//!     no          no           no           refused        refused       fault
//!     +-----------+------------+---------------+--------------+------------+------> the kernel's call, of the whole
//! ```
//! Input: what `pread` or `pwrite` was called with. Output: the number of bytes, or the statement that the kernel shall do it.
//! Invariants: a transfer that is done here has the effect and the result of the kernel's call; one that is not changes
//! nothing that the kernel's call does not change too. `errno` stays as it was, because the calls of this file go to the kernel
//! without the C library.
//!
//! # What a program can tell apart
//! Mapped transfers of overlapping ranges by several threads at a time are not atomic, and a watch of the file (inotify) does
//! not see them.

use super::counters::{COUNTERS, count};
use super::fault_fixup::{PageGone, is_guarded, load, store};
use super::mapped_files::{
    AccessWanted, FileIdentity, FreshMapping, MappingUse, UNIT_BYTES, find, forget, forget_all, is_empty,
    keep, unmap,
};
use super::prefault::{PageAccess, prefault_target};
use rustix::fs::{
    AtFlags, OFlags, SealFlags, Statx, StatxAttributes, StatxFlags, fcntl_get_seals, fcntl_getfl, fstatfs,
    statx,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The length from which a transfer is tried here. Until the settings are read, no length has so many.
pub(super) static TRANSFER_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// True if files of every file system are mapped, not only those on DAX.
pub(super) static MAPS_ANY_FILE: AtomicBool = AtomicBool::new(false);

/// The longest transfer of one call of the kernel.
const KERNEL_BYTES_MAX: usize = 0x7FFF_F000;
/// The most bytes that are mapped behind the end of a file, for its growth.
const GROWTH_MAX: usize = 1 << 30;
/// The bits of a file's mode that a write may clear, or that let it run: the kernel writes such files.
const SPECIAL_MODE_BITS: u16 = 0o6111;

/// A transfer, as a program asked for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramRange {
    pub(super) descriptor: c_int,
    /// The program's buffer: written by a read, read by a write.
    pub(super) buffer: *mut u8,
    pub(super) bytes: usize,
    pub(super) offset: i64,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferDirection {
    Read,
    Write,
}

/// A transfer that the kernel shall do.
struct LeftToKernel;

/// Transfers a range. Returns the number of bytes, or `None` if the kernel shall do the whole.
///
/// # Safety
/// As for `pread` and `pwrite`: the buffer belongs to the caller. It need not exist.
pub(super) unsafe fn transfer(range: ProgramRange, direction: TransferDirection) -> Option<usize> {
    if range.bytes < TRANSFER_BYTES.load(Ordering::Relaxed) || range.bytes > KERNEL_BYTES_MAX {
        return None;
    }
    // SAFETY: the caller promises the same.
    let done = unsafe { transfer_mapped(range, direction) };
    done.ok()
}

/// Transfers a range through a mapping.
///
/// # Safety
/// As for [`transfer`].
unsafe fn transfer_mapped(range: ProgramRange, direction: TransferDirection) -> Result<usize, LeftToKernel> {
    if range.descriptor < 0 {
        return Err(LeftToKernel);
    }
    // SAFETY: the program uses the descriptor for this call. One that is closed is the kernel's error.
    let file = unsafe { BorrowedFd::borrow_raw(range.descriptor) };
    let access = check_flags(file, direction)?;
    let status = status_of(file).ok_or(LeftToKernel)?;
    check_file(&status, direction)?;
    let (start, bytes) = check_range(&range, &status, direction)?;
    if !is_guarded() {
        return left(&COUNTERS.kernel_signals);
    }
    let mapping = mapping_of(file, &status, access, start + bytes, direction)?;
    if direction == TransferDirection::Write {
        note_change(file, &status)?;
    }
    let place = std::ptr::without_provenance_mut::<u8>(mapping.start() + start);
    let copied = match direction {
        TransferDirection::Read => {
            mapping.prefault(start, bytes, PageAccess::Read);
            prefault_target(range.buffer.addr(), bytes);
            // SAFETY: the buffer is the caller's; the mapping is in use, and the range lies in it.
            unsafe { load(range.buffer, place, bytes) }
        }
        TransferDirection::Write => {
            mapping.prefault(start, bytes, PageAccess::Write);
            // SAFETY: as above.
            unsafe { store(place, range.buffer, bytes) }
        }
    };
    copied.map_err(|PageGone| LeftToKernel)?;
    if direction == TransferDirection::Write {
        commit_length(file, &mapping, start + bytes)?;
    }
    drop(mapping);
    let (calls, sum) = match direction {
        TransferDirection::Read => (&COUNTERS.mapped_reads, &COUNTERS.mapped_read_bytes),
        TransferDirection::Write => (&COUNTERS.mapped_writes, &COUNTERS.mapped_write_bytes),
    };
    count(calls, 1);
    count(sum, bytes as u64);
    Ok(bytes)
}

fn left<T>(reason: &std::sync::atomic::AtomicU64) -> Result<T, LeftToKernel> {
    count(reason, 1);
    Err(LeftToKernel)
}

/// Checks how the descriptor was opened. Returns true if it may be mapped for writing.
fn check_flags(file: BorrowedFd<'_>, direction: TransferDirection) -> Result<bool, LeftToKernel> {
    let Ok(flags) = fcntl_getfl(file) else { return left(&COUNTERS.kernel_flags) };
    let mode = flags & OFlags::RWMODE;
    let may = match direction {
        TransferDirection::Read => mode == OFlags::RDONLY || mode == OFlags::RDWR,
        TransferDirection::Write => mode == OFlags::WRONLY || mode == OFlags::RDWR,
    };
    // A write behind O_APPEND ignores its offset; O_DIRECT has rules of alignment; O_SYNC makes the times durable too, and
    // O_DSYNC more than a mapping without MAP_SYNC.
    let maps_any = MAPS_ANY_FILE.load(Ordering::Relaxed);
    let is_synchronous = flags.contains(OFlags::SYNC) || maps_any && flags.intersects(OFlags::SYNC);
    let is_special = flags.intersects(OFlags::DIRECT | OFlags::PATH)
        || direction == TransferDirection::Write && (flags.contains(OFlags::APPEND) || is_synchronous);
    if !may || is_special {
        return left(&COUNTERS.kernel_flags);
    }
    Ok(mode == OFlags::RDWR)
}

fn status_of(file: BorrowedFd<'_>) -> Option<Statx> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()
}

fn identity_of(status: &Statx) -> FileIdentity {
    let device = u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor);
    FileIdentity { device, inode: status.stx_ino }
}

fn check_file(status: &Statx, direction: TransferDirection) -> Result<(), LeftToKernel> {
    let attributes = status.stx_attributes;
    let is_regular = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    let may_map = MAPS_ANY_FILE.load(Ordering::Relaxed) || attributes.contains(StatxAttributes::DAX);
    let refuses_writes = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND | StatxAttributes::VERITY;
    let is_read_only = direction == TransferDirection::Write
        && (attributes.intersects(refuses_writes) || status.stx_mode & SPECIAL_MODE_BITS != 0);
    if is_regular && may_map && !is_read_only { Ok(()) } else { left(&COUNTERS.kernel_file) }
}

/// Returns the first byte and the number of bytes, which lie in the file. A read ends at its end.
fn check_range(
    range: &ProgramRange,
    status: &Statx,
    direction: TransferDirection,
) -> Result<(usize, usize), LeftToKernel> {
    let (Ok(start), Ok(size)) = (usize::try_from(range.offset), usize::try_from(status.stx_size)) else {
        return left(&COUNTERS.kernel_range);
    };
    match size.checked_sub(start) {
        Some(rest) if rest >= range.bytes => Ok((start, range.bytes)),
        Some(rest) if rest > 0 && direction == TransferDirection::Read => Ok((start, rest)),
        _ => left(&COUNTERS.kernel_range),
    }
}

/// Returns a mapping of the first `end` bytes, or more.
fn mapping_of(
    file: BorrowedFd<'_>,
    status: &Statx,
    may_write: bool,
    end: usize,
    direction: TransferDirection,
) -> Result<MappingUse, LeftToKernel> {
    let identity = identity_of(status);
    let wanted = match direction {
        TransferDirection::Read => AccessWanted::Read,
        TransferDirection::Write if may_write => AccessWanted::Write,
        TransferDirection::Write => AccessWanted::WriteOfAnother,
    };
    let size = usize::try_from(status.stx_size).unwrap_or(usize::MAX);
    if let Some(used) = find(identity, end, wanted) {
        used.lower_file_bytes(size);
        return Ok(used);
    }
    let whole = size.checked_next_multiple_of(UNIT_BYTES);
    let Some(bytes) = whole.and_then(|whole| whole.checked_add(whole.min(GROWTH_MAX))) else {
        return left(&COUNTERS.kernel_range);
    };
    let access = if may_write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    if direction == TransferDirection::Write && !may_write {
        // A descriptor that only writes cannot be mapped.
        return left(&COUNTERS.kernel_flags);
    }
    if fcntl_get_seals(file).is_ok_and(|seals| !seals.contains(SealFlags::SEAL)) {
        // A mapping would keep the program from sealing its memory file.
        return left(&COUNTERS.kernel_file);
    }
    let map = |flags| {
        // SAFETY: the kernel chooses the address: without FIXED it replaces no mapping.
        unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, file, 0) }
    };
    let synchronous = map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC);
    let counter = if synchronous.is_ok() { &COUNTERS.maps_sync } else { &COUNTERS.maps_plain };
    let mapped = match synchronous {
        Err(_) if MAPS_ANY_FILE.load(Ordering::Relaxed) && is_coherent(file) => map(MapFlags::SHARED),
        result => result,
    };
    let Ok(start) = mapped else { return left(&COUNTERS.maps_refused) };
    count(counter, 1);
    let mapping = FreshMapping { start: start.addr(), bytes, is_writable: may_write, file_bytes: size };
    if status_of(file).is_none_or(|now| identity_of(&now) != identity) {
        // The descriptor became that of another file since it was looked at.
        unmap(mapping);
        return left(&COUNTERS.kernel_file);
    }
    keep(identity, mapping).map_or_else(|| left(&COUNTERS.kernel_full), Ok)
}

/// The file systems of which a plain mapping shows what `pread` shows, and where device and inode are one file: not those
/// over another one (overlayfs), over a network or over a program (FUSE). By the `f_type` of ext4, XFS, Btrfs, tmpfs and F2FS.
const COHERENT: [u64; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0xF2F5_2010];

fn is_coherent(file: BorrowedFd<'_>) -> bool {
    fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| COHERENT.contains(&kind)))
}

/// Makes a write durable that ends behind the length which the file had when it was mapped: the kernel commits a new length
/// only where a page is written first.
fn commit_length(file: BorrowedFd<'_>, mapping: &MappingUse, end: usize) -> Result<(), LeftToKernel> {
    if end <= mapping.file_bytes() {
        return Ok(());
    }
    rustix::fs::fdatasync(file).or_else(|_| left(&COUNTERS.kernel_file))?;
    mapping.raise_file_bytes(end);
    Ok(())
}

/// Notes the time of a change, as the kernel does before it writes: unless the file has the present time already.
fn note_change(file: BorrowedFd<'_>, status: &Statx) -> Result<(), LeftToKernel> {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let is_present = |time: rustix::fs::StatxTimestamp| {
        (time.tv_sec, i64::from(time.tv_nsec)) >= (now.tv_sec, now.tv_nsec)
    };
    if is_present(status.stx_mtime) && is_present(status.stx_ctime) {
        return Ok(());
    }
    let omitted = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let present = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: omitted, last_modification: present };
    // The owner may; another user's program leaves the write to the kernel.
    rustix::fs::futimens(file, &times).or_else(|_| left(&COUNTERS.kernel_file))
}

/// Removes the mapping of a file whose descriptor is about to be closed. Another descriptor makes a new one.
pub(super) fn forget_descriptor(descriptor: c_int) {
    if descriptor < 0 || is_empty() {
        return;
    }
    // SAFETY: the program passes the descriptor for this call.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if let Some(status) = status_of(file) {
        forget(identity_of(&status));
    }
}

/// Removes all mappings, because files of unknown descriptors are about to be closed. Other descriptors make new ones.
pub(super) fn forget_descriptors() {
    if !is_empty() {
        forget_all();
    }
}
