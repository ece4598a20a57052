//! Times that keys cease at: how clients say them.
//!
//! In: seconds or milliseconds, from now or since the epoch. Out: milliseconds since the epoch, or Redis's error.

use super::errors::{self, Failure};
use super::request::Request;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::Expiry;

/// Seconds or milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
}

/// From now or since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From now.
    Now,
    /// Since the epoch.
    Epoch,
}

/// A time as a client said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) unit: Unit,
    pub(crate) origin: Origin,
}

impl Said {
    /// The option words EX, PX, EXAT and PXAT.
    pub(crate) fn option(word: &[u8]) -> Option<Self> {
        let (unit, origin) = match word {
            b"ex" => (Unit::Seconds, Origin::Now),
            b"px" => (Unit::Millis, Origin::Now),
            b"exat" => (Unit::Seconds, Origin::Epoch),
            b"pxat" => (Unit::Millis, Origin::Epoch),
            _ => return None,
        };
        Some(Self { unit, origin })
    }

    /// Milliseconds since the epoch; `None` when they do not fit.
    pub(crate) fn at(self, value: i64, wall: UnixMillis) -> Option<i64> {
        let millis = match self.unit {
            Unit::Seconds => value.checked_mul(1_000)?,
            Unit::Millis => value,
        };
        match self.origin {
            Origin::Now => millis.checked_add(i64::try_from(wall.0).ok()?),
            Origin::Epoch => Some(millis),
        }
    }

    /// A time that must be positive, as SET and GETEX want it.
    pub(crate) fn expiry(
        self,
        request: &Request<'_>,
        at: usize,
        wall: UnixMillis,
        command: &str,
    ) -> Result<Expiry, Failure> {
        let value = request.integer(at)?;
        let millis = if value > 0 { self.at(value, wall) } else { None };
        millis
            .and_then(|millis| u64::try_from(millis).ok())
            .filter(|&millis| millis > 0)
            .map(Expiry::At)
            .ok_or_else(|| errors::invalid_expire(command))
    }
}

/// The conditions of EXPIRE: NX, XX, GT and LT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    bits: u8,
}

const NX: u8 = 1;
const XX: u8 = 2;
const GT: u8 = 4;
const LT: u8 = 8;

impl Rule {
    /// Reads the options behind the time.
    pub(crate) fn parse(request: &Request<'_>, from: usize) -> Result<Self, Failure> {
        let mut bits = 0;
        for at in from..request.len() {
            bits |= match &request.lower(at)[..] {
                b"nx" => NX,
                b"xx" => XX,
                b"gt" => GT,
                b"lt" => LT,
                _ => {
                    let text = format!("ERR Unsupported option {}", request.text(at));
                    return Err(Failure::told(text));
                }
            };
        }
        if bits & NX != 0 && bits & (XX | GT | LT) != 0 {
            return Err(Failure::fixed(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if bits & GT != 0 && bits & LT != 0 {
            return Err(Failure::fixed("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(Self { bits })
    }

    /// Whether a key that ceases at `old_ms` (0: never) may get the time `at_ms`.
    pub(crate) fn allows(self, old_ms: u64, at_ms: i64) -> bool {
        let has = |bit| self.bits & bit != 0;
        let old = i64::try_from(old_ms).unwrap_or(i64::MAX);
        !(has(NX) && old_ms != 0
            || has(XX) && old_ms == 0
            || has(GT) && (old_ms == 0 || at_ms <= old)
            || has(LT) && old_ms != 0 && at_ms >= old)
    }
}
