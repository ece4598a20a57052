//! The choice of kernels: looked up once, then one relaxed load and one indirect call.
//!
//! Input: the CPU's features. Output: one of a few constant [`KernelTable`] tables. Invariant: a table is only ever
//! reachable through [`kernels`] or [`available`] on a CPU that has the instructions its functions use.

use super::{fold, portable};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that continues a raw CRC state (not inverted) over the bytes.
type CrcKernel = unsafe fn(u32, &[u8]) -> u32;
/// A function that also copies the bytes; both slices have one length.
type CopyCrcKernel = unsafe fn(u32, &mut [u8], &[u8]) -> u32;
/// A function that copies from shared memory, and continues the state over what was copied. Its caller promises that the
/// source is readable for the length of the slice, and apart from it.
type CopyInCrcKernel = unsafe fn(u32, &mut [u8], *const u8) -> u32;
/// A function that copies to shared memory, and continues the state over the bytes. Its caller promises that the target is
/// writable for the length of the slice, and apart from it.
type CopyOutCrcKernel = unsafe fn(u32, *mut u8, &[u8]) -> u32;
/// A function that multiplies two remainders.
type ProductKernel = unsafe fn(u32, u32) -> u32;
/// A function that copies past the cache; both slices have one length.
type StreamKernel = unsafe fn(&mut [u8], &[u8]);

/// A set of kernels. Its functions need the CPU features that their modules name.
pub(super) struct KernelTable {
    pub(super) name: &'static str,
    pub(super) crc: CrcKernel,
    pub(super) copy_crc: CopyCrcKernel,
    pub(super) copy_in_crc: CopyInCrcKernel,
    pub(super) copy_out_crc: CopyOutCrcKernel,
    pub(super) product: ProductKernel,
    pub(super) stream: StreamKernel,
    /// Copies past the cache, where the processor has wide streaming stores.
    pub(super) stream_crc: CopyCrcKernel,
}

impl KernelTable {
    #[inline]
    pub(super) fn crc(&self, state: u32, bytes: &[u8]) -> u32 {
        // SAFETY: by this module's invariant the CPU has every feature the function was compiled for; slices carry
        // their own bounds and lifetimes.
        unsafe { (self.crc)(state, bytes) }
    }

    #[inline]
    pub(super) fn copy_crc(&self, state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
        // SAFETY: as above; the two slices cannot overlap, one of them is unique.
        unsafe { (self.copy_crc)(state, dst, src) }
    }

    #[inline]
    pub(super) fn stream_crc(&self, state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
        // SAFETY: as above; the two slices cannot overlap, one of them is unique.
        unsafe { (self.stream_crc)(state, dst, src) }
    }

    /// Copies from shared memory, and continues the state over what was copied.
    ///
    /// # Safety
    /// `from` is readable for the length of `dst`, and the two ranges do not overlap.
    #[inline]
    pub(super) unsafe fn copy_in_crc(&self, state: u32, dst: &mut [u8], from: *const u8) -> u32 {
        // SAFETY: features as above; the caller promises the source.
        unsafe { (self.copy_in_crc)(state, dst, from) }
    }

    /// Copies to shared memory, and continues the state over the bytes.
    ///
    /// # Safety
    /// `to` is writable for the length of `src`, and the two ranges do not overlap.
    #[inline]
    pub(super) unsafe fn copy_out_crc(&self, state: u32, to: *mut u8, src: &[u8]) -> u32 {
        // SAFETY: features as above; the caller promises the target.
        unsafe { (self.copy_out_crc)(state, to, src) }
    }

    #[inline]
    pub(super) fn product(&self, left: u32, right: u32) -> u32 {
        // SAFETY: features as above.
        unsafe { (self.product)(left, right) }
    }

    #[inline]
    pub(super) fn stream(&self, dst: &mut [u8], src: &[u8]) {
        // SAFETY: as above; the two slices cannot overlap, one of them is unique.
        unsafe { (self.stream)(dst, src) }
    }
}

