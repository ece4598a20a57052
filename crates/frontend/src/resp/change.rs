//! What a read-modify-write makes of the value that is there.
//!
//! In: the old value and its expiry, or nothing. Out: what to write and what to answer. Pure: the same input decides the same,
//! however often another face makes it begin again.

use super::bits;
use super::counters;
use super::errors::{self, Failure};
use super::expiry::Rule;
use super::reply::{Reply, decimal_signed};
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{Condition, Expiry};
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// The value that is there.
#[derive(Debug)]
pub(crate) struct Old {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// When it ceases, 0 for never.
    pub(crate) expiry_ms: u64,
}

/// What to write.
#[derive(Debug)]
pub(crate) enum Action {
    /// Nothing.
    Nothing,
    /// This value.
    Store(Bytes, Expiry),
    /// The key goes.
    Delete,
}

/// A change to one key.
#[derive(Debug)]
pub(crate) enum Change {
    /// INCR and its family.
    Increment(i64),
    /// INCRBYFLOAT.
    IncrementFloat(Bytes),
    /// APPEND.
    Append(Bytes),
    /// SETRANGE.
    SetRange {
        /// Where.
        offset: usize,
        /// What.
        value: Bytes,
    },
    /// SETBIT.
    SetBit {
        /// Which bit.
        offset: u64,
        /// To what.
        bit: bool,
    },
    /// SET with GET, and GETSET.
    Swap {
        /// The new value.
        value: Bytes,
        /// When it ceases.
        expiry: Expiry,
        /// When to write it.
        condition: Condition,
    },
    /// GETDEL.
    Take,
    /// GETEX with a new time. A wrong time matters only when there is a key.
    Refresh(Result<Expiry, Failure>),
    /// EXPIRE and its family: the time in milliseconds since the epoch, which may be past.
    Expire {
        /// When.
        at_ms: i64,
        /// Under which conditions.
        rule: Rule,
    },
    /// PERSIST.
    Persist,
}

impl Change {
    /// Decides.
    ///
    /// # Errors
    /// When the old value does not allow the change; nothing is written then.
    pub(crate) fn decide(&self, old: Option<Old>, wall: UnixMillis) -> Result<(Action, Reply), Failure> {
        match self {
            Self::Increment(by) => counters::increment(old, *by),
            Self::IncrementFloat(by) => counters::increment_float(old, by),
            Self::SetBit { offset, bit } => bits::set(old, *offset, *bit),
            Self::Append(value) => append(old, value),
            Self::SetRange { offset, value } => set_range(old, *offset, value),
            Self::Swap { value, expiry, condition } => {
                let write = match condition {
                    Condition::IfExists => old.is_some(),
                    Condition::IfAbsent => old.is_none(),
                    _ => true,
                };
                let action = if write { Action::Store(value.clone(), *expiry) } else { Action::Nothing };
                Ok((action, old.map_or(Reply::Null, |old| Reply::Bulk(old.bytes))))
            }
            Self::Take => Ok(match old {
                Some(old) => (Action::Delete, Reply::Bulk(old.bytes)),
                None => (Action::Nothing, Reply::Null),
            }),
            Self::Refresh(_) if old.is_none() => Ok((Action::Nothing, Reply::Null)),
            Self::Refresh(expiry) => expiry.clone().map(|expiry| refresh(old, expiry, wall)),
            Self::Expire { at_ms, rule } => Ok(expire(old, *at_ms, *rule, wall)),
            Self::Persist => Ok(match old {
                Some(old) if old.expiry_ms != 0 => {
                    (Action::Store(old.bytes.into(), Expiry::Never), Reply::Integer(1))
                }
                _ => (Action::Nothing, Reply::Integer(0)),
            }),
        }
    }
}

/// A length as a reply.
pub(crate) fn length_reply(length: usize) -> Reply {
    Reply::Integer(i64::try_from(length).unwrap_or(i64::MAX))
}

/// A number as the value that is stored and the reply that tells it.
pub(crate) fn stored_number(value: i64) -> (Action, Reply) {
    (Action::Store(decimal_signed(value).into(), Expiry::Keep), Reply::Integer(value))
}

fn append(old: Option<Old>, value: &Bytes) -> Result<(Action, Reply), Failure> {
    let mut bytes = old.map_or_else(Vec::new, |old| old.bytes);
    if bytes.len() + value.len() > VALUE_BYTES_MAX {
        return Err(errors::TOO_LONG);
    }
    bytes.extend_from_slice(value);
    let reply = length_reply(bytes.len());
    Ok((Action::Store(bytes.into(), Expiry::Keep), reply))
}

fn set_range(old: Option<Old>, offset: usize, value: &Bytes) -> Result<(Action, Reply), Failure> {
    let mut bytes = old.map_or_else(Vec::new, |old| old.bytes);
    if value.is_empty() {
        return Ok((Action::Nothing, length_reply(bytes.len())));
    }
    let end = offset.saturating_add(value.len());
    if end > VALUE_BYTES_MAX {
        return Err(errors::TOO_LONG);
    }
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(value);
    let reply = length_reply(bytes.len());
    Ok((Action::Store(bytes.into(), Expiry::Keep), reply))
}

fn refresh(old: Option<Old>, expiry: Expiry, wall: UnixMillis) -> (Action, Reply) {
    let Some(old) = old else {
        return (Action::Nothing, Reply::Null);
    };
    let action = match expiry {
        Expiry::At(at) if at <= wall.0 => Action::Delete,
        Expiry::Never if old.expiry_ms == 0 => Action::Nothing,
        expiry => Action::Store(Bytes::copy_from_slice(&old.bytes), expiry),
    };
    (action, Reply::Bulk(old.bytes))
}

fn expire(old: Option<Old>, at_ms: i64, rule: Rule, wall: UnixMillis) -> (Action, Reply) {
    let Some(old) = old.filter(|old| rule.allows(old.expiry_ms, at_ms)) else {
        return (Action::Nothing, Reply::Integer(0));
    };
    let action = match u64::try_from(at_ms) {
        Ok(at) if at > wall.0 => Action::Store(old.bytes.into(), Expiry::At(at)),
        _ => Action::Delete,
    };
    (action, Reply::Integer(1))
}
