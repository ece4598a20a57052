//! Persistent memory that is mapped into this process.
//!
//! Input: a file, best one on a DAX file system, or a length of anonymous memory. Output: a [`MappedPersistentMemory`],
//! which says by [`DurabilityMethod`] what its fences do. Invariant: no reference into the mapping exists; every access
//! is a copy by instructions that the compiler sees nothing of, or an atomic, so that other threads and processes may use
//! the same file.
//!
//! # What this does not do
//! It does not lock the file. A process that shortens it makes later accesses end this process by a bus error, and so does
//! a line that the medium cannot read.

use super::{FenceError, PersistentMemory, WORD_BYTES};
use crate::copy::copy_untrusted;
use crate::copy::persist::{
    STREAMING_PERSIST_BYTES_MIN, WriteBackInstruction, drain, fill_raw, flush_raw, store_raw, stream_raw,
    write_back_instruction,
};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, msync, munmap};
use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Ranges that a mapping remembers for the next msync; more become one range.
const RANGES_MAX: usize = 64;

/// The means by which a fence makes bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurabilityMethod {
    /// Flush instructions and a store fence: a mapping of a DAX file whose metadata the kernel keeps durable (`MAP_SYNC`).
    Instructions,
    /// An msync of what was flushed or streamed: the file is not on a DAX file system, or the processor has no flush
    /// instruction.
    Msync,
    /// None: anonymous memory, which ends with the process. The instructions run, for tests and measurements.
    Volatile,
}

/// An error of mapping persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapMemoryError {
    /// The file is shorter than the mapping, or the mapping is empty.
    #[error("{bytes} bytes of a file of {file_bytes} bytes cannot be mapped: extend the file, or map less")]
    Length {
        /// The requested length.
        bytes: usize,
        /// The length of the file.
        file_bytes: u64,
    },
    /// The kernel refused.
    #[error("{bytes} bytes of persistent memory cannot be mapped: {errno}")]
    Map {
        /// The requested length.
        bytes: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

/// The state of msync.
#[derive(Debug, Default)]
struct SyncState {
    /// Ranges that the next fence writes to the file.
    pending: Vec<Range<usize>>,
    failed: Option<FenceError>,
}

/// Persistent memory in the address space of this process.
pub struct MappedPersistentMemory {
    start: NonNull<u8>,
    bytes: usize,
    method: DurabilityMethod,
    streaming_from_bytes: usize,
    sync: Mutex<SyncState>,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the mapping belongs to the process, not to a thread, and this
// value unmaps it once. Aliasing: every access is a copy or an atomic that tolerates concurrent ones.
unsafe impl Send for MappedPersistentMemory {}
// SAFETY: as for Send.
unsafe impl Sync for MappedPersistentMemory {}

impl MappedPersistentMemory {
    /// Maps the first `bytes` bytes of a file that is open for reading and writing.
    ///
    /// # Errors
    /// [`MapMemoryError`].
    pub fn map_file(file: &File, bytes: usize) -> Result<Self, MapMemoryError> {
        let map_error = |errno| MapMemoryError::Map { bytes, errno };
        let file_bytes = u64::try_from(fstat(file).map_err(map_error)?.st_size).unwrap_or(0);
        if bytes == 0 || u64::try_from(bytes).is_ok_and(|bytes| bytes > file_bytes) {
            return Err(MapMemoryError::Length { bytes, file_bytes });
        }
        let map = |flags| {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: bounds: the range lies in the file. Alignment: the kernel chooses an address on a page. Lifetime:
            // ours until `drop` unmaps it. Aliasing: a null hint without FIXED replaces no mapping.
            unsafe { mmap(ptr::null_mut(), bytes, access, flags, file, 0) }
        };
        let has_instruction = write_back_instruction() != WriteBackInstruction::Unavailable;
        if has_instruction && let Ok(start) = map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            return Self::at(start, bytes, DurabilityMethod::Instructions);
        }
        // Without DAX the kernel refuses MAP_SYNC.
        let start = map(MapFlags::SHARED).map_err(map_error)?;
        Self::at(start, bytes, DurabilityMethod::Msync)
    }

    /// Maps zeroed memory of this process, which stands in for persistent memory.
    ///
    /// # Errors
    /// [`MapMemoryError`].
    pub fn anonymous(bytes: usize) -> Result<Self, MapMemoryError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `map_file`.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let start = start.map_err(|errno| MapMemoryError::Map { bytes, errno })?;
        Self::at(start, bytes, DurabilityMethod::Volatile)
    }

    fn at(start: *mut c_void, bytes: usize, method: DurabilityMethod) -> Result<Self, MapMemoryError> {
        let no_address = MapMemoryError::Map { bytes, errno: Errno::NOMEM };
        let start = NonNull::new(start.cast::<u8>()).ok_or(no_address)?;
        let streaming_from_bytes = STREAMING_PERSIST_BYTES_MIN;
        Ok(Self { start, bytes, method, streaming_from_bytes, sync: Mutex::default() })
    }

    /// Sets the length from which [`PersistentMemory::write`] streams, as
    /// [`PersistThreshold`](crate::calibration::persist::PersistThreshold) measures it.
    #[must_use]
    pub fn with_streaming_from(mut self, bytes: usize) -> Self {
        self.streaming_from_bytes = bytes;
        self
    }

    /// Returns what the fences of this mapping do.
    #[must_use]
    pub fn method(&self) -> DurabilityMethod {
        self.method
    }

    /// Returns the start of a checked range. The pointer is valid for `bytes` bytes while `self` lives.
    #[inline]
    #[track_caller]
    fn place(&self, offset: usize, bytes: usize) -> *mut u8 {
        let end = offset.checked_add(bytes);
        let is_inside = end.is_some_and(|end| end <= self.bytes);
        assert!(is_inside, "{bytes} bytes at {offset} do not lie in memory of {} bytes", self.bytes);
        self.start.as_ptr().wrapping_add(offset)
    }

    #[inline]
    #[track_caller]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(WORD_BYTES), "a word at {offset}, which is not a multiple of 8");
        let place = self.place(offset, WORD_BYTES);
        // SAFETY: bounds: `place` found 8 bytes. Alignment: the mapping starts on a page and the offset is a multiple
        // of 8. Lifetime: the reference borrows `self`. Aliasing: all accesses tolerate concurrent ones.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// Notes a range that the next fence writes to the file, if that takes an msync.
    #[inline]
    fn note_pending(&self, range: Range<usize>) {
        if self.method == DurabilityMethod::Msync && !range.is_empty() {
            self.sync.lock().unwrap_or_else(PoisonError::into_inner).note(range);
        }
    }
}

