//! The format of manifests and record files: JSON lines.
//!
//! Input: keys, lengths and BLAKE3 sums of acknowledged records, or whole records. Output: one JSON object a line.
//! UTF-8 bytes are written as text (`key`, `value`), all other bytes as base64 (`key_base64`, `value_base64`).

use crate::kv::target::KeyValueRecord;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::BufRead;

/// One line of a manifest: an acknowledged record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestLine {
    /// The key, when it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Bytes of the value.
    pub len: u64,
    /// BLAKE3 of the value, in hexadecimal.
    pub blake3: String,
}

/// One line of a record file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordLine {
    /// The key, when it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key in base64, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The value, when it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// Wall time in milliseconds at which the record expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_ms: Option<u64>,
}

/// The error of a line that was refused.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The line is not JSON of this format.
    #[error("line {line}: {reason}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// The file could not be read.
    #[error("line {line}: cannot read: {source}")]
    Unreadable {
        /// Line, from 1.
        line: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The entry of a manifest for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedValue {
    /// Bytes of the value.
    pub len: u64,
    /// BLAKE3 of the value, in hexadecimal.
    pub blake3: String,
}

impl ExpectedValue {
    /// Returns true if `value` has the length and hash of the entry.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        u64::try_from(value.len()).is_ok_and(|len| len == self.len)
            && blake3::hash(value).to_hex().as_str() == self.blake3
    }
}

impl ManifestLine {
    /// Returns the line of an acknowledged record.
    #[must_use]
    pub fn from_record(record: &KeyValueRecord) -> Self {
        let (key, key_base64) = text_or_base64(&record.key);
        Self {
            key,
            key_base64,
            len: record.value.len() as u64,
            blake3: blake3::hash(&record.value).to_hex().to_string(),
        }
    }
}

impl RecordLine {
    /// Returns the line of a record.
    #[must_use]
    pub fn from_record(record: &KeyValueRecord) -> Self {
        let (key, key_base64) = text_or_base64(&record.key);
        let (value, value_base64) = text_or_base64(&record.value);
        Self { key, key_base64, value, value_base64, expiry_ms: record.expiry_ms }
    }

    /// Returns the record of a line.
    ///
    /// # Errors
    /// Names the field that is missing, given twice or not base64.
    pub fn into_record(self) -> Result<KeyValueRecord, String> {
        Ok(KeyValueRecord {
            key: bytes_of("key", self.key, self.key_base64)?,
            value: bytes_of("value", self.value, self.value_base64)?,
            expiry_ms: self.expiry_ms,
        })
    }
}

/// Parses a record from one line.
///
/// # Errors
/// [`LineError`] names the line.
pub fn parse_record(line: usize, text: &str) -> Result<KeyValueRecord, LineError> {
    serde_json::from_str::<RecordLine>(text)
        .map_err(|error| error.to_string())
        .and_then(RecordLine::into_record)
        .map_err(|reason| LineError::Malformed { line, reason })
}

/// Reads a whole manifest. Of several lines with one key the last is used. An incomplete last line (no line end),
/// written before a crash of the loader, is ignored.
///
/// # Errors
/// [`LineError`] names the line.
pub fn read_manifest(mut source: impl BufRead) -> Result<BTreeMap<Vec<u8>, ExpectedValue>, LineError> {
    let mut expected = BTreeMap::new();
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        let read = source.read_line(&mut text).map_err(|source| LineError::Unreadable { line, source })?;
        if read == 0 || !text.ends_with('\n') {
            break;
        }
        let malformed = |reason: String| LineError::Malformed { line, reason };
        let entry: ManifestLine =
            serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        let key = bytes_of("key", entry.key, entry.key_base64).map_err(malformed)?;
        expected.insert(key, ExpectedValue { len: entry.len, blake3: entry.blake3 });
    }
    Ok(expected)
}

fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

fn bytes_of(name: &str, text: Option<String>, encoded: Option<String>) -> Result<Vec<u8>, String> {
    match (text, encoded) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(encoded)) => {
            STANDARD.decode(encoded).map_err(|error| format!("`{name}_base64` is not base64: {error}"))
        }
        (None, None) => Err(format!("neither `{name}` nor `{name}_base64` is given: give one")),
        (Some(_), Some(_)) => Err(format!("both `{name}` and `{name}_base64` are given: give one")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_any_bytes_parse_back_from_their_line() {
        for (key, value, expiry_ms) in [
            (&b"k"[..], &b"line\nline"[..], None),
            (b"\xff\x00", b"\x80", Some(17)),
            ("\u{43a}\u{43b}\u{44e}\u{447}".as_bytes(), b"", None),
        ] {
            let record = KeyValueRecord { key: key.to_vec(), value: value.to_vec(), expiry_ms };
            let line = serde_json::to_string(&RecordLine::from_record(&record)).unwrap();
            assert!(!line.contains('\n'));
            assert_eq!(parse_record(1, &line).unwrap(), record);
        }
    }

    #[test]
    fn error_names_a_malformed_line() {
        for (text, what) in [
            ("{}", "neither `key`"),
            ("{\"key\":\"a\"}", "neither `value`"),
            ("{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}", "both `key`"),
            ("{\"key\":\"a\",\"value_base64\":\"?\"}", "not base64"),
            ("{\"key\":\"a\",\"value\":\"\",\"ttl\":1}", "unknown field `ttl`"),
            ("nonsense", "expected"),
        ] {
            let error = parse_record(7, text).unwrap_err().to_string();
            assert!(error.starts_with("line 7: ") && error.contains(what), "{error}");
        }
    }

    #[test]
    fn last_line_of_a_key_is_used_and_a_torn_last_line_is_ignored() {
        let line = |value: &[u8]| {
            let record = KeyValueRecord { key: b"k".to_vec(), value: value.to_vec(), expiry_ms: None };
            serde_json::to_string(&ManifestLine::from_record(&record)).unwrap()
        };
        let text = format!("{}\n{}\n{}", line(b"old"), line(b"new"), &line(b"torn")[..9]);
        let expected = read_manifest(text.as_bytes()).unwrap();
        assert!(expected[&b"k"[..]].matches(b"new"));
        assert!(!expected[&b"k"[..]].matches(b"old"));
    }
}
