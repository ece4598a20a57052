//! The tiers behind [`Pool::allocate`]: the tier of each length, the accounting, waiting, and the state after a refusal.

use super::*;
use headwater_host::mapped_region::MappedRegion;
use headwater_host::reservation::{Backing, BackingOrder};
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of the static tier: sixteen slots.
const STATIC: usize = 64 * KIB;
const LARGE: usize = (128 << 10) + 1;

/// A pinner that records pinned ranges and refuses on request.
#[derive(Debug, Default)]
struct RecordingPinner {
    pinned: Mutex<Vec<PinToken>>,
    refuse_pin: Mutex<Option<i32>>,
    refuse_unpin: Mutex<bool>,
}

impl MemoryPinner for RecordingPinner {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        if let Some(errno) = *self.refuse_pin.lock().unwrap() {
            return Err(PinError::from_errno(bytes, errno));
        }
        let token = PinToken { iova: Some(1 << 40), slot: Some(7), ..PinToken::at(address, bytes) };
        self.pinned.lock().unwrap().push(token);
        Ok(token)
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        if *self.refuse_unpin.lock().unwrap() {
            return Err(PinError::Short { bytes: token.bytes, unpinned: 0 });
        }
        let mut pinned = self.pinned.lock().unwrap();
        let at = pinned.iter().position(|have| *have == token).unwrap();
        pinned.swap_remove(at);
        Ok(())
    }
}

fn config() -> PoolConfig {
    PoolConfig {
        cap: 32 * MIB,
        chunk: 2 * MIB,
        chunk_rule: ChunkRule::Fixed,
        tiers: Some(TierThresholds::PAPER_5_2.into()),
        static_bytes: STATIC,
        backing: BackingOrder::only(Backing::Small),
        ..PoolConfig::default()
    }
}

fn pool_of(config: PoolConfig) -> (Pool, Arc<RecordingPinner>) {
    let pinner = Arc::new(RecordingPinner::default());
    (Pool::open(PoolConfig { pinner: Arc::clone(&pinner) as _, ..config }).unwrap(), pinner)
}

fn pool() -> (Pool, Arc<RecordingPinner>) {
    pool_of(config())
}

fn tier_bytes(pool: &Pool) -> [u64; 3] {
    pool.statistics().tier_bytes
}

fn served(pool: &Pool) -> [u64; 3] {
    pool.statistics().tiers.served
}

#[test]
fn each_length_uses_its_tier_and_the_cap_counts_all_tiers() {
    for cache_per_mille in [0, 50] {
        let (pool, pinner) = pool_of(PoolConfig { cache_per_mille, ..config() });
        assert_eq!(tier_bytes(&pool), [0; 3], "nothing is pinned before the first request");
        let small = pool.buffer(4 * KIB).unwrap();
        assert_eq!((tier_bytes(&pool), served(&pool)), ([STATIC as u64, 0, 0], [1, 0, 0]));
        let medium = [pool.buffer(4 * KIB + 1).unwrap(), pool.buffer(128 * KIB).unwrap()];
        assert_eq!((tier_bytes(&pool), served(&pool)), ([STATIC as u64, 2 << 20, 0], [1, 2, 0]));
        let large = pool.buffer(LARGE).unwrap();
        let pages = LARGE.next_multiple_of(4 * KIB);
        assert_eq!(tier_bytes(&pool), [STATIC as u64, 2 << 20, pages as u64], "exactly its pages are pinned");
        assert_eq!(served(&pool), [1, 2, 1]);
        assert!(pinner.pinned.lock().unwrap().iter().any(|token| token.bytes == pages));
        drop(large);
        assert_eq!(tier_bytes(&pool)[2], 0, "a large buffer is unpinned as it returns");
        drop((small, medium));
        // Again: from the caches, or from the arena; the tiers are the same, and nothing more is pinned.
        for bytes in [4 * KIB, 64 * KIB, 64 * KIB] {
            drop(pool.buffer(bytes).unwrap());
        }
        drop(pool.allocate(&PoolRequest::bytes(MIB)).unwrap());
        assert_eq!((served(&pool), tier_bytes(&pool)), ([2, 4, 2], [STATIC as u64, 2 << 20, 0]));
        pool.trim();
        assert_eq!(tier_bytes(&pool), [STATIC as u64, 0, 0], "the static tier stays pinned");
        drop(pool);
        assert_eq!(pinner.pinned.lock().unwrap().len(), 0, "closing unpins everything");
    }
}

