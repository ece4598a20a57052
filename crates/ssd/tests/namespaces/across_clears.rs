//! Tests of batches that clear namespaces before they write.

use super::across::{BatchParts, configs, put, removal};
use super::host::{FRONT_END, NamespaceHost, WALL, blocks};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchClear, BatchWrite, NamespaceId, NamespaceRun, ReadRelease, RecordExpiry, Sequence, SsdCommand,
    SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::namespace::{BlockFormat, Namespace};

const FIRST: NamespaceId = NamespaceId::FIRST;
const SECOND: NamespaceId = NamespaceId(2);
const THIRD: NamespaceId = NamespaceId(3);

/// Returns the batch that clears namespaces and makes some writes of each namespace.
pub(crate) fn clearing(cleared: &[NamespaceId], parts: BatchParts) -> (NamespaceId, SsdCommand) {
    let clear = |namespace: &NamespaceId| NamespaceRun {
        namespace: *namespace,
        end: 0,
        clear: BatchClear::BeforeWrites,
    };
    let mut runs: Vec<NamespaceRun> = cleared.iter().map(clear).collect();
    let mut writes = Vec::new();
    for (namespace, part) in parts {
        writes.extend(part);
        runs.push(NamespaceRun { namespace, end: writes.len(), clear: BatchClear::No });
    }
    (runs[0].namespace, SsdCommand::BatchAcross { writes, runs })
}

fn run(host: &mut NamespaceHost, cleared: &[NamespaceId], parts: BatchParts) -> SsdCompletion {
    let (first, command) = clearing(cleared, parts);
    host.run(first, command)
}

fn put_if(key: &'static str, value: &'static str, condition: WriteCondition) -> BatchWrite {
    BatchWrite::Store { key: key.into(), value: value.into(), condition, expiry: RecordExpiry::Never }
}

fn check(key: &'static str, condition: WriteCondition) -> BatchWrite {
    BatchWrite::Check { key: key.into(), condition }
}

fn keys_of(host: &NamespaceHost) -> [u64; 3] {
    host.device.stats().keys[..3].try_into().unwrap()
}

#[test]
fn writes_of_a_batch_stay_behind_its_clears_also_after_a_power_cut() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        for namespace in [FIRST, SECOND, THIRD] {
            for key in [&b"a"[..], b"b", b"c"] {
                assert_eq!(host.set(namespace, key, b"old"), Status::SUCCESS);
            }
        }
        let parts = vec![
            (THIRD, vec![put("a", "new"), removal("b"), removal("absent")]),
            (FIRST, vec![put("a", vec![7; 20_000]), removal("b"), put("d", "new"), removal("absent")]),
        ];
        let completion = run(&mut host, &[FIRST, SECOND], parts);
        assert_eq!(completion.status, Status::SUCCESS);
        for is_reopened in [false, true] {
            if is_reopened {
                host = host.reopened();
            }
            assert_eq!(keys_of(&host), [2, 0, 2]);
            assert_eq!(host.get(FIRST, b"a").unwrap(), [7; 20_000]);
            assert_eq!(host.get(FIRST, b"d").unwrap(), b"new");
            assert_eq!(host.get(FIRST, b"b"), Err(Status::KEY_DOES_NOT_EXIST));
            assert_eq!(host.get(SECOND, b"a"), Err(Status::KEY_DOES_NOT_EXIST));
            assert_eq!(host.get(THIRD, b"a").unwrap(), b"new");
            assert_eq!(host.get(THIRD, b"b"), Err(Status::KEY_DOES_NOT_EXIST));
            assert_eq!(host.get(THIRD, b"c").unwrap(), b"old");
        }
        let mut host = host.restarted();
        assert_eq!(keys_of(&host), [2, 0, 2]);
        assert_eq!(host.get(FIRST, b"a").unwrap(), [7; 20_000]);
    }
}

