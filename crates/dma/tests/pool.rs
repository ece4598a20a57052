//! The pool against a model allocator, over failing nodes, with threads, and in a soak test.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails at the first unexpected result")]
#![expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]

use fastrand::Rng;
use headwater_dma::buffer::PoolAllocation;
use headwater_dma::pool::{
    AdmitError, ChunkRule, NodeId, NodePlacement, PinError, Pool, PoolConfig, PoolError, PoolRequest,
    SimulatedPinner, TierSetting, TierThresholds,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::reservation::{Backing, BackingOrder};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const CHUNK: usize = 256 * KIB;

/// Two nodes of the same memory, of which the second can be made to fail.
#[derive(Debug, Default)]
struct TwoNodes {
    broken: AtomicBool,
}

impl NodePlacement for TwoNodes {
    fn nodes(&self) -> Vec<NodeId> {
        vec![NodeId(0), NodeId(1)]
    }

    fn current(&self) -> NodeId {
        NodeId(1)
    }

    fn distance(&self, from: NodeId, to: NodeId) -> u32 {
        if from == to { 10 } else { 21 }
    }

    fn admit(&self, node: NodeId, bytes: usize, _backing: Backing) -> Result<(), AdmitError> {
        if node == NodeId(1) && self.broken.load(Ordering::Relaxed) {
            return Err(AdmitError { node, bytes, available: 0 });
        }
        Ok(())
    }
}

fn config(cap: usize) -> PoolConfig {
    PoolConfig {
        chunk: CHUNK,
        chunk_rule: ChunkRule::Fixed,
        cap,
        backing: BackingOrder::only(Backing::Small),
        ..PoolConfig::default()
    }
}

/// A payload with its own pattern in its first and last bytes.
struct HeldPayload {
    payload: PoolAllocation,
    mark: u64,
}

impl HeldPayload {
    fn new(mut payload: PoolAllocation, mark: u64) -> Self {
        for piece in payload.pieces_mut() {
            let end = piece.len() - 8.min(piece.len());
            piece[end..].fill(mark.to_le_bytes()[0]);
            let zone = piece.len().min(64);
            piece[..zone].fill(mark.to_le_bytes()[0]);
        }
        Self { payload, mark }
    }

    fn check(&self) {
        for piece in self.payload.pieces() {
            let zones = piece.iter().take(64).chain(piece.iter().rev().take(8));
            assert!(
                zones.into_iter().all(|&byte| byte == self.mark.to_le_bytes()[0]),
                "a held buffer changed"
            );
        }
    }
}

fn random_request(random: &mut Rng, most: usize) -> PoolRequest {
    let shift = random.u32(0..10);
    let bytes = random.usize(1..=most >> shift);
    match random.u32(0..8) {
        0 => PoolRequest::bytes(bytes).scattered(random.u32(1..16)),
        1 => PoolRequest::bytes(bytes).aligned(1 << random.u32(0..18)),
        2 => PoolRequest::bytes(bytes).zeroed(),
        _ => PoolRequest::bytes(bytes),
    }
}

#[test]
fn no_two_buffers_overlap_and_every_page_is_counted_over_random_histories() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    // Large requests have chunks of their own, and the static tier has fewer slots than there are small requests.
    let tiers = TierSetting::Limits(TierThresholds { small_max: 8 * KIB, large_min: 130 * KIB });
    for (per_mille, tiers, static_bytes) in
        [(0, None, 0), (50, None, 0), (0, Some(tiers), 96 * KIB), (50, Some(tiers), 96 * KIB)]
    {
        let cache = PoolConfig { cache_per_mille: per_mille, ..config(16 * CHUNK) };
        let pool = Pool::open(PoolConfig { tiers, static_bytes, ..cache }).unwrap();
        let mut held: Vec<HeldPayload> = Vec::new();
        for step in 0..4_000 {
            if random.u32(0..100) < 55 {
                let request = random_request(&mut random, MIB);
                match pool.allocate(&request) {
                    Ok(payload) => {
                        assert_eq!(payload.bytes(), request.bytes);
                        if request == request.zeroed() {
                            assert!(payload.pieces().flatten().all(|&byte| byte == 0));
                        }
                        held.push(HeldPayload::new(payload, step));
                    }
                    Err(error) => assert!(matches!(error, PoolError::WouldBlock { .. }), "{error}"),
                }
            } else if !held.is_empty() {
                held.swap_remove(random.usize(..held.len())).check();
            }
            if step % 100 == 0 {
                check_accounts(&pool, &held);
            }
        }
        held.iter().for_each(HeldPayload::check);
        drop(held);
        let statistics = pool.statistics();
        assert_eq!(statistics.in_use_bytes, 0, "nothing leaks");
        assert_eq!(statistics.tier_bytes[2], 0, "a large buffer is unpinned as it returns");
        assert_eq!(statistics.tier_bytes[0], static_bytes as u64);
        assert!(tiers.is_none() || statistics.tiers.served.iter().all(|&served| served > 0));
        assert!(statistics.cached_bytes <= statistics.cap_bytes / 1_000 * u64::from(per_mille));
    }
}

