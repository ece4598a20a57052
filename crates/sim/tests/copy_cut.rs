//! A copy of data of a batch, or an expiry kept from it, never survives a power cut that loses the batch.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    BatchWrite, Fua, Lba, LbaRange, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

const WALL: UnixMillis = UnixMillis(1_000);
const MUCH_LATER: u64 = 1_000_000;
const KEYS: NamespaceId = NamespaceId::FIRST;
const DISK: NamespaceId = NamespaceId(2);
const FORMAT: BlockFormat = BlockFormat::B4096;
/// Number of blocks written: they span several pages, so that later records lie on another page.
const BLOCKS: u32 = 10;
/// The destination of the copy of one of them.
const COPY: LbaRange = LbaRange { start: Lba(500), blocks: 1 };
const ROUNDS: u64 = 400;

/// A command and its namespace.
type TargetedCommand = (NamespaceId, SsdCommand);

fn start() -> BootTime {
    BootTime { now: Nanos::ZERO, wall: WALL }
}

fn run(device: &mut SsdDevice<SimMedia>, (namespace, command): TargetedCommand) -> SsdCompletion {
    SimulatedDevice::submit(device, namespace, 0, command).unwrap();
    let mut now = Nanos::ZERO;
    loop {
        let moved = SimulatedDevice::poll(device, now, WALL);
        if let Some(completion) = SimulatedDevice::next_completion(device) {
            return completion;
        }
        if !moved {
            now = SimulatedDevice::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

/// Runs the `durable` commands, submits the `racing` ones, and cuts the power after a random number of polls. Returns
/// the device as recovered after the cut.
fn cut(seed: u64, durable: Vec<TargetedCommand>, racing: Vec<TargetedCommand>) -> SsdDevice<SimMedia> {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
    let mut rng = fastrand::Rng::with_seed(seed);
    let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
    let image = media.crash_image();
    let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start()).unwrap();
    for command in durable.into_iter().chain([(KEYS, SsdCommand::Flush)]) {
        assert_eq!(run(&mut device, command).status, Status::SUCCESS);
    }
    for (namespace, command) in racing.into_iter().chain([(KEYS, SsdCommand::Flush)]) {
        SimulatedDevice::submit(&mut device, namespace, 0, command).unwrap();
    }
    let mut now = Nanos::ZERO;
    for turn in 1..rng.u32(2..120) {
        // Commands that waited for the first flush need another one.
        if turn % 20 == 0 {
            SimulatedDevice::submit(&mut device, KEYS, 0, SsdCommand::Flush).unwrap();
        }
        if !SimulatedDevice::poll(&mut device, now, WALL) {
            now = SimulatedDevice::next_deadline(&device).unwrap_or(now).max(now);
        }
    }
    drop(device);
    let media = image.next_boot(&mut rng, &damage).unwrap();
    <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, start()).unwrap()
}

fn create() -> TargetedCommand {
    let kind = NamespaceKind::Block(FORMAT);
    let disk = Namespace { kind, size: 1_000, uuid: [2; 16], ..Namespace::IMPLICIT };
    (KEYS, SsdCommand::Namespace(NamespaceChange::Create(disk)))
}

fn write(start: u64, blocks: u32, byte: u8) -> TargetedCommand {
    let data = Bytes::from(vec![byte; blocks as usize * FORMAT.bytes()]).into();
    (DISK, SsdCommand::Write { start: Lba(start), data, fua: Fua::No })
}

fn copy(start: u64) -> TargetedCommand {
    let sources = vec![LbaRange { start: Lba(start), blocks: 1 }];
    (DISK, SsdCommand::Copy { sources, destination: COPY.start, fua: Fua::No })
}

/// Returns the first byte of each block.
fn blocks(device: &mut SsdDevice<SimMedia>, range: LbaRange) -> Vec<u8> {
    let done = run(device, (DISK, SsdCommand::Read { range, sink: Vec::new().into() }));
    assert_eq!(done.status, Status::SUCCESS);
    done.sink.iter().step_by(FORMAT.bytes()).copied().collect()
}

/// Guards a regression: a copy did not wait, so the power cut lost the write, whose pages were older, and left the copy
/// of its last block.
#[test]
fn copy_of_a_block_never_outlives_its_write() {
    let (mut copied, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let last = u64::from(BLOCKS) - 1;
        let mut device = cut(seed, vec![create()], vec![write(0, BLOCKS, 7), copy(last)]);
        let written = blocks(&mut device, LbaRange { start: Lba(0), blocks: BLOCKS });
        match (written.iter().all(|byte| *byte == 7), blocks(&mut device, COPY)[0]) {
            (true, 7) => copied += 1,
            (true, 0) => {}
            (false, 0) if written.iter().all(|byte| *byte == 0) => neither += 1,
            torn => panic!("seed {seed}: the copy exists and the write does not: {torn:?}, {written:?}"),
        }
    }
    assert!(copied > 0 && neither > 0, "both existed {copied} times, neither {neither} times");
}

/// Checks the same for a Deallocate, with the copy of a block that it zeroed.
#[test]
fn copy_of_a_deallocated_block_never_outlives_the_deallocate() {
    let (mut copied, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let durable = vec![create(), write(0, 100, 7), write(COPY.start.0, 1, 9)];
        let ranges = vec![LbaRange { start: Lba(0), blocks: 100 }];
        let racing = vec![(DISK, SsdCommand::Deallocate { ranges, fua: Fua::No }), copy(0)];
        let mut device = cut(seed, durable, racing);
        let left = blocks(&mut device, LbaRange { start: Lba(0), blocks: 100 });
        match (left.iter().all(|byte| *byte == 0), blocks(&mut device, COPY)[0]) {
            (true, 0) => copied += 1,
            (true, 9) => {}
            (false, 9) if left.iter().all(|byte| *byte == 7) => neither += 1,
            torn => panic!("seed {seed}: the copy exists and the removal does not: {torn:?}, {left:?}"),
        }
    }
    assert!(copied > 0 && neither > 0, "both existed {copied} times, neither {neither} times");
}

fn retrieve(device: &mut SsdDevice<SimMedia>, key: &'static [u8]) -> Option<(u32, u64)> {
    let command =
        SsdCommand::retrieve_whole(Bytes::from_static(key), Vec::new().into(), ReadRelease::WhenDurable);
    let answer = run(device, (KEYS, command));
    (answer.status == Status::SUCCESS).then_some((answer.value_bytes, answer.expiry_ms))
}

/// Guards a regression: an unconditional store that keeps the expiry did not wait, so the power cut lost the batch and
/// left the expiry that it had set.
#[test]
fn kept_expiry_never_outlives_the_batch_that_set_it() {
    let (mut kept, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let put = |key, bytes: usize, expiry| {
            let (key, value) = (Bytes::from_static(key), Bytes::from(vec![7; bytes]));
            BatchWrite::Store { key, value, condition: WriteCondition::Always, expiry }
        };
        let store = |bytes: usize, expiry| {
            let (key, value) = (Bytes::from_static(b"brief"), Bytes::from(vec![8; bytes]).into());
            (KEYS, SsdCommand::Store { key, value, condition: WriteCondition::Always, expiry })
        };
        // The long value comes first, so that the page shared with the later store holds only part of the batch.
        let writes =
            vec![put(b"long", 20_000, RecordExpiry::Never), put(b"brief", 10, RecordExpiry::At(MUCH_LATER))];
        let racing = vec![(KEYS, SsdCommand::Batch { writes }), store(11, RecordExpiry::Keep)];
        let mut device = cut(seed, vec![store(9, RecordExpiry::Never)], racing);
        match (retrieve(&mut device, b"brief"), retrieve(&mut device, b"long")) {
            (Some((11, MUCH_LATER)), Some((20_000, 0))) => kept += 1,
            (Some((10, MUCH_LATER)), Some((20_000, 0))) => {}
            (Some((9, 0)), None) => neither += 1,
            torn => panic!("seed {seed}: the expiry exists and the batch does not: {torn:?}"),
        }
    }
    assert!(kept > 0 && neither > 0, "both existed {kept} times, neither {neither} times");
}
