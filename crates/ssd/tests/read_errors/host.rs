//! A host that runs one command after another on a device whose reads fail.

use crate::failing_media::FailingMedia;
use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueSink,
    ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, OpenError, SsdDevice, StartTime};

const FRONT_END: FrontEndId = FrontEndId(1);
pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);
/// Turns without a completion after which a command counts as hanging.
const TURNS_MAX: u32 = 1_000_000;

pub(crate) struct ReadErrorHost {
    pub(crate) device: SsdDevice<FailingMedia>,
    pub(crate) now: Nanos,
    config: DeviceConfig,
}

impl ReadErrorHost {
    pub(crate) fn new(blocks: u32, config: DeviceConfig) -> Self {
        Self::open(FailingMedia::new(blocks), &config).unwrap()
    }

    pub(crate) fn open(
        media: FailingMedia,
        config: &DeviceConfig,
    ) -> Result<Self, Box<OpenError<FailingMedia>>> {
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config.clone(), start, &mut |_| {})?;
        Ok(Self { device, now: Nanos::ZERO, config: config.clone() })
    }

    /// Returns the medium as a killed process leaves it.
    pub(crate) fn killed(self) -> FailingMedia {
        self.device.into_media().after_kill()
    }

    /// Writes a checkpoint, stops, and returns the medium.
    pub(crate) fn stopped(mut self) -> FailingMedia {
        self.device.shutdown(self.now, WALL).unwrap();
        self.killed()
    }

    pub(crate) fn reopened(self) -> Self {
        let config = self.config.clone();
        Self::open(self.killed(), &config).unwrap()
    }

    pub(crate) fn run_in(&mut self, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
        self.device.submit(FRONT_END, namespace, 7, command).unwrap();
        for _ in 0..TURNS_MAX {
            let moved = self.device.poll(self.now, WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
            if !moved && let Some(at) = self.device.next_deadline() {
                self.now = self.now.max(at);
            }
        }
        panic!("a command has no completion after {TURNS_MAX} turns: {:?}", self.device.stats());
    }

    pub(crate) fn run(&mut self, command: SsdCommand) -> SsdCompletion {
        self.run_in(NamespaceId::FIRST, command)
    }

    /// Runs turns until nothing moves and nothing is due.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let moved = self.device.poll(self.now, WALL);
            match self.device.next_deadline() {
                _ if moved => {}
                Some(at) => self.now = self.now.max(at),
                None => return,
            }
        }
        panic!("the device never settles");
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Status {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value));
        let command = SsdCommand::Store {
            key,
            value: ValueSource::Bytes(value),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        self.run(command).status
    }

    pub(crate) fn delete(&mut self, key: &str) -> Status {
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.run(SsdCommand::Delete { key, condition: WriteCondition::Always }).status
    }

    pub(crate) fn get(&mut self, key: &str) -> Result<Vec<u8>, Status> {
        self.get_with(key, ReadCaching::ByLength)
    }

    pub(crate) fn get_with(&mut self, key: &str, caching: ReadCaching) -> Result<Vec<u8>, Status> {
        let completion = self.run(SsdCommand::Retrieve {
            key: Bytes::copy_from_slice(key.as_bytes()),
            sink: ValueSink::Bytes(Vec::new()),
            offset: 0,
            bytes_max: u32::MAX,
            caching,
            release: ReadRelease::WhenDurable,
        });
        if completion.status.is_success() { Ok(completion.sink) } else { Err(completion.status) }
    }
}

/// Returns a value that only this number has, about a page long.
pub(crate) fn value(number: usize) -> Vec<u8> {
    format!("<value {number:06}>").repeat(250).into_bytes()
}

/// Returns the text that only the value of this number contains.
pub(crate) fn text(number: usize) -> Vec<u8> {
    format!("<value {number:06}>").into_bytes()
}

pub(crate) fn key(number: usize) -> String {
    format!("key {number}")
}

/// Returns a medium with this many keys, as a killed process leaves it: all of them are in the log.
pub(crate) fn killed_medium(keys: usize) -> FailingMedia {
    let mut host = ReadErrorHost::new(24, DeviceConfig::default());
    for number in 0..keys {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    host.killed()
}
