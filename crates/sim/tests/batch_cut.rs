//! A batch interrupted by a power cut is present as a whole or not at all, even if its keys expire or are rewritten.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    BatchWrite, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice};

const WALL: UnixMillis = UnixMillis(1_000);
const LATER: UnixMillis = UnixMillis(2_000);

fn submit(device: &mut SsdDevice<SimMedia>, command: SsdCommand) {
    SimulatedDevice::submit(device, NamespaceId::FIRST, 0, command).unwrap();
}

fn run(device: &mut SsdDevice<SimMedia>, wall: UnixMillis, command: SsdCommand) -> SsdCompletion {
    submit(device, command);
    let mut now = Nanos::ZERO;
    loop {
        let moved = SimulatedDevice::poll(device, now, wall);
        if let Some(completion) = SimulatedDevice::next_completion(device) {
            return completion;
        }
        if !moved {
            now = SimulatedDevice::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

fn put(key: &'static [u8], bytes: usize, expiry: RecordExpiry) -> BatchWrite {
    let (key, value) = (Bytes::from_static(key), Bytes::from(vec![7; bytes]));
    BatchWrite::Store { key, value, condition: WriteCondition::Always, expiry }
}

fn value_bytes(device: &mut SsdDevice<SimMedia>, key: &'static [u8]) -> Option<u32> {
    let command =
        SsdCommand::retrieve_whole(Bytes::from_static(key), Vec::new().into(), ReadRelease::WhenDurable);
    let answer = run(device, LATER, command);
    (answer.status == Status::SUCCESS).then_some(answer.value_bytes)
}

/// Guards a regression (seed 6563): a batch gave a key a new value that expired at once; the power cut lost the batch
/// and left the tombstone, so the key's earlier value was lost as well.
#[test]
fn lost_batch_with_an_expired_key_leaves_earlier_values() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
    let (mut happened, mut lost) = (0, 0);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
        let image = media.crash_image();
        let start = BootTime { now: Nanos::ZERO, wall: WALL };
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        let before = SsdCommand::Batch { writes: vec![put(b"brief", 10, RecordExpiry::Never)] };
        assert_eq!(run(&mut device, WALL, before).status, Status::SUCCESS);
        assert_eq!(run(&mut device, WALL, SsdCommand::Flush).status, Status::SUCCESS);
        // The batch spans several pages, so that the tombstone lies on another page than most of it.
        let writes =
            vec![put(b"brief", 20, RecordExpiry::At(WALL.0 + 1)), put(b"long", 20_000, RecordExpiry::Never)];
        assert_eq!(run(&mut device, WALL, SsdCommand::Batch { writes }).status, Status::SUCCESS);
        SimulatedDevice::poll(&mut device, Nanos::ZERO, LATER);
        submit(&mut device, SsdCommand::Flush);
        for _ in 0..20 {
            SimulatedDevice::poll(&mut device, Nanos::ZERO, LATER);
        }
        drop(device);
        let media = image.next_boot(&mut rng, &damage).unwrap();
        let start = BootTime { now: Nanos::ZERO, wall: LATER };
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        match (value_bytes(&mut device, b"brief"), value_bytes(&mut device, b"long")) {
            (Some(10), None) => lost += 1,
            (None, Some(20_000)) => happened += 1,
            torn => panic!("seed {seed}: the batch took effect in part: {torn:?}"),
        }
    }
    assert!(happened > 0 && lost > 0, "{happened} batches happened and {lost} were lost");
}

/// Guards a regression: a write whose condition a batch had decided outlived the batch. The power cut lost the batch,
/// whose pages were older, and left a value made from one of its keys.
#[test]
fn write_conditional_on_a_batch_never_outlives_it() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
    let start = BootTime { now: Nanos::ZERO, wall: WALL };
    let (mut both, mut neither) = (0, 0);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
        let image = media.crash_image();
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        assert_eq!(run(&mut device, WALL, SsdCommand::Flush).status, Status::SUCCESS);
        // The batch spans several pages, so that the write after it lies on another page.
        let writes =
            vec![put(b"counter", 10, RecordExpiry::Never), put(b"long", 20_000, RecordExpiry::Never)];
        submit(&mut device, SsdCommand::Batch { writes });
        let (key, value) = (Bytes::from_static(b"counter"), Bytes::from(vec![8; 11]).into());
        let condition = WriteCondition::IfExists;
        submit(&mut device, SsdCommand::Store { key, value, condition, expiry: RecordExpiry::Never });
        submit(&mut device, SsdCommand::Flush);
        // The power is cut after a random number of polls.
        let mut now = Nanos::ZERO;
        for _ in 0..rng.u32(1..60) {
            if !SimulatedDevice::poll(&mut device, now, WALL) {
                now = SimulatedDevice::next_deadline(&device).unwrap_or(now).max(now);
            }
        }
        drop(device);
        let media = image.next_boot(&mut rng, &damage).unwrap();
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        match (value_bytes(&mut device, b"counter"), value_bytes(&mut device, b"long")) {
            (None, None) => neither += 1,
            (Some(10 | 11), Some(20_000)) => both += 1,
            torn => panic!("seed {seed}: the write exists and the batch does not: {torn:?}"),
        }
    }
    assert!(both > 0 && neither > 0, "both existed {both} times, neither {neither} times");
}

/// Checks that a power cut leaves all or none of a batch that checks a key of another batch, and never the second batch
/// without the first.
#[test]
fn batch_that_checks_a_key_of_a_batch_never_outlives_it() {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
    let start = BootTime { now: Nanos::ZERO, wall: WALL };
    let (mut all, mut first, mut neither) = (0, 0, 0);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
        let image = media.crash_image();
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        assert_eq!(run(&mut device, WALL, SsdCommand::Flush).status, Status::SUCCESS);
        let writes = vec![put(b"basis", 10, RecordExpiry::Never), put(b"long", 20_000, RecordExpiry::Never)];
        submit(&mut device, SsdCommand::Batch { writes });
        let check =
            BatchWrite::Check { key: Bytes::from_static(b"basis"), condition: WriteCondition::IfExists };
        let writes =
            vec![check, put(b"left", 10, RecordExpiry::Never), put(b"right", 20_000, RecordExpiry::Never)];
        submit(&mut device, SsdCommand::Batch { writes });
        submit(&mut device, SsdCommand::Flush);
        // The power is cut after a random number of polls.
        let mut now = Nanos::ZERO;
        for step in 0..rng.u32(1..120) {
            // The second batch begins when the first is durable, behind the first flush.
            if step % 20 == 19 {
                submit(&mut device, SsdCommand::Flush);
            }
            if !SimulatedDevice::poll(&mut device, now, WALL) {
                now = SimulatedDevice::next_deadline(&device).unwrap_or(now).max(now);
            }
        }
        drop(device);
        let media = image.next_boot(&mut rng, &damage).unwrap();
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start).unwrap();
        let found = [&b"basis"[..], b"long", b"left", b"right"].map(|key| value_bytes(&mut device, key));
        match found {
            [None, None, None, None] => neither += 1,
            [Some(10), Some(20_000), None, None] => first += 1,
            [Some(10), Some(20_000), Some(10), Some(20_000)] => all += 1,
            torn => panic!("seed {seed}: a batch exists in part, or without the one it depends on: {torn:?}"),
        }
    }
    assert!(all > 0 && neither > 0, "both existed {all} times, the first {first}, neither {neither} times");
}
