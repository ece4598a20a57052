//! What a flush promises, and what is told of writes that failed.

use crate::fake::{Rig, small, write};
use headwater_host::clock::Nanos;
use headwater_io::cache::{CacheConfig, Kind, Request};
use headwater_io::command::Durable;
use headwater_nvme::spec::status::Status;

const PAGE: u64 = 4_096;

fn lazy() -> CacheConfig {
    CacheConfig { dirty_background: 60, dirty_most: 60, ..small() }
}

#[test]
fn a_power_cut_after_a_flush_loses_nothing_that_was_written_before() {
    for seed in 0..200 {
        let mut rig = Rig::new(100 * 512, lazy(), seed);
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
fn a_write_that_must_be_durable_survives_without_a_flush() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    let Request::Write { offset, from, .. } = write(1_000, &[7; 6_000]) else { unreachable!() };
    let request = Request::Write { offset, from, durable: Durable::Now };
    assert_eq!(rig.run(request).status, Status::SUCCESS);
    assert_eq!(rig.lower.durable[1_000..7_000], [7; 6_000]);
    assert_eq!(rig.lower.count(Kind::Flush), 0);
}

#[test]
fn a_failed_write_back_is_told_once_to_each_user_stays_dirty_and_is_tried_again() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    let other = rig.cache.join();
    rig.write(0, &[1; 3 * 4_096]);
    rig.lower.broken = Some((PAGE..2 * PAGE, Kind::Write));
    // By age, with nobody looking.
    rig.now = Nanos::from_millis(10_000);
    for _ in 0..200 {
        rig.turn();
    }
    assert_eq!(rig.cache.statistics().dirty_bytes, PAGE, "its neighbours went alone");
    assert_eq!(rig.lower.now[..4_096], [1; 4_096]);
    assert_eq!(rig.read(PAGE, 4_096), [1; 4_096], "it is here all the same");
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR);
    rig.lower.broken = None;
    assert_eq!(rig.flush(), Status::SUCCESS, "told, and tried again");
    assert_eq!(rig.lower.durable[..3 * 4_096], [1; 3 * 4_096]);
    rig.owner = other;
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR, "the other user is told, too");
    assert_eq!(rig.flush(), Status::SUCCESS);
}

#[test]
fn a_page_that_failed_is_tried_again_by_its_age() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    rig.write(0, &[1; 4_096]);
    rig.lower.broken = Some((0..PAGE, Kind::Write));
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
fn a_cache_full_of_pages_that_cannot_be_written_says_so_and_does_not_hang() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    rig.lower.broken = Some((0..64 * PAGE, Kind::Write));
    let told: Vec<Status> = (0..40).map(|page| rig.write(page * PAGE, &[2; 4_096])).collect();
    assert!(told[0].is_success());
    assert!(!told[39].is_success());
    assert!(rig.cache.statistics().dirty_bytes <= 10 * PAGE);
    assert_eq!(rig.read(50 * PAGE, 4_096), rig.lower.now[50 * 4_096..51 * 4_096], "reads go on");
    rig.lower.broken = None;
    assert_eq!(rig.flush(), Status::INTERNAL_ERROR, "older failures are told");
    assert_eq!(rig.flush(), Status::SUCCESS);
    for (page, _) in told.iter().enumerate().filter(|(_, status)| status.is_success()) {
        assert_eq!(rig.lower.durable[page * 4_096..][..4_096], [2; 4_096]);
    }
}

#[test]
fn flushes_that_come_together_go_together() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    rig.lower.answering = false;
    rig.write(0, &[1; 4_096]);
    for _ in 0..5 {
        rig.submit(Request::Flush);
    }
    rig.lower.answering = true;
    for _ in 0..5 {
        assert_eq!(rig.wait().status, Status::SUCCESS);
    }
    assert_eq!(rig.lower.count(Kind::Flush), 2, "the first, and one for the four that came meanwhile");
}

#[test]
fn a_write_while_a_flush_is_under_way_is_not_held_up_by_it_for_ever() {
    let mut rig = Rig::new(64 * 4_096, lazy(), 1);
    rig.write(0, &[1; 4_096]);
    rig.lower.answering = false;
    rig.submit(Request::Flush);
    // The page is being written: the next write waits for that, and is not part of the flush.
    rig.submit(write(0, &[2; 4_096]));
    rig.lower.answering = true;
    rig.wait();
    rig.wait();
    assert_eq!(rig.read(0, 4_096), [2; 4_096]);
    assert_eq!(rig.lower.durable[..4_096], [1; 4_096]);
}
