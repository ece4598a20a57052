//! The properties of a namespace, as a client sees them.

use serde::{Deserialize, Serialize};

/// A namespace with this client's rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClientNamespace {
    /// The namespace's number, from 1.
    pub id: u32,
    /// The bytes of a logical block; 0 for a key space.
    pub block_bytes: u32,
    /// Block: the number of blocks. Key space: the most bytes its records may take, 0 without a quota.
    pub size: u64,
    /// True if this client may change the contents.
    pub writable: bool,
    /// Block: the blocks that this client may access, first and one past the last; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<(u64, u64)>,
    /// Key space: true if a get may have [options](crate::GetOptions).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retrieve_options: bool,
}

impl ClientNamespace {
    /// Returns a key space without limits, on a device whose gets have no options.
    #[must_use]
    pub fn key_space(id: u32) -> Self {
        Self { id, block_bytes: 0, size: 0, writable: true, blocks: None, retrieve_options: false }
    }

    /// Returns true if it holds keys instead of blocks.
    #[must_use]
    pub fn is_key_space(&self) -> bool {
        self.block_bytes == 0
    }
}
