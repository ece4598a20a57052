//! The changes of a device's namespace table that a client can request.
//!
//! Input: the properties of a namespace. Output: their serialized form; the device validates them.

use serde::{Deserialize, Serialize};

/// The point in time from which acknowledged writes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DurabilitySpec {
    /// Before they are acknowledged.
    Always,
    /// At most this many milliseconds after the acknowledgement.
    IntervalMs(u64),
    /// After the next flush.
    OnFlush,
}

/// A namespace in the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamespaceSpec {
    /// Bytes of a block; 0 for a key space.
    pub block_bytes: u32,
    /// Blocks, or bytes of quota.
    pub size: u64,
    /// `None` uses the node's configured durability.
    #[serde(default)]
    pub durability: Option<DurabilitySpec>,
    /// Commands a second, 0 without limit.
    #[serde(default)]
    pub iops: u32,
    /// Bytes a second, 0 without limit.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// Burst size, in commands.
    #[serde(default)]
    pub burst: u32,
}

impl NamespaceSpec {
    /// Returns a key space without limits.
    #[must_use]
    pub fn keys() -> Self {
        Self { block_bytes: 0, size: 0, durability: None, iops: 0, bytes_per_second: 0, burst: 0 }
    }
}

/// A change of the namespace table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceRequest {
    /// Create a namespace.
    Create(NamespaceSpec),
    /// Delete the namespace and its data.
    Delete,
    /// Change its size or quota.
    Resize(u64),
    /// Delete its data and set its block size in bytes, 0 for keys.
    Format(u32),
    /// Change its rate limits.
    Limits {
        /// Commands a second, 0 without limit.
        iops: u32,
        /// Bytes a second, 0 without limit.
        bytes_per_second: u64,
        /// Burst size, in commands.
        burst: u32,
    },
    /// Change its durability.
    Durability(Option<DurabilitySpec>),
}
