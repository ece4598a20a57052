//! Parsing of expiry times and of EXPIRE's conditions.
//!
//! Input: seconds or milliseconds, from now or since the epoch. Output: milliseconds since the epoch, or Redis's error.

use super::errors::{self, ErrorReply};
use super::request::RespRequest;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::RecordExpiry;

/// The unit of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
}

/// The reference point of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeOrigin {
    /// From now.
    Now,
    /// Since the epoch.
    Epoch,
}

/// The form of an expiry argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpiryArgument {
    pub(crate) unit: TimeUnit,
    pub(crate) origin: TimeOrigin,
}

impl ExpiryArgument {
    /// Parses the option words EX, PX, EXAT and PXAT, in lower case.
    pub(crate) fn parse_option(word: &[u8]) -> Option<Self> {
        let (unit, origin) = match word {
            b"ex" => (TimeUnit::Seconds, TimeOrigin::Now),
            b"px" => (TimeUnit::Millis, TimeOrigin::Now),
            b"exat" => (TimeUnit::Seconds, TimeOrigin::Epoch),
            b"pxat" => (TimeUnit::Millis, TimeOrigin::Epoch),
            _ => return None,
        };
        Some(Self { unit, origin })
    }

    /// Converts a value to milliseconds since the epoch; `None` when they do not fit.
    pub(crate) fn to_unix_millis(self, value: i64, wall: UnixMillis) -> Option<i64> {
        let millis = match self.unit {
            TimeUnit::Seconds => value.checked_mul(1_000)?,
            TimeUnit::Millis => value,
        };
        match self.origin {
            TimeOrigin::Now => millis.checked_add(i64::try_from(wall.0).ok()?),
            TimeOrigin::Epoch => Some(millis),
        }
    }

    /// Parses an argument that must be positive, as SET and GETEX require.
    pub(crate) fn parse_expiry(
        self,
        request: &RespRequest<'_>,
        at: usize,
        wall: UnixMillis,
        command: &str,
    ) -> Result<RecordExpiry, ErrorReply> {
        let value = request.integer(at)?;
        let millis = if value > 0 { self.to_unix_millis(value, wall) } else { None };
        millis
            .and_then(|millis| u64::try_from(millis).ok())
            .filter(|&millis| millis > 0)
            .map(RecordExpiry::At)
            .ok_or_else(|| errors::invalid_expire(command))
    }
}

/// The conditions of EXPIRE: NX, XX, GT and LT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpireCondition {
    bits: u8,
}

const NX: u8 = 1;
const XX: u8 = 2;
const GT: u8 = 4;
const LT: u8 = 8;

impl ExpireCondition {
    /// Parses the options after the time.
    pub(crate) fn parse(request: &RespRequest<'_>, from: usize) -> Result<Self, ErrorReply> {
        let mut bits = 0;
        for at in from..request.len() {
            bits |= match &request.lower(at)[..] {
                b"nx" => NX,
                b"xx" => XX,
                b"gt" => GT,
                b"lt" => LT,
                _ => {
                    return Err(ErrorReply::quoting("ERR Unsupported option ", request.arg(at), ""));
                }
            };
        }
        if bits & NX != 0 && bits & (XX | GT | LT) != 0 {
            return Err(ErrorReply::fixed(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if bits & GT != 0 && bits & LT != 0 {
            return Err(ErrorReply::fixed("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(Self { bits })
    }

    /// Returns true if a key that expires at `old_ms` (0: never) may get the expiry `at_ms`.
    pub(crate) fn allows(self, old_ms: u64, at_ms: i64) -> bool {
        let has = |bit| self.bits & bit != 0;
        // The device keeps a time that any front end stored, so it may exceed the type of Redis's times.
        let (old, at) = (i128::from(old_ms), i128::from(at_ms));
        !(has(NX) && old_ms != 0
            || has(XX) && old_ms == 0
            || has(GT) && (old_ms == 0 || at <= old)
            || has(LT) && old_ms != 0 && at >= old)
    }
}
