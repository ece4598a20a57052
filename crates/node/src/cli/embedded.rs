//! The data directory of a stopped node as a target of `kv`.
//!
//! In: a path. Out: a target that holds the directory's lock for as long as it lives.

use super::failure::Failure;
use super::progress::Progress;
use crate::config::{Config, Overrides};
use crate::data_dir::{DataDir, IfMissing};
use crate::kv_target::KvTarget;
use crate::kv_target::embedded::EmbeddedTarget;
use crate::resp::glob;
use headwater_converged::command::NamespaceId;
use headwater_host::clock::Clock;
use std::path::Path;

/// Opens a data directory for `kv` commands.
///
/// # Errors
/// When it is in use, missing, or cannot be recovered.
pub fn open(path: &Path, namespace: u8) -> Result<Box<dyn KvTarget>, Failure> {
    let config = Config::assemble(None, Overrides { data: Some(path.to_owned()), ..Overrides::default() })?;
    let directory = DataDir::take(path, IfMissing::Refuse)?;
    let clock = Clock::start();
    let mut progress = Progress::start("opening");
    let opened = crate::device_file::open_device(&directory, &config, clock, &mut |recovery| {
        progress.phase(recovery.stage);
        progress.total(Some(recovery.total));
        progress.set(recovery.done, 0);
    });
    let device = opened.map_err(Failure::failed)?;
    let matches = |pattern: &[u8], key: &[u8]| glob::matches(pattern, key, glob::Case::Sensitive);
    Ok(Box::new(EmbeddedTarget::new(device, NamespaceId(namespace), clock, matches, directory)))
}
