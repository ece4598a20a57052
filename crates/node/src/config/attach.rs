//! The configuration of the attach front end: the location of its socket, and the grants.
//!
//! Input: a flag, keys and `[[grant]]` tables of the configuration file. Output: a location and checked grants. The
//! default socket is `attach.sock` in the data directory.

use super::size::ByteSize;
use headwater_frontend::attach::policy;
use headwater_io::attach::admin::{AccessGrant, GrantSubject, MEMORY_DEFAULT, QUEUES_DEFAULT};
use serde::Deserialize;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Name of the socket in the data directory.
const SOCKET_FILE: &str = "attach.sock";
/// Maximum length of the path of a socket, its final zero included (`sun_path`).
const SOCKET_PATH_MAX: usize = 108;

/// The location of the attach socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum AttachLocation {
    /// In the data directory, if its path is short enough for a socket.
    #[default]
    DataDirectory,
    /// At this path.
    At(PathBuf),
    /// No socket.
    Off,
}

impl From<String> for AttachLocation {
    fn from(text: String) -> Self {
        if text == "off" { Self::Off } else { Self::At(text.into()) }
    }
}

impl FromStr for AttachLocation {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.to_owned().into())
    }
}

impl AttachLocation {
    /// Returns the path of the socket, if there is one.
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

/// The access that a grant permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessConfig {
    /// Commands that change nothing.
    Read,
    /// All commands.
    #[default]
    Write,
}

/// A `[[grant]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GrantConfig {
    /// The user, unless the grant is for a group.
    uid: Option<u32>,
    /// The group, unless the grant is for a user.
    gid: Option<u32>,
    /// Permitted namespaces; all when none is listed.
    #[serde(default)]
    namespaces: Vec<u8>,
    /// `read` or `write`.
    #[serde(default)]
    access: AccessConfig,
    /// Permitted blocks of block namespaces: the first block and one past the last.
    blocks: Option<(u64, u64)>,
    /// Maximum queues of a client.
    queues: Option<u32>,
    /// Maximum memory of a client.
    memory: Option<ByteSize>,
    /// True if the client may drive queues of the SSD itself.
    #[serde(default)]
    direct: bool,
}

impl GrantConfig {
    /// Returns the grant.
    ///
    /// # Errors
    /// Says why the grant is invalid.
    pub fn grant(&self) -> Result<AccessGrant, String> {
        let who = match (self.uid, self.gid) {
            (Some(uid), None) => GrantSubject::Uid(uid),
            (None, Some(gid)) => GrantSubject::Gid(gid),
            _ => return Err("a grant is for one `uid` or one `gid`".to_owned()),
        };
        let grant = AccessGrant {
            who,
            namespaces: self.namespaces.clone(),
            read_only: self.access == AccessConfig::Read,
            blocks: self.blocks,
            queues: self.queues.unwrap_or(QUEUES_DEFAULT),
            memory: self.memory.map_or(MEMORY_DEFAULT, |bytes| bytes.0),
            direct: self.direct,
        };
        policy::validate_grant(&grant)?;
        Ok(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(text: &str) -> Result<AccessGrant, String> {
        toml::from_str::<GrantConfig>(text).map_err(|error| error.to_string())?.grant()
    }

    #[test]
    fn omitted_keys_grant_everything_and_invalid_grants_are_refused() {
        assert_eq!(grant("uid = 7"), Ok(AccessGrant::everything(GrantSubject::Uid(7))));
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
    fn socket_is_in_the_data_directory_by_default() {
        let path = |place: AttachLocation| place.path(Path::new("data"));
        assert_eq!(path(AttachLocation::default()), Some("data/attach.sock".into()));
        assert_eq!(path("/run/x".parse().unwrap()), Some("/run/x".into()));
        assert_eq!(path("off".parse().unwrap()), None);
        assert_eq!(AttachLocation::default().path(Path::new(&"x".repeat(200))), None);
    }
}
