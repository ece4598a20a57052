//! The arguments of SET, GETEX, GETRANGE and their variants.
//!
//! Input: a request. Output: what the command reads or writes, or Redis's error. The planner turns it into device
//! commands.

use super::change::KeyChange;
use super::errors::{self, ErrorReply};
use super::expiry::{ExpiryArgument, TimeOrigin, TimeUnit};
use super::reply_form::{ReplyForm, part_to_read};
use super::request::RespRequest;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{RecordExpiry, WriteCondition};
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// The options of SET.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetOptions {
    pub(crate) condition: WriteCondition,
    pub(crate) expiry: RecordExpiry,
    /// True if the reply is the old value.
    pub(crate) get: bool,
}

fn check_length(request: &RespRequest<'_>, value_at: usize) -> Result<(), ErrorReply> {
    if request.arg(value_at).len() > VALUE_BYTES_MAX { Err(errors::TOO_LONG) } else { Ok(()) }
}

/// Parses the options of SET and checks the length of the value.
#[inline]
pub(crate) fn set(request: &RespRequest<'_>, wall: UnixMillis) -> Result<SetOptions, ErrorReply> {
    check_length(request, 2)?;
    if request.len() == 3 {
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        return Ok(SetOptions { condition, expiry, get: false });
    }
    set_options(request, wall)
}

fn set_options(request: &RespRequest<'_>, wall: UnixMillis) -> Result<SetOptions, ErrorReply> {
    let mut condition = WriteCondition::Always;
    let mut keep = false;
    let mut get = false;
    let mut given: Option<(ExpiryArgument, usize)> = None;
    let mut at = 3;
    while at < request.len() {
        let word = request.lower(at);
        match (&word[..], condition) {
            (b"nx", WriteCondition::Always | WriteCondition::IfAbsent) => {
                condition = WriteCondition::IfAbsent;
            }
            (b"xx", WriteCondition::Always | WriteCondition::IfExists) => {
                condition = WriteCondition::IfExists;
            }
            (b"get", _) => get = true,
            (b"keepttl", _) if given.is_none() => keep = true,
            (word, _) => match ExpiryArgument::parse_option(word) {
                // The same option may be given again; the last one counts.
                Some(time)
                    if given.is_none_or(|(before, _)| before == time) && !keep && at + 1 < request.len() =>
                {
                    at += 1;
                    given = Some((time, at));
                }
                _ => return Err(errors::SYNTAX),
            },
        }
        at += 1;
    }
    let expiry = match given {
        Some((given, at)) => given.parse_expiry(request, at, wall, "set")?,
        None if keep => RecordExpiry::Keep,
        None => RecordExpiry::Never,
    };
    Ok(SetOptions { condition, expiry, get })
}

/// Parses the expiry of SETEX and PSETEX and checks the length of the value.
pub(crate) fn set_with_time(
    request: &RespRequest<'_>,
    wall: UnixMillis,
    unit: TimeUnit,
    command: &str,
) -> Result<RecordExpiry, ErrorReply> {
    check_length(request, 3)?;
    ExpiryArgument { unit, origin: TimeOrigin::Now }.parse_expiry(request, 2, wall, command)
}

/// Parses the option of GETEX; returns `None` for a plain read.
pub(crate) fn get_ex(request: &RespRequest<'_>, wall: UnixMillis) -> Result<Option<KeyChange>, ErrorReply> {
    if request.len() == 2 {
        return Ok(None);
    }
    let mut given: Option<(ExpiryArgument, usize)> = None;
    let mut persist = false;
    let mut at = 2;
    while at < request.len() {
        let word = request.lower(at);
        match ExpiryArgument::parse_option(&word) {
            // The same option may be given again; the last one counts.
            Some(time)
                if given.is_none_or(|(before, _)| before == time) && !persist && at + 1 < request.len() =>
            {
                at += 1;
                given = Some((time, at));
            }
            None if word == b"persist" && given.is_none() => persist = true,
            _ => return Err(errors::SYNTAX),
        }
        at += 1;
    }
    let expiry = match given {
        Some((given, at)) => given.parse_expiry(request, at, wall, "getex"),
        None => Ok(RecordExpiry::Never),
    };
    Ok(Some(KeyChange::Refresh(expiry)))
}

/// Parses the range of GETRANGE and SUBSTR; returns the part of the value to read, and the reply's form.
pub(crate) fn get_range(request: &RespRequest<'_>) -> Result<((u32, u32), ReplyForm), ErrorReply> {
    let (start, end) = (request.integer(2)?, request.integer(3)?);
    Ok((part_to_read(start, end), ReplyForm::Range { start, end }))
}

/// Parses the arguments of SETRANGE.
pub(crate) fn set_range(request: &RespRequest<'_>) -> Result<KeyChange, ErrorReply> {
    let offset = usize::try_from(request.integer(2)?).map_err(|_| errors::OFFSET)?;
    Ok(KeyChange::SetRange { offset, value: request.bytes(3) })
}
