//! Memory nodes: their list, their distances, and admission of more memory.
//!
//! Input: the machine's topology, or a test's. Output: a [`NodePlacement`]. Invariant: the pool asks for admission before
//! it commits memory, so a node can refuse without a cost.

use headwater_host::numa::{self, BindError};
use headwater_host::reservation::Backing;
use headwater_host::topology::Topology;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

pub use headwater_host::numa::NodeId;

/// The refusal of a node to take more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {node} refused {bytes} bytes, it has {available} available: free memory there, or allow other nodes"
)]
pub struct AdmitError {
    /// The node.
    pub node: NodeId,
    /// Requested bytes.
    pub bytes: usize,
    /// Bytes that it could take.
    pub available: u64,
}

/// The memory nodes of a pool.
pub trait NodePlacement: Send + Sync + fmt::Debug {
    /// Returns the nodes that have memory, at least one.
    fn nodes(&self) -> Vec<NodeId>;

    /// Returns the node of these that is closest to the calling thread now.
    fn current(&self) -> NodeId;

    /// Returns the distance of memory on `to` for a thread on `from`: 10 is local, by the convention of ACPI's SLIT.
    fn distance(&self, from: NodeId, to: NodeId) -> u32;

    /// Returns true if addresses are bound to their nodes, which then have the kernel's numbers. Otherwise node numbers
    /// are only names.
    fn binds(&self) -> bool {
        false
    }

    /// Checks that a node may take `bytes` more bytes of this kind. Called before every commit.
    ///
    /// # Errors
    /// The node has fewer bytes available.
    fn admit(&self, node: NodeId, bytes: usize, backing: Backing) -> Result<(), AdmitError>;
}

/// A machine with uniform memory, or whose nodes do not matter.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneNode;

impl NodePlacement for OneNode {
    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0)]
    }

    fn current(&self) -> NodeId {
        NodeId(0)
    }

    fn distance(&self, _from: NodeId, _to: NodeId) -> u32 {
        10
    }

    fn admit(&self, _node: NodeId, _bytes: usize, _backing: Backing) -> Result<(), AdmitError> {
        Ok(())
    }
}

/// The nodes of this machine that have memory. Addresses are bound to them.
///
/// The kernel's OOM killer runs when a node that memory is bound to has none left. So availability is checked first,
/// and a thirty-second of a node's memory stays free for other users. Reserved huge pages are not checked: the kernel
/// itself refuses them without harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineNodes {
    nodes: Vec<MachineNode>,
    /// Index of the closest node with memory, by processor. A processor not listed has the first.
    closest: BTreeMap<usize, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MachineNode {
    id: NodeId,
    /// Bytes that stay free.
    reserve_bytes: u64,
    /// Distances to each node.
    distances: Vec<u32>,
}

/// The distance of another node if the kernel reports none: ACPI's "remote".
const REMOTE: u32 = 20;

impl MachineNodes {
    /// Returns the nodes of this machine, or `None` if fewer than two have memory.
    ///
    /// # Errors
    /// There are several, and memory cannot be bound to one of them; [`BindError`] says what to do.
    pub fn find() -> Result<Option<Self>, BindError> {
        let Some(found) = Self::of(&Topology::read()) else { return Ok(None) };
        found.nodes.iter().try_for_each(|node| numa::try_bind(node.id))?;
        Ok(Some(found))
    }

    /// Returns the nodes of a machine with this topology, or `None` if fewer than two have memory.
    #[must_use]
    pub fn of(topology: &Topology) -> Option<Self> {
        let known: Vec<_> = topology.nodes_with_memory().collect();
        if known.len() < 2 {
            return None;
        }
        let distance =
            |from: u32, to: u32| topology.distance(from, to).unwrap_or(if from == to { 10 } else { REMOTE });
        let node = |node: &&headwater_host::topology::MemoryNode| MachineNode {
            id: NodeId(node.number),
            reserve_bytes: node.memory_bytes / 32,
            distances: known.iter().map(|other| distance(node.number, other.number)).collect(),
        };
        let nodes = known.iter().map(node).collect();
        let mut closest = BTreeMap::new();
        for home in &topology.nodes {
            // A node without memory uses its closest node that has some.
            let order = topology.nodes_by_distance(home.number);
            let place = order.iter().find_map(|&number| known.iter().position(|node| node.number == number));
            closest.extend(home.cpus.iter().map(|&cpu| (cpu, place.unwrap_or(0))));
        }
        Some(Self { nodes, closest })
    }

