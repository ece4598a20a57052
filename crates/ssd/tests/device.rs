//! Tests of the device against a simple model: values, conditions, lists, batches, collection.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, ListPosition, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime, VictimPolicy};
use headwater_ssd::limits::UNTAKEN_BYTES_MAX;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct DeviceHost {
    device: SsdDevice<MemoryMedia>,
    token: u64,
    wall: UnixMillis,
}

impl DeviceHost {
    fn new(blocks: u32, config: DeviceConfig) -> Self {
        Self::on(MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap(), config)
    }

    fn on(media: MemoryMedia, config: DeviceConfig) -> Self {
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        Self { device: SsdDevice::open(media, config, start, &mut |_| {}).unwrap(), token: 0, wall: WALL }
    }

    fn run(&mut self, command: SsdCommand) -> SsdCompletion {
        self.run_in(NamespaceId::FIRST, command)
    }

    fn run_in(&mut self, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
        self.token += 1;
        self.device.submit(FRONT_END, namespace, self.token, command).unwrap();
        for _ in 0..100_000 {
            self.device.poll(Nanos::ZERO, self.wall);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                assert_eq!(completion.token, self.token);
                return completion;
            }
        }
        panic!("command {} of {namespace} has no completion", self.token);
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Status {
        self.run(store(key, value, WriteCondition::Always, RecordExpiry::Never)).status
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let completion = self.run(retrieve(key));
        match completion.status {
            Status::SUCCESS => {
                assert_eq!(completion.value_bytes as usize, completion.sink.len());
                Some(completion.sink)
            }
            Status::KEY_DOES_NOT_EXIST => None,
            other => panic!("{other}"),
        }
    }

    /// Returns the bytes of live records, without tombstones: those in an evacuated block count twice until its erase.
    fn record_bytes(&self) -> u64 {
        let stats = self.device.stats();
        stats.live_bytes - stats.tombstone_bytes
    }

    fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut from = Some(ListPosition::START);
        while let Some(position) = from {
            let completion = self.run(SsdCommand::List { position, keys_max: 7 });
            keys.extend(completion.keys.iter().map(|listed| listed.key.to_vec()));
            from = completion.next_position;
        }
        keys.sort();
        keys
    }
}

fn store(key: &[u8], value: &[u8], condition: WriteCondition, expiry: RecordExpiry) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value).into(),
        condition,
        expiry,
    }
}

fn retrieve(key: &[u8]) -> SsdCommand {
    SsdCommand::retrieve_whole(Bytes::copy_from_slice(key), Vec::new().into(), ReadRelease::WhenDurable)
}

fn delete(key: &[u8]) -> SsdCommand {
    SsdCommand::Delete { key: Bytes::copy_from_slice(key), condition: WriteCondition::Always }
}

fn value(random: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.u8(..)).collect()
}

#[test]
fn conditional_stores_follow_the_specification() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    let condition =
        |host: &mut DeviceHost, condition| host.run(store(b"k", b"v", condition, RecordExpiry::Never)).status;
    assert_eq!(condition(&mut host, WriteCondition::IfExists), Status::KEY_DOES_NOT_EXIST);
    assert_eq!(condition(&mut host, WriteCondition::IfAbsent), Status::SUCCESS);
    assert_eq!(condition(&mut host, WriteCondition::IfAbsent), Status::KEY_EXISTS);
    assert_eq!(condition(&mut host, WriteCondition::IfExists), Status::SUCCESS);
    let sequence = host.run(retrieve(b"k")).sequence;
    assert_eq!(condition(&mut host, WriteCondition::IfSequence(sequence)), Status::SUCCESS);
    assert_eq!(condition(&mut host, WriteCondition::IfSequence(sequence)), Status::SEQUENCE_MISMATCH);
    assert_eq!(host.run(delete(b"k")).status, Status::SUCCESS);
    assert_eq!(host.run(delete(b"k")).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(host.get(b"k"), None);
}

