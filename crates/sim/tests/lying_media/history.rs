//! A device with a past: every answer that was acknowledged, the file, and the file at an earlier moment.
//!
//! Input: how the history ends, and what the disk does to one write. Output: a [`DeviceHistory`]. Invariant: every command
//! was acknowledged as durable, so each key has exactly one right answer.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::{DamagePlan, LyingProgram};
use headwater_sim::media::struck::{FILE_UUID, StruckPlace, places_in};
use headwater_sim::simulated_file::{FileMoment, SimFile, SimRing};
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::inspection::{CheckpointFound, inspect};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{FileMedia, OpenAccess, ZeroFillMode, write_new_file};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The device on the simulated file.
pub(crate) type FileDevice = SsdDevice<FileMedia<SimRing>>;

pub(crate) const BLOCKS: u32 = 20;
const KEYS: u32 = 48;
/// Commands of a history: so many that blocks are collected, or so few that every block is used for the first time.
const COMMANDS: [u32; 2] = [1_400, 350];
const FRONT_END: FrontEndId = FrontEndId(1);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
/// Polls of one command, with or without progress, after which the device counts as stuck.
const POLLS_MAX: u32 = 20_000;

/// The last commands of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A power cut; there is no checkpoint.
    CutWithoutCheckpoint,
    /// A checkpoint at the earlier moment, and a power cut.
    CutBehindCheckpoint,
    /// A shutdown, which writes a checkpoint.
    Shutdown,
}

impl Ending {
    pub(crate) const ALL: [Self; 3] = [Self::CutWithoutCheckpoint, Self::CutBehindCheckpoint, Self::Shutdown];
}

/// An acknowledged state of a key.
#[derive(Clone, Debug)]
pub(crate) struct KeyState {
    /// `None` when it was deleted or never stored.
    pub(crate) value: Option<Vec<u8>>,
    /// The sequence that the acknowledgement returned; 0 before the first one.
    pub(crate) sequence: Sequence,
}

/// Every state of a key, in order.
pub(crate) type KeyStates = Vec<KeyState>;

/// The file of a stopped device, and what was acknowledged.
pub(crate) struct DeviceHistory {
    pub(crate) file: SimFile,
    pub(crate) earlier: FileMoment,
    pub(crate) keys: BTreeMap<u32, KeyStates>,
    /// Number of writes that the file took.
    pub(crate) writes: u64,
    /// True if a command was never completed.
    pub(crate) hung: bool,
    /// The places that the write that lied struck.
    pub(crate) struck: Vec<StruckPlace>,
}

pub(crate) fn config() -> DeviceConfig {
    DeviceConfig { frames_max: 512, ..DeviceConfig::default() }
}

fn open_media(file: &SimFile, access: OpenAccess) -> Result<FileMedia<SimRing>, String> {
    FileMedia::open_over(file, file.ring(), PathBuf::from("flash"), access, ZeroFillMode::Ahead)
        .map_err(|error| error.to_string())
}

pub(crate) fn open(file: &SimFile, access: OpenAccess) -> Result<FileDevice, String> {
    SsdDevice::open(open_media(file, access)?, config(), START, &mut |_| {})
        .map_err(|error| error.to_string())
}

/// Inspects the file as `device check` does. Returns true if it finds nothing.
pub(crate) fn inspects_as_whole(file: &SimFile) -> Result<bool, String> {
    let media = open_media(file, OpenAccess::ReadOnly)?;
    let found = inspect(media, &config(), START, &mut |_| {});
    let (found, _) = found.map_err(|error| error.to_string())?;
    Ok(found.faults.count == 0
        && found.differences.count == 0
        && found.checkpoint != CheckpointFound::Damaged
        && found.unreadable_blocks == 0
        && found.unreadable_pages.count == 0)
}

