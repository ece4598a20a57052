//! Opens a node that shares an NVMe controller with its clients (mediated sharing).
//!
//! Input: an NVMe controller that is bound to vfio-pci, and a configuration. Output: the ready controller and its
//! attach front end. Invariant: before a client can connect, the node owns the controller and has created its own
//! queue.

use crate::config::{ByteSize, NodeConfig, OwnedDevice};
use crate::daemon::data_dir::DataDir;
use crate::daemon::serve::{OpenedNode, calibrate};
use headwater_dma::pool::{Pool, PoolConfig, VfioPinner};
use headwater_frontend::attach::AttachFrontEnd;
use headwater_frontend::attach::grant_file::GRANTS_FILE;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::front_end::FrontEnd;
use headwater_frontend::mediated::MediatedExecutor;
use headwater_frontend::mediated::{HardwareDevice, InterruptEventfd};
use headwater_frontend::mediated::{LENT_QUEUES_MAX, LentQueues};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::vfio::{AssignedDevice, KernelIommu, OpenError, PciClass, VfioContainer};
use headwater_host::wake::WakeDescriptor;
use headwater_host::width::narrow;
use headwater_io::vfio::VectorSource;
use headwater_nvme::driver::{DriverConfig, NamespaceKind, NvmeDriver, PoolMemory, VfioFunction};
use std::sync::Arc;

/// Bytes of a chunk of the node's own DMA memory: rings, lists, pages.
const CHUNK_BYTES: usize = 4 << 20;
/// Maximum bytes of the node's own DMA memory.
const POOL_BYTES: usize = 64 << 20;
/// Vectors of the node itself: of the admin queue, and of the queue that carries all commands.
const OWN_VECTORS: u16 = 2;

/// Maximum wait for a controller that clients of an earlier node still have mapped, and the time between two attempts.
const BUSY_WAIT_MAX: Nanos = Nanos::from_millis(3_000);
const BUSY_RETRY_INTERVAL: Nanos = Nanos::from_millis(20);

/// A controller behind VFIO.
pub type VfioDevice = HardwareDevice<VfioFunction, PoolMemory>;

/// Opens the controller and the attach front end.
///
/// # Errors
/// Names the step that failed and the remedy.
pub fn open_node(
    config: &NodeConfig,
    device: &OwnedDevice,
    directory: &DataDir,
    clock: Clock,
) -> Result<OpenedNode<VfioDevice>, String> {
    let failed = |reason: &dyn std::fmt::Display| format!("{device}: {reason}");
    let container = Arc::new(open_container(device.address(), clock).map_err(|error| failed(&error))?);
    let function = container.device(device.address()).map_err(|error| failed(&error))?;
    let function = Arc::new(function);
    if function.class().map_err(|error| failed(&error))? != Some(PciClass::NVME) {
        return Err(failed(&"not an NVMe controller; lspci -nn shows NVMe controllers as class 0108"));
    }
    let vectors = allocate_vectors(&function).map_err(|error| failed(&error))?;
    let eventfd = connect_own_vectors(&function, vectors).map_err(|error| failed(&error))?;
    let pool = Pool::open(PoolConfig {
        chunk: CHUNK_BYTES,
        cap: POOL_BYTES,
        pinner: Arc::new(VfioPinner::new(Arc::clone(&container))),
        ..PoolConfig::default()
    });
    let pool = pool.map_err(|error| failed(&error))?;
    let ticker = pool.ticker().map_err(|error| format!("cannot start the pool's timer thread: {error}"))?;
    let mut memory = PoolMemory::new(pool.clone());
    let interrupts = LentVectors { device: Arc::clone(&function), count: vectors.saturating_sub(1) };
    let function = VfioFunction::new(function).map_err(|error| failed(&error))?;
    let settings = DriverConfig { io_queues: 1 + LENT_QUEUES_MAX, ..DriverConfig::default() };
    let driver = NvmeDriver::new(function, memory.clone(), settings);
    let mut owned = HardwareDevice::new(driver, &mut memory, eventfd)?;
    owned.start(&clock).map_err(|reason| failed(&reason))?;
    let capacity = block_capacity(&owned);
    tracing::info!(facts = ?owned.driver().info(), "the controller is ready");
    let path =
        config.attach.as_ref().ok_or("a shared device needs an attach socket; name one with --attach")?;
    let kept = directory.path().join(GRANTS_FILE);
    let policy =
        GrantPolicy::with_file(config.grants.iter().cloned(), kept).map_err(|error| error.to_string())?;
    let lent = LentQueues::new(Box::new(interrupts), OWN_VECTORS..vectors);
    let executor = MediatedExecutor::new(Box::new(container), lent).map_err(|error| error.to_string())?;
    let front_end = AttachFrontEnd::bind(path, policy, executor).map_err(|error| error.to_string())?;
    let front_ends: Vec<Box<dyn FrontEnd<VfioDevice>>> = vec![Box::new(front_end)];
    let spin = calibrate(clock).spin_before_sleep;
    Ok(OpenedNode { device: owned, front_ends, resp: None, nvme_tcp: None, capacity, spin, pool, ticker })
}

