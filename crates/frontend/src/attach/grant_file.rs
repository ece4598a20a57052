//! The file of grants in a node's data directory (`docs/formats/attach-grants.md`).
//!
//! Input: decisions of administrators about users and groups. Output: the same decisions after a restart, however the
//! node ended. Invariant: the file holds the old or the new content, never a part: a temporary file is written, made
//! durable and renamed, and the directory is made durable.

use super::policy::validate_grant;
use crate::replaced_file;
use headwater_io::attach::admin::{AccessGrant, GrantSubject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The name of the file in the data directory.
pub const GRANTS_FILE: &str = "grants.json";
/// The version that is written.
const VERSION: u32 = 1;
/// Maximum bytes of a file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum users and groups in the file.
const DECISIONS_MAX: usize = 4_096;

/// The latest decision about each user or group: a grant, or `None` for a revocation.
pub type GrantDecisions = BTreeMap<GrantSubject, Option<AccessGrant>>;

/// An error of reading or writing the file of grants.
#[derive(Debug, thiserror::Error)]
pub enum GrantFileError {
    /// The system refused.
    #[error("{}: cannot {what} the grants: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file has a version that this program does not support.
    #[error(
        "{}: version {version} of the grants is not supported, only version {VERSION}; start the program that \
         wrote it, or move the file away and repeat the grants",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        version: u32,
    },
    /// No version of this program wrote this content.
    #[error("{}: {reason}; correct the file, or move it away and repeat the grants", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault and its position.
        reason: String,
    },
    /// The limit of users and groups is reached.
    #[error("grants are limited to {DECISIONS_MAX} users and groups; grant to groups instead of users")]
    TooMany,
}

/// The part that all versions have in common.
#[derive(Deserialize)]
struct VersionField {
    version: u32,
}

/// The file in version 1.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GrantFileContent {
    version: u32,
    granted: Vec<AccessGrant>,
    revoked: Vec<GrantSubject>,
}

/// Reads the decisions; none if there is no file.
///
/// # Errors
/// [`GrantFileError`] for a file that cannot be read, or that holds a decision which no administrator can make.
pub fn read(path: &Path) -> Result<GrantDecisions, GrantFileError> {
    let system = |source| GrantFileError::System { path: path.to_owned(), what: "read", source };
    let malformed = |reason: String| GrantFileError::Malformed { path: path.to_owned(), reason };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(GrantDecisions::new()),
        Err(error) => return Err(system(error)),
    };
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(system)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(malformed(format!("the file is longer than {FILE_BYTES_MAX} bytes")));
    }
    let VersionField { version } =
        serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if version != VERSION {
        return Err(GrantFileError::Version { path: path.to_owned(), version });
    }
    let whole: GrantFileContent =
        serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    let mut decisions = GrantDecisions::new();
    let revoked = whole.revoked.into_iter().map(|who| (who, None));
    for (who, grant) in whole.granted.into_iter().map(|grant| (grant.who, Some(grant))).chain(revoked) {
        grant.as_ref().map_or(Ok(()), validate_grant).map_err(malformed)?;
        if decisions.insert(who, grant).is_some() {
            return Err(malformed(format!("{who} is listed twice")));
        }
    }
    Ok(decisions)
}

/// Writes all decisions, durable when it returns.
///
/// # Errors
/// [`GrantFileError`]; then the file is unchanged.
pub fn write(path: &Path, decisions: &GrantDecisions) -> Result<(), GrantFileError> {
    if decisions.len() > DECISIONS_MAX {
        return Err(GrantFileError::TooMany);
    }
    let whole = GrantFileContent {
        version: VERSION,
        granted: decisions.values().flatten().cloned().collect(),
        revoked: decisions.iter().filter(|(_, grant)| grant.is_none()).map(|(&who, _)| who).collect(),
    };
    replace(path, &whole).map_err(|source| GrantFileError::System {
        path: path.to_owned(),
        what: "write",
        source,
    })
}

fn replace(path: &Path, whole: &GrantFileContent) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(whole)?;
    text.push(b'\n');
    replaced_file::replace(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions() -> GrantDecisions {
        let part = AccessGrant {
            namespaces: vec![2, 3],
            read_only: true,
            blocks: Some((1, 9)),
            queues: 2,
            memory: 1 << 20,
            ..AccessGrant::everything(GrantSubject::Uid(7))
        };
        GrantDecisions::from([
            (GrantSubject::Uid(7), Some(part)),
            (GrantSubject::Uid(8), None),
            (GrantSubject::Gid(7), Some(AccessGrant::everything(GrantSubject::Gid(7)))),
        ])
    }

    #[test]
    fn grants_and_revocations_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        assert!(read(&path).unwrap().is_empty(), "without a file there are no decisions");
        for decisions in [GrantDecisions::new(), decisions()] {
            write(&path, &decisions).unwrap();
            assert_eq!(read(&path).unwrap(), decisions);
        }
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "the temporary file is left behind");
    }

    #[test]
    fn an_incomplete_temporary_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        write(&path, &decisions()).unwrap();
        std::fs::write(folder.path().join("grants.json.new"), b"{\"version\": 1, \"gran").unwrap();
        assert_eq!(read(&path).unwrap(), decisions());
        write(&path, &GrantDecisions::new()).unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn version_1_remains_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        let text = include_str!("grant_file/grants-v1.json");
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path).unwrap(), decisions());
    }

    #[test]
    fn invalid_content_is_an_error_that_names_the_fault() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        for (text, wanted) in [
            ("", "EOF"),
            ("{\"granted\":[],\"revoked\":[]}", "missing field `version`"),
            ("{\"version\":2,\"anything\":[]}", "version 2"),
            ("{\"version\":1,\"granted\":[],\"revoked\":[],\"extra\":1}", "unknown field `extra`"),
            ("{\"version\":1,\"granted\":[{\"who\":{\"uid\":1},\"right\":1}],\"revoked\":[]}", "`right`"),
            ("{\"version\":1,\"granted\":[{\"who\":{\"uid\":1},\"namespaces\":[99]}],\"revoked\":[]}", "99"),
            ("{\"version\":1,\"granted\":[{\"who\":{\"uid\":1}}],\"revoked\":[{\"uid\":1}]}", "twice"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains(GRANTS_FILE), "{error}");
        }
        std::fs::write(&path, [0xFF; 9]).unwrap();
        assert!(matches!(read(&path), Err(GrantFileError::System { .. })), "not UTF-8");
    }
}
