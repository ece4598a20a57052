//! The kernels that copy and checksum payload: copy, copy past the cache, CRC-32C, and copy and CRC in one pass.
//!
//! Input: byte slices that the CPU owns, and shared memory that another process may write at any time. Output: the
//! copied bytes, and their CRC-32C (Castagnoli). Invariant: every kernel returns the same result for the same bytes; the
//! kernel is chosen once, from the CPU's features, and costs one load and one indirect call afterwards.
//!
//! A CRC here is a value that composes: `crc32c(crc32c(0, a), b)` is the CRC of `a` followed by `b`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod byte_pass;
mod dispatch;
mod fold;
#[cfg(test)]
mod guarded_pages;
pub mod persist;
mod portable;
mod prefault;
#[cfg(target_arch = "x86_64")]
mod stream;
mod untrusted;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use prefault::{PREFAULT_BYTES_MIN, PrefaultOutcome, prefault_read, prefault_spare, prefault_write};
pub(crate) use untrusted::copy_untrusted;

use dispatch::kernels;

/// The length below which a streaming copy goes through the cache: the fence would cost more than it saves.
pub const STREAMING_BYTES_MIN: usize = 1_024;

/// Copies `src` into `dst`.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy(dst: &mut [u8], src: &[u8]) {
    dst.copy_from_slice(src);
}

/// Copies `src` into `dst` past the cache, for bytes that will not be read soon. The stores are fenced before it
/// returns. Short copies, and copies on CPUs without wide streaming stores, use [`copy`].
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy_streaming(dst: &mut [u8], src: &[u8]) {
    StreamingCopies::default().copy(dst, src);
}

/// Streaming copies that share one store fence: a fence after each copy of a page costs as much as the copy.
///
/// The calling thread sees the copied bytes at once. Another thread, or a device, may see the bytes that were there before
/// until [`fence`](Self::fence), which the end of this value calls too.
#[derive(Debug, Default)]
pub struct StreamingCopies {
    is_unfenced: bool,
}

impl StreamingCopies {
    /// Copies `src` into `dst` as [`copy_streaming`] does, but for the fence.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if src.len() < STREAMING_BYTES_MIN {
            return copy(dst, src);
        }
        self.is_unfenced = true;
        kernels().stream(dst, src);
    }

    /// Copies `src` into `dst` as [`copy`](Self::copy) does, and returns the CRC-32C of the bytes, continued from `seed`, in one
    /// pass over them.
    ///
    /// # Panics
    /// When the lengths differ.
    #[inline]
    pub fn copy_crc32c(&mut self, dst: &mut [u8], src: &[u8], seed: u32) -> u32 {
        assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
        if src.len() < STREAMING_BYTES_MIN {
            return copy_crc32c(dst, src, seed);
        }
        self.is_unfenced = true;
        !kernels().stream_crc(!seed, dst, src)
    }

    /// Fills `dst` with one value, as [`copy`](Self::copy) copies.
    #[inline]
    pub fn fill(&mut self, dst: &mut [u8], value: u8) {
        if dst.len() < STREAMING_BYTES_MIN {
            return dst.fill(value);
        }
        // SAFETY: the exclusive borrow covers the bytes.
        unsafe { self.fill_raw(dst.as_mut_ptr(), dst.len(), value) };
    }

    /// Stores `src` past the cache.
    ///
    /// # Safety
    /// `to` is writable for the length of `src`, and the two ranges do not overlap. Another thread or process may access the
    /// target during the call.
    pub(crate) unsafe fn store_raw(&mut self, to: *mut u8, src: &[u8]) {
        self.is_unfenced = true;
        // SAFETY: the caller promises the same.
        unsafe { persist::stream_raw(to, src) };
    }

    /// Fills a range past the cache.
    ///
    /// # Safety
    /// `to` is writable for `bytes` bytes. Another thread or process may access them during the call.
    pub(crate) unsafe fn fill_raw(&mut self, to: *mut u8, bytes: usize, value: u8) {
        self.is_unfenced = true;
        // SAFETY: the caller promises the same.
        unsafe { persist::fill_raw(to, bytes, value) };
    }

    /// Makes all copies visible to other threads and devices before anything that this thread stores later.
    #[inline]
    pub fn fence(&mut self) {
        if std::mem::take(&mut self.is_unfenced) {
            #[cfg(target_arch = "x86_64")]
            stream::fence();
        }
    }
}

impl Drop for StreamingCopies {
    fn drop(&mut self) {
        self.fence();
    }
}

