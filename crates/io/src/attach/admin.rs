//! The administration messages of the attach socket: grants, connected clients and the namespace table.
//!
//! Input: requests of the daemon's own user. Output: their serialized form, shared by client and daemon. The daemon
//! validates them.

use crate::namespace_request::{NamespaceRequest, NamespaceSpec};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The subject of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GrantSubject {
    /// One user.
    Uid(u32),
    /// All users whose primary group is this one.
    Gid(u32),
}

impl fmt::Display for GrantSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Gid(gid) => write!(f, "gid {gid}"),
        }
    }
}

/// The rights of a user or group. One grant applies to a client: that of its user, else that of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AccessGrant {
    /// The user or group.
    pub who: GrantSubject,
    /// The namespaces it may use; an empty list means all.
    #[serde(default)]
    pub namespaces: Vec<u8>,
    /// True if it may only read.
    #[serde(default)]
    pub read_only: bool,
    /// Block namespaces: the first block it may access and the one past the last; `None` for all.
    #[serde(default)]
    pub blocks: Option<(u64, u64)>,
    /// The maximum number of queues of a client.
    #[serde(default = "queues_default")]
    pub queues: u32,
    /// The maximum number of bytes of a client's regions.
    #[serde(default = "memory_default")]
    pub memory: u64,
    /// True if its clients may drive hardware queues, where the device can lend them. Such a client can access every
    /// block and harm other clients. Cannot be combined with any other restriction.
    #[serde(default, skip_serializing_if = "is_false")]
    pub direct: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
pub(super) fn is_false(switch: &bool) -> bool {
    !*switch
}

/// Default maximum number of queues of a client.
pub const QUEUES_DEFAULT: u32 = 16;
/// Default maximum number of bytes of a client's regions.
pub const MEMORY_DEFAULT: u64 = 1 << 30;

fn queues_default() -> u32 {
    QUEUES_DEFAULT
}

fn memory_default() -> u64 {
    MEMORY_DEFAULT
}

impl AccessGrant {
    /// Returns a grant of everything that the node can enforce, within the default limits.
    #[must_use]
    pub fn everything(who: GrantSubject) -> Self {
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

/// A connected client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClientInfo {
    /// Its process id.
    pub pid: i32,
    /// Its user id.
    pub uid: u32,
    /// Its primary group id.
    pub gid: u32,
    /// The number of its queues.
    pub queues: u32,
    /// The bytes of its regions.
    pub memory: u64,
}

/// An administration request of the daemon's own user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdminRequest {
    /// List the grants and the clients.
    List,
    /// Grant rights; replaces the previous grant of this user or group.
    Grant(AccessGrant),
    /// Revoke every right of a user or group; its clients are disconnected.
    Revoke(GrantSubject),
    /// Change the limits of a grant; `None` leaves a limit as it is.
    Quota {
        /// The user or group.
        who: GrantSubject,
        /// The maximum number of queues of a client.
        queues: Option<u32>,
        /// The maximum number of bytes of a client's regions.
        memory: Option<u64>,
    },
    /// List the namespace table.
    Namespaces,
    /// Change the namespace table.
    Namespace {
        /// The namespace's number; ignored by a create.
        id: u8,
        /// The change.
        #[serde(rename = "wish")]
        request: NamespaceRequest,
    },
}

/// The daemon's answer to an administration request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdminAnswer {
    /// Grants and clients.
    List {
        /// The grants, users before groups.
        grants: Vec<AccessGrant>,
        /// The clients.
        clients: Vec<ClientInfo>,
    },
    /// The number of clients that a change affected.
    Reached(u32),
    /// The namespace table.
    Namespaces(Vec<(u8, NamespaceSpec)>),
    /// The number of the namespace that was changed or created.
    Namespace(u8),
}
