//! The data directory of a stopped node, opened by a command: for all of its device, or as a target of `kv`.
//!
//! In: a path. Out: what holds the directory's lock for as long as it lives.

use super::failure::Failure;
use super::progress::Progress;
use crate::config::{Config, Overrides};
use crate::daemon::data_dir::{DataDir, IfMissing};
use crate::daemon::device_file::{FileDevice, open_device, open_pool};
use crate::kv::target::KvTarget;
use crate::kv::target::embedded::EmbeddedTarget;
use headwater_frontend::resp::glob;
use headwater_host::clock::Clock;
use headwater_ssd::command::NamespaceId;
use std::path::Path;

/// A device without a node.
pub(super) struct StoppedNode {
    /// Recovered and ready.
    pub device: FileDevice,
    /// The clock it was opened by.
    pub clock: Clock,
    /// Keeps everybody else out.
    pub directory: DataDir,
}

/// Opens the device of a stopped node, and says on the way how far it is.
///
/// # Errors
/// When the directory is in use, missing, or cannot be recovered.
pub(super) fn open_stopped(path: &Path) -> Result<StoppedNode, Failure> {
    let config = Config::assemble(None, Overrides { data: Some(path.to_owned()), ..Overrides::default() })?;
    let directory = DataDir::take(path, IfMissing::Refuse)?;
    let clock = Clock::start();
    let mut progress = Progress::start("opening");
    let pool = open_pool(&config).map_err(Failure::failed)?;
    let opened = open_device(&directory, &config, &pool, clock, &mut |recovery| {
        progress.phase(recovery.stage);
        progress.total(Some(recovery.total));
        progress.set(recovery.done, 0);
    });
    Ok(StoppedNode { device: opened.map_err(Failure::failed)?, clock, directory })
}

/// Opens a data directory for `kv` commands.
///
/// # Errors
/// When it is in use, missing, or cannot be recovered.
pub fn open(path: &Path, namespace: u8) -> Result<Box<dyn KvTarget>, Failure> {
    let StoppedNode { device, clock, directory } = open_stopped(path)?;
    let matches = |pattern: &[u8], key: &[u8]| glob::matches(pattern, key, glob::Case::Sensitive);
    Ok(Box::new(EmbeddedTarget::new(device, NamespaceId(namespace), clock, matches, directory)))
}
