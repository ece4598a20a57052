//! An NVMe namespace through the kernel's driver, command by command: `/dev/ngXnY`.
//!
//! In: a path, perhaps a partition. Out: a [`Backend`]: commands of the NVM and the key-value set go to the device as they are, by
//! io_uring on registered buffers, or by ioctl on threads where that is refused. Invariant: every command was judged before it
//! goes: one that leaves the partition, or moves other bytes than its data has, never reaches the device.
//!
//! The kernel's own users of the device, file systems on other partitions among them, go on as before.

mod device_file;
mod judge;
mod nvme_steps;

use crate::attach::admin::NamespaceWish;
use crate::backend::{Backend, Transport};
use crate::buffer::Buffer;
use crate::command::Command;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use crate::queue::Queue;
use crate::uring::pool::{RingPool, SLOTS};
use crate::uring::queue::UringQueue;
use device_file::DeviceFile;
use headwater_host::device_ring::{DeviceRing, NvmeWork, RingWish};
use headwater_host::uring::{RingKind, UringChoice};
use headwater_nvme::spec::status::Status;
use nvme_steps::NvmeSteps;
use std::path::Path;
use std::sync::Arc;

/// Bytes for a list of keys.
const KEYS_BYTES: u32 = 4_096;

/// How a namespace is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassthroughOptions {
    /// The partition that is all this client sees and touches; `None` for the whole namespace.
    pub partition: Option<u32>,
    /// Completions are polled from the device, without interrupts.
    pub poll: bool,
    /// Whether to ask for io_uring at all.
    pub uring: UringChoice,
}

/// An open namespace.
#[derive(Debug)]
pub struct Passthrough {
    file: Arc<DeviceFile>,
    pool: RingPool,
    options: PassthroughOptions,
    /// Numbers of each ring's table; none where the driver takes no registered memory.
    slots: u32,
    note: Option<String>,
}

impl Passthrough {
    /// Opens a namespace by its generic device.
    ///
    /// # Errors
    /// [`IoError::Device`] says what is wrong with the path or the partition, or why the device cannot be polled.
    pub fn open(path: &Path, options: PassthroughOptions) -> Result<Self, IoError> {
        let file = Arc::new(DeviceFile::open(path, options.partition)?);
        let mut device = Self { file, pool: RingPool::open()?, options, slots: SLOTS, note: None };
        if options.poll {
            device.file.polls()?;
        }
        if options.uring == UringChoice::Auto {
            device.try_uring()?;
        }
        Ok(device)
    }

    /// What is not as one would wish: io_uring is refused, memory could not be registered.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let unregistered = self.pool.refusals();
        let memory = (unregistered > 0).then(|| {
            format!("{unregistered} registrations of memory were refused: commands there pin pages each time; raise ulimit -l")
        });
        self.note.iter().cloned().chain(memory).collect()
    }

    /// Registrations of memory that were refused, of a chunk with a queue; commands there work, and cost a little more.
    #[must_use]
    pub fn registrations_refused(&self) -> u64 {
        self.pool.refusals()
    }

    /// Sends one command that changes nothing, to find out what the kernel lets through a ring: commands on registered memory,
    /// commands on memory, or none; then each is an ioctl.
    fn try_uring(&mut self) -> Result<(), IoError> {
        let name = self.file.path.display().to_string();
        let RingKind::Blocking { refused } = self.ring(1)?.kind() else {
            if self.goes_through()? {
                return Ok(());
            }
            // Before 6.12 the driver takes registered memory only in pieces that are registered each for itself.
            self.slots = 0;
            if self.goes_through()? {
                self.note = Some(format!(
                    "{name}: this kernel's driver takes no registered memory: pages are pinned for each command"
                ));
                return Ok(());
            }
            return self.make_calls("no command goes through a ring");
        };
        self.make_calls(&format!("error {}", refused.unwrap_or(0)))
    }

    /// Makes an ioctl for each command from now on.
    fn make_calls(&mut self, reason: &str) -> Result<(), IoError> {
        if self.options.poll {
            return Err(self.file.no_polling());
        }
        self.options.uring = UringChoice::Never;
        let name = self.file.path.display();
        self.note = Some(format!(
            "{name}: the kernel refuses io_uring ({reason}): threads make an ioctl for each command"
        ));
        Ok(())
    }

    /// Whether a command that changes nothing is carried out, or refused by the device.
    fn goes_through(&mut self) -> Result<bool, IoError> {
        let facts = self.file.facts.clone();
        let into = self.region(facts.block_bytes.max(KEYS_BYTES) as usize)?;
        let probe = if facts.is_key_space() {
            Command::list(facts.id, None, into)?
        } else {
            Command::read(facts.id, 0, facts.block_bytes, into.slice(0, facts.block_bytes as usize)?)?
        };
        let mut queue = Queue::over(self.queue(1)?);
        queue.submit(probe, 0)?;
        let status = queue.wait(None)?.map(|completion| completion.status);
        let refused = [
            Status::INVALID_FIELD,
            Status::INVALID_OPCODE,
            Status::ACCESS_DENIED,
            Status::DATA_TRANSFER_ERROR,
        ];
        Ok(status.is_some_and(|status| !refused.contains(&status)))
    }

    fn ring(&self, depth: u32) -> Result<DeviceRing<NvmeWork>, IoError> {
        let wish = RingWish {
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
            polled: self.options.poll,
            choice: self.options.uring,
            slots: self.slots,
        };
        self.pool.ring(&self.file.file, &self.file.path, wish)
    }
}

impl Backend for Passthrough {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        Ok(vec![self.file.facts.clone()])
    }

    fn change_namespace(&mut self, _id: u8, _wish: NamespaceWish) -> Result<u8, IoError> {
        Err(IoError::Refused {
            reason:
                "namespaces of a device that the kernel drives are changed by nvme-cli, as its administrator"
                    .to_owned(),
        })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.pool.buffer(bytes)
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        let ring = self.ring(depth)?;
        let steps = NvmeSteps { file: Arc::clone(&self.file), pool: self.pool.pool().clone() };
        Ok(Box::new(UringQueue::new(ring, steps)))
    }
}
