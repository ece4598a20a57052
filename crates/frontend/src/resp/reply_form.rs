//! Replies to client commands that take a single device command.
//!
//! Input: a [`SsdCompletion`] and the expected form of the reply. Output: the reply. Stateless.

use super::bitmap::{self, BitRange};
use super::errors;
use super::output_queue::{ValueBuffers, decimal_signed};
use super::reply::RespReply;
use headwater_host::clock::UnixMillis;
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::SsdCompletion;

/// The form in which a reply gives an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TtlForm {
    /// Seconds left.
    SecondsLeft,
    /// Milliseconds left.
    MillisLeft,
    /// Seconds since the epoch.
    Seconds,
    /// Milliseconds since the epoch.
    Millis,
}

/// The form of the reply that a slot makes from its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReplyForm {
    /// The value.
    Value,
    /// OK; null if the condition did not hold.
    Stored,
    /// 1; 0 if the condition did not hold or the key does not exist.
    Count,
    /// The key's expiry.
    Time(TtlForm),
    /// The value's length.
    Length,
    /// The value's type.
    Kind,
    /// A part of the value.
    Range {
        /// First byte; negative counts from the end.
        start: i64,
        /// Last byte; negative counts from the end.
        end: i64,
    },
    /// One bit of the value.
    Bit {
        /// Offset of the bit.
        offset: u64,
    },
    /// The number of set bits in a range.
    BitCount(BitRange),
    /// The position of the first bit of a range that has this value.
    BitPosition {
        /// The bit's value.
        bit: bool,
        /// The range.
        range: BitRange,
    },
    /// The encoding that Redis would use for the value.
    Encoding,
    /// The reference count, always 1.
    References,
    /// The bytes of key, value and record header.
    Footprint {
        /// Bytes of the key.
        key_bytes: u32,
    },
    /// The line of DEBUG OBJECT.
    Describe,
}

impl ReplyForm {
    /// Makes the reply from a completion; the caller replies itself with a value that was read.
    #[inline]
    pub(crate) fn reply(
        self,
        completion: SsdCompletion,
        wall: UnixMillis,
        sinks: &mut ValueBuffers,
    ) -> RespReply {
        let reply = self.reply_without_value(&completion, wall);
        sinks.put_back(completion.sink);
        reply
    }

    fn reply_without_value(self, completion: &SsdCompletion, wall: UnixMillis) -> RespReply {
        let status = completion.status;
        let missing = status == Status::KEY_DOES_NOT_EXIST;
        if !status.is_success() && !missing && status != Status::KEY_EXISTS {
            return errors::from_status(status).into();
        }
        let found = status.is_success();
        let length = completion.value_bytes as usize;
        match self {
            Self::Value => RespReply::Null,
            Self::Stored if found => RespReply::Ok,
            Self::Stored => RespReply::Null,
            Self::Count => RespReply::Integer(i64::from(found)),
            Self::Time(_) if missing => RespReply::Integer(-2),
            Self::Time(form) => time(form, completion.expiry_ms, wall),
            Self::Length => RespReply::Integer(if found { i64::from(completion.value_bytes) } else { 0 }),
            Self::Kind => RespReply::Simple(if found { "string" } else { "none" }),
            Self::Range { start, end } => {
                let range = if found { value_range(start, end, length) } else { None };
                // The sink begins with the part that was read.
                let skip = to_usize(part_to_read(start, end).0.into());
                let part = range.and_then(|range| completion.sink.get(range.start - skip..range.end - skip));
                let part = part.unwrap_or_default();
                RespReply::Bulk(part.to_vec())
            }
            Self::Bit { offset } => {
                let byte = usize::try_from(offset / 8).ok().and_then(|at| completion.sink.get(at)).copied();
                RespReply::Integer(i64::from(byte.unwrap_or(0) >> (7 - offset % 8) & 1))
            }
            Self::BitCount(range) => RespReply::count(bitmap::count(&completion.sink, range)),
            // A missing key is an endless row of zeroes.
            Self::BitPosition { bit, .. } if !found => RespReply::Integer(if bit { -1 } else { 0 }),
            Self::BitPosition { bit, range } => {
                RespReply::Integer(bitmap::position(&completion.sink, bit, range))
            }
            Self::Encoding | Self::References | Self::Footprint { .. } if !found => RespReply::Null,
            Self::Encoding => RespReply::Bulk(encoding(&completion.sink, length).as_bytes().to_vec()),
            Self::References => RespReply::Integer(1),
            Self::Footprint { key_bytes } => {
                let record = 48 + u64::from(key_bytes) + u64::from(completion.value_bytes);
                RespReply::count(record.next_multiple_of(16))
            }
            Self::Describe if !found => errors::NO_SUCH_KEY.into(),
            Self::Describe => {
                let line = format!(
                    "+Value at:{:#x} refcount:1 encoding:{} serializedlength:{} lru:0 lru_seconds_idle:0\r\n",
                    completion.sequence.0,
                    encoding(&completion.sink, length),
                    completion.value_bytes
                );
                RespReply::Encoded(line.into_bytes())
            }
        }
    }
}

