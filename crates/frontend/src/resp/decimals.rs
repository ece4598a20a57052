//! The arithmetic of INCRBYFLOAT: 80-bit floating point, as Redis uses on x86.
//!
//! Input: two numbers as text, decimal or hexadecimal. Output: their sum, rounded to a mantissa of 64 bits and printed with
//! seventeen decimal places without trailing zeros, digit for digit as Redis.

use super::errors::{self, ErrorReply};
use super::wide_integer::WideInteger;
use headwater_host::width::narrow;

/// Ten to the power of the printed decimal places.
const ONE: u128 = 100_000_000_000_000_000;
/// Most bytes of a number's text, as in Redis.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// The largest power of two of a mantissa.
const EXPONENT_MAX: i32 = 16_383 - 63;
/// The smallest power of two of a mantissa's highest bit that does not become zero.
const TOP_BIT_MIN: i32 = -16_446;
const MANTISSA_BITS: u32 = 64;

/// A number as sign, mantissa with its highest bit set (or zero), and power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExtendedFloat {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// A number as its text says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParsedFloat {
    Finite(ExtendedFloat),
    Infinite,
}

/// Adds two numbers.
///
/// # Errors
/// When one is not a number or the sum is not finite.
pub(crate) fn add(left: &[u8], right: &[u8]) -> Result<String, ErrorReply> {
    let (ParsedFloat::Finite(left), ParsedFloat::Finite(right)) = (parse(left)?, parse(right)?) else {
        return Err(errors::NOT_FINITE);
    };
    let sum = sum(left, right).filter(|sum| sum.exponent <= EXPONENT_MAX).ok_or(errors::NOT_FINITE)?;
    Ok(trim(&print(sum)))
}

/// Checks that a text is a number.
///
/// # Errors
/// When it is not, or when it is out of range.
pub(crate) fn check(text: &[u8]) -> Result<(), ErrorReply> {
    parse(text).map(drop)
}

fn trim(printed: &str) -> String {
    let trimmed = printed.trim_end_matches('0').trim_end_matches('.');
    if trimmed == "-0" { "0".to_owned() } else { trimmed.to_owned() }
}

/// Parses a number as the C function `strtold` does, without leading space.
fn parse(text: &[u8]) -> Result<ParsedFloat, ErrorReply> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if text.len() > TEXT_BYTES_MAX {
        return Err(errors::NOT_A_FLOAT);
    }
    if digits.eq_ignore_ascii_case(b"inf") || digits.eq_ignore_ascii_case(b"infinity") {
        return Ok(ParsedFloat::Infinite);
    }
    let finite = match digits {
        [b'0', b'x' | b'X', rest @ ..] => parse_digits(rest, 16).and_then(|parsed| parsed.binary(negative)),
        _ => parse_digits(digits, 10).and_then(|parsed| parsed.decimal(negative)),
    };
    let in_range = |parsed: &ExtendedFloat| {
        parsed.mantissa == 0 || (parsed.exponent <= EXPONENT_MAX && parsed.exponent + 63 >= TOP_BIT_MIN)
    };
    finite.filter(in_range).map(ParsedFloat::Finite).ok_or(errors::NOT_A_FLOAT)
}

/// The digits of a number without its point, the number of digits behind that, and the exponent that was given.
#[derive(Debug)]
struct FloatDigits {
    digits: WideInteger,
    places: i32,
    exponent: i32,
}

fn parse_digits(text: &[u8], base: u32) -> Option<FloatDigits> {
    let mark = if base == 16 { b'p' } else { b'e' };
    let split = text.iter().position(|byte| byte.to_ascii_lowercase() == mark).unwrap_or(text.len());
    let exponent = match text.get(split + 1..) {
        Some(exponent) => parse_exponent(exponent)?,
        None => 0,
    };
    let mut parsed = FloatDigits { digits: WideInteger::default(), places: 0, exponent };
    let (mut point, mut any) = (false, false);
    for &byte in &text[..split] {
        if byte == b'.' && !point {
            point = true;
            continue;
        }
        let digit = char::from(byte).to_digit(base)?;
        any = true;
        parsed.places += i32::from(point);
        if parsed.digits.is_zero() {
            parsed.digits = WideInteger::new(digit);
        } else {
            parsed.digits.multiply_add(base, digit);
        }
    }
    any.then_some(parsed)
}

