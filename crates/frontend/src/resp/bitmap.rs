//! The commands BITCOUNT and BITPOS: ranges of bits and the search in them.
//!
//! Input: a value and a range in bytes or bits. Output: the number of set bits, or the position of a bit. Bit 0 is the
//! highest bit of the first byte.

use super::errors::{self, ErrorReply};
use super::request::RespRequest;
use headwater_host::width::to_usize;

/// The unit of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitUnit {
    /// Bytes.
    Byte,
    /// Bits.
    Bit,
}

/// A range of a value; negative positions count from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BitRange {
    start: i64,
    /// The last position; `None` if it was not given, which is the last of the value.
    end: Option<i64>,
    unit: BitUnit,
}

impl BitRange {
    /// The whole value.
    const WHOLE: Self = Self { start: 0, end: None, unit: BitUnit::Byte };

    /// Parses the arguments of a range from `at`: start, end, and the unit.
    fn parse(request: &RespRequest<'_>, at: usize) -> Result<Self, ErrorReply> {
        let unit = match request.len() - at {
            0 => return Ok(Self::WHOLE),
            1 | 2 => BitUnit::Byte,
            3 if request.arg_is(at + 2, "byte") => BitUnit::Byte,
            3 if request.arg_is(at + 2, "bit") => BitUnit::Bit,
            _ => return Err(errors::SYNTAX),
        };
        let start = request.integer(at)?;
        let end = if request.len() > at + 1 { Some(request.integer(at + 1)?) } else { None };
        Ok(Self { start, end, unit })
    }

    /// Returns the first bit and the bit behind the last of the range in a value of this many bytes; `None` if the range
    /// is empty.
    fn bits(self, bytes: usize) -> Option<(usize, usize)> {
        let bits_of_unit = if self.unit == BitUnit::Byte { 8 } else { 1 };
        let length = i64::try_from(bytes * 8 / bits_of_unit).ok()?;
        let end = self.end.unwrap_or(-1);
        let from_end = |position: i64| if position < 0 { position.saturating_add(length) } else { position };
        let (start, end) = (from_end(self.start).max(0), from_end(end).max(0).min(length - 1));
        if start > end {
            return None;
        }
        let bit = |position: i64| usize::try_from(position).ok().map(|position| position * bits_of_unit);
        Some((bit(start)?, bit(end + 1)?))
    }
}

/// Parses the range of BITCOUNT.
pub(crate) fn count_range(request: &RespRequest<'_>) -> Result<BitRange, ErrorReply> {
    if request.len() == 3 { Err(errors::SYNTAX) } else { BitRange::parse(request, 2) }
}

/// Parses the bit and the range of BITPOS.
pub(crate) fn position_range(request: &RespRequest<'_>) -> Result<(bool, BitRange), ErrorReply> {
    let bit = match request.integer(2)? {
        0 => false,
        1 => true,
        _ => return Err(errors::SEARCHED_BIT),
    };
    Ok((bit, BitRange::parse(request, 3)?))
}

/// Returns the byte at `at` with the bits before `first` and from `end` on replaced by `filler`.
fn masked(bytes: &[u8], at: usize, (first, end): (usize, usize), filler: bool) -> u8 {
    let mut mask = 0xFF_u8;
    if at == first / 8 {
        mask &= 0xFF >> (first % 8);
    }
    if end < (at + 1) * 8 {
        mask &= !(0xFF >> (end % 8));
    }
    if filler { bytes[at] | !mask } else { bytes[at] & mask }
}

/// Returns the number of set bits in a range of a value.
pub(crate) fn count(bytes: &[u8], range: BitRange) -> u64 {
    // Both positions may be before the value. BITPOS then searches the first byte, as in Redis.
    if range.end.is_some_and(|end| end < 0 && range.start > end && range.start < 0) {
        return 0;
    }
    let Some((first, end)) = range.bits(bytes.len()) else {
        return 0;
    };
    let (first_byte, last_byte) = (first / 8, (end - 1) / 8);
    let ones = |at: usize| u64::from(masked(bytes, at, (first, end), false).count_ones());
    if first_byte == last_byte {
        return ones(first_byte);
    }
    let (words, rest) = bytes[first_byte + 1..last_byte].as_chunks::<8>();
    let in_words: u64 = words.iter().map(|word| u64::from(u64::from_le_bytes(*word).count_ones())).sum();
    let in_rest: u64 = rest.iter().map(|byte| u64::from(byte.count_ones())).sum();
    ones(first_byte) + in_words + in_rest + ones(last_byte)
}

