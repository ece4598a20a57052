//! Tests of clears of many keys: they take effect at once, leave the index in parts, and nothing of them comes back.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, ListPosition, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const FIRST: NamespaceId = NamespaceId::FIRST;
const SECOND: NamespaceId = NamespaceId(2);

fn open(media: MemoryMedia) -> SsdDevice<MemoryMedia> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn erased(blocks: u32) -> SsdDevice<MemoryMedia> {
    open(MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap())
}

fn cut(device: SsdDevice<MemoryMedia>) -> SsdDevice<MemoryMedia> {
    open(device.into_media().after_power_cut())
}

fn next(device: &mut SsdDevice<MemoryMedia>) -> SsdCompletion {
    for _ in 0..100_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

fn run(device: &mut SsdDevice<MemoryMedia>, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, namespace, 7, command).unwrap();
    next(device)
}

fn key(number: u32) -> Bytes {
    Bytes::from(format!("key-{number}"))
}

fn store(number: u32, value: Vec<u8>, expiry: RecordExpiry) -> SsdCommand {
    SsdCommand::Store { key: key(number), value: value.into(), condition: WriteCondition::Always, expiry }
}

fn retrieve(number: u32) -> SsdCommand {
    let release = ReadRelease::WhenDurable;
    SsdCommand::retrieve_whole(key(number), Vec::new().into(), release)
}

/// Stores so many short keys.
fn fill(device: &mut SsdDevice<MemoryMedia>, namespace: NamespaceId, keys: u32, expiry: RecordExpiry) {
    let (mut sent, mut done) = (0, 0);
    while done < keys {
        while sent < keys
            && device.submit(FRONT_END, namespace, 1, store(sent, b"v".to_vec(), expiry)).is_ok()
        {
            sent += 1;
        }
        device.poll(Nanos::ZERO, WALL);
        while let Some(completion) = device.next_completion(FRONT_END) {
            assert_eq!(completion.status, Status::SUCCESS);
            done += 1;
        }
    }
}

#[test]
fn clear_of_many_keys_takes_effect_at_once_and_delays_no_other_namespace() {
    let keys = 60_000;
    let mut device = erased(256);
    fill(&mut device, FIRST, keys, RecordExpiry::At(WALL.0 + 1_000_000));
    run(&mut device, SECOND, store(1, b"other".to_vec(), RecordExpiry::Never));
    let (index_bytes, live_bytes) = (device.stats().index_bytes, device.stats().live_bytes);
    let completion = run(&mut device, FIRST, SsdCommand::Clear);
    assert_eq!((completion.status, completion.position), (Status::SUCCESS, keys));
    assert_eq!(device.stats().keys[FIRST.index()], 0);
    assert!(device.stats().live_bytes < live_bytes / 100, "{} live bytes", device.stats().live_bytes);
    assert!(device.stats().index_bytes > index_bytes / 2, "the clear removed everything in one turn");
    assert_eq!(device.record_bytes(FIRST, &key(5)), 0);
    // Commands of another namespace run between the parts, in one turn each.
    for _ in 0..20 {
        device.submit(FRONT_END, SECOND, 3, retrieve(1)).unwrap();
        device.poll(Nanos::ZERO, WALL);
        assert_eq!(device.next_completion(FRONT_END).unwrap().sink, b"other");
    }
    assert!(device.stats().index_bytes > index_bytes / 2, "the clear has ended");
    // Those of the namespace see nothing of it.
    assert_eq!(run(&mut device, FIRST, retrieve(5)).status, Status::KEY_DOES_NOT_EXIST);
    let list = SsdCommand::List { position: ListPosition::START, keys_max: 100 };
    assert!(run(&mut device, FIRST, list).keys.is_empty());
    assert!(device.stats().index_bytes < index_bytes / 10, "the index keeps what was cleared");
    assert_eq!(
        run(&mut device, FIRST, store(5, b"new".to_vec(), RecordExpiry::Never)).status,
        Status::SUCCESS
    );
    let mut device = cut(device);
    assert_eq!(run(&mut device, FIRST, retrieve(5)).sink, b"new");
    assert_eq!(run(&mut device, FIRST, retrieve(6)).status, Status::KEY_DOES_NOT_EXIST);
    assert_eq!(run(&mut device, SECOND, retrieve(1)).sink, b"other");
}

