//! Backups of a data directory: copies of its flash file, each at one sequence, while a node serves from it.
//!
//! Input: a data directory and a backup folder. Output: a backup in the folder, or a new data directory from one.
//! Invariant: a backup counts once its manifest has its name; everything that the manifest refers to was durable before
//! that. So a run that is killed at any point changes no backup.
//!
//! ```text
//!  data/flash --(pages of a snapshot that no archive has)--> archive-N --+
//!  data/backup.sock --(snapshot: which pages, commit records)------------+--> manifest-N --(restore)--> data/flash
//! ```

pub mod folder;
pub mod manifest;
pub mod restore;
pub mod source;
pub mod take;

use headwater_frontend::backup::message::BackupStatus;
use std::path::{Path, PathBuf};

/// The error of a backup or a restore.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// No node serves from the data directory.
    #[error(
        "{}: no node serves from this directory ({source}); a backup is taken from a running node: start it with \
         `headwater serve --data {}`, or copy the directory of a stopped one", data.display(), data.display()
    )]
    NoNode {
        /// The data directory.
        data: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The node takes no snapshot, or gave one up for good.
    #[error("{}: the node gives no snapshot: {}", data.display(), explain(*status))]
    Refused {
        /// The data directory.
        data: PathBuf,
        /// The status that the node sent.
        status: BackupStatus,
    },
    /// The connection to the node ended.
    #[error("{}: the node ended the connection: {source}; start it again, and repeat the command", data.display())]
    NodeGone {
        /// The data directory.
        data: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Every snapshot was lost.
    #[error(
        "{}: {attempts} snapshots were given up, because the node needed their blocks: it writes faster than they are \
         copied; repeat the command when it writes less, or copy to a faster disk",
        data.display()
    )]
    TooBusy {
        /// The data directory.
        data: PathBuf,
        /// The snapshots.
        attempts: u32,
    },
    /// A file or folder failed.
    #[error("{}: cannot {doing}: {source}", path.display())]
    System {
        /// The file or folder.
        path: PathBuf,
        /// The operation, as a verb with its object.
        doing: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Another command uses the backup folder.
    #[error("{}: another backup or restore uses this folder; wait until it has ended", folder.display())]
    FolderInUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has no such backup.
    #[error("{}: no backup {}; `headwater backup --list {}` shows those that are there", folder.display(),
        number.map_or_else(|| "is in this folder".to_owned(), |number| format!("{number} is in this folder")), folder.display())]
    NoBackup {
        /// The folder.
        folder: PathBuf,
        /// The number that was asked for.
        number: Option<u32>,
    },
    /// A manifest or an archive is damaged.
    #[error("{}: {what}; restore an older backup with --number", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// The target of a restore has data.
    #[error("{}: there is a flash file already, and a restore overwrites none; give a new directory", data.display())]
    HasData {
        /// The data directory.
        data: PathBuf,
    },
    /// The target of a restore is in use.
    #[error(transparent)]
    DataDir(#[from] crate::daemon::data_dir::DataDirError),
}

impl BackupError {
    /// Returns a function that adds a path and an operation to a system's error.
    pub(crate) fn system<'a>(
        path: &'a Path,
        doing: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Self + use<'a> {
        move |source| Self::System { path: path.to_owned(), doing, source }
    }
}

/// Says why a node gives no snapshot, and what to do.
fn explain(status: BackupStatus) -> &'static str {
    match status {
        BackupStatus::Snapshot | BackupStatus::LostNoSpace => "it needed the blocks; repeat the command",
        BackupStatus::LostSanitized => "a sanitize erases all data; repeat the command when it has ended",
        BackupStatus::LostMediumFailed => "its medium failed; see the node's log",
        BackupStatus::LostNodeStops => "it stops; start it again, and repeat the command",
        BackupStatus::RefusedBusy => "another backup runs; wait until it has ended",
        BackupStatus::RefusedVersion1 => {
            "its flash file has format version 1; stop it and run `headwater device upgrade`"
        }
        BackupStatus::RefusedRequest => "it is of another version than this program; use the same one",
    }
}