/// Returns the position of the first bit of a range with this value, or -1. Behind a value there are zeroes, but not behind
/// a range whose end was given.
pub(crate) fn position(bytes: &[u8], bit: bool, range: BitRange) -> i64 {
    let Some((first, end)) = range.bits(bytes.len()) else {
        return -1;
    };
    let behind = if bit || range.end.is_some() { None } else { Some(end) };
    let found = first_of(bytes, bit, (first, end)).or(behind);
    found.and_then(|found| i64::try_from(found).ok()).unwrap_or(-1)
}

fn first_of(bytes: &[u8], bit: bool, (first, end): (usize, usize)) -> Option<usize> {
    // A byte without the bit that is searched for.
    let dull = if bit { 0 } else { 0xFF };
    let (first_byte, last_byte) = (first / 8, (end - 1) / 8);
    let in_byte = |at: usize| {
        let byte = masked(bytes, at, (first, end), !bit) ^ dull;
        (byte != 0).then(|| at * 8 + to_usize(u64::from(byte.leading_zeros())))
    };
    if let Some(found) = in_byte(first_byte) {
        return Some(found);
    }
    let mut at = first_byte + 1;
    let dull_word = [dull; 8];
    while at + 8 <= last_byte && bytes[at..at + 8] == dull_word {
        at += 8;
    }
    (at..=last_byte).find_map(in_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bits of a range, one by one, with their positions.
    fn bits_of(bytes: &[u8], range: BitRange) -> Vec<(i64, bool)> {
        let all: Vec<(i64, bool)> = (0..)
            .zip(bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> (7 - bit) & 1 == 1)))
            .collect();
        let length = i64::try_from(bytes.len()).unwrap() * if range.unit == BitUnit::Bit { 8 } else { 1 };
        let (start, end) = (range.start, range.end.unwrap_or(-1));
        let clamp = |position: i64| if position < 0 { (position + length).max(0) } else { position };
        let (start, end) = (clamp(start), clamp(end));
        let unit = |position: i64| if range.unit == BitUnit::Bit { position } else { position / 8 };
        all.into_iter().filter(|(at, _)| (start..=end).contains(&unit(*at))).collect()
    }

    #[test]
    fn counts_and_positions_equal_those_of_a_search_bit_by_bit() {
        let mut random = fastrand::Rng::with_seed(11);
        for round in 0..20_000 {
            let dull = [0x00, 0xFF][random.usize(..2)];
            let mut bytes = vec![dull; random.usize(..40)];
            for byte in &mut bytes {
                if random.u8(..6) == 0 {
                    *byte = random.u8(..);
                }
            }
            let range = BitRange {
                start: random.i64(-50..50),
                end: [None, Some(random.i64(-50..50)), Some(random.i64(-400..400))][random.usize(..3)],
                unit: [BitUnit::Byte, BitUnit::Bit][random.usize(..2)],
            };
            let bits = bits_of(&bytes, range);
            let backwards = range.start < 0 && range.end.is_some_and(|end| end < 0 && end < range.start);
            let ones = if backwards { 0 } else { bits.iter().filter(|(_, bit)| *bit).count() };
            assert_eq!(count(&bytes, range), ones as u64, "round {round}: {bytes:?} {range:?}");
            for wanted in [false, true] {
                let found = bits.iter().find(|(_, bit)| *bit == wanted).map(|(at, _)| *at);
                let behind = bits.last().filter(|_| !wanted && range.end.is_none()).map(|(at, _)| at + 1);
                let expected = found.or(behind).unwrap_or(-1);
                assert_eq!(position(&bytes, wanted, range), expected, "round {round}: {bytes:?} {range:?}");
            }
        }
    }

    #[test]
    fn extreme_positions_do_not_overflow() {
        for (start, end) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (i64::MIN, i64::MIN), (-1, i64::MAX)]
        {
            for unit in [BitUnit::Byte, BitUnit::Bit] {
                let range = BitRange { start, end: Some(end), unit };
                assert!(count(b"abc", range) <= 10);
                assert!(position(b"abc", true, range) < 24);
                assert_eq!(count(b"", range), 0);
            }
        }
    }
}
