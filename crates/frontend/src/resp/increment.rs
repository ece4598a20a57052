//! The arithmetic of INCR, DECR and INCRBYFLOAT.
//!
//! Input: the old value and the increment. Output: the new value in decimal, and the reply.

use super::change::{OldValue, WriteAction, stored_number};
use super::decimals;
use super::errors::{self, ErrorReply};
use super::parser::integer;
use super::reply::RespReply;
use headwater_ssd::command::RecordExpiry;

/// Adds to an integer; a missing key counts as zero.
pub(crate) fn increment(old: Option<OldValue>, by: i64) -> Result<(WriteAction, RespReply), ErrorReply> {
    let value = match old {
        Some(old) => integer(&old.bytes).ok_or(errors::NOT_AN_INTEGER)?,
        None => 0,
    };
    let sum = value.checked_add(by).ok_or(errors::OVERFLOW)?;
    Ok(stored_number(sum))
}

/// Adds to a floating-point number; a missing key counts as zero.
pub(crate) fn increment_float(
    old: Option<OldValue>,
    by: &[u8],
) -> Result<(WriteAction, RespReply), ErrorReply> {
    let value = old.map_or_else(|| b"0".to_vec(), |old| old.bytes);
    let sum = decimals::add(&value, by)?.into_bytes();
    Ok((WriteAction::Store(sum.clone().into(), RecordExpiry::Keep), RespReply::Bulk(sum)))
}
