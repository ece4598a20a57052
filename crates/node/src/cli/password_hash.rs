//! `headwater password-hash`: prints the salted hash of a password.
//!
//! Input: the password, the first line of standard input. Output: its hash, which a password file may hold instead.

use super::failure::{CommandFailure, write_line};
use headwater_frontend::resp::{SaltedHash, random_bytes};
use std::io::BufRead as _;
use zeroize::Zeroizing;

/// Runs `headwater password-hash`.
///
/// # Errors
/// The line is empty, is a hash already, or cannot be read; or the kernel gives no random bytes.
pub fn run() -> Result<(), CommandFailure> {
    let mut line = Zeroizing::new(String::new());
    std::io::stdin().lock().read_line(&mut line)?;
    let password = line.trim_end_matches(['\n', '\r']).as_bytes();
    if password.is_empty() {
        return Err(CommandFailure::usage("no password: give it as the first line of standard input"));
    }
    if SaltedHash::is_hash(password) {
        return Err(CommandFailure::usage("this is a hash: a password cannot start with $scrypt$"));
    }
    write_line(&SaltedHash::of(password, &random_bytes()?).to_string())
}