fn time(form: TtlForm, expiry_ms: u64, wall: UnixMillis) -> RespReply {
    if expiry_ms == 0 {
        return RespReply::Integer(-1);
    }
    let left = expiry_ms.saturating_sub(wall.0);
    let shown = match form {
        TtlForm::SecondsLeft => (left + 500) / 1_000,
        TtlForm::MillisLeft => left,
        TtlForm::Seconds => expiry_ms.saturating_add(500) / 1_000,
        TtlForm::Millis => expiry_ms,
    };
    RespReply::count(shown)
}

/// Returns the first byte of a value, and the most bytes from there on, that the range between two offsets needs. Where an
/// offset counts from the end of the value, its place is known only with the length.
pub(crate) fn part_to_read(start: i64, end: i64) -> (u32, u32) {
    match (u32::try_from(start), u32::try_from(end)) {
        (Ok(start), Ok(end)) => (start, end.checked_sub(start).map_or(0, |more| more.saturating_add(1))),
        (Ok(start), Err(_)) => (start, u32::MAX),
        (Err(_), _) => (0, u32::MAX),
    }
}

/// Returns the range between two offsets, of which negative ones count from the end; `None` if it is empty.
pub(crate) fn value_range(start: i64, end: i64, length: usize) -> Option<std::ops::Range<usize>> {
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

/// Returns the encoding that Redis would use for a value of this length that begins with `front`.
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
    fn ranges_are_clamped_to_the_value() {
        assert_eq!(value_range(0, -1, 5), Some(0..5));
        assert_eq!(value_range(-3, -2, 5), Some(2..4));
        assert_eq!(value_range(-100, 100, 5), Some(0..5));
        assert_eq!(value_range(5, 10, 5), None);
        assert_eq!(value_range(-1, -5, 5), None);
        assert_eq!(value_range(i64::MIN, i64::MAX, 5), Some(0..5));
        assert_eq!(value_range(0, -100, 5), Some(0..1));
    }

    #[test]
    fn the_part_that_is_read_holds_the_range() {
        assert_eq!(part_to_read(0, 0), (0, 1));
        assert_eq!(part_to_read(3, 7), (3, 5));
        assert_eq!(part_to_read(7, 3), (7, 0));
        assert_eq!(part_to_read(0, u32::MAX.into()), (0, u32::MAX));
        assert_eq!([part_to_read(5, -1), part_to_read(5, 1 << 40)], [(5, u32::MAX); 2]);
        for (start, end) in [(-1, 5), (0, -1), (i64::MIN, i64::MAX), (1 << 32, 1 << 33)] {
            assert_eq!(part_to_read(start, end), (0, u32::MAX));
        }
        let value = b"0123456789";
        for (start, end) in (-12..12).flat_map(|start| (-12..12).map(move |end| (start, end))) {
            let (offset, bytes_max) = part_to_read(start, end);
            let rest = value.get(to_usize(offset.into())..).unwrap_or_default();
            let mut completion = SsdCompletion::new(0, Status::SUCCESS);
            completion.value_bytes = 10;
            completion.sink = rest[..rest.len().min(to_usize(bytes_max.into()))].to_vec();
            let reply = ReplyForm::Range { start, end }.reply_without_value(&completion, UnixMillis(1));
            let expected = value_range(start, end, value.len()).map_or(&[][..], |range| &value[range]);
            assert!(matches!(&reply, RespReply::Bulk(part) if part == expected), "{start} to {end}");
        }
    }
}
