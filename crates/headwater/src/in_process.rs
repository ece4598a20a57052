//! The in-process backend: a device on its own thread, reached through rings as by any other client.
//!
//! Input: requests of the application's threads, as messages; commands, through rings. Output: buffers and queues.
//! Invariant: the thread, and with it the device, ends when the backend and its last queue are dropped, with everything
//! durable.

use crate::core_thread::{self, CoreRequest, NewQueue};
use headwater_dma::frame::FramePool;
use headwater_dma::iova::Iova;
use headwater_dma::mover::{Mover, StreamingBorder};
use headwater_dma::pool::{Pool, PoolError, PoolTicker};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_host::width::narrow;
use headwater_io::namespace_request::NamespaceRequest;
use headwater_io::ring_queue::{QueueWakeups, RING_SEGMENTS_MAX, RingQueue};
use headwater_io::{
    ArmResult, Buffer, ClientNamespace, Command, CompletedCommand, DeviceBackend, DevicePool, IoError,
    IoLimits, MemoryRegistrar, PoolSettings, QueueTransport, RejectedCommand, VALUE_BYTES_MAX,
};
use headwater_ssd::engine::{COMMIT_GATHERING, DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::geometry::BLOCKS_MAX;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{FlashGeometry, Media, PAGES_PER_BLOCK};
use std::fmt::Display;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// Default bytes of flash of a directory, unless half of the free space is less.
const CAPACITY_DEFAULT: u64 = 1 << 30;
/// Bytes of a page slot on flash.
const SLOT_BYTES: u64 = 4_608;
/// Frames of device DRAM: the minimum that holds the longest value.
const FRAMES_MAX: usize = 16_384;

/// The thread of a device, shared by the backend and its queues.
#[derive(Debug)]
struct DeviceThread {
    requests: Mutex<Sender<CoreRequest>>,
    wakeup: WakeDescriptor,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The ticker that returns idle memory to the system.
    _ticker: PoolTicker,
}

impl DeviceThread {
    fn send(&self, request: CoreRequest) -> Result<(), IoError> {
        let sent = self.requests.lock().unwrap_or_else(PoisonError::into_inner).send(request);
        sent.map_err(|_| gone())?;
        Ok(self.wakeup.wake()?)
    }

    /// Sends a request and waits for the answer.
    fn call<T>(&self, request: impl FnOnce(Sender<T>) -> CoreRequest) -> Result<T, IoError> {
        let (answer, answered) = channel();
        self.send(request(answer))?;
        answered.recv().map_err(|_| gone())
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        // The send fails if the thread has already ended.
        let _ = self.send(CoreRequest::Stop);
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the device's thread panicked; the next start recovers from its log");
        }
    }
}

fn gone() -> IoError {
    IoError::Device { reason: "the device's thread has ended; open the device again".to_owned() }
}

fn cannot_open(reason: impl Display) -> IoError {
    IoError::Device { reason: format!("the device cannot be opened: {reason}") }
}

/// A device in this process.
#[derive(Debug)]
pub(crate) struct InProcess {
    device_thread: Arc<DeviceThread>,
    memory: DevicePool<ThreadRegistrar>,
}

/// The registrar of the pool at the device, which the pool may outlive.
#[derive(Debug)]
struct ThreadRegistrar(Weak<DeviceThread>);

impl MemoryRegistrar for ThreadRegistrar {
    fn register(&self, start: Iova, file: &Arc<OwnedFd>, offset: u64, bytes: usize) -> Result<(), IoError> {
        let core = self.0.upgrade().ok_or_else(gone)?;
        let memory = SharedMemory::map_descriptor(file.as_fd(), offset, bytes)?;
        core.call(|answer| CoreRequest::Register { start, memory, answer })?
    }

    fn unregister(&self, start: Iova) -> Result<(), IoError> {
        match self.0.upgrade() {
            Some(core) => core.call(|answer| CoreRequest::Release { start, answer })?,
            None => Ok(()),
        }
    }
}

/// Starts a new device in memory.
pub(crate) fn in_memory(bytes: u64, settings: &PoolSettings) -> Result<InProcess, IoError> {
    let media = MemoryMedia::erased(geometry_for(bytes)?).map_err(cannot_open)?;
    start(media, settings)
}

/// Starts the device of a data directory, created if there is none.
pub(crate) fn in_directory(
    path: &Path,
    capacity: Option<u64>,
    settings: &PoolSettings,
) -> Result<InProcess, IoError> {
    let named = |error: &dyn Display| cannot_open(format_args!("{}: {error}", path.display()));
    std::fs::create_dir_all(path).map_err(|error| named(&error))?;
    let options = FileOptions::default();
    let media = if FileMedia::exists(path) {
        FileMedia::open(path, options)
    } else {
        let space = rustix::fs::statvfs(path).map_err(|error| named(&error))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let capacity = capacity.unwrap_or(CAPACITY_DEFAULT.min(free / 2));
        FileMedia::create(path, geometry_for(capacity)?, fastrand::u128(..).to_le_bytes(), options)
    };
    start(media.map_err(|error| named(&error))?, settings)
}

