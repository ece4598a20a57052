//! The data directory and its lock.
//!
//! Input: a path. Output: [`DataDir`], which holds the lock until it is dropped: exclusive for a writer, shared for a
//! reader, which writes nothing. The kernel holds the lock (flock), so a killed process leaves none behind; the text of
//! the lock file only names the holder for error messages.

use crate::config::ByteSize;
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const LOCK_FILE: &str = "lock";
/// Mode of a data directory and of a file in it: it holds what every client stores.
const PRIVATE_DIRECTORY: u32 = 0o700;
pub(crate) const PRIVATE_FILE: u32 = 0o600;
/// Mode of a missing directory above it, less the umask.
const PARENT_DIRECTORY: u32 = 0o777;
const FLASH_FILE: &str = "flash";

/// A locked data directory: exclusive, or shared with other readers.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Lock file; `None` if a reader found none.
    _lock: Option<File>,
}

/// The treatment of a missing data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingDirectory {
    /// Create it, with its parent directories.
    Create,
    /// Refuse it: the caller needs existing data.
    Refuse,
}

/// The error of a data directory that could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has locked it.
    #[error("{}: in use by {holder}; stop it first, or give another directory with --data", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds the lock, if known.
        holder: String,
    },
    /// It does not exist.
    #[error("{}: no data directory here; give the one that `headwater serve --data` used", path.display())]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// The operation, as a verb with its object.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl DataDir {
    /// Locks the directory exclusively for this process.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] names the process that holds the lock.
    pub fn lock_exclusive(path: &Path, missing: MissingDirectory) -> Result<Self, DataDirError> {
        let system = |what| move |source| DataDirError::System { path: path.to_owned(), what, source };
        match missing {
            MissingDirectory::Create => {
                create_private(path).map_err(system("make the data directory"))?;
            }
            MissingDirectory::Refuse if !path.join(FLASH_FILE).exists() => {
                return Err(DataDirError::Missing { path: path.to_owned() });
            }
            MissingDirectory::Refuse => {}
        }
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(PRIVATE_FILE)
            .open(path.join(LOCK_FILE))
            .map_err(system("open the lock file"))?;
        if let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(system("lock the data directory")(errno.into()));
            }
            return Err(DataDirError::InUse { path: path.to_owned(), holder: describe_holder(&mut lock) });
        }
        write_holder(&mut lock).map_err(system("write the lock file"))?;
        Ok(Self { path: path.to_owned(), _lock: Some(lock) })
    }

    /// Locks the directory for reading; nothing in it changes.
    ///
    /// # Errors
    /// [`DataDirError::InUse`] names the process that serves from it.
    pub fn lock_shared(path: &Path) -> Result<Self, DataDirError> {
        let system = |what| move |source| DataDirError::System { path: path.to_owned(), what, source };
        if !path.join(FLASH_FILE).exists() {
            return Err(DataDirError::Missing { path: path.to_owned() });
        }
        // A copy of a directory may have no lock file; then no process serves from it.
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
                Err(DataDirError::InUse { path: path.to_owned(), holder: describe_holder(&mut lock) })
            }
            Err(errno) => Err(system("lock the data directory")(errno.into())),
        }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the free bytes of the file system that holds the directory, for this user.
    ///
    /// # Errors
    /// When the system call fails.
    pub fn free(&self) -> Result<ByteSize, DataDirError> {
        free_bytes(&self.path).map_err(|source| DataDirError::System {
            path: self.path.clone(),
            what: "read the free space",
            source,
        })
    }
}

/// Creates a directory that only its owner may use, and its missing parents, and makes each of their entries durable: a
/// flash file whose directory a power cut removes would be lost with everything that was acknowledged.
///
/// # Errors
/// When a directory cannot be made or synced.
pub fn create_private(path: &Path) -> std::io::Result<()> {
    create_synced(path, PRIVATE_DIRECTORY, &|parent| File::open(parent)?.sync_all())
}

fn create_synced(path: &Path, mode: u32, sync: &dyn Fn(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    create_synced(parent, PARENT_DIRECTORY, sync)?;
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists || !path.is_dir() => return Err(error),
        _ => {}
    }
    // Also an entry that another process just made: this one is about to depend on it.
    sync(parent)
}

/// Returns the free bytes of the file system that holds a path, for this user.
///
/// # Errors
/// When the system call fails.
pub fn free_bytes(path: &Path) -> std::io::Result<ByteSize> {
    let space = rustix::fs::statvfs(path)?;
    Ok(ByteSize(space.f_bavail.saturating_mul(space.f_frsize)))
}

/// Returns the description of the lock's holder. The file names the last process with the exclusive lock; readers do
/// not write it.
fn describe_holder(lock: &mut File) -> String {
    if flock(&*lock, FlockOperation::NonBlockingLockShared).is_ok() {
        return "a reader (`headwater device check`)".to_owned();
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
    fn refusal_names_the_process_that_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::lock_exclusive(dir.path(), MissingDirectory::Create).unwrap();
        // flock belongs to the open file, so a second open in this process is refused like one of another process.
        let error = DataDir::lock_exclusive(dir.path(), MissingDirectory::Create).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        DataDir::lock_exclusive(dir.path(), MissingDirectory::Create).unwrap();
    }

    #[test]
    fn readers_share_the_lock_and_exclude_writers() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(DataDir::lock_shared(dir.path()), Err(DataDirError::Missing { .. })));
        std::fs::write(dir.path().join(FLASH_FILE), "").unwrap();
        let alone = DataDir::lock_shared(dir.path()).unwrap();
        assert!(!dir.path().join(LOCK_FILE).exists(), "a reader created the lock file");
        drop(alone);
        let held = DataDir::lock_exclusive(dir.path(), MissingDirectory::Refuse).unwrap();
        let error = DataDir::lock_shared(dir.path()).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        let first = DataDir::lock_shared(dir.path()).unwrap();
        let second = DataDir::lock_shared(dir.path()).unwrap();
        let error = DataDir::lock_exclusive(dir.path(), MissingDirectory::Refuse).unwrap_err();
        assert!(error.to_string().contains("device check"), "{error}");
        drop((first, second));
        DataDir::lock_exclusive(dir.path(), MissingDirectory::Refuse).unwrap();
    }

    #[test]
    fn parent_of_each_new_directory_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one/two");
        let synced = std::cell::RefCell::new(Vec::new());
        let sync = |parent: &Path| {
            assert!(path.starts_with(parent));
            synced.borrow_mut().push(parent.to_owned());
            Ok(())
        };
        create_synced(&path, PRIVATE_DIRECTORY, &sync).unwrap();
        assert!(path.is_dir());
        assert_eq!(*synced.borrow(), [dir.path().to_owned(), dir.path().join("one")]);
        create_synced(&path, PRIVATE_DIRECTORY, &sync).unwrap();
        assert_eq!(synced.borrow().len(), 2, "an existing directory was synced");
        create_private(&dir.path().join("three")).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(create_private(&file).is_err(), "a file is no directory");
    }

    #[test]
    fn new_directory_and_its_files_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("above/data");
        drop(DataDir::lock_exclusive(&path, MissingDirectory::Create).unwrap());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(LOCK_FILE))), (0o700, 0o600));
        assert_ne!(mode(path.parent().unwrap()), 0o700, "a directory above it is not the node's");
    }

    #[test]
    fn missing_directory_is_refused_and_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("typo");
        assert!(matches!(
            DataDir::lock_exclusive(&path, MissingDirectory::Refuse),
            Err(DataDirError::Missing { .. })
        ));
        assert!(!path.exists());
    }
}