#[test]
fn commands_above_limits_are_refused_at_submission() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    let device = &mut host.device;
    assert!(device.submit(FRONT_END, NamespaceId(0), 1, retrieve(b"k")).is_err());
    assert!(device.submit(FRONT_END, NamespaceId(17), 1, retrieve(b"k")).is_err());
    assert!(device.submit(FRONT_END, NamespaceId::FIRST, 1, retrieve(b"")).is_err());
    assert!(device.submit(FRONT_END, NamespaceId::FIRST, 1, retrieve(&[0; 65_536])).is_err());
    let twice = vec![
        BatchWrite::Delete { key: Bytes::from_static(b"a"), condition: WriteCondition::Always },
        BatchWrite::Delete { key: Bytes::from_static(b"a"), condition: WriteCondition::Always },
    ];
    assert!(device.submit(FRONT_END, NamespaceId::FIRST, 1, SsdCommand::Batch { writes: twice }).is_err());
    device.poll(Nanos::ZERO, WALL);
    assert!(device.next_completion(FRONT_END).is_none(), "a refused command has a completion");
}

#[test]
fn batch_is_all_or_nothing() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    host.set(b"a", b"1");
    let writes = |condition| {
        vec![
            BatchWrite::Store {
                key: Bytes::from_static(b"b"),
                value: Bytes::from_static(b"2"),
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            },
            BatchWrite::Delete { key: Bytes::from_static(b"a"), condition },
        ]
    };
    let refused = host.run(SsdCommand::Batch { writes: writes(WriteCondition::IfAbsent) });
    assert_eq!((refused.status, refused.position), (Status::KEY_EXISTS, 1));
    assert_eq!((host.get(b"a"), host.get(b"b")), (Some(b"1".to_vec()), None));
    assert_eq!(
        host.run(SsdCommand::Batch { writes: writes(WriteCondition::IfExists) }).status,
        Status::SUCCESS
    );
    assert_eq!((host.get(b"a"), host.get(b"b")), (None, Some(b"2".to_vec())));
}

#[test]
fn batch_with_a_check_happens_only_if_the_checked_key_is_unchanged() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    host.set(b"checked", b"1");
    let exist =
        || SsdCommand::Exist { key: Bytes::from_static(b"checked"), release: ReadRelease::WhenDurable };
    let sequence = host.run(exist()).sequence;
    let batch = |condition, value: &'static [u8]| SsdCommand::Batch {
        writes: vec![
            BatchWrite::Store {
                key: Bytes::from_static(b"written"),
                value: Bytes::from_static(value),
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            },
            BatchWrite::Check { key: Bytes::from_static(b"checked"), condition },
        ],
    };
    let unchanged = WriteCondition::IfSequence(sequence);
    assert_eq!(host.run(batch(unchanged, b"a")).status, Status::SUCCESS);
    assert_eq!(host.run(exist()).sequence, sequence, "a check wrote its key");
    assert_eq!((host.get(b"checked"), host.get(b"written")), (Some(b"1".to_vec()), Some(b"a".to_vec())));
    // The same value again is a change.
    host.set(b"checked", b"1");
    let refused = host.run(batch(unchanged, b"b"));
    assert_eq!((refused.status, refused.position), (Status::SEQUENCE_MISMATCH, 1));
    assert_eq!(host.run(batch(WriteCondition::IfAbsent, b"b")).status, Status::KEY_EXISTS);
    assert_eq!(host.get(b"written"), Some(b"a".to_vec()));
    host.run(SsdCommand::Delete { key: Bytes::from_static(b"checked"), condition: WriteCondition::Always });
    assert_eq!(host.run(batch(unchanged, b"b")).status, Status::SEQUENCE_MISMATCH);
    assert_eq!(host.run(batch(WriteCondition::IfAbsent, b"c")).status, Status::SUCCESS);
    assert_eq!((host.get(b"checked"), host.get(b"written")), (None, Some(b"c".to_vec())));
    // A batch of checks alone writes nothing.
    let live = host.device.stats().live_bytes;
    let checks = |condition| SsdCommand::Batch {
        writes: vec![BatchWrite::Check { key: Bytes::from_static(b"checked"), condition }],
    };
    assert_eq!(host.run(checks(WriteCondition::IfAbsent)).status, Status::SUCCESS);
    assert_eq!(host.run(checks(WriteCondition::IfExists)).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(host.device.stats().live_bytes, live);
}

