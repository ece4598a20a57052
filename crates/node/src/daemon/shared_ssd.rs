//! From the address of a controller to a node that shares it.
//!
//! In: an NVMe controller that is bound to vfio-pci, and a configuration. Out: the controller, ready, and the attach face
//! in front of it. Invariant: before a client can connect, the controller is the node's and its queue stands.

use crate::config::{Bytes, Config, OwnedDevice};
use crate::daemon::data_dir::DataDir;
use crate::daemon::serve::{Opened, calibrated_spin};
use headwater_dma::pool::{Pool, PoolConfig, VfioType1};
use headwater_frontend::attach::AttachFace;
use headwater_frontend::attach::grant_file::GRANTS_FILE;
use headwater_frontend::attach::policy::Policy;
use headwater_frontend::front_end::Face;
use headwater_frontend::mediated::ForwardingExecutor;
use headwater_frontend::mediated::{Bell, HardwareDevice};
use headwater_frontend::mediated::{LENT_QUEUES_MAX, LentQueues};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::vfio::{Container, Device, OpenError, PciClass, Type1};
use headwater_host::wake::WakeDescriptor;
use headwater_io::vfio::VectorSource;
use headwater_nvme::driver::{Controller, DriverConfig, NamespaceKind, PoolMemory, VfioFunction};
use std::sync::Arc;

/// A chunk of the node's own memory that the controller reaches: rings, lists, pages.
const CHUNK_BYTES: usize = 4 << 20;
/// The most there is of it.
const POOL_BYTES: usize = 64 << 20;
/// Vectors of the node's own: of the admin queue, and of the queue that carries all commands.
const OWN_VECTORS: u16 = 2;

/// How long a controller is waited for that somebody has still mapped, and between two looks.
const LET_GO: Nanos = Nanos::from_millis(3_000);
const LOOK: Nanos = Nanos::from_millis(20);

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
    let container = Arc::new(open_container(device.address(), clock).map_err(|error| failed(&error))?);
    let function = container.device(device.address()).map_err(|error| failed(&error))?;
    let function = Arc::new(function);
    if function.class().map_err(|error| failed(&error))? != Some(PciClass::NVME) {
        return Err(failed(&"it is no NVMe controller; lspci -nn shows those as class 0108"));
    }
    let vectors = allocate(&function).map_err(|error| failed(&error))?;
    let bell = bell_of(&function, vectors).map_err(|error| failed(&error))?;
    let pool = Pool::open(PoolConfig {
        chunk: CHUNK_BYTES,
        cap: POOL_BYTES,
        pinner: Arc::new(VfioType1::new(Arc::clone(&container))),
        ..PoolConfig::default()
    });
    let pool = pool.map_err(|error| failed(&error))?;
    let ticker = pool.ticker().map_err(|error| format!("no thread for the pool's clock: {error}"))?;
    let mut memory = PoolMemory::new(pool.clone());
    let interrupts = LentVectors { device: Arc::clone(&function), count: vectors.saturating_sub(1) };
    let function = VfioFunction::new(function).map_err(|error| failed(&error))?;
    let settings = DriverConfig { io_queues: 1 + LENT_QUEUES_MAX, ..DriverConfig::default() };
    let driver = Controller::new(function, memory.clone(), settings);
    let mut owned = HardwareDevice::new(driver, &mut memory, bell)?;
    owned.start(&clock).map_err(|reason| failed(&reason))?;
    let capacity = capacity_of(&owned);
    tracing::info!(facts = ?owned.driver().facts(), "the controller is ready");
    let path =
        config.attach.as_ref().ok_or("a device is shared by its attach socket; name one with --attach")?;
    let kept = directory.path().join(GRANTS_FILE);
    let policy = Policy::kept(config.grants.iter().cloned(), kept).map_err(|error| error.to_string())?;
    let lent = LentQueues::new(Box::new(interrupts), OWN_VECTORS..vectors);
    let executor = ForwardingExecutor::new(Box::new(container), lent).map_err(|error| error.to_string())?;
    let face = AttachFace::bind(path, policy, executor).map_err(|error| error.to_string())?;
    let faces: Vec<Box<dyn Face<VfioDevice>>> = vec![Box::new(face)];
    let spin = calibrated_spin(clock);
    Ok(Opened { device: owned, faces, resp: None, nvme_tcp: None, capacity, spin, pool, ticker })
}

/// The container of a controller. One that clients of a node before this one still have mapped is waited for: they let go when
/// they notice that the node is gone.
fn open_container(address: &str, clock: Clock) -> Result<Container<Type1>, OpenError> {
    let started = clock.now();
    loop {
        match Container::open(&[address]) {
            Err(OpenError::Busy { .. }) if clock.now().since(started) < LET_GO => Clock::sleep(LOOK),
            other => return other,
        }
    }
}

/// Allocates the vectors that the node and its clients can use. How many there are.
fn allocate(function: &Device) -> std::io::Result<u16> {
    let vectors = function.vectors()?.min(u32::from(OWN_VECTORS + LENT_QUEUES_MAX));
    if vectors > 0 {
        function.allocate_vectors(vectors)?;
    }
    Ok(u16::try_from(vectors).unwrap_or(0))
}

/// The bell of the node's own vectors; `None` for a function without.
fn bell_of(function: &Device, vectors: u16) -> std::io::Result<Option<Bell>> {
    let Some(vector) = vectors.min(OWN_VECTORS).checked_sub(1) else { return Ok(None) };
    let descriptor = WakeDescriptor::new().map_err(std::io::Error::other)?;
    for vector in 0..=vector {
        function.connect_vector(u32::from(vector), Some(&descriptor))?;
    }
    Ok(Some(Bell { descriptor, vector }))
}

/// Vectors of lent queues.
#[derive(Debug)]
struct LentVectors {
    device: Arc<Device>,
    count: u16,
}

impl VectorSource for LentVectors {
    fn count(&self) -> u16 {
        self.count
    }

    fn connect(&self, vector: u16, bell: Option<&WakeDescriptor>) -> std::io::Result<()> {
        self.device.connect_vector(u32::from(vector), bell)
    }
}

/// Bytes of its block namespaces.
fn capacity_of(device: &VfioDevice) -> Bytes {
    let sizes = device.namespaces().iter().map(|namespace| match namespace.kind {
        NamespaceKind::Block { block_shift, blocks } => blocks.checked_shl(block_shift).unwrap_or(u64::MAX),
        _ => 0,
    });
    Bytes(sizes.fold(0, u64::saturating_add))
}
