//! SET and GET in their many forms: options to plans.
//!
//! In: a request. Out: the plan, or Redis's error. What is one device command stays one.

use super::change::Change;
use super::errors::{self, Failure};
use super::expiry::{Origin, Said, Unit};
use super::plan::{Access, Plan, edit, read};
use super::request::Request;
use super::wait::Wait;
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{Command, Condition, Expiry};
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// A store of argument `value_at` under argument 1.
#[inline]
pub(crate) fn store(
    request: &Request<'_>,
    value_at: usize,
    condition: Condition,
    expiry: Expiry,
    wait: Wait,
) -> Plan {
    Plan::One {
        access: Access::Write,
        key_at: 1,
        command: Command::Store {
            key: request.bytes(1),
            value: request.bytes(value_at).into(),
            condition,
            expiry,
        },
        wait,
    }
}

/// A store that answers with what was there.
pub(crate) fn swap(value: Bytes, expiry: Expiry, condition: Condition) -> Change {
    Change::Swap { value, expiry, condition }
}

fn check_length(request: &Request<'_>, value_at: usize) -> Result<(), Failure> {
    if request.arg(value_at).len() > VALUE_BYTES_MAX { Err(errors::TOO_LONG) } else { Ok(()) }
}

/// SET with all its options.
pub(crate) fn set(request: &Request<'_>, wall: UnixMillis) -> Result<Plan, Failure> {
    check_length(request, 2)?;
    if request.len() == 3 {
        return Ok(store(request, 2, Condition::Always, Expiry::Never, Wait::Stored));
    }
    let mut condition = Condition::Always;
    let mut keep = false;
    let mut get = false;
    let mut said: Option<(Said, usize)> = None;
    let mut at = 3;
    while at < request.len() {
        let word = request.lower(at);
        match (&word[..], condition) {
            (b"nx", Condition::Always | Condition::IfAbsent) => condition = Condition::IfAbsent,
            (b"xx", Condition::Always | Condition::IfExists) => condition = Condition::IfExists,
            (b"get", _) => get = true,
            (b"keepttl", _) if said.is_none() => keep = true,
            (word, _) => match Said::option(word) {
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
        Some((said, at)) => said.expiry(request, at, wall, "set")?,
        None if keep => Expiry::Keep,
        None => Expiry::Never,
    };
    if get {
        return Ok(edit(request, swap(request.bytes(2), expiry, condition)));
    }
    Ok(store(request, 2, condition, expiry, Wait::Stored))
}

/// SETEX and PSETEX.
pub(crate) fn set_with_time(
    request: &Request<'_>,
    wall: UnixMillis,
    unit: Unit,
    command: &str,
) -> Result<Plan, Failure> {
    check_length(request, 3)?;
    let said = Said { unit, origin: Origin::Now };
    let expiry = said.expiry(request, 2, wall, command)?;
    Ok(store(request, 3, Condition::Always, expiry, Wait::Stored))
}

/// GETEX.
pub(crate) fn get_ex(request: &Request<'_>, wall: UnixMillis) -> Result<Plan, Failure> {
    if request.len() == 2 {
        return Ok(read(request, 1, u32::MAX, Wait::Value));
    }
    let word = request.lower(2);
    let expiry = match (Said::option(&word), request.len()) {
        (Some(said), 4) => said.expiry(request, 3, wall, "getex"),
        (None, 3) if word == b"persist" => Ok(Expiry::Never),
        _ => return Err(errors::SYNTAX),
    };
    Ok(edit(request, Change::Refresh(expiry)))
}

/// GETRANGE and SUBSTR.
pub(crate) fn get_range(request: &Request<'_>) -> Result<Plan, Failure> {
    let (start, end) = (request.integer(2)?, request.integer(3)?);
    // Only a range that is counted from the front can do without the rest of the value.
    let bytes_max = match (u32::try_from(start), u32::try_from(end)) {
        (Ok(_), Ok(end)) => end.saturating_add(1),
        _ => u32::MAX,
    };
    Ok(read(request, 1, bytes_max, Wait::Range { start, end }))
}

/// SETRANGE.
pub(crate) fn set_range(request: &Request<'_>) -> Result<Plan, Failure> {
    let offset = usize::try_from(request.integer(2)?).map_err(|_| errors::OFFSET)?;
    Ok(edit(request, Change::SetRange { offset, value: request.bytes(3) }))
}