#[test]
fn cleared_keys_do_not_come_back_with_a_checkpoint() {
    for polls in [0, 1, 30, 600, 3_000] {
        let mut device = erased(256);
        fill(&mut device, FIRST, 20_000, RecordExpiry::Never);
        fill(&mut device, SECOND, 10, RecordExpiry::Never);
        // A checkpoint may be under way.
        for _ in 0..100 {
            device.poll(Nanos::ZERO, WALL);
        }
        let before = device.stats().checkpoints;
        device.submit(FRONT_END, FIRST, 1, SsdCommand::Clear).unwrap();
        device.request_checkpoint();
        assert_eq!(next(&mut device).status, Status::SUCCESS);
        for _ in 0..polls {
            device.poll(Nanos::ZERO, WALL);
        }
        assert_eq!(device.stats().checkpoints > before, polls >= 600, "after {polls} polls");
        let mut device = cut(device);
        assert_eq!(device.stats().keys[..2], [0, 10], "after {polls} polls");
        assert_eq!(run(&mut device, FIRST, retrieve(7)).status, Status::KEY_DOES_NOT_EXIST);
    }
}

#[test]
fn space_of_a_clear_is_free_at_once() {
    let mut device = erased(40);
    let fill = |device: &mut SsdDevice<MemoryMedia>, namespace| {
        (0..).find(|number| {
            let status = run(device, namespace, store(*number, vec![1; 20_000], RecordExpiry::Never)).status;
            assert!(matches!(status, Status::SUCCESS | Status::CAPACITY_EXCEEDED), "{status:?}");
            status == Status::CAPACITY_EXCEEDED
        })
    };
    let count = fill(&mut device, FIRST).unwrap();
    assert!(count > 100);
    for (from, to) in [(FIRST, SECOND), (SECOND, FIRST), (FIRST, SECOND)] {
        device.submit(FRONT_END, from, 1, SsdCommand::Clear).unwrap();
        assert_eq!(next(&mut device).status, Status::SUCCESS);
        assert!(fill(&mut device, to).unwrap() > count * 9 / 10);
    }
}

#[test]
fn clears_agree_with_a_model() {
    let seed = 23;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut device = erased(48);
    let mut model: [BTreeMap<u32, Vec<u8>>; 2] = Default::default();
    let mut collected = 0;
    for step in 0..6_000 {
        let at = random.usize(0..2);
        let namespace = [FIRST, SECOND][at];
        let number = random.u32(0..400);
        match random.u32(0..300) {
            0 => {
                run(&mut device, namespace, SsdCommand::Clear);
                model[at].clear();
            }
            1 => device.request_checkpoint(),
            2 => {
                collected += device.stats().collected;
                device = cut(device);
            }
            3..60 => {
                let found = run(&mut device, namespace, retrieve(number));
                match model[at].get(&number) {
                    Some(value) => assert_eq!(found.sink, *value, "seed {seed} step {step}"),
                    None => assert_eq!(found.status, Status::KEY_DOES_NOT_EXIST, "seed {seed} step {step}"),
                }
            }
            _ => {
                let expiry =
                    if random.bool() { RecordExpiry::At(WALL.0 + 5_000) } else { RecordExpiry::Never };
                let value = vec![random.u8(..); random.usize(0..9_000)];
                assert_eq!(
                    run(&mut device, namespace, store(number, value.clone(), expiry)).status,
                    Status::SUCCESS
                );
                model[at].insert(number, value);
            }
        }
        let counts = model.each_ref().map(|keys| keys.len() as u64);
        assert_eq!(device.stats().keys[..2], counts, "seed {seed} step {step}");
    }
    assert!(collected > 0, "the collector moved nothing");
}
