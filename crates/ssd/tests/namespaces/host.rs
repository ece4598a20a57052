//! A host that runs one command after another on a device.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, Fua, Lba, LbaRange, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{FlashGeometry, Media};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

pub(crate) const FRONT_END: FrontEndId = FrontEndId(1);
pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);

pub(crate) struct NamespaceHost<M = MemoryMedia> {
    pub(crate) device: SsdDevice<M>,
    pub(crate) now: Nanos,
    config: DeviceConfig,
    token: u64,
}

impl NamespaceHost {
    pub(crate) fn new(blocks: u32, config: DeviceConfig) -> Self {
        Self::on(MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap(), config)
    }

    /// Opens the medium as after a power cut: memory media keep every programmed page.
    pub(crate) fn reopened(self) -> Self {
        Self::on(self.device.into_media().after_power_cut(), self.config)
    }

    /// Shuts the device down, with a checkpoint, and opens the medium again.
    pub(crate) fn restarted(mut self) -> Self {
        self.device.shutdown(self.now, WALL).unwrap();
        self.reopened()
    }
}

impl<M: Media + std::fmt::Debug> NamespaceHost<M> {
    pub(crate) fn on(media: M, config: DeviceConfig) -> Self {
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config.clone(), start, &mut |_| {}).unwrap();
        Self { device, now: Nanos::ZERO, config, token: 0 }
    }

    pub(crate) fn submit(&mut self, namespace: NamespaceId, command: SsdCommand) -> u64 {
        self.token += 1;
        self.device.submit(FRONT_END, namespace, self.token, command).unwrap();
        self.token
    }

    pub(crate) fn run(&mut self, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
        let token = self.submit(namespace, command);
        for _ in 0..10_000_000 {
            if !self.device.poll(self.now, WALL) {
                std::thread::yield_now();
            }
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                assert_eq!(completion.token, token);
                return completion;
            }
        }
        panic!("command {token} of {namespace} has no completion");
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
        assert!(completion.sink.is_empty(), "a failed read returned bytes");
        Err(completion.status)
    }

    pub(crate) fn deallocate(&mut self, namespace: NamespaceId, ranges: &[(u64, u32)]) -> Status {
        let ranges = ranges.iter().map(|(start, blocks)| range(*start, *blocks)).collect();
        self.run(namespace, SsdCommand::Deallocate { ranges, fua: Fua::No }).status
    }

    pub(crate) fn change(&mut self, namespace: NamespaceId, change: NamespaceChange) -> Status {
        self.run(namespace, SsdCommand::Namespace(change)).status
    }

    pub(crate) fn create(&mut self, namespace: Namespace) -> NamespaceId {
        let completion =
            self.run(NamespaceId::FIRST, SsdCommand::Namespace(NamespaceChange::Create(namespace)));
        assert_eq!(completion.status, Status::SUCCESS);
        NamespaceId(u8::try_from(completion.position).unwrap())
    }

    pub(crate) fn set(&mut self, namespace: NamespaceId, key: &[u8], value: &[u8]) -> Status {
        let command = SsdCommand::Store {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value).into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        self.run(namespace, command).status
    }

    pub(crate) fn get(&mut self, namespace: NamespaceId, key: &[u8]) -> Result<Vec<u8>, Status> {
        let command = SsdCommand::retrieve_whole(
            Bytes::copy_from_slice(key),
            Vec::new().into(),
            ReadRelease::WhenDurable,
        );
        let completion = self.run(namespace, command);
        if completion.status.is_success() { Ok(completion.sink) } else { Err(completion.status) }
    }
}

/// Returns a block namespace of `size` blocks.
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

pub(crate) fn read(start: u64, blocks: u32) -> SsdCommand {
    SsdCommand::Read { range: range(start, blocks), sink: Vec::new().into() }
}

pub(crate) fn write(start: u64, data: impl Into<ValueSource>, fua: Fua) -> SsdCommand {
    SsdCommand::Write { start: Lba(start), data: data.into(), fua }
}

/// Returns `blocks` blocks, each filled with a byte of its own from `seed` on.
pub(crate) fn pattern(format: BlockFormat, seed: u8, blocks: u8) -> Vec<u8> {
    (0..blocks).flat_map(|block| vec![seed.wrapping_add(block); format.bytes()]).collect()
}