impl SyncState {
    fn note(&mut self, range: Range<usize>) {
        let joins = |last: &Range<usize>| range.start <= last.end && last.start <= range.end;
        let is_full = self.pending.len() >= RANGES_MAX;
        match self.pending.last_mut() {
            Some(last) if joins(last) || is_full => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => self.pending.push(range),
        }
    }
}

impl PersistentMemory for MappedPersistentMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn load(&self, offset: usize, into: &mut [u8]) {
        let from = self.place(offset, into.len());
        // SAFETY: bounds: `place` found the range, `into` has as many bytes. Alignment: the copy needs none. Lifetime:
        // `self` keeps the mapping. Aliasing: `into` is borrowed exclusively, and no reference points into the mapping.
        unsafe { copy_untrusted(into.as_mut_ptr(), from, into.len()) };
    }

    #[inline]
    fn load_word(&self, offset: usize) -> u64 {
        u64::from_le(self.word(offset).load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, offset: usize, from: &[u8]) {
        let to = self.place(offset, from.len());
        // SAFETY: `place` found the range; no reference points into the mapping, so `from` is apart from it.
        unsafe { store_raw(to, from) };
    }

    #[inline]
    fn store_word(&self, offset: usize, value: u64) {
        self.word(offset).store(value.to_le(), Ordering::Release);
    }

    #[inline]
    fn store_streaming(&self, offset: usize, from: &[u8]) {
        let to = self.place(offset, from.len());
        // SAFETY: as in `store`.
        unsafe { stream_raw(to, from) };
        self.note_pending(offset..offset + from.len());
    }

    fn fill(&self, range: Range<usize>, value: u8) {
        let bytes = range.end.saturating_sub(range.start);
        let to = self.place(range.start, bytes);
        // SAFETY: `place` found the range.
        unsafe { fill_raw(to, bytes, value) };
        self.note_pending(range);
    }

    #[inline]
    fn flush(&self, range: Range<usize>) {
        let bytes = range.end.saturating_sub(range.start);
        let start = self.place(range.start, bytes);
        if self.method == DurabilityMethod::Msync {
            return self.note_pending(range);
        }
        // SAFETY: `place` found the range, which is mapped as long as `self` lives.
        unsafe { flush_raw(start, bytes) };
    }

    fn fence(&self) -> Result<(), FenceError> {
        let _promise = drain();
        if self.method != DurabilityMethod::Msync {
            return Ok(());
        }
        // Held during the calls, so that no other thread's fence returns before its ranges are written.
        let mut sync = self.sync.lock().unwrap_or_else(PoisonError::into_inner);
        for range in std::mem::take(&mut sync.pending) {
            if sync.failed.is_some() {
                break;
            }
            sync.failed = self.sync_pages(&range).err();
        }
        sync.failed.map_or(Ok(()), Err)
    }

    fn streaming_from_bytes(&self) -> usize {
        self.streaming_from_bytes
    }
}

