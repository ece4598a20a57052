//! What can be wrong with a flash file.
//!
//! In: what startup found. Out: an error that names the file, the part of it, the numbers, and what to do.

use crate::media::Geometry;
use headwater_host::uring::RingError;
use std::io;
use std::path::PathBuf;

/// Why a flash file could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileMediaError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        doing: &'static str,
        /// The refusal.
        source: io::Error,
    },
    /// There is a flash file already.
    #[error("{} exists: open it, or choose another data directory", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The disk is too small.
    #[error("{} needs {needed_bytes} bytes and {free_bytes} are free: free some or ask for less capacity", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its length.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// Another process, or another device of this one, has the file.
    #[error("{} is in use: stop the other process or choose another data directory", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The shape cannot be kept in a file.
    #[error("a medium of {geometry:?} cannot be made: give channels, dies and 1 to 67,108,864 blocks")]
    Geometry {
        /// The shape.
        geometry: Geometry,
    },
    /// The file is something else.
    #[error("{} is not a flash file: name the right data directory", path.display())]
    NotFlash {
        /// The file.
        path: PathBuf,
    },
    /// The file was made by another version.
    #[error("{} has format version {found}, this program knows {known}: use the program that made it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The superblock fails its check.
    #[error("the superblock of {} is damaged: restore the file from a copy", path.display())]
    SuperblockDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Neither session record passes its check.
    #[error("both session records of {} are damaged: restore the file from a copy", path.display())]
    SessionDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Neither copy of a page of the erase table passes its check.
    #[error("page {number} of the erase table of {} is damaged in both copies: restore the file from a copy", path.display())]
    TableDamaged {
        /// The file.
        path: PathBuf,
        /// Which page of the table.
        number: usize,
    },
    /// The file was cut off.
    #[error("{} is {found_bytes} bytes long and should be {expected_bytes}: restore the file from a copy", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// As the superblock says.
        expected_bytes: u64,
        /// As the file system says.
        found_bytes: u64,
    },
    /// No transfers can be run on the file.
    #[error(transparent)]
    Ring(#[from] RingError),
}
