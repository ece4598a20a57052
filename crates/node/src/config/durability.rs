//! The text form of durability modes: `always`, `interval=MS`, `on-flush`.
//!
//! Input: text. Output: the device's [`Durability`]. The command line, the configuration file and all output use the
//! same form.

use headwater_host::clock::Nanos;
use headwater_ssd::engine::Durability;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// Maximum durability interval, in milliseconds: an hour.
pub const INTERVAL_MS_MAX: u64 = 3_600_000;

/// A durability mode with its text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DurabilityMode(pub Durability);

/// The error of a text that is not a durability mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a durability mode: use always, interval=MS (1 to {INTERVAL_MS_MAX} ms) or on-flush")]
pub struct DurabilityError {
    text: String,
}

impl FromStr for DurabilityMode {
    type Err = DurabilityError;

    fn from_str(text: &str) -> Result<Self, DurabilityError> {
        let refuse = || DurabilityError { text: text.to_owned() };
        match text {
            "always" => Ok(Self(Durability::Always)),
            "on-flush" => Ok(Self(Durability::OnFlush)),
            _ => {
                let millis = text.strip_prefix("interval=").ok_or_else(refuse)?;
                if !millis.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(refuse());
                }
                match millis.parse() {
                    Ok(millis @ 1..=INTERVAL_MS_MAX) => {
                        Ok(Self(Durability::Interval(Nanos::from_millis(millis))))
                    }
                    _ => Err(refuse()),
                }
            }
        }
    }
}

impl TryFrom<String> for DurabilityMode {
    type Error = DurabilityError;

    fn try_from(text: String) -> Result<Self, DurabilityError> {
        text.parse()
    }
}

impl fmt::Display for DurabilityMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Durability::Always => f.write_str("always"),
            Durability::Interval(span) => write!(f, "interval={}", span.0 / 1_000_000),
            Durability::OnFlush => f.write_str("on-flush"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_parses_back_from_its_text() {
        for text in ["always", "on-flush", "interval=1", "interval=250", "interval=3600000"] {
            let mode: DurabilityMode = text.parse().unwrap();
            assert_eq!(mode.to_string(), text);
        }
    }

    #[test]
    fn error_names_a_text_that_is_not_a_mode() {
        for text in
            ["", "never", "Always", "interval", "interval=", "interval=0", "interval=+5", "interval=3600001"]
        {
            let error = text.parse::<DurabilityMode>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }
}
