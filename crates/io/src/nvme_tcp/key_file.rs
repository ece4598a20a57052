//! Files of pre-shared keys.
//!
//! In: a path. Out: the keys in it. Invariant: a file that anybody but its owner may read or write is not believed.

use headwater_nvme::tcp::psk::{HostKey, HostKeyError};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Most bytes of a file of keys.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Permissions of anybody but the owner.
const OTHERS: u32 = 0o077;

/// Why a file gives no keys. Quotes nothing of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("{}: cannot read the keys: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("{}: others may read or write these keys (mode {mode:03o}); chmod 600 it, and make new keys if somebody did", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error("{}: these keys belong to user {owner}; chown them to the user who runs this", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// What is in it are no keys.
    #[error("{}: {source}", path.display())]
    Text {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        source: HostKeyError,
    },
}

/// Reads a file of keys.
///
/// # Errors
/// [`KeyFileError`] says why not, and what to do.
pub fn load(path: &Path) -> Result<Vec<HostKey>, KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    let mode = facts.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }
    let owner = facts.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::Foreign { path: path.to_owned(), owner });
    }
    let mut text = Zeroizing::new(String::new());
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
    HostKey::parse_all(&text).map_err(|source| KeyFileError::Text { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn keys_that_others_may_read_are_refused() {
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
    fn a_file_that_is_none_says_so_without_quoting_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nqn.a {}", KEY.replace("VRL", "VRM")).unwrap();
        let refused = load(file.path()).unwrap_err().to_string();
        assert!(refused.contains("line 1") && !refused.contains("VRM"), "{refused}");
        assert!(matches!(load(Path::new("/nowhere/at.all")), Err(KeyFileError::Unreadable { .. })));
    }
}