/// Checks the pool's counters against the held buffers, whose pages must not overlap.
fn check_accounts(pool: &Pool, held: &[HeldPayload]) {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for piece in held.iter().flat_map(|held| held.payload.pieces()) {
        let found = pool.lookup(piece.as_ptr()).unwrap();
        assert_eq!(found.offset, 0);
        runs.push((piece.as_ptr().addr(), found.buffer.unwrap().pages as usize * 4 * KIB));
    }
    runs.sort_unstable();
    assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "buffers overlap");
    let statistics = pool.statistics();
    let used: usize = runs.iter().map(|&(_, bytes)| bytes).sum();
    assert_eq!(statistics.in_use_bytes, used as u64);
    assert!(statistics.tier_bytes[1] <= statistics.cap_bytes);
    let node = &statistics.nodes[0];
    let free = node.free_bytes + statistics.static_free_bytes;
    assert_eq!(node.pinned_bytes, free + used as u64 + statistics.cached_bytes);
    assert_eq!(node.pinned_bytes, statistics.tier_bytes.iter().sum::<u64>());
}

#[test]
fn impossible_requests_are_typed_errors() {
    let pool = Pool::open(config(4 * CHUNK)).unwrap();
    let error = |request: PoolRequest| pool.allocate(&request).unwrap_err();
    assert_eq!(error(PoolRequest::bytes(0)), PoolError::Zero);
    assert_eq!(error(PoolRequest::bytes(usize::MAX)), PoolError::Overflow { bytes: usize::MAX });
    assert_eq!(error(PoolRequest::bytes(9).aligned(3)), PoolError::Align { align: 3, max: CHUNK });
    assert_eq!(error(PoolRequest::bytes(9).aligned(0)), PoolError::Align { align: 0, max: CHUNK });
    assert_eq!(
        error(PoolRequest::bytes(9).aligned(2 * CHUNK)),
        PoolError::Align { align: 2 * CHUNK, max: CHUNK }
    );
    assert_eq!(error(PoolRequest::bytes(9).scattered(0)), PoolError::NoSegments);
    // A page in the cache of the thread served it.
    drop(pool.buffer(9).unwrap());
    assert_eq!(error(PoolRequest::bytes(9).scattered(0)), PoolError::NoSegments);
    let over = PoolError::OverCap { bytes: 4 * CHUNK + 1, max: 4 * CHUNK };
    assert_eq!(error(PoolRequest::bytes(4 * CHUNK + 1)), over);
}

#[test]
fn impossible_configurations_are_typed_errors() {
    for wrong in [
        PoolConfig { chunk: 3 * CHUNK, ..config(4 * CHUNK) },
        PoolConfig { cap: 0, ..config(4 * CHUNK) },
        PoolConfig { cap: usize::MAX, ..config(4 * CHUNK) },
        PoolConfig { cache_per_mille: 51, ..config(4 * CHUNK) },
        // These bounds were accepted, and the first tick with bytes in use panicked.
        PoolConfig { chunk_rule: ChunkRule::Adaptive { min: 4 * CHUNK, max: CHUNK }, ..config(4 * CHUNK) },
        PoolConfig { tiers: Some(TierThresholds { small_max: 9, large_min: 9 }.into()), ..config(4 * CHUNK) },
        PoolConfig { static_bytes: 2 * CHUNK + 4 * KIB, ..config(4 * CHUNK) },
        PoolConfig { static_bytes: 100, ..config(4 * CHUNK) },
    ] {
        assert!(matches!(Pool::open(wrong), Err(PoolError::Config(_))));
    }
    assert_eq!(TierSetting::parse("paper-5.2"), Ok(TierThresholds::PAPER_5_2.into()));
}

