//! The file of the password of Redis clients.
//!
//! Input: a path. Output: its first line: the password, or for a node its salted hash. Invariant: a file that users
//! besides its owner may access is refused.

use headwater_frontend::resp::{PasswordPrecedence, SaltedHash};
use headwater_io::private_file;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file with the password of a node's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PasswordFile {
    /// The file.
    pub path: PathBuf,
    /// Its precedence over a password that CONFIG REWRITE kept: the command line has it, the configuration file has not.
    pub precedence: PasswordPrecedence,
}

impl PasswordFile {
    /// Returns the file of the command line, or the one of the configuration file.
    #[must_use]
    pub(super) fn of(command_line: Option<PathBuf>, config_file: Option<PathBuf>) -> Option<Self> {
        let given = command_line.map(|path| Self { path, precedence: PasswordPrecedence::Given });
        given.or_else(|| config_file.map(|path| Self { path, precedence: PasswordPrecedence::Kept }))
    }
}

/// Reads the password of RESP clients, or its salted hash: the first line of a file.
///
/// # Errors
/// Says why the file is not read, or that its first line is empty.
pub fn read_password(path: &Path) -> Result<Zeroizing<String>, String> {
    let text = private_file::read(path).map_err(|error| error.to_string())?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(Zeroizing::new(password.to_owned())),
        _ => Err(format!("{}: its first line is empty; write the password there", path.display())),
    }
}

/// Reads the password that a client sends: the first line of a file.
///
/// # Errors
/// As [`read_password`], and for a hash: a client must send the password itself.
pub fn read_client_password(path: &Path) -> Result<String, String> {
    let password = read_password(path)?;
    if SaltedHash::is_hash(password.as_bytes()) {
        return Err(format!(
            "{}: it holds the hash of a password, which a node takes; a client needs the password itself",
            path.display()
        ));
    }
    Ok(password.to_string())
}
