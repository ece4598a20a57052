//! Files with secrets: keys of hosts, passwords.
//!
//! Input: a path. Output: the text. Invariant: a file that users besides its owner may read or write, or that belongs to
//! another user than root and the one of this process, is refused.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Maximum bytes of a file; what follows is not read.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Permission bits of group and other users.
const GROUP_OTHER_BITS: u32 = 0o077;

/// The error of reading a file with secrets. Quotes nothing of its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateFileError {
    /// The file cannot be read.
    #[error("{}: cannot read it: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Users besides its owner may read or write the file.
    #[error(
        "{}: users besides its owner may access its secrets (mode {mode:03o}); chmod 600 it, and replace leaked ones",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("{}: it belongs to user {owner}; chown it to the user of this process", path.display())]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
}

/// Reads a file with secrets.
///
/// # Errors
/// [`PrivateFileError`] with the reason, and what to do.
pub fn read(path: &Path) -> Result<Zeroizing<String>, PrivateFileError> {
    let unreadable = |source| PrivateFileError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    let mode = facts.mode() & 0o777;
    if mode & GROUP_OTHER_BITS != 0 {
        return Err(PrivateFileError::Exposed { path: path.to_owned(), mode });
    }
    let owner = facts.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(PrivateFileError::WrongOwner { path: path.to_owned(), owner });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn file_that_is_accessible_to_other_users_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "secret").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o622, false)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            match read(file.path()) {
                Ok(text) => assert!(fine && *text == "secret\n", "{mode:o}"),
                Err(error) => {
                    assert!(!fine && matches!(error, PrivateFileError::Exposed { .. }), "{mode:o}: {error}");
                    assert!(!error.to_string().contains("secret\n"), "{error}");
                }
            }
        }
        assert!(matches!(read(Path::new("/nowhere/at.all")), Err(PrivateFileError::Unreadable { .. })));
    }
}
