//! CRC-32C on any x86-64 of the last fifteen years: the crc32 instruction, and carry-less multiplication to fold.
//!
//! Input: a raw CRC state and bytes. Output: the state after them; the bytes, copied if requested. Four 128-bit lanes
//! process the message in 64-byte steps; the result is a message of 16 bytes, which the crc32 instruction finishes.

use super::byte_pass::{BytePass, CopyRoute};
use super::fold::{X_TO_MINUS_64, multipliers};
use super::stream::LineCopy;
use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64,
    _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128,
};

/// The length below which folding does not pay.
const FOLD_BYTES_MIN: usize = 192;

/// Continues the state over the bytes with the crc32 instruction alone.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) fn crc_words(state: u32, bytes: &[u8]) -> u32 {
    words(state, &mut BytePass::over(bytes))
}

/// Continues the state over the bytes and copies them; the slices have one length.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) fn copy_crc_words(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    words(state, &mut BytePass::between(dst, src))
}

/// Copies from shared memory, and continues the state over what was copied.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) unsafe fn copy_in_crc_words(state: u32, dst: &mut [u8], from: *const u8) -> u32 {
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    words(state, &mut unsafe { BytePass::copy_in(dst, from) })
}

/// Copies to shared memory, and continues the state over the bytes.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2")]
#[inline]
pub(super) unsafe fn copy_out_crc_words(state: u32, to: *mut u8, src: &[u8]) -> u32 {
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    words(state, &mut unsafe { BytePass::copy_out(to, src) })
}

/// Continues the state word by word, without a call.
#[target_feature(enable = "sse4.2")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
pub(super) fn words<R: CopyRoute>(state: u32, pass: &mut BytePass<'_, R>) -> u32 {
    let mut wide = u64::from(state);
    while pass.left() >= 8 {
        wide = _mm_crc32_u64(wide, pass.take_u64());
    }
    let mut state = wide as u32;
    if pass.left() >= 4 {
        state = _mm_crc32_u32(state, pass.take_u32());
    }
    if pass.left() >= 2 {
        state = _mm_crc32_u16(state, pass.take_u16());
    }
    if pass.left() >= 1 {
        state = _mm_crc32_u8(state, pass.take_u8());
    }
    state
}

/// Continues the state over the bytes.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn crc(state: u32, bytes: &[u8]) -> u32 {
    message(state, BytePass::over(bytes))
}

/// Continues the state over the bytes and copies them; the slices have one length.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn copy_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    message(state, BytePass::between(dst, src))
}

/// Continues the state over the bytes, and copies them past the cache where the destination has whole lines; the slices have
/// one length.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn stream_crc(state: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    let LineCopy { head, lines, tail } = LineCopy::of(dst, src);
    let mut state = copy_crc(state, head.0, head.1);
    state = message(state, BytePass::past_cache(lines.0, lines.1));
    copy_crc(state, tail.0, tail.1)
}

/// Copies from shared memory, and continues the state over what was copied.
///
/// # Safety
/// `from` is readable for the length of `dst`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn copy_in_crc(state: u32, dst: &mut [u8], from: *const u8) -> u32 {
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    message(state, unsafe { BytePass::copy_in(dst, from) })
}

/// Copies to shared memory, and continues the state over the bytes.
///
/// # Safety
/// `to` is writable for the length of `src`, and the two ranges do not overlap.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn copy_out_crc(state: u32, to: *mut u8, src: &[u8]) -> u32 {
    // SAFETY: the caller promises what the pass needs, for the time of the call.
    message(state, unsafe { BytePass::copy_out(to, src) })
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
#[inline]
fn message<R: CopyRoute>(state: u32, mut pass: BytePass<'_, R>) -> u32 {
    if pass.left() < FOLD_BYTES_MIN {
        return words(state, &mut pass);
    }
    let by_64 = pair(const { multipliers(64) });
    let (mut a, mut b) = (pass.take_128(), pass.take_128());
    let (mut c, mut d) = (pass.take_128(), pass.take_128());
    a = _mm_xor_si128(a, _mm_cvtsi32_si128(state.cast_signed()));
    while pass.left() >= 64 {
        a = _mm_xor_si128(fold(a, by_64), pass.take_128());
        b = _mm_xor_si128(fold(b, by_64), pass.take_128());
        c = _mm_xor_si128(fold(c, by_64), pass.take_128());
        d = _mm_xor_si128(fold(d, by_64), pass.take_128());
    }
    let first =
        _mm_xor_si128(fold(a, pair(const { multipliers(48) })), fold(b, pair(const { multipliers(32) })));
    let last = _mm_xor_si128(fold(c, pair(const { multipliers(16) })), d);
    words(crc_of_lane(_mm_xor_si128(first, last)), &mut pass)
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

/// Returns the product of two remainders.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn product(left: u32, right: u32) -> u32 {
    // Each step multiplies by x^32 too, which the second one takes back.
    shifted_product(shifted_product(left, right), X_TO_MINUS_64)
}

/// Returns the product of two remainders and of x^32.
#[target_feature(enable = "sse4.2,pclmulqdq")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the instruction leaves the upper half zero")]
fn shifted_product(left: u32, right: u32) -> u32 {
    let (left, right) = (_mm_cvtsi32_si128(left.cast_signed()), _mm_cvtsi32_si128(right.cast_signed()));
    // A carry-less product of reflected numbers is one bit low.
    let product = _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0x00>(left, right)).cast_unsigned() << 1;
    _mm_crc32_u64(0, product) as u32
}

#[target_feature(enable = "sse2")]
#[inline]
fn pair(multipliers: [u64; 2]) -> __m128i {
    let [first, second] = multipliers;
    _mm_set_epi64x(second.cast_signed(), first.cast_signed())
}
