//! The modify step of a read-modify-write.
//!
//! Input: the old value and its expiry, or none. Output: the write and the reply. Pure: the same input gives the same
//! result, so the step can be repeated when another front end changed the key.

use super::bitfield::BitField;
use super::bits;
use super::errors::{self, ErrorReply};
use super::expiry::ExpireCondition;
use super::increment;
use super::output_queue::decimal_signed;
use super::reply::RespReply;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_host::width::to_usize;
use headwater_ssd::command::{RecordExpiry, ValueSource, WriteCondition};
use headwater_ssd::limits::LOG_VALUE_BYTES_MAX;

/// The value before the change.
#[derive(Debug)]
pub(crate) struct OldValue {
    /// Bytes of the value.
    pub(crate) bytes: Vec<u8>,
    /// Expiry in milliseconds since the epoch, 0 for never.
    pub(crate) expiry_ms: u64,
}

/// The write that a change requires.
#[derive(Debug)]
pub(crate) enum WriteAction {
    /// No write.
    Nothing,
    /// Stores a value.
    Store(ValueSource, RecordExpiry),
    /// Deletes the key.
    Delete,
}

/// A change to one key.
#[derive(Debug)]
pub(crate) enum KeyChange {
    /// INCR and its family.
    Increment(i64),
    /// INCRBYFLOAT.
    IncrementFloat(Bytes),
    /// APPEND, or several in a row: each value has a reply of its own.
    Append(Vec<Bytes>),
    /// SETRANGE.
    SetRange {
        /// Offset of the first byte to write.
        offset: usize,
        /// The bytes to write.
        value: Bytes,
    },
    /// SETBIT.
    SetBit {
        /// Offset of the bit.
        offset: u64,
        /// The bit's new value.
        bit: bool,
    },
    /// BITFIELD.
    BitField(BitField),
    /// SET with GET, and GETSET.
    Swap {
        /// The new value, of which the device may have received the first bytes.
        value: ValueSource,
        /// The new expiry.
        expiry: RecordExpiry,
        /// The condition of the write.
        condition: WriteCondition,
    },
    /// GETDEL.
    GetAndDelete,
    /// GETEX with a new expiry. An invalid expiry is an error only if the key exists.
    Refresh(Result<RecordExpiry, ErrorReply>),
    /// EXPIRE and its family: the time in milliseconds since the epoch, which may be in the past.
    Expire {
        /// The new expiry.
        at_ms: i64,
        /// The conditions NX, XX, GT and LT.
        condition: ExpireCondition,
    },
    /// PERSIST.
    Persist,
}

impl KeyChange {
    /// Returns the bytes by which the value may grow.
    pub(crate) fn growth(&self) -> usize {
        match self {
            Self::Append(values) => values.iter().map(Bytes::len).sum(),
            Self::SetRange { offset, value } if !value.is_empty() => {
                offset.saturating_add(value.len()).min(LOG_VALUE_BYTES_MAX)
            }
            Self::SetBit { offset, .. } => to_usize(offset / 8).min(LOG_VALUE_BYTES_MAX),
            Self::BitField(field) => to_usize(field.bytes_written()).min(LOG_VALUE_BYTES_MAX),
            _ => 0,
        }
    }

    /// Returns the reply of a change that failed: an error for each of its commands.
    pub(crate) fn failed(&self, failure: ErrorReply) -> RespReply {
        match self {
            Self::Append(values) if values.len() > 1 => {
                RespReply::Parts(values.iter().map(|_| RespReply::Error(failure.clone())).collect())
            }
            _ => failure.into(),
        }
    }

    /// Adds the values of the APPEND commands that follow in the same pipeline.
    pub(crate) fn add_appends(&mut self, following: &mut Vec<Bytes>) {
        if let Self::Append(values) = self {
            values.append(following);
        }
    }

    /// Computes the write and the reply from the old value.
    ///
    /// # Errors
    /// When the old value does not allow the change; nothing is written then.
    pub(crate) fn apply(
        &self,
        old: Option<OldValue>,
        wall: UnixMillis,
    ) -> Result<(WriteAction, RespReply), ErrorReply> {
        match self {
            Self::Increment(by) => increment(old.as_ref(), *by),
            Self::IncrementFloat(by) => increment_float(old.as_ref(), by),
            Self::SetBit { offset, bit } => set_bit(old, *offset, *bit),
            Self::BitField(field) => bit_field(old.as_ref(), field),
            Self::Append(values) => append(old, values),
            Self::SetRange { offset, value } => set_range(old, *offset, value),
            Self::Swap { value, expiry, condition } => {
                let write = match condition {
                    WriteCondition::IfExists => old.is_some(),
                    WriteCondition::IfAbsent => old.is_none(),
                    _ => true,
                };
                let action =
                    if write { WriteAction::Store(value.clone(), *expiry) } else { WriteAction::Nothing };
                Ok((action, old.map_or(RespReply::Null, |old| RespReply::Bulk(old.bytes))))
            }
            Self::GetAndDelete => Ok(match old {
                Some(old) => (WriteAction::Delete, RespReply::Bulk(old.bytes)),
                None => (WriteAction::Nothing, RespReply::Null),
            }),
            Self::Refresh(_) if old.is_none() => Ok((WriteAction::Nothing, RespReply::Null)),
            Self::Refresh(expiry) => expiry.clone().map(|expiry| refresh(old, expiry, wall)),
            Self::Expire { at_ms, condition: rule } => Ok(expire(old, *at_ms, *rule, wall)),
            Self::Persist => Ok(match old {
                Some(old) if old.expiry_ms != 0 => {
                    (WriteAction::Store(old.bytes.into(), RecordExpiry::Never), RespReply::Integer(1))
                }
                _ => (WriteAction::Nothing, RespReply::Integer(0)),
            }),
        }
    }
}

