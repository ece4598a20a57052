//! Nodes of memory: which there are, which is close, and putting pages on one.
//!
//! In: what the machine, or a test that plays one, says. Out: a [`Placement`]. Invariant: the pool asks before it puts
//! memory behind addresses, so that a node can refuse before anything is spent.

use std::fmt;

/// The kernel's number of a node of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A node would not take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} would not take {bytes} bytes (error {errno}): free memory there, or leave the node out of the pool"
)]
pub struct PlaceError {
    /// The node.
    pub node: NodeId,
    /// How much it was to take.
    pub bytes: usize,
    /// The kernel's number.
    pub errno: i32,
}

/// The memory nodes under a pool.
pub trait Placement: Send + Sync + fmt::Debug {
    /// The nodes that have memory, at least one.
    fn nodes(&self) -> Vec<NodeId>;

    /// The node that the calling thread is on now.
    fn current(&self) -> NodeId;

    /// How far memory of `to` is for a thread on `from`: 10 is local, by the convention of ACPI's SLIT.
    fn distance(&self, from: NodeId, to: NodeId) -> u32;

    /// Makes pages that will be put behind these addresses come from `node`. Called before every commit.
    ///
    /// # Errors
    /// The node has none, or the kernel does not let this process choose.
    fn bind(&self, node: NodeId, address: usize, bytes: usize) -> Result<(), PlaceError>;
}

/// A machine whose memory is all alike, or whose nodes do not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneNode;

impl Placement for OneNode {
    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0)]
    }

    fn current(&self) -> NodeId {
        NodeId(0)
    }

    fn distance(&self, _from: NodeId, _to: NodeId) -> u32 {
        10
    }

    fn bind(&self, _node: NodeId, _address: usize, _bytes: usize) -> Result<(), PlaceError> {
        Ok(())
    }
}
