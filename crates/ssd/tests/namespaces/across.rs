//! Tests of batches over several namespaces.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks};
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchClear, BatchWrite, NamespaceId, NamespaceRun, RecordExpiry, SsdCommand, SubmitError, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{BATCH_RUNS_MAX, NAMESPACES};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceLimits};

const FIRST: NamespaceId = NamespaceId::FIRST;
const SECOND: NamespaceId = NamespaceId(2);
const THIRD: NamespaceId = NamespaceId(3);

pub(crate) fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> BatchWrite {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    BatchWrite::Store { key: key.into(), value: value.into(), condition, expiry }
}

pub(crate) fn removal(key: impl Into<Bytes>) -> BatchWrite {
    BatchWrite::Delete { key: key.into(), condition: WriteCondition::Always }
}

fn check(key: &'static str, condition: WriteCondition) -> BatchWrite {
    BatchWrite::Check { key: key.into(), condition }
}

/// Runs of writes with their namespaces.
pub(crate) type BatchParts = Vec<(NamespaceId, Vec<BatchWrite>)>;

/// Returns the batch of some writes of each namespace, and the namespace that it is submitted with.
pub(crate) fn across(parts: BatchParts) -> (NamespaceId, SsdCommand) {
    let (first, mut writes, mut runs) = (parts[0].0, Vec::new(), Vec::new());
    for (namespace, part) in parts {
        writes.extend(part);
        runs.push(NamespaceRun { namespace, end: writes.len(), clear: BatchClear::No });
    }
    (first, SsdCommand::BatchAcross { writes, runs })
}

fn run(host: &mut NamespaceHost, parts: BatchParts) -> Status {
    let (first, command) = across(parts);
    host.run(first, command).status
}

/// Returns the configurations in which a batch of some writes is carried out in one turn, and in many.
pub(crate) fn configs() -> [DeviceConfig; 2] {
    [DeviceConfig::default(), DeviceConfig { batch_part_writes: 2, ..DeviceConfig::default() }]
}

#[test]
fn keys_of_all_namespaces_change_together_and_stay_after_a_power_cut() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        assert_eq!(host.set(SECOND, b"old", b"1"), Status::SUCCESS);
        let many: Vec<BatchWrite> =
            (0..9).map(|number| put(format!("key-{number}"), number.to_string())).collect();
        // The same key of two namespaces is two keys, and a namespace may have several runs.
        let parts = vec![
            (SECOND, vec![removal("old"), put("same", "second")]),
            (FIRST, vec![put("same", "first"), removal("absent")]),
            (SECOND, vec![put("new", vec![7; 20_000])]),
            (NamespaceId(16), many),
        ];
        assert_eq!(run(&mut host, parts), Status::SUCCESS);
        let mut host = host.reopened();
        for (namespace, key, value) in [(FIRST, &b"same"[..], &b"first"[..]), (SECOND, b"same", b"second")] {
            assert_eq!(host.get(namespace, key).unwrap(), value);
        }
        assert_eq!(host.get(SECOND, b"old"), Err(Status::KEY_DOES_NOT_EXIST));
        assert_eq!(host.get(SECOND, b"new").unwrap(), [7; 20_000]);
        assert_eq!(host.get(NamespaceId(16), b"key-8").unwrap(), b"8");
        let keys = host.device.stats().keys;
        assert_eq!((keys[0], keys[1], keys[15]), (1, 2, 9));
    }
}

#[test]
fn long_values_of_two_namespaces_change_together() {
    let mut host = NamespaceHost::new(128, DeviceConfig::default());
    for value in [1, 2] {
        let long = |key| put(key, vec![value; 3_000_000]);
        let status = run(&mut host, vec![(FIRST, vec![long("k")]), (THIRD, vec![put("s", "t"), long("k")])]);
        assert_eq!(status, Status::SUCCESS);
        host = host.reopened();
        for namespace in [FIRST, THIRD] {
            assert!(host.get(namespace, b"k").unwrap() == vec![value; 3_000_000], "{namespace}");
        }
    }
}

#[test]
fn condition_of_one_namespace_decides_on_all() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        assert_eq!(host.set(SECOND, b"watched", b"1"), Status::SUCCESS);
        let parts = |condition| {
            let writes = |name: &str| (0..3).map(|number| put(format!("{name}-{number}"), "v")).collect();
            vec![(FIRST, writes("f")), (SECOND, vec![check("watched", condition)]), (THIRD, writes("t"))]
        };
        let (first, command) = across(parts(WriteCondition::IfAbsent));
        let refused = host.run(first, command);
        assert_eq!((refused.status, refused.position), (Status::KEY_EXISTS, 3));
        assert_eq!(host.device.stats().keys[..3], [0, 1, 0]);
        assert_eq!(run(&mut host, parts(WriteCondition::IfExists)), Status::SUCCESS);
        assert_eq!(host.device.stats().keys[..3], [3, 1, 3]);
        // One that checks only writes nothing.
        let both =
            |condition| vec![(FIRST, vec![check("f-0", condition)]), (THIRD, vec![check("no", condition)])];
        assert_eq!(run(&mut host, both(WriteCondition::IfExists)), Status::KEY_DOES_NOT_EXIST);
        assert_eq!(run(&mut host, both(WriteCondition::Always)), Status::SUCCESS);
    }
}

