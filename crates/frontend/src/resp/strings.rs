//! Planning of the SET and GET commands with their options.
//!
//! Input: a request. Output: the plan, or Redis's error. A command that a single device command can execute is planned
//! as one.

use super::change::KeyChange;
use super::errors::{self, ErrorReply};
use super::expiry::{ExpiryArgument, TimeOrigin, TimeUnit};
use super::plan::{CommandPlan, KeyAccess, edit, read};
use super::reply_form::ReplyForm;
use super::request::RespRequest;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// Plans a store of argument `value_at` under the key in argument 1.
#[inline]
pub(crate) fn store(
    request: &RespRequest<'_>,
    value_at: usize,
    condition: WriteCondition,
    expiry: RecordExpiry,
    wait: ReplyForm,
) -> CommandPlan {
    CommandPlan::Single {
        access: KeyAccess::Write,
        key_at: 1,
        command: SsdCommand::Store {
            key: request.bytes(1),
            value: request.bytes(value_at).into(),
            condition,
            expiry,
        },
        wait,
    }
}

/// Returns the change that stores a value and replies with the old one.
pub(crate) fn swap(value: Bytes, expiry: RecordExpiry, condition: WriteCondition) -> KeyChange {
    KeyChange::Swap { value, expiry, condition }
}

fn check_length(request: &RespRequest<'_>, value_at: usize) -> Result<(), ErrorReply> {
    if request.arg(value_at).len() > VALUE_BYTES_MAX { Err(errors::TOO_LONG) } else { Ok(()) }
}

/// Plans SET with all its options.
pub(crate) fn set(request: &RespRequest<'_>, wall: UnixMillis) -> Result<CommandPlan, ErrorReply> {
    check_length(request, 2)?;
    if request.len() == 3 {
        return Ok(store(request, 2, WriteCondition::Always, RecordExpiry::Never, ReplyForm::Stored));
    }
    let mut condition = WriteCondition::Always;
    let mut keep = false;
    let mut get = false;
    let mut said: Option<(ExpiryArgument, usize)> = None;
    let mut at = 3;
    while at < request.len() {
        let word = request.lower(at);
        match (&word[..], condition) {
            (b"nx", WriteCondition::Always | WriteCondition::IfAbsent) => {
                condition = WriteCondition::IfAbsent
            }
            (b"xx", WriteCondition::Always | WriteCondition::IfExists) => {
                condition = WriteCondition::IfExists
            }
            (b"get", _) => get = true,
            (b"keepttl", _) if said.is_none() => keep = true,
            (word, _) => match ExpiryArgument::parse_option(word) {
                Some(time) if said.is_none() && !keep && at + 1 < request.len() => {
                    at += 1;
                    said = Some((time, at));
                }
                _ => return Err(errors::SYNTAX),
            },
        }
        at += 1;
    }
    let expiry = match said {
        Some((said, at)) => said.parse_expiry(request, at, wall, "set")?,
        None if keep => RecordExpiry::Keep,
        None => RecordExpiry::Never,
    };
    if get {
        return Ok(edit(request, swap(request.bytes(2), expiry, condition)));
    }
    Ok(store(request, 2, condition, expiry, ReplyForm::Stored))
}

/// Plans SETEX and PSETEX.
pub(crate) fn set_with_time(
    request: &RespRequest<'_>,
    wall: UnixMillis,
    unit: TimeUnit,
    command: &str,
) -> Result<CommandPlan, ErrorReply> {
    check_length(request, 3)?;
    let said = ExpiryArgument { unit, origin: TimeOrigin::Now };
    let expiry = said.parse_expiry(request, 2, wall, command)?;
    Ok(store(request, 3, WriteCondition::Always, expiry, ReplyForm::Stored))
}

/// Plans GETEX.
pub(crate) fn get_ex(request: &RespRequest<'_>, wall: UnixMillis) -> Result<CommandPlan, ErrorReply> {
    if request.len() == 2 {
        return Ok(read(request, 1, u32::MAX, ReplyForm::Value));
    }
    let word = request.lower(2);
    let expiry = match (ExpiryArgument::parse_option(&word), request.len()) {
        (Some(said), 4) => said.parse_expiry(request, 3, wall, "getex"),
        (None, 3) if word == b"persist" => Ok(RecordExpiry::Never),
        _ => return Err(errors::SYNTAX),
    };
    Ok(edit(request, KeyChange::Refresh(expiry)))
}

/// Plans GETRANGE and SUBSTR.
pub(crate) fn get_range(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    let (start, end) = (request.integer(2)?, request.integer(3)?);
    // Only a range with offsets from the start needs no more than a prefix of the value.
    let bytes_max = match (u32::try_from(start), u32::try_from(end)) {
        (Ok(_), Ok(end)) => end.saturating_add(1),
        _ => u32::MAX,
    };
    Ok(read(request, 1, bytes_max, ReplyForm::Range { start, end }))
}

/// Plans SETRANGE.
pub(crate) fn set_range(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    let offset = usize::try_from(request.integer(2)?).map_err(|_| errors::OFFSET)?;
    Ok(edit(request, KeyChange::SetRange { offset, value: request.bytes(3) }))
}
