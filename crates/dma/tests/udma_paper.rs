//! Regression tests for the errors of the paper's two algorithms, line by line of Algorithm 1 (allocation) and
//! Algorithm 2 (release) of "uDMA"; each is named after its line and the correct behaviour.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails at the first unexpected result")]

use headwater_dma::buffer::PoolAllocation;
use headwater_dma::pool::{
    ChunkRule, NodeId, PinError, PinTier, Pool, PoolConfig, PoolError, PoolRequest, SimulatedPinner,
};
use headwater_host::clock::Nanos;
use headwater_host::reservation::{AdoptError, Backing, BackingOrder};
use std::sync::Arc;

const KIB: usize = 1 << 10;
const CHUNK: usize = 256 * KIB;

/// Opens a pool of small chunks, without caches, pinned and timed by a simulation in which chunks are not merged.
fn pool_with(cap: usize, min_idle: usize) -> (Pool, Arc<SimulatedPinner>) {
    let pinner = Arc::new(SimulatedPinner::default());
    let config = PoolConfig {
        chunk: CHUNK,
        chunk_rule: ChunkRule::Fixed,
        cap,
        idle: Nanos(1_000),
        min_idle,
        backing: BackingOrder::only(Backing::Small),
        pinner: pinner.clone(),
        clock: pinner.clone(),
        cache_per_mille: 0,
        ..PoolConfig::default()
    };
    (Pool::open(config).unwrap(), pinner)
}

fn pool(cap: usize) -> (Pool, Arc<SimulatedPinner>) {
    pool_with(cap, 0)
}

fn allocate_bytes(pool: &Pool, bytes: usize) -> Result<PoolAllocation, PoolError> {
    pool.allocate(&PoolRequest::bytes(bytes))
}

fn scattered(pool: &Pool, bytes: usize, segments_max: u32) -> Result<PoolAllocation, PoolError> {
    pool.allocate(&PoolRequest::bytes(bytes).scattered(segments_max))
}

/// Fills the pool with buffers of `bytes` bytes, in the order of their addresses.
fn fill(pool: &Pool, bytes: usize) -> Vec<PoolAllocation> {
    let mut held: Vec<PoolAllocation> = std::iter::from_fn(|| allocate_bytes(pool, bytes).ok()).collect();
    held.sort_by_key(|payload| payload.pieces().next().map(|piece| piece.as_ptr().addr()));
    held
}

/// Frees every other buffer.
fn free_every_other(held: Vec<PoolAllocation>) -> Vec<PoolAllocation> {
    held.into_iter().step_by(2).collect()
}

#[test]
fn algorithm_1_line_1_a_pool_exists_before_its_first_chunk_and_grows_on_one_path() {
    let (pool, pinner) = pool(4 * CHUNK);
    assert_eq!((pinner.pinned_bytes(), pool.statistics().steps.total()), (0, 0));
    let first = allocate_bytes(&pool, 4 * KIB).unwrap();
    let second = allocate_bytes(&pool, CHUNK).unwrap();
    assert_eq!(pool.statistics().steps.grown, 2);
    drop((first, second));
    // Empty again, it is the same pool: the next request does not grow it.
    drop(allocate_bytes(&pool, 4 * KIB).unwrap());
    assert_eq!((pool.statistics().steps.grown, pool.statistics().steps.contiguous), (2, 1));
}

#[test]
fn algorithm_1_line_2_the_first_chunk_respects_the_cap() {
    let (pool, pinner) = pool(CHUNK);
    assert_eq!(
        allocate_bytes(&pool, CHUNK + 1).unwrap_err(),
        PoolError::OverCap { bytes: CHUNK + 1, max: CHUNK }
    );
    assert_eq!(pinner.pinned_bytes(), 0);
}

#[test]
fn algorithm_1_line_2_the_first_request_may_be_larger_than_a_chunk() {
    let (pool, _) = pool(8 * CHUNK);
    assert_eq!(allocate_bytes(&pool, 3 * CHUNK + 1).unwrap().bytes(), 3 * CHUNK + 1);
}

