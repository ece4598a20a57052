//! The sources of `kv load`: a folder, a record file, or standard input.
//!
//! Input: a path. Output: bounded batches of records, read ahead on a separate thread, and the skipped items with
//! reasons. Symbolic links are not followed; names are bytes.

use super::manifest::parse_record;
use crate::kv::target::{BATCH_BYTES, BATCH_ITEMS, KeyValueRecord};
use headwater_host::width::to_usize;
use headwater_ssd::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Maximum number of batches read ahead.
const BATCHES_AHEAD: usize = 4;
/// Maximum length of a line of a record file: the longest value in base64, escaped keys, and room for names.
const LINE_BYTES_MAX: u64 = 24 << 20;

/// The source of a load.
#[derive(Clone, Debug)]
pub enum LoadSource {
    /// Every regular file below a folder.
    Folder(PathBuf),
    /// Records as JSON lines.
    Records(PathBuf),
    /// Records as JSON lines from standard input.
    Stdin,
}

/// The reason why an item was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Larger than the maximum size of a value.
    TooLarge,
    /// A symbolic link or a device, socket or pipe.
    NotAFile,
    /// Unreadable, or not a record.
    Unreadable,
}

/// A message of the reading thread.
#[derive(Debug)]
pub enum SourceItem {
    /// Records to store; no key occurs twice.
    Batch(Vec<KeyValueRecord>),
    /// A skipped item, with a message.
    Skipped(SkipReason, String),
    /// Reading failed, with a message.
    Failed(String),
}

/// A file found in a folder.
#[derive(Clone, Debug)]
pub struct FoundFile {
    path: PathBuf,
    key: Vec<u8>,
    bytes: u64,
}

/// The size of a source, known before reading: for progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadEstimate {
    /// Number of items, if known.
    pub items: Option<u64>,
    /// Number of bytes, if known.
    pub bytes: Option<u64>,
}

/// Starts the reading thread. The channel closes when the source was read.
///
/// # Errors
/// When the source does not exist or cannot be opened.
pub fn start(
    source: &LoadSource,
    prefix: &[u8],
) -> Result<(LoadEstimate, Receiver<SourceItem>), std::io::Error> {
    let (sender, pieces) = sync_channel(BATCHES_AHEAD);
    let expectation = match source {
        LoadSource::Folder(folder) => {
            let (found, left_out) = walk(folder, prefix)?;
            let expectation = LoadEstimate {
                items: u64::try_from(found.len()).ok(),
                bytes: Some(found.iter().map(|file| file.bytes).sum()),
            };
            std::thread::spawn(move || read_files(found, left_out, &sender));
            expectation
        }
        LoadSource::Records(path) => {
            let file = File::open(path)?;
            let prefix = prefix.to_vec();
            std::thread::spawn(move || read_records(BufReader::new(file), &prefix, &sender));
            LoadEstimate::default()
        }
        LoadSource::Stdin => {
            let prefix = prefix.to_vec();
            std::thread::spawn(move || read_records(BufReader::new(std::io::stdin()), &prefix, &sender));
            LoadEstimate::default()
        }
    };
    Ok((expectation, pieces))
}

type WalkResult = (Vec<FoundFile>, Vec<(SkipReason, String)>);

