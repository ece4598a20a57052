//! The file of the password of Redis clients.
//!
//! Input: a path. Output: its first line. Invariant: a file that users besides its owner may access is refused.

use headwater_io::private_file;
use std::path::Path;

/// Reads the password of RESP clients: the first line of a file.
///
/// # Errors
/// Says why the file is not read, or that its first line is empty.
pub fn read_password(path: &Path) -> Result<String, String> {
    let text = private_file::read(path).map_err(|error| error.to_string())?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(format!("{}: its first line is empty; write the password there", path.display())),
    }
}
