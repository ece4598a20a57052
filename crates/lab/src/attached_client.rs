//! A client in another process than the device, that moves whole values with several commands in flight.
//!
//! Input: the socket of a node; number and length of the values. Output: the time of a number of transfers.
//! Invariant: the status and the length of every completion are checked, and the first bytes of every value that was
//! read, in the buffer to which it was delivered.

use crate::experiment::LabError;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::command::StoreCondition;
use headwater_io::{Buffer, Command, Device, IoError, Queue};
use std::fmt::Display;
use std::path::Path;

/// Number of polls without a completion after which the node counts as stuck.
const POLLS_MAX: u64 = 2_000_000_000;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferVerb {
    /// Values from the device.
    Get,
    /// Values to the device.
    Put,
}

/// An attached client and the slots of its commands.
pub(crate) struct AttachedClient {
    /// The device; dropping it would close its queue.
    _device: Device,
    namespace: u32,
    queue: Queue,
    value_bytes: usize,
    /// A buffer for each command in flight.
    buffers: Vec<Buffer>,
    /// The key of each command in flight, by slot.
    keys: Vec<u64>,
    free: Vec<usize>,
    clock: Clock,
}

impl AttachedClient {
    /// Attaches with `depth` buffers of `value_bytes`.
    pub(crate) fn attach(socket: &Path, value_bytes: usize, depth: usize) -> Result<Self, LabError> {
        let options = AttachOptions { retry_for: Nanos::ZERO, ..AttachOptions::default() };
        let backend = AttachBackend::connect(socket, options).map_err(failed)?;
        let mut device = Device::over(Box::new(backend), 1).map_err(failed)?;
        let mut buffers = Vec::new();
        for _ in 0..depth {
            let mut buffer = device.buffer(value_bytes).map_err(failed)?;
            // Written once: the first write to memory costs a page fault.
            if let Some(bytes) = buffer.bytes_mut() {
                bytes.fill(0xA5);
            }
            buffers.push(buffer.slice(0, value_bytes).map_err(failed)?);
        }
        let queue = device.queue(headwater_host::width::narrow(depth)).map_err(failed)?;
        Ok(Self {
            namespace: device.namespace().id,
            _device: device,
            queue,
            value_bytes,
            buffers,
            keys: vec![0; depth],
            free: (0..depth).collect(),
            clock: Clock::start(),
        })
    }

    /// Moves `count` values, whose keys `next` chooses. Returns the time from the first command to the last completion.
    pub(crate) fn transfer(
        &mut self,
        verb: TransferVerb,
        count: u64,
        mut next: impl FnMut() -> u64,
    ) -> Result<Nanos, LabError> {
        let begun = self.clock.now();
        let (mut sent, mut taken) = (0, 0);
        while taken < count {
            let before = sent;
            while sent < count
                && let Some(slot) = self.free.pop()
            {
                self.submit(verb, slot, next())?;
                sent += 1;
            }
            if sent > before {
                self.queue.ring().map_err(failed)?;
            }
            taken += self.take(verb)?;
        }
        Ok(self.clock.now().since(begun))
    }

    fn submit(&mut self, verb: TransferVerb, slot: usize, key: u64) -> Result<(), LabError> {
        let (name, buffer) = (self.key_bytes(key), self.buffers[slot].clone());
        let command = match verb {
            TransferVerb::Get => Command::get(self.namespace, &name, buffer),
            TransferVerb::Put => {
                buffer.write(0, &key.to_le_bytes()).map_err(failed)?;
                Command::put(self.namespace, &name, buffer, StoreCondition::Always)
            }
        };
        self.keys[slot] = key;
        self.queue.submit(command.map_err(failed)?, slot as u64).map_err(failed)
    }

    /// Takes the completions that are there, and waits for the first. Returns their number.
    fn take(&mut self, verb: TransferVerb) -> Result<u64, LabError> {
        let (mut taken, mut polls) = (0, 0);
        loop {
            let Some(completion) = self.queue.poll().map_err(failed)? else {
                polls += 1;
                if taken > 0 {
                    return Ok(taken);
                }
                if polls > POLLS_MAX {
                    return Err(failed("the node completes no commands"));
                }
                std::hint::spin_loop();
                continue;
            };
            let slot = headwater_host::width::to_usize(completion.token);
            let length = completion.into_result().map_err(|error: IoError| failed(error))?;
            if verb == TransferVerb::Get {
                self.check(slot, length)?;
            }
            self.free.push(slot);
            taken += 1;
        }
    }

    fn check(&self, slot: usize, length: u32) -> Result<(), LabError> {
        if length as usize != self.value_bytes {
            return Err(failed("a retrieved value has another length than the stored one"));
        }
        let mut front = [0; 8];
        self.buffers[slot].read(0, &mut front).map_err(failed)?;
        if u64::from_le_bytes(front) != self.keys[slot] {
            return Err(failed("a retrieved value belongs to another key"));
        }
        Ok(())
    }

    /// Returns a key that clients with values of other lengths do not use.
    fn key_bytes(&self, key: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (low, high) = bytes.split_at_mut(8);
        low.copy_from_slice(&key.to_le_bytes());
        high.copy_from_slice(&(self.value_bytes as u64).to_le_bytes());
        bytes
    }
}

fn failed(reason: impl Display) -> LabError {
    LabError::Measure { program: "headwater serve".to_owned(), reason: reason.to_string() }
}
