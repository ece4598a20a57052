//! A client that reads and stores in an in-process device as fast as the device accepts commands.
//!
//! Input: keys and values.
//! Output: one completed command each, or the error that ends the measurement.
//! Invariant: at most [`DEPTH`] commands are in flight, and none is left when [`StoreClient::drain`] returns.

use crate::experiment::LabError;
use bytes::Bytes;
use headwater_host::clock::Clock;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, ValueSink, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, DeviceStats, SsdDevice, StartTime};
use headwater_ssd::media::Media;

/// Maximum number of commands in flight. One poll of the device examines 256 records of a victim block: with many more
/// stores a poll, stores would always wait for garbage collection.
pub(crate) const DEPTH: usize = 16;
const FRONT_END: FrontEndId = FrontEndId(1);

/// A device and its stores in flight.
#[derive(Debug)]
pub(crate) struct StoreClient<M> {
    device: SsdDevice<M>,
    clock: Clock,
    token: u64,
    in_flight: usize,
    read_bytes: u64,
}

impl<M: Media> StoreClient<M> {
    /// Opens the device on a new or used medium.
    pub(crate) fn open(media: M, config: DeviceConfig, clock: &Clock) -> Result<Self, LabError> {
        let start = StartTime { now: clock.now(), wall: clock.wall() };
        let device = SsdDevice::open(media, config, start, &mut |_| {})
            .map_err(|error| failed(format!("cannot open it: {error}")))?;
        Ok(Self { device, clock: *clock, token: 0, in_flight: 0, read_bytes: 0 })
    }

    /// Stores a value; waits while the maximum number of commands is in flight.
    pub(crate) fn store(&mut self, key: Bytes, value: Bytes) -> Result<(), LabError> {
        let command = SsdCommand::Store {
            key,
            value: value.into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        self.submit(command)?;
        self.wait_for_place()
    }

    /// Reads a value, of which only the bytes are counted; waits while the maximum number of commands is in flight.
    pub(crate) fn retrieve(&mut self, key: Bytes) -> Result<(), LabError> {
        self.submit(SsdCommand::retrieve_whole(key, ValueSink::Bytes(Vec::new()), ReadRelease::WhenDurable))?;
        self.wait_for_place()
    }

    /// Returns the bytes of all values that were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    fn wait_for_place(&mut self) -> Result<(), LabError> {
        while self.in_flight >= DEPTH {
            self.poll()?;
        }
        Ok(())
    }

    /// Returns the value of a key.
    pub(crate) fn get(&mut self, key: Bytes) -> Result<Vec<u8>, LabError> {
        self.drain()?;
        self.submit(SsdCommand::retrieve_whole(key, ValueSink::Bytes(Vec::new()), ReadRelease::WhenDurable))?;
        let mut value = Vec::new();
        while self.in_flight > 0 {
            if let Some(last) = self.poll()? {
                value = last;
            }
        }
        Ok(value)
    }

    /// Waits until no command is in flight.
    pub(crate) fn drain(&mut self) -> Result<(), LabError> {
        while self.in_flight > 0 {
            self.poll()?;
        }
        Ok(())
    }

    /// Makes everything durable and writes a checkpoint.
    pub(crate) fn shutdown(&mut self) -> Result<(), LabError> {
        self.drain()?;
        let (now, wall) = (self.clock.now(), self.clock.wall());
        self.device
            .shutdown(now, wall)
            .map(|_| ())
            .map_err(|error| failed(format!("cannot shut it down: {error}")))
    }

    /// Returns the device's statistics.
    pub(crate) fn stats(&self) -> DeviceStats {
        self.device.stats()
    }

    fn submit(&mut self, command: SsdCommand) -> Result<(), LabError> {
        self.token += 1;
        self.device
            .submit(FRONT_END, NamespaceId::FIRST, self.token, command)
            .map_err(|error| failed(error.to_string()))?;
        self.in_flight += 1;
        Ok(())
    }

    /// Polls the device once. Returns the bytes of the last completion, if any.
    fn poll(&mut self) -> Result<Option<Vec<u8>>, LabError> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let moved = self.device.poll(now, wall);
        let before = self.in_flight;
        let mut last = None;
        while let Some(completion) = self.device.next_completion(FRONT_END) {
            self.in_flight -= 1;
            if completion.status != Status::SUCCESS {
                return Err(failed(format!("a command completed with status {}", completion.status)));
            }
            self.read_bytes += completion.sink.len() as u64;
            last = Some(completion.sink);
        }
        if !moved && self.in_flight == before {
            self.device.media_mut().wait(now);
        }
        Ok(last)
    }
}

fn failed(reason: String) -> LabError {
    LabError::Measure { program: "the device".to_owned(), reason }
}
