//! Placement on simulated machines: nodes without memory, without processors, at any distance.

use super::*;
use crate::pool::{ChunkRule, Pool, PoolConfig, PoolError, PoolRequest};
use headwater_host::reservation::BackingOrder;
use headwater_host::topology::MemoryNode;

fn node(number: u32, cpus: &[usize], mebibytes: u64, distances: &[u32]) -> MemoryNode {
    let memory_bytes = mebibytes << 20;
    MemoryNode { number, cpus: cpus.to_vec(), memory_bytes, distances: distances.to_vec() }
}

/// Builds two sockets, a node of memory without processors, and a node of processors without memory that is closest to
/// node 2.
fn machine() -> Topology {
    let nodes = vec![
        node(0, &[0, 1], 1_024, &[10, 21, 17, 28]),
        node(2, &[2, 3], 2_048, &[21, 10, 28, 12]),
        node(3, &[], 512, &[17, 28, 10, 28]),
        node(5, &[4], 0, &[28, 12, 28, 10]),
    ];
    Topology { nodes, ..Topology::default() }
}

#[test]
fn only_nodes_with_memory_are_used() {
    let found = MachineNodes::of(&machine()).unwrap();
    assert_eq!(found.nodes(), [NodeId(0), NodeId(2), NodeId(3)]);
    assert_eq!(found.distance(NodeId(0), NodeId(3)), 17);
    assert_eq!(found.distance(NodeId(2), NodeId(2)), 10);
    assert_eq!(found.distance(NodeId(2), NodeId(5)), REMOTE);
    assert!(found.binds());
}

#[test]
fn every_processor_has_a_closest_node_with_memory() {
    let found = MachineNodes::of(&machine()).unwrap();
    let closest: Vec<u32> = (0..6).map(|cpu| found.closest_to(Some(cpu)).0).collect();
    // Processor 4 is on a node without memory; there is no processor 5.
    assert_eq!(closest, [0, 0, 2, 2, 2, 0]);
    assert_eq!(found.closest_to(None), NodeId(0));
}

#[test]
fn a_machine_with_all_memory_on_one_node_has_no_placement() {
    let mut topology = machine();
    topology.nodes.retain(|node| matches!(node.number, 0 | 5));
    assert_eq!(MachineNodes::of(&topology), None);
    assert_eq!(MachineNodes::of(&Topology::default()), None);
}

#[test]
fn missing_distances_are_remote() {
    let nodes = vec![node(0, &[0], 8, &[]), node(1, &[1], 8, &[])];
    let found = MachineNodes::of(&Topology { nodes, ..Topology::default() }).unwrap();
    assert_eq!((found.distance(NodeId(1), NodeId(1)), found.distance(NodeId(1), NodeId(0))), (10, REMOTE));
}

#[test]
fn a_node_keeps_a_reserve_free() {
    let found = MachineNodes::of(&machine()).unwrap();
    // A thirty-second of 1 GiB is 32 MiB.
    assert_eq!(found.check_available(NodeId(0), 8 << 20, 40 << 20), Ok(()));
    let refused = found.check_available(NodeId(0), (8 << 20) + 1, 40 << 20).unwrap_err();
    assert_eq!(refused, AdmitError { node: NodeId(0), bytes: (8 << 20) + 1, available: 8 << 20 });
    assert!(found.check_available(NodeId(0), 1, 0).is_err());
}

#[test]
fn reserved_huge_pages_are_left_to_the_kernel() {
    let found = MachineNodes::of(&machine()).unwrap();
    assert_eq!(found.admit(NodeId(0), usize::MAX, Backing::Huge1G), Ok(()));
    assert_eq!(found.admit(NodeId(0), usize::MAX, Backing::Huge2M), Ok(()));
}

#[test]
fn the_default_placement_follows_the_machine() {
    let several = matches!(MachineNodes::find(), Ok(Some(_)));
    let config = PoolConfig::default();
    assert_eq!(config.placement.binds(), several);
    assert_eq!(config.placement.nodes().len() > 1, several);
}

/// The machine above with a chosen current processor and chosen available memory per node.
#[derive(Debug)]
struct SimulatedMachine {
    machine: MachineNodes,
    cpu: usize,
    available: [(u32, u64); 3],
}

impl NodePlacement for SimulatedMachine {
    fn nodes(&self) -> Vec<NodeId> {
        self.machine.nodes()
    }

    fn current(&self) -> NodeId {
        self.machine.closest_to(Some(self.cpu))
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        self.machine.distance(from, to)
    }

    fn admit(&self, node: NodeId, bytes: usize, _backing: Backing) -> Result<(), AdmitError> {
        let spare =
            self.available.iter().find(|(number, _)| *number == node.0).map_or(0, |(_, spare)| *spare);
        self.machine.check_available(node, bytes, spare)
    }
}

fn pool(cpu: usize, spare: [(u32, u64); 3]) -> Pool {
    let machine = MachineNodes::of(&machine()).unwrap();
    Pool::open(PoolConfig {
        chunk: 64 << 10,
        chunk_rule: ChunkRule::Fixed,
        cap: 1 << 20,
        backing: BackingOrder::only(Backing::Small),
        cache_per_mille: 0,
        placement: Arc::new(SimulatedMachine { machine, cpu, available: spare }),
        ..PoolConfig::default()
    })
    .unwrap()
}

const PLENTY: u64 = 1 << 30;

#[test]
fn memory_is_local_while_available_and_then_from_the_closest_node() {
    for (spare, expected) in [
        ([(0, PLENTY), (2, PLENTY), (3, PLENTY)], 0),
        ([(0, 0), (2, PLENTY), (3, PLENTY)], 3),
        ([(0, 0), (2, PLENTY), (3, 0)], 2),
    ] {
        let pool = pool(1, spare);
        let held = pool.buffer(4_096).unwrap();
        assert_eq!(pool.lookup(held.as_ptr()).unwrap().node, NodeId(expected), "{spare:?}");
    }
}

#[test]
fn a_request_for_a_named_node_uses_no_other() {
    let pool = pool(0, [(0, PLENTY), (2, 0), (3, PLENTY)]);
    let refused = pool.allocate(&PoolRequest::bytes(4_096).on(NodeId(2))).unwrap_err();
    assert!(matches!(refused, PoolError::Place(AdmitError { node: NodeId(2), .. })), "{refused}");
    let unknown = pool.allocate(&PoolRequest::bytes(4_096).on(NodeId(5))).unwrap_err();
    assert_eq!(unknown, PoolError::NoSuchNode { node: NodeId(5) });
}
