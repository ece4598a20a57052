//! What a device promises to every face, against a naive model: values, conditions, lists, batches, collection.

#![expect(clippy::unwrap_used, reason = "a test stops where its setting fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, Command, Completion, Condition, Expiry, FaceId, ListPosition, NamespaceId, Release,
};
use headwater_ssd::engine::{Device, DeviceConfig, Durability, Start, VictimPolicy};
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;

const FACE: FaceId = FaceId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct Host {
    device: Device<MemoryMedia>,
    token: u64,
    wall: UnixMillis,
}

impl Host {
    fn new(blocks: u32, config: DeviceConfig) -> Self {
        Self::on(MemoryMedia::erased(Geometry::with_blocks(blocks)).unwrap(), config)
    }

    fn on(media: MemoryMedia, config: DeviceConfig) -> Self {
        let start = Start { now: Nanos::ZERO, wall: WALL };
        Self { device: Device::open(media, config, start, &mut |_| {}).unwrap(), token: 0, wall: WALL }
    }

    fn run(&mut self, command: Command) -> Completion {
        self.run_in(NamespaceId::FIRST, command)
    }

    fn run_in(&mut self, namespace: NamespaceId, command: Command) -> Completion {
        self.token += 1;
        self.device.submit(FACE, namespace, self.token, command).unwrap();
        for _ in 0..100_000 {
            self.device.poll(Nanos::ZERO, self.wall);
            if let Some(completion) = self.device.next_completion(FACE) {
                assert_eq!(completion.token, self.token);
                return completion;
            }
        }
        panic!("no completion came");
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Status {
        self.run(store(key, value, Condition::Always, Expiry::Never)).status
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

    /// Bytes of live records. Tombstones in a block that was evacuated and not yet erased are counted again.
    fn records_bytes(&self) -> u64 {
        let stats = self.device.stats();
        stats.live_bytes - stats.tombstone_bytes
    }

    fn keys(&mut self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut from = Some(ListPosition::START);
        while let Some(position) = from {
            let completion = self.run(Command::List { from: position, keys_max: 7 });
            keys.extend(completion.keys.iter().map(|listed| listed.key.to_vec()));
            from = completion.next;
        }
        keys.sort();
        keys
    }
}

fn store(key: &[u8], value: &[u8], condition: Condition, expiry: Expiry) -> Command {
    Command::Store {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value).into(),
        condition,
        expiry,
    }
}

fn retrieve(key: &[u8]) -> Command {
    Command::Retrieve {
        key: Bytes::copy_from_slice(key),
        sink: Vec::new().into(),
        bytes_max: u32::MAX,
        release: Release::WhenDurable,
    }
}

fn delete(key: &[u8]) -> Command {
    Command::Delete { key: Bytes::copy_from_slice(key), condition: Condition::Always }
}

fn value(random: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.u8(..)).collect()
}

