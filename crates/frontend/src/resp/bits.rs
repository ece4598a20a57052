//! SETBIT and the arguments of GETBIT.
//!
//! In: the old value, a bit's place and its new state. Out: the new value and the bit's old state. Bit 0 is the highest bit of
//! the first byte.

use super::change::{Action, Old};
use super::errors::{self, Failure};
use super::reply::Reply;
use super::request::Request;
use headwater_ssd::command::Expiry;
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// Reads a bit's place.
pub(crate) fn offset(request: &Request<'_>, at: usize) -> Result<u64, Failure> {
    request
        .integer(at)
        .ok()
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|offset| offset / 8 < VALUE_BYTES_MAX as u64)
        .ok_or(errors::BIT_OFFSET)
}

/// Sets a bit.
pub(crate) fn set(old: Option<Old>, offset: u64, bit: bool) -> Result<(Action, Reply), Failure> {
    let mut bytes = old.map_or_else(Vec::new, |old| old.bytes);
    let at = usize::try_from(offset / 8).map_err(|_| errors::BIT_OFFSET)?;
    if bytes.len() <= at {
        bytes.resize(at + 1, 0);
    }
    let mask = 0x80_u8 >> (offset % 8);
    let before = bytes[at] & mask != 0;
    if bit {
        bytes[at] |= mask;
    } else {
        bytes[at] &= !mask;
    }
    Ok((Action::Store(bytes.into(), Expiry::Keep), Reply::Integer(i64::from(before))))
}
