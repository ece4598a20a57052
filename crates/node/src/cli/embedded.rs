//! The data directory of a stopped node as a target of `kv`.
//!
//! In: a path. Out: a target that holds the directory's lock.

use super::failure::Failure;
use crate::data_dir::{DataDir, IfMissing};
use crate::kv_target::KvTarget;
use std::path::Path;

/// Opens a data directory for `kv` commands.
///
/// # Errors
/// When it is in use, missing, or cannot be recovered.
pub fn open(path: &Path, namespace: u8) -> Result<Box<dyn KvTarget>, Failure> {
    let directory = DataDir::take(path, IfMissing::Refuse)?;
    let _ = namespace;
    Err(Failure::failed(format!(
        "{}: opening a data directory in place arrives with the file media",
        directory.path().display()
    )))
}
