//! Files that are replaced whole: grants, kept settings.
//!
//! Input: a path and the new content. Output: the file with it, durable. Invariant: after a crash at any point the file
//! has the old or the new content, never a part of one, and only its owner may access it.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Mode of the files.
const PRIVATE_FILE: u32 = 0o600;

/// Replaces a file: writes another beside it (`.new`), syncs that, renames it, and syncs the directory.
///
/// # Errors
/// The system's; then the file is unchanged, unless only the last sync failed.
pub(crate) fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    // What an interrupted replacement left may have another mode.
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(PRIVATE_FILE).open(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}
