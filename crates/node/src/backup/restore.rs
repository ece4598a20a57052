//! Restoring a backup into a new data directory.
//!
//! Input: a backup folder and the number of a backup. Output: a flash file with the pages of the backup. Invariant: the
//! file gets its name when every piece has passed its checksum and is durable; a file that exists is never overwritten.

use super::BackupError;
use super::folder::BackupFolder;
use super::manifest::{ArchivedPiece, BackupManifest};
use super::take::CopyProgress;
use crate::daemon::data_dir::{DataDir, MissingDirectory, PRIVATE_FILE};
use headwater_host::copy::crc32c;
use headwater_ssd::media::file::{FLASH_FILE_NAME, UNFINISHED_FILE_NAME};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Restores a backup, or the newest one, into a data directory without a flash file. Returns its manifest.
///
/// # Errors
/// [`BackupError`]; no flash file is there then.
pub fn restore(
    folder: &BackupFolder,
    number: Option<u32>,
    data: &Path,
    progress: CopyProgress<'_>,
) -> Result<BackupManifest, BackupError> {
    let none = || BackupError::NoBackup { folder: folder.path().to_owned(), number };
    let number = match number {
        Some(number) => number,
        None => *folder.numbers()?.last().ok_or_else(none)?,
    };
    let manifest = folder.manifest(number)?;
    let _locked = DataDir::lock_exclusive(data, MissingDirectory::Create)?;
    let (unfinished, path) = (data.join(UNFINISHED_FILE_NAME), data.join(FLASH_FILE_NAME));
    if path.exists() {
        return Err(BackupError::HasData { data: data.to_owned() });
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&unfinished);
    let file = file.map_err(BackupError::system(&unfinished, "make the flash file"))?;
    let written = write_pages(folder, &manifest, &file, &unfinished, progress).and_then(|()| {
        let name = || {
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            File::open(data)?.sync_all()
        };
        name().map_err(BackupError::system(&path, "make the flash file durable"))
    });
    if written.is_err() {
        // It has no name that a node opens; a file that stays is replaced by the next restore.
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map(|()| manifest)
}

fn write_pages(
    folder: &BackupFolder,
    manifest: &BackupManifest,
    file: &File,
    path: &Path,
    progress: CopyProgress<'_>,
) -> Result<(), BackupError> {
    let failed = |error| BackupError::system(path, "write the flash file")(error);
    file.set_len(manifest.file_bytes).map_err(failed)?;
    for (offset, bytes) in &manifest.parts {
        file.write_all_at(bytes, *offset).map_err(failed)?;
    }
    let page_bytes = u64::from(manifest.page_bytes);
    let bytes_of = |piece: &ArchivedPiece| u64::from(piece.pages) * page_bytes;
    let total = manifest.blocks.values().flatten().map(bytes_of).sum();
    let mut archives = Archives { folder, open: BTreeMap::new() };
    let (mut bytes, mut done) = (Vec::new(), 0);
    for (&(block, _), pieces) in &manifest.blocks {
        for piece in pieces {
            bytes.resize(usize::from(piece.pages) * manifest.page_bytes as usize, 0);
            archives.read(piece, &mut bytes)?;
            let at = block + u64::from(piece.first) * page_bytes;
            file.write_all_at(&bytes, at).map_err(failed)?;
            done += bytes_of(piece);
            progress(done, total);
        }
    }
    Ok(())
}

/// The archives of a folder, opened when they are needed.
struct Archives<'a> {
    folder: &'a BackupFolder,
    open: BTreeMap<u32, (PathBuf, File)>,
}

impl Archives<'_> {
    /// Reads a piece and verifies its checksum.
    fn read(&mut self, piece: &ArchivedPiece, bytes: &mut [u8]) -> Result<(), BackupError> {
        let (path, file) = match self.open.entry(piece.archive) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let path = self.folder.archive_path(piece.archive);
                let file = File::open(&path).map_err(BackupError::system(&path, "open the archive"))?;
                entry.insert((path, file))
            }
        };
        let read = file.read_exact_at(bytes, piece.offset);
        read.map_err(BackupError::system(path, "read the archive"))?;
        if crc32c(0, bytes) == piece.crc {
            return Ok(());
        }
        let what = format!("the {} bytes at {} fail their checksum", bytes.len(), piece.offset);
        Err(BackupError::Damaged { path: path.clone(), what })
    }
}
