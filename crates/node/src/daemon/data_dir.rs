//! The data directory: one process at a time.
//!
//! In: a path. Out: [`DataDir`], which holds an exclusive lock until it is dropped. The lock is the kernel's (flock), so
//! a killed process leaves none behind; the file's text only names the holder for the error message. Whoever only looks
//! shares the lock with others who look, and writes nothing.

use crate::config::Bytes;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

const LOCK_FILE: &str = "lock";
const FLASH_FILE: &str = "flash";

/// A data directory that no other process uses, or that others only look at as well.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Nobody who only looks makes the file.
    _lock: Option<File>,
}

/// Whether a missing data directory is made or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMissing {
    /// Make it, and everything above it.
    Create,
    /// Refuse: the caller wants data that is there already.
    Refuse,
}

/// Why a data directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has it.
    #[error("{}: in use by {holder}; stop it first, or give another directory with --data", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as far as known.
        holder: String,
    },
    /// It is not there.
    #[error("{}: no data directory here; give the one that `headwater serve --data` used", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl DataDir {
    /// Takes the directory for this process.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] names the process that has it.
    pub fn take(path: &Path, missing: IfMissing) -> Result<Self, DataDirError> {
        let system = |what| move |source| DataDirError::System { path: path.to_owned(), what, source };
        match missing {
            IfMissing::Create => {
                std::fs::create_dir_all(path).map_err(system("make the data directory"))?;
            }
            IfMissing::Refuse if !path.join(FLASH_FILE).exists() => {
                return Err(DataDirError::Missing { path: path.to_owned() });
            }
            IfMissing::Refuse => {}
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK_FILE))
            .map_err(system("open the lock file"))?;
        if let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(system("lock the data directory")(errno.into()));
            }
            return Err(DataDirError::InUse { path: path.to_owned(), holder: holder(&mut lock) });
        }
        write_holder(&mut lock).map_err(system("write the lock file"))?;
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// Takes the directory to look at what is in it; not a byte of it changes.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] names the process that serves from it.
    pub fn look(path: &Path) -> Result<Self, DataDirError> {
        let system = |what| move |source| DataDirError::System { path: path.to_owned(), what, source };
        if !path.join(FLASH_FILE).exists() {
            return Err(DataDirError::Missing { path: path.to_owned() });
        }
        // A copy of a directory may have no lock file; nobody serves from it then.
        let mut lock = match File::open(path.join(LOCK_FILE)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { path: path.to_owned(), _lock: None });
            }
            Err(error) => return Err(system("open the lock file")(error)),
        };
        match flock(&lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(errno) if errno == rustix::io::Errno::WOULDBLOCK => {
                Err(DataDirError::InUse { path: path.to_owned(), holder: holder(&mut lock) })
            }
            Err(errno) => Err(system("lock the data directory")(errno.into())),
        }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that holds the flash.
    #[must_use]
    pub fn flash(&self) -> PathBuf {
        self.path.join(FLASH_FILE)
    }

    /// Free bytes of the file system under the directory, for this user.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn free(&self) -> Result<Bytes, DataDirError> {
        free_bytes(&self.path).map_err(|source| DataDirError::System {
            path: self.path.clone(),
            what: "read the free space",
            source,
        })
    }
}

/// Free bytes of the file system under a path, for this user.
///
/// # Errors
/// When the system cannot tell.
pub fn free_bytes(path: &Path) -> std::io::Result<Bytes> {
    let space = rustix::fs::statvfs(path)?;
    Ok(Bytes(space.f_bavail.saturating_mul(space.f_frsize)))
}

/// Who has the lock. The file names the last one who wanted it alone; those who only look do not write.
fn holder(lock: &mut File) -> String {
    if flock(&*lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return "a process that looks at it (`headwater device check`)".to_owned();
    }
    let mut text = String::new();
    let read = lock.take(64).read_to_string(&mut text);
    match (read, text.trim().parse::<u32>()) {
        (Ok(_), Ok(pid)) => format!("process {pid}"),
        _ => "another process".to_owned(),
    }
}

fn write_holder(lock: &mut File) -> std::io::Result<()> {
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    writeln!(lock, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_holder_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::take(dir.path(), IfMissing::Create).unwrap();
        // flock belongs to the open file, so a second open in this process is refused like another process's.
        let error = DataDir::take(dir.path(), IfMissing::Create).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        DataDir::take(dir.path(), IfMissing::Create).unwrap();
    }

    #[test]
    fn looking_is_shared_and_keeps_those_out_who_write() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(DataDir::look(dir.path()), Err(DataDirError::Missing { .. })));
        std::fs::write(dir.path().join(FLASH_FILE), "").unwrap();
        let alone = DataDir::look(dir.path()).unwrap();
        assert!(!dir.path().join(LOCK_FILE).exists(), "looking makes nothing");
        drop(alone);
        let held = DataDir::take(dir.path(), IfMissing::Refuse).unwrap();
        let error = DataDir::look(dir.path()).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        let first = DataDir::look(dir.path()).unwrap();
        let second = DataDir::look(dir.path()).unwrap();
        let error = DataDir::take(dir.path(), IfMissing::Refuse).unwrap_err();
        assert!(error.to_string().contains("device check"), "{error}");
        drop((first, second));
        DataDir::take(dir.path(), IfMissing::Refuse).unwrap();
    }

    #[test]
    fn missing_data_is_refused_without_making_anything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("typo");
        assert!(matches!(DataDir::take(&path, IfMissing::Refuse), Err(DataDirError::Missing { .. })));
        assert!(!path.exists());
    }
}
