//! The properties of a job beside its steps: what it promises, and what the policy knows of its memories.
//!
//! Input: what the owner of a job states. Output: a guarantee that the engines give, and hints by which the policy chooses them.
//! Invariant: a hint that is wrong costs time and nothing else.

use super::policy::MoveDirection;
use headwater_host::numa::NodeId;

/// The guarantee that a job gives for what it wrote, when it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoveDurability {
    /// Other threads see the bytes.
    #[default]
    Visible,
    /// The bytes have left the caches: persistent memory keeps them when the power fails.
    Persistent,
}

/// The use of what a job wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheIntent {
    /// It is read soon: it stays in the cache, unless the job is persistent or the range is longer than the last-level cache.
    #[default]
    ReadSoon,
    /// It is not read soon: long fills, copies from private memory, and copies without a checksum to shared memory pass the
    /// cache by.
    NotSoon,
}

/// The NUMA nodes of a job's memories, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    /// The node of the bytes that it reads.
    pub source: Option<NodeId>,
    /// The node of the bytes that it writes.
    pub target: Option<NodeId>,
}

/// The kind of memory that a job reads. The kind that it writes follows from its durability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceKind {
    /// DRAM.
    #[default]
    Dram,
    /// Persistent memory, which is read more slowly.
    Persistent,
}

impl SourceKind {
    /// Returns the direction of a job that reads this kind of memory.
    pub(super) const fn direction(self, durability: MoveDurability) -> MoveDirection {
        match (self, durability) {
            (Self::Dram, MoveDurability::Visible) => MoveDirection::BetweenDram,
            (Self::Dram, MoveDurability::Persistent) => MoveDirection::ToPersistent,
            (Self::Persistent, MoveDurability::Visible) => MoveDirection::FromPersistent,
            (Self::Persistent, MoveDurability::Persistent) => MoveDirection::BetweenPersistent,
        }
    }
}
