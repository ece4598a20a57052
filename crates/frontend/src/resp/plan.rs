//! Translation of a client command into device commands.
//!
//! Input: a request of a known command with the right number of arguments. Output: a [`CommandPlan`], or the error for the
//! client. This module submits nothing.

use super::atomic_writes::AtomicWrites;
use super::bit_operation::BitOperation;
use super::bitfield::BitField;
use super::bitmap;
use super::bits;
use super::change::KeyChange;
use super::command_table::RespCommand;
use super::errors::{self, ErrorReply};
use super::expiry::{ExpireCondition, ExpiryArgument, TimeOrigin, TimeUnit};
use super::gather::{KeyGather, KeyQuery};
use super::key_count::KeyCount;
use super::lcs_operation::LcsOperation;
use super::limits::STREAM_PART_BYTES;
use super::listing::KeyListing;
use super::locks::KeyAccess;
use super::operation::RespOperation;
use super::relocate::{KeyRelocation, RelocateKind, SourceAndTarget};
use super::reply::RespReply;
use super::reply_form::{ReplyForm, TtlForm};
use super::request::RespRequest;
use super::strings::{self, SetOptions};
use super::sweep::{NamespaceSweep, SweepCommand};
use super::value_stream::{StreamedRange, ValueStream};
use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::narrow;
use headwater_ssd::command::{
    NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, WriteCondition,
};

/// The execution plan of a command.
#[derive(Debug)]
pub(crate) enum CommandPlan {
    /// One device command on the key that is argument `key_at`.
    Single { access: KeyAccess, key_at: usize, command: SsdCommand, wait: ReplyForm },
    /// A long value, at the key that is argument `key_at`, which is sent while it is read.
    Stream { key_at: usize, stream: ValueStream },
    /// A read-modify-write of a key.
    Edit(Bytes, KeyChange),
    /// The same read or delete for many keys.
    Gather(KeyGather),
    /// An operation that runs while the connection has nothing else in flight.
    Exclusive(Box<RespOperation>),
    /// No device command: the reply is known.
    Answer(RespReply),
}

impl CommandPlan {
    /// Makes a read of a value that is longer than one part a stream, which holds one part at a time.
    #[cold]
    pub(crate) fn stream(&mut self, namespace: NamespaceId, bytes: &mut usize) {
        let Self::Single { key_at, command: SsdCommand::Retrieve { key, .. }, wait, .. } = self else {
            return;
        };
        let range = match wait {
            ReplyForm::Value => StreamedRange::Whole,
            ReplyForm::Range { start, end } => StreamedRange::Bytes(*start, *end),
            _ => return,
        };
        *bytes = STREAM_PART_BYTES;
        *self = Self::Stream { key_at: *key_at, stream: ValueStream::new(namespace, key.clone(), range) };
    }
}

/// The context in which a command is planned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanContext {
    pub(crate) namespace: NamespaceId,
    pub(crate) now: Nanos,
    pub(crate) wall: UnixMillis,
    /// A random position in the device's order of keys.
    pub(crate) random: u64,
}

/// Plans a command.
#[inline]
pub(crate) fn plan(
    verb: RespCommand,
    request: &RespRequest<'_>,
    place: &PlanContext,
) -> Result<CommandPlan, ErrorReply> {
    match verb {
        RespCommand::Get => Ok(read(request, 1, u32::MAX, ReplyForm::Value)),
        RespCommand::Set => set(request, place.wall),
        _ => plan_value(verb, request, place),
    }
}