#[test]
fn conditions_hold_as_the_specification_says() {
    let mut host = Host::new(32, DeviceConfig::default());
    let condition = |host: &mut Host, condition| host.run(store(b"k", b"v", condition, Expiry::Never)).status;
    assert_eq!(condition(&mut host, Condition::IfExists), Status::KEY_DOES_NOT_EXIST);
    assert_eq!(condition(&mut host, Condition::IfAbsent), Status::SUCCESS);
    assert_eq!(condition(&mut host, Condition::IfAbsent), Status::KEY_EXISTS);
    assert_eq!(condition(&mut host, Condition::IfExists), Status::SUCCESS);
    let sequence = host.run(retrieve(b"k")).sequence;
    assert_eq!(condition(&mut host, Condition::IfSequence(sequence)), Status::SUCCESS);
    assert_eq!(condition(&mut host, Condition::IfSequence(sequence)), Status::SEQUENCE_MISMATCH);
    assert_eq!(host.run(delete(b"k")).status, Status::SUCCESS);
    assert_eq!(host.run(delete(b"k")).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(host.get(b"k"), None);
}

#[test]
fn limits_are_refused_at_submission() {
    let mut host = Host::new(32, DeviceConfig::default());
    let device = &mut host.device;
    assert!(device.submit(FACE, NamespaceId(0), 1, retrieve(b"k")).is_err());
    assert!(device.submit(FACE, NamespaceId(17), 1, retrieve(b"k")).is_err());
    assert!(device.submit(FACE, NamespaceId::FIRST, 1, retrieve(b"")).is_err());
    assert!(device.submit(FACE, NamespaceId::FIRST, 1, retrieve(&[0; 65_536])).is_err());
    let twice = vec![
        BatchWrite::Delete { key: Bytes::from_static(b"a"), condition: Condition::Always },
        BatchWrite::Delete { key: Bytes::from_static(b"a"), condition: Condition::Always },
    ];
    assert!(device.submit(FACE, NamespaceId::FIRST, 1, Command::Batch { writes: twice }).is_err());
    device.poll(Nanos::ZERO, WALL);
    assert!(device.next_completion(FACE).is_none(), "a refused command has no completion");
}

#[test]
fn a_batch_is_all_or_nothing() {
    let mut host = Host::new(32, DeviceConfig::default());
    host.set(b"a", b"1");
    let writes = |condition| {
        vec![
            BatchWrite::Store {
                key: Bytes::from_static(b"b"),
                value: Bytes::from_static(b"2"),
                condition: Condition::Always,
                expiry: Expiry::Never,
            },
            BatchWrite::Delete { key: Bytes::from_static(b"a"), condition },
        ]
    };
    let refused = host.run(Command::Batch { writes: writes(Condition::IfAbsent) });
    assert_eq!((refused.status, refused.position), (Status::KEY_EXISTS, 1));
    assert_eq!((host.get(b"a"), host.get(b"b")), (Some(b"1".to_vec()), None));
    assert_eq!(host.run(Command::Batch { writes: writes(Condition::IfExists) }).status, Status::SUCCESS);
    assert_eq!((host.get(b"a"), host.get(b"b")), (None, Some(b"2".to_vec())));
}

#[test]
fn keys_cease_on_time_and_their_space_comes_back() {
    let mut host = Host::new(32, DeviceConfig::default());
    let live = host.device.stats().live_bytes;
    host.run(store(b"k", &[7; 5_000], Condition::Always, Expiry::At(WALL.0 + 10)));
    assert_eq!(host.device.next_expiry(), Some(UnixMillis(WALL.0 + 10)));
    host.wall = UnixMillis(WALL.0 + 9);
    assert!(host.get(b"k").is_some());
    host.wall = UnixMillis(WALL.0 + 10);
    assert!(host.get(b"k").is_none());
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert!(host.keys().is_empty());
    assert!(host.device.stats().live_bytes - live < 100, "only the tombstone is left");
    assert_eq!(host.run(store(b"k", b"x", Condition::IfAbsent, Expiry::Never)).status, Status::SUCCESS);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let mut host = Host::new(32, DeviceConfig::default());
    host.set(b"k", b"first");
    host.run_in(NamespaceId(2), store(b"k", b"second", Condition::IfAbsent, Expiry::Never));
    assert_eq!(host.get(b"k"), Some(b"first".to_vec()));
    assert_eq!(host.run_in(NamespaceId(2), retrieve(b"k")).sink, b"second");
    assert_eq!(host.run_in(NamespaceId(2), Command::Clear).position, 1);
    assert_eq!(host.run_in(NamespaceId(2), retrieve(b"k")).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(host.get(b"k"), Some(b"first".to_vec()));
    assert_eq!((host.device.keys(NamespaceId::FIRST), host.device.keys(NamespaceId(2))), (1, 0));
}

#[test]
fn values_longer_than_a_block_are_chained_and_come_back() {
    let mut host = Host::new(64, DeviceConfig::default());
    let mut random = fastrand::Rng::with_seed(3);
    let big = value(&mut random, 1_000_003);
    for round in 0..20u8 {
        assert_eq!(host.set(b"big", &big[usize::from(round)..]), Status::SUCCESS, "round {round}");
        host.set(&[round], &value(&mut random, 3_000));
    }
    assert_eq!(host.get(b"big").unwrap(), big[19..]);
    let media = host.device.into_media().reopened();
    let mut host = Host::on(media, DeviceConfig::default());
    assert_eq!(host.get(b"big").unwrap(), big[19..]);
}

fn churn(seed: u64, config: &DeviceConfig) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut host = Host::new(48, config.clone());
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
        let before = host.records_bytes();
        let checkpoints = host.device.stats().checkpoints;
        assert!(!clean || checkpoints > 0, "seed {seed}: a clean stop writes a checkpoint");
        host = Host::on(host.device.into_media().reopened(), config.clone());
        assert_eq!(
            host.records_bytes(),
            before,
            "seed {seed} round {round}: live bytes are recounted exactly"
        );
        for (key, value) in &model {
            assert_eq!(host.get(key).as_ref(), Some(value), "seed {seed} round {round}");
        }
        assert_eq!(host.keys(), model.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn churn_with_greedy_collection_agrees_with_a_model() {
    for seed in 0..4 {
        churn(seed, &DeviceConfig::default());
    }
}

#[test]
fn churn_with_fifo_collection_agrees_with_a_model() {
    for seed in 10..14 {
        churn(seed, &DeviceConfig { victim: VictimPolicy::Fifo, ..DeviceConfig::default() });
    }
}

#[test]
fn churn_with_colliding_hashes_agrees_with_a_model() {
    for seed in 20..22 {
        churn(seed, &DeviceConfig { hash_bits: 6, ..DeviceConfig::default() });
    }
}

#[test]
fn a_full_device_says_so_and_serves_on() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let mut host = Host::new(32, config);
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
        assert_eq!(host.set(&key.to_le_bytes(), &[2; 4_000]), Status::SUCCESS, "deleting makes room");
    }
    for key in stored / 2..stored {
        assert_eq!(host.get(&key.to_le_bytes()).unwrap(), [1; 4_000]);
    }
}