static CHOSEN: AtomicPtr<KernelTable> = AtomicPtr::new(ptr::null_mut());

/// Returns the kernels for this CPU.
#[inline]
pub(super) fn kernels() -> &'static KernelTable {
    let chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen.is_null() {
        return choose();
    }
    // SAFETY: the only pointers ever stored come from `choose`, and point to immutable statics: aligned, alive for
    // ever, never written. Relaxed is enough because a static's bytes are there before the program starts.
    unsafe { &*chosen }
}

#[cold]
fn choose() -> &'static KernelTable {
    let best = available().last().copied().unwrap_or(&PORTABLE);
    CHOSEN.store(ptr::from_ref(best).cast_mut(), Ordering::Relaxed);
    best
}

static PORTABLE: KernelTable = KernelTable {
    name: "portable",
    crc: portable::crc,
    copy_crc: portable::copy_crc,
    copy_in_crc: portable::copy_in_crc,
    copy_out_crc: portable::copy_out_crc,
    product: fold::product,
    stream: portable::stream,
    stream_crc: portable::copy_crc,
};

#[cfg(target_arch = "x86_64")]
mod tables {
    use super::super::{avx2, avx512, fold, portable, stream, x86};
    use super::KernelTable;

    pub(super) static SSE42: KernelTable = KernelTable {
        name: "sse4.2",
        crc: x86::crc_words,
        copy_crc: x86::copy_crc_words,
        copy_in_crc: x86::copy_in_crc_words,
        copy_out_crc: x86::copy_out_crc_words,
        product: fold::product,
        stream: portable::stream,
        stream_crc: x86::copy_crc_words,
    };

    pub(super) static PCLMUL: KernelTable = KernelTable {
        name: "sse4.2+pclmulqdq",
        crc: x86::crc,
        copy_crc: x86::copy_crc,
        copy_in_crc: x86::copy_in_crc,
        copy_out_crc: x86::copy_out_crc,
        product: x86::product,
        stream: portable::stream,
        stream_crc: x86::copy_crc,
    };

    pub(super) static PCLMUL_AVX2: KernelTable = KernelTable {
        name: "sse4.2+pclmulqdq+avx2",
        crc: x86::crc,
        copy_crc: x86::copy_crc,
        copy_in_crc: x86::copy_in_crc,
        copy_out_crc: x86::copy_out_crc,
        product: x86::product,
        stream: stream::stream_avx2,
        stream_crc: x86::stream_crc,
    };

    pub(super) static VPCLMUL_AVX2: KernelTable = KernelTable {
        name: "avx2+vpclmulqdq",
        crc: avx2::crc,
        copy_crc: avx2::copy_crc,
        copy_in_crc: avx2::copy_in_crc,
        copy_out_crc: avx2::copy_out_crc,
        product: x86::product,
        stream: stream::stream_avx2,
        stream_crc: avx2::stream_crc,
    };

    pub(super) static AVX512: KernelTable = KernelTable {
        name: "avx512+vpclmulqdq",
        crc: avx512::crc,
        copy_crc: avx512::copy_crc,
        copy_in_crc: avx512::copy_in_crc,
        copy_out_crc: avx512::copy_out_crc,
        product: x86::product,
        stream: stream::stream_avx512,
        stream_crc: avx512::stream_crc,
    };
}

/// Returns every table that this CPU can run, the slowest first.
pub(super) fn available() -> Vec<&'static KernelTable> {
    let mut found = vec![&PORTABLE];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("sse4.2") {
            found.push(&tables::SSE42);
            if has!("pclmulqdq") {
                found.push(&tables::PCLMUL);
                if has!("avx2") {
                    found.push(&tables::PCLMUL_AVX2);
                    if has!("vpclmulqdq") {
                        found.push(&tables::VPCLMUL_AVX2);
                    }
                }
                if has!("avx512f") && has!("avx512vl") && has!("vpclmulqdq") {
                    found.push(&tables::AVX512);
                }
            }
        }
    }
    found
}
