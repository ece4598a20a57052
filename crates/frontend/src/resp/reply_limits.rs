//! The setting `client-output-buffer-limit`, in Redis's spelling.
//!
//! Input: the text of CONFIG SET. Output: [`ReplyLimits`], and the text of CONFIG GET. Redis closes a client that
//! exceeds its limits; here the commands of the client wait. The class `normal` has all clients; `slave` (or `replica`)
//! and `pubsub` have none, so that their limits are checked and have no effect. A zero stands for the default.

use super::limits::{REPLY_BYTES_MAX, REPLY_PATIENCE_SECONDS, REPLY_SHARE_BYTES};
use super::reply_budget::ReplyLimits;
use headwater_host::clock::Nanos;

/// Longest time that may be set, in seconds: a day.
const PATIENCE_SECONDS_MAX: u64 = 86_400;

impl Default for ReplyLimits {
    fn default() -> Self {
        Self {
            hard: REPLY_BYTES_MAX,
            soft: REPLY_SHARE_BYTES,
            patience: Nanos::from_millis(REPLY_PATIENCE_SECONDS * 1_000),
        }
    }
}

impl std::fmt::Display for ReplyLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.patience.0 / 1_000_000_000;
        write!(f, "normal {} {} {seconds} slave 0 0 0 pubsub 0 0 0", self.hard, self.soft)
    }
}

/// Returns the limits after a change: classes, each with its hard limit, its soft limit and seconds.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn parse(text: &[u8], present: ReplyLimits) -> Result<ReplyLimits, &'static str> {
    let wrong =
        "argument is a list of a class (normal, slave, pubsub), a hard limit, a soft limit and seconds";
    let words: Vec<&str> =
        std::str::from_utf8(text).map_err(|_| wrong)?.split(' ').filter(|word| !word.is_empty()).collect();
    if words.is_empty() || !words.len().is_multiple_of(4) {
        return Err(wrong);
    }
    let mut limits = present;
    for class in words.chunks(4) {
        let [name, hard, soft, seconds] = class else { return Err(wrong) };
        let (hard, soft) = (memory(hard).ok_or(wrong)?, memory(soft).ok_or(wrong)?);
        let seconds: u64 = seconds.parse().map_err(|_| wrong)?;
        match &name.to_ascii_lowercase()[..] {
            "normal" => {
                let hard = if hard == 0 { REPLY_BYTES_MAX } else { hard };
                let soft = if soft == 0 { REPLY_SHARE_BYTES.min(hard) } else { soft };
                let seconds = if seconds == 0 { REPLY_PATIENCE_SECONDS } else { seconds };
                if soft > hard || seconds > PATIENCE_SECONDS_MAX {
                    return Err("the soft limit exceeds the hard limit, or the time exceeds a day");
                }
                limits = ReplyLimits { hard, soft, patience: Nanos::from_millis(seconds * 1_000) };
            }
            "slave" | "replica" | "pubsub" => {}
            _ => return Err("Invalid client class specified in buffer limit configuration."),
        }
    }
    Ok(limits)
}

/// Returns a number of bytes with Redis's units: k, m and g are decimal, kb, mb and gb binary.
fn memory(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor: usize = match &text[end..].to_ascii_lowercase()[..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    text[..end].parse::<usize>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_shown_as_redis_spells_them() {
        let default = ReplyLimits::default();
        assert_eq!(default.to_string(), "normal 67108864 65536 5 slave 0 0 0 pubsub 0 0 0");
        let changed = parse(b"normal 2mb 100k 7", default).unwrap();
        assert_eq!(
            (changed.hard, changed.soft, changed.patience),
            (2 << 20, 100_000, Nanos::from_millis(7_000))
        );
        let redis = b"normal 0 0 0 slave 268435456 67108864 60 pubsub 32mb 8mb 60";
        assert_eq!(parse(redis, changed).unwrap(), default);
        assert_eq!(parse(b"replica 1gb 1g 60", changed).unwrap(), changed);
        for wrong in [
            &b""[..],
            b"normal",
            b"normal 1 2",
            b"normal 1 2 1",
            b"normal 2 1 x",
            b"normal -1 0 0",
            b"normal 2 1 86401",
            b"other 0 0 0",
            b"normal 99999999999gb 1 1",
            b"normal 2 1 1 slave",
        ] {
            assert!(parse(wrong, default).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