#[test]
fn quota_of_any_namespace_refuses_the_whole_batch() {
    for config in configs() {
        let mut host = NamespaceHost::new(32, config);
        let small = host.create(Namespace { size: 3_000, ..Namespace::IMPLICIT });
        let parts = |bytes: usize| {
            let first = (0..4).map(|number| put(format!("k{number}"), "v")).collect();
            // Two runs of one namespace count together.
            let half = |key| (small, vec![put(key, vec![1; bytes / 2])]);
            vec![(THIRD, first), half("a"), (FIRST, vec![put("k", vec![1; 10_000])]), half("b")]
        };
        assert_eq!(run(&mut host, parts(4_000)), Status::CAPACITY_EXCEEDED);
        assert_eq!(host.device.stats().keys[..3], [0; 3]);
        assert_eq!(run(&mut host, parts(2_500)), Status::SUCCESS);
        // What is replaced counts off, and tombstones do not count.
        assert_eq!(run(&mut host, parts(2_600)), Status::SUCCESS);
        assert_eq!(
            run(&mut host, vec![(FIRST, vec![put("k", "v")]), (small, vec![removal("a")])]),
            Status::SUCCESS
        );
        assert_eq!(host.device.stats().keys[..3], [1, 1, 4]);
    }
}

#[test]
fn strictest_durability_of_the_namespaces_holds() {
    let mut config =
        DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
    config.durability[SECOND.index()] = Durability::Always;
    let mut host = NamespaceHost::new(32, config);
    assert_eq!(
        run(&mut host, vec![(FIRST, vec![put("a", "v")]), (THIRD, vec![put("a", "v")])]),
        Status::SUCCESS
    );
    let mut host = host.reopened();
    assert_eq!(host.get(FIRST, b"a"), Err(Status::KEY_DOES_NOT_EXIST), "nothing asked for durability");
    assert_eq!(
        run(&mut host, vec![(FIRST, vec![put("a", "v")]), (SECOND, vec![put("a", "v")])]),
        Status::SUCCESS
    );
    let mut host = host.reopened();
    assert_eq!(host.get(FIRST, b"a").unwrap(), b"v");
    assert_eq!(host.get(SECOND, b"a").unwrap(), b"v");
}

/// Returns the tokens of commands completed by a time, in order of completion.
fn completed_by(host: &mut NamespaceHost, now: Nanos) -> Vec<u64> {
    host.now = now;
    while host.device.poll(now, WALL) {}
    std::iter::from_fn(|| host.device.next_completion(FRONT_END)).map(|completion| completion.token).collect()
}

#[test]
fn shortest_interval_of_durability_holds() {
    let mut config =
        DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
    config.durability[FIRST.index()] = Durability::Interval(Nanos::from_millis(1_000));
    config.durability[SECOND.index()] = Durability::Interval(Nanos::from_millis(10));
    for parts in [vec![SECOND], vec![FIRST, SECOND]] {
        let mut host = NamespaceHost::new(32, config.clone());
        assert_eq!(host.set(FIRST, b"before", b"v"), Status::SUCCESS);
        let writes = |namespace: &NamespaceId| (*namespace, vec![put("a", "v")]);
        assert_eq!(run(&mut host, parts.iter().map(writes).collect()), Status::SUCCESS);
        assert_eq!(host.device.next_deadline(), Some(Nanos::from_millis(10)));
        completed_by(&mut host, Nanos::from_millis(10));
        assert_eq!(host.reopened().get(SECOND, b"a").unwrap(), b"v");
    }
}