#[test]
fn conditions_are_decided_on_what_is_there_before_the_clear() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        assert_eq!(host.set(FIRST, b"there", b"1"), Status::SUCCESS);
        assert_eq!(host.set(SECOND, b"other", b"1"), Status::SUCCESS);
        let read = SsdCommand::Exist { key: "there".into(), release: ReadRelease::WhenDurable };
        let sequence = host.run(FIRST, read).sequence;
        let refused = [
            (check("there", WriteCondition::IfAbsent), Status::KEY_EXISTS),
            (put_if("there", "2", WriteCondition::IfAbsent), Status::KEY_EXISTS),
            (put_if("gone", "2", WriteCondition::IfExists), Status::KEY_DOES_NOT_EXIST),
            (
                put_if("there", "2", WriteCondition::IfSequence(Sequence(sequence.0 + 1))),
                Status::SEQUENCE_MISMATCH,
            ),
        ];
        for (write, status) in refused {
            let parts =
                vec![(THIRD, vec![put("a", "v"), put("b", "v")]), (FIRST, vec![put("x", "v"), write])];
            let completion = run(&mut host, &[FIRST, SECOND], parts);
            assert_eq!((completion.status, completion.position), (status, 3));
            assert_eq!(keys_of(&host), [1, 1, 0], "a refused batch cleared a namespace");
        }
        let parts = vec![
            (SECOND, vec![check("other", WriteCondition::IfExists)]),
            (
                FIRST,
                vec![
                    put_if("there", "2", WriteCondition::IfSequence(sequence)),
                    put_if("new", "2", WriteCondition::IfAbsent),
                ],
            ),
        ];
        assert_eq!(run(&mut host, &[FIRST, SECOND], parts).status, Status::SUCCESS);
        let mut host = host.reopened();
        assert_eq!(keys_of(&host), [2, 0, 0]);
        assert_eq!(host.get(FIRST, b"there").unwrap(), b"2");
    }
}

