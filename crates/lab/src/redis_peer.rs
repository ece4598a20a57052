//! The installed servers that speak Redis's protocol and take its options: redis-server and valkey-server.
//!
//! Input: the programs on the PATH, and those that `HEADWATER_PEERS` names: paths with a colon between them.
//! Output: the name and version of each, and a running server with the persistence that a comparison needs.

use crate::experiment::{LabError, RunContext};
use crate::server::{RespDurability, RespServer};
use std::process::Command;

/// The persistence of a peer. Snapshots and rewrites are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerPersistence {
    /// None: everything is lost when it ends.
    None,
    /// An append-only file, written through as this durability says.
    AppendOnly(RespDurability),
}

impl PeerPersistence {
    /// Returns the options of a server.
    fn options(self) -> [&'static str; 4] {
        match self {
            Self::None => ["--appendonly", "no", "--appendfsync", "no"],
            Self::AppendOnly(mode) => ["--appendonly", "yes", "--appendfsync", mode.redis()],
        }
    }

    /// Returns the name of its folder.
    fn name(self) -> &'static str {
        match self {
            Self::None => "memory",
            Self::AppendOnly(mode) => mode.redis(),
        }
    }
}

/// An installed server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisPeer {
    program: String,
    name: String,
}

/// Environment variable with the paths of more servers.
const PEERS: &str = "HEADWATER_PEERS";

impl RedisPeer {
    /// Finds redis-server; the error is the reason why it cannot run.
    pub(crate) fn redis() -> Result<Self, String> {
        Self::find("redis-server")
    }

    /// Returns the peers that are installed, the one that claims compare with first: redis-server of the PATH if it is there.
    /// valkey-server of the PATH follows, then the named ones. A program of the name and version of an earlier one is left out.
    pub(crate) fn installed() -> Result<Vec<Self>, String> {
        let named = std::env::var(PEERS).unwrap_or_default();
        let named = named.split(':').filter(|path| !path.is_empty()).map(Self::find);
        let redis = Self::redis();
        let more = std::iter::once(Self::find("valkey-server")).chain(named).flatten();
        let found: Vec<Self> = redis.iter().cloned().chain(more).collect();
        if found.is_empty() { redis.map(|peer| vec![peer]) } else { Ok(Self::distinct(found)) }
    }

    /// Returns the first peer of each name and version: two of one name would share their folder, and measure the same.
    fn distinct(found: Vec<Self>) -> Vec<Self> {
        let mut distinct: Vec<Self> = Vec::new();
        for peer in found {
            if distinct.iter().all(|earlier| earlier.name != peer.name) {
                distinct.push(peer);
            }
        }
        distinct
    }

    fn find(program: &str) -> Result<Self, String> {
        let output = Command::new(program)
            .arg("--version")
            .output()
            .map_err(|error| format!("{program} cannot be run ({error}): apt-get install {program}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version_of(&text).ok_or_else(|| format!("{program} --version printed no version"))?;
        let kind = if text.starts_with("Valkey") { "valkey-server" } else { "redis-server" };
        Ok(Self { program: program.to_owned(), name: format!("{kind} {version}") })
    }

    /// Returns its name and version.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts it on an empty folder.
    pub(crate) fn start(
        &self,
        context: &RunContext,
        persistence: PeerPersistence,
    ) -> Result<RespServer, LabError> {
        let folder = format!("{}-{}", self.name.replace(' ', "-"), persistence.name());
        RespServer::redis(context, &self.program, &folder, &persistence.options())
    }
}

/// Returns the version in the output of `--version`: `Redis server v=7.0.15 sha=...`.
fn version_of(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix("v="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_word_after_its_mark() {
        assert_eq!(version_of("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"), Some("7.0.15"));
        assert_eq!(version_of("Valkey server v=8.1.4 sha=00000000:0"), Some("8.1.4"));
        assert_eq!(version_of("redis 7"), None);
    }

    #[test]
    fn server_that_is_found_twice_is_one_peer() {
        let peer =
            |program: &str, name: &str| RedisPeer { program: program.to_owned(), name: name.to_owned() };
        let redis = peer("redis-server", "redis-server 7.0.15");
        let valkey = peer("valkey-server", "valkey-server 8.1.4");
        let newer = peer("/opt/valkey-server", "valkey-server 9.0.0");
        let again = peer("/usr/bin/valkey-server", "valkey-server 8.1.4");
        let distinct = RedisPeer::distinct(vec![redis.clone(), valkey.clone(), again, newer.clone()]);
        assert_eq!(distinct, [redis, valkey, newer]);
    }

    #[test]
    fn program_that_is_missing_is_named_with_its_package() {
        let why = RedisPeer::find("no-such-server").unwrap_err();
        assert!(why.contains("apt-get install no-such-server"), "{why}");
    }
}
