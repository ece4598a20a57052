//! From a command's arguments to what the device is asked.
//!
//! In: a request of a known command with the right number of arguments. Out: a [`Plan`], or the error for the client. Nothing
//! is submitted here.

use super::bits;
use super::change::Change;
use super::command_table::Verb;
use super::errors::{self, Failure};
use super::expiry::{Origin, Rule, Said, Unit};
use super::gather::{Gather, Question};
use super::listing::Listing;
use super::operation::Operation;
use super::pair::Pair;
use super::relocate::{Manner, Relocate, Route};
use super::reply::Reply;
use super::request::Request;
use super::strings;
use super::sweep::{Sweep, Work};
use super::wait::{Tell, Wait};
use super::writes::Writes;
use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{Command, Condition, Expiry, NamespaceId, Release};

/// Whether a single device command changes its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It does not.
    Read,
    /// It does.
    Write,
}

/// What a command comes to.
#[derive(Debug)]
pub(crate) enum Plan {
    /// One device command on the key that is argument `key_at`.
    One { access: Access, key_at: usize, command: Command, wait: Wait },
    /// A read-modify-write of a key.
    Edit(Bytes, Change),
    /// A question about many keys.
    Gather(Gather),
    /// Something that has the connection to itself.
    Alone(Operation),
    /// Nothing: the answer is known.
    Answer(Reply),
}

/// Where and when a command is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) namespace: NamespaceId,
    pub(crate) now: Nanos,
    pub(crate) wall: UnixMillis,
    /// A random place in the device's order of keys.
    pub(crate) random: u64,
}

/// Plans a command.
pub(crate) fn plan(verb: Verb, request: &Request<'_>, place: &Place) -> Result<Plan, Failure> {
    match verb {
        Verb::Get => Ok(read(request, 1, u32::MAX, Wait::Value)),
        Verb::Set => strings::set(request, place.wall),
        Verb::SetNx => Ok(strings::store(request, 2, Condition::IfAbsent, Expiry::Never, Wait::Count)),
        Verb::SetEx => strings::set_with_time(request, place.wall, Unit::Seconds, "setex"),
        Verb::PSetEx => strings::set_with_time(request, place.wall, Unit::Millis, "psetex"),
        Verb::GetSet => Ok(edit(request, strings::swap(request.bytes(2), Expiry::Never, Condition::Always))),
        Verb::GetDel => Ok(edit(request, Change::Take)),
        Verb::GetEx => strings::get_ex(request, place.wall),
        Verb::Append => Ok(edit(request, Change::Append(request.bytes(2)))),
        Verb::StrLen => Ok(exist(request, 1, Wait::Length)),
        Verb::GetRange | Verb::SubStr => strings::get_range(request),
        Verb::SetRange => strings::set_range(request),
        Verb::SetBit => set_bit(request),
        Verb::GetBit => get_bit(request),
        Verb::Incr => Ok(edit(request, Change::Increment(1))),
        Verb::Decr => Ok(edit(request, Change::Increment(-1))),
        Verb::IncrBy => Ok(edit(request, Change::Increment(request.integer(2)?))),
        Verb::DecrBy => {
            let by = request.integer(2)?.checked_neg().ok_or(errors::DECREMENT_OVERFLOW)?;
            Ok(edit(request, Change::Increment(by)))
        }
        Verb::IncrByFloat => {
            super::decimals::float(request.arg(2))?;
            Ok(edit(request, Change::IncrementFloat(request.bytes(2))))
        }
        _ => plan_keys(verb, request, place),
    }
}

