//! INCR, DECR and INCRBYFLOAT.
//!
//! In: the old value and by how much. Out: the new value, printed, and the reply.

use super::change::{Action, Old, stored_number};
use super::decimals;
use super::errors::{self, Failure};
use super::parser::integer;
use super::reply::Reply;
use headwater_ssd::command::Expiry;

/// Adds to a whole number; a missing key counts as zero.
pub(crate) fn increment(old: Option<Old>, by: i64) -> Result<(Action, Reply), Failure> {
    let value = match old {
        Some(old) => integer(&old.bytes).ok_or(errors::NOT_AN_INTEGER)?,
        None => 0,
    };
    let sum = value.checked_add(by).ok_or(errors::OVERFLOW)?;
    Ok(stored_number(sum))
}

/// Adds to a number; a missing key counts as zero.
pub(crate) fn increment_float(old: Option<Old>, by: &[u8]) -> Result<(Action, Reply), Failure> {
    let value = old.map_or_else(|| b"0".to_vec(), |old| old.bytes);
    let sum = decimals::add(&value, by)?.into_bytes();
    Ok((Action::Store(sum.clone().into(), Expiry::Keep), Reply::Bulk(sum)))
}
