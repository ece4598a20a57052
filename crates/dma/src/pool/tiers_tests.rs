//! The tier interface and the dynamic tier: the tier of each size, the accounting, and the state after a refusal.

use super::calibration::{ChoiceOrigin, TierChoice};
use super::dynamic::DynamicError;
use super::staging::{BatchLimits, ReadStart, StagingConfig};
use super::tiers::{TieredError, TieredMemory, TieredRead, TieredWrite};
use super::*;
use headwater_host::mapped_region::MappedRegion;
use std::sync::Mutex;

const NOW: Nanos = Nanos(1);
/// Two blocks for writes and one for reads, of four slots each.
const STAGING: StagingConfig = StagingConfig {
    write_blocks: 2,
    read_blocks: 1,
    block_bytes: 16_384,
    slot_bytes: 4_096,
    unit_bytes: 1,
    batch: BatchLimits { slots: 1, bytes: 1 << 20, age: Nanos::ZERO },
};
const STATIC_BYTES: u64 = 3 * 16_384;
const CHOICE: TierChoice = TierChoice {
    thresholds: TierThresholds::PAPER_5_2,
    import_min: Some((128 << 10) + 1),
    origin: ChoiceOrigin::Paper52,
};

/// A pinner that records pinned ranges and refuses on request.
#[derive(Debug, Default)]
struct RecordingPinner {
    pinned: Mutex<Vec<PinToken>>,
    refuse_pin: Mutex<Option<i32>>,
    refuse_unpin: Mutex<bool>,
}

impl MemoryPinner for RecordingPinner {
    fn name(&self) -> &'static str {
        "books"
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

fn pool() -> (Pool, Arc<RecordingPinner>) {
    let pinner = Arc::new(RecordingPinner::default());
    let config = PoolConfig { cap: 32 << 20, pinner: Arc::clone(&pinner) as _, ..PoolConfig::default() };
    (Pool::open(config).unwrap(), pinner)
}

fn tier_bytes(pool: &Pool, tier: PinTier) -> u64 {
    pool.statistics().tier_bytes[tier as usize]
}

#[test]
fn each_size_uses_its_tier_and_the_cap_counts_all_tiers() {
    let (pool, pinner) = pool();
    let mut tiers = TieredMemory::open(pool.clone(), CHOICE, &STAGING).unwrap();
    assert_eq!(tier_bytes(&pool, PinTier::Static), STATIC_BYTES);
    let mut write = |bytes: usize| tiers.write(NOW, 0, &vec![9; bytes], 0).unwrap();
    assert!(matches!(write(4_096), TieredWrite::Staged(_)));
    let TieredWrite::Pooled(medium) = write(4_097) else { panic!("4,097 bytes are medium") };
    assert_eq!(medium.pieces().map(<[u8]>::len).sum::<usize>(), 4_097);
    assert!(medium.pieces().flatten().all(|&byte| byte == 9));
    assert!(matches!(write(128 << 10), TieredWrite::Pooled(_)));
    let TieredWrite::Pinned(large) = write((128 << 10) + 1) else { panic!("above 128 KB is big") };
    assert!(large.iter().all(|&byte| byte == 9));
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), (128 << 10) + 4_096);
    drop(large);
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 0);
    drop(tiers);
    assert_eq!(tier_bytes(&pool, PinTier::Static), 0);
    drop(medium);
    drop(pool);
    assert_eq!(pinner.pinned.lock().unwrap().len(), 0, "everything is unpinned");
}

#[test]
fn a_small_write_is_drained_from_its_pinned_block_and_read_back() {
    let (pool, _) = pool();
    let mut tiers = TieredMemory::open(pool, CHOICE, &STAGING).unwrap();
    tiers.write(NOW, 100, b"staged", 5).unwrap();
    let mut bytes = [0; 6];
    assert!(matches!(tiers.read(100, &mut bytes).unwrap(), TieredRead::Small(ReadStart::Staged)));
    assert_eq!(&bytes, b"staged");
    let mut writes = Vec::new();
    assert_eq!(tiers.staging().drain(NOW, &mut writes), 1);
    let segment = tiers
        .staging()
        .write_memory(writes[0].location.block)
        .unwrap()
        .segment(writes[0].location.at, 6)
        .unwrap();
    assert_eq!((segment.bytes, segment.iova, segment.slot), (6, Some(1 << 40), Some((7, 0))));
    let done = tiers.staging().complete::<()>(writes[0].slot, Ok(())).unwrap();
    assert_eq!(done.tag, 5);
    assert!(matches!(tiers.read(100, &mut bytes).unwrap(), TieredRead::Small(ReadStart::Device { .. })));
    assert!(matches!(tiers.read(0, &mut vec![0; 8_192]).unwrap(), TieredRead::Pooled(_)));
    assert!(matches!(tiers.read(0, &mut vec![0; 1 << 20]).unwrap(), TieredRead::Pinned(_)));
}