#[test]
fn algorithm_1_line_2_a_refused_pin_is_a_typed_error_and_takes_nothing() {
    for (errno, error) in [
        (1, PinError::NotPermitted { bytes: CHUNK }),
        (11, PinError::Again { bytes: CHUNK }),
        (12, PinError::LimitReached { bytes: CHUNK }),
    ] {
        let (pool, pinner) = pool(4 * CHUNK);
        pinner.refuse(errno, 0);
        assert_eq!(allocate_bytes(&pool, 4 * KIB).unwrap_err(), PoolError::Pin(error));
        assert_eq!((pinner.pinned_bytes(), pool.statistics().tier_bytes), (0, [0; 3]));
        assert!(allocate_bytes(&pool, 4 * KIB).is_ok(), "the next one is not refused");
    }
}

#[test]
fn algorithm_1_lines_4_and_19_a_failed_search_is_an_error_not_an_address() {
    let (pool, _) = pool(CHUNK);
    let _all = allocate_bytes(&pool, CHUNK).unwrap();
    assert!(matches!(allocate_bytes(&pool, 1), Err(PoolError::WouldBlock { bytes: 1, waiting: 0 })));
}

#[test]
fn algorithm_1_line_8_the_smallest_sufficient_hole_is_taken_not_the_first_chunk() {
    let (pool, _) = pool(8 * CHUNK);
    let mut held: Vec<Option<PoolAllocation>> = fill(&pool, 16 * KIB).into_iter().map(Some).collect();
    // A hole of 64 KiB in the first chunk and one of 16 KiB in the last.
    let last = held.len() - 1;
    let address = |payload: &PoolAllocation| payload.pieces().next().unwrap().as_ptr();
    let tight = address(held[last].as_ref().unwrap());
    for index in [4, 5, 6, 7, last] {
        held[index] = None;
    }
    assert_eq!(address(&allocate_bytes(&pool, 16 * KIB).unwrap()), tight);
}

#[test]
fn algorithm_1_line_9_an_exact_fit_is_a_fit() {
    let (pool, _) = pool(CHUNK);
    drop(allocate_bytes(&pool, CHUNK).unwrap());
    drop(allocate_bytes(&pool, CHUNK).unwrap());
    assert_eq!(pool.statistics().grown_chunks, 1, "an empty chunk serves a request of its own size");
}

#[test]
fn algorithm_1_line_9_scattered_free_bytes_are_not_a_contiguous_run() {
    let (pool, _) = pool(CHUNK);
    let _held = free_every_other(fill(&pool, 4 * KIB));
    assert_eq!(pool.statistics().nodes[0].free_bytes, CHUNK as u64 / 2);
    assert!(matches!(allocate_bytes(&pool, 8 * KIB), Err(PoolError::WouldBlock { .. })));
    let pieces = scattered(&pool, CHUNK / 2, 32).unwrap();
    assert_eq!(pieces.pieces().count(), 32);
    drop(pieces);
    assert!(matches!(scattered(&pool, CHUNK / 2, 31), Err(PoolError::WouldBlock { .. })));
}

#[test]
fn algorithm_1_lines_8_to_13_scatter_gather_uses_pieces_of_several_chunks_before_growing() {
    let (pool, _) = pool(4 * CHUNK);
    let half = CHUNK / 2;
    let mut halves = fill(&pool, half);
    assert_eq!(halves.len(), 8);
    halves.truncate(7);
    let _held = free_every_other(halves);
    let before = pool.statistics();
    let joined = scattered(&pool, 4 * half, 8).unwrap();
    assert_eq!((joined.pieces().count(), joined.bytes()), (4, 4 * half));
    let after = pool.statistics();
    assert_eq!((after.grown_chunks, after.steps.scattered), (before.grown_chunks, 1));
}

