//! Copies past the cache.
//!
//! Input: bytes that will not be read soon. Output: the same bytes in memory, which other threads see behind a
//! [`fence`], and this thread at once. The head and the tail of a destination that is not aligned to a line go through the cache.

use std::arch::asm;
use std::arch::x86_64::{__m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm512_loadu_si512};

pub(super) const LINE_BYTES: usize = 64;

/// Orders all streaming stores of this thread before its later stores.
pub(super) fn fence() {
    // SAFETY: every x86-64 processor has SSE.
    unsafe { _mm_sfence() };
}

/// A cache line, aligned like one.
#[repr(C, align(64))]
pub(super) struct StreamLine([u8; LINE_BYTES]);

/// Copies `src` into `dst`, which have one length, by 512-bit streaming stores.
#[target_feature(enable = "avx512f")]
pub(super) fn stream_avx512(dst: &mut [u8], src: &[u8]) {
    let (lines, from) = split(dst, src);
    for (line, from) in lines.iter_mut().zip(from) {
        // SAFETY: the reference covers the 64 bytes that are read, and the load needs no alignment.
        let bytes: __m512i = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        // SAFETY: the unique reference covers the 64 bytes that are written, and a `StreamLine` is aligned to 64.
        unsafe {
            asm!(
                "vmovntdq [{to}], {bytes}",
                bytes = in(zmm_reg) bytes,
                to = in(reg) line.0.as_mut_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `src` into `dst`, which have one length, by 256-bit streaming stores.
#[target_feature(enable = "avx2")]
pub(super) fn stream_avx2(dst: &mut [u8], src: &[u8]) {
    let (lines, from) = split(dst, src);
    for (line, from) in lines.iter_mut().zip(from) {
        let (to_halves, _) = line.0.as_chunks_mut::<32>();
        let (from_halves, _) = from.as_chunks::<32>();
        for (to, from) in to_halves.iter_mut().zip(from_halves) {
            // SAFETY: the reference covers the 32 bytes that are read, and the load needs no alignment.
            let bytes: __m256i = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            // SAFETY: the unique reference covers the 32 bytes that are written: half of a `StreamLine`, so aligned to
            // 32.
            unsafe {
                asm!(
                    "vmovntdq [{to}], {bytes}",
                    bytes = in(ymm_reg) bytes,
                    to = in(reg) to.as_mut_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

/// A copy in three parts, front to back: what lies before the first whole line of the destination, the lines, and the rest.
pub(super) struct LineCopy<'d, 's> {
    pub(super) head: (&'d mut [u8], &'s [u8]),
    pub(super) lines: (&'d mut [StreamLine], &'s [[u8; LINE_BYTES]]),
    pub(super) tail: (&'d mut [u8], &'s [u8]),
}

impl<'d, 's> LineCopy<'d, 's> {
    /// Splits a copy between slices of one length.
    #[inline]
    pub(super) fn of(dst: &'d mut [u8], src: &'s [u8]) -> Self {
        assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
        // SAFETY: any 64 initialised bytes are a `StreamLine`; `align_to_mut` yields only aligned, disjoint parts of `dst`.
        let (head, lines, tail) = unsafe { dst.align_to_mut::<StreamLine>() };
        let (from_head, from) = src.split_at(head.len());
        // `align_to_mut` may in theory leave everything in the head; the lengths agree in that case too.
        let (from_lines, from_tail) = from.as_chunks::<LINE_BYTES>();
        Self { head: (head, from_head), lines: (lines, from_lines), tail: (tail, from_tail) }
    }
}

/// Copies the parts before the first whole line of `dst` and after its last; returns the lines and their sources.
fn split<'d, 's>(dst: &'d mut [u8], src: &'s [u8]) -> (&'d mut [StreamLine], &'s [[u8; LINE_BYTES]]) {
    let LineCopy { head, lines, tail } = LineCopy::of(dst, src);
    head.0.copy_from_slice(head.1);
    tail.0.copy_from_slice(tail.1);
    lines
}

#[cfg(test)]
mod tests {
    use super::super::StreamingCopies;
    use super::super::dispatch::available;
    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(bytes as u64);
        (0..bytes).map(|_| random.u8(..)).collect()
    }

    #[test]
    fn streams_with_a_checksum_write_exactly_the_destination_at_every_alignment() {
        let src = noise(5_000);
        for at in 0..=LINE_BYTES {
            for length in (0..=300).step_by(7).chain([1_023, 1_024, 4_096, 4_171]) {
                let from = &src[at / 3..at / 3 + length];
                let expected = super::super::crc32c(9, from);
                for kernel in available() {
                    let mut dst = vec![0xA5; at + length + 1];
                    let crc = !kernel.stream_crc(!9, &mut dst[at..at + length], from);
                    assert_eq!(crc, expected, "{} {length} bytes at {at}", kernel.name);
                    assert_eq!(&dst[at..at + length], from, "{} {length} bytes at {at}", kernel.name);
                    let around = dst[..at].iter().chain(&dst[at + length..]);
                    assert!(
                        around.copied().all(|byte| byte == 0xA5),
                        "{} {length} bytes at {at}",
                        kernel.name
                    );
                }
            }
        }
    }

    #[test]
    fn copies_and_fills_that_share_a_fence_are_seen_at_once() {
        let src = noise(3_000);
        let mut dst = vec![0; 9_001];
        let mut copies = StreamingCopies::default();
        copies.copy(&mut dst[1..3_001], &src);
        assert_eq!(copies.copy_crc32c(&mut dst[3_001..6_001], &src, 0), super::super::crc32c(0, &src));
        copies.fill(&mut dst[6_001..], 7);
        assert_eq!((&dst[1..3_001], &dst[3_001..6_001]), (&*src, &*src));
        assert!(dst[0] == 0 && dst[6_001..].iter().all(|byte| *byte == 7));
        // Short ones go through the cache.
        copies.fill(&mut dst[..10], 8);
        assert_eq!(copies.copy_crc32c(&mut dst[10..30], &src[..20], 3), super::super::crc32c(3, &src[..20]));
        assert_eq!((&dst[..10], &dst[10..30], dst[30]), (&[8; 10][..], &src[..20], src[29]));
    }
}