fn plan_keys(verb: Verb, request: &Request<'_>, place: &Place) -> Result<Plan, Failure> {
    let many = request.len() > 2;
    match verb {
        Verb::MGet => Ok(gather(request, place, Question::Value)),
        Verb::Del | Verb::Unlink if many => Ok(gather(request, place, Question::Delete)),
        Verb::Exists | Verb::Touch if many => Ok(gather(request, place, Question::Exists)),
        Verb::Del | Verb::Unlink => Ok(Plan::One {
            access: Access::Write,
            key_at: 1,
            command: Command::Delete { key: request.bytes(1), condition: Condition::Always },
            wait: Wait::Count,
        }),
        Verb::Exists | Verb::Touch => Ok(exist(request, 1, Wait::Count)),
        Verb::Expire => expire(request, place.wall, Unit::Seconds, Origin::Now),
        Verb::PExpire => expire(request, place.wall, Unit::Millis, Origin::Now),
        Verb::ExpireAt => expire(request, place.wall, Unit::Seconds, Origin::Epoch),
        Verb::PExpireAt => expire(request, place.wall, Unit::Millis, Origin::Epoch),
        Verb::Ttl => Ok(exist(request, 1, Wait::Time(Tell::SecondsLeft))),
        Verb::PTtl => Ok(exist(request, 1, Wait::Time(Tell::MillisLeft))),
        Verb::ExpireTime => Ok(exist(request, 1, Wait::Time(Tell::Seconds))),
        Verb::PExpireTime => Ok(exist(request, 1, Wait::Time(Tell::Millis))),
        Verb::Persist => Ok(edit(request, Change::Persist)),
        Verb::Type => Ok(exist(request, 1, Wait::Kind)),
        Verb::Object => object(request),
        Verb::Memory => memory(request),
        Verb::Debug => debug(request, place),
        _ => plan_alone(verb, request, place).map(Plan::Alone),
    }
}

fn plan_alone(verb: Verb, request: &Request<'_>, place: &Place) -> Result<Operation, Failure> {
    let namespace = place.namespace;
    Ok(match verb {
        Verb::MSet | Verb::MSetNx => {
            if request.len().is_multiple_of(2) {
                return Err(errors::wrong_arity(verb.name()));
            }
            let condition = if verb == Verb::MSetNx { Condition::IfAbsent } else { Condition::Always };
            Operation::Writes(Writes::parse(request, namespace, condition)?)
        }
        Verb::Lcs => Operation::Pair(Pair::parse(request, namespace)?),
        Verb::Scan => Operation::Listing(Listing::scan(request, namespace)?),
        Verb::Keys => Operation::Listing(Listing::keys(namespace, request.bytes(1))),
        Verb::RandomKey => Operation::Listing(Listing::random(namespace, place.random)),
        Verb::Rename => relocate(request, namespace, Manner::Rename),
        Verb::RenameNx => relocate(request, namespace, Manner::RenameNew),
        Verb::Copy => copy(request, namespace)?,
        Verb::FlushDb | Verb::FlushAll => {
            let plain = request.len() == 1;
            if !plain && !(request.len() == 2 && (request.is(1, "async") || request.is(1, "sync"))) {
                return Err(errors::SYNTAX);
            }
            Operation::Sweep(match verb {
                Verb::FlushDb => Sweep::one(namespace, Work::Clear),
                _ => Sweep::all(Work::Clear),
            })
        }
        Verb::Save => Operation::Sweep(Sweep::all(Work::Flush)),
        Verb::BgSave => match request.len() {
            1 => Operation::Sweep(Sweep::all(Work::FlushAside)),
            2 if request.is(1, "schedule") => Operation::Sweep(Sweep::all(Work::FlushAside)),
            _ => return Err(errors::SYNTAX),
        },
        other => return Err(Failure::told(format!("ERR '{}' has no plan", other.name()))),
    })
}

/// A read of the front of a value.
pub(crate) fn read(request: &Request<'_>, key_at: usize, bytes_max: u32, wait: Wait) -> Plan {
    Plan::One {
        access: Access::Read,
        key_at,
        command: Command::Retrieve {
            key: request.bytes(key_at),
            sink: Vec::new().into(),
            bytes_max,
            release: Release::WhenDurable,
        },
        wait,
    }
}

/// A look at a key.
fn exist(request: &Request<'_>, key_at: usize, wait: Wait) -> Plan {
    Plan::One {
        access: Access::Read,
        key_at,
        command: Command::Exist { key: request.bytes(key_at), release: Release::WhenDurable },
        wait,
    }
}

/// A change of the first key.
pub(crate) fn edit(request: &Request<'_>, change: Change) -> Plan {
    Plan::Edit(request.bytes(1), change)
}

fn gather(request: &Request<'_>, place: &Place, question: Question) -> Plan {
    let keys = (1..request.len()).map(|at| request.bytes(at)).collect();
    Plan::Gather(Gather::new(place.namespace, question, keys))
}

fn set_bit(request: &Request<'_>) -> Result<Plan, Failure> {
    let offset = bits::offset(request, 2)?;
    let bit = match request.integer(3) {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err(errors::BIT),
    };
    Ok(edit(request, Change::SetBit { offset, bit }))
}