/// Opens the container of a controller. Waits while clients of an earlier node still have it mapped: they release it
/// when they notice that the node has ended.
fn open_container(address: &str, clock: Clock) -> Result<VfioContainer<KernelIommu>, OpenError> {
    let started = clock.now();
    loop {
        match VfioContainer::open(&[address]) {
            Err(OpenError::Busy { .. }) if clock.now().since(started) < BUSY_WAIT_MAX => {
                Clock::sleep(BUSY_RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Allocates the interrupt vectors of the node and its clients. Returns their number.
fn allocate_vectors(function: &AssignedDevice) -> std::io::Result<u16> {
    let vectors = function.vector_count()?.min(u32::from(OWN_VECTORS + LENT_QUEUES_MAX));
    if vectors > 0 {
        function.allocate_vectors(vectors)?;
    }
    Ok(narrow(vectors))
}

/// Connects the node's own vectors to one descriptor. Returns `None` for a function without vectors.
fn connect_own_vectors(function: &AssignedDevice, vectors: u16) -> std::io::Result<Option<InterruptEventfd>> {
    let Some(vector) = vectors.min(OWN_VECTORS).checked_sub(1) else { return Ok(None) };
    let descriptor = WakeDescriptor::new().map_err(std::io::Error::other)?;
    for vector in 0..=vector {
        function.connect_vector(u32::from(vector), Some(&descriptor))?;
    }
    Ok(Some(InterruptEventfd { descriptor, vector }))
}

/// The interrupt vectors of lent queues.
#[derive(Debug)]
struct LentVectors {
    device: Arc<AssignedDevice>,
    count: u16,
}

impl VectorSource for LentVectors {
    fn count(&self) -> u16 {
        self.count
    }

    fn connect(&self, vector: u16, eventfd: Option<&WakeDescriptor>) -> std::io::Result<()> {
        self.device.connect_vector(u32::from(vector), eventfd)
    }
}

/// Returns the bytes of `blocks` blocks; the numbers are the controller's, so a product beyond 64 bits saturates.
fn block_bytes(blocks: u64, block_shift: u32) -> u64 {
    1_u64.checked_shl(block_shift).map_or(u64::MAX, |bytes| blocks.saturating_mul(bytes))
}

/// Returns the bytes of all block namespaces.
fn block_capacity(device: &VfioDevice) -> ByteSize {
    let sizes = device.namespaces().iter().map(|namespace| match namespace.kind {
        NamespaceKind::Block { block_shift, blocks } => block_bytes(blocks, block_shift),
        _ => 0,
    });
    ByteSize(sizes.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks for a former defect: the shift dropped the high bits of a number of blocks that only a defective
    /// controller reports.
    #[test]
    fn bytes_of_blocks_saturate_instead_of_wrapping() {
        assert_eq!(block_bytes(3, 12), 12_288);
        assert_eq!(block_bytes(1 << 52, 12), u64::MAX);
        assert_eq!(block_bytes(1, 64), u64::MAX);
    }
}
