//! Tests of the guarantees of a flush, and of the reports of failed writes.

use crate::fake::{CacheRig, small_config, write};
use headwater_host::clock::Nanos;
use headwater_io::cache::{CacheConfig, CacheRequest, TransferKind};
use headwater_io::command::WriteDurability;
use headwater_nvme::spec::status::Status;

const PAGE: u64 = 4_096;

fn lazy_config() -> CacheConfig {
    CacheConfig { dirty_background: 60, dirty_max: 60, ..small_config() }
}

#[test]
fn power_cut_after_a_flush_loses_no_earlier_write() {
    for seed in 0..200 {
        let mut rig = CacheRig::new(100 * 512, lazy_config(), seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut wanted = rig.lower.now.clone();
        for _ in 0..random.usize(1..60) {
            let start = random.usize(0..wanted.len());
            let bytes = random.usize(1..6_000).min(wanted.len() - start);
            let byte = random.u8(..);
            wanted[start..start + bytes].fill(byte);
            let offset = u64::try_from(start).unwrap();
            assert_eq!(rig.write(offset, &vec![byte; bytes]), Status::SUCCESS, "seed {seed}");
        }
        assert_eq!(rig.flush(), Status::SUCCESS, "seed {seed}");
        assert!(rig.lower.durable == wanted, "seed {seed}");
    }
}

#[test]
fn durable_write_survives_without_a_flush() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    let CacheRequest::Write { offset, from, .. } = write(1_000, &[7; 6_000]) else { unreachable!() };
    let request = CacheRequest::Write { offset, from, durable: WriteDurability::Immediate };
    assert_eq!(rig.run(request).status, Status::SUCCESS);
    assert_eq!(rig.lower.durable[1_000..7_000], [7; 6_000]);
    assert_eq!(rig.lower.count(TransferKind::Flush), 0);
}

#[test]
fn failed_write_back_is_reported_once_to_each_user_and_retried() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    let other = rig.cache.join();
    rig.write(0, &[1; 3 * 4_096]);
    rig.lower.broken = Some((PAGE..2 * PAGE, TransferKind::Write));
    // Written back by age, without a request.
    rig.now = Nanos::from_millis(10_000);
    for _ in 0..200 {
        rig.turn();
    }
    assert_eq!(rig.cache.statistics().dirty_bytes, PAGE, "the adjacent pages were not written alone");
    assert_eq!(rig.lower.now[..4_096], [1; 4_096]);
    assert_eq!(rig.read(PAGE, 4_096), [1; 4_096], "the failed page is no longer cached");
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR);
    rig.lower.broken = None;
    assert_eq!(rig.flush(), Status::SUCCESS, "the failure was reported twice or the page not retried");
    assert_eq!(rig.lower.durable[..3 * 4_096], [1; 3 * 4_096]);
    rig.owner = other;
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR, "the failure was not reported to the other user");
    assert_eq!(rig.flush(), Status::SUCCESS);
}

#[test]
fn failed_page_is_retried_at_its_age_limit() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    rig.write(0, &[1; 4_096]);
    rig.lower.broken = Some((0..PAGE, TransferKind::Write));
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR);
    rig.lower.broken = None;
    rig.now = rig.cache.next_deadline().unwrap();
    for _ in 0..100 {
        rig.turn();
    }
    assert_eq!(rig.cache.statistics().dirty_bytes, 0);
    assert_eq!(rig.lower.now[..4_096], [1; 4_096]);
}

#[test]
fn cache_full_of_unwritable_pages_fails_writes_and_does_not_hang() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    rig.lower.broken = Some((0..64 * PAGE, TransferKind::Write));
    let statuses: Vec<Status> = (0..40).map(|page| rig.write(page * PAGE, &[2; 4_096])).collect();
    assert!(statuses[0].is_success());
    assert!(!statuses[39].is_success());
    assert!(rig.cache.statistics().dirty_bytes <= 10 * PAGE);
    assert_eq!(rig.read(50 * PAGE, 4_096), rig.lower.now[50 * 4_096..51 * 4_096], "reads do not continue");
    rig.lower.broken = None;
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR, "older failures were not reported");
    assert_eq!(rig.flush(), Status::SUCCESS);
    for (page, _) in statuses.iter().enumerate().filter(|(_, status)| status.is_success()) {
        assert_eq!(rig.lower.durable[page * 4_096..][..4_096], [2; 4_096]);
    }
}

#[test]
fn concurrent_flushes_are_combined() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    rig.lower.completing = false;
    rig.write(0, &[1; 4_096]);
    for _ in 0..5 {
        rig.submit(CacheRequest::Flush);
    }
    rig.lower.completing = true;
    for _ in 0..5 {
        assert_eq!(rig.wait().status, Status::SUCCESS);
    }
    assert_eq!(
        rig.lower.count(TransferKind::Flush),
        2,
        "four flushes that arrived during the first were not combined"
    );
}

#[test]
fn write_during_a_flush_completes() {
    let mut rig = CacheRig::new(64 * 4_096, lazy_config(), 1);
    rig.write(0, &[1; 4_096]);
    rig.lower.completing = false;
    rig.submit(CacheRequest::Flush);
    // The page is being written: the next write waits for that, and is not part of the flush.
    rig.submit(write(0, &[2; 4_096]));
    rig.lower.completing = true;
    rig.wait();
    rig.wait();
    assert_eq!(rig.read(0, 4_096), [2; 4_096]);
    assert_eq!(rig.lower.durable[..4_096], [1; 4_096]);
}