#[test]
fn algorithm_1_lines_6_12_and_22_every_piece_is_returned_and_prp_legal() {
    let (pool, _) = pool(2 * CHUNK);
    let _held = free_every_other(fill(&pool, 12 * KIB));
    let bytes = 50 * KIB + 7;
    let lent = scattered(&pool, bytes, 64).unwrap().lend();
    let segments = lent.segments();
    assert!(segments.len() > 1);
    assert_eq!(segments.iter().map(|segment| segment.bytes).sum::<usize>(), bytes);
    let (last, front) = segments.split_last().unwrap();
    assert!(segments.iter().all(|segment| segment.address.is_multiple_of(4 * KIB)));
    assert!(segments.iter().all(|segment| segment.iova.unwrap().is_multiple_of(4_096)));
    assert!(front.iter().all(|segment| segment.bytes.is_multiple_of(4 * KIB)));
    assert!(last.bytes > 0);
    let (payload, answer) = lent.complete(Ok::<u8, ()>(1));
    assert_eq!((payload.bytes(), answer), (bytes, Ok(1)));
}

#[test]
fn algorithm_1_line_15_a_chunk_is_as_large_as_its_request() {
    let (pool, pinner) = pool(8 * CHUNK);
    let large = allocate_bytes(&pool, 2 * CHUNK + 1).unwrap();
    assert_eq!(pinner.pinned_bytes(), 3 * CHUNK);
    assert_eq!(large.pieces().count(), 1);
}

#[test]
fn algorithm_1_line_15_the_cap_check_includes_the_chunk_to_be_pinned() {
    let (pool, pinner) = pool(4 * CHUNK);
    let _first = allocate_bytes(&pool, 2 * CHUNK).unwrap();
    assert!(matches!(allocate_bytes(&pool, 3 * CHUNK), Err(PoolError::WouldBlock { .. })));
    let _second = allocate_bytes(&pool, 2 * CHUNK).unwrap();
    assert_eq!(pinner.pinned_bytes(), 4 * CHUNK);
}

#[test]
fn algorithm_1_lines_15_and_16_at_the_cap_idle_chunks_are_retired() {
    let (pool, pinner) = pool(4 * CHUNK);
    let small = fill(&pool, CHUNK);
    assert_eq!(small.len(), 4);
    drop(small);
    assert_eq!(pinner.pinned_bytes(), 4 * CHUNK);
    // Chunks of this device are not merged, so a larger run needs its own chunk.
    let large = allocate_bytes(&pool, 3 * CHUNK).unwrap();
    assert_eq!((large.bytes(), pinner.pinned_bytes()), (3 * CHUNK, 4 * CHUNK));
}

#[test]
fn algorithm_1_line_16_at_the_cap_a_request_may_wait_instead_of_getting_null() {
    let (pool, pinner) = pool(CHUNK);
    let all = allocate_bytes(&pool, CHUNK).unwrap();
    let mut waiter = pool.enqueue(&PoolRequest::bytes(CHUNK)).unwrap();
    assert!(waiter.poll(Nanos(0)).is_none());
    drop(all);
    assert_eq!(waiter.poll(Nanos(0)).unwrap().unwrap().bytes(), CHUNK);
    assert_eq!(pinner.pinned_bytes(), CHUNK);
    let never = pool.allocate_within(&PoolRequest::bytes(2 * CHUNK), Nanos::ZERO).unwrap_err();
    assert!(matches!(never, PoolError::OverCap { .. }), "a request that can never be served does not wait");
}

#[test]
fn algorithm_1_line_15_the_cap_counts_the_other_tiers() {
    let (pool, _) = pool(4 * CHUNK);
    let statics = pool.charge(PinTier::Static, CHUNK).unwrap();
    let dynamic = pool.charge(PinTier::Dynamic, CHUNK).unwrap();
    let held = fill(&pool, CHUNK);
    assert_eq!(held.len(), 2);
    assert!(pool.charge(PinTier::Dynamic, 1).is_err());
    let chunk = CHUNK as u64;
    assert_eq!(pool.statistics().tier_bytes, [chunk, 2 * chunk, chunk]);
    let most = 3 * CHUNK;
    assert_eq!(
        allocate_bytes(&pool, most + 1).unwrap_err(),
        PoolError::OverCap { bytes: most + 1, max: most }
    );
    drop(dynamic);
    assert!(allocate_bytes(&pool, CHUNK).is_ok());
    assert_eq!((statics.bytes(), statics.tier()), (CHUNK, PinTier::Static));
}

