//! The configuration of the process pool: environment variables, each of them optional.
//!
//! Input: `HEADWATER_POOL_*`. Output: a [`PoolSettings`]. Invariant: an invalid variable is an error that names it, never
//! ignored.

use headwater_dma::pool::{ChunkRule, MemoryPinner, MlockPinner, NoPinning, PoolConfig};
use headwater_host::clock::Nanos;
use std::sync::Arc;

/// The reaction to a wrong free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MisusePolicy {
    /// A line on standard error; the program continues.
    Report,
    /// A line on standard error, and the end of the program.
    Abort,
}

/// The configuration of the pool and the reaction to misuse.
#[derive(Debug)]
pub(crate) struct PoolSettings {
    pub(crate) config: PoolConfig,
    pub(crate) misuse: MisusePolicy,
}

/// An invalid environment variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is \"{value}\": set it to {choice}, or unset it")]
pub(crate) struct InvalidVariable {
    name: &'static str,
    value: String,
    choice: &'static str,
}

const BYTES: &str = "a number of bytes, as 268435456, 256M or 1G";

impl PoolSettings {
    /// Reads the variables that `variable` returns.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidVariable> {
        let mut config = PoolConfig::default();
        if let Some(cap) = parse_variable(&variable, "HEADWATER_POOL_CAP", BYTES, parse_bytes)? {
            config.cap = cap;
        }
        if let Some(chunk) = parse_variable(&variable, "HEADWATER_POOL_CHUNK", BYTES, parse_bytes)? {
            // An explicit size disables adaptation.
            config.chunk = chunk;
            config.chunk_rule = ChunkRule::Fixed;
        }
        let number = |text: &str| text.parse().ok();
        if let Some(idle) =
            parse_variable(&variable, "HEADWATER_POOL_IDLE_MS", "a number of milliseconds", number)?
        {
            config.idle = Nanos::from_millis(idle);
        }
        let pinner = parse_variable(&variable, "HEADWATER_POOL_PIN", "none or locked", |text| match text {
            "none" => Some(Arc::new(NoPinning) as Arc<dyn MemoryPinner>),
            "locked" => Some(Arc::new(MlockPinner) as Arc<dyn MemoryPinner>),
            _ => None,
        })?;
        config.pinner = pinner.unwrap_or(config.pinner);
        let misuse =
            parse_variable(&variable, "HEADWATER_POOL_MISUSE", "report or abort", |text| match text {
                "report" => Some(MisusePolicy::Report),
                "abort" => Some(MisusePolicy::Abort),
                _ => None,
            })?;
        Ok(Self { config, misuse: misuse.unwrap_or(MisusePolicy::Report) })
    }
}

fn parse_variable<T>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    choice: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, InvalidVariable> {
    let Some(value) = variable(name) else { return Ok(None) };
    match parse(&value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(InvalidVariable { name, value, choice }),
    }
}

fn parse_bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<PoolSettings, InvalidVariable> {
        PoolSettings::read(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn sizes_are_parsed_with_and_without_suffix() {
        for (text, want) in [("65536", 65_536), ("64k", 65_536), ("2M", 2 << 20), ("1G", 1 << 30)] {
            assert_eq!(read("HEADWATER_POOL_CAP", text).unwrap().config.cap, want);
        }
        let settings = read("HEADWATER_POOL_CHUNK", "1M").unwrap();
        assert_eq!((settings.config.chunk, settings.config.chunk_rule), (1 << 20, ChunkRule::Fixed));
        let idle = read("HEADWATER_POOL_IDLE_MS", "250").unwrap().config.idle;
        assert_eq!(idle, Nanos::from_millis(250));
        assert_eq!(read("HEADWATER_POOL_PIN", "locked").unwrap().config.pinner.name(), MlockPinner.name());
        assert_eq!(read("HEADWATER_POOL_MISUSE", "abort").unwrap().misuse, MisusePolicy::Abort);
    }

    #[test]
    fn invalid_variable_is_named_in_the_error() {
        for (name, value) in [
            ("HEADWATER_POOL_CAP", ""),
            ("HEADWATER_POOL_CAP", "K"),
            ("HEADWATER_POOL_CAP", "-1"),
            ("HEADWATER_POOL_CAP", "99999999999999G"),
            ("HEADWATER_POOL_CHUNK", "4 MiB"),
            ("HEADWATER_POOL_IDLE_MS", "soon"),
            ("HEADWATER_POOL_PIN", "1"),
            ("HEADWATER_POOL_MISUSE", "ignore"),
        ] {
            let error = read(name, value).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }
}