#[test]
fn slots_of_the_static_tier_are_reused_and_more_requests_overflow_into_the_pool() {
    let (pool, _) = pool();
    let slots: Vec<_> = (0..16).map(|_| pool.buffer(4 * KIB).unwrap()).collect();
    let statistics = pool.statistics();
    assert_eq!((statistics.static_free_bytes, statistics.tiers.overflowed), (0, 0));
    assert_eq!(statistics.tier_bytes, [STATIC as u64, 0, 0]);
    let more = pool.buffer(100).unwrap();
    let statistics = pool.statistics();
    assert_eq!((statistics.tiers.overflowed, statistics.tiers.of(PinTier::Pool)), (1, 1));
    drop((slots, more));
    pool.trim();
    assert_eq!(
        (pool.statistics().static_free_bytes, tier_bytes(&pool)),
        (STATIC as u64, [STATIC as u64, 0, 0])
    );
}

#[test]
fn a_large_span_never_enters_a_cache_whatever_frees_it() {
    let (pool, pinner) = pool();
    let raw = pool.allocate_raw(&PoolRequest::bytes(160 * KIB)).unwrap();
    assert_eq!(tier_bytes(&pool)[2], 160 << 10);
    pool.free_raw(raw.as_ptr()).unwrap();
    let adopted = pool.adopt(pool.buffer(160 * KIB).unwrap().leak().as_ptr()).unwrap();
    assert_eq!(adopted.len(), 160 * KIB);
    drop(adopted);
    let pinned = pool.pin_for_request(4 * KIB).unwrap();
    assert_eq!(tier_bytes(&pool), [0, 0, 4 << 10], "also a small request, if it names the tier");
    drop(pinned);
    assert_eq!((tier_bytes(&pool), pinner.pinned.lock().unwrap().len()), ([0; 3], 0));
    assert_eq!(pool.statistics().cached_bytes, 0);
}

#[test]
fn memory_pinned_for_one_request_is_zero_and_bears_the_device_address() {
    let (pool, _) = pool();
    let mut buffer = pool.pin_for_request(LARGE).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
    buffer.fill(7);
    let lent = buffer.lend();
    let segment = lent.segments()[0];
    assert_eq!((segment.bytes, segment.iova, segment.slot), (LARGE, Some(1 << 40), Some((7, 0))));
    let (buffer, _) = lent.complete(Ok::<(), ()>(()));
    let (_memory, segment) = buffer.into_shared();
    assert_eq!(segment.iova, Some(1 << 40));
}

#[test]
fn blocks_of_the_static_tier_are_charged_to_it_as_long_as_they_live() {
    let (pool, _) = pool();
    let block = pool.allocate_in(PinTier::Static, &PoolRequest::bytes(MIB)).unwrap();
    assert_eq!(tier_bytes(&pool), [1 << 20, 0, 0]);
    assert!(matches!(pool.buffer(32 * MIB), Err(PoolError::OverCap { .. })), "no request can use its bytes");
    drop(block);
    assert_eq!(tier_bytes(&pool), [0; 3]);
}

