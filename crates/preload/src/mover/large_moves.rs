//! Long copies, fills and comparisons: prefaults, the kernels that pass the cache by, and their counters.
//!
//! Input: what the memory functions were called with, from the threshold on. Output: the same. Invariant: nothing here calls a
//! memory function, by name or through the compiler.

use super::counters::{COUNTERS, count};
use super::kernels::{compare_plain, equal_blocks, fill_plain, fill_streaming, move_plain, move_streaming};
use super::next_functions::{NEXT_MEMMOVE, NEXT_MEMSET, next_fill, next_move};
use super::prefault::prefault_target;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length from which bytes pass the cache by. Until the settings are read, no length has so many.
pub(super) static STREAM_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Bytes of a block of a comparison.
const BLOCK_BYTES: usize = 64;
/// The length from which a range has a whole line: what streaming kernels need.
const STREAM_MIN: usize = 64;

/// Copies a long range.
///
/// # Safety
/// As for `memmove`.
pub(super) unsafe extern "C" fn move_large(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    let begins_inside = to.addr().wrapping_sub(from.addr()) < bytes;
    let is_streamed = bytes >= STREAM_BYTES.load(Ordering::Relaxed);
    if !begins_inside {
        prefault_target(to.addr(), bytes);
    } else if is_streamed {
        count(&COUNTERS.moves_overlapping, 1);
    }
    if begins_inside || !is_streamed || bytes < STREAM_MIN {
        return match next_move(&NEXT_MEMMOVE) {
            // SAFETY: the caller promises what the function of the same meaning needs.
            Some(next) => unsafe { next(to, from, bytes) },
            // SAFETY: as above.
            None => unsafe { move_plain(to, from, bytes) },
        };
    }
    count(&COUNTERS.moves, 1);
    count(&COUNTERS.moved_bytes, bytes as u64);
    // SAFETY: the caller promises both ranges; the target does not begin inside the source.
    unsafe { move_streaming(to, from, bytes) };
    to
}

/// Fills a long range.
///
/// # Safety
/// As for `memset`.
pub(super) unsafe extern "C" fn fill_large(to: *mut u8, value: c_int, bytes: usize) -> *mut u8 {
    prefault_target(to.addr(), bytes);
    if bytes < STREAM_BYTES.load(Ordering::Relaxed).max(STREAM_MIN) {
        return match next_fill(&NEXT_MEMSET) {
            // SAFETY: the caller promises what the function of the same meaning needs.
            Some(next) => unsafe { next(to, value, bytes) },
            // SAFETY: as above.
            None => unsafe { fill_plain(to, value, bytes) },
        };
    }
    count(&COUNTERS.fills, 1);
    count(&COUNTERS.filled_bytes, bytes as u64);
    let [low, ..] = value.to_le_bytes();
    // SAFETY: the caller promises the range.
    unsafe { fill_streaming(to, u64::from_le_bytes([low; 8]), bytes) };
    to
}

/// Compares two long ranges.
///
/// # Safety
/// As for `memcmp`.
pub(super) unsafe extern "C" fn compare_large(one: *const u8, other: *const u8, bytes: usize) -> c_int {
    count(&COUNTERS.compares, 1);
    count(&COUNTERS.compared_bytes, bytes as u64);
    // SAFETY: the caller promises both ranges, which have as many whole blocks.
    let equal = unsafe { equal_blocks(one, other, bytes / BLOCK_BYTES) } * BLOCK_BYTES;
    let (one, other) = (one.wrapping_add(equal), other.wrapping_add(equal));
    // SAFETY: the rest of both ranges.
    unsafe { compare_plain(one, other, bytes - equal) }
}

/// Ends the program as the C library does when a checked copy is longer than its target.
pub(super) unsafe extern "C" fn chk_fail() -> ! {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    // SAFETY: the function takes nothing and does not return.
    unsafe { __chk_fail() }
}
