//! Administration over the attach socket: who may do what, who is there, and the table of namespaces.
//!
//! In: wishes of the daemon's own user. Out: the same in words that both sides share. The daemon judges them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whom a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// One user.
    Uid(u32),
    /// Whoever has this group as the first of its groups.
    Gid(u32),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Gid(gid) => write!(f, "gid {gid}"),
        }
    }
}

/// What somebody may do. One grant counts for a client: that of its user, else that of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Grant {
    /// For whom.
    pub who: Who,
    /// In which namespaces; none listed means all.
    #[serde(default)]
    pub namespaces: Vec<u8>,
    /// Whether it may only look.
    #[serde(default)]
    pub read_only: bool,
    /// Block namespaces: the first block it may touch and the one past the last; `None` for all.
    #[serde(default)]
    pub blocks: Option<(u64, u64)>,
    /// Most queues of a client.
    #[serde(default = "queues_default")]
    pub queues: u32,
    /// Most bytes of regions of a client.
    #[serde(default = "memory_default")]
    pub memory: u64,
    /// Whether its clients may drive queues of the hardware's, where the device has some to lend: then nothing keeps them from
    /// any block, nor from harming other clients. Goes with no other restriction.
    #[serde(default, skip_serializing_if = "is_false")]
    pub direct: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(super) fn is_false(switch: &bool) -> bool {
    !*switch
}

/// Queues of a client, unless its grant says otherwise.
pub const QUEUES_DEFAULT: u32 = 16;
/// Bytes of regions of a client, unless its grant says otherwise.
pub const MEMORY_DEFAULT: u64 = 1 << 30;

fn queues_default() -> u32 {
    QUEUES_DEFAULT
}

fn memory_default() -> u64 {
    MEMORY_DEFAULT
}

impl Grant {
    /// Everything that the node can watch over, within the default limits.
    #[must_use]
    pub fn everything(who: Who) -> Self {
        Self {
            who,
            namespaces: Vec::new(),
            read_only: false,
            blocks: None,
            queues: QUEUES_DEFAULT,
            memory: MEMORY_DEFAULT,
            direct: false,
        }
    }
}

/// A client that is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClientFacts {
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its first group.
    pub gid: u32,
    /// Its queues.
    pub queues: u32,
    /// Bytes of its regions.
    pub memory: u64,
}

/// When acknowledged writes are safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DurabilityText {
    /// Before they are acknowledged.
    Always,
    /// At most so many milliseconds after.
    IntervalMs(u64),
    /// After the next flush.
    OnFlush,
}

/// A namespace in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamespaceText {
    /// Bytes of a block; 0 for a key space.
    pub block_bytes: u32,
    /// Blocks, or bytes of quota.
    pub size: u64,
    /// `None` takes what the node is configured with.
    #[serde(default)]
    pub durability: Option<DurabilityText>,
    /// Commands a second, 0 without limit.
    #[serde(default)]
    pub iops: u32,
    /// Bytes a second, 0 without limit.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// Commands that may come at once.
    #[serde(default)]
    pub burst: u32,
}

impl NamespaceText {
    /// A key space without limits.
    #[must_use]
    pub fn keys() -> Self {
        Self { block_bytes: 0, size: 0, durability: None, iops: 0, bytes_per_second: 0, burst: 0 }
    }
}

/// A change of the table of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceWish {
    /// Make one.
    Create(NamespaceText),
    /// Remove it and what it holds.
    Delete,
    /// Change its size or quota.
    Resize(u64),
    /// Remove what it holds and give it blocks of so many bytes, 0 for keys.
    Format(u32),
    /// Change how fast it may be used.
    Limits {
        /// Commands a second, 0 without limit.
        iops: u32,
        /// Bytes a second, 0 without limit.
        bytes_per_second: u64,
        /// Commands that may come at once.
        burst: u32,
    },
    /// Change when its writes are safe.
    Durability(Option<DurabilityText>),
}

/// What the daemon's own user asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdminRequest {
    /// Grants and clients.
    List,
    /// Give rights, in place of what this user or group had.
    Grant(Grant),
    /// Take every right; its clients are disconnected.
    Revoke(Who),
    /// Change the limits of a grant; `None` leaves one as it is.
    Quota {
        /// Whose.
        who: Who,
        /// Most queues of a client.
        queues: Option<u32>,
        /// Most bytes of regions of a client.
        memory: Option<u64>,
    },
    /// The table of namespaces.
    Namespaces,
    /// Change it.
    Namespace {
        /// Which one; ignored when one is made.
        id: u8,
        /// How.
        wish: NamespaceWish,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdminAnswer {
    /// Grants and clients.
    List {
        /// The grants, users before groups.
        grants: Vec<Grant>,
        /// The clients.
        clients: Vec<ClientFacts>,
    },
    /// How many clients a change reached.
    Reached(u32),
    /// The table of namespaces.
    Namespaces(Vec<(u8, NamespaceText)>),
    /// The number of the namespace that was changed or made.
    Namespace(u8),
}
