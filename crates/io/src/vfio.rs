//! An NVMe SSD by our own driver: its queues in memory of this process, its doorbells in registers, no kernel on the way.
//!
//! In: the address of a PCI function that is bound to vfio-pci. Out: a [`Backend`]. Each queue has an interrupt vector of
//! its own, which is connected when somebody first waits by it. Invariant: the controller reaches the memory of this
//! device's pool and nothing else; a command in flight is answered once, whatever becomes of the controller.
//!
//! ```text
//!   VfioDevice --- Control: driver, clock, vectors ---+--- VfioQueue (a thread)
//!       |            bring up, recover, abort         +--- VfioQueue (another)
//!       +--- pool: chunks mapped in the container
//! ```
//!
//! # What this does not do
//! It binds no device to vfio-pci: that takes it from the kernel, which is the operator's to decide.

mod control;
mod entry;
mod keeper;
mod pool;
mod queue;
mod vectors;

pub use control::Control;
pub use keeper::{Keeper, Kept, OwnController};
pub use queue::NvmeQueue;
pub use vectors::{NoVectors, VectorSource};

use crate::attach::admin::NamespaceWish;
use crate::backend::{Backend, Transport};
use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use crate::facts::NamespaceFacts;
use headwater_host::pinning::vfio::{Container, PciClass};
use headwater_nvme::controller::Priority;
use headwater_nvme::driver::{
    Controller, ControllerFacts, DriverConfig, Namespace, NamespaceKind, PoolMemory, VfioFunction,
};
use std::sync::Arc;
use vectors::Vectors;

/// An open controller.
#[derive(Debug)]
pub struct VfioDevice {
    control: Arc<Control<VfioFunction, PoolMemory>>,
    pool: BufferPool,
}

impl VfioDevice {
    /// Opens a controller by its address (`0000:00:04.0`) and brings it up.
    ///
    /// # Errors
    /// [`IoError::Device`] says what keeps it from being opened and which command changes that, why the controller does not
    /// become ready, or that it has not what the configuration asks for.
    pub fn open(address: &str, config: DriverConfig) -> Result<Self, IoError> {
        let failed = |reason: String| IoError::Device { reason: format!("{address}: {reason}") };
        let opened =
            |error: headwater_host::pinning::vfio::OpenError| IoError::Device { reason: error.to_string() };
        let container = Arc::new(Container::open(&[address]).map_err(opened)?);
        let device = Arc::new(container.device(address).map_err(opened)?);
        match device.class().map_err(|error| failed(error.to_string()))? {
            Some(PciClass::NVME) => {}
            Some(PciClass { base, sub, interface }) => {
                return Err(failed(format!(
                    "is no NVMe controller: its class is {base:02x}{sub:02x}{interface:02x}, not 010802"
                )));
            }
            None => return Err(failed("the device is gone: its configuration reads as all ones".to_owned())),
        }
        let pool = pool::open(&container)?;
        let vectors = Vectors::allocate(Arc::clone(&device), u32::from(config.io_queues) + 1);
        let vectors = vectors.map_err(|error| failed(format!("its interrupts cannot be had: {error}")))?;
        let function = VfioFunction::new(device)
            .map_err(|error| failed(format!("its registers cannot be mapped: {error}")))?;
        let driver = Controller::new(function, PoolMemory::new(pool.pool().clone()), config);
        let control = Control::new(address, driver, Box::new(vectors), Some(container));
        control.start()?;
        if config.weights.is_some() && !control.facts()?.weighted_round_robin {
            return Err(failed("it has no weighted round robin (CAP.AMS); leave weights= out".to_owned()));
        }
        Ok(Self { control: Arc::new(control), pool })
    }

    /// What the controller says of itself.
    ///
    /// # Errors
    /// [`IoError::Device`] when it is gone.
    pub fn facts(&self) -> Result<ControllerFacts, IoError> {
        self.control.facts()
    }

    /// Its namespaces; also those that cannot be used, with the reason.
    #[must_use]
    pub fn all_namespaces(&self) -> Vec<Namespace> {
        self.control.namespaces()
    }

    /// Whether a namespace can be used.
    ///
    /// # Errors
    /// [`IoError::Device`] says why not, and what to do.
    pub fn check(&self, namespace: u32) -> Result<(), IoError> {
        let found = self.control.namespaces().into_iter().find(|found| found.id == namespace);
        match found.map(|found| found.kind) {
            Some(NamespaceKind::Unusable(fault)) => Err(IoError::Device { reason: fault.to_string() }),
            _ => Ok(()),
        }
    }

    /// Resets the controller. Commands in flight are answered as aborted, queues go on with their next command.
    ///
    /// # Errors
    /// [`IoError::Device`] when it does not come back.
    pub fn reset(&self) -> Result<(), IoError> {
        self.control.reset()
    }
}

impl Backend for VfioDevice {
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError> {
        self.control.until_ready()?;
        Ok(self.control.namespaces().iter().filter_map(facts_of).collect())
    }

    fn change_namespace(&mut self, _id: u8, _wish: NamespaceWish) -> Result<u8, IoError> {
        Err(IoError::Refused {
            reason: "namespaces of an SSD are changed by nvme-cli (nvme create-ns, nvme format) while the kernel has it"
                .to_owned(),
        })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(self.pool.buffer(bytes)?)
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError> {
        Ok(Box::new(NvmeQueue::open(OwnController::new(&self.control), depth)?))
    }

    fn queue_of(&mut self, depth: u32, priority: Priority) -> Result<Box<dyn Transport>, IoError> {
        if !self.facts()?.weighted_round_robin {
            let reason = "the controller serves its queues by turns; open it with weights=".to_owned();
            return Err(IoError::Refused { reason });
        }
        Ok(Box::new(NvmeQueue::open(OwnController::new(&self.control).of_class(priority), depth)?))
    }
}

/// What a client may know of a namespace; `None` for one that cannot be used.
pub(crate) fn facts_of(namespace: &Namespace) -> Option<NamespaceFacts> {
    let writable = namespace.is_writable;
    match namespace.kind {
        NamespaceKind::Block { block_shift, blocks } => Some(NamespaceFacts {
            id: namespace.id,
            block_bytes: 1 << block_shift,
            size: blocks,
            writable,
            blocks: None,
        }),
        NamespaceKind::KeyValue { bytes, .. } => {
            Some(NamespaceFacts { size: bytes, writable, ..NamespaceFacts::key_space(namespace.id) })
        }
        NamespaceKind::Unusable(_) => None,
    }
}
