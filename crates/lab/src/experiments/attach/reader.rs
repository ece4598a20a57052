//! An attached client that reads random keys of a node.
//!
//! Input: the number and size of the values. Output: times.
//! The status and length of every completion are checked; at depth 1 also the first bytes of the value, in the buffer
//! to which it was delivered.

use super::{ROUND_MAX, failed};
use crate::experiment::LabError;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_io::{Buffer, Command, Device, Queue};
use std::path::Path;

/// Number of keys of each client; their values stay in device DRAM.
const KEYS: u64 = 2_048;
/// Number of polls without a completion after which the node counts as stuck.
const POLLS_MAX: u64 = 2_000_000_000;

pub(super) struct AttachedReader {
    /// The device; dropping it would close its queues.
    _device: Device,
    queue: Queue,
    commands: Vec<Command>,
    buffer: Buffer,
    value_bytes: u32,
    random: fastrand::Rng,
    clock: Clock,
    sent: u64,
}

impl AttachedReader {
    /// Attaches and stores the keys.
    pub(super) fn attach(
        socket: &Path,
        namespace: u32,
        value_bytes: u32,
        depth: u32,
    ) -> Result<Self, LabError> {
        let backend = AttachBackend::connect(
            socket,
            AttachOptions { retry_for: Nanos::ZERO, ..AttachOptions::default() },
        )?;
        Self::over(Device::over(Box::new(backend), namespace)?, value_bytes, depth)
    }

    /// Attaches with a separate namespace, which is filled first and then limited.
    pub(super) fn limited(socket: &Path, value_bytes: u32, depth: u32, iops: u32) -> Result<Self, LabError> {
        let backend = AttachBackend::connect(
            socket,
            AttachOptions { retry_for: Nanos::ZERO, ..AttachOptions::default() },
        )?;
        let mut device = Device::over(Box::new(backend), 1)?;
        let namespace = device.create_namespace(NamespaceSpec::keys())?;
        device.select_namespace(namespace)?;
        let mut reader = Self::over(device, value_bytes, depth)?;
        let limits = NamespaceRequest::Limits { iops, bytes_per_second: 0, burst: depth };
        reader._device.change_namespace(namespace, limits)?;
        Ok(reader)
    }

    fn over(mut device: Device, value_bytes: u32, depth: u32) -> Result<Self, LabError> {
        let value_len = value_bytes as usize;
        let buffer = device.buffer(value_len * depth as usize)?;
        for key in 0..KEYS {
            let mut value = vec![0xA5; value_len];
            value[..8].copy_from_slice(&key.to_le_bytes());
            device.put(&key_bytes(key, value_bytes), &value)?;
        }
        let namespace = device.namespace().id;
        let mut commands = Vec::new();
        for key in 0..KEYS {
            let offset = usize::try_from(key % u64::from(depth)).unwrap_or(0) * value_len;
            let into = buffer.slice(offset, value_len).map_err(failed)?;
            commands.push(Command::get(namespace, &key_bytes(key, value_bytes), into)?);
        }
        let queue = device.queue(depth)?;
        Ok(Self {
            _device: device,
            queue,
            commands,
            buffer,
            value_bytes,
            random: fastrand::Rng::with_seed(1),
            clock: Clock::start(),
            sent: 0,
        })
    }

    /// Runs one command after the other. Returns the nanoseconds of each.
    pub(super) fn trips(&mut self, trips: usize) -> Result<Vec<u64>, LabError> {
        self.trips_with_neighbour(trips, None)
    }

    /// Runs commands as [`Self::trips`] does; between two commands it refills the queue of another client and takes its
    /// completions.
    pub(super) fn trips_with_neighbour(
        &mut self,
        trips: usize,
        mut other: Option<&mut Self>,
    ) -> Result<Vec<u64>, LabError> {
        let mut nanos = Vec::with_capacity(trips);
        let started = self.clock.now();
        for _ in 0..trips {
            if let Some(other) = other.as_deref_mut() {
                other.fill()?;
                other.take()?;
            }
            let key = self.random.u64(..KEYS);
            let command = &self.commands[usize::try_from(key).unwrap_or(0)];
            let begun = self.clock.now();
            self.queue.submit(command.clone(), key).map_err(failed)?;
            let answer = self.wait()?;
            let ended = self.clock.now();
            nanos.push(ended.since(begun).0);
            if ended.since(started) > ROUND_MAX {
                break;
            }
            if answer != self.value_bytes {
                return Err(failed("a retrieved value has another length than the stored one"));
            }
            let mut front = [0; 8];
            self.buffer.read(0, &mut front).map_err(failed)?;
            if u64::from_le_bytes(front) != key {
                return Err(failed("a retrieved value belongs to another key"));
            }
        }
        while let Some(other) = other.as_deref_mut() {
            if other.queue.in_flight() == 0 {
                break;
            }
            other.take()?;
        }
        Ok(nanos)
    }

    /// Returns the commands a second with the queue full.
    #[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
    pub(super) fn rate(&mut self, reads: u64) -> Result<f64, LabError> {
        let begun = self.clock.now();
        let mut taken = 0;
        while taken < reads {
            self.fill()?;
            taken += self.take()?;
        }
        let span = self.clock.now().since(begun).to_duration().as_secs_f64();
        while self.queue.in_flight() > 0 {
            self.take()?;
        }
        Ok(taken as f64 / span)
    }

    fn fill(&mut self) -> Result<(), LabError> {
        while self.queue.in_flight() < self.queue.depth() {
            // An odd stride visits each key once, and the slots of the buffer in rotation.
            let key = self.sent.wrapping_mul(1_021) % KEYS;
            let command = &self.commands[usize::try_from(key).unwrap_or(0)];
            self.queue.submit(command.clone(), key).map_err(failed)?;
            self.sent += 1;
        }
        self.queue.ring()?;
        Ok(())
    }

    fn take(&mut self) -> Result<u64, LabError> {
        let mut taken = 0;
        while let Some(completion) = self.queue.poll()? {
            if completion.into_result()? != self.value_bytes {
                return Err(failed("a retrieved value has another length than the stored one"));
            }
            taken += 1;
        }
        Ok(taken)
    }

    fn wait(&mut self) -> Result<u32, LabError> {
        for _ in 0..POLLS_MAX {
            if let Some(completion) = self.queue.poll()? {
                return Ok(completion.into_result()?);
            }
            std::hint::spin_loop();
        }
        Err(failed("the node completes no commands"))
    }
}

fn key_bytes(key: u64, value_bytes: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&key.to_le_bytes());
    high.copy_from_slice(&u64::from(value_bytes).to_le_bytes());
    bytes
}
