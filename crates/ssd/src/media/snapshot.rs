//! The pages and commit records that make up a snapshot of a medium.
//!
//! Input: blocks with their lives. Output: the same, for the medium that says where they lie. Invariant: none; the
//! translation layer decides which pages belong to a snapshot.

use super::{BlockId, CellNumber};

/// The pages of one block in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// The block.
    pub block: BlockId,
    /// The number of its pages in the snapshot, from its first one.
    pub pages: u8,
    /// The order of its life. A block with an equal order holds equal pages.
    pub order: u64,
}

/// The contents of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotContents {
    /// The records of its commit, with their cells.
    pub records: Vec<(CellNumber, Box<[u8]>)>,
    /// Its blocks, by number.
    pub blocks: Vec<SnapshotBlock>,
}