/// Parses an exponent; one that is out of every range is shortened.
fn parse_exponent(text: &[u8]) -> Option<i32> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let limit = 100_000_i32;
    let value = digits.iter().fold(0, |value: i32, digit| (value * 10 + i32::from(digit - b'0')).min(limit));
    Some(sign * value)
}

impl FloatDigits {
    /// Returns the nearest number; `None` if it is far out of range.
    fn decimal(self, negative: bool) -> Option<ExtendedFloat> {
        let power = self.exponent - self.places;
        // The logarithm to the base ten of two is about 0.3.
        let magnitude = power + narrow::<u32, i32>(self.digits.bits()) * 3 / 10;
        if !self.digits.is_zero() && !(-5_000..5_000).contains(&magnitude) {
            return None;
        }
        if self.digits.is_zero() {
            return Some(ExtendedFloat { negative, mantissa: 0, exponent: 0 });
        }
        let ten_to = |mut number: WideInteger, power: u32| {
            (0..power / 9).for_each(|_| number.multiply_add(1_000_000_000, 0));
            (0..power % 9).for_each(|_| number.multiply_add(10, 0));
            number
        };
        if power >= 0 {
            let numerator = ten_to(self.digits, power.unsigned_abs());
            nearest_quotient(negative, &numerator, &WideInteger::new(1))
        } else {
            nearest_quotient(negative, &self.digits, &ten_to(WideInteger::new(1), power.unsigned_abs()))
        }
    }

    /// Returns the nearest number whose digits are hexadecimal and whose exponent is of two.
    fn binary(self, negative: bool) -> Option<ExtendedFloat> {
        if self.digits.is_zero() {
            return Some(ExtendedFloat { negative, mantissa: 0, exponent: 0 });
        }
        let nearest = nearest_quotient(negative, &self.digits, &WideInteger::new(1))?;
        Some(ExtendedFloat { exponent: nearest.exponent + self.exponent - 4 * self.places, ..nearest })
    }
}

/// Returns the number nearest to a fraction above zero.
fn nearest_quotient(
    negative: bool,
    numerator: &WideInteger,
    denominator: &WideInteger,
) -> Option<ExtendedFloat> {
    // The shift that leaves 65 or 66 bits before the binary point.
    let shift = 65 + narrow::<u32, i32>(denominator.bits()) - narrow::<u32, i32>(numerator.bits());
    let (quotient, has_rest) = if shift >= 0 {
        numerator.shifted(shift.unsigned_abs()).divide(denominator)
    } else {
        numerator.clone().divide(&denominator.shifted(shift.unsigned_abs()))
    };
    // One more bit says that the exact number is above the quotient.
    normalized(negative, quotient << 1 | u128::from(has_rest), -shift - 1)
}

/// Normalizes a mantissa of any width; excess bits round to nearest, ties to even.
fn normalized(negative: bool, value: u128, exponent: i32) -> Option<ExtendedFloat> {
    if value == 0 {
        return Some(ExtendedFloat { negative, mantissa: 0, exponent: 0 });
    }
    let bits = u128::BITS - value.leading_zeros();
    if bits <= MANTISSA_BITS {
        let up = MANTISSA_BITS - bits;
        let mantissa = u64::try_from(value).ok()? << up;
        return Some(ExtendedFloat { negative, mantissa, exponent: exponent - i32::try_from(up).ok()? });
    }
    let down = bits - MANTISSA_BITS;
    let (kept, lost, half) = (value >> down, value & ((1 << down) - 1), 1_u128 << (down - 1));
    let rounded = kept + u128::from(lost > half || (lost == half && kept & 1 == 1));
    let exponent = exponent + i32::try_from(down).ok()?;
    match u64::try_from(rounded) {
        Ok(mantissa) => Some(ExtendedFloat { negative, mantissa, exponent }),
        // Rounded up to the next power of two.
        Err(_) => Some(ExtendedFloat { negative, mantissa: 1 << 63, exponent: exponent + 1 }),
    }
}

