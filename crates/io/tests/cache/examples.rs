//! Tests of one behaviour each, on a device without random failures.

use crate::fake::{CacheRig, buffer, bytes_of, small_config, write};
use headwater_host::clock::Nanos;
use headwater_io::CacheError;
use headwater_io::cache::{
    BlockCache, CacheConfig, CacheRequest, DeviceShape, SubmitResult, TransferKind, WritePolicy,
};
use headwater_io::command::WriteDurability;
use headwater_nvme::spec::status::Status;

const PAGE: u64 = 4_096;

#[test]
fn repeated_read_does_not_access_the_device() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    let wanted = rig.lower.now[5_000..9_000].to_vec();
    assert_eq!(rig.read(5_000, 4_000), wanted);
    assert_eq!(rig.lower.log, [(TransferKind::Read, PAGE, 2 * PAGE)]);
    assert_eq!(rig.read(5_000, 4_000), wanted);
    let mut bytes = vec![0; 4_000];
    assert!(rig.cache.read_hit(rig.owner, 5_000, &mut bytes));
    assert_eq!(bytes, wanted);
    assert_eq!(rig.lower.count(TransferKind::Read), 1);
    let statistics = rig.cache.statistics();
    assert_eq!((statistics.hits, statistics.misses), (4, 2));
}

#[test]
fn write_backs_reach_the_device_in_one_transfer_at_the_flush() {
    let mut rig =
        CacheRig::new(64 * 4_096, CacheConfig { dirty_background: 90, dirty_max: 90, ..small_config() }, 1);
    for page in [3, 5, 4, 2] {
        assert_eq!(rig.write(page * PAGE, &[u8::try_from(page).unwrap(); 4_096]), Status::SUCCESS);
    }
    assert_eq!(rig.lower.log, []);
    assert_eq!(rig.cache.statistics().dirty_bytes, 4 * PAGE);
    assert_eq!(rig.flush(), Status::SUCCESS);
    assert_eq!(rig.lower.log, [(TransferKind::Write, 2 * PAGE, 4 * PAGE), (TransferKind::Flush, 0, 0)]);
    let read = rig.read(2 * PAGE, 4 * 4_096);
    assert_eq!(rig.lower.durable[2 * 4_096..6 * 4_096], read);
    assert_eq!(rig.cache.statistics().dirty_bytes, 0);
}

#[test]
fn write_through_completes_after_the_device_write() {
    let config = CacheConfig { policy: WritePolicy::Through, ..small_config() };
    let mut rig = CacheRig::new(64 * 4_096, config, 1);
    rig.lower.completing = false;
    assert!(matches!(rig.submit(write(PAGE, &[7; 8_192])), SubmitResult::Pending));
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none());
    rig.lower.completing = true;
    assert_eq!(rig.wait().status, Status::SUCCESS);
    assert_eq!(rig.lower.now[4_096..12_288], [7; 8_192]);
    assert_eq!(rig.read(PAGE, 8_192), [7; 8_192]);
    assert_eq!(rig.lower.count(TransferKind::Read), 0, "a written page was not cached");
}

#[test]
fn failed_write_through_is_reported_and_its_page_dropped() {
    let config = CacheConfig { policy: WritePolicy::Through, ..small_config() };
    let mut rig = CacheRig::new(64 * 4_096, config, 1);
    rig.read(0, 4_096);
    rig.lower.broken = Some((0..PAGE, TransferKind::Write));
    assert_eq!(rig.write(100, &[7; 100]), Status::INTERNAL_ERROR);
    assert_eq!(rig.cache.statistics().dirty_bytes, 0);
    let wanted = rig.lower.now[..4_096].to_vec();
    assert_eq!(rig.read(0, 4_096), wanted, "the page was not read from the device again");
    assert_eq!(rig.flush(), Status::SUCCESS, "a failure was reported twice");
}

#[test]
fn partial_block_writes_keep_the_other_bytes() {
    let bytes = 3 * 4_096 + 512;
    let mut rig = CacheRig::new(bytes, small_config(), 1);
    let mut wanted = rig.lower.now.clone();
    for (offset, bytes) in [(1, 1), (510, 5), (4_090, 4_110), (12_288, 512), (12_799, 1)] {
        wanted[offset..offset + bytes].fill(0x5A);
        assert_eq!(rig.write(u64::try_from(offset).unwrap(), &vec![0x5A; bytes]), Status::SUCCESS);
    }
    assert_eq!(rig.read(0, bytes), wanted);
    assert_eq!(rig.flush(), Status::SUCCESS);
    assert_eq!(rig.lower.durable, wanted);
}

