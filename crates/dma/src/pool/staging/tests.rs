//! Examples of the static tier.

use super::*;
use headwater_host::mapped_region::MappedRegion;
use headwater_host::shared_memory::SharedMemory;

const NOW: Nanos = Nanos(1_000);
const LARGE_BATCH: BatchLimits = BatchLimits { slots: 1_000, bytes: 1 << 30, age: Nanos::from_millis(1) };
/// Two blocks of four slots for writes, one for reads.
const SMALL: StagingConfig = StagingConfig {
    write_blocks: 2,
    read_blocks: 1,
    block_bytes: 4 * 4_096,
    slot_bytes: 4_096,
    unit_bytes: 1,
    batch: LARGE_BATCH,
};

#[derive(Debug, PartialEq, Eq)]
struct DeviceFailure(&'static str);

type OpenResult = Result<StagingTier<SharedMemory>, StagingConfigError>;

fn open(config: &StagingConfig) -> OpenResult {
    StagingTier::open(config, |bytes| Ok(SharedMemory::anonymous(bytes).unwrap()))
}

fn small() -> StagingTier<SharedMemory> {
    open(&SMALL).unwrap()
}

fn drained(staging: &mut StagingTier<SharedMemory>, now: Nanos) -> Vec<DrainWrite> {
    let mut writes = Vec::new();
    staging.drain(now, &mut writes);
    writes
}

fn content(staging: &StagingTier<SharedMemory>, write: &DrainWrite) -> Vec<u8> {
    let mut bytes = vec![0; write.range.bytes];
    staging.write_memory(write.location.block).unwrap().copy_to(write.location.at, &mut bytes);
    bytes
}

fn ok(staging: &mut StagingTier<SharedMemory>, slot: SlotId) -> u64 {
    staging.complete::<DeviceFailure>(slot, Ok(())).unwrap().tag
}

#[test]
fn a_batch_closes_by_count_by_bytes_and_by_age() {
    let batch = BatchLimits { slots: 3, bytes: 100, age: Nanos(50) };
    let mut staging = open(&StagingConfig { batch, ..SMALL }).unwrap();
    for place in 0..2 {
        staging.stage(NOW, place * 10, &[1], place).unwrap();
    }
    assert_eq!(drained(&mut staging, NOW).len(), 0, "the count is not reached");
    staging.stage(NOW, 20, &[1], 2).unwrap();
    assert_eq!(drained(&mut staging, NOW).len(), 3, "the count is reached");
    staging.stage(NOW, 1_000, &[7; 100], 3).unwrap();
    assert_eq!(drained(&mut staging, NOW).len(), 1, "the bytes are reached");
    staging.stage(NOW, 2_000, &[9], 4).unwrap();
    assert_eq!(staging.deadline(), Some(Nanos(1_050)));
    assert_eq!(drained(&mut staging, Nanos(1_049)).len(), 0);
    let writes = drained(&mut staging, Nanos(1_050));
    assert_eq!(writes[0].range, DeviceRange { offset: 2_000, bytes: 1 });
    assert_eq!(content(&staging, &writes[0]), [9]);
    assert_eq!(staging.deadline(), None);
    let counted = staging.statistics();
    assert_eq!((counted.closed_full, counted.closed_by_age, counted.closed_by_flush), (2, 1, 0));
}

#[test]
fn a_flush_closes_the_batch_and_settles_with_the_writes_before_it() {
    let mut staging = small();
    staging.stage(NOW, 0, b"before", 1).unwrap();
    let barrier = staging.flush();
    let later = staging.stage(NOW, 100, b"after", 2).unwrap();
    let writes = drained(&mut staging, NOW);
    assert_eq!(writes.len(), 1, "writes after the flush are not drained");
    assert!(!staging.is_flushed(barrier));
    ok(&mut staging, writes[0].slot);
    assert!(staging.is_flushed(barrier));
    assert_ne!(writes[0].slot, later);
    let empty = staging.flush();
    drained(&mut staging, NOW);
    assert!(!staging.is_flushed(empty));
}

#[test]
fn a_full_tier_reports_how_many_completions_to_wait_for() {
    let mut staging = small();
    for place in 0..8 {
        staging.stage(NOW, place * 4_096, &[1; 4_096], place).unwrap();
    }
    let full = staging.stage(NOW, 1 << 20, &[1], 8).unwrap_err();
    assert_eq!(full, StageError::Full { completions: 4, undrained: 8 });
    assert!(full.to_string().contains("retry after 4 completions"), "{full}");
    // The refusal closed the batch, so that a caller that drains makes room.
    let writes = drained(&mut staging, NOW);
    assert_eq!(writes.len(), 8);
    for write in &writes[4..7] {
        ok(&mut staging, write.slot);
    }
    let full = staging.stage(NOW, 1 << 20, &[1], 8).unwrap_err();
    assert_eq!(full, StageError::Full { completions: 1, undrained: 0 });
    ok(&mut staging, writes[7].slot);
    staging.stage(NOW, 1 << 20, &[1], 8).unwrap();
    assert_eq!(staging.statistics().refused, 2);
}

#[test]
fn a_full_block_swaps_with_the_empty_one_while_it_drains() {
    let mut staging = small();
    for place in 0..4 {
        staging.stage(NOW, place * 4_096, &[1], place).unwrap();
    }
    staging.stage(NOW, 4 * 4_096, &[1], 4).unwrap();
    staging.flush();
    let writes = drained(&mut staging, NOW);
    assert_eq!(writes.iter().map(|write| write.location.block).collect::<Vec<_>>(), [0, 0, 0, 0, 1]);
    assert!(writes.iter().all(|write| write.location.at.is_multiple_of(4_096)), "each slot is one PRP entry");
}

#[test]
fn a_failed_write_completes_its_own_slot_and_no_other() {
    let mut staging = small();
    for tag in 0..3 {
        staging.stage(NOW, tag * 8_192, &[1; 512], tag).unwrap();
    }
    staging.flush();
    let writes = drained(&mut staging, NOW);
    let broken = staging.complete(writes[1].slot, Err(DeviceFailure("media"))).unwrap();
    assert_eq!(broken, StagedCompletion { tag: 1, result: Err(DeviceFailure("media")) });
    assert_eq!(staging.statistics().staged, 2);
    assert_eq!(ok(&mut staging, writes[2].slot), 2);
    assert_eq!(ok(&mut staging, writes[0].slot), 0);
    assert_eq!(staging.statistics().failed, 1);
}

#[test]
fn a_result_for_no_request_in_flight_is_refused() {
    let mut staging = small();
    let slot = staging.stage(NOW, 0, b"x", 0).unwrap();
    assert_eq!(staging.complete::<DeviceFailure>(slot, Ok(())), Err(NotWithDevice), "it was not drained");
    staging.flush();
    drained(&mut staging, NOW);
    ok(&mut staging, slot);
    assert_eq!(
        staging.complete::<DeviceFailure>(slot, Ok(())),
        Err(NotWithDevice),
        "it was completed already"
    );
    let mut bytes = [0; 8];
    let ReadStart::Device { read, .. } = staging.read(0, &mut bytes).unwrap() else {
        panic!("nothing is staged")
    };
    let short = staging.finish_read::<DeviceFailure>(read, Ok(()), &mut bytes[..7]);
    assert_eq!(short, Err(ReadError::Length { bytes: 8, given_bytes: 7 }));
    staging.finish_read::<DeviceFailure>(read, Ok(()), &mut bytes).unwrap();
    let again = staging.finish_read::<DeviceFailure>(read, Ok(()), &mut bytes);
    assert_eq!(again, Err(ReadError::NotWithDevice(NotWithDevice)));
}

#[test]
fn a_write_waits_for_the_older_one_that_it_overlaps() {
    let mut staging = small();
    staging.stage(NOW, 0, &[1; 100], 1).unwrap();
    staging.stage(NOW, 50, &[2; 100], 2).unwrap();
    staging.stage(NOW, 500, &[3; 100], 3).unwrap();
    staging.flush();
    let first = drained(&mut staging, NOW);
    assert_eq!(first.iter().map(|write| write.range.offset).collect::<Vec<_>>(), [0, 500]);
    assert_eq!(drained(&mut staging, NOW).len(), 0);
    // Also when the older one fails.
    staging.complete(first[0].slot, Err(DeviceFailure("media"))).unwrap();
    let second = drained(&mut staging, NOW);
    assert_eq!(second.iter().map(|write| write.range.offset).collect::<Vec<_>>(), [50]);
}

#[test]
fn staged_bytes_are_read_without_the_device_and_partial_overlap_over_it() {
    let mut staging = small();
    staging.stage(NOW, 10, b"old old old", 0).unwrap();
    staging.stage(NOW, 14, b"new", 1).unwrap();
    let mut bytes = [0; 11];
    assert_eq!(staging.read(10, &mut bytes).unwrap(), ReadStart::Staged);
    assert_eq!(&bytes, b"old new old");
    let mut bytes = [0; 16];
    let ReadStart::Device { read, location: place, range } = staging.read(8, &mut bytes).unwrap() else {
        panic!("not all of it is staged")
    };
    assert_eq!(range, DeviceRange { offset: 8, bytes: 16 });
    staging.read_memory_mut(place.block).unwrap().copy_from(place.at, &[b'.'; 16]);
    staging.finish_read::<DeviceFailure>(read, Ok(()), &mut bytes).unwrap();
    assert_eq!(&bytes, b"..old new old...");
    assert_eq!(staging.overlay(21, &mut bytes[..4]), 0);
}

#[test]
fn a_read_sees_staged_bytes_even_if_their_write_completes_first() {
    let mut staging = small();
    staging.stage(NOW, 0, b"first", 0).unwrap();
    staging.stage(NOW, 0, b"second", 1).unwrap();
    staging.flush();
    let mut bytes = [0; 8];
    let ReadStart::Device { read, location: place, .. } = staging.read(0, &mut bytes).unwrap() else {
        panic!("partly staged")
    };
    // The device reads before it writes.
    staging.read_memory_mut(place.block).unwrap().copy_from(place.at, &[b'.'; 8]);
    let first = drained(&mut staging, NOW);
    ok(&mut staging, first[0].slot);
    let second = drained(&mut staging, NOW);
    // The newer write fails, so the device holds the older one.
    staging.complete(second[0].slot, Err(DeviceFailure("media"))).unwrap();
    staging.finish_read::<DeviceFailure>(read, Ok(()), &mut bytes).unwrap();
    assert_eq!(&bytes, b"first...");
}

#[test]
fn reads_are_refused_without_a_free_slot_and_a_failed_read_frees_its_slot() {
    let mut staging = small();
    let mut bytes = [0; 512];
    let reads: Vec<_> = (0..4).map(|place| staging.read(place * 512, &mut bytes).unwrap()).collect();
    assert_eq!(staging.read(9_000, &mut bytes), Err(StageError::ReadsFull { in_flight: 4 }));
    let ReadStart::Device { read, .. } = reads[2] else { panic!("nothing is staged") };
    let failed = staging.finish_read(read, Err(DeviceFailure("media")), &mut bytes);
    assert_eq!(failed, Err(ReadError::Device(DeviceFailure("media"))));
    assert!(staging.read(9_000, &mut bytes).is_ok());
}

#[test]
fn invalid_requests_are_refused() {
    let mut staging = open(&StagingConfig { unit_bytes: 512, ..SMALL }).unwrap();
    let mut refused = |offset, bytes: usize| staging.stage(NOW, offset, &vec![0; bytes], 0).unwrap_err();
    assert_eq!(refused(0, 0), StageError::Empty { offset: 0 });
    assert_eq!(refused(0, 4_608), StageError::TooLong { bytes: 4_608, slot_bytes: 4_096 });
    assert_eq!(refused(7, 512), StageError::Misaligned { offset: 7, bytes: 512, unit_bytes: 512 });
    assert_eq!(refused(512, 7), StageError::Misaligned { offset: 512, bytes: 7, unit_bytes: 512 });
    let last = u64::MAX - 511;
    assert_eq!(refused(last, 512), StageError::Overflow { offset: last, bytes: 512 });
    assert_eq!(staging.statistics().writes, 0);
}

#[test]
fn invalid_configurations_are_refused() {
    let refused = |config| open(&config).unwrap_err();
    assert_eq!(refused(StagingConfig { write_blocks: 0, ..SMALL }), StagingConfigError::NoBlocks);
    assert_eq!(refused(StagingConfig { read_blocks: 0, ..SMALL }), StagingConfigError::NoBlocks);
    assert_eq!(
        refused(StagingConfig { slot_bytes: 512, ..SMALL }),
        StagingConfigError::Slot { slot_bytes: 512 }
    );
    assert!(matches!(refused(StagingConfig { unit_bytes: 3, ..SMALL }), StagingConfigError::Unit { .. }));
    assert!(matches!(refused(StagingConfig { block_bytes: 1, ..SMALL }), StagingConfigError::Block { .. }));
    assert!(matches!(
        refused(StagingConfig { block_bytes: usize::MAX, ..SMALL }),
        StagingConfigError::Block { .. }
    ));
    let short =
        StagingTier::open(&SMALL, |_| Ok::<_, StagingConfigError>(MappedRegion::zeroed(4_096).unwrap()));
    assert_eq!(short.map(|_| ()), Err(StagingConfigError::Memory { got_bytes: 4_096, block_bytes: 16_384 }));
}

#[test]
fn the_counts_of_the_paper_are_a_preset() {
    let paper = StagingConfig::paper();
    assert_eq!((paper.read_blocks, paper.write_blocks, paper.block_bytes), (1, 2, 32 << 20));
    assert_eq!(paper.slot_bytes, 4_096);
    assert_eq!(open(&paper).unwrap().statistics().pinned_bytes, 96 << 20);
}
