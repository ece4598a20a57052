//! The arithmetic of INCRBYFLOAT: 80-bit floating point, as Redis uses on x86.
//!
//! Input: two numbers as text. Output: their sum, rounded to a mantissa of 64 bits and printed with seventeen decimal
//! places without trailing zeros, digit for digit as Redis. Numbers of more than 38 digits or of very large or small
//! magnitude fall back to 64-bit floating point.

use super::errors::{self, ErrorReply};

/// Ten to the power of the printed decimal places.
const ONE: u128 = 100_000_000_000_000_000;
const MANTISSA_BITS: u32 = 64;

/// A number as sign, mantissa with its highest bit set (or zero), and power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ExtendedFloat {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// Adds two numbers.
///
/// # Errors
/// When one is not a number or the sum is not finite.
pub(crate) fn add(left: &[u8], right: &[u8]) -> Result<String, ErrorReply> {
    let (left_float, right_float) = (float(left)?, float(right)?);
    if !(left_float + right_float).is_finite() {
        return Err(errors::NOT_FINITE);
    }
    let sum = match (parse(left), parse(right)) {
        (Some(left), Some(right)) => sum(left, right).and_then(print),
        _ => None,
    };
    Ok(trim(&sum.unwrap_or_else(|| format!("{:.17}", left_float + right_float))))
}

fn trim(printed: &str) -> String {
    let trimmed = printed.trim_end_matches('0').trim_end_matches('.');
    if trimmed == "-0" { "0".to_owned() } else { trimmed.to_owned() }
}

/// Parses a text as a 64-bit floating-point number.
///
/// # Errors
/// When the text is not a number.
pub(crate) fn float(text: &[u8]) -> Result<f64, ErrorReply> {
    let text = std::str::from_utf8(text).map_err(|_| errors::NOT_A_FLOAT)?;
    let value: f64 = text.parse().map_err(|_| errors::NOT_A_FLOAT)?;
    if value.is_nan() { Err(errors::NOT_A_FLOAT) } else { Ok(value) }
}

/// Parses a number whose digits fit 128 bits.
fn parse(text: &[u8]) -> Option<ExtendedFloat> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let split = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let mut power: i32 = match text.get(split + 1..) {
        Some(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        None => 0,
    };
    let mut digits: u128 = 0;
    let mut point = false;
    for &byte in &text[..split] {
        match byte {
            b'.' if !point => point = true,
            b'0'..=b'9' => {
                digits = digits.checked_mul(10)?.checked_add(u128::from(byte - b'0'))?;
                power = power.checked_sub(i32::from(point))?;
            }
            _ => return None,
        }
    }
    let scale = 10_u128.checked_pow(power.unsigned_abs())?;
    if power >= 0 {
        nearest_quotient(negative, digits.checked_mul(scale)?, 1)
    } else {
        nearest_quotient(negative, digits, scale)
    }
}

/// Returns the number nearest to a fraction.
fn nearest_quotient(negative: bool, numerator: u128, denominator: u128) -> Option<ExtendedFloat> {
    if numerator == 0 {
        return Some(ExtendedFloat { negative, mantissa: 0, exponent: 0 });
    }
    // The shift that leaves 64 bits before the binary point; the first estimate may be one too high.
    let bits = |value: u128| (u128::BITS - value.leading_zeros()).cast_signed();
    let mut shift = 64 - bits(numerator) + bits(denominator);
    loop {
        let amount = shift.unsigned_abs();
        let (top, bottom) = if shift >= 0 {
            (checked_shift_left(numerator, amount), Some(denominator))
        } else {
            (Some(numerator), checked_shift_left(denominator, amount))
        };
        let (Some(top), Some(bottom)) = (top, bottom) else {
            shift -= 1;
            // Only one lower shift can be right; below that the numbers are out of range.
            if shift < 63 - bits(numerator) + bits(denominator) {
                return None;
            }
            continue;
        };
        let whole = top / bottom;
        if whole >> MANTISSA_BITS != 0 {
            shift -= 1;
            continue;
        }
        let rest = top % bottom;
        let up = rest > bottom - rest || (rest == bottom - rest && whole & 1 == 1);
        return normalized(negative, whole + u128::from(up), -shift);
    }
}

/// Shifts left; `None` if bits would be lost.
fn checked_shift_left(value: u128, amount: u32) -> Option<u128> {
    (amount < value.leading_zeros() + u32::from(value == 0))
        .then(|| value << amount)
        .or_else(|| (amount == value.leading_zeros() && amount < u128::BITS).then(|| value << amount))
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
fn print(value: ExtendedFloat) -> Option<String> {
    let sign = if value.negative { "-" } else { "" };
    let mantissa = u128::from(value.mantissa);
    if value.exponent >= 0 {
        let whole = checked_shift_left(mantissa, value.exponent.unsigned_abs())?;
        return Some(format!("{sign}{whole}.0"));
    }
    let places = value.exponent.unsigned_abs();
    if places >= 127 {
        return Some(format!("{sign}0.0"));
    }
    let mut whole = mantissa >> places;
    let product = (mantissa & ((1 << places) - 1)) * ONE;
    let (kept, lost, half) = (product >> places, product & ((1 << places) - 1), 1_u128 << (places - 1));
    let mut fraction = kept + u128::from(lost > half || (lost == half && kept & 1 == 1));
    if fraction == ONE {
        whole += 1;
        fraction = 0;
    }
    Some(format!("{sign}{whole}.{fraction:017}"))
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
        ] {
            assert_eq!(add(left.as_bytes(), right.as_bytes()).unwrap(), sum);
        }
        assert_eq!(add(b"1e300", b"1").unwrap().len(), 301);
    }

    #[test]
    fn text_that_is_not_a_number_is_refused() {
        for text in [&b"abc"[..], b"", b" 1", b"nan", b"\xff"] {
            assert_eq!(add(text, b"1"), Err(errors::NOT_A_FLOAT));
        }
        assert_eq!(add(b"inf", b"1"), Err(errors::NOT_FINITE));
    }
}