#[test]
fn out_of_range_and_misaligned_requests_are_refused_with_numbers() {
    let mut rig = CacheRig::new(8_192 + 512, small_config(), 1);
    let beyond = CacheRequest::Read { offset: 8_192, into: buffer(&[0; 513]) };
    let refused = rig.cache.submit(&mut rig.lower, rig.owner, beyond, 1).unwrap_err();
    let wanted = CacheError::Range { offset: 8_192, bytes: 513, device_bytes: 8_704 };
    assert_eq!(refused.error, wanted);
    assert!(matches!(refused.request, CacheRequest::Read { .. }), "the refusal lost the request");
    let off = CacheRequest::DirectRead { offset: 100, into: buffer(&[0; 512]) };
    let refused = rig.cache.submit(&mut rig.lower, rig.owner, off, 1).unwrap_err();
    assert!(matches!(refused.error, CacheError::Misaligned { offset: 100, bytes: 512, block_bytes: 512 }));
    let shape = DeviceShape { device_bytes: 4_096, block_bytes: 8_192 };
    assert!(BlockCache::new(shape, small_config(), &mut crate::fake::memory).is_err());
}

#[test]
fn page_being_read_is_read_once_for_all_waiters() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.completing = false;
    let other = rig.cache.join();
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) });
    let request = CacheRequest::Read { offset: 100, into: buffer(&[0; 100]) };
    assert!(matches!(rig.cache.submit(&mut rig.lower, other, request, 9).unwrap(), SubmitResult::Pending));
    rig.lower.completing = true;
    assert_eq!(rig.wait().status, Status::SUCCESS);
    let finished = rig.cache.take_finished(other).unwrap();
    assert_eq!(bytes_of(&finished.data.unwrap()), rig.lower.now[100..200]);
    assert_eq!(rig.lower.count(TransferKind::Read), 1);
}

#[test]
fn failed_read_affects_only_its_own_page_and_caches_nothing() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.broken = Some((PAGE..2 * PAGE, TransferKind::Read));
    let finished = rig.run(CacheRequest::Read { offset: 0, into: buffer(&[0; 12_288]) });
    assert_eq!(finished.status, Status::INTERNAL_ERROR);
    assert_eq!(finished.data.unwrap().bytes(), 12_288, "the buffer was not returned");
    let reads = rig.lower.count(TransferKind::Read);
    assert_eq!(rig.run(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) }).status, Status::SUCCESS);
    assert_eq!(rig.lower.count(TransferKind::Read), reads, "the adjacent page was not read alone and cached");
    let failed = CacheRequest::Read { offset: PAGE, into: buffer(&[0; 4_096]) };
    assert_eq!(rig.run(failed).status, Status::INTERNAL_ERROR);
    rig.lower.broken = None;
    assert_eq!(rig.read(PAGE, 4_096), rig.lower.now[4_096..8_192]);
}

#[test]
fn direct_read_sees_dirty_pages_and_otherwise_reads_the_device() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.write(PAGE, &[7; 4_096]);
    let finished = rig.run(CacheRequest::DirectRead { offset: 512, into: buffer(&[0; 8_192]) });
    let mut wanted = rig.lower.now[512..8_704].to_vec();
    wanted[4_096 - 512..8_192 - 512].fill(7);
    assert_eq!(bytes_of(&finished.data.unwrap()), wanted);
    rig.lower.log.clear();
    rig.run(CacheRequest::DirectRead { offset: 40 * PAGE + 512, into: buffer(&[0; 1_024]) });
    assert_eq!(rig.lower.log, [(TransferKind::Read, 40 * PAGE + 512, 1_024)]);
}

#[test]
fn direct_write_updates_cached_pages_and_keeps_other_dirty_bytes() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.read(0, 8_192);
    rig.write(0, &[1; 100]);
    let durable = WriteDurability::NamespaceDefault;
    let from = buffer(&[2; 4_096]);
    rig.run(CacheRequest::DirectWrite { offset: 512, from, durable });
    assert_eq!(rig.lower.now[512..4_608], [2; 4_096]);
    let read = rig.read(0, 8_192);
    assert_eq!((&read[..100], &read[512..4_608]), (&[1; 100][..], &[2; 4_096][..]));
    assert_eq!(rig.lower.count(TransferKind::Read), 1);
    assert_eq!(rig.flush(), Status::SUCCESS);
    assert_eq!(rig.lower.durable[..8_192], read);
}

