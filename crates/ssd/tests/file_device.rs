//! A device on a flash file: what was acknowledged is there when the file is opened again, whatever moves its bytes.

#![expect(clippy::unwrap_used, reason = "a test stops where its setting fails")]

use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use headwater_host::file::DirectChoice;
use headwater_host::uring::UringChoice;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, Condition, Expiry, FaceId, NamespaceId, Release};
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::Geometry;
use headwater_ssd::media::file::{FileMedia, FileOptions, Prepare};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

const FACE: FaceId = FaceId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const BLOCKS: u32 = 40;

struct Host {
    device: Device<FileMedia>,
    clock: Clock,
    token: u64,
}

impl Host {
    fn on(media: FileMedia) -> Self {
        let clock = Clock::start();
        let start = Start { now: clock.now(), wall: WALL };
        Self {
            device: Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap(),
            clock,
            token: 0,
        }
    }

    fn open(directory: &Path, way: FileOptions) -> Self {
        Self::on(FileMedia::open(directory, way).unwrap())
    }

    fn submit(&mut self, command: Command) -> u64 {
        self.token += 1;
        self.device.submit(FACE, NamespaceId::FIRST, self.token, command).unwrap();
        self.token
    }

    fn next(&mut self) -> Completion {
        loop {
            self.device.poll(self.clock.now(), WALL);
            if let Some(completion) = self.device.next_completion(FACE) {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.submit(Command::Retrieve {
            key: Bytes::copy_from_slice(key),
            sink: Vec::new().into(),
            bytes_max: u32::MAX,
            release: Release::WhenDurable,
        });
        let completion = self.next();
        match completion.status {
            Status::SUCCESS => Some(completion.sink),
            Status::KEY_DOES_NOT_EXIST => None,
            other => panic!("{other}"),
        }
    }
}

/// A few writes in flight together; returns when all are acknowledged.
fn write_some(host: &mut Host, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, random: &mut fastrand::Rng) {
    let writes = random.usize(1..12);
    for _ in 0..writes {
        let key = format!("key {}", random.u32(0..400)).into_bytes();
        if random.u32(0..8) == 0 {
            model.remove(&key);
            host.submit(Command::Delete { key: key.into(), condition: Condition::Always });
        } else {
            let bytes = random.usize(0..12_000);
            let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
            host.submit(Command::Store {
                key: key.clone().into(),
                value: value.clone().into(),
                condition: Condition::Always,
                expiry: Expiry::Never,
            });
            model.insert(key, value);
        }
    }
    for _ in 0..writes {
        let status = host.next().status;
        assert!(status == Status::SUCCESS || status == Status::KEY_DOES_NOT_EXIST, "{status}");
    }
}

fn check(host: &mut Host, model: &BTreeMap<Vec<u8>, Vec<u8>>, seed: u64) {
    for number in 0..400 {
        let key = format!("key {number}").into_bytes();
        assert!(host.get(&key).as_ref() == model.get(&key), "seed {seed}: key {number}");
    }
}

fn acknowledged_writes_survive(way: FileOptions, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = TempDir::new().unwrap();
    let geometry = Geometry::with_blocks(BLOCKS);
    let media = FileMedia::create(directory.path(), geometry, [7; 16], way).unwrap();
    let mut host = Host::on(media);
    let mut model = BTreeMap::new();
    // Each round writes more than the medium holds, so that blocks are collected and erased.
    for _ in 0..2 {
        for _ in 0..350 {
            write_some(&mut host, &mut model, &mut random);
        }
        // No farewell: the file is left as the last acknowledgement found it.
        drop(host);
        host = Host::open(directory.path(), way);
        check(&mut host, &model, seed);
    }
}

#[test]
fn acknowledged_writes_survive_a_reopening_of_the_file() {
    // Every failure names its seed.
    for direct in [DirectChoice::Auto, DirectChoice::Never] {
        for uring in [UringChoice::Auto, UringChoice::Never] {
            let way = FileOptions { direct, uring, prepare: Prepare::Ahead };
            acknowledged_writes_survive(way, fastrand::u64(..));
        }
    }
}
