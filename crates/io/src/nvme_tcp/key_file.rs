//! Files of pre-shared keys.
//!
//! Input: a path. Output: the keys in it. Invariant: a file that users besides its owner may read or write is refused.

use crate::private_file::{self, PrivateFileError};
use headwater_nvme::tcp::psk::{HostKey, HostKeyError};
use std::path::{Path, PathBuf};

/// The error of reading a key file. Quotes nothing of its content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read, or is not private.
    #[error(transparent)]
    File(#[from] PrivateFileError),
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
    let text = private_file::read(path)?;
    HostKey::parse_all(&text).map_err(|source| KeyFileError::Invalid { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

    #[test]
    fn keys_are_read_with_the_names_of_their_hosts() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nqn.a {KEY}").unwrap();
        assert_eq!(load(file.path()).unwrap()[0].host, "nqn.a");
    }

    #[test]
    fn an_invalid_key_file_is_refused_without_quoting_it() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "nqn.a {}", KEY.replace("VRL", "VRM")).unwrap();
        let refused = load(file.path()).unwrap_err().to_string();
        assert!(refused.contains("line 1") && !refused.contains("VRM"), "{refused}");
        assert!(matches!(load(Path::new("/nowhere/at.all")), Err(KeyFileError::File(_))));
    }
}
