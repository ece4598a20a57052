//! A host that asks one thing after another of a device in memory.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Command, Completion, Condition, Expiry, FaceId, Fua, Lba, LbaRange, NamespaceId, Release,
};
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{Geometry, Media};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

pub(crate) const FACE: FaceId = FaceId(1);
pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);

pub(crate) struct Host<M = MemoryMedia> {
    pub(crate) device: Device<M>,
    pub(crate) now: Nanos,
    config: DeviceConfig,
    token: u64,
}

impl Host {
    pub(crate) fn new(blocks: u32, config: DeviceConfig) -> Self {
        Self::on(MemoryMedia::erased(Geometry::with_blocks(blocks)).unwrap(), config)
    }

    /// Opens what a power cut would leave: memory media keep what was programmed.
    pub(crate) fn reopened(self) -> Self {
        Self::on(self.device.into_media().reopened(), self.config)
    }

    /// Stops in good order, with a checkpoint, and opens again.
    pub(crate) fn restarted(mut self) -> Self {
        self.device.shutdown(self.now, WALL).unwrap();
        self.reopened()
    }
}

impl<M: Media + std::fmt::Debug> Host<M> {
    pub(crate) fn on(media: M, config: DeviceConfig) -> Self {
        let start = Start { now: Nanos::ZERO, wall: WALL };
        let device = Device::open(media, config.clone(), start, &mut |_| {}).unwrap();
        Self { device, now: Nanos::ZERO, config, token: 0 }
    }

    pub(crate) fn submit(&mut self, namespace: NamespaceId, command: Command) -> u64 {
        self.token += 1;
        self.device.submit(FACE, namespace, self.token, command).unwrap();
        self.token
    }

    pub(crate) fn run(&mut self, namespace: NamespaceId, command: Command) -> Completion {
        let token = self.submit(namespace, command);
        for _ in 0..10_000_000 {
            if !self.device.poll(self.now, WALL) {
                std::thread::yield_now();
            }
            if let Some(completion) = self.device.next_completion(FACE) {
                assert_eq!(completion.token, token);
                return completion;
            }
        }
        panic!("no completion came");
    }

    pub(crate) fn write(&mut self, namespace: NamespaceId, start: u64, data: Vec<u8>) -> Status {
        self.run(namespace, write(start, data, Fua::No)).status
    }

    pub(crate) fn read(
        &mut self,
        namespace: NamespaceId,
        start: u64,
        blocks: u32,
    ) -> Result<Vec<u8>, Status> {
        let completion = self.run(namespace, read(start, blocks));
        if completion.status.is_success() {
            assert_eq!(completion.value_bytes as usize, completion.sink.len());
            return Ok(completion.sink);
        }
        assert!(completion.sink.is_empty(), "a read that fails brings nothing");
        Err(completion.status)
    }

    pub(crate) fn deallocate(&mut self, namespace: NamespaceId, ranges: &[(u64, u32)]) -> Status {
        let ranges = ranges.iter().map(|(start, blocks)| range(*start, *blocks)).collect();
        self.run(namespace, Command::Deallocate { ranges, fua: Fua::No }).status
    }

    pub(crate) fn change(&mut self, namespace: NamespaceId, change: NamespaceChange) -> Status {
        self.run(namespace, Command::Namespace(change)).status
    }

    pub(crate) fn create(&mut self, namespace: Namespace) -> NamespaceId {
        let completion = self.run(NamespaceId::FIRST, Command::Namespace(NamespaceChange::Create(namespace)));
        assert_eq!(completion.status, Status::SUCCESS);
        NamespaceId(u8::try_from(completion.position).unwrap())
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, key: &[u8], value: &[u8]) -> Status {
        let command = Command::Store {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value).into(),
            condition: Condition::Always,
            expiry: Expiry::Never,
        };
        self.run(namespace, command).status
    }

    pub(crate) fn get(&mut self, namespace: NamespaceId, key: &[u8]) -> Result<Vec<u8>, Status> {
        let command = Command::Retrieve {
            key: Bytes::copy_from_slice(key),
            sink: Vec::new().into(),
            bytes_max: u32::MAX,
            release: Release::WhenDurable,
        };
        let completion = self.run(namespace, command);
        if completion.status.is_success() { Ok(completion.sink) } else { Err(completion.status) }
    }
}

/// A block namespace of so many blocks.
pub(crate) fn blocks(format: BlockFormat, size: u64) -> Namespace {
    Namespace {
        kind: NamespaceKind::Block(format),
        size,
        uuid: [size.to_le_bytes()[0]; 16],
        ..Namespace::IMPLICIT
    }
}

pub(crate) fn range(start: u64, blocks: u32) -> LbaRange {
    LbaRange { start: Lba(start), blocks }
}

pub(crate) fn read(start: u64, blocks: u32) -> Command {
    Command::Read { range: range(start, blocks), sink: Vec::new().into() }
}

pub(crate) fn write(start: u64, data: Vec<u8>, fua: Fua) -> Command {
    Command::Write { start: Lba(start), data: data.into(), fua }
}

/// So many blocks, each filled with a byte of its own from `seed` on.
pub(crate) fn pattern(format: BlockFormat, seed: u8, blocks: u8) -> Vec<u8> {
    (0..blocks).flat_map(|block| vec![seed.wrapping_add(block); format.bytes()]).collect()
}
