//! The backup folder: manifests, and the archives that they refer to.
//!
//! Input: manifests and pages. Output: durable files. Invariant: a manifest gets its name after it and its archives are
//! durable; an archive to which no manifest refers is deleted by the next run.

use super::BackupError;
use super::manifest::BackupManifest;
use crate::daemon::data_dir::{PRIVATE_FILE, create_private};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest-";
const ARCHIVE: &str = "archive-";
const UNFINISHED: &str = "unfinished";
const LOCK: &str = "lock";

/// A locked backup folder.
#[derive(Debug)]
pub struct BackupFolder {
    path: PathBuf,
    _lock: File,
}

impl BackupFolder {
    /// Opens a folder for a backup; creates it if it is missing.
    ///
    /// # Errors
    /// [`BackupError`] if it cannot be made, or another command uses it.
    pub fn create(path: &Path) -> Result<Self, BackupError> {
        create_private(path).map_err(BackupError::system(path, "make the backup folder"))?;
        Self::open(path)
    }

    /// Opens a folder that exists.
    ///
    /// # Errors
    /// [`BackupError`] if it is no folder, or another command uses it.
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let file = path.join(LOCK);
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(PRIVATE_FILE).open(&file);
        let lock = lock.map_err(BackupError::system(&file, "open the lock of the backup folder"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(BackupError::FolderInUse { folder: path.to_owned() }),
            Err(errno) => Err(BackupError::system(&file, "lock the backup folder")(errno.into())),
        }
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the numbers of the backups, ascending.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn numbers(&self) -> Result<Vec<u32>, BackupError> {
        Ok(self.numbered(MANIFEST)?.into_iter().collect())
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub fn manifest(&self, number: u32) -> Result<BackupManifest, BackupError> {
        let path = self.file(MANIFEST, number);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(BackupError::NoBackup { folder: self.path.clone(), number: Some(number) });
            }
            read => read.map_err(BackupError::system(&path, "read the manifest"))?,
        };
        BackupManifest::decode(&bytes).map_err(|what| BackupError::Damaged { path, what })
    }

    /// Returns the path of an archive.
    #[must_use]
    pub fn archive_path(&self, number: u32) -> PathBuf {
        self.file(ARCHIVE, number)
    }

    /// Begins an archive.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create_archive(&self, number: u32) -> Result<File, BackupError> {
        let path = self.archive_path(number);
        let mut options = OpenOptions::new();
        let made = options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&path);
        made.map_err(BackupError::system(&path, "make the archive"))
    }

    /// Writes a manifest, whose archives are durable, and gives it its name.
    ///
    /// # Errors
    /// The file cannot be written; the backup does not count then.
    pub fn finish(&self, manifest: &BackupManifest) -> Result<(), BackupError> {
        let unfinished = self.path.join(UNFINISHED);
        let failed = BackupError::system(&unfinished, "write the manifest");
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&unfinished)?;
            file.write_all(&manifest.encode())?;
            file.sync_all()?;
            // The entry of the archive must be durable before that of the manifest.
            self.sync()?;
            std::fs::rename(&unfinished, self.file(MANIFEST, manifest.number))?;
            self.sync()
        };
        write().map_err(failed)
    }

    /// Deletes all but the newest backups, and the archives to which no manifest refers.
    ///
    /// # Errors
    /// A manifest cannot be read, or a file cannot be deleted.
    pub fn prune(&self, keep: Option<usize>) -> Result<(), BackupError> {
        let numbers = self.numbers()?;
        let drop = keep.map_or(0, |keep| numbers.len().saturating_sub(keep));
        let (old, kept) = numbers.split_at(drop);
        let mut used = BTreeSet::new();
        for &number in kept {
            let manifest = self.manifest(number)?;
            used.extend(manifest.blocks.values().flatten().map(|piece| piece.archive));
        }
        for &number in old {
            self.delete(&self.file(MANIFEST, number))?;
        }
        // A manifest that comes back after a power cut must not lack its archives.
        self.sync().map_err(BackupError::system(&self.path, "sync the backup folder"))?;
        for number in self.numbered(ARCHIVE)? {
            if !used.contains(&number) {
                self.delete(&self.archive_path(number))?;
            }
        }
        Ok(())
    }

    fn delete(&self, path: &Path) -> Result<(), BackupError> {
        std::fs::remove_file(path).map_err(BackupError::system(path, "delete the file"))
    }

    fn sync(&self) -> std::io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn file(&self, kind: &str, number: u32) -> PathBuf {
        self.path.join(format!("{kind}{number:06}"))
    }

    /// Returns the numbers of the files of a kind.
    fn numbered(&self, kind: &str) -> Result<BTreeSet<u32>, BackupError> {
        let failed = |error| BackupError::system(&self.path, "list the backup folder")(error);
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let number: Option<u32> = name.to_str().and_then(|name| name.strip_prefix(kind)?.parse().ok());
            found.extend(number);
        }
        Ok(found)
    }
}
