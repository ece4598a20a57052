//! What a client knows of a namespace.

use serde::{Deserialize, Serialize};

/// A namespace as a client may use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamespaceFacts {
    /// Its number, from 1.
    pub id: u32,
    /// Bytes of a logical block; 0 for a key space.
    pub block_bytes: u32,
    /// Block: how many blocks there are. Key space: the most bytes its records may take, 0 without a quota.
    pub size: u64,
    /// Whether this client may change what it holds.
    pub writable: bool,
    /// Block: the blocks this client may touch, first and one past the last; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<(u64, u64)>,
}

impl NamespaceFacts {
    /// A key space without limits.
    #[must_use]
    pub fn key_space(id: u32) -> Self {
        Self { id, block_bytes: 0, size: 0, writable: true, blocks: None }
    }

    /// Whether it holds keys, and no blocks.
    #[must_use]
    pub fn is_key_space(&self) -> bool {
        self.block_bytes == 0
    }
}
