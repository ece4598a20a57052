//! Keys by the hosts that they are of, as a file holds them.
//!
//! In: text, a line a host: its NQN, blanks, its key in interchange form; empty lines and lines that begin with `#` say nothing.
//! Out: the keys in the order of the lines. Invariant: a host has one key; an error names the line and quotes nothing of it.

use super::{ConfiguredKey, PskError, PskVersion, TlsPsk};
use std::collections::BTreeSet;

/// Most keys in a file: whoever listens compares each with what a host offers.
pub const HOST_KEYS_MAX: usize = 32;

/// The key of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKey {
    /// HOSTNQN.
    pub host: String,
    /// Its key.
    pub key: ConfiguredKey,
}

/// Why a text holds no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostKeyError {
    /// A line that is not a name and a key.
    #[error("line {line}: write a host's NQN, a blank and its key")]
    Line {
        /// Which, from 1.
        line: usize,
    },
    /// A name or a key that is none.
    #[error("line {line}: {source}")]
    Key {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        source: PskError,
    },
    /// A host that stands there already.
    #[error("line {line}: this host has a key already; a host has one")]
    Twice {
        /// Which, from 1.
        line: usize,
    },
    /// No line has a key.
    #[error(
        "there is no key; write a line with a host's NQN, a blank and its key (`nvme gen-tls-key` makes one)"
    )]
    Empty,
    /// More than are taken.
    #[error("more than {HOST_KEYS_MAX} keys; use one node for fewer hosts")]
    TooMany,
}

impl HostKey {
    /// Reads all keys of a text.
    ///
    /// # Errors
    /// [`HostKeyError`] names the line.
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
                return Err(HostKeyError::Twice { line });
            }
            if keys.len() == HOST_KEYS_MAX {
                return Err(HostKeyError::TooMany);
            }
            keys.push(Self { host: host.to_owned(), key });
        }
        if keys.is_empty() { Err(HostKeyError::Empty) } else { Ok(keys) }
    }

    /// What a handshake between this host and a subsystem may use, the better version first. Names that are too long for
    /// version 0 have version 1 only.
    ///
    /// # Errors
    /// [`PskError`] for a subsystem's name that is none.
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
        assert_eq!(host.tls_psks(&long).unwrap().len(), 1, "version 0 has no room");
    }

    #[test]
    fn a_wrong_line_is_named_and_never_quoted() {
        let many: String = (0..=HOST_KEYS_MAX).map(|host| format!("nqn.{host} {KEY}\n")).collect();
        for (text, error) in [
            ("", HostKeyError::Empty),
            ("# nothing\n", HostKeyError::Empty),
            ("nqn.a\n", HostKeyError::Line { line: 1 }),
            (&format!("\nnqn.a {KEY} more\n"), HostKeyError::Line { line: 2 }),
            ("nqn.a NVMeTLSkey-1:01:AA==:", HostKeyError::Key { line: 1, source: PskError::Form }),
            (&format!("nqn.a {KEY}\n#\nnqn.a {KEY}"), HostKeyError::Twice { line: 3 }),
            (&many, HostKeyError::TooMany),
        ] {
            let refused = HostKey::parse_all(text).unwrap_err();
            assert_eq!(refused, error, "{text}");
            assert!(!refused.to_string().contains("VRLb"), "{refused}");
        }
    }
}
