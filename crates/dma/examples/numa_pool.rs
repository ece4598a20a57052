//! A check of a pool over the memory nodes of this machine, against the kernel's placement of its pages.
//!
//! Input: the check to run. Output: a report, or an error for the first page on a wrong node. It needs two nodes with
//! memory and processors; `huge-2m` needs four free pages of 2 MiB on each, `huge-1g` one of 1 GiB on the first node.
//!
//! `numa_pool nodes|local|spill|huge-2m|huge-1g`
#![expect(clippy::print_stdout, reason = "this program reports its observations")]

use headwater_dma::buffer::{PoolAllocation, PoolBuffer};
use headwater_dma::pool::{
    ChunkRule, MachineNodes, NodeId, NodePlacement, Pool, PoolConfig, PoolError, PoolRequest,
};
use headwater_host::numa;
use headwater_host::pinning::MemoryRange;
use headwater_host::reservation::{Backing, BackingOrder, PAGE_BYTES};
use headwater_host::topology::{Topology, pin_current_thread};
use std::error::Error;

type CheckOutcome = Result<(), Box<dyn Error>>;

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn pool(cap: usize, chunk: usize, backing: BackingOrder) -> Result<Pool, PoolError> {
    let config = PoolConfig {
        chunk,
        chunk_rule: ChunkRule::Fixed,
        cap,
        backing,
        cache_per_mille: 0,
        ..PoolConfig::default()
    };
    Pool::open(config)
}

fn allocate_on(pool: &Pool, bytes: usize, node: Option<NodeId>) -> Result<PoolBuffer, PoolError> {
    let request = PoolRequest { node, ..PoolRequest::bytes(bytes) };
    match pool.allocate(&request)? {
        PoolAllocation::Contiguous(buffer) => Ok(buffer),
        PoolAllocation::Scattered(_) => unreachable!("scatter/gather was not allowed"),
    }
}

/// Checks that the kernel and the pool both place every page of a buffer on this node.
fn check_node(pool: &Pool, buffer: &mut PoolBuffer, node: NodeId) -> CheckOutcome {
    buffer.fill(0x5a);
    for page in buffer.chunks(PAGE_BYTES) {
        let found = numa::node_of(MemoryRange::at(page.as_ptr().addr(), PAGE_BYTES));
        if found != Some(node) {
            return Err(format!("a page is on {found:?}, not on node {node}").into());
        }
    }
    let known = pool.lookup(buffer.as_ptr()).map(|found| found.node);
    if known == Some(node) { Ok(()) } else { Err(format!("the pool says {known:?}, not {node}").into()) }
}

/// Moves this thread to a processor of a node.
fn move_to_node(node: NodeId) -> CheckOutcome {
    let topology = Topology::read();
    let home = topology.nodes.iter().find(|known| known.number == node.0).ok_or("no such node")?;
    Ok(pin_current_thread(*home.cpus.first().ok_or("the node has no processor")?)?)
}

fn nodes() -> Result<MachineNodes, Box<dyn Error>> {
    Ok(MachineNodes::find()?.ok_or("this machine has one node of memory")?)
}

/// Returns the other nodes, the closest to `node` first.
fn other_nodes(found: &MachineNodes, node: NodeId) -> Vec<NodeId> {
    let mut sorted: Vec<_> = found.nodes().into_iter().filter(|&other| other != node).collect();
    sorted.sort_by_key(|&other| found.distance(node, other));
    sorted
}

fn print_nodes() -> CheckOutcome {
    let found = nodes()?;
    for from in found.nodes() {
        let far: Vec<u32> = found.nodes().into_iter().map(|to| found.distance(from, to)).collect();
        println!("node {from}: {:?} bytes to spare, distances {far:?}", numa::available_bytes(from));
    }
    if pool(GIB, 2 * MIB, BackingOrder::TRANSPARENT)?.config().placement.nodes() == found.nodes() {
        Ok(())
    } else {
        Err("a pool with the default placement does not use the nodes".into())
    }
}