#[test]
fn keys_expire_on_time_and_free_their_space() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    let live = host.device.stats().live_bytes;
    host.run(store(b"k", &[7; 5_000], WriteCondition::Always, RecordExpiry::At(WALL.0 + 10)));
    assert_eq!(host.device.next_expiry(), Some(UnixMillis(WALL.0 + 10)));
    host.wall = UnixMillis(WALL.0 + 9);
    assert!(host.get(b"k").is_some());
    host.wall = UnixMillis(WALL.0 + 10);
    assert!(host.get(b"k").is_none());
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert!(host.keys().is_empty());
    assert!(host.device.stats().live_bytes - live < 100, "more than the tombstone is left");
    assert_eq!(
        host.run(store(b"k", b"x", WriteCondition::IfAbsent, RecordExpiry::Never)).status,
        Status::SUCCESS
    );
}

#[test]
fn namespaces_are_separate_key_spaces() {
    let mut host = DeviceHost::new(32, DeviceConfig::default());
    host.set(b"k", b"first");
    host.run_in(NamespaceId(2), store(b"k", b"second", WriteCondition::IfAbsent, RecordExpiry::Never));
    assert_eq!(host.get(b"k"), Some(b"first".to_vec()));
    assert_eq!(host.run_in(NamespaceId(2), retrieve(b"k")).sink, b"second");
    assert_eq!(host.run_in(NamespaceId(2), SsdCommand::Clear).position, 1);
    assert_eq!(host.run_in(NamespaceId(2), retrieve(b"k")).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(host.get(b"k"), Some(b"first".to_vec()));
    assert_eq!((host.device.keys(NamespaceId::FIRST), host.device.keys(NamespaceId(2))), (1, 0));
}

#[test]
fn values_longer_than_a_block_are_chained_and_returned() {
    let mut host = DeviceHost::new(64, DeviceConfig::default());
    let mut random = fastrand::Rng::with_seed(3);
    let big = value(&mut random, 1_000_003);
    for round in 0..20u8 {
        assert_eq!(host.set(b"big", &big[usize::from(round)..]), Status::SUCCESS, "round {round}");
        host.set(&[round], &value(&mut random, 3_000));
    }
    assert_eq!(host.get(b"big").unwrap(), big[19..]);
    let media = host.device.into_media().after_power_cut();
    let mut host = DeviceHost::on(media, DeviceConfig::default());
    assert_eq!(host.get(b"big").unwrap(), big[19..]);
}

fn churn(seed: u64, config: &DeviceConfig) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut host = DeviceHost::new(48, config.clone());
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for round in 0..4 {
        for _ in 0..2_500 {
            let key = format!("key-{}", random.u32(0..900)).into_bytes();
            match random.u8(0..10) {
                0..=5 => {
                    let bytes = if random.u8(0..40) == 0 { 40_000 } else { random.usize(0..9_000) };
                    let value = value(&mut random, bytes);
                    assert_eq!(host.set(&key, &value), Status::SUCCESS, "seed {seed}");
                    model.insert(key, value);
                }
                6 => {
                    let expected = if model.remove(&key).is_some() {
                        Status::SUCCESS
                    } else {
                        Status::KEY_DOES_NOT_EXIST
                    };
                    assert_eq!(host.run(delete(&key)).status, expected, "seed {seed}");
                }
                _ => assert_eq!(host.get(&key), model.get(&key).cloned(), "seed {seed}"),
            }
        }
        assert_eq!(host.keys(), model.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(host.device.keys(NamespaceId::FIRST), model.len() as u64, "seed {seed}");
        let clean = random.bool();
        if clean {
            host.device.shutdown(Nanos::ZERO, WALL).unwrap();
        }
        let before = host.record_bytes();
        let checkpoints = host.device.stats().checkpoints;
        assert!(!clean || checkpoints > 0, "seed {seed}: a shutdown wrote no checkpoint");
        host = DeviceHost::on(host.device.into_media().after_power_cut(), config.clone());
        assert_eq!(
            host.record_bytes(),
            before,
            "seed {seed} round {round}: live bytes differ after recovery"
        );
        for (key, value) in &model {
            assert_eq!(host.get(key).as_ref(), Some(value), "seed {seed} round {round}");
        }
        assert_eq!(host.keys(), model.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn churn_with_greedy_collection_matches_a_model() {
    for seed in 0..4 {
        churn(seed, &DeviceConfig::default());
    }
}

#[test]
fn churn_with_fifo_collection_matches_a_model() {
    for seed in 10..14 {
        churn(seed, &DeviceConfig { victim: VictimPolicy::Fifo, ..DeviceConfig::default() });
    }
}

#[test]
fn churn_with_colliding_hashes_matches_a_model() {
    for seed in 20..22 {
        churn(seed, &DeviceConfig { hash_bits: 6, ..DeviceConfig::default() });
    }
}

#[test]
fn full_device_refuses_stores_and_keeps_serving() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let mut host = DeviceHost::new(32, config);
    let mut stored = 0u32;
    while host.set(&stored.to_le_bytes(), &[1; 4_000]) == Status::SUCCESS {
        stored += 1;
        assert!(stored < 10_000, "32 blocks hold 2,048 pages");
    }
    assert!(stored > 1_000, "only {stored} records fitted");
    assert_eq!(host.set(b"another", &[1; 4_000]), Status::CAPACITY_EXCEEDED);
    assert_eq!(host.get(&0u32.to_le_bytes()).unwrap(), [1; 4_000]);
    for key in 0..stored / 2 {
        assert_eq!(host.run(delete(&key.to_le_bytes())).status, Status::SUCCESS);
    }
    for key in 0..stored / 3 {
        assert_eq!(host.set(&key.to_le_bytes(), &[2; 4_000]), Status::SUCCESS, "deletes freed no room");
    }
    for key in stored / 2..stored {
        assert_eq!(host.get(&key.to_le_bytes()).unwrap(), [1; 4_000]);
    }
}

#[test]
fn values_that_no_front_end_takes_delay_reads_and_not_the_memory_of_the_process() {
    const READS: usize = 40;
    const VALUE_BYTES: usize = 4 << 20;
    let mut host = DeviceHost::new(256, DeviceConfig::default());
    assert_eq!(host.set(b"large", &vec![7; VALUE_BYTES]), Status::SUCCESS);
    for token in 0..READS as u64 {
        host.device.submit(FRONT_END, NamespaceId::FIRST, token, retrieve(b"large")).unwrap();
    }
    let mut taken = 0;
    while taken < READS {
        while host.device.poll(Nanos::ZERO, WALL) {}
        let before = taken;
        while let Some(completion) = host.device.next_completion(FRONT_END) {
            assert_eq!((completion.status, completion.sink.len()), (Status::SUCCESS, VALUE_BYTES));
            taken += 1;
        }
        let bytes = (taken - before) * VALUE_BYTES;
        assert!(bytes > 0, "{taken} of {READS} reads completed, and then none");
        assert!(bytes < UNTAKEN_BYTES_MAX + VALUE_BYTES, "{bytes} bytes waited for their front end");
    }
}