#[test]
fn batch_counts_against_the_limits_of_each_namespace() {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = NamespaceHost::new(32, DeviceConfig { durability, ..DeviceConfig::default() });
    let limits = |iops, bytes_per_second| NamespaceLimits { iops, bytes_per_second, burst: 1 };
    let slow = host.create(Namespace { limits: limits(100, 0), ..Namespace::IMPLICIT });
    let narrow = host.create(Namespace { limits: limits(0, 1_000_000), ..Namespace::IMPLICIT });
    let submit = |host: &mut NamespaceHost, parts| {
        let (first, command) = across(parts);
        host.submit(first, command)
    };
    let parts = |key: &'static str, bytes: usize| {
        vec![
            (FIRST, vec![put(key, "v")]),
            (narrow, vec![put(key, vec![1; bytes])]),
            (slow, vec![put(key, "v")]),
        ]
    };
    completed_by(&mut host, Nanos::ZERO);
    let tokens = [submit(&mut host, parts("a", 30_000)), submit(&mut host, parts("b", 10))];
    assert_eq!(completed_by(&mut host, Nanos::ZERO), tokens[..1]);
    // The first one left nothing of the commands of one namespace, and 25,904 bytes of debt in the other.
    assert_eq!(completed_by(&mut host, Nanos::from_millis(10)), [0; 0]);
    assert_eq!(host.device.next_deadline(), Some(Nanos(25_914_000)));
    assert_eq!(host.set(FIRST, b"other", b"v"), Status::SUCCESS, "a namespace without limits waits");
    assert_eq!(completed_by(&mut host, Nanos(25_913_999)), [0; 0]);
    assert_eq!(completed_by(&mut host, Nanos(25_914_000)), tokens[1..]);
    let tokens = [submit(&mut host, parts("c", 30_000)), submit(&mut host, parts("d", 10))];
    assert_eq!(completed_by(&mut host, Nanos::from_millis(40)), tokens[..1]);
    // It waits for the second namespace now.
    assert_eq!(completed_by(&mut host, Nanos::from_millis(50)), [0; 0]);
    assert!(host.device.abort(FRONT_END, tokens[1]));
    assert_eq!(completed_by(&mut host, Nanos::from_millis(50)), tokens[1..]);
}

#[test]
fn batch_waits_for_the_clear_of_any_of_its_namespaces() {
    let config = DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
    let mut host = NamespaceHost::new(128, config);
    let keys = 20_000;
    for first in (0..keys).step_by(500) {
        let writes = (first..first + 500).map(|number| put(format!("key-{number}"), "v")).collect();
        assert_eq!(host.run(SECOND, SsdCommand::Batch { writes }).status, Status::SUCCESS);
    }
    host.submit(SECOND, SsdCommand::Clear);
    let condition = WriteCondition::IfAbsent;
    let last = BatchWrite::Check { key: format!("key-{}", keys - 1).into(), condition };
    let (first, command) =
        across(vec![(FIRST, vec![put("k", "v")]), (SECOND, vec![last, put("key-1", "new")])]);
    let token = host.submit(first, command);
    host.device.poll(host.now, WALL);
    let later = host.submit(FIRST, SsdCommand::Batch { writes: vec![put("k", "later")] });
    let mut completed = Vec::new();
    while !(completed.contains(&token) && completed.contains(&later)) {
        let next = completed_by(&mut host, Nanos::ZERO);
        assert!(!next.is_empty(), "batch {token} waits for ever, or what stands behind it: {completed:?}");
        completed.extend(next);
    }
    assert_eq!(host.device.stats().keys[..2], [1, 1]);
    assert_eq!(host.get(FIRST, b"k").unwrap(), b"later", "a later write of a key overtook the batch");
    assert_eq!(host.get(SECOND, b"key-1").unwrap(), b"new");
}

#[test]
fn batches_that_can_never_work_are_refused() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let disk = host.create(blocks(BlockFormat::B512, 1_000));
    let parts = vec![(FIRST, vec![put("a", "v")]), (disk, vec![put("a", "v")]), (THIRD, vec![put("a", "v")])];
    assert_eq!(run(&mut host, parts), Status::INVALID_NAMESPACE);
    assert_eq!(host.device.stats().keys[..3], [0; 3]);
    let refused = |host: &mut NamespaceHost, parts| {
        let (first, command) = across(parts);
        match host.device.submit(FRONT_END, first, 1, command) {
            Err(SubmitError::Refused(status)) => status,
            other => panic!("{other:?}"),
        }
    };
    let one = |number| (NamespaceId(number), vec![put("a", "v")]);
    assert_eq!(refused(&mut host, vec![one(1), one(17)]), Status::INVALID_NAMESPACE);
    assert_eq!(refused(&mut host, vec![one(1), one(0)]), Status::INVALID_NAMESPACE);
    assert_eq!(refused(&mut host, vec![one(1), (THIRD, vec![])]), Status::INVALID_FIELD);
    assert_eq!(refused(&mut host, vec![one(1), one(3), one(1)]), Status::COMMAND_SEQUENCE_ERROR);
    let long_key = (THIRD, vec![put(vec![b'k'; 70_000], "v")]);
    assert_eq!(refused(&mut host, vec![one(1), long_key]), Status::INVALID_KEY_SIZE);
    let many = (0..=BATCH_RUNS_MAX).map(|number| (FIRST, vec![put(number.to_string(), "v")])).collect();
    assert_eq!(refused(&mut host, many), Status::INVALID_FIELD);
    let long = |name: &str| (0..400).map(|number| put(format!("{name}-{number}"), "v")).collect::<Vec<_>>();
    let twice = vec![(FIRST, long("k")), (THIRD, long("k")), (FIRST, vec![put("k-399", "v")])];
    assert_eq!(refused(&mut host, twice), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(run(&mut host, vec![(FIRST, long("k")), (THIRD, long("k"))]), Status::SUCCESS);
    let change = NamespaceChange::Delete;
    assert_eq!(host.change(THIRD, change), Status::SUCCESS, "an implicit namespace is cleared");
}