#[test]
fn requests_of_all_tiers_and_imports_wait_in_one_order() {
    let (pool, _) = pool();
    let cap = 32 * MIB;
    let held = pool.buffer(cap).unwrap();
    let mut large = pool.enqueue(&PoolRequest::bytes(20 * MIB)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut import = pin!(pool.import_async(MappedRegion::zeroed(8 * MIB).unwrap()));
    assert!(import.as_mut().poll(&mut context).is_pending());
    let mut medium = pool.enqueue(&PoolRequest::bytes(64 * KIB)).unwrap();
    let mut small = pool.enqueue(&PoolRequest::bytes(KIB)).unwrap();
    let mut late = pool.enqueue(&PoolRequest::bytes(20 * MIB)).unwrap();
    let refused = pool.import(MappedRegion::zeroed(4 * KIB).unwrap()).map(|_| ()).unwrap_err().1;
    assert!(matches!(refused, DynamicError::Pool(PoolError::WouldBlock { waiting: 5, .. })), "{refused}");
    drop(held);
    let large = large.poll(Nanos(0)).unwrap().unwrap();
    let Poll::Ready(Ok(imported)) = import.as_mut().poll(&mut context) else {
        panic!("the second is served")
    };
    let (medium, small) = (medium.poll(Nanos(0)).unwrap().unwrap(), small.poll(Nanos(0)).unwrap().unwrap());
    assert!(late.poll(Nanos(0)).is_none(), "the cap has no room for the last");
    assert_eq!(tier_bytes(&pool), [STATIC as u64, 2 << 20, 28 << 20]);
    drop(large);
    assert_eq!(late.poll(Nanos(0)).unwrap().unwrap().bytes(), 20 * MIB);
    drop((imported, medium, small));
    let statistics = pool.statistics();
    assert_eq!((statistics.waiting, statistics.steps.waited, statistics.tiers.imported), (0, 5, 1));
}

#[test]
fn the_dynamic_tier_times_out_and_a_cancelled_import_lets_later_requests_proceed() {
    let (pool, _) = pool();
    let _held = pool.buffer(20 * MIB).unwrap();
    let late = pool.allocate_within(&PoolRequest::bytes(20 * MIB), Nanos::ZERO).unwrap_err();
    assert!(matches!(late, PoolError::Timeout { bytes: 20_971_520, .. }), "{late}");
    let memory = MappedRegion::zeroed(20 * MIB).unwrap();
    let (memory, late) = pool.import_within(memory, Nanos::ZERO).map(|_| ()).unwrap_err();
    assert!(matches!(late, DynamicError::Pool(PoolError::Timeout { .. })), "{late}");
    assert_eq!(memory.len(), 20 * MIB, "the caller has its memory back");
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut import = pin!(pool.import_async(memory));
        assert!(import.as_mut().poll(&mut context).is_pending());
        assert!(matches!(pool.buffer(KIB), Err(PoolError::WouldBlock { waiting: 1, .. })));
    }
    assert!(pool.buffer(KIB).is_ok());
    let statistics = pool.statistics();
    assert_eq!((statistics.waiting, statistics.cancelled), (0, 3));
}

#[test]
fn a_large_request_uses_free_memory_of_the_pool_if_the_cap_has_no_room() {
    let (pool, pinner) = pool_of(PoolConfig { cap: 4 * MIB, ..config() });
    let mut held: Vec<_> = (0..32).map(|_| pool.buffer(128 * KIB).unwrap()).collect();
    assert_eq!(tier_bytes(&pool), [0, 4 << 20, 0]);
    held.sort_by_key(|buffer| buffer.as_ptr().addr());
    let held: Vec<_> = held.into_iter().step_by(2).collect();
    let contiguous = pool.allocate(&PoolRequest::bytes(MIB)).unwrap_err();
    assert!(matches!(contiguous, PoolError::WouldBlock { .. }));
    let pieces = pool.allocate(&PoolRequest::bytes(MIB).scattered(8)).unwrap();
    assert_eq!((pieces.pieces().count(), pool.statistics().tiers.overflowed), (8, 1));
    drop((pieces, held));
    assert_eq!(pinner.pinned.lock().unwrap().len(), 2);
}

#[test]
fn the_chunk_size_that_follows_the_load_reaches_the_next_chunk() {
    let chunk_rule = ChunkRule::Adaptive { min: 64 * KIB, max: 8 * MIB };
    let (pool, pinner) = pool_of(PoolConfig { chunk: 64 * KIB, chunk_rule, ..config() });
    let held: Vec<_> = (0..160).map(|_| pool.buffer(64 * KIB).unwrap()).collect();
    let large = pool.buffer(8 * MIB).unwrap();
    assert!(
        pinner.pinned.lock().unwrap().iter().all(|token| token.bytes <= 64 << 10 || token.bytes == 8 << 20)
    );
    for tick in 0..60 {
        pool.tick(Nanos(tick));
    }
    // An eighth of 10 MiB, rounded up; the large buffer, which has its own chunk, does not count.
    assert_eq!(pool.statistics().chunk_bytes, 2 << 20);
    let more = pool.buffer(64 * KIB).unwrap();
    assert_eq!(pinner.pinned.lock().unwrap().last().unwrap().bytes, 2 << 20);
    drop((held, large, more));
}