#[test]
fn a_device_that_keeps_a_chunk_costs_only_that_chunk() {
    let pinner = Arc::new(SimulatedPinner::default());
    let pool = Pool::open(PoolConfig { pinner: pinner.clone(), ..config(4 * CHUNK) }).unwrap();
    drop(pool.buffer(CHUNK).unwrap());
    pinner.fail_unpins(headwater_dma::pool::UnpinFailure::Yes);
    pool.set_cap(CHUNK).unwrap();
    drop(pool.buffer(CHUNK).unwrap());
    pool.tick(Nanos(0));
    pool.tick(Nanos(u64::MAX));
    let statistics = pool.statistics();
    assert_eq!((statistics.stuck_bytes, statistics.tier_bytes[1]), (CHUNK as u64, CHUNK as u64));
    pool.set_cap(4 * CHUNK).unwrap();
    pinner.fail_unpins(headwater_dma::pool::UnpinFailure::No);
    assert!(pool.buffer(3 * CHUNK).is_ok());
    assert!(matches!(pool.buffer(4 * CHUNK), Err(PoolError::OverCap { .. })));
    let pin = PinError::from_errno(5, 17);
    assert_eq!(pin, PinError::Exists { bytes: 5 });
}

#[test]
fn a_failing_node_spills_to_the_next_unless_it_was_requested() {
    let nodes = Arc::new(TwoNodes::default());
    let pool = Pool::open(PoolConfig { placement: nodes.clone(), ..config(8 * CHUNK) }).unwrap();
    let node_of =
        |payload: &PoolAllocation| pool.lookup(payload.pieces().next().unwrap().as_ptr()).unwrap().node;
    assert_eq!(node_of(&pool.allocate(&PoolRequest::bytes(CHUNK)).unwrap()), NodeId(1), "local first");
    nodes.broken.store(true, Ordering::Relaxed);
    let local = pool.allocate(&PoolRequest::bytes(CHUNK)).unwrap();
    assert_eq!(node_of(&local), NodeId(1), "free memory of the node still serves");
    assert_eq!(node_of(&pool.allocate(&PoolRequest::bytes(CHUNK)).unwrap()), NodeId(0));
    let named = pool.allocate(&PoolRequest::bytes(CHUNK).on(NodeId(1))).unwrap_err();
    assert_eq!(named, PoolError::Place(AdmitError { node: NodeId(1), bytes: CHUNK, available: 0 }));
}

#[test]
fn a_waiting_large_request_is_served_before_later_small_ones() {
    let pool = Pool::open(config(4 * CHUNK)).unwrap();
    let first = pool.buffer(2 * CHUNK).unwrap();
    let second = pool.buffer(2 * CHUNK).unwrap();
    let mut large = pool.enqueue(&PoolRequest::bytes(4 * CHUNK)).unwrap();
    drop(first);
    assert!(matches!(pool.buffer(4 * KIB), Err(PoolError::WouldBlock { waiting: 1, .. })));
    let mut small = pool.enqueue(&PoolRequest::bytes(4 * KIB)).unwrap();
    assert!(small.poll(Nanos(0)).is_none());
    drop(second);
    assert!(small.poll(Nanos(0)).is_none());
    drop(large.poll(Nanos(0)).unwrap().unwrap());
    assert_eq!(small.poll(Nanos(0)).unwrap().unwrap().bytes(), 4 * KIB);
}

