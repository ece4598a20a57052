//! CRC-32C by 512-bit carry-less multiplication.
//!
//! Input: a raw CRC state and bytes. Output: the state after them; the bytes, copied if requested. Four registers of
//! four lanes process the message in 256-byte steps, one register the remaining 64-byte steps; the lanes are then
//! combined into 16 bytes, which the crc32 instruction finishes together with the rest of the message.

use super::byte_pass::{BytePass, CopyRoute};
use super::fold::multipliers;
use super::stream::LineCopy;
use super::x86::{copy_crc_words, copy_in_crc_words, copy_out_crc_words, crc_of_lane, crc_words, words};
use std::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm_xor_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
    _mm512_setr_epi64, _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
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
    fold_message(state, BytePass::over(bytes))
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
    fold_message(state, BytePass::between(dst, src))
}

/// Continues the state over the bytes, and copies them past the cache where the destination has whole lines; the slices have
/// one length.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) fn stream_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    let LineCopy { head, lines, tail } = LineCopy::of(dst, src);
    let mut state = copy_crc(state, head.0, head.1);
    if !lines.1.is_empty() {
        state = fold_message(state, BytePass::past_cache(lines.0, lines.1));
    }
    copy_crc(state, tail.0, tail.1)
}

/// Copies from shared memory, and continues the state over what was copied.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) unsafe fn copy_in_crc(state: u32, dst: &mut [u8], from: *const u8) -> u32 {
    if dst.len() < APART_BYTES_MIN {
        // SAFETY: the caller promises the same.
        return unsafe { copy_in_crc_words(state, dst, from) };
    }
    if dst.len() < TOGETHER_BYTES_MIN {
        // SAFETY: the caller promises what the pass needs, for the time of the call.
        copy_only(unsafe { BytePass::copy_in(dst, from) });
        return crc(state, dst);
    }
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    fold_message(state, unsafe { BytePass::copy_in(dst, from) })
}

/// Copies to shared memory, and continues the state over the bytes.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
pub(super) unsafe fn copy_out_crc(state: u32, to: *mut u8, src: &[u8]) -> u32 {
    if src.len() < APART_BYTES_MIN {
        // SAFETY: the caller promises the same.
        return unsafe { copy_out_crc_words(state, to, src) };
    }
    if src.len() < TOGETHER_BYTES_MIN {
        // SAFETY: the caller promises what the pass needs, for the time of the call.
        copy_only(unsafe { BytePass::copy_out(to, src) });
        return crc(state, src);
    }
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    fold_message(state, unsafe { BytePass::copy_out(to, src) })
}

/// Copies without a CRC.
#[target_feature(enable = "avx512f")]
#[inline]
fn copy_only<R: CopyRoute>(mut pass: BytePass<'_, R>) {
    while pass.left() >= 64 {
        pass.take_512();
    }
    while pass.left() >= 8 {
        pass.take_u64();
    }
    while pass.left() >= 1 {
        pass.take_u8();
    }
}

/// Continues the state over a pass of at least 64 bytes.
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512vl,vpclmulqdq")]
#[inline]
fn fold_message<R: CopyRoute>(state: u32, mut pass: BytePass<'_, R>) -> u32 {
    let by_64 = lanes(const { [multipliers(64); 4] });
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()));
    let is_long = pass.left() >= 512;
    let mut sum = _mm512_xor_si512(pass.take_512(), start);
    if is_long {
        let by_256 = lanes(const { [multipliers(256); 4] });
        let (mut a, mut b, mut c, mut d) = (sum, pass.take_512(), pass.take_512(), pass.take_512());
        while pass.left() >= 256 {
            a = fold_onto(a, by_256, pass.take_512());
            b = fold_onto(b, by_256, pass.take_512());
            c = fold_onto(c, by_256, pass.take_512());
            d = fold_onto(d, by_256, pass.take_512());
        }
        d = fold_onto(a, lanes(const { [multipliers(192); 4] }), d);
        d = fold_onto(b, lanes(const { [multipliers(128); 4] }), d);
        sum = fold_onto(c, by_64, d);
    }
    while pass.left() >= 64 {
        sum = fold_onto(sum, by_64, pass.take_512());
    }
    words(combine_lanes(sum), &mut pass)
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
