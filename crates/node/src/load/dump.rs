//! `kv dump`: writes the records of a target to a folder or a record file, and checks them against a manifest.
//!
//! Input: a [`KvTarget`]. Output: files, JSON lines, a [`DumpReport`]. Invariant: nothing is written outside the
//! folder: a key that is not a plain relative path is refused and counted.

use crate::kv::target::{BATCH_ITEMS, KeyValueRecord, KvError, KvTarget, ScanCursor};
use crate::load::COMPLAINTS_MAX;
use crate::load::manifest::{ExpectedValue, RecordLine};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The keys already dumped, to skip those that a scan returns twice.
type SeenKeys = std::collections::BTreeSet<Vec<u8>>;

/// The destination of a dump.
pub enum DumpSink<'a> {
    /// One file a key.
    Folder(&'a Path),
    /// A record file: JSON lines.
    Records(&'a mut dyn Write),
    /// No destination: only the manifest is checked.
    ManifestOnly,
}

impl std::fmt::Debug for DumpSink<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "Folder({})", path.display()),
            Self::Records(_) => f.write_str("Records"),
            Self::ManifestOnly => f.write_str("ManifestOnly"),
        }
    }
}

/// The results of a dump.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DumpReport {
    /// Records written.
    pub written: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Keys that are not valid file names, or whose file could not be written.
    pub not_written: u64,
    /// Keys of the manifest whose value is byte-identical.
    pub verified: u64,
    /// Keys of the manifest whose value differs.
    pub different: u64,
    /// Keys of the manifest that do not exist.
    pub missing: u64,
    /// The first complaints.
    pub complaints: Vec<String>,
}

impl DumpReport {
    /// Returns true if every record was written and every check passed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.not_written == 0 && self.different == 0 && self.missing == 0
    }

    fn add_complaint(&mut self, key: &[u8], what: &str) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(format!("{}: {what}", String::from_utf8_lossy(key)));
        }
    }

    fn verify(&mut self, key: &[u8], expected: &ExpectedValue, value: Option<&[u8]>) {
        match value {
            None => {
                self.missing += 1;
                self.add_complaint(key, "in the manifest, but does not exist");
            }
            Some(value) if expected.matches(value) => self.verified += 1,
            Some(_) => {
                self.different += 1;
                self.add_complaint(key, "its value differs from the manifest");
            }
        }
    }
}

/// Writes every record that matches and checks the records of a manifest.
///
/// # Errors
/// When the target or the sink fails.
pub fn dump(
    target: &mut dyn KvTarget,
    pattern: Option<&[u8]>,
    sink: &mut DumpSink<'_>,
    expected: &mut BTreeMap<Vec<u8>, ExpectedValue>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<DumpReport, KvError> {
    let mut report = DumpReport::default();
    if !matches!(sink, DumpSink::ManifestOnly) {
        let mut seen = SeenKeys::new();
        let mut cursor = Some(ScanCursor::START);
        while let Some(from) = cursor {
            let (keys, next) = target.scan(from, pattern)?;
            let fresh: Vec<Vec<u8>> = keys.into_iter().filter(|key| seen.insert(key.clone())).collect();
            for keys in fresh.chunks(BATCH_ITEMS) {
                write_batch(target, keys, sink, expected, &mut report)?;
                progress(keys.len() as u64, report.bytes);
            }
            cursor = next;
        }
    }
    // Keys of the manifest that the scan did not return: missing, or only the manifest is checked.
    let rest: Vec<Vec<u8>> = expected.keys().cloned().collect();
    for keys in rest.chunks(BATCH_ITEMS) {
        target.get(keys, &mut |index, value| {
            if let Some((key, line)) = keys.get(index).and_then(|key| Some((key, expected.get(key)?))) {
                report.verify(key, line, value.as_deref());
            }
            Ok(())
        })?;
        progress(keys.len() as u64, report.bytes);
    }
    Ok(report)
}

fn write_batch(
    target: &mut dyn KvTarget,
    keys: &[Vec<u8>],
    sink: &mut DumpSink<'_>,
    expected: &mut BTreeMap<Vec<u8>, ExpectedValue>,
    report: &mut DumpReport,
) -> Result<(), KvError> {
    let expiries = match sink {
        DumpSink::Records(_) => target.expiry(keys)?,
        _ => Vec::new(),
    };
    target.get(keys, &mut |index, value| {
        let Some(key) = keys.get(index) else { return Ok(()) };
        // Deleted or expired between the scan and the get: not part of the dump.
        let Some(value) = value else { return Ok(()) };
        if let Some(line) = expected.remove(key) {
            report.verify(key, &line, Some(&value));
        }
        let bytes = value.len() as u64;
        let written = match sink {
            DumpSink::Folder(folder) => write_file(folder, key, &value),
            DumpSink::Records(out) => {
                let expiry_ms = expiries.get(index).copied().flatten();
                let record = KeyValueRecord { key: key.clone(), value, expiry_ms };
                serde_json::to_writer(&mut *out, &RecordLine::from_record(&record))
                    .map_err(std::io::Error::from)?;
                out.write_all(b"\n")?;
                Ok(())
            }
            DumpSink::ManifestOnly => Ok(()),
        };
        match written {
            Ok(()) => {
                report.written += 1;
                report.bytes += bytes;
            }
            Err(what) => {
                report.not_written += 1;
                report.add_complaint(key, &what);
            }
        }
        Ok(())
    })
}

fn write_file(folder: &Path, key: &[u8], value: &[u8]) -> Result<(), String> {
    let relative = safe_path(key).ok_or_else(|| {
        "the key is not a plain relative path, so it cannot name a file; `kv dump -` writes it as a record".to_owned()
    })?;
    let path = folder.join(relative);
    let created = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    created
        .and_then(|()| {
            // The folder was empty, so an existing file belongs to another key.
            std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?.write_all(value)
        })
        .map_err(|error| format!("cannot write its file: {error}"))
}

/// Returns the path that a key names below a folder, or `None` if it is not a plain relative path.
#[must_use]
pub fn safe_path(key: &[u8]) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for name in key.split(|&byte| byte == b'/') {
        let plain =
            !name.is_empty() && name != b"." && name != b".." && name.len() <= 255 && !name.contains(&0);
        if !plain {
            return None;
        }
        path.push(OsStr::from_bytes(name));
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_names_a_path_outside_the_folder() {
        for key in [&b""[..], b"/etc/passwd", b"..", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b", &[b'x'; 256]]
        {
            assert_eq!(safe_path(key), None, "{}", String::from_utf8_lossy(key));
        }
        assert_eq!(safe_path(b"a/..b/c"), Some("a/..b/c".into()));
        assert_eq!(safe_path(b"\xff"), Some(OsStr::from_bytes(b"\xff").into()));
    }

    #[test]
    fn two_keys_never_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        write_file(dir.path(), b"a", b"1").unwrap();
        write_file(dir.path(), b"a/b", b"2").unwrap_err();
        write_file(dir.path(), b"a", b"3").unwrap_err();
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"1");
    }
}
