//! An NVMe namespace through the kernel's driver by passthrough commands on `/dev/ngXnY`.
//!
//! Input: a path, optionally a partition. Output: a [`DeviceBackend`] that passes commands of the NVM and the key-value set
//! to the device unchanged, by io_uring with registered buffers, or by ioctl on threads if io_uring is refused.
//! Invariant: every command is validated first: one that leaves the partition, or whose length differs from its data's,
//! never reaches the device.
//!
//! Other users of the kernel's device, such as file systems on other partitions, are not affected.

mod commands;
mod device_file;
mod validation;

use crate::backend::{DeviceBackend, QueueTransport};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::Command;
use crate::error::IoError;
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use crate::queue::Queue;
use crate::uring::pool::{RingPool, SLOTS};
use crate::uring::queue::UringQueue;
use commands::PassthroughCommands;
use device_file::DeviceFile;
use headwater_dma::pool::Pool;
use headwater_host::device_ring::{DeviceRing, NvmeWork, RingOptions};
use headwater_host::uring::{RingKind, UringChoice};
use headwater_nvme::spec::status::Status;
use std::path::Path;
use std::sync::Arc;

/// The bytes of a buffer for a key list.
const KEY_LIST_BYTES: u32 = 4_096;

/// The options of opening a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassthroughOptions {
    /// The partition that this client is restricted to; `None` for the whole namespace.
    pub partition: Option<u32>,
    /// True to poll the device for completions, without interrupts.
    pub poll: bool,
    /// The choice between io_uring and ioctl.
    pub uring: UringChoice,
}

/// An open namespace.
#[derive(Debug)]
pub struct PassthroughDevice {
    file: Arc<DeviceFile>,
    pool: RingPool,
    options: PassthroughOptions,
    /// The slots of each ring's buffer table; 0 if the driver does not support registered memory.
    registration_slots: u32,
    note: Option<String>,
}

impl PassthroughDevice {
    /// Opens a namespace by its generic device.
    ///
    /// # Errors
    /// [`IoError::Device`] with the fault of the path or the partition, or the reason why the device cannot be polled.
    pub fn open(path: &Path, options: PassthroughOptions) -> Result<Self, IoError> {
        Self::open_with(path, options, &PoolSettings::default())
    }

    /// Opens as [`open`](Self::open), with these settings of the pool.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or impossible settings.
    pub fn open_with(
        path: &Path,
        options: PassthroughOptions,
        settings: &PoolSettings,
    ) -> Result<Self, IoError> {
        let file = Arc::new(DeviceFile::open(path, options.partition)?);
        let pool = RingPool::open(settings)?;
        let mut device = Self { file, pool, options, registration_slots: SLOTS, note: None };
        if options.poll {
            device.file.check_polling()?;
        }
        if options.uring == UringChoice::Auto {
            device.probe_uring()?;
        }
        Ok(device)
    }

    /// Returns the degraded conditions: io_uring is refused, memory could not be registered.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let unregistered = self.pool.refusals();
        let memory = (unregistered > 0).then(|| {
            format!("{unregistered} memory registrations were refused: commands there pin their pages; raise ulimit -l")
        });
        self.note.iter().cloned().chain(memory).collect()
    }

    /// Probes with one read-only command what the kernel accepts on a ring: commands on registered memory, commands on
    /// unregistered memory, or none, which falls back to ioctls.
    fn probe_uring(&mut self) -> Result<(), IoError> {
        let name = self.file.path.display().to_string();
        let RingKind::Blocking { refused } = self.ring(1)?.kind() else {
            if self.probe_command()? {
                return Ok(());
            }
            // Before 6.12 the driver accepts registered memory only if each piece has its own registration.
            self.registration_slots = 0;
            if self.probe_command()? {
                self.note = Some(format!(
                    "{name}: this kernel's driver does not support registered memory: each command pins its pages"
                ));
                return Ok(());
            }
            return self.fall_back_to_ioctl("every command on a ring fails");
        };
        self.fall_back_to_ioctl(&format!("error {}", refused.unwrap_or(0)))
    }

    /// Switches to an ioctl for each command.
    fn fall_back_to_ioctl(&mut self, reason: &str) -> Result<(), IoError> {
        if self.options.poll {
            return Err(self.file.polling_error());
        }
        self.options.uring = UringChoice::Never;
        let name = self.file.path.display();
        self.note = Some(format!(
            "{name}: the kernel refuses io_uring ({reason}): threads make an ioctl for each command"
        ));
        Ok(())
    }

    /// Returns true if a read-only probe command reaches the device and is not refused.
    fn probe_command(&mut self) -> Result<bool, IoError> {
        let facts = self.file.facts.clone();
        let into = self.region(facts.block_bytes.max(KEY_LIST_BYTES) as usize)?;
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
        let options = RingOptions {
            depth: depth as usize,
            polled: self.options.poll,
            choice: self.options.uring,
            registration_slots: self.registration_slots,
        };
        self.pool.ring(&self.file.file, &self.file.path, options)
    }
}

impl DeviceBackend for PassthroughDevice {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        Ok(vec![self.file.facts.clone()])
    }

    fn change_namespace(&mut self, _id: u8, _request: NamespaceRequest) -> Result<u8, IoError> {
        Err(IoError::Unsupported {
            reason: format!(
                "{}: this backend cannot change namespaces; use nvme-cli as administrator",
                self.file.path.display()
            ),
        })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.pool.buffer(bytes)
    }

    fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        let ring = self.ring(depth)?;
        let steps = PassthroughCommands { file: Arc::clone(&self.file), pool: self.pool.pool().clone() };
        Ok(Box::new(UringQueue::new(ring, steps)))
    }
}
