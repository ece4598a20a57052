//! Values that the device receives itself: they become visible by their store alone, as any other value; what is dropped or
//! refused gives its blocks back; nothing of a receipt survives a power cut.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, ReceiptStep, RecordExpiry, Sequence, SsdCommand, SsdCompletion,
    SubmitError, ValueReceipt, ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::namespace::{Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};
use std::io::{self, Read};

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const EXTENT: usize = 262_144;
/// Bytes of a value of two extents.
const RECEIVED: u64 = 2 * EXTENT as u64;

type ReceiptDevice = SsdDevice<MemoryMedia>;

fn open(blocks: u32) -> ReceiptDevice {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

/// Cuts the power, and opens the device again.
fn reopen(device: ReceiptDevice) -> ReceiptDevice {
    let media = device.into_media().after_power_cut();
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut text = vec![0; bytes];
    fastrand::Rng::with_seed(salt).fill(&mut text);
    text
}

/// Gives the device at most `most` bytes of a value.
fn give(device: &mut ReceiptDevice, receipt: &ValueReceipt, bytes: &[u8], most: usize) -> ReceiptStep {
    let mut part = &bytes[..bytes.len().min(most)];
    device.receive(receipt, &mut |slices| part.read_vectored(slices)).unwrap()
}

/// Gives the device the first bytes of a value, in parts of random length. Returns its receipt.
fn receive(device: &mut ReceiptDevice, value: &[u8], random: &mut fastrand::Rng) -> ValueReceipt {
    let receipt =
        device.begin_receipt(NamespaceId::FIRST, value.len()).expect("the device receives the value");
    let mut done = 0;
    for _ in 0..10_000_000 {
        let most = if random.bool() { random.usize(1..5_000) } else { random.usize(1..300_000) };
        match give(device, &receipt, &value[done..receipt.bytes()], most) {
            ReceiptStep::Received(bytes) => done += bytes,
            ReceiptStep::NoRoom => _ = device.poll(Nanos::ZERO, WALL),
        }
        if done == receipt.bytes() {
            return receipt;
        }
    }
    panic!("the device takes no more than {done} bytes of {}", receipt.bytes());
}

fn store_of(key: &str, receipt: ValueReceipt, rest: &[u8]) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: ValueSource::Received { receipt, rest: Bytes::copy_from_slice(rest) },
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn plain(key: &str, value: &[u8]) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.to_vec().into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn run(device: &mut ReceiptDevice, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, namespace, 1, command).unwrap();
    for _ in 0..10_000_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

fn run_first(device: &mut ReceiptDevice, command: SsdCommand) -> Status {
    run(device, NamespaceId::FIRST, command).status
}

fn settle(device: &mut ReceiptDevice) {
    while device.poll(Nanos::ZERO, WALL) {}
}

#[track_caller]
fn holds(device: &mut ReceiptDevice, key: &str, value: &[u8]) {
    let found = retrieve(device, key);
    assert_eq!((found.status, found.value_bytes as usize), (Status::SUCCESS, value.len()));
    assert!(found.sink == value, "{key} has other bytes");
}

fn retrieve(device: &mut ReceiptDevice, key: &str) -> SsdCompletion {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let release = ReadRelease::WhenDurable;
    let command = SsdCommand::retrieve_whole(key, Vec::new().into(), release);
    run(device, NamespaceId::FIRST, command)
}

#[test]
fn received_values_of_every_shape_read_back_before_and_after_a_power_cut() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut device = open(256);
    let lengths = [
        EXTENT,
        EXTENT + 1,
        2 * EXTENT - 1,
        3 * EXTENT + 4_097,
        5 * EXTENT,
        17 * EXTENT + random.usize(..EXTENT),
    ];
    for (salt, bytes) in (0..).zip(lengths) {
        let value = text(bytes, salt);
        let receipt = receive(&mut device, &value, &mut random);
        assert_eq!(receipt.bytes(), bytes / EXTENT * EXTENT);
        let store = store_of(&format!("key {bytes}"), receipt.clone(), &value[receipt.bytes()..]);
        assert_eq!(run_first(&mut device, store), Status::SUCCESS, "seed {seed}");
    }
    for _ in 0..2 {
        for (salt, bytes) in (0..).zip(lengths) {
            holds(&mut device, &format!("key {bytes}"), &text(bytes, salt));
        }
        device = reopen(device);
    }
}

