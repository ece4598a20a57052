//! The ready file: a JSON file that shows that a node serves, and its addresses.
//!
//! Input: addresses. Output: a JSON file. Invariant: it is absent or complete, because it is written under another name
//! and renamed.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The contents of the ready file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyFile {
    /// Address of the RESP front end, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resp: Option<String>,
    /// Address of metrics and health.
    pub metrics: String,
    /// Path of the Unix socket, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix: Option<PathBuf>,
    /// Path of the socket where other processes attach, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<PathBuf>,
    /// Path of the socket for a vfio-user client, if there is one.
    #[serde(rename = "vfio-user", skip_serializing_if = "Option::is_none")]
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP front end, if there is one.
    #[serde(rename = "nvme-tcp", skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<String>,
    /// Process number of the node.
    pub pid: u32,
}

/// The error of a ready file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot write the ready file: {source}; check the path given with --ready-file", path.display())]
pub struct ReadyFileError {
    path: PathBuf,
    source: std::io::Error,
}

impl ReadyFile {
    /// Writes the file atomically.
    ///
    /// # Errors
    /// [`ReadyFileError`] names the path.
    pub fn write(&self, path: &Path) -> Result<(), ReadyFileError> {
        let failed = |source| ReadyFileError { path: path.to_owned(), source };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let mut text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        std::fs::write(&beside, text).map_err(failed)?;
        std::fs::rename(&beside, path).map_err(failed)
    }
}