#[test]
fn algorithm_1_lines_19_and_20_a_chunk_is_visible_only_when_pinned() {
    let (pool, pinner) = pool(64 * CHUNK);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..50 {
                    let mut buffer = pool.buffer(CHUNK).unwrap();
                    buffer.fill(thread);
                    assert!(buffer.iter().all(|&byte| byte == thread));
                    let lent = buffer.lend();
                    assert!(lent.segments()[0].iova.is_some());
                    drop(lent.complete(Ok::<(), ()>(())));
                }
            });
        }
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.in_use_bytes, statistics.tier_bytes[1]), (0, pinner.pinned_bytes() as u64));
}

#[test]
fn algorithm_1_a_request_specifies_alignment_zeroing_and_node() {
    let (pool, _) = pool(4 * CHUNK);
    pool.buffer(CHUNK).unwrap().fill(0xff);
    let request = PoolRequest::bytes(8 * KIB).aligned(64 * KIB).zeroed().on(NodeId(0));
    let buffer = pool.allocate(&request).unwrap().into_contiguous().unwrap();
    assert_eq!(buffer.as_ptr().addr() % (64 * KIB), 0);
    assert!(buffer.iter().all(|&byte| byte == 0));
    let nowhere = pool.allocate(&PoolRequest::bytes(1).on(NodeId(7))).unwrap_err();
    assert_eq!(nowhere, PoolError::NoSuchNode { node: NodeId(7) });
}

#[test]
fn algorithm_2_lines_1_to_4_foreign_interior_and_double_frees_are_distinguished() {
    let (pool, _) = pool(4 * CHUNK);
    let adopt = |address: *const u8| pool.adopt(address).map(drop).unwrap_err();
    let owned = pool.buffer(8 * KIB).unwrap();
    let raw = pool.buffer(8 * KIB).unwrap().leak().as_ptr().cast_const();
    let elsewhere = 7_u8;
    assert_eq!(adopt(&raw const elsewhere), PoolError::Adopt(AdoptError::Outside));
    assert_eq!(adopt(raw.wrapping_add(1)), PoolError::Adopt(AdoptError::Interior));
    assert_eq!(adopt(raw.wrapping_add(4_096)), PoolError::Adopt(AdoptError::Interior));
    assert_eq!(adopt(owned.as_ptr()), PoolError::Adopt(AdoptError::NotLeaked));
    drop(pool.adopt(raw).unwrap());
    assert_eq!(adopt(raw), PoolError::Adopt(AdoptError::DoubleFree));
    drop(owned);
    assert_eq!(pool.statistics().in_use_bytes, 0);
}

#[test]
fn algorithm_2_line_5_memory_lent_to_a_device_cannot_be_freed() {
    let (pool, _) = pool(CHUNK);
    // Only a completion returns it; a dropped one is quarantined, not freed.
    drop(pool.buffer(CHUNK / 2).unwrap().lend());
    let statistics = pool.statistics();
    let half = CHUNK as u64 / 2;
    assert_eq!((statistics.quarantined_buffers, statistics.quarantined_bytes), (1, half));
    assert_eq!(statistics.in_use_bytes, half);
    assert!(allocate_bytes(&pool, CHUNK / 2 + 1).is_err());
    let (back, answer) = pool.buffer(CHUNK / 2).unwrap().lend().complete(Err::<(), _>("aborted"));
    assert_eq!((back.len(), answer), (CHUNK / 2, Err("aborted")));
}

