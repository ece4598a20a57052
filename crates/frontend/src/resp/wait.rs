//! Commands that are one device command: what its completion means to the client.
//!
//! In: a [`Completion`] and what was asked. Out: the reply. No state is kept between.

use super::errors;
use super::output::Sinks;
use super::reply::{Reply, decimal_signed};
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::Completion;

/// How a remaining or absolute time is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    /// Seconds left.
    SecondsLeft,
    /// Milliseconds left.
    MillisLeft,
    /// Seconds since the epoch.
    Seconds,
    /// Milliseconds since the epoch.
    Millis,
}

/// What a slot makes of its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// The value.
    Value,
    /// OK; null when the condition did not hold.
    Stored,
    /// 1; 0 when the condition did not hold or there was no such key.
    Count,
    /// When the key ceases.
    Time(Tell),
    /// Length of the value.
    Length,
    /// Kind of the value.
    Kind,
    /// Part of the value.
    Range {
        /// First byte; negative counts from the end.
        start: i64,
        /// Last byte; negative counts from the end.
        end: i64,
    },
    /// One bit of the value.
    Bit {
        /// Which.
        offset: u64,
    },
    /// How Redis would hold the value.
    Encoding,
    /// How many references there are.
    References,
    /// Bytes that key, value and header take; with the key's length.
    Footprint {
        /// Bytes of the key.
        key_bytes: u32,
    },
    /// DEBUG OBJECT's line.
    Describe,
}

impl Wait {
    /// The reply.
    #[inline]
    pub(crate) fn reply(self, completion: Completion, wall: UnixMillis, sinks: &mut Sinks) -> Reply {
        if let Self::Value = self
            && completion.status.is_success()
        {
            return Reply::Bulk(completion.sink);
        }
        let reply = self.other_reply(&completion, wall);
        sinks.put_back(completion.sink);
        reply
    }

    fn other_reply(self, completion: &Completion, wall: UnixMillis) -> Reply {
        let status = completion.status;
        let missing = status == Status::KEY_DOES_NOT_EXIST;
        if !status.is_success() && !missing && status != Status::KEY_EXISTS {
            return errors::from_status(status).into();
        }
        let found = status.is_success();
        let length = usize::try_from(completion.value_bytes).unwrap_or(usize::MAX);
        match self {
            Self::Value => Reply::Null,
            Self::Stored if found => Reply::Ok,
            Self::Stored => Reply::Null,
            Self::Count => Reply::Integer(i64::from(found)),
            Self::Time(_) if missing => Reply::Integer(-2),
            Self::Time(tell) => Reply::Integer(time(tell, completion.expiry_ms, wall)),
            Self::Length => Reply::Integer(if found { i64::from(completion.value_bytes) } else { 0 }),
            Self::Kind => Reply::Simple(if found { "string" } else { "none" }),
            Self::Range { start, end } => {
                let range = if found { clamp(start, end, length) } else { None };
                let part = range.and_then(|range| completion.sink.get(range)).unwrap_or_default();
                Reply::Bulk(part.to_vec())
            }
            Self::Bit { offset } => {
                let byte = usize::try_from(offset / 8).ok().and_then(|at| completion.sink.get(at)).copied();
                Reply::Integer(i64::from(byte.unwrap_or(0) >> (7 - offset % 8) & 1))
            }
            Self::Encoding | Self::References | Self::Footprint { .. } if !found => Reply::Null,
            Self::Encoding => Reply::Bulk(encoding(&completion.sink, length).as_bytes().to_vec()),
            Self::References => Reply::Integer(1),
            Self::Footprint { key_bytes } => {
                let record = 48 + u64::from(key_bytes) + u64::from(completion.value_bytes);
                Reply::Integer(i64::try_from(record.next_multiple_of(16)).unwrap_or(i64::MAX))
            }
            Self::Describe if !found => errors::NO_SUCH_KEY.into(),
            Self::Describe => {
                let line = format!(
                    "+Value at:{:#x} refcount:1 encoding:{} serializedlength:{} lru:0 lru_seconds_idle:0\r\n",
                    completion.sequence.0,
                    encoding(&completion.sink, length),
                    completion.value_bytes
                );
                Reply::Encoded(line.into_bytes())
            }
        }
    }
}

fn time(tell: Tell, expiry_ms: u64, wall: UnixMillis) -> i64 {
    if expiry_ms == 0 {
        return -1;
    }
    let left = expiry_ms.saturating_sub(wall.0);
    let told = match tell {
        Tell::SecondsLeft => (left + 500) / 1_000,
        Tell::MillisLeft => left,
        Tell::Seconds => expiry_ms.saturating_add(500) / 1_000,
        Tell::Millis => expiry_ms,
    };
    i64::try_from(told).unwrap_or(i64::MAX)
}

/// The bytes between two places, where negative ones count from the end; `None` when there are none.
pub(crate) fn clamp(start: i64, end: i64, length: usize) -> Option<std::ops::Range<usize>> {
    let signed = i64::try_from(length).ok()?;
    if signed == 0 || (start < 0 && end < 0 && start > end) {
        return None;
    }
    let start = if start < 0 { start.saturating_add(signed) } else { start }.max(0);
    let end = if end < 0 { end.saturating_add(signed) } else { end }.max(0).min(signed - 1);
    if start > end {
        return None;
    }
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()? + 1)
}

/// How Redis would hold a value of which these are the first bytes.
fn encoding(front: &[u8], length: usize) -> &'static str {
    if length <= 20 && super::parser::integer(front).is_some_and(|value| decimal_signed(value) == front) {
        "int"
    } else if length <= 44 {
        "embstr"
    } else {
        "raw"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_what_is_there() {
        assert_eq!(clamp(0, -1, 5), Some(0..5));
        assert_eq!(clamp(-3, -2, 5), Some(2..4));
        assert_eq!(clamp(-100, 100, 5), Some(0..5));
        assert_eq!(clamp(5, 10, 5), None);
        assert_eq!(clamp(-1, -5, 5), None);
        assert_eq!(clamp(i64::MIN, i64::MAX, 5), Some(0..5));
        assert_eq!(clamp(0, -100, 5), Some(0..1));
    }
}
