//! The file of kept settings in a node's data directory (`docs/formats/kept-settings.md`).
//!
//! Input: the settings that CONFIG SET changed, when CONFIG REWRITE asks for it. Output: the same at the next start.
//! Invariant: the file holds what one CONFIG REWRITE wrote, whole, or it is refused. Its checksum finds damage.

use crate::replaced_file;
use headwater_io::private_file::{self, PrivateFileError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The name of the file in the data directory.
pub const KEPT_SETTINGS_FILE: &str = "settings.json";
/// The version that is written.
const VERSION: u32 = 1;

/// Settings by name, as CONFIG GET shows them.
pub(crate) type KeptValues = BTreeMap<String, String>;

/// An error of reading or writing the file of kept settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeptSettingsError {
    /// The file cannot be read, or users besides its owner may access it.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The file cannot be written.
    #[error("{}: cannot write the settings: {source}; the file is unchanged", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has a version that this program does not support.
    #[error(
        "{}: version {version} of the settings is not supported, only version {VERSION}; start the program that wrote \
         it, or move the file away and repeat CONFIG SET and CONFIG REWRITE",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        version: u32,
    },
    /// It is not what CONFIG REWRITE wrote.
    #[error(
        "{}: the settings that CONFIG REWRITE wrote are damaged: {reason}; restore the file from a copy, or move it away \
         and repeat CONFIG SET and CONFIG REWRITE: without it the password and the settings of the command line and the \
         configuration file apply",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// The part that all versions have in common.
#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

/// The file in version 1.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptSettingsContent {
    version: u32,
    settings: KeptValues,
    checksum: String,
}

/// Returns the checksum of settings: BLAKE3 of their JSON without blanks, sorted by name.
fn checksum(settings: &KeptValues) -> std::io::Result<String> {
    Ok(blake3::hash(&serde_json::to_vec(settings)?).to_hex().to_string())
}

/// Reads the kept settings; none if there is no file.
///
/// # Errors
/// [`KeptSettingsError`] for a file that cannot be read or that is not what was written.
pub(crate) fn read(path: &Path) -> Result<KeptValues, KeptSettingsError> {
    let damaged = |reason: String| KeptSettingsError::Damaged { path: path.to_owned(), reason };
    let text = match private_file::read(path) {
        Ok(text) => text,
        Err(PrivateFileError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(KeptValues::new());
        }
        Err(PrivateFileError::Unreadable { source, .. }) if source.kind() == ErrorKind::InvalidData => {
            return Err(damaged("it is no text".to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    // The errors of the parser may quote the file, which holds the hash of a password: only the position is repeated.
    let malformed = |error: serde_json::Error| {
        damaged(format!("no JSON of this format at line {}, column {}", error.line(), error.column()))
    };
    let VersionField { version } = serde_json::from_str(&text).map_err(malformed)?;
    if version != VERSION {
        return Err(KeptSettingsError::Version { path: path.to_owned(), version });
    }
    let content: KeptSettingsContent = serde_json::from_str(&text).map_err(malformed)?;
    match checksum(&content.settings) {
        Ok(checksum) if checksum == content.checksum => Ok(content.settings),
        _ => Err(damaged("the checksum does not fit".to_owned())),
    }
}

/// Writes the settings, durable when it returns.
///
/// # Errors
/// [`KeptSettingsError::Write`].
pub(crate) fn write(path: &Path, settings: KeptValues) -> Result<(), KeptSettingsError> {
    let replaced = checksum(&settings).and_then(|checksum| {
        let content = KeptSettingsContent { version: VERSION, settings, checksum };
        let mut text = serde_json::to_vec_pretty(&content)?;
        text.push(b'\n');
        replaced_file::replace(path, &text)
    });
    replaced.map_err(|source| KeptSettingsError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn some() -> KeptValues {
        let pairs =
            [("timeout", "300"), ("client-output-buffer-limit", "normal 1048576 65536 5 slave 0 0 0")];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn private(path: &Path, content: &[u8]) {
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn settings_read_back_as_written_and_the_file_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEPT_SETTINGS_FILE);
        assert!(read(&path).unwrap().is_empty(), "without a file nothing is kept");
        for settings in [some(), KeptValues::new()] {
            write(&path, settings.clone()).unwrap();
            assert_eq!(read(&path).unwrap(), settings);
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the temporary file is left behind");
        let nowhere = folder.path().join("nowhere/settings.json");
        let error = write(&nowhere, some()).unwrap_err().to_string();
        assert!(error.contains("nowhere/settings.json") && error.contains("unchanged"), "{error}");
    }

    /// Checks each state in which a kill between two steps of a rewrite leaves the directory.
    #[test]
    fn interrupted_rewrite_leaves_the_old_settings_and_can_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEPT_SETTINGS_FILE);
        let beside = folder.path().join("settings.json.new");
        write(&path, some()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 1, whole.len() / 2, whole.len()] {
            std::fs::write(&beside, &whole[..length]).unwrap();
            assert_eq!(read(&path).unwrap(), some(), "{length} bytes were written");
            write(&path, KeptValues::new()).unwrap();
            assert!(read(&path).unwrap().is_empty());
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert!(!beside.exists());
            write(&path, some()).unwrap();
        }
    }

    #[test]
    fn every_damaged_byte_is_found_and_the_error_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEPT_SETTINGS_FILE);
        write(&path, some()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x04;
            private(&path, &bytes);
            match read(&path) {
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(KEPT_SETTINGS_FILE) && error.contains("move"), "{at}: {error}");
                    assert!(!error.contains("1048576"), "quotes the file: {error}");
                }
                Ok(_) => panic!("the damage of byte {at} was not found: {text}"),
            }
        }
        for length in 0..whole.len() - 2 {
            private(&path, &whole[..length]);
            assert!(read(&path).is_err(), "the first {length} bytes were accepted");
        }
        private(&path, text.replace("\"version\": 1", "\"version\": 2").as_bytes());
        assert!(matches!(read(&path), Err(KeptSettingsError::Version { version: 2, .. })));
        private(&path, &whole);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn version_1_remains_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEPT_SETTINGS_FILE);
        private(&path, include_bytes!("kept_settings/settings-v1.json"));
        let settings = read(&path).unwrap();
        assert_eq!(settings["timeout"], "300");
        let password = super::super::password_hash::SaltedHash::parse(&settings["requirepass"]).unwrap();
        assert!(password.is_of(b"open sesame"));
    }
}
