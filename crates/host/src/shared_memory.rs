//! Shared memory: pages that a client and the device both have mapped.
//!
//! Input: an offset and bytes of this process. Output: copies. Invariant: no reference into the pages ever exists,
//! because the other side, which may be another process, writes them at any time; bytes copied in are validated after
//! the copy, once.
//!
//! Memory of another process is accepted if it cannot be shrunk while mapped, which is a memfd sealed against shrinking,
//! or if the process has a [`FaultGuard`](crate::fault_guard::FaultGuard).
//!
//! It handles no I/O virtual addresses: `dma::iova` does.

mod between;
mod guarded;
mod joined;
mod mapping;
mod persist;
mod socket;

pub use joined::{JoinError, SharedPages};
pub use socket::{SEND_PIECES_MAX, SocketPiece, send_pieces};

use crate::copy::{copy_in_crc32c, copy_out_crc32c, copy_untrusted};
use crate::fault_guard::LostPages;
use crate::mapped_region::SpanSink;
use crate::reservation::PageSpan;
use mapping::{MappingOrigin, RegionMapping};
use rustix::fs::{
    MemfdFlags, SealFlags, StatFs, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

/// The alignment of offsets into a descriptor.
const PAGE_BYTES: u64 = 4_096;
/// The `f_type` that `fstatfs` reports for a memfd of huge pages.
const HUGETLBFS: u64 = 0x9584_58F6;

/// The error that a range does not lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes at offset {offset} do not lie in a region of {region_bytes} bytes; send an address inside it"
)]
pub struct OutOfRegion {
    /// The first byte of the range.
    pub offset: usize,
    /// The length of the range.
    pub bytes: usize,
    /// The length of the region.
    pub region_bytes: usize,
}

/// The error that the kernel has no memory to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a shared region of {bytes} bytes cannot be mapped: {errno}; request less or raise the memory limit")]
pub struct MapError {
    /// The requested length.
    pub bytes: usize,
    /// The kernel's error.
    pub errno: rustix::io::Errno,
}

/// An error of mapping a descriptor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapDescriptorError {
    /// The file is not sealed: its other holders could shrink it, and the device would fault.
    #[error("the region is not sealed against shrinking; create it with memfd_create and add F_SEAL_SHRINK")]
    Unsealed,
    /// Huge pages come from a pool that can be empty when a page is first touched, and the device would fault.
    #[error(
        "the region consists of huge pages of a fixed pool; create it with memfd_create without MFD_HUGETLB"
    )]
    HugePages,
    /// The file is not in memory: its file system could block an access, or fail it.
    #[error("the region's file is on a disk or another file system than tmpfs and hugetlbfs; pass a memfd")]
    NotMemory,
    /// The range does not lie in the file, or is not page-aligned.
    #[error("{bytes} bytes at offset {offset} are not whole pages inside a file of {file_bytes} bytes")]
    Range {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        bytes: usize,
        /// The length of the file.
        file_bytes: u64,
    },
    /// The kernel refused.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A shared region. A clone is another handle to the same pages; the last handle unmaps them.
#[derive(Clone)]
pub struct SharedMemory {
    mapping: Arc<RegionMapping>,
}

impl SharedMemory {
    /// Maps a region of zeroes, shared between all its handles and with children of a fork.
    ///
    /// # Errors
    /// [`MapError`] for no bytes at all, or when the kernel has none to give.
    pub fn anonymous(bytes: usize) -> Result<Self, MapError> {
        let flags = MapFlags::SHARED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: bounds: the kernel chooses a range of `bytes` bytes or fails. Alignment: it starts on a page.
        // Lifetime: the range is ours until `RegionMapping::drop` unmaps it. Aliasing: a null hint without FIXED
        // replaces no mapping.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let errno_of = |errno| MapError { bytes, errno };
        let start = mapped.map_err(errno_of)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(errno_of(rustix::io::Errno::NOMEM))?;
        Ok(Self { mapping: Arc::new(RegionMapping { start, bytes, origin: MappingOrigin::KernelMapping }) })
    }

