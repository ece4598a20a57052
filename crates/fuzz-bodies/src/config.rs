//! A configuration file: parsed, or refused with a message that names the file, without a panic.

use headwater_node::config::file::parse;
use std::path::Path;

/// Parses a configuration file.
///
/// # Panics
/// If an error does not name the file.
pub fn body(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Err(error) = parse(text, Path::new("fuzzed.toml")) {
        let message = error.to_string();
        assert!(message.contains("fuzzed.toml"), "an error that does not name its file: {message}");
    }
}