    fn closest_to(&self, cpu: Option<usize>) -> NodeId {
        let place = cpu.and_then(|cpu| self.closest.get(&cpu)).copied().unwrap_or(0);
        self.nodes[place].id
    }

    fn check_available(&self, node: NodeId, bytes: usize, available: u64) -> Result<(), AdmitError> {
        let spared = self.node_index(node).map_or(0, |place| self.nodes[place].reserve_bytes);
        let available = available.saturating_sub(spared);
        let enough = u64::try_from(bytes).is_ok_and(|bytes| bytes <= available);
        if enough { Ok(()) } else { Err(AdmitError { node, bytes, available }) }
    }

    fn node_index(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| known.id == node)
    }
}

impl NodePlacement for MachineNodes {
    fn nodes(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    fn current(&self) -> NodeId {
        self.closest_to(numa::current_cpu())
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        let pair = self.node_index(from).zip(self.node_index(to));
        pair.map_or(REMOTE, |(from, to)| self.nodes[from].distances[to])
    }

    fn binds(&self) -> bool {
        true
    }

    fn admit(&self, node: NodeId, bytes: usize, backing: Backing) -> Result<(), AdmitError> {
        if backing.is_pooled() {
            return Ok(());
        }
        // If the kernel does not report it, admit: the commit fails if there is no memory.
        numa::available_bytes(node).map_or(Ok(()), |available| self.check_available(node, bytes, available))
    }
}

/// Returns the default placement: [`MachineNodes`] if several nodes have memory and memory can be bound to them, else
/// [`OneNode`]. The machine is inspected once.
#[must_use]
pub fn default_placement() -> Arc<dyn NodePlacement> {
    static USUAL: OnceLock<Arc<dyn NodePlacement>> = OnceLock::new();
    let usual = || match MachineNodes::find() {
        Ok(Some(nodes)) => Arc::new(nodes) as Arc<dyn NodePlacement>,
        Ok(None) | Err(_) => Arc::new(OneNode),
    };
    Arc::clone(USUAL.get_or_init(usual))
}

/// The error that a machine has no such memory node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The machine has other nodes.
    #[error("this machine has no memory node {node}: choose one of {nodes:?}, or name none")]
    Unknown {
        /// The node.
        node: u32,
        /// The nodes that have memory.
        nodes: Vec<u32>,
    },
    /// Memory cannot be bound to a node.
    #[error("memory cannot be placed on node {node}: {error}")]
    Bind {
        /// The node.
        node: u32,
        /// The kernel's error.
        error: BindError,
    },
}

/// One node of a machine with several.
#[derive(Clone, Debug)]
struct OnlyNode {
    machine: MachineNodes,
    node: NodeId,
}

impl NodePlacement for OnlyNode {
    fn nodes(&self) -> Vec<NodeId> {
        vec![self.node]
    }

    fn current(&self) -> NodeId {
        self.node
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        self.machine.distance(from, to)
    }

    fn binds(&self) -> bool {
        true
    }

    fn admit(&self, node: NodeId, bytes: usize, backing: Backing) -> Result<(), AdmitError> {
        self.machine.admit(node, bytes, backing)
    }
}

/// Returns the placement of all memory on one node, by the kernel's number.
///
/// # Errors
/// [`NodeError`]: the node has no memory, or memory cannot be bound to it.
pub fn placement_on(node: NodeId) -> Result<Arc<dyn NodePlacement>, NodeError> {
    let machine = MachineNodes::find().map_err(|error| NodeError::Bind { node: node.0, error })?;
    place(machine, node)
}

fn place(machine: Option<MachineNodes>, node: NodeId) -> Result<Arc<dyn NodePlacement>, NodeError> {
    let nodes = machine.as_ref().map_or_else(|| vec![NodeId(0)], MachineNodes::nodes);
    match machine {
        _ if !nodes.contains(&node) => {
            Err(NodeError::Unknown { node: node.0, nodes: nodes.iter().map(|node| node.0).collect() })
        }
        Some(machine) => Ok(Arc::new(OnlyNode { machine, node })),
        None => Ok(Arc::new(OneNode)),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