/// Returns every regular file below a folder, sorted by key, and the skipped entries.
fn walk(folder: &Path, prefix: &[u8]) -> std::io::Result<WalkResult> {
    let mut found = Vec::new();
    let mut left_out = Vec::new();
    let mut folders = Vec::new();
    list_folder(folder, prefix, (&mut found, &mut left_out, &mut folders))?;
    while let Some((path, prefix)) = folders.pop() {
        if let Err(error) = list_folder(&path, &prefix, (&mut found, &mut left_out, &mut folders)) {
            left_out.push((SkipReason::Unreadable, format!("{}: {error}", path.display())));
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok((found, left_out))
}

type WalkLists<'a> =
    (&'a mut Vec<FoundFile>, &'a mut Vec<(SkipReason, String)>, &'a mut Vec<(PathBuf, Vec<u8>)>);

fn list_folder(
    folder: &Path,
    prefix: &[u8],
    (found, left_out, folders): WalkLists<'_>,
) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let mut key = prefix.to_vec();
        key.extend_from_slice(entry.file_name().as_bytes());
        // The type and metadata of the entry itself: links are not followed.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            key.push(b'/');
            folders.push((path, key));
        } else if kind.is_file() {
            match entry.metadata() {
                Ok(metadata) => found.push(FoundFile { path, key, bytes: metadata.len() }),
                Err(error) => left_out.push((SkipReason::Unreadable, format!("{}: {error}", path.display()))),
            }
        } else {
            left_out.push((SkipReason::NotAFile, format!("{}: not a regular file", path.display())));
        }
    }
    Ok(())
}

fn read_files(found: Vec<FoundFile>, left_out: Vec<(SkipReason, String)>, sender: &SyncSender<SourceItem>) {
    for (why, what) in left_out {
        if sender.send(SourceItem::Skipped(why, what)).is_err() {
            return;
        }
    }
    let mut batch = RecordBatch::new(sender);
    for file in found {
        let piece = match read_file(&file) {
            Ok(value) => batch.add(KeyValueRecord { key: file.key, value, expiry_ms: None }),
            Err((why, what)) => batch.skip(why, what),
        };
        if piece.is_err() {
            return;
        }
    }
    let _receiver_may_be_gone = batch.send();
}

fn read_file(file: &FoundFile) -> Result<Vec<u8>, (SkipReason, String)> {
    let path = &file.path;
    let unreadable = |error: std::io::Error| (SkipReason::Unreadable, format!("{}: {error}", path.display()));
    if file.key.len() > KEY_BYTES_MAX {
        return Err((
            SkipReason::Unreadable,
            format!("{}: its key is longer than {KEY_BYTES_MAX} bytes", path.display()),
        ));
    }
    let limit = VALUE_BYTES_MAX as u64;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let opened = File::from(opened.map_err(|errno| unreadable(errno.into()))?);
    let mut value = Vec::with_capacity(to_usize(file.bytes.min(limit)) + 1);
    // One byte above the limit distinguishes "too large" from "just fits", also for a file that grew since it was
    // listed.
    opened.take(limit + 1).read_to_end(&mut value).map_err(unreadable)?;
    if value.len() > VALUE_BYTES_MAX {
        let what = format!(
            "{}: larger than the maximum value ({} MiB); skip such files with --skip-large",
            path.display(),
            VALUE_BYTES_MAX >> 20
        );
        return Err((SkipReason::TooLarge, what));
    }
    Ok(value)
}

fn read_records(mut source: impl BufRead, prefix: &[u8], sender: &SyncSender<SourceItem>) {
    let mut batch = RecordBatch::new(sender);
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        match source.by_ref().take(LINE_BYTES_MAX).read_line(&mut text) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                let _receiver_may_be_gone =
                    sender.send(SourceItem::Failed(format!("line {line}: cannot read: {error}")));
                return;
            }
        }
        if text.trim().is_empty() {
            continue;
        }
        let sent = match parse_record(line, &text) {
            Err(error) => batch.skip(SkipReason::Unreadable, error.to_string()),
            Ok(record) if record.value.len() > VALUE_BYTES_MAX => {
                let what = format!("line {line}: its value is larger than {} MiB", VALUE_BYTES_MAX >> 20);
                batch.skip(SkipReason::TooLarge, what)
            }
            Ok(mut record) => {
                record.key.splice(..0, prefix.iter().copied());
                if record.key.is_empty() || record.key.len() > KEY_BYTES_MAX {
                    let what = format!("line {line}: a key has 1 to {KEY_BYTES_MAX} bytes");
                    batch.skip(SkipReason::Unreadable, what)
                } else {
                    batch.add(record)
                }
            }
        };
        if sent.is_err() {
            return;
        }
    }
    let _receiver_may_be_gone = batch.send();
}