#[test]
fn imported_memory_is_used_in_place_and_returned() {
    let (pool, pinner) = pool();
    let mut tiers = TieredMemory::open(pool.clone(), CHOICE, &STAGING).unwrap();
    let mut memory = MappedRegion::zeroed(1 << 20).unwrap();
    memory[5] = 55;
    let address = memory.as_ptr().addr();
    let Ok((TieredWrite::Imported(pinned), None)) = tiers.write_owned(NOW, 0, memory, 0) else {
        panic!("memory of this size is imported")
    };
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 1 << 20);
    let lent = pinned.lend();
    assert_eq!(lent.segments()[0].address, address);
    let (pinned, result) = lent.complete(Err::<(), _>("media"));
    assert_eq!(result, Err("media"), "a completion returns the memory also on error");
    let memory = pinned.into_memory().unwrap();
    assert_eq!((memory.as_ptr().addr(), memory[5]), (address, 55));
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 0);
    assert!(!pinner.pinned.lock().unwrap().iter().any(|token| token.address == address));
}

#[test]
fn below_the_import_threshold_memory_is_copied_and_returned_at_once() {
    let (pool, _) = pool();
    let mut tiers = TieredMemory::open(pool, CHOICE, &STAGING).unwrap();
    for bytes in [4_096, 65_536] {
        let (write, memory) = tiers.write_owned(NOW, 0, MappedRegion::zeroed(bytes).unwrap(), 0).unwrap();
        assert!(matches!(write, TieredWrite::Staged(_) | TieredWrite::Pooled(_)));
        assert_eq!(memory.unwrap().len(), bytes);
    }
    // Memory that shares a page cannot be pinned in place, but it can be copied.
    let odd = vec![3; (1 << 20) + 1];
    let (write, memory) = tiers.write_owned(NOW, 0, odd, 0).unwrap();
    assert!(matches!(write, TieredWrite::Pinned(_)) && memory.is_some());
}

#[test]
fn imports_of_partial_pages_are_refused_and_returned() {
    let (pool, _) = pool();
    let (memory, error) = pool.import(vec![1; 5_000]).map(|_| ()).unwrap_err();
    assert!(matches!(error, DynamicError::Misaligned { bytes: 5_000, .. }), "{error}");
    assert_eq!(memory.len(), 5_000);
    let (_, error) = pool.import(Vec::<u8>::new()).map(|_| ()).unwrap_err();
    assert_eq!(error, DynamicError::Empty);
    assert_eq!(pool.pin_for_request(0).map(|_| ()), Err(DynamicError::Empty));
    assert!(matches!(pool.pin_for_request(usize::MAX), Err(DynamicError::Pool(PoolError::Overflow { .. }))));
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 0);
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
        let error = pool.pin_for_request(1 << 20).map(|_| ()).unwrap_err();
        assert_eq!(error, DynamicError::Pool(PoolError::Pin(expected)));
        let (memory, _) = pool.import(MappedRegion::zeroed(1 << 20).unwrap()).map(|_| ()).unwrap_err();
        assert_eq!(memory.len(), 1 << 20, "the caller has its memory back");
        assert!(matches!(
            TieredMemory::open(pool.clone(), CHOICE, &STAGING).map(|_| ()),
            Err(TieredError::Dynamic(DynamicError::Pool(PoolError::Pin(_))))
        ));
    }
    assert_eq!(pool.statistics().tier_bytes, [0; 3]);
}

#[test]
fn large_requests_above_the_cap_are_refused_and_at_the_cap_would_block() {
    let (pool, _) = pool();
    let over = pool.pin_for_request(33 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(over, DynamicError::Pool(PoolError::OverCap { .. })), "{over}");
    let first = pool.pin_for_request(20 << 20).unwrap();
    let full = pool.pin_for_request(20 << 20).map(|_| ()).unwrap_err();
    assert!(matches!(full, DynamicError::Pool(PoolError::WouldBlock { .. })), "{full}");
    drop(first);
    assert!(pool.pin_for_request(20 << 20).is_ok());
}

#[test]
fn memory_that_a_device_may_still_access_is_never_reused() {
    let (pool, pinner) = pool();
    // Lent and never completed.
    drop(pool.import(MappedRegion::zeroed(1 << 20).unwrap()).unwrap().lend());
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 1 << 20);
    assert_eq!(pinner.pinned.lock().unwrap().len(), 1);
    // A device that unpins less than was pinned.
    let pinned = pool.import(MappedRegion::zeroed(1 << 20).unwrap()).unwrap();
    *pinner.refuse_unpin.lock().unwrap() = true;
    assert!(matches!(pinned.into_memory(), Err(PinError::Short { .. })));
    drop(pool.pin_for_request(1 << 20).unwrap());
    assert_eq!(tier_bytes(&pool, PinTier::Dynamic), 3 << 20);
}
