//! The file format of host keys.
//!
//! Input: text with one line per host: its NQN, blanks, its key in interchange form; empty lines and lines that begin
//! with `#` are ignored.
//! Output: the keys in the order of the lines.
//! Invariant: a host has one key; an error gives the line number and quotes nothing of the line.

use super::{ConfiguredKey, PskError, PskVersion, TlsPsk};
use std::collections::BTreeSet;

/// Maximum keys in a file: a listener compares each of them with the identity that a host offers.
pub const HOST_KEYS_MAX: usize = 32;

/// The key of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// HOSTNQN.
    pub host: String,
    /// The configured key of the host.
    pub key: ConfiguredKey,
}

/// An error in a text of host keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostKeyError {
    /// A line that is not a name and a key.
    #[error("line {line}: not two words; write a host's NQN, a blank and its key")]
    Line {
        /// Line number, from 1.
        line: usize,
    },
    /// An invalid name or key.
    #[error("line {line}: {source}")]
    Key {
        /// Line number, from 1.
        line: usize,
        /// The error of the name or key.
        source: PskError,
    },
    /// A second key of the same host.
    #[error("line {line}: a second key of the same host; keep one key per host")]
    Duplicate {
        /// Line number, from 1.
        line: usize,
    },
    /// No line has a key.
    #[error(
        "no key found; write a line with a host's NQN, a blank and its key (`nvme gen-tls-key` creates one)"
    )]
    Empty,
    /// More than [`HOST_KEYS_MAX`] keys.
    #[error("more than {HOST_KEYS_MAX} keys; distribute the hosts over several nodes")]
    TooMany,
}

impl HostKey {
    /// Reads all keys of a text.
    ///
    /// # Errors
    /// [`HostKeyError`], with the number of the invalid line.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, HostKeyError> {
        let mut keys = Vec::new();
        let mut hosts = BTreeSet::new();
        for (line, words) in (1..).zip(text.lines()) {
            let mut words = words.split_ascii_whitespace();
            let (host, key) = match (words.next(), words.next(), words.next()) {
                (None, ..) => continue,
                (Some(first), ..) if first.starts_with('#') => continue,
                (Some(host), Some(key), None) => (host, key),
                _ => return Err(HostKeyError::Line { line }),
            };
            let wrong = |source| HostKeyError::Key { line, source };
            super::check_name(host).map_err(wrong)?;
            let key = ConfiguredKey::parse(key).map_err(wrong)?;
            if !hosts.insert(host) {
                return Err(HostKeyError::Duplicate { line });
            }
            if keys.len() == HOST_KEYS_MAX {
                return Err(HostKeyError::TooMany);
            }
            keys.push(Self { host: host.to_owned(), key });
        }
        if keys.is_empty() { Err(HostKeyError::Empty) } else { Ok(keys) }
    }

    /// Returns the keys that a handshake between this host and a subsystem may use, version 1 before version 0. Names
    /// that are too long for version 0 yield version 1 only.
    ///
    /// # Errors
    /// [`PskError`] for an invalid name of the subsystem.
    pub fn tls_psks(&self, subsystem: &str) -> Result<Vec<TlsPsk>, PskError> {
        let retained = self.key.retained(&self.host)?;
        let mut psks = Vec::new();
        for version in PskVersion::ALL {
            match retained.tls_psk(version, &self.host, subsystem) {
                Ok(psk) => psks.push(psk),
                Err(PskError::Identity { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(psks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn keys_are_read_line_by_line() {
        let text = format!("# hosts of the laboratory\n\n nqn.a \t {KEY} \nnqn.b {KEY}\n");
        let keys = HostKey::parse_all(&text).unwrap();
        assert_eq!(keys.iter().map(|key| key.host.as_str()).collect::<Vec<_>>(), ["nqn.a", "nqn.b"]);
        let psks = keys[0].tls_psks("nqn.s").unwrap();
        assert!(psks[0].identity.starts_with("NVMe1R01 nqn.a nqn.s "), "{}", psks[0].identity);
        assert_eq!(psks[1].identity, "NVMe0R01 nqn.a nqn.s");
        let long = format!("nqn.{}", "s".repeat(200));
        let host = HostKey { host: long.clone(), key: keys[0].key.clone() };
        assert_eq!(host.tls_psks(&long).unwrap().len(), 1, "too long for version 0");
    }

    #[test]
    fn error_gives_line_number_and_never_quotes_key() {
        let many: String = (0..=HOST_KEYS_MAX).map(|host| format!("nqn.{host} {KEY}\n")).collect();
        for (text, error) in [
            ("", HostKeyError::Empty),
            ("# nothing\n", HostKeyError::Empty),
            ("nqn.a\n", HostKeyError::Line { line: 1 }),
            (&format!("\nnqn.a {KEY} more\n"), HostKeyError::Line { line: 2 }),
            ("nqn.a NVMeTLSkey-1:01:AA==:", HostKeyError::Key { line: 1, source: PskError::Format }),
            (&format!("nqn.a {KEY}\n#\nnqn.a {KEY}"), HostKeyError::Duplicate { line: 3 }),
            (&many, HostKeyError::TooMany),
        ] {
            let refused = HostKey::parse_all(text).unwrap_err();
            assert_eq!(refused, error, "{text}");
            assert!(!refused.to_string().contains("VRLb"), "{refused}");
        }
    }
}
