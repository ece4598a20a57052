//! The arithmetic of INCR, DECR and INCRBYFLOAT.
//!
//! Input: the old value, or none, and the increment. Output: the sum.

use super::decimals;
use super::errors::{self, ErrorReply};
use super::parser::integer;

/// Adds to an integer; a missing key counts as zero.
pub(crate) fn add_integer(old: Option<&[u8]>, by: i64) -> Result<i64, ErrorReply> {
    let value = match old {
        Some(old) => integer(old).ok_or(errors::NOT_AN_INTEGER)?,
        None => 0,
    };
    value.checked_add(by).ok_or(errors::OVERFLOW)
}

/// Adds to a floating-point number; a missing key counts as zero. Returns the sum in decimal.
pub(crate) fn add_float(old: Option<&[u8]>, by: &[u8]) -> Result<Vec<u8>, ErrorReply> {
    decimals::add(old.unwrap_or(b"0"), by).map(String::into_bytes)
}
