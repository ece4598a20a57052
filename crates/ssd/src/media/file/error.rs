//! Errors when a flash file is created or opened.
//!
//! Input: what startup found. Output: an error that names the file, the part of it, the numbers, and what to do.

use super::superblock::BadSuperblock;
use crate::media::FlashGeometry;
use headwater_host::uring::RingError;
use std::io;
use std::path::PathBuf;

/// The reason why a flash file could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileMediaError {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// The file or directory.
        path: PathBuf,
        /// The attempted step.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The flash file exists already.
    #[error("{} exists: open it or choose another data directory", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The disk has too little free space.
    #[error("{} needs {needed_bytes} bytes, {free_bytes} are free: free some or use less capacity", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The length the file needs.
        needed_bytes: u64,
        /// The free bytes of the disk.
        free_bytes: u64,
    },
    /// Another process, or another device of this process, holds the file.
    #[error("{} is in use: stop the other process or choose another data directory", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The geometry is not valid for a file.
    #[error(
        "a flash file of {geometry:?} cannot be created: use at least 1 channel, 1 die and 1 to 67,108,864 blocks"
    )]
    Geometry {
        /// The geometry.
        geometry: FlashGeometry,
    },
    /// The file has another format.
    #[error("{} is not a flash file: check the data directory", path.display())]
    NotFlash {
        /// The file.
        path: PathBuf,
    },
    /// The file has another format version.
    #[error("{} has format version {found}, this program reads {known}: use the program that made it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// No two copies of the superblock agree, or two pairs of them disagree.
    #[error("the superblock of {} is damaged ({}): restore the file from a copy", path.display(), list(bad))]
    SuperblockDamaged {
        /// The file.
        path: PathBuf,
        /// The copies that are damaged, or differ from the first intact one.
        bad: Vec<BadSuperblock>,
    },
    /// The file uses features that this program does not know.
    #[error("{} uses unknown features {bits:#x}: use the program that wrote it", path.display())]
    Incompatible {
        /// The file.
        path: PathBuf,
        /// The unknown bits.
        bits: u64,
    },
    /// The file uses features without which it can only be read.
    #[error("{} uses unknown features {bits:#x} and can only be read: use the program that wrote it", path.display())]
    ReadCompatible {
        /// The file.
        path: PathBuf,
        /// The unknown bits.
        bits: u64,
    },
    /// Neither session record of a file of version 1 passes its check.
    #[error("both session records of {} are damaged: restore the file from a copy", path.display())]
    SessionDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Neither copy of a page of the erase table of version 1 passes its check.
    #[error("erase table page {number} of {} is damaged in both copies: restore the file from a copy", path.display())]
    TableDamaged {
        /// The file.
        path: PathBuf,
        /// Which page of the table.
        number: usize,
    },
    /// The file is not as long as it was made.
    #[error("{} has {found_bytes} bytes instead of {expected_bytes}: restore the file from a copy", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The length in the superblock.
        expected_bytes: u64,
        /// The length of the file.
        found_bytes: u64,
    },
    /// No ring could be opened for transfers.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// Returns the faults of the copies, in words.
fn list(bad: &[BadSuperblock]) -> String {
    bad.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
