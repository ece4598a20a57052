//! Files of memory that their owner can shrink while another process has them mapped, and an attach client in one.
//!
//! Input: a length. Output: one file of each kind that clients use for their pools. Invariant: no file is sealed.

use headwater_dma::iova::Iova;
use headwater_host::fault_guard::{FaultGuard, LostPages};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::ring_queue::{QueueWakeups, RingQueue};
use headwater_io::{Buffer, Command, Queue, StoreCondition};
use headwater_nvme::queue_pair::{QueuePair, words_for};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// The address of the memory of an [`UnsealedClient`].
pub const REGION_START: u64 = 1 << 32;
/// Commands that an [`UnsealedClient`] can have in flight.
pub const UNSEALED_DEPTH: u32 = 16;

/// Bytes of a huge page, of which the files have whole ones.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Returns files of that length, with their names, and makes the process survive accesses to their missing pages. The
/// file of huge pages is missing where the machine has none free, and standard error says so.
///
/// # Panics
/// If the machine has no memory or no `/dev/shm`.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test says what it skipped")]
pub fn unsealed_files(bytes: u64) -> Vec<(&'static str, OwnedFd)> {
    FaultGuard::install().unwrap();
    let plain = memfd_create(c"plain", MemfdFlags::empty()).unwrap();
    let shared: OwnedFd = tempfile::tempfile_in("/dev/shm").unwrap().into();
    let mut files = vec![("memfd", plain), ("file of tmpfs", shared)];
    let bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    let wanted = bytes / HUGE_PAGE_BYTES;
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.is_ok_and(|free| free.trim().parse::<u64>().is_ok_and(|free| free >= wanted)) {
        files.push(("memfd of huge pages", memfd_create(c"huge", MemfdFlags::HUGETLB).unwrap()));
    } else {
        eprintln!(
            "skipped for huge pages: none are free; `echo 16 > /proc/sys/vm/nr_hugepages` reserves some"
        );
    }
    for (_, file) in &files {
        ftruncate(file, bytes).unwrap();
    }
    files
}

/// An attach client with one region and one queue.
#[derive(Debug)]
pub struct UnsealedClient {
    /// This process's mapping of the region.
    pub memory: SharedMemory,
    /// The queue, which does not notice the end of the connection.
    pub queue: Queue,
    /// The connection.
    pub connection: AttachConnection,
}

impl UnsealedClient {
    /// Connects and registers the first `bytes` bytes of a file.
    ///
    /// # Panics
    /// If the daemon refuses.
    #[must_use]
    pub fn connect(path: &Path, file: &OwnedFd, bytes: usize) -> Self {
        let mut connection = AttachConnection::open(path).unwrap();
        let region = AttachRequest::Region { start: REGION_START, bytes: bytes as u64, offset: 0 };
        assert_eq!(connection.call(&region, &[file.as_fd()]).unwrap().0, AttachReply::Done);
        let memory = SharedMemory::map_client(file.as_fd(), 0, bytes, &LostPages::default()).unwrap();
        let (reply, descriptors) =
            connection.call(&AttachRequest::Queue { depth: UNSEALED_DEPTH }, &[]).unwrap();
        let AttachReply::Queue { bytes, .. } = reply else { panic!("{reply:?}") };
        let [rings, line] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        let rings = SharedMemory::map_descriptor(rings.as_fd(), 0, usize::try_from(bytes).unwrap()).unwrap();
        let words = SharedMemoryWords::new(rings, 0, words_for(UNSEALED_DEPTH).unwrap()).unwrap();
        let pair = QueuePair::host_side(words, UNSEALED_DEPTH).unwrap();
        let queue = Queue::over(Box::new(RingQueue::new(pair, QueueWakeups::WakeLine(line.into()))));
        Self { memory, queue, connection }
    }

    /// Builds a put of bytes of the region.
    ///
    /// # Panics
    /// If they do not lie in it.
    #[must_use]
    pub fn put(&self, key: &[u8], offset: usize, bytes: usize) -> Command {
        let all = Buffer::from_region(self.memory.clone(), Iova(REGION_START));
        Command::put(1, key, all.slice(offset, bytes).unwrap(), StoreCondition::Always).unwrap()
    }
}
