//! A client that submits commands without waiting for the ones before.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, Fua, Lba, LbaRange, NamespaceId, ReadRelease, RecordExpiry, SsdCommand,
    SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use std::collections::BTreeMap;

pub(crate) const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const FORMAT: BlockFormat = BlockFormat::B512;
/// Writes of a batch, and blocks of a write, that one turn carries out.
pub(crate) const PART_WRITES: usize = 3;

/// A completion and the turn that it came in.
#[derive(Debug)]
pub(crate) struct DoneCommand {
    pub(crate) completion: SsdCompletion,
    pub(crate) turn: usize,
}

impl DoneCommand {
    /// Returns the value that a read found, which all its bytes repeat.
    pub(crate) fn value(&self) -> Option<u64> {
        match self.completion.status {
            Status::SUCCESS => Some(value_in(&self.completion.sink)),
            Status::KEY_DOES_NOT_EXIST => None,
            status => panic!("{status:?}"),
        }
    }
}

/// Returns the value that some bytes repeat.
pub(crate) fn value_in(bytes: &[u8]) -> u64 {
    let (numbers, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty() && numbers.iter().all(|number| *number == numbers[0]), "several values");
    u64::from_le_bytes(numbers[0])
}

/// A device with a namespace of keys and one of blocks, and the commands in flight.
pub(crate) struct OrderHost {
    pub(crate) device: SsdDevice<MemoryMedia>,
    disk: NamespaceId,
    done: BTreeMap<u64, DoneCommand>,
    in_flight: usize,
    token: u64,
    turn: usize,
}

impl OrderHost {
    pub(crate) fn new() -> Self {
        Self::with_config(DeviceConfig { batch_part_writes: PART_WRITES, ..DeviceConfig::default() })
    }

    pub(crate) fn with_config(config: DeviceConfig) -> Self {
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(256)).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        let mut host =
            Self { device, disk: NamespaceId::FIRST, done: BTreeMap::new(), in_flight: 0, token: 0, turn: 0 };
        let kind = NamespaceKind::Block(FORMAT);
        let disk = Namespace { kind, size: 1_000, uuid: [1; 16], ..Namespace::IMPLICIT };
        let made = host.submit(SsdCommand::Namespace(NamespaceChange::Create(disk)));
        let position = host.finish()[&made].completion.position;
        host.disk = NamespaceId(u8::try_from(position).unwrap());
        host
    }

    /// Submits a command and returns its token.
    pub(crate) fn submit(&mut self, command: SsdCommand) -> u64 {
        self.token += 1;
        let is_on_blocks = matches!(
            command,
            SsdCommand::Read { .. }
                | SsdCommand::Write { .. }
                | SsdCommand::Deallocate { .. }
                | SsdCommand::Copy { .. }
        );
        let namespace = if is_on_blocks { self.disk } else { NamespaceId::FIRST };
        self.device.submit(FRONT_END, namespace, self.token, command).unwrap();
        self.in_flight += 1;
        self.token
    }

    /// Runs one turn, and keeps the completions.
    pub(crate) fn poll(&mut self) {
        self.turn += 1;
        self.device.poll(Nanos::ZERO, WALL);
        self.take();
    }

    fn take(&mut self) {
        let turn = self.turn;
        while let Some(completion) = self.device.next_completion(FRONT_END) {
            let before = self.done.insert(completion.token, DoneCommand { completion, turn });
            assert!(before.is_none(), "a command completes twice");
            self.in_flight -= 1;
        }
    }

    pub(crate) fn abort(&mut self, token: u64) -> bool {
        let is_aborted = self.device.abort(FRONT_END, token);
        self.take();
        is_aborted
    }

    /// Polls until all commands have completed, and returns their completions by their tokens.
    pub(crate) fn finish(&mut self) -> BTreeMap<u64, DoneCommand> {
        for _ in 0..1_000_000 {
            if self.in_flight == 0 {
                return std::mem::take(&mut self.done);
            }
            self.poll();
        }
        panic!("{} commands do not complete", self.in_flight);
    }

    pub(crate) fn value_of(&mut self, key: u64) -> Option<u64> {
        let token = self.submit(retrieve(key));
        self.finish()[&token].value()
    }
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number}"))
}

fn bytes_of(value: u64, bytes: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(bytes / 8)
}

/// Returns a store of a value of this length, which is stored in parts if it is long.
pub(crate) fn long_store(number: u64, value: u64, bytes: usize) -> SsdCommand {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    SsdCommand::Store { key: key(number), value: bytes_of(value, bytes).into(), condition, expiry }
}

pub(crate) fn store(number: u64, value: u64) -> SsdCommand {
    long_store(number, value, 8)
}

pub(crate) fn retrieve(number: u64) -> SsdCommand {
    let release = ReadRelease::WhenDurable;
    SsdCommand::retrieve_whole(key(number), Vec::new().into(), release)
}

pub(crate) fn delete(number: u64) -> SsdCommand {
    SsdCommand::Delete { key: key(number), condition: WriteCondition::Always }
}

/// Returns a batch that gives each key the value.
pub(crate) fn batch(keys: impl IntoIterator<Item = u64>, value: u64) -> SsdCommand {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let write =
        |number| BatchWrite::Store { key: key(number), value: bytes_of(value, 8).into(), condition, expiry };
    SsdCommand::Batch { writes: keys.into_iter().map(write).collect() }
}

pub(crate) fn range(start: u64, blocks: u32) -> LbaRange {
    LbaRange { start: Lba(start), blocks }
}

pub(crate) fn copy(source: LbaRange, destination: u64) -> SsdCommand {
    SsdCommand::Copy { sources: vec![source], destination: Lba(destination), fua: Fua::No }
}

pub(crate) fn deallocate(ranges: Vec<LbaRange>) -> SsdCommand {
    SsdCommand::Deallocate { ranges, fua: Fua::No }
}

/// Returns a write that gives each block the value.
pub(crate) fn write(range: LbaRange, value: u64) -> SsdCommand {
    let data = bytes_of(value, range.blocks as usize * FORMAT.bytes());
    SsdCommand::Write { start: range.start, data: data.into(), fua: Fua::No }
}

pub(crate) fn read(range: LbaRange) -> SsdCommand {
    SsdCommand::Read { range, sink: Vec::new().into() }
}