/// Returns the longest free run after the four quarters of a chunk were freed in some order.
fn after_freeing_in_order(order: [usize; 4]) -> u64 {
    let (pool, _) = pool(CHUNK);
    let mut quarters: Vec<Option<PoolAllocation>> = fill(&pool, CHUNK / 4).into_iter().map(Some).collect();
    assert_eq!(quarters.len(), 4);
    for index in order {
        quarters[index] = None;
    }
    pool.statistics().nodes[0].largest_free_bytes
}

#[test]
fn algorithm_2_line_7_the_region_before_is_merged() {
    assert_eq!(after_freeing_in_order([0, 1, 2, 3]), CHUNK as u64);
}

#[test]
fn algorithm_2_line_14_the_region_after_is_merged() {
    assert_eq!(after_freeing_in_order([3, 2, 1, 0]), CHUNK as u64);
}

#[test]
fn algorithm_2_line_15_merging_continues_from_the_merged_region() {
    assert_eq!(after_freeing_in_order([0, 2, 1, 3]), CHUNK as u64);
}

#[test]
fn algorithm_2_line_18_the_region_in_front_grows() {
    assert_eq!(after_freeing_in_order([1, 3, 2, 0]), CHUNK as u64);
}

#[test]
fn algorithm_2_lines_9_and_16_merging_stops_at_a_chunk_that_must_not_be_merged() {
    let (pool, _) = pool(2 * CHUNK);
    drop(fill(&pool, CHUNK));
    let node = &pool.statistics().nodes[0];
    assert_eq!((node.largest_free_bytes, node.free_bytes), (CHUNK as u64, 2 * CHUNK as u64));
}

#[test]
fn algorithm_2_line_21_an_idle_chunk_is_retired_without_a_free() {
    let (pool, pinner) = pool(4 * CHUNK);
    drop(fill(&pool, CHUNK));
    // When the buffers are freed, no chunk has been idle yet.
    pool.tick(Nanos(10_000));
    pool.tick(Nanos(10_999));
    assert_eq!(pinner.pinned_bytes(), 4 * CHUNK);
    for now in (11_000..=12_000).step_by(250) {
        pool.tick(Nanos(now));
    }
    assert_eq!(pinner.pinned_bytes(), 0);
}

#[test]
fn algorithm_2_lines_21_to_23_idle_chunks_are_retired_gradually_down_to_the_floor() {
    let (pool, pinner) = pool_with(8 * CHUNK, CHUNK);
    drop(fill(&pool, CHUNK));
    let mut steps = Vec::new();
    for now in (0..=2_000).step_by(125) {
        pool.tick(Nanos(now));
        steps.push(pinner.pinned_bytes() / CHUNK);
    }
    assert_eq!(steps[..8], [8; 8], "no chunk is retired before the idle time");
    assert!(steps.windows(2).all(|pair| pair[1] + 4 >= pair[0]), "retired gradually: {steps:?}");
    assert_eq!(steps.last(), Some(&1), "the floor stays: {steps:?}");
}

#[test]
fn algorithm_2_a_scattered_payload_is_freed_completely() {
    let (pool, _) = pool(CHUNK);
    let held = free_every_other(fill(&pool, 4 * KIB));
    let pieces = scattered(&pool, 64 * KIB, 64).unwrap();
    drop(held);
    assert_eq!(pool.statistics().in_use_bytes, 64 * KIB as u64);
    drop(pieces);
    let statistics = pool.statistics();
    assert_eq!((statistics.in_use_bytes, statistics.nodes[0].largest_free_bytes), (0, CHUNK as u64));
}

#[test]
fn algorithm_2_output_freeing_an_owned_buffer_cannot_fail() {
    let (pool, pinner) = pool(CHUNK);
    let buffer = pool.buffer(CHUNK).unwrap();
    drop(pool);
    // The pool may already be closed; its memory is released with the last buffer.
    assert_eq!((buffer.len(), pinner.pinned_bytes()), (CHUNK, CHUNK));
    drop(buffer);
    assert_eq!(pinner.pinned_bytes(), 0);
}