/// The error of a closed channel: the load was cancelled.
struct ReceiverClosed;

struct RecordBatch<'a> {
    sender: &'a SyncSender<SourceItem>,
    records: Vec<KeyValueRecord>,
    keys: std::collections::BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl<'a> RecordBatch<'a> {
    fn new(sender: &'a SyncSender<SourceItem>) -> Self {
        Self { sender, records: Vec::new(), keys: std::collections::BTreeSet::new(), bytes: 0 }
    }

    fn add(&mut self, record: KeyValueRecord) -> Result<(), ReceiverClosed> {
        let bytes = record.key.len() + record.value.len();
        let full = self.records.len() == BATCH_ITEMS || self.bytes + bytes > BATCH_BYTES;
        if (full && !self.records.is_empty()) || self.keys.contains(&record.key) {
            self.send()?;
        }
        self.bytes += bytes;
        self.keys.insert(record.key.clone());
        self.records.push(record);
        Ok(())
    }

    fn skip(&mut self, why: SkipReason, what: String) -> Result<(), ReceiverClosed> {
        self.sender.send(SourceItem::Skipped(why, what)).map_err(|_closed| ReceiverClosed)
    }

    fn send(&mut self) -> Result<(), ReceiverClosed> {
        self.bytes = 0;
        self.keys.clear();
        let records = std::mem::take(&mut self.records);
        if records.is_empty() {
            return Ok(());
        }
        self.sender.send(SourceItem::Batch(records)).map_err(|_closed| ReceiverClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn pieces(source: &LoadSource, prefix: &[u8]) -> (Vec<KeyValueRecord>, Vec<SkipReason>) {
        let (_, pieces) = start(source, prefix).unwrap();
        let mut records = Vec::new();
        let mut left_out = Vec::new();
        for piece in pieces {
            match piece {
                SourceItem::Batch(batch) => records.extend(batch),
                SourceItem::Skipped(why, _) => left_out.push(why),
                SourceItem::Failed(what) => panic!("{what}"),
            }
        }
        (records, left_out)
    }

    #[test]
    fn folder_keys_are_relative_paths_as_bytes_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), b"deep").unwrap();
        std::fs::write(dir.path().join(OsStr::from_bytes(b"\xff")), b"name is no UTF-8").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("a/loop")).unwrap();
        let (records, left_out) = pieces(&LoadSource::Folder(dir.path().to_owned()), b"p/");
        let keys: Vec<_> = records.iter().map(|record| record.key.clone()).collect();
        assert_eq!(keys, [b"p/a/b/file".to_vec(), b"p/\xff".to_vec()]);
        assert_eq!(records[0].value, b"deep");
        assert_eq!(left_out, [SkipReason::NotAFile; 2]);
    }

    #[test]
    fn file_at_the_limit_is_read_and_larger_file_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("fits"), vec![7; VALUE_BYTES_MAX]).unwrap();
        std::fs::write(dir.path().join("large"), vec![7; VALUE_BYTES_MAX + 1]).unwrap();
        let (records, left_out) = pieces(&LoadSource::Folder(dir.path().to_owned()), b"");
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].key, b"fits");
        assert_eq!(left_out, [SkipReason::TooLarge]);
    }

    #[test]
    fn key_that_occurs_twice_in_a_record_file_is_in_two_batches() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(
            &mut file,
            b"{\"key\":\"a\",\"value\":\"1\"}\n\nbroken\n{\"key\":\"a\",\"value\":\"2\"}\n{\"key\":\"\",\"value\":\"\"}\n",
        )
        .unwrap();
        let (_, pieces) = start(&LoadSource::Records(file.path().to_owned()), b"").unwrap();
        let batches: Vec<_> = pieces
            .into_iter()
            .filter_map(|piece| match piece {
                SourceItem::Batch(batch) => Some(batch.len()),
                _ => None,
            })
            .collect();
        assert_eq!(batches, [1, 1]);
    }
}
