//! From the address of a controller to a node that shares it.
//!
//! In: an NVMe controller that is bound to vfio-pci, and a configuration. Out: the controller, ready, and the attach face
//! in front of it. Invariant: before a client can connect, the controller is the node's and its queue stands.

use super::device::{Bell, HardwareDevice};
use super::executor::ForwardingExecutor;
use crate::attach::AttachFace;
use crate::attach::grant_file::GRANTS_FILE;
use crate::attach::policy::Policy;
use crate::config::{Bytes, Config, OwnedDevice};
use crate::data_dir::DataDir;
use crate::face::Face;
use crate::serve::{Opened, calibrated_spin};
use headwater_dma::pool::{Pool, PoolConfig, VfioType1};
use headwater_host::clock::Clock;
use headwater_host::pinning::vfio::{Container, Device, PciClass};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{Controller, DriverConfig, NamespaceKind, PoolMemory, VfioFunction};
use std::sync::Arc;

/// A chunk of the node's own memory that the controller reaches: rings, lists, pages.
const CHUNK_BYTES: usize = 4 << 20;
/// The most there is of it.
const POOL_BYTES: usize = 64 << 20;
/// Vectors that are used: of the admin queue, and of the queue that carries all commands.
const VECTORS: u32 = 2;

/// A controller behind VFIO.
pub type VfioDevice = HardwareDevice<VfioFunction, PoolMemory>;

/// Opens the controller and the attach face.
///
/// # Errors
/// Says which step failed, and what would help.
pub fn open_node(
    config: &Config,
    device: &OwnedDevice,
    directory: &DataDir,
    clock: Clock,
) -> Result<Opened<VfioDevice>, String> {
    let failed = |reason: &dyn std::fmt::Display| format!("{device}: {reason}");
    let container = Container::open(&[device.address()]).map_err(|error| failed(&error))?;
    let container = Arc::new(container);
    let function = container.device(device.address()).map_err(|error| failed(&error))?;
    if function.class().map_err(|error| failed(&error))? != Some(PciClass::NVME) {
        return Err(failed(&"it is no NVMe controller; lspci -nn shows those as class 0108"));
    }
    let bell = bell_of(&function).map_err(|error| failed(&error))?;
    let pool = Pool::open(PoolConfig {
        chunk: CHUNK_BYTES,
        cap: POOL_BYTES,
        pinner: Arc::new(VfioType1::new(Arc::clone(&container))),
        ..PoolConfig::default()
    });
    let pool = pool.map_err(|error| failed(&error))?;
    let ticker = pool.ticker().map_err(|error| format!("no thread for the pool's clock: {error}"))?;
    let mut memory = PoolMemory::new(pool.clone());
    let function = VfioFunction::new(Arc::new(function)).map_err(|error| failed(&error))?;
    let settings = DriverConfig { io_queues: 1, ..DriverConfig::default() };
    let driver = Controller::new(function, memory.clone(), settings);
    let mut owned = HardwareDevice::new(driver, &mut memory, bell)?;
    owned.start(&clock).map_err(|reason| failed(&reason))?;
    let capacity = capacity_of(&owned);
    tracing::info!(facts = ?owned.driver().facts(), "the controller is ready");
    let path =
        config.attach.as_ref().ok_or("a device is shared by its attach socket; name one with --attach")?;
    let kept = directory.path().join(GRANTS_FILE);
    let policy = Policy::kept(config.grants.iter().cloned(), kept).map_err(|error| error.to_string())?;
    let executor = ForwardingExecutor::new(Box::new(container)).map_err(|error| error.to_string())?;
    let face = AttachFace::bind(path, policy, executor).map_err(|error| error.to_string())?;
    let faces: Vec<Box<dyn Face<VfioDevice>>> = vec![Box::new(face)];
    let spin = calibrated_spin(clock);
    Ok(Opened { device: owned, faces, resp: None, nvme_tcp: None, capacity, spin, pool, ticker })
}

/// The bell of a function's vectors; `None` for one without.
fn bell_of(function: &Device) -> std::io::Result<Option<Bell>> {
    let vectors = function.vectors()?.min(VECTORS);
    if vectors == 0 {
        return Ok(None);
    }
    function.allocate_vectors(vectors)?;
    let descriptor = WakeDescriptor::new().map_err(std::io::Error::other)?;
    for vector in 0..vectors {
        function.connect_vector(vector, Some(&descriptor))?;
    }
    Ok(Some(Bell { descriptor, vector: u16::try_from(vectors - 1).unwrap_or(0) }))
}

/// Bytes of its block namespaces.
fn capacity_of(device: &VfioDevice) -> Bytes {
    let sizes = device.namespaces().iter().map(|namespace| match namespace.kind {
        NamespaceKind::Block { block_shift, blocks } => blocks.checked_shl(block_shift).unwrap_or(u64::MAX),
        _ => 0,
    });
    Bytes(sizes.fold(0, u64::saturating_add))
}