fn sum(left: ExtendedFloat, right: ExtendedFloat) -> Option<ExtendedFloat> {
    if left.mantissa == 0 {
        return Some(right);
    }
    if right.mantissa == 0 {
        return Some(left);
    }
    let order = |value: &ExtendedFloat| (value.exponent, value.mantissa);
    let (large, small) = if order(&left) >= order(&right) { (left, right) } else { (right, left) };
    let distance = u32::try_from(large.exponent - small.exponent).ok()?;
    // 62 extra bits behind the mantissa; the last is sticky: set if any lower bit was lost.
    let wide = |mantissa: u64| u128::from(mantissa) << 62;
    let near = if distance < 126 { wide(small.mantissa) >> distance } else { 0 };
    let lost = distance >= 126 || (near << distance) != wide(small.mantissa);
    let total = if large.negative == small.negative {
        (wide(large.mantissa) + near) | u128::from(lost)
    } else {
        (wide(large.mantissa) - near - u128::from(lost)) | u128::from(lost)
    };
    normalized(large.negative, total, large.exponent - 62)
}

/// Prints a number with seventeen decimal places, exactly rounded.
fn print(value: ExtendedFloat) -> String {
    let sign = if value.negative { "-" } else { "" };
    let mantissa = u128::from(value.mantissa);
    if value.exponent >= 0 {
        let mut whole = WideInteger::new(narrow(value.mantissa >> 32)).shifted(32);
        let low = narrow(value.mantissa & u64::from(u32::MAX));
        if whole.is_zero() {
            whole = WideInteger::new(low);
        } else {
            whole.multiply_add(1, low);
        }
        return format!("{sign}{}.0", whole.shifted(value.exponent.unsigned_abs()).decimal());
    }
    let places = value.exponent.unsigned_abs();
    if places >= 127 {
        return format!("{sign}0.0");
    }
    let mut whole = mantissa >> places;
    let product = (mantissa & ((1 << places) - 1)) * ONE;
    let (kept, lost, half) = (product >> places, product & ((1 << places) - 1), 1_u128 << (places - 1));
    let mut fraction = kept + u128::from(lost > half || (lost == half && kept & 1 == 1));
    if fraction == ONE {
        whole += 1;
        fraction = 0;
    }
    format!("{sign}{whole}.{fraction:017}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_printed_as_redis_prints_them() {
        for (left, right, sum) in [
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0", "-5", "-5"),
            ("3", "1.2", "4.2"),
            ("173", "0.1", "173.10000000000000001"),
            ("173.10000000000000001", "5.0e3", "5173.10000000000000009"),
            ("-173", "-0.1", "-173.10000000000000001"),
            ("1e18", "0.5", "1000000000000000000.5"),
            ("-1.5", "1.5", "0"),
            ("1e-10", "0", "0.0000000001"),
            ("1e40", "1", "9999999999999999999783686092270256259072"),
            ("0x1.8p3", "0x10", "28"),
            ("-0", "0", "0"),
            (".5", "5.", "5.5"),
            ("1e-4000", "0", "0"),
            ("0e99999", "1", "1"),
            ("1e-17", "0", "0.00000000000000001"),
            ("0", "123456789012345678901234567890", "123456789012345678899921813504"),
        ] {
            assert_eq!(add(left.as_bytes(), right.as_bytes()).unwrap(), sum);
        }
        assert_eq!(add(b"1e300", b"1").unwrap().len(), 301);
    }

    #[test]
    fn text_that_is_not_a_number_is_refused() {
        let wrong = "abc| 1|1 |nan|nan(1)|1e|e1|.|+|-|1_0|0x|0xp1|1.2.3|1e1e1|1e5000|-1e5000|1e-5000|1e999999999999|1\0|1p1";
        for text in wrong.split('|').map(str::as_bytes).chain([&b""[..], b"\xff", &[b'1'; 5120]]) {
            assert_eq!(add(text, b"1"), Err(errors::NOT_A_FLOAT), "{}", String::from_utf8_lossy(text));
        }
        for text in ["inf", "-inf", "+Infinity", "INF"] {
            assert_eq!(add(text.as_bytes(), b"1"), Err(errors::NOT_FINITE));
        }
        assert_eq!(add(b"1e4932", b"1e4932"), Err(errors::NOT_FINITE));
    }
}
