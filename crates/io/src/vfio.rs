//! An NVMe SSD by Headwater's own driver: queues in this process's memory, doorbells in mapped registers, no kernel
//! calls.
//!
//! Input: the address of a PCI function bound to vfio-pci. Output: a [`DeviceBackend`]. Each queue has its own interrupt
//! vector, connected at the first interrupt wait. Invariant: the controller accesses this device's pool memory and
//! nothing else; a command in flight completes once, also across failures and resets of the controller.
//!
//! ```text
//!   VfioDevice --- Control: driver, clock, vectors ---+--- VfioQueue (a thread)
//!       |            bring up, recover, abort         +--- VfioQueue (another thread)
//!       +--- pool: chunks mapped in the container
//! ```
//!
//! # Limits of this backend
//! It does not bind devices to vfio-pci: that removes them from the kernel, which the operator decides.

mod pool;
mod queue;
mod queue_owner;
mod shared_controller;
mod vectors;

pub use queue::{NvmeQueue, OwnedQueue, QueueOwner};
pub use queue_owner::LocalQueueOwner;
pub use shared_controller::SharedController;
pub use vectors::{NoVectors, VectorSource};

use crate::backend::{DeviceBackend, QueueTransport};
use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use crate::namespace_request::NamespaceRequest;
use crate::pool_settings::PoolSettings;
use headwater_dma::pool::Pool;
use headwater_host::pinning::vfio::{PciClass, VfioContainer};
use headwater_nvme::driver::{
    ControllerInfo, DriverConfig, NamespaceKind, NvmeDriver, PoolMemory, ScannedNamespace, VfioFunction,
};
use headwater_nvme::spec::priority::QueuePriority;
use std::sync::Arc;
use vectors::DeviceVectors;

/// An open controller.
#[derive(Debug)]
pub struct VfioDevice {
    control: Arc<SharedController<VfioFunction, PoolMemory>>,
    pool: BufferPool,
}

impl VfioDevice {
    /// Opens a controller by its address (`0000:00:04.0`) and brings it up.
    ///
    /// # Errors
    /// [`IoError::Device`] with the obstacle and the command that removes it, the reason why the controller does not
    /// become ready, or the feature that the configuration requires and the controller lacks.
    pub fn open(address: &str, config: DriverConfig) -> Result<Self, IoError> {
        Self::open_with(address, config, &PoolSettings::default())
    }

    /// Opens a controller as [`open`](Self::open), with these settings of its pool.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or impossible settings.
    pub fn open_with(address: &str, config: DriverConfig, settings: &PoolSettings) -> Result<Self, IoError> {
        let failed = |reason: String| IoError::Device { reason: format!("{address}: {reason}") };
        let opened =
            |error: headwater_host::pinning::vfio::OpenError| IoError::Device { reason: error.to_string() };
        let container = Arc::new(VfioContainer::open(&[address]).map_err(opened)?);
        let device = Arc::new(container.device(address).map_err(opened)?);
        match device.class().map_err(|error| failed(error.to_string()))? {
            Some(PciClass::NVME) => {}
            Some(PciClass { base, sub, interface }) => {
                return Err(failed(format!(
                    "is not an NVMe controller: its class is {base:02x}{sub:02x}{interface:02x}, not 010802"
                )));
            }
            None => return Err(failed("the device is gone: its configuration reads as all ones".to_owned())),
        }
        let pool = pool::open(&container, settings)?;
        let vectors = DeviceVectors::allocate(Arc::clone(&device), u32::from(config.io_queues) + 1);
        let vectors =
            vectors.map_err(|error| failed(format!("its interrupts cannot be allocated: {error}")))?;
        let function = VfioFunction::new(device)
            .map_err(|error| failed(format!("its registers cannot be mapped: {error}")))?;
        let driver = NvmeDriver::new(function, PoolMemory::new(pool.pool().clone()), config);
        let control = SharedController::new(address, driver, Box::new(vectors), Some(container));
        control.start()?;
        if config.weights.is_some() && !control.facts()?.weighted_round_robin {
            return Err(failed("it has no weighted round robin (CAP.AMS); omit weights=".to_owned()));
        }
        Ok(Self { control: Arc::new(control), pool })
    }

    /// Returns the controller's identification.
    ///
    /// # Errors
    /// [`IoError::Device`] when it is gone.
    pub fn controller_info(&self) -> Result<ControllerInfo, IoError> {
        self.control.facts()
    }

    /// Checks that a namespace is usable.
    ///
    /// # Errors
    /// [`IoError::Device`] with the reason why it is not, and what to do.
    pub fn check(&self, namespace: u32) -> Result<(), IoError> {
        let found = self.control.namespaces().into_iter().find(|found| found.id == namespace);
        match found.map(|found| found.kind) {
            Some(NamespaceKind::Unusable(fault)) => Err(IoError::Device { reason: fault.to_string() }),
            _ => Ok(()),
        }
    }

    /// Resets the controller. Commands in flight complete as aborted; queues continue with their next command.
    ///
    /// # Errors
    /// [`IoError::Device`] when it does not become ready again.
    pub fn reset(&self) -> Result<(), IoError> {
        self.control.reset()
    }
}

impl DeviceBackend for VfioDevice {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        self.control.wait_until_ready()?;
        Ok(self.control.namespaces().iter().filter_map(client_namespace).collect())
    }

    fn change_namespace(&mut self, _id: u8, _request: NamespaceRequest) -> Result<u8, IoError> {
        Err(IoError::Unsupported {
            reason: format!(
                "the driver of {} cannot change namespaces; bind the SSD to the kernel and use nvme-cli",
                self.control.name()
            ),
        })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(self.pool.buffer(bytes)?)
    }

    fn pool(&self) -> &Pool {
        self.pool.pool()
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        Ok(Box::new(NvmeQueue::open(LocalQueueOwner::new(&self.control), depth)?))
    }

    fn queue_of_class(
        &mut self,
        depth: u32,
        priority: QueuePriority,
    ) -> Result<Box<dyn QueueTransport>, IoError> {
        if !self.controller_info()?.weighted_round_robin {
            let name = self.control.name();
            let reason = format!(
                "{name} arbitrates by round robin and has no {priority:?} class; open it with weights="
            );
            return Err(IoError::Unsupported { reason });
        }
        Ok(Box::new(NvmeQueue::open(LocalQueueOwner::new(&self.control).of_class(priority), depth)?))
    }
}

/// Returns the client's view of a namespace; `None` for an unusable one.
pub(crate) fn client_namespace(namespace: &ScannedNamespace) -> Option<ClientNamespace> {
    let writable = namespace.is_writable;
    match namespace.kind {
        NamespaceKind::Block { block_shift, blocks } => Some(ClientNamespace {
            id: namespace.id,
            block_bytes: 1 << block_shift,
            size: blocks,
            writable,
            blocks: None,
            retrieve_options: false,
        }),
        NamespaceKind::KeyValue { bytes, retrieve_options, .. } => Some(ClientNamespace {
            size: bytes,
            writable,
            retrieve_options,
            ..ClientNamespace::key_space(namespace.id)
        }),
        NamespaceKind::Unusable(_) => None,
    }
}
