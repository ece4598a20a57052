//! Tests of snapshots: a file put together from one opens with exactly the state of its commit, whatever the device wrote,
//! collected and checkpointed while the parts were copied.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::snapshot::{SnapshotLoss, SnapshotRefusal, SnapshotStatus};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::file::image::{FileImage, SUPERBLOCK_BYTES};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, PAGES_PER_BLOCK};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const KEYS: u32 = 300;

type StoredValues = BTreeMap<u32, Vec<u8>>;

struct SnapshotHost {
    device: SsdDevice<FileMedia>,
    clock: Clock,
    token: u64,
}

impl SnapshotHost {
    fn on(media: FileMedia) -> Self {
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: WALL };
        // Completions do not wait for a commit: the snapshot must cover them all the same.
        let config =
            DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
        let device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        Self { device, clock, token: 0 }
    }

    fn create(folder: &TempDir, blocks: u32) -> Self {
        let geometry = FlashGeometry::with_blocks(blocks);
        Self::on(FileMedia::create(folder.path(), geometry, [7; 16], FileOptions::default()).unwrap())
    }

    fn submit(&mut self, command: SsdCommand) {
        self.token += 1;
        self.device.submit(FRONT_END, NamespaceId::FIRST, self.token, command).unwrap();
    }

    fn turn(&mut self) -> Option<SsdCompletion> {
        self.device.poll(self.clock.now(), WALL);
        self.device.next_completion(FRONT_END)
    }

    fn next(&mut self) -> SsdCompletion {
        loop {
            if let Some(completion) = self.turn() {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    fn write(&mut self, key: u32, value: Option<&[u8]>) {
        let (key, condition) = (name(key), WriteCondition::Always);
        self.submit(match value {
            Some(value) => SsdCommand::Store {
                key,
                value: Bytes::copy_from_slice(value).into(),
                condition,
                expiry: RecordExpiry::Never,
            },
            None => SsdCommand::Delete { key, condition },
        });
    }

    fn get(&mut self, key: u32) -> Option<Vec<u8>> {
        self.submit(SsdCommand::retrieve_whole(name(key), Vec::new().into(), ReadRelease::WhenDurable));
        let completion = self.next();
        match completion.status {
            Status::SUCCESS => Some(completion.sink),
            Status::KEY_DOES_NOT_EXIST => None,
            other => panic!("{other}"),
        }
    }

    /// Writes a few keys and returns when all are answered.
    fn write_some(&mut self, model: &mut StoredValues, random: &mut fastrand::Rng) {
        let writes = random.usize(1..12);
        for _ in 0..writes {
            let key = random.u32(0..KEYS);
            if random.u32(0..8) == 0 {
                model.remove(&key);
                self.write(key, None);
            } else {
                // Some values lie in extents.
                let bytes =
                    if random.u8(..) == 0 { random.usize(262_144..300_000) } else { random.usize(0..9_000) };
                let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
                self.write(key, Some(&value));
                model.insert(key, value);
            }
        }
        for _ in 0..writes {
            let status = self.next().status;
            assert!(status == Status::SUCCESS || status == Status::KEY_DOES_NOT_EXIST, "{status}");
        }
    }

    /// Takes a snapshot and returns its parts. One that is lost at once is taken again.
    fn snapshot(&mut self) -> FileImage {
        loop {
            self.device.request_snapshot(Vec::new()).unwrap();
            while self.device.snapshot() == SnapshotStatus::Pending {
                assert!(self.turn().is_none(), "a command is in flight");
                std::thread::yield_now();
            }
            if let SnapshotStatus::Held(snapshot) = self.device.snapshot() {
                return self.device.media().image_of(&snapshot.contents);
            }
            self.device.release_snapshot();
        }
    }
}

fn name(key: u32) -> Bytes {
    format!("key {key}").into_bytes().into()
}

/// A copy of a snapshot, made a few blocks at a time.
struct SnapshotCopy {
    image: FileImage,
    source: File,
    folder: TempDir,
    target: File,
    copied: usize,
}

impl SnapshotCopy {
    fn start(host: &SnapshotHost, image: FileImage) -> Self {
        let folder = TempDir::new().unwrap();
        let target = File::create(folder.path().join("flash")).unwrap();
        target.set_len(image.file_bytes).unwrap();
        let source = File::open(host.device.media().path()).unwrap();
        for &offset in &image.superblocks {
            copy_range(&source, &target, offset, SUPERBLOCK_BYTES);
        }
        for (offset, bytes) in &image.records {
            target.write_all_at(bytes, *offset).unwrap();
        }
        Self { image, source, folder, target, copied: 0 }
    }

    /// Copies the next block. Returns false if there is none.
    fn step(&mut self, host: &mut SnapshotHost) -> bool {
        let Some(block) = self.image.blocks.get(self.copied) else { return false };
        let bytes = usize::from(block.pages) * self.image.page_bytes as usize;
        copy_range(&self.source, &self.target, block.offset, bytes);
        host.device.note_snapshot_copied(self.copied);
        self.copied += 1;
        true
    }

    fn open(&self) -> SnapshotHost {
        SnapshotHost::on(FileMedia::open(self.folder.path(), FileOptions::default()).unwrap())
    }
}

fn copy_range(from: &File, to: &File, offset: u64, bytes: usize) {
    let mut piece = vec![0; bytes];
    from.read_exact_at(&mut piece, offset).unwrap();
    to.write_all_at(&piece, offset).unwrap();
}

fn assert_holds(host: &mut SnapshotHost, model: &StoredValues, seed: u64) {
    assert_eq!(host.device.opening_losses().lost_pages(), 0, "seed {seed}");
    for key in 0..KEYS {
        assert!(host.get(key).as_ref() == model.get(&key), "seed {seed}: key {key}");
    }
}

/// Runs one device with several snapshots; returns how many were copied whole, and how many were lost.
fn copy_while_writing(seed: u64, blocks: u32) -> (u32, u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new().unwrap();
    let mut host = SnapshotHost::create(&folder, blocks);
    let (mut model, mut whole, mut lost) = (StoredValues::new(), 0, 0);
    for _ in 0..4 {
        for _ in 0..random.usize(0..60) {
            host.write_some(&mut model, &mut random);
        }
        let expected = model.clone();
        let image = host.snapshot();
        let mut copy = SnapshotCopy::start(&host, image);
        let rounds = random.usize(1..20);
        while copy.step(&mut host) && !matches!(host.device.snapshot(), SnapshotStatus::Lost(_)) {
            for _ in 0..random.usize(0..rounds) {
                host.write_some(&mut model, &mut random);
            }
            if random.u32(0..4) == 0 {
                host.device.request_checkpoint();
            }
        }
        match host.device.snapshot() {
            SnapshotStatus::Held(_) => {
                whole += 1;
                assert_holds(&mut copy.open(), &expected, seed);
            }
            SnapshotStatus::Lost(loss) => {
                lost += 1;
                assert_eq!(loss, SnapshotLoss::NoSpace, "seed {seed}");
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        host.device.release_snapshot();
    }
    assert_holds(&mut host, &model, seed);
    (whole, lost)
}

#[test]
fn copy_of_a_snapshot_holds_its_commit_whatever_is_written_while_it_is_made() {
    let seed = fastrand::u64(..);
    let (mut whole, mut lost) = (0, 0);
    for round in 0..15 {
        // On the small ones snapshots are lost, on the large ones most are copied.
        let blocks = if round % 3 == 0 { 40 } else { 160 };
        let (copied, given_up) = copy_while_writing(seed.wrapping_add(round), blocks);
        (whole, lost) = (whole + copied, lost + given_up);
    }
    assert!(whole > 8, "seed {seed}: {whole} of 60 snapshots were copied whole, {lost} were lost");
}

/// Returns the number of a write as a value that fills most of a page.
fn numbered(write: u32) -> Vec<u8> {
    let mut value = vec![0; 3_000];
    value[..4].copy_from_slice(&write.to_le_bytes());
    value
}

/// Asserts that the opened copy holds the writes up to one of them and none behind it. Returns that one.
fn assert_prefix(opened: &mut SnapshotHost, keys: u32, seed: u64) -> u32 {
    let found = (0..keys).map(|key| u32::from_le_bytes(opened.get(key).unwrap()[..4].try_into().unwrap()));
    let found: Vec<u32> = found.collect();
    let last = *found.iter().max().unwrap();
    for (key, write) in (0..).zip(&found) {
        // The newest write up to the last one that falls on this key.
        assert_eq!(*write, last - (last - key) % keys, "seed {seed}: key {key} of {found:?}");
    }
    assert_eq!(opened.device.opening_losses().lost_pages(), 0, "seed {seed}");
    last
}

#[test]
fn snapshot_is_a_prefix_of_the_writes_in_flight() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new().unwrap();
    let mut host = SnapshotHost::create(&folder, 400);
    let keys = 8;
    let (mut written, mut in_flight) = (0, 0);
    let mut write_one = |host: &mut SnapshotHost, flush: bool| {
        host.write(written % keys, Some(&numbered(written)));
        written += 1;
        in_flight += 1;
        if flush {
            host.submit(SsdCommand::Flush);
            in_flight += 1;
        }
        while in_flight > 32 {
            in_flight -= i32::from(host.turn().is_some());
        }
        written
    };
    for _ in 0..12 {
        let before = (0..random.usize(40..120)).map(|_| write_one(&mut host, false)).last().unwrap();
        host.device.request_snapshot(Vec::new()).unwrap();
        // On a slow disk, writes without a bound would fill the device before the commit ends: the snapshot would be lost.
        for turn in 0.. {
            if host.device.snapshot() != SnapshotStatus::Pending {
                break;
            }
            if turn < 2_000 {
                write_one(&mut host, false);
            } else {
                host.device.poll(host.clock.now(), WALL);
            }
        }
        let now = write_one(&mut host, false);
        // Blocks that were opened since the commit sealed the log fill with pages that are not part of it.
        for _ in 0..random.u32(0..100) {
            write_one(&mut host, random.u32(0..10) == 0);
        }
        let SnapshotStatus::Held(snapshot) = host.device.snapshot() else {
            panic!("seed {seed}: {:?}", host.device.snapshot());
        };
        let image = host.device.media().image_of(&snapshot.contents);
        let mut copy = SnapshotCopy::start(&host, image);
        while copy.step(&mut host) {}
        host.device.release_snapshot();
        let last = assert_prefix(&mut copy.open(), keys, seed);
        assert!((before - 33..now).contains(&last), "seed {seed}: {last} is not in {before}..{now}");
    }
}

#[test]
fn copies_of_lost_snapshots_converge_on_a_device_without_free_blocks() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new().unwrap();
    let mut host = SnapshotHost::create(&folder, 64);
    let mut model = StoredValues::new();
    // More than the medium holds: from now on each block that is opened was collected before.
    for _ in 0..600 {
        host.write_some(&mut model, &mut random);
    }
    let mut pieces: BTreeMap<(u64, u64, u8), Vec<u8>> = BTreeMap::new();
    let mut lost = 0;
    for attempt in 0.. {
        assert!(attempt < 40, "seed {seed}: {lost} snapshots were lost");
        let whole = pieces.keys().filter(|(_, _, pages)| usize::from(*pages) == PAGES_PER_BLOCK);
        let known = whole.map(|&(offset, order, _)| (host.device.media().block_at(offset).unwrap(), order));
        let known = known.collect();
        host.device.request_snapshot(known).unwrap();
        while host.device.snapshot() == SnapshotStatus::Pending {
            host.turn();
        }
        let SnapshotStatus::Held(snapshot) = host.device.snapshot() else {
            lost += 1;
            host.device.release_snapshot();
            continue;
        };
        let image = host.device.media().image_of(&snapshot.contents);
        let expected = model.clone();
        let file = File::open(host.device.media().path()).unwrap();
        for (index, block) in image.blocks.iter().enumerate() {
            let identity = (block.offset, block.order, block.pages);
            pieces.entry(identity).or_insert_with(|| {
                // Blocks change during the copy: half of a block for each.
                (0..5).for_each(|_| host.write_some(&mut model, &mut random));
                let mut bytes = vec![0; usize::from(block.pages) * image.page_bytes as usize];
                file.read_exact_at(&mut bytes, block.offset).unwrap();
                // A first copy that says nothing keeps every block, until the device needs one.
                if attempt > 0 {
                    host.device.note_snapshot_copied(index);
                }
                bytes
            });
        }
        let is_held = matches!(host.device.snapshot(), SnapshotStatus::Held(_));
        host.device.release_snapshot();
        if is_held {
            let copy = SnapshotCopy::start(&host, image);
            for block in &copy.image.blocks {
                let bytes = &pieces[&(block.offset, block.order, block.pages)];
                copy.target.write_all_at(bytes, block.offset).unwrap();
            }
            assert_holds(&mut copy.open(), &expected, seed);
            break;
        }
        lost += 1;
    }
    assert!(lost > 0, "seed {seed}: no snapshot was lost: the device had free blocks");
}

#[test]
fn second_snapshot_is_refused_until_the_first_is_released() {
    let folder = TempDir::new().unwrap();
    let mut host = SnapshotHost::create(&folder, 40);
    let _image = host.snapshot();
    assert_eq!(host.device.request_snapshot(Vec::new()), Err(SnapshotRefusal::Exists));
    host.device.release_snapshot();
    assert_eq!(host.device.snapshot(), SnapshotStatus::None);
    let _image = host.snapshot();
}
