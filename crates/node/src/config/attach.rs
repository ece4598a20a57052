//! What a node is told about attaching: where the socket is, and who may do what.
//!
//! In: a flag, keys and `[[grant]]` tables of the configuration file. Out: a place and checked grants. Without a word the
//! socket is `attach.sock` in the data directory.

use super::size::Bytes;
use headwater_frontend::attach::policy;
use headwater_io::attach::admin::{Grant, MEMORY_DEFAULT, QUEUES_DEFAULT, Who};
use serde::Deserialize;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the socket in the data directory.
const SOCKET_FILE: &str = "attach.sock";
/// Longest path of a socket, with the zero behind it (`sun_path`).
const SOCKET_PATH_MAX: usize = 108;

/// Where the attach socket is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum AttachPlace {
    /// In the data directory, if its path is short enough for a socket.
    #[default]
    DataDirectory,
    /// Here.
    At(PathBuf),
    /// Nowhere.
    Off,
}

impl From<String> for AttachPlace {
    fn from(text: String) -> Self {
        if text == "off" { Self::Off } else { Self::At(text.into()) }
    }
}

impl FromStr for AttachPlace {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.to_owned().into())
    }
}

impl AttachPlace {
    /// The path of the socket, if there is one.
    #[must_use]
    pub fn path(&self, data: &Path) -> Option<PathBuf> {
        match self {
            Self::DataDirectory => {
                let path = data.join(SOCKET_FILE);
                let fits = path.as_os_str().len() < SOCKET_PATH_MAX;
                if !fits {
                    tracing::warn!(
                        "the data directory's path is too long for a socket; name one with --attach"
                    );
                }
                fits.then_some(path)
            }
            Self::At(path) => Some(path.clone()),
            Self::Off => None,
        }
    }
}

/// Whether a grant lets its client change anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessConfig {
    /// It may look.
    Read,
    /// It may look and change.
    #[default]
    Write,
}

/// A `[[grant]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GrantConfig {
    /// For this user.
    uid: Option<u32>,
    /// Or for this group.
    gid: Option<u32>,
    /// In these namespaces; all when none is listed.
    #[serde(default)]
    namespaces: Vec<u8>,
    /// `read` or `write`.
    #[serde(default)]
    access: AccessConfig,
    /// Block namespaces: the first block and one past the last.
    blocks: Option<(u64, u64)>,
    /// Most queues of a client.
    queues: Option<u32>,
    /// Most memory of a client.
    memory: Option<Bytes>,
    /// Whether it may drive queues of the SSD's itself.
    #[serde(default)]
    direct: bool,
}

impl GrantConfig {
    /// The grant.
    ///
    /// # Errors
    /// Says what is impossible about it.
    pub fn grant(&self) -> Result<Grant, String> {
        let who = match (self.uid, self.gid) {
            (Some(uid), None) => Who::Uid(uid),
            (None, Some(gid)) => Who::Gid(gid),
            _ => return Err("a grant is for one `uid` or one `gid`".to_owned()),
        };
        let grant = Grant {
            who,
            namespaces: self.namespaces.clone(),
            read_only: self.access == AccessConfig::Read,
            blocks: self.blocks,
            queues: self.queues.unwrap_or(QUEUES_DEFAULT),
            memory: self.memory.map_or(MEMORY_DEFAULT, |bytes| bytes.0),
            direct: self.direct,
        };
        policy::check(&grant)?;
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(text: &str) -> Result<Grant, String> {
        toml::from_str::<GrantConfig>(text).map_err(|error| error.to_string())?.grant()
    }

    #[test]
    fn a_grant_says_only_what_differs_from_everything() {
        assert_eq!(grant("uid = 7"), Ok(Grant::everything(Who::Uid(7))));
        let part =
            grant("gid = 7\nnamespaces = [2]\naccess = \"read\"\nblocks = [0, 9]\nmemory = \"1MiB\"\n");
        let part = part.unwrap();
        assert_eq!((part.read_only, part.blocks, part.memory), (true, Some((0, 9)), 1 << 20));
        for text in
            ["", "uid = 1\ngid = 1", "uid = 1\nnamespaces = [17]", "uid = 1\nblocks = [4, 4]", "uids = 1"]
        {
            assert!(grant(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_socket_is_in_the_data_directory_unless_told_otherwise() {
        let path = |place: AttachPlace| place.path(Path::new("data"));
        assert_eq!(path(AttachPlace::default()), Some("data/attach.sock".into()));
        assert_eq!(path("/run/x".parse().unwrap()), Some("/run/x".into()));
        assert_eq!(path("off".parse().unwrap()), None);
        assert_eq!(AttachPlace::default().path(Path::new(&"x".repeat(200))), None);
    }
}