fn get_bit(request: &Request<'_>) -> Result<Plan, Failure> {
    let offset = bits::offset(request, 2)?;
    let bytes_max = u32::try_from(offset / 8 + 1).unwrap_or(u32::MAX);
    Ok(read(request, 1, bytes_max, Wait::Bit { offset }))
}

fn expire(request: &Request<'_>, wall: UnixMillis, unit: Unit, origin: Origin) -> Result<Plan, Failure> {
    let rule = Rule::parse(request, 3)?;
    let value = request.integer(2)?;
    let at_ms = Said { unit, origin }
        .at(value, wall)
        .ok_or_else(|| errors::invalid_expire(&request.text(0).to_ascii_lowercase()))?;
    Ok(edit(request, Change::Expire { at_ms, rule }))
}

fn relocate(request: &Request<'_>, namespace: NamespaceId, manner: Manner) -> Operation {
    let route = Route { from: (namespace, request.bytes(1)), to: (namespace, request.bytes(2)) };
    Operation::Relocate(Relocate::new(route, manner))
}

fn copy(request: &Request<'_>, namespace: NamespaceId) -> Result<Operation, Failure> {
    let mut target = namespace;
    let mut manner = Manner::Copy;
    let mut at = 3;
    while at < request.len() {
        match &request.lower(at)[..] {
            b"replace" => manner = Manner::CopyReplace,
            b"db" if at + 1 < request.len() => {
                at += 1;
                target = NamespaceId(request.database(at)? + 1);
            }
            _ => return Err(errors::SYNTAX),
        }
        at += 1;
    }
    let route = Route { from: (namespace, request.bytes(1)), to: (target, request.bytes(2)) };
    if route.from == route.to {
        return Err(errors::SAME_OBJECT);
    }
    Ok(Operation::Relocate(Relocate::new(route, manner)))
}

fn object(request: &Request<'_>) -> Result<Plan, Failure> {
    let word = request.lower(1);
    match (&word[..], request.len()) {
        (b"encoding", 3) => Ok(read(request, 2, 45, Wait::Encoding)),
        (b"refcount", 3) => Ok(exist(request, 2, Wait::References)),
        (b"idletime", 3) => Err(Failure::fixed("ERR idle time is not tracked by this server")),
        (b"freq", 3) => Err(Failure::fixed(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        )),
        (b"encoding" | b"refcount" | b"idletime" | b"freq", _) => {
            Err(errors::wrong_arity(&format!("object|{}", String::from_utf8_lossy(&word))))
        }
        _ => Err(errors::unknown_subcommand("OBJECT", request.arg(1))),
    }
}

fn memory(request: &Request<'_>) -> Result<Plan, Failure> {
    if !request.is(1, "usage") {
        return Err(errors::unknown_subcommand("MEMORY", request.arg(1)));
    }
    match request.len() {
        3 => {}
        5 if request.is(3, "samples") => {
            request.integer(4)?;
        }
        0..=2 => return Err(errors::wrong_arity("memory|usage")),
        _ => return Err(errors::SYNTAX),
    }
    let key_bytes = u32::try_from(request.arg(2).len()).unwrap_or(u32::MAX);
    Ok(exist(request, 2, Wait::Footprint { key_bytes }))
}

/// The part of DEBUG that is here: what tests and tools of others ask for.
fn debug(request: &Request<'_>, place: &Place) -> Result<Plan, Failure> {
    let word = request.lower(1);
    match (&word[..], request.len()) {
        (b"object", 3) => Ok(read(request, 2, 45, Wait::Describe)),
        (b"sleep", 3) => debug_sleep(request, place),
        // Keys expire on time here whatever this says; it is Redis's switch for its own tests.
        (b"set-active-expire", 3) => Ok(Plan::Answer(Reply::Ok)),
        _ => Err(errors::unknown_subcommand("DEBUG", request.arg(1))),
    }
}

fn debug_sleep(request: &Request<'_>, place: &Place) -> Result<Plan, Failure> {
    let seconds = std::str::from_utf8(request.arg(2))
        .ok()
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|seconds| seconds.is_finite())
        .ok_or(errors::NOT_A_FLOAT)?;
    let seconds = seconds.clamp(0.0, super::limits::DEBUG_SLEEP_SECONDS_MAX);
    let span = std::time::Duration::from_secs_f64(seconds);
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Ok(Plan::Alone(Operation::Sleep(place.now.after(Nanos(nanos)))))
}
