//! CRC-32C by 512-bit carry-less multiplication.
//!
//! Input: a raw CRC state and bytes. Output: the state after them; the bytes, copied if requested. Four registers of
//! four lanes process the message in 256-byte steps, one register the remaining 64-byte steps; the lanes are then
//! combined into 16 bytes, which the crc32 instruction finishes together with the rest of the message.

use super::fold::multipliers;
use super::x86::{copy_crc_words, crc_of_lane, crc_words, words};
use std::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm_xor_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
    _mm512_loadu_si512, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

/// The length below which folding does not pay.
const FOLD_BYTES_MIN: usize = 128;
/// The bounds between which a separate copy is faster than one combined with the CRC: a few wide stores that straddle
/// lines delay the loads behind them (measured on Zen 4: 128 bytes in 9 ns apart, 20 ns together).
const APART_BYTES_MIN: usize = 64;
const TOGETHER_BYTES_MIN: usize = 512;
/// The three-way exclusive or, as a truth table.
const XOR3: i32 = 0x96;

/// Continues the state over the bytes.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) fn crc(state: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < FOLD_BYTES_MIN {
        return crc_words(state, bytes);
    }
    fold_message::<false>(state, &mut [], bytes)
}

/// Continues the state over the bytes and copies them; the slices have one length.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) fn copy_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    if src.len() < APART_BYTES_MIN {
        return copy_crc_words(state, dst, src);
    }
    if src.len() < TOGETHER_BYTES_MIN {
        dst.copy_from_slice(src);
        return crc(state, src);
    }
    fold_message::<true>(state, dst, src)
}

#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
#[inline]
fn fold_message<const COPY: bool>(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    let (steps, rest) = src.as_chunks::<64>();
    let (to_steps, to_rest) = dst.as_chunks_mut::<64>();
    if COPY {
        assert!(to_steps.len() == steps.len(), "a copy between slices of lengths that differ");
        to_rest.copy_from_slice(rest);
    }
    let mut take = |step: usize| {
        let bytes = load(&steps[step]);
        if COPY {
            store(&mut to_steps[step], bytes);
        }
        bytes
    };
    let by_64 = lanes(const { [multipliers(64); 4] });
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()));
    let mut sum = _mm512_xor_si512(take(0), start);
    let mut next = 1;
    if steps.len() >= 8 {
        let by_256 = lanes(const { [multipliers(256); 4] });
        let (mut a, mut b, mut c, mut d) = (sum, take(1), take(2), take(3));
        next = 4;
        while next + 4 <= steps.len() {
            a = fold_onto(a, by_256, take(next));
            b = fold_onto(b, by_256, take(next + 1));
            c = fold_onto(c, by_256, take(next + 2));
            d = fold_onto(d, by_256, take(next + 3));
            next += 4;
        }
        d = fold_onto(a, lanes(const { [multipliers(192); 4] }), d);
        d = fold_onto(b, lanes(const { [multipliers(128); 4] }), d);
        sum = fold_onto(c, by_64, d);
    }
    while next < steps.len() {
        sum = fold_onto(sum, by_64, take(next));
        next += 1;
    }
    words::<COPY>(combine_lanes(sum), to_rest, rest)
}

/// Moves four lanes towards the end of the message by the distance of the multipliers `by`, onto the bytes there.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold_onto(lanes: __m512i, by: __m512i, bytes: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<XOR3>(
        _mm512_clmulepi64_epi128::<0x00>(lanes, by),
        _mm512_clmulepi64_epi128::<0x11>(lanes, by),
        bytes,
    )
}

/// Returns the CRC state of a message of these 64 bytes.
#[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
#[inline]
fn combine_lanes(sum: __m512i) -> u32 {
    let by = lanes(const { [multipliers(48), multipliers(32), multipliers(16), [0, 0]] });
    let moved = fold_onto(sum, by, _mm512_setzero_si512());
    let first = _mm_xor_si128(_mm512_extracti32x4_epi32::<0>(moved), _mm512_extracti32x4_epi32::<1>(moved));
    let last = _mm_xor_si128(_mm512_extracti32x4_epi32::<2>(moved), _mm512_extracti32x4_epi32::<3>(sum));
    crc_of_lane(_mm_xor_si128(first, last))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn lanes(multipliers: [[u64; 2]; 4]) -> __m512i {
    let [[a, b], [c, d], [e, f], [g, h]] = multipliers.map(|pair| pair.map(u64::cast_signed));
    _mm512_setr_epi64(a, b, c, d, e, f, g, h)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(from: &[u8; 64]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes that are read, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(to: &mut [u8; 64], bytes: __m512i) {
    // SAFETY: the unique reference covers the 64 bytes that are written, and the store needs no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), bytes) }
}