fn plan_value(
    verb: RespCommand,
    request: &RespRequest<'_>,
    place: &PlanContext,
) -> Result<CommandPlan, ErrorReply> {
    match verb {
        RespCommand::SetNx => {
            Ok(store(request, 2, WriteCondition::IfAbsent, RecordExpiry::Never, ReplyForm::Count))
        }
        RespCommand::SetEx => set_with_time(request, place.wall, TimeUnit::Seconds, "setex"),
        RespCommand::PSetEx => set_with_time(request, place.wall, TimeUnit::Millis, "psetex"),
        RespCommand::GetSet => Ok(swap(request, WriteCondition::Always, RecordExpiry::Never)),
        RespCommand::GetDel => Ok(edit(request, KeyChange::GetAndDelete)),
        RespCommand::GetEx => Ok(match strings::get_ex(request, place.wall)? {
            Some(change) => edit(request, change),
            None => read(request, 1, u32::MAX, ReplyForm::Value),
        }),
        RespCommand::Append => Ok(edit(request, KeyChange::Append(vec![request.bytes(2)]))),
        RespCommand::StrLen => Ok(exist(request, 1, ReplyForm::Length)),
        RespCommand::GetRange | RespCommand::SubStr => {
            let (part, form) = strings::get_range(request)?;
            Ok(read_part(request, 1, part, form))
        }
        RespCommand::SetRange => Ok(edit(request, strings::set_range(request)?)),
        RespCommand::SetBit => set_bit(request),
        RespCommand::GetBit => get_bit(request),
        RespCommand::BitCount => {
            let range = bitmap::count_range(request)?;
            Ok(read(request, 1, u32::MAX, ReplyForm::BitCount(range)))
        }
        RespCommand::BitPos => {
            let (bit, range) = bitmap::position_range(request)?;
            Ok(read(request, 1, u32::MAX, ReplyForm::BitPosition { bit, range }))
        }
        RespCommand::BitField => Ok(edit(request, KeyChange::BitField(BitField::parse(request)?))),
        RespCommand::BitFieldRo => {
            Ok(edit(request, KeyChange::BitField(BitField::parse_read_only(request)?)))
        }
        RespCommand::Incr => Ok(edit(request, KeyChange::Increment(1))),
        RespCommand::Decr => Ok(edit(request, KeyChange::Increment(-1))),
        RespCommand::IncrBy => Ok(edit(request, KeyChange::Increment(request.integer(2)?))),
        RespCommand::DecrBy => {
            let by = request.integer(2)?.checked_neg().ok_or(errors::DECREMENT_OVERFLOW)?;
            Ok(edit(request, KeyChange::Increment(by)))
        }
        RespCommand::IncrByFloat => {
            super::decimals::check(request.arg(2))?;
            Ok(edit(request, KeyChange::IncrementFloat(request.bytes(2))))
        }
        _ => plan_keys(verb, request, place),
    }
}

fn plan_keys(
    verb: RespCommand,
    request: &RespRequest<'_>,
    place: &PlanContext,
) -> Result<CommandPlan, ErrorReply> {
    let many = request.len() > 2;
    match verb {
        RespCommand::MGet => Ok(gather(request, place, KeyQuery::Value)),
        RespCommand::Del | RespCommand::Unlink if many => Ok(gather(request, place, KeyQuery::Delete)),
        RespCommand::Exists | RespCommand::Touch if many => Ok(gather(request, place, KeyQuery::Exists)),
        RespCommand::Del | RespCommand::Unlink => Ok(CommandPlan::Single {
            access: KeyAccess::Write,
            key_at: 1,
            command: SsdCommand::Delete { key: request.bytes(1), condition: WriteCondition::Always },
            wait: ReplyForm::Count,
        }),
        RespCommand::Exists | RespCommand::Touch => Ok(exist(request, 1, ReplyForm::Count)),
        RespCommand::Expire => expire(request, place.wall, TimeUnit::Seconds, TimeOrigin::Now),
        RespCommand::PExpire => expire(request, place.wall, TimeUnit::Millis, TimeOrigin::Now),
        RespCommand::ExpireAt => expire(request, place.wall, TimeUnit::Seconds, TimeOrigin::Epoch),
        RespCommand::PExpireAt => expire(request, place.wall, TimeUnit::Millis, TimeOrigin::Epoch),
        RespCommand::Ttl => Ok(exist(request, 1, ReplyForm::Time(TtlForm::SecondsLeft))),
        RespCommand::PTtl => Ok(exist(request, 1, ReplyForm::Time(TtlForm::MillisLeft))),
        RespCommand::ExpireTime => Ok(exist(request, 1, ReplyForm::Time(TtlForm::Seconds))),
        RespCommand::PExpireTime => Ok(exist(request, 1, ReplyForm::Time(TtlForm::Millis))),
        RespCommand::Persist => Ok(edit(request, KeyChange::Persist)),
        RespCommand::Type => Ok(exist(request, 1, ReplyForm::Kind)),
        RespCommand::Object => object(request),
        RespCommand::Memory => memory(request),
        RespCommand::Debug => debug(request, place),
        _ => {
            plan_exclusive(verb, request, place).map(|operation| CommandPlan::Exclusive(Box::new(operation)))
        }
    }
}

