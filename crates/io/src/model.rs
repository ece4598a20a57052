//! Devices that are a model: real rings and doorbells, with a controller's end that this process carries out itself.
//!
//! In: settings. Out: a [`Backend`] whose queues are NVMe queue pairs like any other's. Two kinds:
//!
//! * the *null device* answers at the doorbell. It moves nothing: a read leaves its buffer alone, a write goes nowhere. What
//!   a command costs on it is what everything above the device costs.
//! * the *latency model* serves so many commands at a time, each for a time that follows its size, by turns or by weight
//!   among its queues, in the machine's time or in virtual time; it keeps its blocks in memory if it is asked to.
//!
//! What either does not do: keep anything after it is dropped.

mod contents;
mod device;
mod null;
mod timed;

pub use contents::{Contents, Faults};
pub use device::{Arbitration, Service};

use crate::attach::admin::NamespaceWish;
use crate::backend::{Backend, Limits, Transport};
use crate::buffer::Buffer;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use crate::timepiece::Timepiece;
use contents::Blocks;
use device::ModelCore;
use headwater_dma::pool::Pool;
use headwater_host::sync::Mutex;
use headwater_nvme::controller::Priority;
use null::NullQueue;
use std::sync::Arc;
use timed::TimedQueue;

/// The namespace of a model.
const NAMESPACE: u32 = 1;
/// Most bytes of one command, unless the settings say otherwise: what many SSDs say in MDTS.
const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Most buffers of one command, unless the settings say otherwise.
const SEGMENTS_MAX: usize = 64;

/// What a model is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSettings {
    /// Bytes of its namespace; what is no whole block is left out.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// What one command can be.
    pub limits: Limits,
    /// What it keeps. The null device keeps nothing.
    pub contents: Contents,
    /// How long it takes; `None` answers at the doorbell.
    pub service: Option<Service>,
    /// How it chooses among its queues.
    pub arbitration: Arbitration,
}

impl ModelSettings {
    /// A device that answers at once.
    #[must_use]
    pub fn null(bytes: u64) -> Self {
        Self {
            bytes,
            block_bytes: 512,
            limits: Limits {
                transfer_bytes_max: TRANSFER_BYTES_MAX,
                segments_max: SEGMENTS_MAX,
                memory_align: 4,
            },
            contents: Contents::Nothing,
            service: None,
            arbitration: Arbitration::RoundRobin,
        }
    }

    /// A device that takes its time.
    #[must_use]
    pub fn timed(bytes: u64, service: Service) -> Self {
        Self { service: Some(service), ..Self::null(bytes) }
    }
}

/// A model. A clone is the same device.
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    facts: NamespaceFacts,
    blocks: Arc<Mutex<Blocks>>,
    core: Option<Arc<Mutex<ModelCore>>>,
    time: Timepiece,
    pool: Pool,
}

impl Model {
    /// A model in the machine's time.
    ///
    /// # Errors
    /// [`IoError`] for a block size that is none, or when there is no memory.
    pub fn new(settings: ModelSettings) -> Result<Self, IoError> {
        Self::in_time(settings, Timepiece::machine())
    }

    /// A model in this time.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn in_time(settings: ModelSettings, time: Timepiece) -> Result<Self, IoError> {
        let block_bytes = settings.block_bytes;
        let power_of_two = block_bytes.is_power_of_two() && (512..=65_536).contains(&block_bytes);
        let size = settings.bytes / u64::from(block_bytes.max(1));
        if !power_of_two || size == 0 {
            return Err(IoError::Blocks {
                bytes: usize::try_from(settings.bytes).unwrap_or(usize::MAX),
                block_bytes: usize::try_from(block_bytes).unwrap_or(usize::MAX),
            });
        }
        let facts = NamespaceFacts { id: NAMESPACE, block_bytes, size, writable: true, blocks: None };
        let core = settings
            .service
            .map(|service| Arc::new(Mutex::new(ModelCore::new(service, settings.arbitration))));
        Ok(Self {
            limits: settings.limits,
            blocks: Arc::new(Mutex::new(Blocks::new(size, block_bytes, settings.contents)?)),
            facts,
            core,
            time,
            pool: Pool::of_process()?,
        })
    }

    /// The namespace.
    #[must_use]
    pub fn facts(&self) -> &NamespaceFacts {
        &self.facts
    }

    /// Blocks that answer with a failure from now on; not on the null device.
    pub fn set_faults(&self, faults: Faults) {
        contents::locked(&self.blocks).set_faults(faults);
    }
}

impl Backend for Model {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        Ok(vec![self.facts.clone()])
    }

    fn change_namespace(&mut self, _id: u8, _wish: NamespaceWish) -> Result<u8, IoError> {
        Err(IoError::Refused { reason: "a model has the one namespace that its settings say".to_owned() })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(Buffer::pooled(self.pool.buffer(bytes)?))
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        self.queue_of(depth, Priority::Medium)
    }

    /// A class is without meaning where queues are served by turns.
    fn queue_of(&mut self, depth: u32, priority: Priority) -> Result<Box<dyn Transport>, IoError> {
        Ok(match &self.core {
            None => Box::new(NullQueue::new(depth, self.limits, self.facts.size)?),
            Some(core) => Box::new(TimedQueue::new(
                depth,
                priority,
                self.limits,
                core.clone(),
                self.blocks.clone(),
                self.time.clone(),
            )?),
        })
    }
}

#[cfg(test)]
mod tests;
