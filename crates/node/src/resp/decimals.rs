//! INCRBYFLOAT's arithmetic: decimal numbers with seventeen places.
//!
//! In: two numbers as text. Out: their sum as Redis prints it. Redis adds in 80-bit floating point and prints seventeen
//! places without trailing zeros; adding in decimal gives the same digits for every number that has so many places and is
//! below 10^21, and beyond that 64-bit floating point takes over.

use super::errors::{self, Failure};

const PLACES: i32 = 17;
const ONE: i128 = 100_000_000_000_000_000;
/// Above this the sum of two numbers might not fit.
const EXACT_MAX: i128 = i128::MAX / 4;

/// Adds two numbers.
///
/// # Errors
/// When one is no number or the sum is not finite.
pub(crate) fn add(left: &[u8], right: &[u8]) -> Result<String, Failure> {
    let (left_float, right_float) = (float(left)?, float(right)?);
    if !(left_float + right_float).is_finite() {
        return Err(errors::NOT_FINITE);
    }
    if let (Some(left), Some(right)) = (exact(left), exact(right)) {
        return Ok(print_exact(left + right));
    }
    let printed = format!("{:.17}", left_float + right_float);
    Ok(printed.trim_end_matches('0').trim_end_matches('.').to_owned())
}

/// Checks that a text is a number.
///
/// # Errors
/// When it is none.
pub(crate) fn float(text: &[u8]) -> Result<f64, Failure> {
    let text = std::str::from_utf8(text).map_err(|_| errors::NOT_A_FLOAT)?;
    let value: f64 = text.parse().map_err(|_| errors::NOT_A_FLOAT)?;
    if value.is_nan() {
        Err(errors::NOT_A_FLOAT)
    } else {
        Ok(value)
    }
}

fn exact(text: &[u8]) -> Option<i128> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let split = text
        .iter()
        .position(|byte| matches!(byte, b'e' | b'E'))
        .unwrap_or(text.len());
    let exponent: i32 = match text.get(split + 1..) {
        Some(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        None => 0,
    };
    let mut digits: i128 = 0;
    let mut places: i32 = 0;
    let mut point = false;
    for &byte in &text[..split] {
        match byte {
            b'.' if !point => point = true,
            b'0'..=b'9' => {
                digits = digits.checked_mul(10)?.checked_add(i128::from(byte - b'0'))?;
                places += i32::from(point);
            }
            _ => return None,
        }
    }
    let shift = PLACES.checked_add(exponent)?.checked_sub(places)?;
    let scale = 10_i128.checked_pow(shift.unsigned_abs())?;
    let scaled = if shift >= 0 {
        digits.checked_mul(scale)?
    } else {
        (digits + scale / 2) / scale
    };
    (scaled < EXACT_MAX).then_some(if negative { -scaled } else { scaled })
}

fn print_exact(value: i128) -> String {
    let magnitude = value.unsigned_abs();
    let one = ONE.unsigned_abs();
    let sign = if value < 0 { "-" } else { "" };
    let printed = format!("{sign}{}.{:017}", magnitude / one, magnitude % one);
    printed.trim_end_matches('0').trim_end_matches('.').to_owned()
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
            ("-1.5", "1.5", "0"),
            ("1e-10", "0", "0.0000000001"),
        ] {
            assert_eq!(add(left.as_bytes(), right.as_bytes()).unwrap(), sum);
        }
        assert_eq!(add(b"1e300", b"1").unwrap().len(), 301);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [&b"abc"[..], b"", b" 1", b"nan", b"\xff"] {
            assert_eq!(add(text, b"1"), Err(errors::NOT_A_FLOAT));
        }
        assert_eq!(add(b"inf", b"1"), Err(errors::NOT_FINITE));
    }
}