/// Returns the CRC-32C of `bytes`, continued from `seed`: the CRC of the preceding bytes, 0 at the start.
#[must_use]
#[inline]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !kernels().crc(!seed, bytes)
}

/// Copies `src` into `dst` and returns the CRC-32C of the bytes, continued from `seed`, in one pass over them.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy_crc32c(dst: &mut [u8], src: &[u8], seed: u32) -> u32 {
    assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
    !kernels().copy_crc(!seed, dst, src)
}

/// Appends `src` to a vector and returns the CRC-32C of the bytes, continued from `seed`, in one pass over them. The vector's new
/// bytes are written once: nothing is filled with zeroes before.
#[inline]
pub fn append_crc32c(target: &mut Vec<u8>, src: &[u8], seed: u32) -> u32 {
    target.reserve(src.len());
    let end = target.len() + src.len();
    let room = target.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: bounds: at least as many bytes as `src` has are reserved behind the vector's end, and may be written. Aliasing:
    // the vector is borrowed exclusively, so that `src` lies apart from it.
    let crc = unsafe { copy_out_crc32c(room, src, seed) };
    // SAFETY: bounds: the capacity is at least `end`. The copy wrote every byte from the old length up to there.
    unsafe { target.set_len(end) };
    crc
}

/// Copies shared memory into `dst`, and returns the CRC-32C of the copied bytes, continued from `seed`. Another process
/// may write the source during the copy: the result is about the bytes that `dst` then has.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
#[inline]
pub(crate) unsafe fn copy_in_crc32c(dst: &mut [u8], from: *const u8, seed: u32) -> u32 {
    // SAFETY: the caller promises the same.
    !unsafe { kernels().copy_in_crc(!seed, dst, from) }
}

/// Copies `src` to shared memory, which another process may access during the copy, and returns the CRC-32C of `src`,
/// continued from `seed`.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[inline]
pub(crate) unsafe fn copy_out_crc32c(to: *mut u8, src: &[u8], seed: u32) -> u32 {
    // SAFETY: the caller promises the same.
    !unsafe { kernels().copy_out_crc(!seed, to, src) }
}

/// Returns the CRC-32C of two runs of bytes, one behind the other, from the CRC of each and the length of the second.
#[must_use]
pub fn join_crc32c(first: u32, second: u32, second_bytes: usize) -> u32 {
    shift_crc32c(first, second_bytes) ^ second
}

/// Returns what bits that are flipped in four bytes, read as a little-endian number, flip in the CRC-32C of a run that these
/// four bytes begin.
#[must_use]
pub fn shift_crc32c(bits: u32, run_bytes: usize) -> u32 {
    kernels().product(CrcLength::new(run_bytes).factor, bits)
}

/// A length by which checksums are joined: what the join of [`join_crc32c`] computes from it is computed once.
#[derive(Clone, Copy, Debug)]
pub struct CrcLength {
    factor: u32,
}

impl CrcLength {
    /// Returns the length of `bytes` bytes, at compile time: at run time [`new`](Self::new) is much faster.
    #[must_use]
    pub const fn of(bytes: usize) -> Self {
        Self { factor: fold::power_of_bytes(bytes) }
    }

    /// Returns the length of `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut factor = fold::SHIFTS[0][bytes % 64];
        let mut left = bytes / 64;
        for digit in &fold::SHIFTS[1..] {
            if left == 0 {
                break;
            }
            factor = kernels().product(digit[left % 64], factor);
            left /= 64;
        }
        Self { factor }
    }

    /// Returns the CRC-32C of two runs of bytes, one behind the other, from the CRC of each; the second has this length.
    #[must_use]
    #[inline]
    pub fn join(self, first: u32, second: u32) -> u32 {
        kernels().product(self.factor, first) ^ second
    }
}

/// Returns true if every byte is 0.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // A piece at a time: within one the compiler needs no early exit, and uses wide registers.
    let (pieces, rest) = bytes.as_chunks::<256>();
    let is_clear = |bytes: &[u8]| bytes.iter().fold(0, |seen, byte| seen | byte) == 0;
    pieces.iter().all(|piece| is_clear(piece)) && is_clear(rest)
}

/// Returns the name of the CRC kernel in use, for `doctor`.
#[must_use]
pub fn kernel_name() -> &'static str {
    kernels().name
}

/// Prefetches every cache line of `bytes`. A hint without architectural effect.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(64) {
        prefetch_read(&line[0]);
    }
}

/// Prefetches the first cache line of `target`, for reading.
#[inline]
pub fn prefetch_read<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that touches no architectural state and cannot fault; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = target;
    }
}
