//! Tests of batches that are carried out in parts: other commands run in between, and all of a batch happens or nothing.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, ListPosition, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    SubmitError, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime};
use headwater_ssd::limits::{BATCH_CHECKED_PARTS, BATCH_PART_WRITES, BATCH_WRITES_MAX, KEY_BYTES_MAX};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const BATCH: u64 = 7_000;

fn open_media(media: MemoryMedia, config: DeviceConfig) -> SsdDevice<MemoryMedia> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, config, start, &mut |_| {}).unwrap()
}

fn open(blocks: u32, config: DeviceConfig) -> SsdDevice<MemoryMedia> {
    open_media(MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap(), config)
}

fn cut(device: SsdDevice<MemoryMedia>) -> SsdDevice<MemoryMedia> {
    open_media(device.into_media().after_power_cut(), DeviceConfig::default())
}

fn parts_of(batch_part_writes: usize) -> DeviceConfig {
    DeviceConfig { batch_part_writes, ..DeviceConfig::default() }
}

fn submit(device: &mut SsdDevice<MemoryMedia>, token: u64, command: SsdCommand) {
    device.submit(FRONT_END, NamespaceId::FIRST, token, command).unwrap();
}

fn poll(device: &mut SsdDevice<MemoryMedia>) {
    device.poll(Nanos::ZERO, WALL);
}

/// Polls until a completion is there, and returns it with the number of polls.
fn next(device: &mut SsdDevice<MemoryMedia>) -> (SsdCompletion, usize) {
    for polls in 1..100_000 {
        poll(device);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return (completion, polls);
        }
    }
    panic!("no command completes");
}

fn run(device: &mut SsdDevice<MemoryMedia>, command: SsdCommand) -> SsdCompletion {
    submit(device, 1, command);
    next(device).0
}

fn key(number: usize) -> Bytes {
    Bytes::from(format!("key-{number}"))
}

fn put(number: usize, value: impl Into<Bytes>) -> BatchWrite {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    BatchWrite::Store { key: key(number), value: value.into(), condition, expiry }
}

fn removal(number: usize) -> BatchWrite {
    BatchWrite::Delete { key: key(number), condition: WriteCondition::Always }
}

fn store(number: usize, value: &'static [u8]) -> SsdCommand {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    SsdCommand::Store { key: key(number), value: value.into(), condition, expiry }
}

fn retrieve(number: usize) -> SsdCommand {
    let release = ReadRelease::WhenDurable;
    SsdCommand::retrieve_whole(key(number), Vec::new().into(), release)
}

fn value_of(device: &mut SsdDevice<MemoryMedia>, number: usize) -> Option<Vec<u8>> {
    let completion = run(device, retrieve(number));
    match completion.status {
        Status::SUCCESS => Some(completion.sink),
        Status::KEY_DOES_NOT_EXIST => None,
        status => panic!("key {number}: {status:?}"),
    }
}