#[test]
fn cleared_record_lends_no_expiry_to_the_one_that_follows_it() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let store = |expiry| BatchWrite::Store {
        key: "k".into(),
        value: "v".into(),
        condition: WriteCondition::Always,
        expiry,
    };
    let writes = vec![store(RecordExpiry::At(WALL.0 + 1_000_000))];
    assert_eq!(host.run(FIRST, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    let parts = vec![(FIRST, vec![store(RecordExpiry::Keep)])];
    assert_eq!(run(&mut host, &[FIRST], parts).status, Status::SUCCESS);
    let read = SsdCommand::Exist { key: "k".into(), release: ReadRelease::WhenDurable };
    let found = host.run(FIRST, read);
    assert_eq!((found.status, found.expiry_ms), (Status::SUCCESS, 0));
}

/// Writes keys with short values to a namespace.
fn fill(host: &mut NamespaceHost, namespace: NamespaceId, keys: u32) {
    for first in (0..keys).step_by(500) {
        let writes = (first..first + 500).map(|number| put(format!("key-{number}"), "v")).collect();
        assert_eq!(host.run(namespace, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    }
}

/// Returns the tokens of commands completed in one turn.
fn turn(host: &mut NamespaceHost) -> Vec<u64> {
    host.device.poll(host.now, WALL);
    std::iter::from_fn(|| host.device.next_completion(FRONT_END)).map(|completion| completion.token).collect()
}

#[test]
fn writes_of_a_batch_wait_until_many_cleared_keys_have_left_the_index() {
    let durability = [Durability::OnFlush; NAMESPACES];
    for config in configs() {
        let mut host = NamespaceHost::new(128, DeviceConfig { durability, ..config });
        let keys = 20_000;
        fill(&mut host, SECOND, keys);
        fill(&mut host, THIRD, 500);
        let condition = WriteCondition::IfExists;
        let last = BatchWrite::Check { key: format!("key-{}", keys - 1).into(), condition };
        let parts = vec![
            (SECOND, vec![put("key-1", "new"), last, put("fresh", "new")]),
            (FIRST, vec![put("k", "v")]),
        ];
        let (first, command) = clearing(&[SECOND], parts);
        let batch = host.submit(first, command);
        let read =
            |key: &'static str| SsdCommand::Exist { key: key.into(), release: ReadRelease::WhenDurable };
        let mut done = turn(&mut host);
        while host.device.stats().keys[SECOND.index()] > 2 {
            done.extend(turn(&mut host));
        }
        // The keys are walked now: reads of other namespaces go on, and nothing overtakes the batch.
        let elsewhere = host.submit(THIRD, read("key-7"));
        let cleared = host.submit(SECOND, read("key-7"));
        let later = host.submit(SECOND, SsdCommand::Batch { writes: vec![put("key-1", "later")] });
        let mut order = done.clone();
        while order.len() < 4 {
            order.extend(turn(&mut host));
        }
        let at = |token: u64| order.iter().position(|one| *one == token).unwrap();
        assert!(done.is_empty(), "the batch ended before its keys were walked");
        assert!(at(elsewhere) < at(batch), "a read of another namespace waits for the clear: {order:?}");
        assert!(at(batch) < at(later), "a later write of a key overtook the batch: {order:?}");
        assert!(order.contains(&cleared));
        assert_eq!(keys_of(&host), [1, 2, 500]);
        assert_eq!(host.get(SECOND, b"key-1").unwrap(), b"later");
        assert_eq!(host.get(SECOND, b"fresh").unwrap(), b"new");
        assert_eq!(host.get(SECOND, b"key-7"), Err(Status::KEY_DOES_NOT_EXIST));
        assert_eq!(host.run(FIRST, SsdCommand::Flush).status, Status::SUCCESS);
        let mut host = host.reopened();
        assert_eq!(keys_of(&host), [1, 2, 500]);
        assert_eq!(host.get(SECOND, b"key-1").unwrap(), b"later");
    }
}

#[test]
fn what_was_acknowledged_before_is_durable_while_a_batch_waits_for_a_walk() {
    let durability = [Durability::OnFlush; NAMESPACES];
    for config in configs() {
        let mut host = NamespaceHost::new(128, DeviceConfig { durability, ..config });
        fill(&mut host, SECOND, 20_000);
        fill(&mut host, THIRD, 500);
        let (first, command) = clearing(&[SECOND], vec![(SECOND, vec![put("key-1", "new")])]);
        host.submit(first, command);
        while host.device.stats().keys[SECOND.index()] > 2 {
            assert!(turn(&mut host).is_empty());
        }
        // A power cut during the walk takes the batch, and nothing else.
        let mut host = host.reopened();
        assert_eq!(keys_of(&host), [0, 20_000, 500]);
        assert!(host.get(THIRD, b"key-499").is_ok());
    }
}

#[test]
fn bytes_that_a_clear_frees_count_for_the_writes_of_its_batch() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        let small = host.create(Namespace { size: 3_000, ..Namespace::IMPLICIT });
        assert_eq!(host.set(small, b"old", &[1; 2_500]), Status::SUCCESS);
        let other = (SECOND, vec![put("k", "v"), put("l", "v"), put("m", "v")]);
        let parts = |bytes| vec![(small, vec![put("new", vec![2; bytes])]), other.clone()];
        assert_eq!(run(&mut host, &[THIRD], parts(2_400)).status, Status::CAPACITY_EXCEEDED);
        assert_eq!(run(&mut host, &[small], parts(4_000)).status, Status::CAPACITY_EXCEEDED);
        assert_eq!(host.get(small, b"old").unwrap(), [1; 2_500]);
        assert_eq!(run(&mut host, &[small], parts(2_400)).status, Status::SUCCESS);
        assert_eq!(run(&mut host, &[small], parts(2_400)).status, Status::SUCCESS);
        assert_eq!(host.get(small, b"new").unwrap(), [2; 2_400]);
        assert_eq!(host.get(small, b"old"), Err(Status::KEY_DOES_NOT_EXIST));
    }
}

#[test]
fn full_device_is_cleared_and_filled_again_by_batches() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    for round in 0..3 {
        let mut stored = 0_u32;
        loop {
            let key = format!("{round}-{stored}");
            match host.set(FIRST, key.as_bytes(), &[1; 30_000]) {
                Status::SUCCESS => stored += 1,
                Status::CAPACITY_EXCEEDED => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(stored > 20, "round {round}: {stored} values");
        let parts = vec![(FIRST, vec![put("k", vec![2; 30_000])]), (SECOND, vec![put("k", vec![2; 30_000])])];
        assert_eq!(run(&mut host, &[FIRST], parts).status, Status::SUCCESS, "round {round}");
        assert_eq!(keys_of(&host), [1, 1, 0]);
    }
    assert_eq!(host.reopened().get(FIRST, b"k").unwrap(), [2; 30_000]);
}

#[test]
fn durability_of_a_namespace_that_is_only_cleared_counts() {
    let mut config =
        DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
    config.durability[SECOND.index()] = Durability::Always;
    let mut host = NamespaceHost::new(32, config);
    assert_eq!(host.set(SECOND, b"old", b"v"), Status::SUCCESS);
    assert_eq!(run(&mut host, &[SECOND], vec![(FIRST, vec![put("a", "v")])]).status, Status::SUCCESS);
    let mut host = host.reopened();
    assert_eq!(host.get(FIRST, b"a").unwrap(), b"v");
    assert_eq!(host.get(SECOND, b"old"), Err(Status::KEY_DOES_NOT_EXIST));
}

#[test]
fn batch_without_writes_clears_every_key_space() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let all: Vec<NamespaceId> = (1..).take(NAMESPACES).map(NamespaceId).collect();
    for namespace in &all {
        assert_eq!(host.set(*namespace, b"k", b"v"), Status::SUCCESS);
    }
    assert_eq!(run(&mut host, &all, vec![]).status, Status::SUCCESS);
    assert_eq!(host.device.stats().keys[..NAMESPACES], [0; NAMESPACES]);
    let mut host = host.reopened();
    assert_eq!(host.device.stats().keys[..NAMESPACES], [0; NAMESPACES]);
    assert_eq!(host.set(FIRST, b"k", b"v"), Status::SUCCESS);
}

#[test]
fn block_namespace_is_never_cleared_by_a_batch() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let disk = host.create(blocks(BlockFormat::B512, 1_000));
    assert_eq!(host.write(disk, 0, vec![1; 512]), Status::SUCCESS);
    assert_eq!(host.set(FIRST, b"k", b"v"), Status::SUCCESS);
    assert_eq!(run(&mut host, &[FIRST, disk], vec![]).status, Status::INVALID_NAMESPACE);
    assert_eq!(host.get(FIRST, b"k").unwrap(), b"v");
    assert_eq!(host.read(disk, 0, 1).unwrap(), [1; 512]);
}

#[test]
fn expiries_of_cleared_keys_are_gone() {
    let mut host = NamespaceHost::new(64, DeviceConfig::default());
    let store = |key: String| BatchWrite::Store {
        key: key.into(),
        value: "v".into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::At(WALL.0 + 5),
    };
    for first in (0..4_000).step_by(500) {
        let writes = (first..first + 500).map(|number| store(format!("k{number}"))).collect();
        assert_eq!(host.run(FIRST, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    }
    let parts = vec![(FIRST, vec![put("k1", "new"), put("k2", "new")])];
    assert_eq!(run(&mut host, &[FIRST], parts).status, Status::SUCCESS);
    assert_eq!(host.device.next_expiry(), None);
    host.now = Nanos::from_millis(1_000);
    assert_eq!(host.get(FIRST, b"k1").unwrap(), b"new");
    assert_eq!(keys_of(&host), [2, 0, 0]);
}