    /// Creates a region of zeroes and the descriptor by which other processes map it, sealed so that its length stays.
    ///
    /// # Errors
    /// [`MapDescriptorError::Map`] when the kernel has no memory or no descriptor to give.
    pub fn memfd(bytes: usize) -> Result<(Self, OwnedFd), MapDescriptorError> {
        let errno_of = |errno| MapError { bytes, errno };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = memfd_create(c"headwater", flags).map_err(errno_of)?;
        ftruncate(&descriptor, bytes as u64).map_err(errno_of)?;
        fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(errno_of)?;
        let region = Self::map_descriptor(descriptor.as_fd(), 0, bytes)?;
        Ok((region, descriptor))
    }

    /// Maps a range of a memfd that another process created.
    ///
    /// # Errors
    /// [`MapDescriptorError`] for one that could shrink, a range outside it or not page-aligned, or when the kernel refuses.
    pub fn map_descriptor(
        descriptor: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> Result<Self, MapDescriptorError> {
        let errno_of = |errno| MapError { bytes, errno };
        // Files other than memfds have no seals at all.
        let seals = fcntl_get_seals(descriptor).map_err(|_| MapDescriptorError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MapDescriptorError::Unsealed);
        }
        if is_hugetlbfs(&fstatfs(descriptor).map_err(errno_of)?) {
            return Err(MapDescriptorError::HugePages);
        }
        let file_bytes = u64::try_from(fstat(descriptor).map_err(errno_of)?.st_size).unwrap_or(0);
        let end = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
        let inside = end.is_some_and(|end| end <= file_bytes);
        if !inside || bytes == 0 || !offset.is_multiple_of(PAGE_BYTES) {
            return Err(MapDescriptorError::Range { offset, bytes, file_bytes });
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: bounds: the range lies in the file, whose seal keeps it from shrinking, so no access faults.
        // Alignment: the offset is a multiple of the page size, the kernel chooses an address on a page. Lifetime: ours
        // until `RegionMapping::drop` unmaps it. Aliasing: a null hint without FIXED replaces no mapping.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, descriptor, offset) };
        let start = mapped.map_err(errno_of)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(errno_of(rustix::io::Errno::NOMEM))?;
        Ok(Self { mapping: Arc::new(RegionMapping { start, bytes, origin: MappingOrigin::KernelMapping }) })
    }

    /// Wraps pages of a reservation, lent until the last handle is dropped; then they return to `sink`.
    #[must_use]
    pub fn from_span(span: PageSpan, sink: Box<dyn SpanSink>) -> Self {
        let (start, bytes) = (span.start(), span.bytes());
        let origin = MappingOrigin::LentPages(Some(span.lend()), sink);
        Self { mapping: Arc::new(RegionMapping { start, bytes, origin }) }
    }

    /// Returns the bytes, if they are [pages of a reservation](Self::from_span) and this is the only handle. A device
    /// works on pages only for a holder of a handle to them, so none does while this one is borrowed.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let mapping = Arc::get_mut(&mut self.mapping)?;
        let MappingOrigin::LentPages(Some(_), _) = mapping.origin else {
            return None;
        };
        // SAFETY: bounds and lifetime: a span's bytes are mapped and initialised as long as it is claimed, which it is
        // until `RegionMapping::drop`; the borrow of `self` keeps the mapping. Alignment: of bytes. Aliasing: the span
        // is the only one over them, and this is the only handle of the mapping, borrowed exclusively, so no copy runs
        // during the borrow.
        Some(unsafe { slice::from_raw_parts_mut(mapping.start.as_ptr(), mapping.bytes) })
    }

    /// Returns a handle to the same pages with a value that is dropped after its last clone, and before the pages are
    /// unmapped: a pin of the pages, for example. The value must not end the mapping.
    #[must_use]
    pub fn kept_with(self, value: Box<dyn Send + Sync>) -> Self {
        let (start, bytes) = (self.mapping.start, self.mapping.bytes);
        let origin = MappingOrigin::KeptWith(Some(value), self);
        Self { mapping: Arc::new(RegionMapping { start, bytes, origin }) }
    }

    /// Keeps the pages from ever returning, even if other handles exist: a device may still write there.
    pub fn leak(self) {
        let _never_dropped = ManuallyDrop::new(self.mapping);
    }

