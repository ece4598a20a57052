//! What was copied from a batch, or kept of it, never outlives the batch, whatever a power cut takes.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_converged::command::{
    BatchWrite, Command, Completion, Condition, Expiry, Fua, Lba, LbaRange, NamespaceId, Release,
};
use headwater_converged::device::{Device, DeviceConfig, Durability};
use headwater_converged::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::engine::{BootTime, Engine};
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;

const WALL: UnixMillis = UnixMillis(1_000);
const MUCH_LATER: u64 = 1_000_000;
const KEYS: NamespaceId = NamespaceId::FIRST;
const DISK: NamespaceId = NamespaceId(2);
const FORMAT: BlockFormat = BlockFormat::B4096;
/// Blocks over several pages, so that what follows them lies on another one.
const BLOCKS: u32 = 10;
/// Where one of them is copied to.
const COPY: LbaRange = LbaRange { start: Lba(500), blocks: 1 };
const ROUNDS: u64 = 400;

/// A command and whom it is for.
type Ask = (NamespaceId, Command);

fn start() -> BootTime {
    BootTime { now: Nanos::ZERO, wall: WALL }
}

fn ask(device: &mut Device<SimMedia>, (namespace, command): Ask) -> Completion {
    Engine::submit(device, namespace, 0, command).unwrap();
    let mut now = Nanos::ZERO;
    loop {
        let moved = Engine::poll(device, now, WALL);
        if let Some(completion) = Engine::next_completion(device) {
            return completion;
        }
        if !moved {
            now = Engine::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

/// Carries out the first commands, submits the others, and cuts the power after any number of turns. The device as it is
/// after the cut.
fn cut(seed: u64, durable: Vec<Ask>, racing: Vec<Ask>) -> Device<SimMedia> {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    let damage =
        DamagePlan { whole_percent: 50, torn_percent: 0, neighbour_percent: 0, unreadable_percent: 0 };
    let mut rng = fastrand::Rng::with_seed(seed);
    let media = SimMedia::new(SimMediaConfig::new(FILE, 20));
    let wreck = media.wreck();
    let mut device = <Device<SimMedia> as Engine>::open(media, &config, start()).unwrap();
    for command in durable.into_iter().chain([(KEYS, Command::Flush)]) {
        assert_eq!(ask(&mut device, command).status, Status::SUCCESS);
    }
    for (namespace, command) in racing.into_iter().chain([(KEYS, Command::Flush)]) {
        Engine::submit(&mut device, namespace, 0, command).unwrap();
    }
    let mut now = Nanos::ZERO;
    for turn in 1..rng.u32(2..120) {
        // What waited for the first flush needs another.
        if turn % 20 == 0 {
            Engine::submit(&mut device, KEYS, 0, Command::Flush).unwrap();
        }
        if !Engine::poll(&mut device, now, WALL) {
            now = Engine::next_deadline(&device).unwrap_or(now).max(now);
        }
    }
    drop(device);
    let media = wreck.next_boot(&mut rng, &damage).unwrap();
    <Device<SimMedia> as Engine>::open(media, &config, start()).unwrap()
}

fn create() -> Ask {
    let kind = NamespaceKind::Block(FORMAT);
    let disk = Namespace { kind, size: 1_000, uuid: [2; 16], ..Namespace::IMPLICIT };
    (KEYS, Command::Namespace(NamespaceChange::Create(disk)))
}

fn write(start: u64, blocks: u32, byte: u8) -> Ask {
    let data = Bytes::from(vec![byte; blocks as usize * FORMAT.bytes()]).into();
    (DISK, Command::Write { start: Lba(start), data, fua: Fua::No })
}

fn copy(start: u64) -> Ask {
    let sources = vec![LbaRange { start: Lba(start), blocks: 1 }];
    (DISK, Command::Copy { sources, destination: COPY.start, fua: Fua::No })
}

/// The first byte of each block.
fn blocks(device: &mut Device<SimMedia>, range: LbaRange) -> Vec<u8> {
    let done = ask(device, (DISK, Command::Read { range, sink: Vec::new().into() }));
    assert_eq!(done.status, Status::SUCCESS);
    done.sink.iter().step_by(FORMAT.bytes()).copied().collect()
}

/// A copy did not wait: the power cut took the write, whose pages were the older ones, and left the copy of its last block.
#[test]
fn the_copy_of_a_block_never_outlives_the_write_that_wrote_it() {
    let (mut copied, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let last = u64::from(BLOCKS) - 1;
        let mut device = cut(seed, vec![create()], vec![write(0, BLOCKS, 7), copy(last)]);
        let written = blocks(&mut device, LbaRange { start: Lba(0), blocks: BLOCKS });
        match (written.iter().all(|byte| *byte == 7), blocks(&mut device, COPY)[0]) {
            (true, 7) => copied += 1,
            (true, 0) => {}
            (false, 0) if written.iter().all(|byte| *byte == 0) => neither += 1,
            torn => panic!("seed {seed}: the copy is there and the write is not: {torn:?}, {written:?}"),
        }
    }
    assert!(copied > 0 && neither > 0, "{copied} times both were there, {neither} times neither");
}

/// The same of a removal: the copy of a block that it made zeroes.
#[test]
fn the_copy_of_a_removed_block_never_outlives_the_removal() {
    let (mut copied, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let durable = vec![create(), write(0, 100, 7), write(COPY.start.0, 1, 9)];
        let ranges = vec![LbaRange { start: Lba(0), blocks: 100 }];
        let racing = vec![(DISK, Command::Deallocate { ranges, fua: Fua::No }), copy(0)];
        let mut device = cut(seed, durable, racing);
        let left = blocks(&mut device, LbaRange { start: Lba(0), blocks: 100 });
        match (left.iter().all(|byte| *byte == 0), blocks(&mut device, COPY)[0]) {
            (true, 0) => copied += 1,
            (true, 9) => {}
            (false, 9) if left.iter().all(|byte| *byte == 7) => neither += 1,
            torn => panic!("seed {seed}: the copy is there and the removal is not: {torn:?}, {left:?}"),
        }
    }
    assert!(copied > 0 && neither > 0, "{copied} times both were there, {neither} times neither");
}

fn look(device: &mut Device<SimMedia>, key: &'static [u8]) -> Option<(u32, u64)> {
    let command = Command::Retrieve {
        key: Bytes::from_static(key),
        sink: Vec::new().into(),
        bytes_max: u32::MAX,
        release: Release::WhenDurable,
    };
    let answer = ask(device, (KEYS, command));
    (answer.status == Status::SUCCESS).then_some((answer.value_bytes, answer.expiry_ms))
}

/// An unconditional store that keeps the expiry did not wait: the power cut took the batch and left the expiry it had given.
#[test]
fn an_expiry_that_is_kept_never_outlives_the_batch_that_gave_it() {
    let (mut kept, mut neither) = (0, 0);
    for seed in 0..ROUNDS {
        let put = |key, bytes: usize, expiry| {
            let (key, value) = (Bytes::from_static(key), Bytes::from(vec![7; bytes]));
            BatchWrite::Store { key, value, condition: Condition::Always, expiry }
        };
        let store = |bytes: usize, expiry| {
            let (key, value) = (Bytes::from_static(b"brief"), Bytes::from(vec![8; bytes]).into());
            (KEYS, Command::Store { key, value, condition: Condition::Always, expiry })
        };
        // Its long value comes first, so that the page it shares with the store behind it is not all of the batch.
        let writes = vec![put(b"long", 20_000, Expiry::Never), put(b"brief", 10, Expiry::At(MUCH_LATER))];
        let racing = vec![(KEYS, Command::Batch { writes }), store(11, Expiry::Keep)];
        let mut device = cut(seed, vec![store(9, Expiry::Never)], racing);
        match (look(&mut device, b"brief"), look(&mut device, b"long")) {
            (Some((11, MUCH_LATER)), Some((20_000, 0))) => kept += 1,
            (Some((10, MUCH_LATER)), Some((20_000, 0))) => {}
            (Some((9, 0)), None) => neither += 1,
            torn => panic!("seed {seed}: the expiry is there and the batch is not: {torn:?}"),
        }
    }
    assert!(kept > 0 && neither > 0, "{kept} times both were there, {neither} times neither");
}