#[test]
fn nothing_of_a_receipt_is_seen_or_survives_before_its_store() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut device = open(64);
    let (old, new) = (text(2 * EXTENT, 1), text(2 * EXTENT + 7, 2));
    assert_eq!(run_first(&mut device, plain("a", &old)), Status::SUCCESS);
    let receipt = receive(&mut device, &new, &mut random);
    holds(&mut device, "a", &old);
    settle(&mut device);
    let store = store_of("a", receipt.clone(), &new[receipt.bytes()..]);
    let mut device = reopen(device);
    holds(&mut device, "a", &old);
    let refused = device.submit(FRONT_END, NamespaceId::FIRST, 1, store);
    assert_eq!(refused, Err(SubmitError::Refused(Status::INVALID_FIELD)), "a receipt of an earlier life");
    let free = device.stats().free_blocks;
    for _ in 0..100 {
        let receipt = receive(&mut device, &new, &mut random);
        drop(receipt);
        settle(&mut device);
    }
    assert!(device.stats().free_blocks + 4 >= free, "seed {seed}: dropped receipts keep their blocks");
    holds(&mut device, "a", &old);
}

#[test]
fn a_store_is_refused_until_its_receipt_is_whole_and_for_another_length() {
    let mut device = open(64);
    let value = text(2 * EXTENT + 10, 3);
    let receipt = device.begin_receipt(NamespaceId::FIRST, value.len()).unwrap();
    let refused = |device: &mut ReceiptDevice, command| {
        let submitted = device.submit(FRONT_END, NamespaceId::FIRST, 1, command);
        assert_eq!(submitted, Err(SubmitError::Refused(Status::INVALID_FIELD)));
    };
    refused(&mut device, store_of("a", receipt.clone(), &value[2 * EXTENT..]));
    let mut done = 0;
    while done < receipt.bytes() {
        match give(&mut device, &receipt, &value[done..receipt.bytes()], 100_000) {
            ReceiptStep::Received(bytes) => done += bytes,
            ReceiptStep::NoRoom => _ = device.poll(Nanos::ZERO, WALL),
        }
        if done < receipt.bytes() {
            refused(&mut device, store_of("a", receipt.clone(), &value[2 * EXTENT..]));
        }
    }
    // With that much behind it, it would have another extent.
    refused(&mut device, store_of("a", receipt.clone(), &vec![0; EXTENT]));
    assert_eq!(give(&mut device, &receipt, b"more", 4), ReceiptStep::Received(0));
    assert_eq!(run_first(&mut device, store_of("a", receipt.clone(), &value[2 * EXTENT..])), Status::SUCCESS);
    refused(&mut device, store_of("b", receipt, &value[2 * EXTENT..]));
    holds(&mut device, "a", &value);
}