fn plan_exclusive(
    verb: RespCommand,
    request: &RespRequest<'_>,
    place: &PlanContext,
) -> Result<RespOperation, ErrorReply> {
    let namespace = place.namespace;
    Ok(match verb {
        RespCommand::MSet | RespCommand::MSetNx => {
            if request.len().is_multiple_of(2) {
                return Err(errors::wrong_arity(verb.name()));
            }
            let condition =
                if verb == RespCommand::MSetNx { WriteCondition::IfAbsent } else { WriteCondition::Always };
            RespOperation::Writes(AtomicWrites::parse(request, namespace, condition))
        }
        RespCommand::BitOp => RespOperation::Bits(Box::new(BitOperation::parse(request, namespace)?)),
        RespCommand::Lcs => RespOperation::Lcs(LcsOperation::parse(request, namespace)?),
        RespCommand::Scan => RespOperation::Listing(KeyListing::scan(request, namespace)?),
        RespCommand::Keys => RespOperation::Listing(KeyListing::keys(namespace, request.bytes(1))),
        RespCommand::RandomKey => RespOperation::Listing(KeyListing::random(namespace, place.random)),
        RespCommand::DbSize => RespOperation::Count(KeyCount::new(namespace, place.now)),
        RespCommand::Rename => relocate(request, namespace, RelocateKind::Rename),
        RespCommand::RenameNx => relocate(request, namespace, RelocateKind::RenameNew),
        RespCommand::Copy => copy(request, namespace)?,
        RespCommand::FlushDb | RespCommand::FlushAll => {
            let plain = request.len() == 1;
            if !plain && !(request.len() == 2 && (request.arg_is(1, "async") || request.arg_is(1, "sync"))) {
                return Err(errors::SYNTAX);
            }
            RespOperation::Sweep(match verb {
                RespCommand::FlushDb => NamespaceSweep::one(namespace, SweepCommand::Clear),
                _ => NamespaceSweep::all(SweepCommand::Clear),
            })
        }
        RespCommand::Save => RespOperation::Sweep(NamespaceSweep::all(SweepCommand::Flush)),
        RespCommand::BgSave => match request.len() {
            1 => RespOperation::Sweep(NamespaceSweep::all(SweepCommand::BackgroundSave)),
            2 if request.arg_is(1, "schedule") => {
                RespOperation::Sweep(NamespaceSweep::all(SweepCommand::BackgroundSave))
            }
            _ => return Err(errors::SYNTAX),
        },
        other => return Err(ErrorReply::formatted(format!("ERR '{}' has no handler", other.name()))),
    })
}

/// Plans a read of the first `bytes_max` bytes of a value.
#[inline]
fn read(request: &RespRequest<'_>, key_at: usize, bytes_max: u32, wait: ReplyForm) -> CommandPlan {
    read_part(request, key_at, (0, bytes_max), wait)
}

/// Plans a read of at most `bytes_max` bytes of a value from `offset` on.
#[inline]
fn read_part(
    request: &RespRequest<'_>,
    key_at: usize,
    (offset, bytes_max): (u32, u32),
    wait: ReplyForm,
) -> CommandPlan {
    CommandPlan::Single {
        access: KeyAccess::Read,
        key_at,
        command: SsdCommand::Retrieve {
            key: request.bytes(key_at),
            sink: Vec::new().into(),
            offset,
            bytes_max,
            caching: ReadCaching::ByLength,
            release: ReadRelease::WhenDurable,
        },
        wait,
    }
}

/// Plans a read of a key's metadata.
fn exist(request: &RespRequest<'_>, key_at: usize, wait: ReplyForm) -> CommandPlan {
    CommandPlan::Single {
        access: KeyAccess::Read,
        key_at,
        command: SsdCommand::Exist { key: request.bytes(key_at), release: ReadRelease::WhenDurable },
        wait,
    }
}