    /// Returns the 64-bit word at an offset, for rings.
    ///
    /// # Errors
    /// [`OutOfRegion`] for an offset that is not a multiple of 8 or runs over the end.
    #[inline]
    #[cfg(not(loom))]
    pub(crate) fn word(&self, offset: usize) -> Result<&AtomicU64, OutOfRegion> {
        let place = self.checked_address(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(OutOfRegion { offset, bytes: 8, region_bytes: self.mapping.bytes });
        }
        // SAFETY: bounds: `checked_address` found 8 bytes. Alignment: the mapping starts on a page and the offset is a
        // multiple of 8. Lifetime: the reference borrows `self`, which keeps the mapping. Aliasing: inside this process
        // the word is accessed by atomics, or by copies that tolerate concurrent writes; other processes may write it
        // at any time, which an atomic tolerates.
        Ok(unsafe { AtomicU64::from_ptr(place.cast::<u64>()) })
    }

    /// Returns the region's first address in this process, to be given to a device. It grants no access to the bytes.
    #[must_use]
    pub fn address(&self) -> usize {
        self.mapping.start.expose_provenance().get()
    }

    /// Returns true if another process can take pages away. An access to such a page reads zeroes.
    #[must_use]
    #[inline]
    pub fn can_lose_pages(&self) -> bool {
        self.mapping.lost().is_some()
    }

    /// Returns true if an access of this process to memory of the same client found no page: what was copied from the
    /// region may be zeroes that no client wrote. Once true, it stays true.
    #[must_use]
    #[inline]
    pub fn has_lost_pages(&self) -> bool {
        self.mapping.lost().is_some_and(LostPages::is_set)
    }

    /// Returns true if both are handles to one mapping.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Returns true if no other handle to these pages exists. Only the owner of the last handle can make another one.
    #[must_use]
    pub fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.mapping) == 1
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Copies from the region to memory of this process.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn copy_in(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRegion> {
        let source = self.checked_address(offset, into.len())?;
        // SAFETY: bounds: `checked_address` found that many bytes from `source` on in the mapping, `into` has as many.
        // Alignment: the copy needs none. Lifetime: `self` keeps the mapping, the borrow keeps `into`. Aliasing: `into`
        // is borrowed exclusively and no reference ever points into the mapping, so they are apart; concurrent writes
        // to the source are what `copy_untrusted` is for.
        unsafe { copy_untrusted(into.as_mut_ptr(), source, into.len()) };
        Ok(())
    }

    /// Copies from memory of this process to the region.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn copy_out(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, from.len())?;
        // SAFETY: bounds: `checked_address` found that many bytes from `target` on in the mapping, `from` has as many.
        // Alignment: the copy needs none. Lifetime: `self` keeps the mapping, the borrow keeps `from`. Aliasing: no
        // reference ever points into the mapping, so nothing that the compiler assumes constant changes; concurrent
        // accesses to the target are what `copy_untrusted` is for.
        unsafe { copy_untrusted(target, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies from the region to memory of this process in one pass, and returns the CRC-32C of the copied bytes,
    /// continued from `seed`: of the bytes that `into` then has, also if a client writes the region during the copy.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn copy_in_crc32c(&self, offset: usize, into: &mut [u8], seed: u32) -> Result<u32, OutOfRegion> {
        let source = self.checked_address(offset, into.len())?;
        // SAFETY: as in `copy_in`.
        Ok(unsafe { copy_in_crc32c(into, source, seed) })
    }

    /// Copies from memory of this process to the region in one pass, and returns the CRC-32C of `from`, continued from
    /// `seed`.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn copy_out_crc32c(&self, offset: usize, from: &[u8], seed: u32) -> Result<u32, OutOfRegion> {
        let target = self.checked_address(offset, from.len())?;
        // SAFETY: as in `copy_out`.
        Ok(unsafe { copy_out_crc32c(target, from, seed) })
    }

    /// Returns the start of a checked range. The pointer is valid for `bytes` bytes while `self` lives.
    #[inline]
    fn checked_address(&self, offset: usize, bytes: usize) -> Result<*mut u8, OutOfRegion> {
        let region_bytes = self.mapping.bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(self.mapping.start.as_ptr().wrapping_add(offset)),
            _ => Err(OutOfRegion { offset, bytes, region_bytes }),
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({} bytes)", self.bytes())
    }
}

