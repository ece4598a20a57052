//! CRC-32C on any x86-64 of the last fifteen years: the crc32 instruction, and carry-less multiplication to fold.
//!
//! Input: a raw CRC state and bytes. Output: the state after them; the bytes, copied if requested. Four 128-bit lanes
//! process the message in 64-byte steps; the result is a message of 16 bytes, which the crc32 instruction finishes.

use super::fold::multipliers;
use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64,
    _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_set_epi64x,
    _mm_storeu_si128, _mm_xor_si128,
};

/// The length below which folding does not pay.
const FOLD_BYTES_MIN: usize = 192;

/// Continues the state over the bytes with the crc32 instruction alone.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) fn crc_words(state: u32, bytes: &[u8]) -> u32 {
    words::<false>(state, &mut [], bytes)
}

/// Continues the state over the bytes and copies them; the slices have one length.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) fn copy_crc_words(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    words::<true>(state, dst, src)
}

/// Continues the state word by word; if `COPY`, stores the bytes in the same pass, without a call.
#[target_feature(enable = "sse4.2")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
pub(super) fn words<const COPY: bool>(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    if COPY {
        assert!(dst.len() == src.len(), "a copy between slices of lengths that differ");
    }
    let (words, rest) = src.as_chunks::<8>();
    let (to_words, to_rest) = dst.as_chunks_mut::<8>();
    let mut wide = u64::from(state);
    for (index, word) in words.iter().enumerate() {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
        if COPY {
            to_words[index] = *word;
        }
    }
    let mut state = wide as u32;
    let (halves, rest) = rest.as_chunks::<4>();
    let (to_halves, to_rest) = to_rest.as_chunks_mut::<4>();
    if let Some(half) = halves.first() {
        state = _mm_crc32_u32(state, u32::from_le_bytes(*half));
        if COPY {
            to_halves[0] = *half;
        }
    }
    let (pairs, rest) = rest.as_chunks::<2>();
    let (to_pairs, to_rest) = to_rest.as_chunks_mut::<2>();
    if let Some(pair) = pairs.first() {
        state = _mm_crc32_u16(state, u16::from_le_bytes(*pair));
        if COPY {
            to_pairs[0] = *pair;
        }
    }
    if let Some(byte) = rest.first() {
        state = _mm_crc32_u8(state, *byte);
        if COPY {
            to_rest[0] = *byte;
        }
    }
    state
}

/// Continues the state over the bytes.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn crc(state: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < FOLD_BYTES_MIN {
        return crc_words(state, bytes);
    }
    fold_message::<false>(state, &mut [], bytes)
}

/// Continues the state over the bytes and copies them; the slices have one length.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn copy_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    if src.len() < FOLD_BYTES_MIN {
        return copy_crc_words(state, dst, src);
    }
    fold_message::<true>(state, dst, src)
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
#[inline]
fn fold_message<const COPY: bool>(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    let (steps, rest) = src.as_chunks::<64>();
    let (to_steps, to_rest) = dst.as_chunks_mut::<64>();
    if COPY {
        assert!(to_steps.len() == steps.len(), "a copy between slices of lengths that differ");
        to_rest.copy_from_slice(rest);
    }
    let by_64 = pair(const { multipliers(64) });
    let mut lanes = [_mm_set_epi64x(0, 0); 4];
    for (index, step) in steps.iter().enumerate() {
        let (parts, _) = step.as_chunks::<16>();
        for (lane, part) in lanes.iter_mut().zip(parts) {
            let bytes = load(part);
            *lane = _mm_xor_si128(fold(*lane, by_64), bytes);
        }
        if index == 0 {
            lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(state.cast_signed()));
        }
        if COPY {
            let (to_parts, _) = to_steps[index].as_chunks_mut::<16>();
            for (to, part) in to_parts.iter_mut().zip(parts) {
                store(to, load(part));
            }
        }
    }
    let [a, b, c, d] = lanes;
    let first =
        _mm_xor_si128(fold(a, pair(const { multipliers(48) })), fold(b, pair(const { multipliers(32) })));
    let last = _mm_xor_si128(fold(c, pair(const { multipliers(16) })), d);
    words::<COPY>(crc_of_lane(_mm_xor_si128(first, last)), to_rest, rest)
}

/// Moves a lane towards the end of the message by the distance of the multipliers `by`.
#[target_feature(enable = "pclmulqdq")]
#[inline]
pub(super) fn fold(lane: __m128i, by: __m128i) -> __m128i {
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(lane, by), _mm_clmulepi64_si128::<0x11>(lane, by))
}

/// Returns the CRC state of a message of these 16 bytes.
#[target_feature(enable = "sse4.2")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
pub(super) fn crc_of_lane(lane: __m128i) -> u32 {
    let first = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane).cast_unsigned());
    _mm_crc32_u64(first, _mm_extract_epi64::<1>(lane).cast_unsigned()) as u32
}

#[target_feature(enable = "sse2")]
#[inline]
fn pair(multipliers: [u64; 2]) -> __m128i {
    let [first, second] = multipliers;
    _mm_set_epi64x(second.cast_signed(), first.cast_signed())
}

#[target_feature(enable = "sse2")]
#[inline]
fn load(from: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

#[target_feature(enable = "sse2")]
#[inline]
fn store(to: &mut [u8; 16], bytes: __m128i) {
    // SAFETY: the unique reference covers the 16 bytes that are written, and the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), bytes) }
}