impl MappedPersistentMemory {
    /// Writes the pages of a range to the file.
    fn sync_pages(&self, range: &Range<usize>) -> Result<(), FenceError> {
        let first = range.start - range.start % rustix::param::page_size();
        let bytes = range.end - first;
        let start = self.place(first, bytes).cast::<c_void>();
        // SAFETY: bounds: `place` found the range. Alignment: the mapping starts on a page, and `first` is a multiple of
        // the page size. Lifetime: `self` keeps the mapping. Aliasing: msync changes no byte.
        unsafe { msync(start, bytes, MsyncFlags::SYNC) }.map_err(|errno| FenceError {
            offset: first,
            bytes,
            errno,
        })
    }
}

impl Drop for MappedPersistentMemory {
    fn drop(&mut self) {
        // SAFETY: bounds and alignment: the range that the kernel returned. Lifetime: this is the only handle. Aliasing:
        // no reference into the range exists. A failure leaks address space and breaks nothing.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl fmt::Debug for MappedPersistentMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedPersistentMemory({} bytes, {:?})", self.bytes, self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    const BYTES: usize = 3 * 4_096 + 100;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES as u64).unwrap();
        file
    }

    #[test]
    fn fenced_bytes_are_read_from_the_file_and_from_the_next_mapping() {
        let mut file = file();
        let memory = MappedPersistentMemory::map_file(&file, BYTES).unwrap();
        assert_ne!(memory.method(), DurabilityMethod::Volatile);
        memory.store(5, b"through the cache");
        memory.flush(5..22);
        memory.store_streaming(4_000, &[7; 300]);
        memory.write_word(8_192, 0x0102_0304_0506_0708);
        memory.fill(12_288..BYTES, 9);
        memory.write(9_000, &[3; 30]);
        memory.fence().unwrap();
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        let mut expected = vec![0; BYTES];
        expected[5..22].copy_from_slice(b"through the cache");
        expected[4_000..4_300].fill(7);
        expected[8_192..8_200].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        expected[12_288..].fill(9);
        expected[9_000..9_030].fill(3);
        assert!(found == expected);
        drop(memory);
        let again = MappedPersistentMemory::map_file(&file, BYTES).unwrap();
        let mut loaded = vec![1; BYTES];
        again.load(0, &mut loaded);
        assert!(loaded == expected);
        assert_eq!(again.load_word(8_192), 0x0102_0304_0506_0708);
    }

    #[test]
    fn file_without_dax_is_made_durable_by_msync() {
        let tmpfs = rustix::fs::memfd_create(c"headwater", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(tmpfs);
        file.set_len(4_096).unwrap();
        let memory = MappedPersistentMemory::map_file(&file, 4_096).unwrap();
        assert_eq!(memory.method(), DurabilityMethod::Msync);
        let anonymous = MappedPersistentMemory::anonymous(4_096).unwrap();
        assert_eq!(anonymous.method(), DurabilityMethod::Volatile);
        anonymous.write(0, &[1; 4_096]);
        assert_eq!(anonymous.fence(), Ok(()));
    }

    #[test]
    fn ranges_for_msync_are_joined_and_bounded() {
        let mut state = SyncState::default();
        for at in 0..10_usize {
            state.note(at * 64..at * 64 + 64);
        }
        assert_eq!(state.pending, [Range { start: 0, end: 640 }]);
        for at in 1..2_000_usize {
            state.note(at * 1_000_usize..at * 1_000 + 1);
        }
        assert_eq!(state.pending.len(), RANGES_MAX);
        let is_covered = |byte: usize| state.pending.iter().any(|range| range.contains(&byte));
        assert!((1..2_000).all(|at| is_covered(at * 1_000)));
    }

    #[test]
    fn failed_msync_fails_every_later_fence() {
        let memory = MappedPersistentMemory::map_file(&file(), BYTES).unwrap();
        let failed = FenceError { offset: 0, bytes: 64, errno: Errno::IO };
        if memory.method() == DurabilityMethod::Msync {
            memory.sync.lock().unwrap().failed = Some(failed);
            memory.write_word(0, 1);
            assert_eq!(memory.fence(), Err(failed));
            assert_eq!(memory.fence(), Err(failed));
        }
    }

    #[test]
    fn short_file_and_empty_mapping_are_refused() {
        let file = file();
        for bytes in [0, BYTES + 1] {
            let error = MappedPersistentMemory::map_file(&file, bytes).unwrap_err();
            assert_eq!(error, MapMemoryError::Length { bytes, file_bytes: BYTES as u64 });
        }
        assert!(MappedPersistentMemory::anonymous(0).is_err());
    }

    #[test]
    #[should_panic(expected = "do not lie in memory")]
    fn range_outside_of_the_memory_panics() {
        MappedPersistentMemory::anonymous(4_096).unwrap().store(4_090, &[0; 7]);
    }

    #[test]
    #[should_panic(expected = "not a multiple of 8")]
    fn word_that_is_not_aligned_panics() {
        MappedPersistentMemory::anonymous(4_096).unwrap().store_word(12, 0);
    }
}