#[test]
fn imported_memory_is_used_in_place_and_returned() {
    let (pool, pinner) = pool();
    let mut memory = MappedRegion::zeroed(1 << 20).unwrap();
    memory[5] = 55;
    let address = memory.as_ptr().addr();
    let pinned = pool.import(memory).unwrap();
    assert_eq!((tier_bytes(&pool), pool.statistics().tiers.imported), ([0, 0, 1 << 20], 1));
    let lent = pinned.lend();
    assert_eq!(lent.segments()[0].address, address);
    let (pinned, result) = lent.complete(Err::<(), _>("media"));
    assert_eq!(result, Err("media"), "a completion returns the memory also on error");
    let memory = pinned.into_memory().unwrap();
    assert_eq!((memory.as_ptr().addr(), memory[5]), (address, 55));
    assert_eq!((tier_bytes(&pool), pinner.pinned.lock().unwrap().len()), ([0; 3], 0));
}

#[test]
fn imports_of_partial_pages_are_refused_and_returned() {
    let (pool, _) = pool();
    let (memory, error) = pool.import(vec![1; 5_000]).map(|_| ()).unwrap_err();
    assert!(matches!(error, DynamicError::Misaligned { bytes: 5_000, .. }), "{error}");
    assert_eq!(memory.len(), 5_000);
    let (_, error) = pool.import(Vec::<u8>::new()).map(|_| ()).unwrap_err();
    assert_eq!(error, DynamicError::Empty);
    assert_eq!(pool.pin_for_request(0).map(|_| ()), Err(PoolError::Zero));
    assert!(matches!(pool.pin_for_request(usize::MAX), Err(PoolError::Overflow { .. })));
    assert_eq!(tier_bytes(&pool), [0; 3]);
}

#[test]
fn a_refused_pin_reports_the_reason_and_counts_nothing() {
    let (pool, pinner) = pool();
    for (errno, expected) in [
        (1, PinError::NotPermitted { bytes: 1 << 20 }),
        (12, PinError::LimitReached { bytes: 1 << 20 }),
        (11, PinError::Again { bytes: 1 << 20 }),
    ] {
        *pinner.refuse_pin.lock().unwrap() = Some(errno);
        assert_eq!(pool.buffer(1 << 20).map(|_| ()), Err(PoolError::Pin(expected)));
        let (memory, error) = pool.import(MappedRegion::zeroed(1 << 20).unwrap()).map(|_| ()).unwrap_err();
        assert_eq!(error, DynamicError::Pool(PoolError::Pin(expected)));
        assert_eq!(memory.len(), 1 << 20, "the caller has its memory back");
        assert!(matches!(pool.buffer(KIB), Err(PoolError::Pin(_))));
    }
    assert_eq!((tier_bytes(&pool), pool.statistics().tiers.imported), ([0; 3], 0));
    *pinner.refuse_pin.lock().unwrap() = None;
    drop(pool.buffer(KIB).unwrap());
    assert_eq!(
        tier_bytes(&pool)[PinTier::Static as usize],
        0,
        "a static tier that was refused is not tried again"
    );
}

#[test]
fn large_requests_above_the_cap_are_refused_and_at_the_cap_would_block() {
    let (pool, _) = pool();
    let over = pool.pin_for_request(33 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(over, PoolError::OverCap { .. }), "{over}");
    let first = pool.pin_for_request(20 << 20).unwrap();
    let full = pool.pin_for_request(20 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(full, PoolError::WouldBlock { .. }), "{full}");
    drop(first);
    assert!(pool.pin_for_request(20 << 20).is_ok());
}

#[test]
fn memory_that_a_device_may_still_access_is_never_reused() {
    let (pool, pinner) = pool();
    // Lent and never completed.
    drop(pool.import(MappedRegion::zeroed(1 << 20).unwrap()).unwrap().lend());
    drop(pool.buffer(MIB).unwrap().lend());
    assert_eq!(tier_bytes(&pool)[2], 2 << 20);
    assert_eq!(pinner.pinned.lock().unwrap().len(), 2);
    // A device that unpins less than was pinned.
    let pinned = pool.import(MappedRegion::zeroed(1 << 20).unwrap()).unwrap();
    *pinner.refuse_unpin.lock().unwrap() = true;
    assert!(matches!(pinned.into_memory(), Err(PinError::Short { .. })));
    drop(pool.pin_for_request(1 << 20).unwrap());
    assert_eq!(tier_bytes(&pool)[2], 4 << 20);
}