#[test]
fn a_failed_source_takes_nothing_away() {
    let mut device = open(64);
    let value = text(EXTENT, 4);
    let receipt = device.begin_receipt(NamespaceId::FIRST, value.len()).unwrap();
    while give(&mut device, &receipt, &value, 5_000) == ReceiptStep::NoRoom {
        device.poll(Nanos::ZERO, WALL);
    }
    for _ in 0..100 {
        let failed = device.receive(&receipt, &mut |_| Err(io::ErrorKind::WouldBlock.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    let mut done = 5_000;
    while done < value.len() {
        match give(&mut device, &receipt, &value[done..], usize::MAX) {
            ReceiptStep::Received(bytes) => done += bytes,
            ReceiptStep::NoRoom => _ = device.poll(Nanos::ZERO, WALL),
        }
    }
    assert_eq!(run_first(&mut device, store_of("a", receipt, b"")), Status::SUCCESS);
    holds(&mut device, "a", &value);
}

#[test]
fn conditions_and_quotas_are_decided_when_the_store_runs() {
    let mut random = fastrand::Rng::with_seed(5);
    let mut device = open(128);
    let value = text(2 * EXTENT, 5);
    let receipt = receive(&mut device, &value, &mut random);
    assert_eq!(run_first(&mut device, plain("a", b"short")), Status::SUCCESS);
    let SsdCommand::Store { key, value: source, expiry, .. } = store_of("a", receipt, b"") else {
        unreachable!("a store is a store");
    };
    let store = SsdCommand::Store { key, value: source, condition: WriteCondition::IfAbsent, expiry };
    let before = device.stats().live_bytes;
    assert_eq!(run_first(&mut device, store), Status::KEY_EXISTS);
    holds(&mut device, "a", b"short");
    settle(&mut device);
    assert!(device.stats().live_bytes + 2 * EXTENT as u64 <= before, "a refused value keeps its extents");

    let small = Namespace { kind: NamespaceKind::Kv, size: EXTENT as u64, ..Namespace::IMPLICIT };
    let create = SsdCommand::Namespace(NamespaceChange::Create(small));
    let made = run(&mut device, NamespaceId::FIRST, create);
    assert_eq!(made.status, Status::SUCCESS);
    let receipt = receive(&mut device, &value, &mut random);
    let refused = run(&mut device, NamespaceId(2), store_of("a", receipt, b""));
    assert_eq!(refused.status, Status::CAPACITY_EXCEEDED);
}

/// Returns the store of a value that was received, under a condition.
fn store_if(key: &str, receipt: &ValueReceipt, rest: &[u8], condition: WriteCondition) -> SsdCommand {
    let (key, rest) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(rest));
    let value = ValueSource::Received { receipt: receipt.clone(), rest };
    SsdCommand::Store { key, value, condition, expiry: RecordExpiry::Never }
}

#[test]
fn a_store_whose_condition_fails_leaves_its_receipt_to_another_one() {
    let mut random = fastrand::Rng::with_seed(10);
    let mut device = open(64);
    let value = text(2 * EXTENT + 9, 10);
    assert_eq!(run_first(&mut device, plain("a", b"short")), Status::SUCCESS);
    let receipt = receive(&mut device, &value, &mut random);
    let rest = &value[receipt.bytes()..];
    let unmet = [
        ("a", WriteCondition::IfAbsent, Status::KEY_EXISTS),
        ("b", WriteCondition::IfExists, Status::KEY_DOES_NOT_EXIST),
        ("a", WriteCondition::IfSequence(Sequence(1 << 40)), Status::SEQUENCE_MISMATCH),
    ];
    for (key, condition, status) in unmet {
        assert_eq!(run_first(&mut device, store_if(key, &receipt, rest, condition)), status);
        settle(&mut device);
        holds(&mut device, "a", b"short");
    }
    let store = store_if("a", &receipt, rest, WriteCondition::IfExists);
    assert_eq!(run_first(&mut device, store), Status::SUCCESS);
    holds(&mut device, "a", &value);
    let again = store_if("b", &receipt, rest, WriteCondition::Always);
    let refused = device.submit(FRONT_END, NamespaceId::FIRST, 1, again);
    assert_eq!(refused, Err(SubmitError::Refused(Status::INVALID_FIELD)), "the value is stored");
    holds(&mut reopen(device), "a", &value);
}

#[test]
fn a_receipt_that_a_store_left_gives_its_room_back_when_it_is_dropped() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut device = open(64);
    let value = text(2 * EXTENT, 11);
    assert_eq!(run_first(&mut device, plain("a", b"short")), Status::SUCCESS);
    settle(&mut device);
    let before = device.stats().live_bytes;
    // More values than the medium has room for.
    for round in 0..60 {
        let receipt = receive(&mut device, &value, &mut random);
        let store = store_if("a", &receipt, b"", WriteCondition::IfAbsent);
        assert_eq!(run_first(&mut device, store), Status::KEY_EXISTS, "round {round}");
        settle(&mut device);
        assert!(device.stats().live_bytes >= before + RECEIVED, "round {round}: the receipt has ended");
        drop(receipt);
        settle(&mut device);
        assert_eq!(device.stats().live_bytes, before, "round {round}");
    }
}

#[test]
fn receipts_hold_no_more_than_a_share_of_the_free_capacity_and_other_writes_go_on() {
    let mut random = fastrand::Rng::with_seed(6);
    let mut device = open(96);
    let mut receipts = Vec::new();
    while let Some(receipt) = device.begin_receipt(NamespaceId::FIRST, 2 * EXTENT) {
        receipts.push(receipt);
        assert!(receipts.len() < 48, "receipts hold all of the device");
    }
    assert!(receipts.len() > 3, "only {} receipts", receipts.len());
    for round in 0..40 {
        let value = text(random.usize(1..3 * EXTENT), round);
        assert_eq!(run_first(&mut device, plain(&format!("{}", round % 4), &value)), Status::SUCCESS);
        holds(&mut device, &format!("{}", round % 4), &value);
    }
    let first = receipts.len();
    receipts.clear();
    settle(&mut device);
    while let Some(receipt) = device.begin_receipt(NamespaceId::FIRST, 2 * EXTENT) {
        receipts.push(receipt);
    }
    assert!(
        receipts.len() + 1 >= first,
        "{first} receipts were open, and now no more than {}",
        receipts.len()
    );
    receipts.clear();
    settle(&mut device);
    let last = receive(&mut device, &text(2 * EXTENT, 1), &mut random);
    assert_eq!(run_first(&mut device, store_of("last", last, b"")), Status::SUCCESS);
    assert!(device.begin_receipt(NamespaceId::FIRST, EXTENT - 1).is_none(), "a short value has no receipt");
    assert!(device.begin_receipt(NamespaceId::FIRST, usize::MAX / 2).is_none(), "no device is that large");
}

#[test]
fn received_values_find_room_on_a_device_that_collects() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut device = open(96);
    let mut values = vec![Vec::new(); 6];
    let mut stored = 0;
    for round in 0..300_u64 {
        let at = random.usize(..values.len());
        let value = text(random.usize(EXTENT..3 * EXTENT), round);
        let Some(_) = device.begin_receipt(NamespaceId::FIRST, value.len()) else {
            assert_eq!(run_first(&mut device, plain(&format!("{at}"), &value)), Status::SUCCESS);
            values[at] = value;
            continue;
        };
        let receipt = receive(&mut device, &value, &mut random);
        if random.u8(..8) == 0 {
            continue; // Its client has gone.
        }
        let rest = &value[receipt.bytes()..];
        let store = store_of(&format!("{at}"), receipt.clone(), rest);
        assert_eq!(run_first(&mut device, store), Status::SUCCESS, "seed {seed}, round {round}");
        stored += 1;
        values[at] = value;
    }
    for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_empty()) {
        holds(&mut device, &format!("{at}"), value);
    }
    let mut device = reopen(device);
    for (at, value) in values.iter().enumerate().filter(|(_, value)| !value.is_empty()) {
        holds(&mut device, &format!("{at}"), value);
    }
    assert!(stored > 150, "seed {seed}: only {stored} of 300 values were received by the device");
}