fn is_hugetlbfs(system: &StatFs) -> bool {
    u64::try_from(system.f_type).is_ok_and(|kind| kind == HUGETLBFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_alignment() {
        let region = SharedMemory::anonymous(8_192).unwrap();
        let other = region.clone();
        let pattern: Vec<u8> = (0..=u8::MAX).cycle().take(4_500).collect();
        for offset in [0, 1, 7, 8, 63, 64, 4_095, 4_096] {
            for bytes in [0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 4_096] {
                let mut back = vec![0xEE; bytes + 2];
                other.copy_out(offset, &pattern[..bytes]).unwrap();
                region.copy_in(offset, &mut back[1..=bytes]).unwrap();
                assert_eq!(back[1..=bytes], pattern[..bytes]);
                assert_eq!((back[0], back[bytes + 1]), (0xEE, 0xEE), "bytes outside the range are unchanged");
            }
        }
    }

    #[test]
    fn range_outside_region_is_refused_and_nothing_is_copied() {
        let region = SharedMemory::anonymous(100).unwrap();
        let mut own = [0x55; 10];
        for offset in [91, 100, 101, usize::MAX - 5, usize::MAX] {
            let refused = OutOfRegion { offset, bytes: 10, region_bytes: 100 };
            assert_eq!(region.copy_in(offset, &mut own), Err(refused));
            assert_eq!(region.copy_out(offset, &own), Err(refused));
            assert_eq!(region.copy_in_crc32c(offset, &mut own, 1), Err(refused));
            assert_eq!(region.copy_out_crc32c(offset, &own, 1), Err(refused));
        }
        assert_eq!(own, [0x55; 10]);
        region.copy_in(90, &mut own).unwrap();
        assert_eq!(own, [0; 10]);
        region.copy_in(100, &mut []).unwrap();
        assert_eq!(region.copy_out_crc32c(90, b"123456789", 0), Ok(0xE306_9283));
        assert_eq!(region.copy_in_crc32c(90, &mut own[..9], 0), Ok(0xE306_9283));
        assert_eq!((&own[..9], region.copy_in_crc32c(100, &mut [], 7)), (&b"123456789"[..], Ok(7)));
    }

    #[test]
    fn all_mappings_of_sealed_memfd_share_the_same_pages() {
        let (ours, descriptor) = SharedMemory::memfd(8_192).unwrap();
        let theirs = SharedMemory::map_descriptor(descriptor.as_fd(), 4_096, 4_096).unwrap();
        theirs.copy_out(0, b"hello").unwrap();
        let mut back = [0; 5];
        ours.copy_in(4_096, &mut back).unwrap();
        assert_eq!(&back, b"hello");
        assert!(ftruncate(&descriptor, 0).is_err(), "the seal forbids shrinking");
        for (offset, bytes) in [(0, 8_193), (8_192, 1), (1, 4_096), (0, 0), (u64::MAX - 4_095, 4_096)] {
            assert!(matches!(
                SharedMemory::map_descriptor(descriptor.as_fd(), offset, bytes),
                Err(MapDescriptorError::Range { .. })
            ));
        }
    }

    #[test]
    fn unsealed_descriptor_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4_096).unwrap();
        assert_eq!(
            SharedMemory::map_descriptor(file.as_fd(), 0, 4_096).err(),
            Some(MapDescriptorError::Unsealed)
        );
        let open = memfd_create(c"open", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 4_096).unwrap();
        assert_eq!(
            SharedMemory::map_descriptor(open.as_fd(), 0, 4_096).err(),
            Some(MapDescriptorError::Unsealed)
        );
    }

    #[test]
    fn empty_region_is_an_error() {
        assert!(SharedMemory::anonymous(0).is_err());
    }

    #[test]
    fn concurrent_client_writes_yield_only_bytes_of_either_write() {
        let region = SharedMemory::anonymous(4_096).unwrap();
        let client = region.clone();
        let scribbler = std::thread::spawn(move || {
            for round in 0..2_000_u32 {
                let byte = if round % 2 == 0 { 0xAA } else { 0x55 };
                client.copy_out(0, &[byte; 4_096]).unwrap();
            }
        });
        let mut own = [0; 4_096];
        for _ in 0..2_000 {
            region.copy_in(0, &mut own).unwrap();
            assert!(own.iter().all(|byte| [0, 0x55, 0xAA].contains(byte)));
        }
        scribbler.join().unwrap();
    }
}