#[test]
fn a_cancelled_request_lets_later_ones_proceed() {
    let pool = Pool::open(config(4 * CHUNK)).unwrap();
    let _held = pool.buffer(2 * CHUNK).unwrap();
    let large = pool.enqueue(&PoolRequest::bytes(3 * CHUNK)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut small = pin!(pool.allocate_async(&PoolRequest::bytes(CHUNK)));
    assert!(small.as_mut().poll(&mut context).is_pending());
    drop(large);
    assert!(matches!(small.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    let mut late = pool.enqueue(&PoolRequest::bytes(4 * CHUNK)).unwrap().with_deadline(Nanos(5));
    assert!(late.poll(Nanos(4)).is_none());
    assert!(matches!(late.poll(Nanos(5)), Some(Err(PoolError::Timeout { .. }))));
    let gave_up = pool.statistics();
    assert_eq!((gave_up.waiting, gave_up.cancelled), (0, 2));
}

#[test]
fn a_closed_pool_notifies_waiters_and_accepts_late_buffers() {
    let pinner = Arc::new(SimulatedPinner::default());
    let pool = Pool::open(PoolConfig { pinner: pinner.clone(), ..config(CHUNK) }).unwrap();
    let held = pool.buffer(CHUNK).unwrap();
    let mut waiter = pool.enqueue(&PoolRequest::bytes(CHUNK)).unwrap();
    drop(pool);
    assert!(matches!(waiter.poll(Nanos(0)), Some(Err(PoolError::Closed))));
    drop(held);
    assert_eq!(pinner.pinned_bytes(), 0);
}

#[test]
fn a_later_thread_gets_its_share_of_the_caches() {
    const COUNT: usize = 20;
    let pool = Pool::open(PoolConfig { cache_per_mille: 50, ..config(64 * CHUNK) }).unwrap();
    let fill = |count: usize| {
        let held: Vec<_> = (0..count).map(|_| pool.buffer(16 * KIB).unwrap()).collect();
        drop(held);
    };
    // This thread takes all the bytes that caches may hold.
    fill(100);
    let limit = pool.statistics().cap_bytes / 1_000 * 50;
    assert!(pool.statistics().cached_bytes > limit / 2);
    std::thread::scope(|scope| {
        let hits = scope.spawn(|| {
            fill(COUNT);
            let before = pool.statistics().steps.cache;
            fill(COUNT);
            pool.statistics().steps.cache - before
        });
        let hits = hits.join().unwrap();
        assert!(hits > COUNT as u64 / 2, "{hits} hits: the first thread keeps all caches to itself");
    });
    assert!(pool.statistics().cached_bytes <= limit);
}

#[test]
fn a_thread_that_ends_releases_its_cache() {
    let pool = Pool::open(config(16 * CHUNK)).unwrap();
    std::thread::scope(|scope| {
        // Joined by its handle: a scope alone does not wait for the thread-local destructors.
        scope.spawn(|| (0..50).for_each(|_| drop(pool.buffer(16 * KIB).unwrap()))).join().unwrap();
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.cached_bytes, statistics.in_use_bytes), (0, 0));
    assert!(statistics.steps.cache >= 45);
}

fn soak(span: Nanos) {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let nodes = Arc::new(TwoNodes::default());
    let config = PoolConfig {
        placement: nodes.clone(),
        idle: Nanos::from_millis(5),
        chunk_rule: ChunkRule::Adaptive { min: CHUNK, max: 4 * CHUNK },
        tiers: Some(TierThresholds { small_max: 4 * KIB, large_min: 600 * KIB }.into()),
        static_bytes: 32 * KIB,
        ..config(32 * CHUNK)
    };
    let pool = Pool::open(config).unwrap();
    let ticker = pool.ticker().unwrap();
    let clock = Clock::start();
    let (served, marks) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| {
            let (pool, served, marks) = (&pool, &served, &marks);
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed + thread);
                let mut held: Vec<HeldPayload> = Vec::new();
                while clock.now() < span {
                    let request = random_request(&mut random, 2 * MIB);
                    let got = match random.u32(0..6) {
                        0 => pool.allocate_within(&request, Nanos::from_micros(random.u64(0..500))).ok(),
                        1 => {
                            let mut waiter = pool.enqueue(&request).unwrap();
                            waiter.poll(Nanos(0)).transpose().unwrap()
                        }
                        _ => pool.allocate(&request).ok(),
                    };
                    if let Some(payload) = got {
                        served.fetch_add(1, Ordering::Relaxed);
                        held.push(HeldPayload::new(payload, marks.fetch_add(1, Ordering::Relaxed)));
                    }
                    while held.len() > random.usize(0..24) {
                        held.swap_remove(random.usize(..held.len())).check();
                    }
                }
            })
        });
        let changes = scope.spawn(|| {
            let mut random = Rng::with_seed(seed ^ 1);
            while clock.now() < span {
                pool.set_cap(random.usize(12..=32) * CHUNK).unwrap();
                nodes.broken.store(random.bool(), Ordering::Relaxed);
                Clock::sleep(Nanos::from_millis(2));
            }
            nodes.broken.store(false, Ordering::Relaxed);
        });
        // Joined by their handles: a scope alone does not wait for the thread-local destructors.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        changes.join().unwrap();
    });
    drop(ticker);
    let statistics = pool.statistics();
    assert!(served.load(Ordering::Relaxed) > 0);
    assert_eq!((statistics.in_use_bytes, statistics.waiting, statistics.cached_bytes), (0, 0, 0));
    for now in 0..64 {
        pool.tick(Nanos(u64::MAX / 2 + now * 5_000_000));
    }
    let tier_bytes = pool.statistics().tier_bytes;
    assert_eq!(tier_bytes[1..], [0; 2], "unused memory is unpinned");
    assert!([0, 32 << 10, 64 << 10].contains(&tier_bytes[0]), "{tier_bytes:?}");
}

#[test]
fn threads_cancellations_cap_changes_and_a_failing_node_lose_nothing() {
    soak(Nanos::from_millis(300));
}

#[test]
#[ignore = "takes a minute: make soak"]
fn soak_threads_cancellations_cap_changes_and_a_failing_node_lose_nothing() {
    soak(Nanos::from_millis(60_000));
}
