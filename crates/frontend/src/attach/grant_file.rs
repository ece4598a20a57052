//! The grants of a live node, kept in its data directory (`docs/formats/attach-grants.md`).
//!
//! In: what administrators said of users and groups. Out: the same after a restart, however the node ended. Invariant: the
//! file is as it was or as it was meant to be: written beside, made durable, renamed, and the directory made durable.

use super::policy::check;
use headwater_io::attach::admin::{Grant, Who};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Name of the file in the data directory.
pub const GRANTS_FILE: &str = "grants.json";
/// The version that is written.
const VERSION: u32 = 1;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most users and groups that are spoken of.
const SAID_MAX: usize = 4_096;

/// What was said last of each user or group: a grant, or `None` for a revocation.
pub type Said = BTreeMap<Who, Option<Grant>>;

/// Why grants could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum GrantFileError {
    /// The system refused.
    #[error("{}: cannot {what} the grants: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is of a version that this program does not know.
    #[error(
        "{}: version {version} of the grants is unknown here, which is {VERSION}; start the program that wrote it, or move \
         the file away and grant anew",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        version: u32,
    },
    /// It is not what any version of this program wrote.
    #[error("{}: {reason}; mend the file, or move it away and grant anew", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// There would be too many.
    #[error("grants speak of at most {SAID_MAX} users and groups; use groups")]
    TooMany,
}

/// Any version: what all have in common.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Version 1.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GrantFileText {
    version: u32,
    granted: Vec<Grant>,
    revoked: Vec<Who>,
}

/// Reads what was said before; nothing if there is no file.
///
/// # Errors
/// [`GrantFileError`] for a file that cannot be read, or says what no administrator can have said.
pub fn read(path: &Path) -> Result<Said, GrantFileError> {
    let system = |source| GrantFileError::System { path: path.to_owned(), what: "read", source };
    let malformed = |reason: String| GrantFileError::Malformed { path: path.to_owned(), reason };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Said::new()),
        Err(error) => return Err(system(error)),
    };
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(system)?;
    if bytes as u64 > FILE_BYTES_MAX {
        return Err(malformed(format!("the file is longer than {FILE_BYTES_MAX} bytes")));
    }
    let Versioned { version } = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if version != VERSION {
        return Err(GrantFileError::Version { path: path.to_owned(), version });
    }
    let whole: GrantFileText = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    let mut said = Said::new();
    let revoked = whole.revoked.into_iter().map(|who| (who, None));
    for (who, grant) in whole.granted.into_iter().map(|grant| (grant.who, Some(grant))).chain(revoked) {
        grant.as_ref().map_or(Ok(()), check).map_err(malformed)?;
        if said.insert(who, grant).is_some() {
            return Err(malformed(format!("{who} is spoken of twice")));
        }
    }
    Ok(said)
}

/// Keeps what was said, all of it, before it returns.
///
/// # Errors
/// [`GrantFileError`]; then the file is as it was.
pub fn write(path: &Path, said: &Said) -> Result<(), GrantFileError> {
    if said.len() > SAID_MAX {
        return Err(GrantFileError::TooMany);
    }
    let whole = GrantFileText {
        version: VERSION,
        granted: said.values().flatten().cloned().collect(),
        revoked: said.iter().filter(|(_, grant)| grant.is_none()).map(|(&who, _)| who).collect(),
    };
    replace(path, &whole).map_err(|source| GrantFileError::System {
        path: path.to_owned(),
        what: "keep",
        source,
    })
}

fn replace(path: &Path, whole: &GrantFileText) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut text = serde_json::to_vec_pretty(whole)?;
    text.push(b'\n');
    let mut file = File::create(&beside)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Said {
        let part = Grant {
            namespaces: vec![2, 3],
            read_only: true,
            blocks: Some((1, 9)),
            queues: 2,
            memory: 1 << 20,
            ..Grant::everything(Who::Uid(7))
        };
        Said::from([
            (Who::Uid(7), Some(part)),
            (Who::Uid(8), None),
            (Who::Gid(7), Some(Grant::everything(Who::Gid(7)))),
        ])
    }

    #[test]
    fn grants_and_revocations_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        assert!(read(&path).unwrap().is_empty(), "no file, nothing said");
        for said in [Said::new(), said()] {
            write(&path, &said).unwrap();
            assert_eq!(read(&path).unwrap(), said);
        }
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_half_written_file_beside_it_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        write(&path, &said()).unwrap();
        std::fs::write(folder.path().join("grants.json.new"), b"{\"version\": 1, \"gran").unwrap();
        assert_eq!(read(&path).unwrap(), said());
        write(&path, &Said::new()).unwrap();
        assert!(read(&path).unwrap().is_empty());
    }

    #[test]
    fn version_1_is_read_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(GRANTS_FILE);
        let text = include_str!("grant_file/grants-v1.json");
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path).unwrap(), said());
    }

    #[test]
    fn what_no_administrator_said_is_an_error_that_says_what_is_wrong() {
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
        assert!(matches!(read(&path), Err(GrantFileError::System { .. })), "no text");
    }
}