/// Stores the keys below a number, in batches of one turn each.
fn fill(device: &mut SsdDevice<MemoryMedia>, keys: usize, value: &'static [u8]) {
    for first in (0..keys).step_by(100) {
        let writes = (first..keys.min(first + 100)).map(|number| put(number, value)).collect();
        assert_eq!(run(device, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    }
}

#[test]
fn reads_complete_between_the_parts_of_a_batch() {
    let mut device = open(256, DeviceConfig::default());
    let other = BATCH_WRITES_MAX;
    run(&mut device, store(other, b"other"));
    for round in 0..2 {
        let writes = (0..BATCH_WRITES_MAX).map(|number| put(number, vec![round; 20])).collect();
        submit(&mut device, BATCH, SsdCommand::Batch { writes });
        let mut reads = 0;
        // The first part is checked at submission, and the first read waits until all of them are. Any other read takes one
        // turn, whichever part of the batch the turn does.
        let checks = BATCH_WRITES_MAX / (BATCH_CHECKED_PARTS * BATCH_PART_WRITES) - 1;
        let done = loop {
            submit(&mut device, 2, retrieve(other));
            let (completion, polls) = next(&mut device);
            if completion.token == BATCH {
                break completion;
            }
            let polls_wanted = if reads == 0 { checks } else { 1 };
            assert_eq!((completion.token, &completion.sink[..], polls), (2, &b"other"[..], polls_wanted));
            reads += 1;
        };
        assert_eq!((done.status, next(&mut device).0.token), (Status::SUCCESS, 2));
        // It is planned in parts and then appended in parts.
        assert!(reads >= 2 * BATCH_WRITES_MAX / BATCH_PART_WRITES, "{reads} reads");
        assert_eq!(device.stats().keys[0], BATCH_WRITES_MAX as u64 + 1);
    }
    let mut device = cut(device);
    for number in [0, 511, 512, 40_000, BATCH_WRITES_MAX - 1] {
        assert_eq!(value_of(&mut device, number), Some(vec![1; 20]), "key {number}");
    }
}

/// Returns the device of the tests below, which checks a batch of 2,000 writes in 13 parts.
fn open_to_check() -> SsdDevice<MemoryMedia> {
    let mut device = open(64, parts_of(10));
    run(&mut device, store(1_990, b"old"));
    device
}

/// Returns the first writes of a batch that is checked in parts.
fn many(writes: usize) -> Vec<BatchWrite> {
    (0..writes).map(|number| put(number, &b"new"[..])).collect()
}

/// Polls until a number of commands have completed, and returns their completions by their tokens.
fn complete(device: &mut SsdDevice<MemoryMedia>, commands: usize) -> BTreeMap<u64, SsdCompletion> {
    let mut done = BTreeMap::new();
    for _ in 0..100_000 {
        poll(device);
        done.extend(std::iter::from_fn(|| device.next_completion(FRONT_END)).map(|one| (one.token, one)));
        if done.len() == commands {
            return done;
        }
    }
    panic!("{} of {commands} commands complete", done.len());
}

#[test]
fn commands_behind_a_batch_that_is_checked_keep_their_order() {
    for polls in 0..16 {
        let mut device = open_to_check();
        submit(&mut device, BATCH, SsdCommand::Batch { writes: many(2_000) });
        (0..polls).for_each(|_| poll(&mut device));
        // The key is in the last part, so that it is not known to be one of the batch while the parts before it are checked.
        submit(&mut device, 2, retrieve(1_990));
        submit(&mut device, 3, store(1_990, b"last"));
        submit(&mut device, 4, retrieve(1_990));
        // The key of another batch, checked in parts too.
        let writes = (1_999..4_000).map(|number| put(number, &b"newer"[..])).collect();
        submit(&mut device, 5, SsdCommand::Batch { writes });
        submit(&mut device, 6, retrieve(1_999));
        let done = complete(&mut device, 6);
        assert!(done.values().all(|one| one.status == Status::SUCCESS), "after {polls} polls: {done:?}");
        let sink = |token| &done[&token].sink[..];
        assert_eq!((sink(2), sink(4)), (&b"new"[..], &b"last"[..]), "after {polls} polls");
        assert_eq!(sink(6), b"newer", "after {polls} polls");
        let mut device = cut(device);
        assert_eq!(value_of(&mut device, 1_990).as_deref(), Some(&b"last"[..]));
        assert_eq!(value_of(&mut device, 1_999).as_deref(), Some(&b"newer"[..]));
        assert_eq!(value_of(&mut device, 3_999).as_deref(), Some(&b"newer"[..]));
    }
}

#[test]
fn batch_whose_last_part_can_never_work_changes_nothing() {
    let twice = put(0, &b"again"[..]);
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let long_key = Bytes::from(vec![b'k'; KEY_BYTES_MAX + 1]);
    let long_key = BatchWrite::Store { key: long_key, value: Bytes::new(), condition, expiry };
    let mut device = open_to_check();
    let long_value = put(5_000, vec![1; device.batch_bytes_max()]);
    for (write, status) in [
        (twice, Status::COMMAND_SEQUENCE_ERROR),
        (long_key, Status::INVALID_KEY_SIZE),
        (long_value, Status::INVALID_VALUE_SIZE),
    ] {
        for writes in [1_600, 1_999, 2_000] {
            let writes = many(writes).into_iter().chain([write.clone()]).collect();
            submit(&mut device, BATCH, SsdCommand::Batch { writes });
            submit(&mut device, 2, retrieve(1_990));
            let done = complete(&mut device, 2);
            assert_eq!((done[&BATCH].status, &done[&2].sink[..]), (status, &b"old"[..]));
        }
        // A batch of one part is refused.
        let command = SsdCommand::Batch { writes: many(100).into_iter().chain([write]).collect() };
        let refused = device.submit(FRONT_END, NamespaceId::FIRST, BATCH, command).unwrap_err();
        assert_eq!(refused, SubmitError::Refused(status));
    }
    // All of its writes together are too long.
    let writes = (0..2_000).map(|number| put(number, vec![1; device.batch_bytes_max() / 2_000])).collect();
    assert_eq!(run(&mut device, SsdCommand::Batch { writes }).status, Status::COMMAND_SIZE_LIMIT);
    assert_eq!((device.stats().keys[0], device.stats().in_flight), (1, 0));
}

#[test]
fn batch_that_is_checked_can_be_aborted() {
    let mut device = open_to_check();
    submit(&mut device, BATCH, SsdCommand::Batch { writes: many(2_000) });
    (0..5).for_each(|_| poll(&mut device));
    submit(&mut device, 2, retrieve(1_990));
    assert!(device.abort(FRONT_END, BATCH));
    let done = complete(&mut device, 2);
    assert_eq!((done[&BATCH].status, &done[&2].sink[..]), (Status::ABORT_REQUESTED, &b"old"[..]));
    assert_eq!((device.stats().keys[0], device.stats().in_flight), (1, 0));
}

/// Returns the batch of the tests below: it replaces some keys, removes some, and makes some.
fn mixed() -> SsdCommand {
    let write =
        |number: usize| if number.is_multiple_of(3) { removal(number) } else { put(number, &b"new"[..]) };
    SsdCommand::Batch { writes: (0..120).map(write).collect() }
}

/// Returns true if the batch was carried out, and false if nothing of it was.
fn happened(device: &mut SsdDevice<MemoryMedia>) -> bool {
    let found: Vec<_> = (0..120).map(|number| value_of(device, number)).collect();
    let is_new = found[1].as_deref() == Some(b"new");
    for (number, value) in found.iter().enumerate() {
        let wanted: Option<&[u8]> = match (is_new, number.is_multiple_of(3)) {
            (true, true) => None,
            (true, false) => Some(b"new"),
            (false, _) => (number < 80).then_some(b"old"),
        };
        assert_eq!(value.as_deref(), wanted, "key {number}, {is_new}");
    }
    is_new
}

#[test]
fn power_cut_leaves_all_of_a_batch_or_nothing() {
    let mut whole = 0;
    for polls in 0..100 {
        let mut device = open(64, parts_of(3));
        fill(&mut device, 80, b"old");
        submit(&mut device, BATCH, mixed());
        let mut is_done = false;
        for poll_number in 0..polls {
            // Commands that want a commit.
            match poll_number % 4 {
                0 => submit(&mut device, 2, store(900, b"beside")),
                1 => submit(&mut device, 3, SsdCommand::Flush),
                2 => device.request_checkpoint(),
                _ => {}
            }
            poll(&mut device);
            while let Some(completion) = device.next_completion(FRONT_END) {
                assert_eq!(completion.status, Status::SUCCESS);
                is_done |= completion.token == BATCH;
            }
        }
        let mut device = cut(device);
        let happened = happened(&mut device);
        assert!(happened || !is_done, "an acknowledged batch is gone after {polls} polls");
        whole += usize::from(happened);
        // What is left of an unfinished batch is in the way of nothing.
        assert_eq!(run(&mut device, mixed()).status, Status::SUCCESS);
        assert!(self::happened(&mut cut(device)));
    }
    assert!((10..90).contains(&whole), "{whole} batches were whole");
}

#[test]
fn shutdown_in_a_batch_leaves_all_of_it_or_nothing() {
    for polls in 0..90 {
        let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..parts_of(3) };
        let mut device = open(64, config);
        fill(&mut device, 80, b"old");
        submit(&mut device, BATCH, mixed());
        (0..polls).for_each(|_| poll(&mut device));
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        happened(&mut cut(device));
    }
}

#[test]
fn commands_beside_a_batch_keep_their_order() {
    for polls in 0..90 {
        let mut device = open(64, parts_of(3));
        fill(&mut device, 80, b"old");
        run(&mut device, store(900, b"beside"));
        submit(&mut device, BATCH, mixed());
        (0..polls).for_each(|_| poll(&mut device));
        submit(&mut device, 2, SsdCommand::List { position: ListPosition::START, keys_max: 1_000 });
        submit(&mut device, 3, store(900, b"later"));
        submit(&mut device, 4, retrieve(900));
        submit(&mut device, 5, retrieve(1));
        submit(&mut device, 6, store(1, b"last"));
        let mut done = Vec::new();
        for _ in 0..100_000 {
            poll(&mut device);
            done.extend(std::iter::from_fn(|| device.next_completion(FRONT_END)));
            if done.len() == 6 {
                break;
            }
        }
        let of = |token| done.iter().find(|completion| completion.token == token).unwrap();
        // A list shows the keys before the batch or those behind it.
        let has = |number| of(2).keys.iter().any(|listed| listed.key == key(number));
        assert_eq!((of(2).keys.len(), has(3), has(100)), (81, has(0), !has(0)), "after {polls} polls");
        assert_eq!((&of(4).sink[..], &of(5).sink[..]), (&b"later"[..], &b"new"[..]), "after {polls} polls");
        let mut device = cut(device);
        assert_eq!(value_of(&mut device, 1).as_deref(), Some(&b"last"[..]));
        assert_eq!(value_of(&mut device, 3), None);
    }
}

#[test]
fn condition_that_fails_leaves_nothing_of_a_long_batch() {
    let mut device = open(256, DeviceConfig::default());
    fill(&mut device, 3_000, b"old");
    let mut writes: Vec<BatchWrite> = (0..3_000).map(|number| put(number, &b"new"[..])).collect();
    let check = |number, condition| BatchWrite::Check { key: key(number), condition };
    writes.push(check(5_000, WriteCondition::IfAbsent));
    writes.push(check(5_001, WriteCondition::IfExists));
    let completion = run(&mut device, SsdCommand::Batch { writes: writes.clone() });
    assert_eq!((completion.status, completion.position), (Status::KEY_DOES_NOT_EXIST, 3_001));
    assert_eq!(value_of(&mut device, 0).as_deref(), Some(&b"old"[..]));
    run(&mut device, store(5_001, b"there"));
    assert_eq!(run(&mut device, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    assert_eq!(value_of(&mut device, 2_999).as_deref(), Some(&b"new"[..]));
    // A batch of checks alone writes nothing.
    let checks = (0..3_000).map(|number| check(number, WriteCondition::IfExists)).collect();
    let bytes = device.stats().client_bytes;
    assert_eq!(run(&mut device, SsdCommand::Batch { writes: checks }).status, Status::SUCCESS);
    assert_eq!(device.stats().client_bytes, bytes);
}

#[test]
fn clear_while_a_batch_is_planned_removes_what_it_found() {
    for polls in [1, 2, 3, 6] {
        let mut device = open(256, DeviceConfig::default());
        fill(&mut device, 4_000, b"old");
        let writes = (0..2_000).map(|number| put(number, &b"new"[..])).collect();
        submit(&mut device, BATCH, SsdCommand::Batch { writes });
        (0..polls).for_each(|_| poll(&mut device));
        submit(&mut device, 2, SsdCommand::Clear);
        let both = [next(&mut device).0, next(&mut device).0];
        assert!(both.iter().all(|completion| completion.status == Status::SUCCESS));
        let left = value_of(&mut device, 1);
        // The batch takes effect before the clear or behind it.
        let keys = if left.is_some() { 2_000 } else { 0 };
        assert_eq!(device.stats().keys[0], keys, "after {polls} polls");
        assert_eq!(cut(device).stats().keys[0], keys, "after {polls} polls");
    }
}

#[test]
fn records_that_the_collector_moves_are_replaced_by_a_batch() {
    // Many keys share a hash.
    let config = DeviceConfig { hash_bits: 8, ..parts_of(2) };
    let mut device = open(20, config);
    let mut random = fastrand::Rng::with_seed(7);
    let mut model: Vec<u8> = vec![0; 1_000];
    let mut moved = 0;
    for round in 1..120_u8 {
        let mut numbers: Vec<usize> = (0..1_000).collect();
        random.shuffle(&mut numbers);
        numbers.truncate(random.usize(20..200));
        let writes = numbers.iter().map(|&number| put(number, vec![round; 1_000])).collect();
        let before = device.stats().moved_bytes;
        submit(&mut device, BATCH, SsdCommand::Batch { writes });
        assert_eq!(next(&mut device).0.status, Status::SUCCESS, "round {round}");
        moved += device.stats().moved_bytes - before;
        numbers.iter().for_each(|&number| model[number] = round);
    }
    assert!(moved > 0, "the collector moved nothing");
    for (number, round) in model.into_iter().enumerate() {
        let wanted = (round > 0).then(|| vec![round; 1_000]);
        assert_eq!(value_of(&mut device, number), wanted, "key {number}");
    }
}

#[test]
fn batch_of_long_and_short_values_is_whole() {
    let mut device = open(256, DeviceConfig::default());
    let value = |number: usize| vec![1; if number.is_multiple_of(500) { 2 << 20 } else { number % 700 }];
    for round in 0..2 {
        let writes = (0..3_000).map(|number| put(number, value(number))).collect();
        submit(&mut device, BATCH, SsdCommand::Batch { writes });
        submit(&mut device, 2, retrieve(4_000));
        assert_eq!(next(&mut device).0.token, 2);
        assert_eq!(next(&mut device).0.status, Status::SUCCESS, "round {round}");
    }
    let mut device = cut(device);
    for number in [0, 1, 499, 500, 501, 1_000, 2_500, 2_999] {
        assert!(value_of(&mut device, number) == Some(value(number)), "key {number}");
    }
}

#[test]
fn batch_without_room_changes_nothing() {
    let mut device = open(20, DeviceConfig::default());
    fill(&mut device, 600, &[1; 3_000]);
    let writes = (0..1_800).map(|number| put(number, vec![2; 3_000])).collect();
    assert_eq!(run(&mut device, SsdCommand::Batch { writes }).status, Status::CAPACITY_EXCEEDED);
    assert_eq!((device.stats().keys[0], device.stats().in_flight), (600, 0));
    let mut device = cut(device);
    assert_eq!(value_of(&mut device, 599), Some(vec![1; 3_000]));
    // Other writes go on.
    run(&mut device, store(5, b"new"));
    assert_eq!(value_of(&mut device, 5).as_deref(), Some(&b"new"[..]));
}

/// Guards a regression: the device panicked when a long batch that only checks ran while the log was reserved for another
/// batch, whose plan it took for its own.
#[test]
fn long_batch_of_checks_runs_beside_a_batch_that_the_log_is_reserved_for() {
    let mut device = open(64, parts_of(2));
    let other = 10_000;
    fill(&mut device, 40, b"old");
    run(&mut device, store(other, b"other"));
    submit(
        &mut device,
        BATCH,
        SsdCommand::Batch { writes: (0..40).map(|number| put(number, "new")).collect() },
    );
    let condition = |number| if number == 0 { WriteCondition::IfExists } else { WriteCondition::IfAbsent };
    let check = |number| BatchWrite::Check { key: key(other + number), condition: condition(number) };
    let (mut checked, mut is_done) = (0, false);
    while !is_done {
        checked += 1;
        submit(&mut device, checked, SsdCommand::Batch { writes: (0..9).map(check).collect() });
        let (completion, _) = next(&mut device);
        assert_eq!(completion.status, Status::SUCCESS);
        is_done = completion.token == BATCH;
    }
    assert!(checked > 3, "{checked} batches of checks ran");
    assert_eq!(value_of(&mut device, 39).unwrap(), b"new");
}
