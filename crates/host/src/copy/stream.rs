//! Copies past the cache.
//!
//! Input: bytes that will not be read soon. Output: the same bytes in memory, which other threads see behind a
//! [`fence`]. The head and the tail of a destination that is not aligned to a line go through the cache.

use std::arch::x86_64::{
    __m256i, __m512i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
    _mm512_stream_si512,
};

const LINE_BYTES: usize = 64;

/// Orders all streaming stores of this thread before its later stores.
pub(super) fn fence() {
    // SAFETY: every x86-64 processor has SSE.
    unsafe { _mm_sfence() };
}

/// A cache line, aligned like one.
#[repr(C, align(64))]
struct StreamLine([u8; LINE_BYTES]);

/// Copies `src` into `dst`, which have one length, by 512-bit streaming stores.
#[target_feature(enable = "avx512f")]
pub(super) fn stream_avx512(dst: &mut [u8], src: &[u8]) {
    let (lines, from) = split(dst, src);
    for (line, from) in lines.iter_mut().zip(from) {
        // SAFETY: the reference covers the 64 bytes that are read, and the load needs no alignment.
        let bytes: __m512i = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        // SAFETY: the unique reference covers the 64 bytes that are written, and a `StreamLine` is aligned to 64.
        unsafe { _mm512_stream_si512(line.0.as_mut_ptr().cast(), bytes) };
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
            unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), bytes) };
        }
    }
}

/// Copies the parts before the first whole line of `dst` and after its last; returns the lines and their sources.
fn split<'d, 's>(dst: &'d mut [u8], src: &'s [u8]) -> (&'d mut [StreamLine], &'s [[u8; LINE_BYTES]]) {
    assert_eq!(dst.len(), src.len(), "a copy between slices of lengths that differ");
    // SAFETY: any 64 initialised bytes are a `StreamLine`; `align_to_mut` yields only aligned, disjoint parts of `dst`.
    let (head, lines, tail) = unsafe { dst.align_to_mut::<StreamLine>() };
    let (from_head, from) = src.split_at(head.len());
    head.copy_from_slice(from_head);
    let (from_lines, from_tail) = from.as_chunks::<LINE_BYTES>();
    // `align_to_mut` may in theory leave everything in the head; the lengths agree in that case too.
    tail.copy_from_slice(from_tail);
    (lines, from_lines)
}
