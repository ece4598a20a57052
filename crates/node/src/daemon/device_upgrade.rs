//! The upgrade of the flash file of a data directory to the present format version.
//!
//! Input: a locked directory. Output: its flash file, upgraded, or the reason why it is not. Invariant: the file opens at
//! every moment.

use crate::config::NodeConfig;
use crate::daemon::data_dir::DataDir;
use crate::daemon::flash_device::{device_config, open_pool};
use crate::daemon::serve::RecoveryProgress;
use headwater_host::clock::Clock;
use headwater_ssd::engine::StartTime;
use headwater_ssd::engine::upgrade::{UpgradedFile, upgrade_file};
use headwater_ssd::media::file::{FileMedia, FileOptions};

/// Upgrades the flash file of a data directory, or goes on with an upgrade that was interrupted.
///
/// # Errors
/// Says why the file is not upgraded.
pub fn upgrade_device(
    directory: &DataDir,
    config: &NodeConfig,
    clock: Clock,
    progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<UpgradedFile, String> {
    let pool = open_pool(config)?;
    let start = StartTime { now: clock.now(), wall: clock.wall() };
    let mut open = || {
        let media = FileMedia::open(directory.path(), FileOptions::default())?;
        let file = media.startup_file()?;
        Ok((media, file))
    };
    upgrade_file(&mut open, &device_config(config, &pool), start, &mut |step| {
        progress(RecoveryProgress { stage: step.stage, done: step.done, total: step.total });
    })
    .map_err(|error| format!("{}: {error}", directory.path().display()))
}