/// Returns a length as a reply.
pub(crate) fn length_reply(length: usize) -> RespReply {
    RespReply::count(length as u64)
}

fn increment(old: Option<&OldValue>, by: i64) -> Result<(WriteAction, RespReply), ErrorReply> {
    let sum = increment::add_integer(old.map(|old| &old.bytes[..]), by)?;
    Ok((WriteAction::Store(decimal_signed(sum).into(), RecordExpiry::Keep), RespReply::Integer(sum)))
}

fn increment_float(old: Option<&OldValue>, by: &[u8]) -> Result<(WriteAction, RespReply), ErrorReply> {
    let sum = increment::add_float(old.map(|old| &old.bytes[..]), by)?;
    Ok((WriteAction::Store(sum.clone().into(), RecordExpiry::Keep), RespReply::Bulk(sum)))
}

fn set_bit(old: Option<OldValue>, offset: u64, bit: bool) -> Result<(WriteAction, RespReply), ErrorReply> {
    let (bytes, before) = bits::set(old.map_or_else(Vec::new, |old| old.bytes), offset, bit)?;
    Ok((WriteAction::Store(bytes.into(), RecordExpiry::Keep), RespReply::Integer(i64::from(before))))
}

fn bit_field(old: Option<&OldValue>, field: &BitField) -> Result<(WriteAction, RespReply), ErrorReply> {
    let (new, numbers) = field.apply(old.map_or(&[], |old| &old.bytes))?;
    let action = new.map_or(WriteAction::Nothing, |new| WriteAction::Store(new.into(), RecordExpiry::Keep));
    Ok((action, RespReply::Numbers(numbers)))
}

fn append(old: Option<OldValue>, values: &[Bytes]) -> Result<(WriteAction, RespReply), ErrorReply> {
    let mut bytes = old.map_or_else(Vec::new, |old| old.bytes);
    let mut replies = Vec::with_capacity(values.len());
    let mut fitted = 0;
    for value in values {
        if bytes.len() + value.len() > LOG_VALUE_BYTES_MAX {
            replies.push(errors::TOO_LONG.into());
        } else {
            bytes.extend_from_slice(value);
            fitted += 1;
            replies.push(length_reply(bytes.len()));
        }
    }
    let action =
        if fitted == 0 { WriteAction::Nothing } else { WriteAction::Store(bytes.into(), RecordExpiry::Keep) };
    match replies.len() {
        1 if fitted == 0 => Err(errors::TOO_LONG),
        1 => Ok((action, replies.swap_remove(0))),
        _ => Ok((action, RespReply::Parts(replies))),
    }
}

fn set_range(
    old: Option<OldValue>,
    offset: usize,
    value: &Bytes,
) -> Result<(WriteAction, RespReply), ErrorReply> {
    let mut bytes = old.map_or_else(Vec::new, |old| old.bytes);
    if value.is_empty() {
        return Ok((WriteAction::Nothing, length_reply(bytes.len())));
    }
    let end = offset.saturating_add(value.len());
    if end > LOG_VALUE_BYTES_MAX {
        return Err(errors::TOO_LONG);
    }
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(value);
    let reply = length_reply(bytes.len());
    Ok((WriteAction::Store(bytes.into(), RecordExpiry::Keep), reply))
}

fn refresh(old: Option<OldValue>, expiry: RecordExpiry, wall: UnixMillis) -> (WriteAction, RespReply) {
    let Some(old) = old else {
        return (WriteAction::Nothing, RespReply::Null);
    };
    let action = match expiry {
        RecordExpiry::At(at) if at <= wall.0 => WriteAction::Delete,
        RecordExpiry::Never if old.expiry_ms == 0 => WriteAction::Nothing,
        expiry => WriteAction::Store(Bytes::copy_from_slice(&old.bytes).into(), expiry),
    };
    (action, RespReply::Bulk(old.bytes))
}

fn expire(
    old: Option<OldValue>,
    at_ms: i64,
    rule: ExpireCondition,
    wall: UnixMillis,
) -> (WriteAction, RespReply) {
    let Some(old) = old.filter(|old| rule.allows(old.expiry_ms, at_ms)) else {
        return (WriteAction::Nothing, RespReply::Integer(0));
    };
    let action = match u64::try_from(at_ms) {
        Ok(at) if at > wall.0 => WriteAction::Store(old.bytes.into(), RecordExpiry::At(at)),
        _ => WriteAction::Delete,
    };
    (action, RespReply::Integer(1))
}
