//! Files of pre-shared keys.
//!
//! Input: a path. Output: the keys in it. Invariant: a file that users besides its owner may read or write is refused.

use headwater_nvme::tcp::psk::{HostKey, HostKeyError};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Maximum bytes of a key file.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Permission bits of group and other users.
const GROUP_OTHER_BITS: u32 = 0o077;

/// The error of reading a key file. Quotes nothing of its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("{}: cannot read the keys: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Users besides its owner may read or write the file.
    #[error(
        "{}: users besides its owner may access these keys (mode {mode:03o}); chmod 600 it, and replace leaked keys",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file belongs to another user.
    #[error("{}: these keys belong to user {owner}; chown them to the user of this process", path.display())]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// The file does not hold valid keys.
    #[error("{}: {source}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error in its text.
        source: HostKeyError,
    },
}

/// Reads a key file.
///
/// # Errors
/// [`KeyFileError`] with the reason, and what to do.
pub fn load(path: &Path) -> Result<Vec<HostKey>, KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    let mode = facts.mode() & 0o777;
    if mode & GROUP_OTHER_BITS != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }
    let owner = facts.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::WrongOwner { path: path.to_owned(), owner });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    HostKey::parse_all(&text).map_err(|source| KeyFileError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn keys_accessible_to_other_users_are_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nqn.a {KEY}").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o622, false)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            match load(file.path()) {
                Ok(keys) => assert!(fine && keys[0].host == "nqn.a", "{mode:o}"),
                Err(error) => {
                    assert!(!fine && matches!(error, KeyFileError::Exposed { .. }), "{mode:o}: {error}");
                }
            }
        }
    }

    #[test]
    fn an_invalid_key_file_is_refused_without_quoting_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nqn.a {}", KEY.replace("VRL", "VRM")).unwrap();
        let refused = load(file.path()).unwrap_err().to_string();
        assert!(refused.contains("line 1") && !refused.contains("VRM"), "{refused}");
        assert!(matches!(load(Path::new("/nowhere/at.all")), Err(KeyFileError::Unreadable { .. })));
    }
}