#[test]
fn pages_are_read_from_the_device_again_after_a_failed_direct_write() {
    for seed in 0..20 {
        let mut rig = CacheRig::new(64 * 4_096, small_config(), seed);
        rig.read(0, 16_384);
        rig.lower.broken = Some((0..PAGE, TransferKind::Write));
        let request = CacheRequest::DirectWrite {
            offset: 512,
            from: buffer(&[2; 8_192]),
            durable: WriteDurability::NamespaceDefault,
        };
        assert_eq!(rig.run(request).status, Status::INTERNAL_ERROR);
        let wanted = rig.lower.now[..16_384].to_vec();
        assert_eq!(rig.read(0, 16_384), wanted, "seed {seed}");
    }
}

#[test]
fn direct_write_waits_for_pages_in_flight_and_later_requests_wait_for_it() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.completing = false;
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) });
    rig.submit(CacheRequest::DirectWrite {
        offset: 0,
        from: buffer(&[9; 4_096]),
        durable: WriteDurability::NamespaceDefault,
    });
    assert_eq!(
        rig.lower.count(TransferKind::Write),
        0,
        "the direct write started while the page was being read"
    );
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) });
    rig.lower.completing = true;
    let ends: Vec<_> = (0..3).map(|_| rig.wait()).collect();
    assert_eq!(bytes_of(ends[2].data.as_ref().unwrap()), [9; 4_096]);
    assert_eq!(ends.iter().map(|end| end.token).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn zeroes_and_discards_leave_no_old_data() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.write(0, &[1; 16_384]);
    rig.run(CacheRequest::Zeroes { offset: 512, bytes: 8_192, durable: WriteDurability::NamespaceDefault });
    let read = rig.read(0, 16_384);
    assert_eq!(
        (&read[..512], &read[512..8_704], &read[8_704..]),
        (&[1; 512][..], &[0; 8_192][..], &[1; 7_680][..])
    );
    rig.run(CacheRequest::Discard { offset: PAGE, bytes: PAGE });
    assert_eq!(
        rig.read(PAGE, 4_096),
        rig.lower.now[4_096..8_192],
        "the discarded page differs from the device"
    );
    assert_eq!(rig.flush(), Status::SUCCESS);
    let read = rig.read(0, 16_384);
    assert_eq!(rig.lower.durable[..16_384], read);
}

#[test]
fn discard_of_the_whole_device_does_not_iterate_over_it() {
    let shape = DeviceShape { device_bytes: 1 << 50, block_bytes: 4_096 };
    let mut cache = BlockCache::new(shape, small_config(), &mut crate::fake::memory).unwrap();
    let owner = cache.join();
    let mut lower = crate::fake::FakeDevice::new(4_096, 1);
    lower.gone = true;
    lower.depth = 0;
    lower.limits.range_bytes_max = 1 << 50;
    let request = CacheRequest::Discard { offset: 0, bytes: 1 << 50 };
    assert!(matches!(cache.submit(&mut lower, owner, request, 5), Ok(SubmitResult::Pending)));
    cache.poll(&mut lower, Nanos::ZERO);
    assert_eq!(cache.take_finished(owner).unwrap().status, Status::NAMESPACE_NOT_READY);
}

#[test]
fn loss_of_the_device_completes_every_request() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.completing = false;
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) });
    rig.submit(write(PAGE + 1, &[1; 5]));
    rig.submit(CacheRequest::DirectWrite {
        offset: 0,
        from: buffer(&[9; 512]),
        durable: WriteDurability::NamespaceDefault,
    });
    rig.submit(CacheRequest::Flush);
    rig.lower.gone = true;
    let completions: Vec<_> = (0..4).map(|_| rig.wait()).collect();
    assert!(completions.iter().all(|end| end.status == Status::NAMESPACE_NOT_READY));
    let more = rig.cache.submit(&mut rig.lower, rig.owner, CacheRequest::Flush, 1);
    assert!(matches!(more.unwrap_err().error, CacheError::Gone(Status::NAMESPACE_NOT_READY)));
    let mut bytes = [0; 10];
    assert!(!rig.cache.read_hit(rig.owner, 0, &mut bytes));
}

#[test]
fn dirty_page_is_written_back_at_its_age_limit() {
    let config = CacheConfig { dirty_background: 50, dirty_max: 50, ..small_config() };
    let mut rig = CacheRig::new(64 * 4_096, config, 1);
    rig.write(0, &[3; 4_096]);
    let deadline = rig.cache.next_deadline().unwrap();
    assert_eq!(deadline, config.dirty_age);
    rig.turn();
    assert_eq!(rig.lower.count(TransferKind::Write), 0);
    rig.now = deadline;
    rig.turn();
    assert_eq!(rig.lower.count(TransferKind::Write), 1);
    for _ in 0..100 {
        rig.turn();
    }
    assert_eq!((rig.cache.statistics().dirty_bytes, rig.cache.next_deadline()), (0, None));
}

