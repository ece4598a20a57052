//! Tests of resizing while the cache is in use.

use crate::fake::{CacheRig, buffer, small_config};
use headwater_io::cache::{CacheConfig, CacheRequest, TransferKind};
use headwater_nvme::spec::status::Status;

const PAGE: u64 = 4_096;

#[test]
fn larger_cache_keeps_its_pages() {
    let mut rig = CacheRig::new(64 * 4_096, CacheConfig { pages: 8, ..small_config() }, 1);
    rig.read(0, 8 * 4_096);
    rig.write(0, &[1; 4_096]);
    assert_eq!(rig.resize(32), Status::SUCCESS);
    assert_eq!(rig.cache.statistics().capacity_bytes, 32 * PAGE);
    let reads = rig.lower.count(TransferKind::Read);
    rig.read(0, 8 * 4_096);
    assert_eq!(rig.lower.count(TransferKind::Read), reads);
    rig.read(8 * PAGE, 20 * 4_096);
    rig.lower.log.clear();
    rig.read(0, 28 * 4_096);
    assert_eq!(rig.lower.log, []);
}

#[test]
fn smaller_cache_keeps_the_most_used_pages() {
    let mut rig = CacheRig::new(256 * 4_096, CacheConfig { pages: 64, ..small_config() }, 1);
    for page in 0..60 {
        rig.read(page * PAGE, 4_096);
    }
    for _ in 0..4 {
        for page in 50..60 {
            rig.read(page * PAGE, 4_096);
        }
    }
    assert_eq!(rig.resize(16), Status::SUCCESS);
    assert_eq!(rig.cache.statistics().capacity_bytes, 16 * PAGE);
    rig.lower.log.clear();
    for page in 50..60 {
        assert_eq!(
            rig.read(page * PAGE, 4_096),
            rig.lower.now[usize::try_from(page).unwrap() * 4_096..][..4_096]
        );
    }
    assert_eq!(rig.lower.log, [], "hot pages were not moved to the remaining frames");
}

#[test]
fn shrink_waits_for_transfers_in_flight() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.completing = false;
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&vec![0; 16 * 4_096]) });
    let before = rig.cache.statistics().capacity_bytes;
    rig.cache.resize(&mut rig.lower, rig.owner, (8, 77), &mut crate::fake::memory).unwrap();
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none());
    assert_eq!(rig.cache.statistics().capacity_bytes, before);
    rig.lower.completing = true;
    let mut tokens = [rig.wait().token, rig.wait().token];
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 77]);
    assert_eq!(rig.cache.statistics().capacity_bytes, 8 * PAGE);
}

#[test]
fn shrink_fails_and_keeps_the_size_when_a_page_cannot_be_written() {
    let config = CacheConfig { dirty_background: 80, dirty_max: 80, ..small_config() };
    let mut rig = CacheRig::new(64 * 4_096, config, 1);
    rig.lower.early_effects = false;
    rig.write(0, &[1; 12 * 4_096]);
    rig.lower.broken = Some((0..64 * PAGE, TransferKind::Write));
    assert_eq!(rig.resize(8), Status::INTERNAL_ERROR);
    assert_eq!(rig.cache.statistics().capacity_bytes, 16 * PAGE);
    assert_eq!(rig.read(0, 12 * 4_096), [1; 12 * 4_096]);
    rig.lower.broken = None;
    assert_eq!(rig.resize(8), Status::SUCCESS);
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR);
    assert_eq!(rig.flush(), Status::SUCCESS);
    assert_eq!(rig.lower.durable[..12 * 4_096], [1; 12 * 4_096]);
}