/// Returns the geometry of `capacity` bytes of flash: whole blocks, a multiple of the dies.
fn geometry_for(capacity: u64) -> Result<FlashGeometry, IoError> {
    let block_bytes = SLOT_BYTES * PAGES_PER_BLOCK as u64;
    let dies = u64::from(FlashGeometry::with_blocks(0).dies());
    let max = u64::from(BLOCKS_MAX) * block_bytes;
    if capacity > max {
        return Err(cannot_open(format_args!("{capacity} bytes are too many; choose at most {max}")));
    }
    Ok(FlashGeometry::with_blocks(narrow(capacity / block_bytes / dies * dies)))
}

fn start<M: Media + Send + 'static>(media: M, settings: &PoolSettings) -> Result<InProcess, IoError> {
    let clock = Clock::start();
    let pool = Pool::open(FramePool::pool_config_for(FRAMES_MAX)).map_err(cannot_open)?;
    let ticker = pool.ticker().map_err(cannot_open)?;
    let config = DeviceConfig {
        frames_max: FRAMES_MAX,
        pool: Some(pool),
        hash_seed: fastrand::u64(..),
        commit_gathering: COMMIT_GATHERING,
        ..DeviceConfig::default()
    };
    let at = StartTime { now: clock.now(), wall: clock.wall() };
    let mut device =
        SsdDevice::open(media, config, at, &mut |_| {}).map_err(|error| cannot_open(error.reason))?;
    device.set_mover(Mover::default().with_streaming_border(StreamingBorder::of_this_host()));
    let (sender, requests) = channel();
    let rings = core_thread::rings()?;
    let bell = rings.rings.wakeup_descriptor().clone();
    let thread = std::thread::Builder::new()
        .name("headwater-core".to_owned())
        .spawn(move || core_thread::run(device, rings, &requests, clock))
        .map_err(cannot_open)?;
    let core = DeviceThread {
        requests: Mutex::new(sender),
        wakeup: bell,
        thread: Mutex::new(Some(thread)),
        _ticker: ticker,
    };
    let core = Arc::new(core);
    let memory = DevicePool::open(ThreadRegistrar(Arc::downgrade(&core)), settings)?;
    Ok(InProcess { device_thread: core, memory })
}

impl DeviceBackend for InProcess {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        self.device_thread.call(CoreRequest::ListNamespaces)
    }

    fn change_namespace(&mut self, id: u8, request: NamespaceRequest) -> Result<u8, IoError> {
        self.device_thread.call(|answer| CoreRequest::ChangeNamespace { id, request, answer })?
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.memory.buffer(bytes)
    }

    fn pool(&self) -> &Pool {
        self.memory.pool()
    }

    fn pool_error(&self, error: PoolError) -> IoError {
        self.memory.error(error)
    }

    fn value_bytes_max(&self) -> Option<usize> {
        Some(VALUE_BYTES_MAX)
    }

    fn queue(&mut self, depth: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        let NewQueue { id, pair, wakeup: bell } =
            self.device_thread.call(|answer| CoreRequest::CreateQueue { depth, answer })??;
        let bells = QueueWakeups::Descriptors { own: bell, device: self.device_thread.wakeup.clone() };
        Ok(Box::new(InProcessQueue {
            ring: RingQueue::new(pair, bells).with_lists(self.memory.pool(), RING_SEGMENTS_MAX),
            id,
            device_thread: Arc::clone(&self.device_thread),
        }))
    }
}

/// A queue that keeps its device alive.
#[derive(Debug)]
struct InProcessQueue {
    ring: RingQueue,
    id: headwater_nvme::controller::QueueId,
    device_thread: Arc<DeviceThread>,
}

impl QueueTransport for InProcessQueue {
    fn limits(&self) -> IoLimits {
        self.ring.limits()
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        self.ring.submit(command, token)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.ring()
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.ring.reap()
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.ring.sleep(longest)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring.arm()
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.ring.visit_tokens(visit);
    }

    fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    fn depth(&self) -> u32 {
        self.ring.depth()
    }
}

impl Drop for InProcessQueue {
    fn drop(&mut self) {
        // The send fails if the device is gone, and its queues with it.
        let _ = self.device_thread.send(CoreRequest::DropQueue(self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks for a former defect: the number of blocks saturated at 32 bits, and no error named the bytes that were
    /// requested.
    #[test]
    fn capacity_above_the_largest_medium_is_refused_by_its_bytes() {
        let max = u64::from(BLOCKS_MAX) * PAGES_PER_BLOCK as u64 * SLOT_BYTES;
        assert_eq!(geometry_for(max).unwrap().blocks, BLOCKS_MAX);
        for bytes in [max + 1, u64::MAX] {
            let refused = geometry_for(bytes).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("{bytes} bytes are too many; choose at most {max}")),
                "{refused}"
            );
        }
    }
}
