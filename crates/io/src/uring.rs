//! A file or a block device as one block namespace, by io_uring with direct I/O.
//!
//! Input: a path and options. Output: a [`DeviceBackend`]. Buffers and the file are registered with every queue, so that the
//! kernel neither pins pages nor looks up the file for a transfer; a batch is one system call. If io_uring is refused,
//! threads make plain system calls. Invariant: no command leaves the blocks of the file.
//!
//! # Limits of this backend
//! It takes no lock on the file: other processes that may open the file may write to it.

mod block_commands;
mod file;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod sysfs;
pub(crate) mod translate;

pub use file::UringOptions;

use crate::backend::{DeviceBackend, QueueTransport};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use block_commands::BlockCommands;
use file::BlockFile;
use headwater_dma::pool::Pool;
use headwater_host::device_ring::{BlockWork, DeviceRing, RingOptions};
use headwater_host::uring::RingKind;
use pool::RingPool;
use queue::UringQueue;
use std::path::Path;
use std::sync::Arc;

/// The id of the only namespace.
pub(crate) const NAMESPACE: u32 = 1;

/// An open file or block device.
#[derive(Debug)]
pub struct UringDevice {
    file: Arc<BlockFile>,
    pool: RingPool,
    options: UringOptions,
}

impl UringDevice {
    /// Opens a file or a block device.
    ///
    /// # Errors
    /// [`IoError::Device`] with the fault of the path, or the reason why the device cannot be polled.
    pub fn open(path: &Path, options: UringOptions) -> Result<Self, IoError> {
        Self::open_with(path, options, &PoolSettings::default())
    }

    /// Opens as [`open`](Self::open), with these settings of the pool.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or impossible settings.
    pub fn open_with(path: &Path, options: UringOptions, settings: &PoolSettings) -> Result<Self, IoError> {
        let file = Arc::new(BlockFile::open(path, &options)?);
        let mut device = Self { file, pool: RingPool::open(settings)?, options };
        if options.poll {
            device.file.check_polling()?;
            device.check_polling()?;
        }
        Ok(device)
    }

    /// Returns the degraded conditions: the page cache is used, io_uring is refused.
    ///
    /// # Errors
    /// [`IoError`] when no queue can be opened.
    pub fn notes(&mut self) -> Result<Vec<String>, IoError> {
        let mut notes: Vec<String> = self.file.note.iter().cloned().collect();
        if let RingKind::Blocking { refused: Some(errno) } = self.ring(1)?.kind() {
            notes.push(format!(
                "the kernel refuses io_uring (error {errno}): threads make plain system calls; check \
                 kernel.io_uring_disabled and the container's seccomp profile"
            ));
        }
        let unregistered = self.pool.refusals();
        if unregistered > 0 {
            notes.push(format!(
                "{unregistered} memory registrations were refused: each transfer there pins its pages; raise ulimit -l"
            ));
        }
        Ok(notes)
    }

    fn ring(&self, depth: u32) -> Result<DeviceRing<BlockWork>, IoError> {
        let options = RingOptions {
            depth: depth as usize,
            polled: self.options.poll,
            choice: self.options.uring,
            registration_slots: pool::SLOTS,
        };
        self.pool.ring(&self.file.file, &self.file.path, options)
    }

    /// Reads a block in polled mode.
    fn check_polling(&mut self) -> Result<(), IoError> {
        let block_bytes = self.file.facts.block_bytes;
        let buffer = self.region(block_bytes as usize)?;
        let mut queue = crate::queue::Queue::over(self.queue(1)?);
        let read = crate::command::Command::read(NAMESPACE, 0, block_bytes, buffer)?;
        queue.submit(read, 0)?;
        let answer = queue.wait(None)?;
        answer
            .and_then(|completion| completion.into_result().ok())
            .map(drop)
            .ok_or_else(|| self.file.polling_error())
    }
}

impl DeviceBackend for UringDevice {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        Ok(vec![self.file.facts.clone()])
    }

    fn change_namespace(&mut self, _id: u8, _request: NamespaceRequest) -> Result<u8, IoError> {
        Err(IoError::Unsupported {
            reason: format!(
                "{}: this backend cannot change namespaces; resize the file or the block device",
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
        let steps = BlockCommands::new(Arc::clone(&self.file), self.pool.pool().clone());
        Ok(Box::new(UringQueue::new(ring, steps)))
    }
}
