//! Model devices: real rings and doorbells, with a controller that runs in this process.
//!
//! Input: settings. Output: a [`DeviceBackend`] whose queues are NVMe queue pairs. There are two kinds:
//!
//! * the *null device* completes commands at the doorbell. It moves no data: a read leaves its buffer unchanged, a
//!   write is discarded. A command's cost on it is the cost of the layers above the device.
//! * the *latency model* serves a fixed number of commands at a time, each for a time that depends on its size. It
//!   arbitrates its queues by round robin or by weight, in the machine's time or in virtual time, and optionally keeps
//!   its blocks in memory.
//!
//! Neither keeps data after it is dropped.

mod contents;
mod device;
mod null;
mod timed;

pub use contents::{BlockFaults, ModelContents};
pub use device::{ArbitrationMode, ServiceTimes};

use crate::backend::{DeviceBackend, IoLimits, QueueTransport};
use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::client_namespace::ClientNamespace;
use crate::clock::IoClock;
use crate::error::IoError;
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use contents::ModelBlocks;
use device::ModelCore;
use headwater_dma::pool::Pool;
use headwater_host::sync::Mutex;
use headwater_host::width::to_usize;
use headwater_nvme::spec::priority::QueuePriority;
use null::NullQueue;
use std::sync::Arc;
use timed::TimedQueue;

/// The namespace id of a model.
const MODEL_NAMESPACE: u32 = 1;
/// The default limit of bytes of one command: the MDTS of many SSDs.
const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// The default limit of buffers of one command.
const SEGMENTS_MAX: usize = 64;

/// The settings of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// The bytes of its namespace, rounded down to whole blocks.
    pub bytes: u64,
    /// The bytes of a logical block.
    pub block_bytes: u32,
    /// The limits of one command.
    pub limits: IoLimits,
    /// The contents it keeps. The null device keeps none.
    pub contents: ModelContents,
    /// The service time; `None` completes at the doorbell.
    pub service: Option<ServiceTimes>,
    /// The arbitration among its queues.
    pub arbitration: ArbitrationMode,
}

impl ModelSettings {
    /// Returns the settings of a null device.
    #[must_use]
    pub fn null_device(bytes: u64) -> Self {
        Self {
            bytes,
            block_bytes: 512,
            limits: IoLimits {
                transfer_bytes_max: TRANSFER_BYTES_MAX,
                segments_max: SEGMENTS_MAX,
                memory_align: 4,
            },
            contents: ModelContents::Nothing,
            service: None,
            arbitration: ArbitrationMode::RoundRobin,
        }
    }

    /// Returns the settings of a latency model.
    #[must_use]
    pub fn latency_model(bytes: u64, service: ServiceTimes) -> Self {
        Self { service: Some(service), ..Self::null_device(bytes) }
    }
}

/// A model device. A clone is the same device.
#[derive(Clone, Debug)]
pub struct ModelDevice {
    limits: IoLimits,
    facts: ClientNamespace,
    blocks: Arc<Mutex<ModelBlocks>>,
    core: Option<Arc<Mutex<ModelCore>>>,
    clock: IoClock,
    pool: BufferPool,
}

impl ModelDevice {
    /// Creates a model in the machine's time.
    ///
    /// # Errors
    /// [`IoError`] for an invalid block size, or when memory is exhausted.
    pub fn new(settings: ModelSettings) -> Result<Self, IoError> {
        Self::with_clock(settings, IoClock::machine())
    }

    /// Creates a model with this clock.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_clock(settings: ModelSettings, time: IoClock) -> Result<Self, IoError> {
        let block_bytes = settings.block_bytes;
        let power_of_two = block_bytes.is_power_of_two() && (512..=65_536).contains(&block_bytes);
        let size = settings.bytes / u64::from(block_bytes.max(1));
        if !power_of_two || size == 0 {
            return Err(IoError::PartialBlocks {
                bytes: to_usize(settings.bytes),
                block_bytes: block_bytes as usize,
            });
        }
        let facts = ClientNamespace {
            id: MODEL_NAMESPACE,
            block_bytes,
            size,
            writable: true,
            blocks: None,
            retrieve_options: false,
        };
        let core = settings
            .service
            .map(|service| Arc::new(Mutex::new(ModelCore::new(service, settings.arbitration))));
        Ok(Self {
            limits: settings.limits,
            blocks: Arc::new(Mutex::new(ModelBlocks::new(size, block_bytes, settings.contents)?)),
            facts,
            core,
            clock: time,
            pool: BufferPool::open_unregistered(&PoolSettings::default())?,
        })
    }

    /// Returns the same device with a pool of its own, with these settings, unless they are the default.
    ///
    /// # Errors
    /// [`IoError`] for impossible settings.
    pub fn with_pool(self, settings: &PoolSettings) -> Result<Self, IoError> {
        Ok(Self { pool: BufferPool::open_unregistered(settings)?, ..self })
    }

    /// Returns the namespace.
    #[must_use]
    pub fn facts(&self) -> &ClientNamespace {
        &self.facts
    }

    /// Sets the blocks whose commands fail from now on; not supported by the null device.
    pub fn set_faults(&self, faults: BlockFaults) {
        contents::lock_any(&self.blocks).set_faults(faults);
    }
}

impl DeviceBackend for ModelDevice {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        Ok(vec![self.facts.clone()])
    }

    fn change_namespace(&mut self, _id: u8, _request: NamespaceRequest) -> Result<u8, IoError> {
        Err(IoError::Unsupported {
            reason: "a model cannot change its namespace; set it in ModelSettings".to_owned(),
        })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(self.pool.buffer(bytes)?)
    }

    fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        self.queue_of_class(depth, QueuePriority::Medium)
    }

    /// Ignores the class under round robin.
    fn queue_of_class(
        &mut self,
        depth: u32,
        priority: QueuePriority,
    ) -> Result<Box<dyn QueueTransport>, IoError> {
        Ok(match &self.core {
            None => Box::new(NullQueue::new(depth, self.limits, self.facts.size)?),
            Some(core) => Box::new(TimedQueue::new(
                depth,
                priority,
                self.limits,
                core.clone(),
                self.blocks.clone(),
                self.clock.clone(),
            )?),
        })
    }
}

#[cfg(test)]
mod tests;