#[test]
fn a_receipt_without_progress_gives_its_room_to_other_values() {
    let mut device = open(64);
    let mut idle = Vec::new();
    while let Some(receipt) = device.begin_receipt(NamespaceId::FIRST, EXTENT) {
        idle.push(receipt);
    }
    let value = text(EXTENT, 1);
    assert_eq!(give_all(&mut device, &idle[0], &value[..5_000]), 5_000);
    device.poll(Nanos::from_millis(4_000), WALL);
    assert!(device.begin_receipt(NamespaceId::FIRST, EXTENT).is_none(), "they were not idle for long");
    device.poll(Nanos::from_millis(6_000), WALL);
    let fresh = device.begin_receipt(NamespaceId::FIRST, EXTENT).expect("idle receipts gave up their room");
    // What follows of the first value is taken and dropped, and its store fails.
    assert_eq!(give_all(&mut device, &idle[0], &value[5_000..]), EXTENT - 5_000);
    let refused = device.submit(FRONT_END, NamespaceId::FIRST, 1, store_of("a", idle[0].clone(), b""));
    assert_eq!(refused, Err(SubmitError::Refused(Status::CAPACITY_EXCEEDED)));
    assert_eq!(give_all(&mut device, &fresh, &value), EXTENT);
    assert_eq!(run_first(&mut device, store_of("a", fresh, b"")), Status::SUCCESS);
    holds(&mut device, "a", &value);
}

/// Gives the device bytes until it has all of them, and returns how many it took.
fn give_all(device: &mut ReceiptDevice, receipt: &ValueReceipt, bytes: &[u8]) -> usize {
    let mut done = 0;
    for _ in 0..100_000 {
        match give(device, receipt, &bytes[done..], usize::MAX) {
            ReceiptStep::Received(more) => done += more,
            ReceiptStep::NoRoom => _ = device.poll(Nanos::ZERO, WALL),
        }
        if done == bytes.len() {
            break;
        }
    }
    done
}

#[test]
fn an_aborted_store_gives_its_extents_back() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut device = open(64);
    let value = text(3 * EXTENT, 9);
    let before = device.stats().live_bytes;
    let receipt = receive(&mut device, &value, &mut random);
    device.submit(FRONT_END, NamespaceId::FIRST, 77, store_of("a", receipt, b"")).unwrap();
    assert!(device.abort(FRONT_END, 77), "the store has not started");
    settle(&mut device);
    assert_eq!(device.next_completion(FRONT_END).unwrap().status, Status::ABORT_REQUESTED);
    settle(&mut device);
    assert_eq!(device.stats().live_bytes, before, "an aborted store keeps its extents");
}

#[test]
fn a_namespace_with_limits_receives_nothing_ahead_of_them() {
    let mut device = open(64);
    let limits = NamespaceLimits { bytes_per_second: 1_000_000, ..Namespace::IMPLICIT.limits };
    let limited = Namespace { kind: NamespaceKind::Kv, limits, ..Namespace::IMPLICIT };
    let made = run(&mut device, NamespaceId::FIRST, SsdCommand::Namespace(NamespaceChange::Create(limited)));
    assert_eq!(made.status, Status::SUCCESS);
    assert!(device.begin_receipt(NamespaceId(2), EXTENT).is_none());
    assert!(device.begin_receipt(NamespaceId::FIRST, EXTENT).is_some());
}
