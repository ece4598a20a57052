//! Stores of whole words on any processor.
//!
//! Input: bytes, and an address. Output: the bytes there, in the cache. Invariant: each aligned word of 8 bytes that lies
//! in the range is stored by one instruction, and each other byte by one; every store is atomic, so that another thread
//! may load the target at the same time.

use super::lines::LINE_BYTES;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence as memory_fence};

const WORD_BYTES: usize = 8;

/// Stores the bytes.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[inline]
pub(super) unsafe fn store_words(to: *mut u8, src: &[u8]) {
    let head = (to.addr().wrapping_neg() % WORD_BYTES).min(src.len());
    let (head, rest) = src.split_at(head);
    let (words, tail) = rest.as_chunks::<WORD_BYTES>();
    // SAFETY: the head is the start of the range that the caller promises.
    unsafe { store_bytes(to, head) };
    let mut at = to.wrapping_add(head.len());
    for word in words {
        // SAFETY: bounds: the words follow the head in the range that the caller promises. Alignment: the head ends at
        // a multiple of 8, unless there are no words. Lifetime: the caller's. Aliasing: the target is accessed by
        // atomics and asm alone during the call.
        let target = unsafe { AtomicU64::from_ptr(at.cast()) };
        target.store(u64::from_le_bytes(*word).to_le(), Ordering::Relaxed);
        at = at.wrapping_add(WORD_BYTES);
    }
    // SAFETY: the tail is the end of the range that the caller promises.
    unsafe { store_bytes(at, tail) };
}

/// Stores the bytes one at a time.
///
/// # Safety
/// As for [`store_words`].
#[inline]
unsafe fn store_bytes(to: *mut u8, src: &[u8]) {
    for (place, byte) in src.iter().enumerate() {
        // SAFETY: bounds: `place` is below the length of `src`. Alignment: of a byte. Lifetime: the caller's. Aliasing:
        // as for the words.
        let target = unsafe { AtomicU8::from_ptr(to.wrapping_add(place)) };
        target.store(*byte, Ordering::Relaxed);
    }
}

/// Stores whole lines.
///
/// # Safety
/// `to` is writable for the lines, and the two ranges do not overlap.
pub(super) unsafe fn store_lines(to: *mut u8, lines: &[[u8; LINE_BYTES]]) {
    // SAFETY: the caller promises the same.
    unsafe { store_words(to, lines.as_flattened()) };
}

/// Returns at once: there is no instruction that writes lines back.
pub(super) fn write_back_nothing(_first: *const u8, _lines: usize) {}

/// Orders all stores of this thread before its later ones, for other threads.
pub(super) fn fence() {
    memory_fence(Ordering::SeqCst);
}
