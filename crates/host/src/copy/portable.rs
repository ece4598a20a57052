//! The kernels for any CPU: slicing by eight.
//!
//! Input: a raw CRC state and bytes. Output: the state after them. Every other kernel is tested against this one, and
//! all against the bitwise definition.

use super::fold::TABLES;
use super::untrusted::{copy_in_apart, copy_out_apart};

/// Continues a raw CRC state over the bytes.
pub(super) fn crc(state: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = state;
    for word in words {
        let [a, b, c, d, e, f, g, h] = *word;
        let [p, q, r, s] = (state ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        state = TABLES[7][usize::from(p)]
            ^ TABLES[6][usize::from(q)]
            ^ TABLES[5][usize::from(r)]
            ^ TABLES[4][usize::from(s)]
            ^ TABLES[3][usize::from(e)]
            ^ TABLES[2][usize::from(f)]
            ^ TABLES[1][usize::from(g)]
            ^ TABLES[0][usize::from(h)];
    }
    for &byte in rest {
        let [low, ..] = state.to_le_bytes();
        state = (state >> 8) ^ TABLES[0][usize::from(low ^ byte)];
    }
    state
}

/// Continues the state over the bytes and copies them, four kilobytes at a time, so that read bytes are still in the
/// cache when they are copied.
pub(super) fn copy_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    let mut state = state;
    for (to, from) in dst.chunks_mut(4_096).zip(src.chunks(4_096)) {
        state = crc(state, from);
        to.copy_from_slice(from);
    }
    state
}

/// Copies from shared memory, and continues the state over what was copied.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
pub(super) unsafe fn copy_in_crc(state: u32, dst: &mut [u8], from: *const u8) -> u32 {
    // SAFETY: the caller promises the same.
    unsafe { copy_in_apart(crc, state, dst, from) }
}

/// Copies to shared memory, and continues the state over the bytes.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
pub(super) unsafe fn copy_out_crc(state: u32, to: *mut u8, src: &[u8]) -> u32 {
    // SAFETY: the caller promises the same.
    unsafe { copy_out_apart(crc, state, to, src) }
}

/// Copies through the cache: there is no portable streaming store.
pub(super) fn stream(dst: &mut [u8], src: &[u8]) {
    dst.copy_from_slice(src);
}
