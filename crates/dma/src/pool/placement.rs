//! Nodes of memory: which there are, which is close, and whether one may take more.
//!
//! In: what the machine, or a test that plays one, says. Out: a [`Placement`]. Invariant: the pool asks before it puts
//! memory behind addresses, so that a node can refuse before anything is spent.

use headwater_host::numa::{self, BindError};
use headwater_host::reservation::Backing;
use headwater_host::topology::Topology;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

pub use headwater_host::numa::NodeId;

/// A node would not take memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} would not take {bytes} bytes, it has {available} to spare: free memory there, or allow other nodes"
)]
pub struct PlaceError {
    /// The node.
    pub node: NodeId,
    /// How much it was to take.
    pub bytes: usize,
    /// Bytes that it could take.
    pub available: u64,
}

/// The memory nodes under a pool.
pub trait Placement: Send + Sync + fmt::Debug {
    /// The nodes that have memory, at least one.
    fn nodes(&self) -> Vec<NodeId>;

    /// The node of these that is closest to the calling thread now.
    fn current(&self) -> NodeId;

    /// How far memory of `to` is for a thread on `from`: 10 is local, by the convention of ACPI's SLIT.
    fn distance(&self, from: NodeId, to: NodeId) -> u32;

    /// Whether addresses are bound to their nodes, which then have the kernel's numbers. Otherwise nodes are names.
    fn binds(&self) -> bool {
        false
    }

    /// Whether a node may take so many bytes more of this kind. Asked before every commit.
    ///
    /// # Errors
    /// It has not so much to spare.
    fn admit(&self, node: NodeId, bytes: usize, backing: Backing) -> Result<(), PlaceError>;
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

    fn admit(&self, _node: NodeId, _bytes: usize, _backing: Backing) -> Result<(), PlaceError> {
        Ok(())
    }
}

/// The nodes of this machine that have memory. Addresses are bound to them.
///
/// The kernel's killer wakes when a node that memory is bound to has none left, so a node is asked first, and keeps a
/// thirty-second of its memory for everybody else. Huge pages that were set aside are asked of the kernel itself, which
/// refuses without harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNodes {
    nodes: Vec<Node>,
    /// By processor: the place of the closest node that has memory. A processor that is not here has the first.
    closest: BTreeMap<usize, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    id: NodeId,
    /// Bytes that stay free.
    spared: u64,
    /// To each node.
    distances: Vec<u32>,
}

/// The distance of another node where the kernel says none: ACPI's "remote".
const REMOTE: u32 = 20;

impl MachineNodes {
    /// The nodes of this machine. `None` where not more than one has memory, so that there is nothing to choose.
    ///
    /// # Errors
    /// There are several, and memory cannot be bound to one of them; [`BindError`] says what to do about it.
    pub fn find() -> Result<Option<Self>, BindError> {
        let Some(found) = Self::of(&Topology::read()) else { return Ok(None) };
        found.nodes.iter().try_for_each(|node| numa::try_bind(node.id))?;
        Ok(Some(found))
    }

    /// The nodes of a machine like this one. `None` where not more than one has memory.
    #[must_use]
    pub fn of(topology: &Topology) -> Option<Self> {
        let known: Vec<_> = topology.nodes_with_memory().collect();
        if known.len() < 2 {
            return None;
        }
        let distance =
            |from: u32, to: u32| topology.distance(from, to).unwrap_or(if from == to { 10 } else { REMOTE });
        let node = |node: &&headwater_host::topology::MemoryNode| Node {
            id: NodeId(node.number),
            spared: node.memory_bytes / 32,
            distances: known.iter().map(|other| distance(node.number, other.number)).collect(),
        };
        let nodes = known.iter().map(node).collect();
        let mut closest = BTreeMap::new();
        for home in &topology.nodes {
            // A node without memory has a closest one that has some.
            let order = topology.nodes_from(home.number);
            let place = order.iter().find_map(|&number| known.iter().position(|node| node.number == number));
            closest.extend(home.cpus.iter().map(|&cpu| (cpu, place.unwrap_or(0))));
        }
        Some(Self { nodes, closest })
    }

    fn closest_to(&self, cpu: Option<usize>) -> NodeId {
        let place = cpu.and_then(|cpu| self.closest.get(&cpu)).copied().unwrap_or(0);
        self.nodes[place].id
    }

    fn judge(&self, node: NodeId, bytes: usize, available: u64) -> Result<(), PlaceError> {
        let spared = self.place(node).map_or(0, |place| self.nodes[place].spared);
        let available = available.saturating_sub(spared);
        let enough = u64::try_from(bytes).is_ok_and(|bytes| bytes <= available);
        if enough { Ok(()) } else { Err(PlaceError { node, bytes, available }) }
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == node)
    }
}

impl Placement for MachineNodes {
    fn nodes(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    fn current(&self) -> NodeId {
        self.closest_to(numa::current_cpu())
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let pair = self.place(from).zip(self.place(to));
        pair.map_or(REMOTE, |(from, to)| self.nodes[from].distances[to])
    }

    fn binds(&self) -> bool {
        true
    }

    fn admit(&self, node: NodeId, bytes: usize, backing: Backing) -> Result<(), PlaceError> {
        if backing.is_pooled() {
            return Ok(());
        }
        // A kernel that does not say is taken at its word when the pages come.
        numa::available_bytes(node).map_or(Ok(()), |available| self.judge(node, bytes, available))
    }
}

/// What a pool has under it if nobody chooses: [`MachineNodes`] where several nodes have memory and memory can be bound to
/// them, [`OneNode`] else. The machine is looked at once.
#[must_use]
pub fn usual_placement() -> Arc<dyn Placement> {
    static USUAL: OnceLock<Arc<dyn Placement>> = OnceLock::new();
    let usual = || match MachineNodes::find() {
        Ok(Some(nodes)) => Arc::new(nodes) as Arc<dyn Placement>,
        Ok(None) | Err(_) => Arc::new(OneNode),
    };
    Arc::clone(USUAL.get_or_init(usual))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
