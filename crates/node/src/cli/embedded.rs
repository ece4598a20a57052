//! Opens the data directory of a stopped node for a command: the whole device, or a target of `kv`.
//!
//! Input: a path. Output: a device or target that holds the lock of the directory while it exists.

use super::failure::CommandFailure;
use super::progress::ProgressDisplay;
use crate::config::{ConfigOverrides, NodeConfig};
use crate::daemon::data_dir::{DataDir, MissingDirectory};
use crate::daemon::flash_device::{FileDevice, open_device, open_pool};
use crate::kv::target::KvTarget;
use crate::kv::target::embedded::EmbeddedTarget;
use headwater_frontend::resp::glob;
use headwater_host::clock::Clock;
use headwater_ssd::command::NamespaceId;
use std::path::Path;

/// The device of a stopped node, opened in this process.
pub(super) struct StoppedNode {
    /// The recovered device.
    pub device: FileDevice,
    /// The clock that the device was opened with.
    pub clock: Clock,
    /// The locked data directory.
    pub directory: DataDir,
}

/// Opens the device of a stopped node and shows the progress.
///
/// # Errors
/// When the directory is in use, missing, or cannot be recovered.
pub(super) fn open_stopped(path: &Path) -> Result<StoppedNode, CommandFailure> {
    let config = NodeConfig::assemble(
        None,
        ConfigOverrides { data: Some(path.to_owned()), ..ConfigOverrides::default() },
    )?;
    let directory = DataDir::lock_exclusive(path, MissingDirectory::Refuse)?;
    let clock = Clock::start();
    let mut progress = ProgressDisplay::start("opening");
    let pool = open_pool(&config).map_err(CommandFailure::failed)?;
    let opened = open_device(&directory, &config, &pool, clock, &mut |recovery| {
        progress.phase(recovery.stage);
        progress.total(Some(recovery.total));
        progress.set(recovery.done, 0);
    });
    Ok(StoppedNode { device: opened.map_err(CommandFailure::failed)?, clock, directory })
}

/// Opens a data directory for `kv` commands.
///
/// # Errors
/// When the directory is in use, missing, or cannot be recovered.
pub fn open_kv_target(path: &Path, namespace: u8) -> Result<Box<dyn KvTarget>, CommandFailure> {
    let StoppedNode { device, clock, directory } = open_stopped(path)?;
    let matches = |pattern: &[u8], key: &[u8]| glob::matches(pattern, key, glob::CaseSensitivity::Sensitive);
    Ok(Box::new(EmbeddedTarget::new(device, NamespaceId(namespace), clock, matches, directory)))
}