/// Plans a store of argument `value_at` under the key in argument 1.
#[inline]
fn store(
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

/// Plans a read-modify-write of the first key.
fn edit(request: &RespRequest<'_>, change: KeyChange) -> CommandPlan {
    CommandPlan::Edit(request.bytes(1), change)
}

/// Plans SET: one store, or a read-modify-write that replies with the old value.
fn set(request: &RespRequest<'_>, wall: UnixMillis) -> Result<CommandPlan, ErrorReply> {
    let SetOptions { condition, expiry, get } = strings::set(request, wall)?;
    if get {
        return Ok(swap(request, condition, expiry));
    }
    Ok(store(request, 2, condition, expiry, ReplyForm::Stored))
}

/// Plans a store of argument 2 that replies with the old value.
fn swap(request: &RespRequest<'_>, condition: WriteCondition, expiry: RecordExpiry) -> CommandPlan {
    edit(request, KeyChange::Swap { value: request.bytes(2).into(), expiry, condition })
}

fn set_with_time(
    request: &RespRequest<'_>,
    wall: UnixMillis,
    unit: TimeUnit,
    command: &str,
) -> Result<CommandPlan, ErrorReply> {
    let expiry = strings::set_with_time(request, wall, unit, command)?;
    Ok(store(request, 3, WriteCondition::Always, expiry, ReplyForm::Stored))
}

fn gather(request: &RespRequest<'_>, place: &PlanContext, question: KeyQuery) -> CommandPlan {
    let keys = (1..request.len()).map(|at| request.bytes(at)).collect();
    CommandPlan::Gather(KeyGather::new(place.namespace, question, keys))
}

fn set_bit(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    let offset = bits::offset(request, 2)?;
    let bit = match request.integer(3) {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err(errors::BIT),
    };
    Ok(edit(request, KeyChange::SetBit { offset, bit }))
}

fn get_bit(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    let offset = bits::offset(request, 2)?;
    let bytes_max = narrow(offset / 8 + 1);
    Ok(read(request, 1, bytes_max, ReplyForm::Bit { offset }))
}

fn expire(
    request: &RespRequest<'_>,
    wall: UnixMillis,
    unit: TimeUnit,
    origin: TimeOrigin,
) -> Result<CommandPlan, ErrorReply> {
    let rule = ExpireCondition::parse(request, 3)?;
    let value = request.integer(2)?;
    let at_ms = ExpiryArgument { unit, origin }
        .to_unix_millis(value, wall)
        .ok_or_else(|| errors::invalid_expire(&request.text(0).to_ascii_lowercase()))?;
    Ok(edit(request, KeyChange::Expire { at_ms, condition: rule }))
}

fn relocate(request: &RespRequest<'_>, namespace: NamespaceId, manner: RelocateKind) -> RespOperation {
    let route = SourceAndTarget { from: (namespace, request.bytes(1)), to: (namespace, request.bytes(2)) };
    RespOperation::Relocate(KeyRelocation::new(route, manner))
}

fn copy(request: &RespRequest<'_>, namespace: NamespaceId) -> Result<RespOperation, ErrorReply> {
    let mut target = namespace;
    let mut manner = RelocateKind::Copy;
    let mut at = 3;
    while at < request.len() {
        match &request.lower(at)[..] {
            b"replace" => manner = RelocateKind::CopyReplace,
            b"db" if at + 1 < request.len() => {
                at += 1;
                target = NamespaceId(request.database(at)? + 1);
            }
            _ => return Err(errors::SYNTAX),
        }
        at += 1;
    }
    let route = SourceAndTarget { from: (namespace, request.bytes(1)), to: (target, request.bytes(2)) };
    if route.from == route.to {
        return Err(errors::SAME_OBJECT);
    }
    Ok(RespOperation::Relocate(KeyRelocation::new(route, manner)))
}

fn object(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    let word = request.lower(1);
    match (&word[..], request.len()) {
        (b"encoding", 3) => Ok(read(request, 2, 45, ReplyForm::Encoding)),
        (b"refcount", 3) => Ok(exist(request, 2, ReplyForm::References)),
        (b"idletime", 3) => Err(ErrorReply::fixed("ERR idle time is not tracked by this server")),
        (b"freq", 3) => Err(ErrorReply::fixed(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        )),
        (b"encoding" | b"refcount" | b"idletime" | b"freq", _) => {
            Err(errors::wrong_arity(&format!("object|{}", String::from_utf8_lossy(&word))))
        }
        _ => Err(errors::unknown_subcommand("OBJECT", request.arg(1))),
    }
}

fn memory(request: &RespRequest<'_>) -> Result<CommandPlan, ErrorReply> {
    if !request.arg_is(1, "usage") {
        return Err(errors::unknown_subcommand("MEMORY", request.arg(1)));
    }
    match request.len() {
        3 => {}
        5 if request.arg_is(3, "samples") => {
            request.integer(4)?;
        }
        0..=2 => return Err(errors::wrong_arity("memory|usage")),
        _ => return Err(errors::SYNTAX),
    }
    let key_bytes = narrow(request.arg(2).len());
    Ok(exist(request, 2, ReplyForm::Footprint { key_bytes }))
}

/// Plans the subcommands of DEBUG that Redis test suites and tools use.
fn debug(request: &RespRequest<'_>, place: &PlanContext) -> Result<CommandPlan, ErrorReply> {
    let word = request.lower(1);
    match (&word[..], request.len()) {
        (b"object", 3) => Ok(read(request, 2, 45, ReplyForm::Describe)),
        (b"sleep", 3) => debug_sleep(request, place),
        // Redis's tests use this switch; here it has no effect, keys always expire on time.
        (b"set-active-expire", 3) => Ok(CommandPlan::Answer(RespReply::Ok)),
        _ => Err(errors::unknown_subcommand("DEBUG", request.arg(1))),
    }
}

fn debug_sleep(request: &RespRequest<'_>, place: &PlanContext) -> Result<CommandPlan, ErrorReply> {
    let seconds = std::str::from_utf8(request.arg(2))
        .ok()
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|seconds| seconds.is_finite())
        .ok_or(errors::NOT_A_FLOAT)?;
    let seconds = seconds.clamp(0.0, super::limits::DEBUG_SLEEP_SECONDS_MAX);
    let span = std::time::Duration::from_secs_f64(seconds);
    let operation = RespOperation::Sleep(place.now.after(Nanos(narrow(span.as_nanos()))));
    Ok(CommandPlan::Exclusive(Box::new(operation)))
}