/// Runs one command.
///
/// # Errors
/// The command does not complete.
pub(crate) fn run(
    device: &mut FileDevice,
    now: &mut Nanos,
    command: SsdCommand,
) -> Result<SsdCompletion, String> {
    let submitted = device.submit(FRONT_END, NamespaceId::FIRST, 0, command);
    submitted.map_err(|error| format!("refused: {error}"))?;
    for _ in 0..POLLS_MAX {
        let moved = device.poll(*now, START.wall);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return Ok(completion);
        }
        if !moved {
            let deadline = device.next_deadline().ok_or("the device waits for nothing")?;
            *now = deadline.max(now.after(Nanos(1)));
        }
    }
    Err("the device hangs".to_owned())
}

pub(crate) fn get(key: u32) -> SsdCommand {
    SsdCommand::retrieve_whole(key_bytes(key), Vec::new().into(), ReadRelease::WhenDurable)
}

fn key_bytes(key: u32) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

/// Returns a value that no other command stores.
fn value(rng: &mut fastrand::Rng, command: u32) -> Vec<u8> {
    let bytes = if rng.u8(0..6) == 0 { rng.usize(5_000..11_000) } else { rng.usize(40..3_500) };
    let mut value = vec![0; bytes];
    rng.fill(&mut value);
    value[..4].copy_from_slice(&command.to_le_bytes());
    value
}

/// Stores a value under a key, or deletes it.
fn change(key: u32, value: Option<&Vec<u8>>) -> SsdCommand {
    let key = key_bytes(key);
    match value {
        None => SsdCommand::Delete { key, condition: WriteCondition::Always },
        Some(value) => SsdCommand::Store {
            key,
            value: value.clone().into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        },
    }
}

impl DeviceHistory {
    /// Makes the history of a seed.
    pub(crate) fn new(seed: u64, ending: Ending, lie: Option<LyingProgram>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let commands = COMMANDS[usize::from(seed.is_multiple_of(2))];
        let at_earlier = commands * 5 / 7;
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        let file = SimFile::allocated(geometry, rng.u64(..));
        write_new_file(&file, geometry, FILE_UUID).unwrap();
        let mut device = open(&file, OpenAccess::New).unwrap();
        file.set_faults(None, lie);
        let (mut keys, mut now) = (BTreeMap::<u32, KeyStates>::new(), Nanos::ZERO);
        let (mut earlier, mut hung) = (file.moment(), false);
        for command in 0..commands {
            if command == at_earlier {
                earlier = file.moment();
                if ending == Ending::CutBehindCheckpoint {
                    device.request_checkpoint();
                }
            }
            // Towards the end, some keys stay as they are and some are gone for good.
            let key = rng.u32(0..if command < at_earlier { KEYS } else { KEYS * 2 / 3 });
            let states =
                keys.entry(key).or_insert_with(|| vec![KeyState { value: None, sequence: Sequence(0) }]);
            let deletes = command % 7 == 3 || (command > commands - 100 && key % 4 == 1);
            let stored = (!deletes).then(|| value(&mut rng, command));
            let answer = run(&mut device, &mut now, change(key, stored.as_ref()));
            hung = answer.is_err();
            let status = answer.as_ref().map_or(Status::INTERNAL_ERROR, |answer| answer.status);
            if status == Status::SUCCESS || (deletes && status == Status::KEY_DOES_NOT_EXIST) {
                let sequence = answer.map_or(Sequence(0), |answer| answer.sequence);
                states.push(KeyState { value: stored, sequence });
                continue;
            }
            // Only a disk that lies explains an error. The history ends with it, and that key has two right answers.
            assert!(lie.is_some(), "seed {seed} command {command}: {status:?}");
            keys.remove(&key);
            break;
        }
        if ending == Ending::Shutdown && !hung {
            let closed = device.shutdown(now, START.wall);
            assert!(closed.is_ok() || lie.is_some(), "seed {seed}: {closed:?}");
        }
        let writes = file.writes();
        drop(device);
        assert_eq!(file.misuse(), None);
        let written = file.struck();
        let file = file.next_boot(&mut rng, &DamagePlan::CLEAN);
        let struck = written.iter().flat_map(|(start, wanted)| places_in(geometry, *start, wanted)).collect();
        Self { file, earlier, keys, writes, hung, struck }
    }
}
