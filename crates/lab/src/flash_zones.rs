//! The map of a flash file that an experiment aims at.

use crate::experiment::LabError;
use headwater_ssd::media::file::zones::FileZones;
use std::fs::File;
use std::path::Path;

/// Returns the map of the flash file at `path`, from its superblock.
pub(crate) fn zones_of(path: &Path) -> Result<FileZones, LabError> {
    let file = File::open(path).map_err(|source| LabError::Io { what: "open the flash file", source })?;
    FileZones::of_file(&file, path).map_err(|error| LabError::Measure {
        program: "the flash file".to_owned(),
        reason: error.to_string(),
    })
}