fn local() -> CheckOutcome {
    let (found, pool) = (nodes()?, pool(GIB, 2 * MIB, BackingOrder::TRANSPARENT)?);
    for here in found.nodes() {
        move_to_node(here)?;
        check_node(&pool, &mut allocate_on(&pool, MIB, None)?, here)?;
        for named in found.nodes() {
            check_node(&pool, &mut allocate_on(&pool, MIB, Some(named))?, named)?;
        }
        println!("a thread on node {here} gets memory of its node, and of each node that it requests");
    }
    Ok(())
}

fn spill() -> CheckOutcome {
    let (found, pool) = (nodes()?, pool(GIB, 4 * MIB, BackingOrder::only(Backing::Small))?);
    let small = NodeId(1);
    move_to_node(small)?;
    let mut held = Vec::new();
    let refusal = loop {
        match allocate_on(&pool, 4 * MIB, Some(small)) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    println!("node {small} gave {} buffers of 4 MiB; then: {refusal}", held.len());
    if !matches!(refusal, PoolError::Place(_)) || held.len() < 4 {
        return Err("the node should have refused for lack of memory".into());
    }
    for buffer in &mut held {
        check_node(&pool, buffer, small)?;
    }
    let closest = *other_nodes(&found, small).first().ok_or("one node only")?;
    check_node(&pool, &mut allocate_on(&pool, 4 * MIB, None)?, closest)?;
    println!("without a requested node the next buffer came from node {closest}");
    Ok(())
}

/// Returns the bytes of chunks of one kind of page on a node.
fn backed_by(pool: &Pool, node: NodeId, backing: Backing) -> u64 {
    let statistics = pool.statistics();
    let place = Backing::ALL.iter().position(|&kind| kind == backing);
    let of = statistics.nodes.iter().find(|known| known.node == node);
    of.zip(place).map_or(0, |(node, place)| node.backing_bytes[place])
}

fn huge_2m() -> CheckOutcome {
    let (found, pool) = (nodes()?, pool(GIB, 2 * MIB, BackingOrder::only(Backing::Huge2M))?);
    for node in found.nodes() {
        let mut held = Vec::new();
        for count in 1..=4_u64 {
            let mut buffer = allocate_on(&pool, 2 * MIB, Some(node))?;
            check_node(&pool, &mut buffer, node)?;
            held.push(buffer);
            if backed_by(&pool, node, Backing::Huge2M) != count * 2 * MIB as u64 {
                return Err("the statistics report other pages".into());
            }
        }
        let refusal = allocate_on(&pool, 2 * MIB, Some(node))
            .err()
            .ok_or("a fifth page was allocated, but there are four")?;
        move_to_node(node)?;
        let closest = *other_nodes(&found, node).first().ok_or("one node only")?;
        // Chunks of the nodes visited before are empty, so the closest node always has room.
        check_node(&pool, &mut allocate_on(&pool, 2 * MIB, None)?, closest)?;
        println!("node {node}: 4 pages of 2 MiB, then node {closest}; a request for it: {refusal}");
    }
    Ok(())
}

fn huge_1g() -> CheckOutcome {
    let (found, pool) = (nodes()?, pool(GIB + 2 * MIB, GIB, BackingOrder::LARGEST)?);
    let first = *found.nodes().first().ok_or("no node")?;
    let mut whole = allocate_on(&pool, GIB, Some(first))?;
    check_node(&pool, &mut whole, first)?;
    // There is no other such page, and the cap leaves one of 2 MiB.
    let mut next = allocate_on(&pool, 2 * MIB, Some(first))?;
    check_node(&pool, &mut next, first)?;
    let kinds = Backing::ALL.map(|kind| backed_by(&pool, first, kind));
    println!("node {first}: {kinds:?} bytes in pages of each kind, the largest first");
    let expected = [GIB as u64, 2 * MIB as u64, 0, 0];
    if kinds == expected { Ok(()) } else { Err(format!("expected {expected:?}").into()) }
}

fn main() -> CheckOutcome {
    match std::env::args().nth(1).as_deref() {
        Some("nodes") => print_nodes(),
        Some("local") => local(),
        Some("spill") => spill(),
        Some("huge-2m") => huge_2m(),
        Some("huge-1g") => huge_1g(),
        _ => Err("numa_pool nodes|local|spill|huge-2m|huge-1g".into()),
    }
}
