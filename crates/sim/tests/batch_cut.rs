//! A batch cut off by a loss of power is there as a whole or not at all, whatever became of its keys meanwhile.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_converged::command::{
    BatchWrite, Command, Completion, Condition, Expiry, NamespaceId, Release,
};
use headwater_converged::device::{Device, DeviceConfig, Durability};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::engine::{BootTime, Engine};
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;

const WALL: UnixMillis = UnixMillis(1_000);
const LATER: UnixMillis = UnixMillis(2_000);

fn submit(device: &mut Device<SimMedia>, command: Command) {
    Engine::submit(device, NamespaceId::FIRST, 0, command).unwrap();
}

fn ask(device: &mut Device<SimMedia>, wall: UnixMillis, command: Command) -> Completion {
    submit(device, command);
    let mut now = Nanos::ZERO;
    loop {
        let moved = Engine::poll(device, now, wall);
        if let Some(completion) = Engine::next_completion(device) {
            return completion;
        }
        if !moved {
            now = Engine::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

fn put(key: &'static [u8], bytes: usize, expiry: Expiry) -> BatchWrite {
    let (key, value) = (Bytes::from_static(key), Bytes::from(vec![7; bytes]));
    BatchWrite::Store { key, value, condition: Condition::Always, expiry }
}

fn value_bytes(device: &mut Device<SimMedia>, key: &'static [u8]) -> Option<u32> {
    let command = Command::Retrieve {
        key: Bytes::from_static(key),
        sink: Vec::new().into(),
        bytes_max: u32::MAX,
        release: Release::WhenDurable,
    };
    let answer = ask(device, LATER, command);
    (answer.status == Status::SUCCESS).then_some(answer.value_bytes)
}

/// Seed 6563 showed it: a batch gave a key a new value that expired at once, the power cut took the batch and left the
/// tombstone, and with it went the value that the key had held before.
#[test]
fn a_batch_that_is_lost_takes_nothing_along_when_one_of_its_keys_expired() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage =
        DamagePlan { whole_percent: 50, torn_percent: 0, neighbour_percent: 0, unreadable_percent: 0 };
    let (mut happened, mut lost) = (0, 0);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
        let wreck = media.wreck();
        let start = BootTime { now: Nanos::ZERO, wall: WALL };
        let mut device = <Device<SimMedia> as Engine>::open(media, &config, start).unwrap();
        let before = Command::Batch { writes: vec![put(b"brief", 10, Expiry::Never)] };
        assert_eq!(ask(&mut device, WALL, before).status, Status::SUCCESS);
        assert_eq!(ask(&mut device, WALL, Command::Flush).status, Status::SUCCESS);
        // Over several pages, so that the tombstone lies on another page than most of the batch.
        let writes = vec![put(b"brief", 20, Expiry::At(WALL.0 + 1)), put(b"long", 20_000, Expiry::Never)];
        assert_eq!(ask(&mut device, WALL, Command::Batch { writes }).status, Status::SUCCESS);
        Engine::poll(&mut device, Nanos::ZERO, LATER);
        submit(&mut device, Command::Flush);
        for _ in 0..20 {
            Engine::poll(&mut device, Nanos::ZERO, LATER);
        }
        drop(device);
        let media = wreck.next_boot(&mut rng, &damage).unwrap();
        let start = BootTime { now: Nanos::ZERO, wall: LATER };
        let mut device = <Device<SimMedia> as Engine>::open(media, &config, start).unwrap();
        match (value_bytes(&mut device, b"brief"), value_bytes(&mut device, b"long")) {
            (Some(10), None) => lost += 1,
            (None, Some(20_000)) => happened += 1,
            torn => panic!("seed {seed}: the batch happened in part: {torn:?}"),
        }
    }
    assert!(happened > 0 && lost > 0, "{happened} batches happened and {lost} were lost");
}

/// A write that was decided by what a batch did outlived it: the power cut took the batch, whose pages were the older ones,
/// and left a value made from one of its keys.
#[test]
fn a_write_made_from_a_batch_never_outlives_it() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage =
        DamagePlan { whole_percent: 50, torn_percent: 0, neighbour_percent: 0, unreadable_percent: 0 };
    let start = BootTime { now: Nanos::ZERO, wall: WALL };
    let (mut both, mut neither) = (0, 0);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
        let wreck = media.wreck();
        let mut device = <Device<SimMedia> as Engine>::open(media, &config, start).unwrap();
        assert_eq!(ask(&mut device, WALL, Command::Flush).status, Status::SUCCESS);
        // Over several pages, so that the write behind it lies on another one.
        let writes = vec![put(b"counter", 10, Expiry::Never), put(b"long", 20_000, Expiry::Never)];
        submit(&mut device, Command::Batch { writes });
        let (key, value) = (Bytes::from_static(b"counter"), Bytes::from(vec![8; 11]).into());
        let condition = Condition::IfExists;
        submit(&mut device, Command::Store { key, value, condition, expiry: Expiry::Never });
        submit(&mut device, Command::Flush);
        // The power goes after any number of turns.
        let mut now = Nanos::ZERO;
        for _ in 0..rng.u32(1..60) {
            if !Engine::poll(&mut device, now, WALL) {
                now = Engine::next_deadline(&device).unwrap_or(now).max(now);
            }
        }
        drop(device);
        let media = wreck.next_boot(&mut rng, &damage).unwrap();
        let mut device = <Device<SimMedia> as Engine>::open(media, &config, start).unwrap();
        match (value_bytes(&mut device, b"counter"), value_bytes(&mut device, b"long")) {
            (None, None) => neither += 1,
            (Some(10 | 11), Some(20_000)) => both += 1,
            torn => panic!("seed {seed}: the write is there and the batch is not: {torn:?}"),
        }
    }
    assert!(both > 0 && neither > 0, "{both} times both were there, {neither} times neither");
}