#[test]
fn switch_to_write_through_writes_dirty_pages_back() {
    let config = CacheConfig { dirty_background: 50, dirty_max: 50, ..small_config() };
    let mut rig = CacheRig::new(64 * 4_096, config, 1);
    rig.write(0, &[3; 4_096]);
    rig.cache.set_policy(&mut rig.lower, WritePolicy::Through);
    for _ in 0..100 {
        rig.turn();
    }
    assert_eq!(rig.lower.now[..4_096], [3; 4_096]);
    rig.write(PAGE, &[4; 100]);
    assert_eq!(rig.lower.now[4_096..4_196], [4; 100]);
    rig.cache.set_policy(&mut rig.lower, WritePolicy::Back);
    rig.write(PAGE, &[5; 100]);
    assert_eq!(rig.lower.now[4_096..4_196], [4; 100]);
}

#[test]
fn sequential_reads_are_prefetched_in_growing_transfers() {
    let config = CacheConfig { pages: 256, prefetch_pages: 32, ..small_config() };
    let mut rig = CacheRig::new(4_096 * 4_096, config, 1);
    for page in 0..500 {
        assert_eq!(
            rig.read(page * PAGE, 4_096),
            rig.lower.now[usize::try_from(page).unwrap() * 4_096..][..4_096]
        );
    }
    assert!(rig.lower.count(TransferKind::Read) < 60, "{}", rig.lower.count(TransferKind::Read));
    let longest = rig.lower.log.iter().map(|(_, _, bytes)| bytes / PAGE).max();
    assert!(longest.is_some_and(|pages| (16..=32).contains(&pages)), "{longest:?}");
    let statistics = rig.cache.statistics();
    assert!(statistics.prefetch_used >= 490, "{statistics:?}");
    // Random reads, so that the last prefetched pages are evicted unused.
    for page in 1_000..2_000 {
        rig.read((page * 7 % 4_000) * PAGE, 1);
    }
    let statistics = rig.cache.statistics();
    assert_eq!(
        statistics.prefetch_used + statistics.prefetch_wasted,
        statistics.prefetched,
        "{statistics:?}"
    );
}

#[test]
fn user_that_left_leaves_no_results_behind() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    let other = rig.cache.join();
    rig.cache.submit(&mut rig.lower, other, write(10, &[1; 10]), 3).unwrap();
    rig.cache.leave(other);
    let next = rig.cache.join();
    assert_ne!(next, other, "a number with a request in progress was reused");
    for _ in 0..100 {
        rig.turn();
    }
    assert!(rig.cache.take_finished(next).is_none() && rig.cache.take_finished(other).is_none());
    assert_eq!(rig.read(10, 10), [1; 10]);
    assert!(rig.cache.submit(&mut rig.lower, other, CacheRequest::Flush, 1).is_err());
}

#[test]
fn cancelled_request_finishes_at_once_and_blocks_no_other() {
    let mut rig = CacheRig::new(64 * 4_096, small_config(), 1);
    rig.lower.completing = false;
    rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 4_096]) });
    rig.submit(CacheRequest::DirectWrite {
        offset: 0,
        from: buffer(&[9; 4_096]),
        durable: WriteDurability::NamespaceDefault,
    });
    rig.submit(write(10, &[1; 10]));
    rig.submit(CacheRequest::DirectRead { offset: 20 * PAGE, into: buffer(&[0; 512]) });
    assert!(rig.cache.cancel(rig.owner, 1), "a request that waits for a page was not cancelled");
    assert!(rig.cache.cancel(rig.owner, 2), "a request that waits for a lock was not cancelled");
    assert!(!rig.cache.cancel(rig.owner, 4), "a request in flight at the device was cancelled");
    assert!(!rig.cache.cancel(rig.owner, 77));
    for token in [1, 2] {
        let finished = rig.cache.take_finished(rig.owner).unwrap();
        assert_eq!((finished.token, finished.status), (token, Status::ABORT_REQUESTED));
        assert!(finished.data.is_some());
    }
    rig.lower.completing = true;
    let ends = [rig.wait(), rig.wait()];
    assert!(ends.iter().all(|end| end.status == Status::SUCCESS));
    assert_eq!(rig.read(10, 10), [1; 10]);
    assert_eq!(rig.lower.count(TransferKind::Write), 0, "the cancelled direct write was started");
}
