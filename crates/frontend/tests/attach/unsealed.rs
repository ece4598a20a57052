//! Clients whose memory they can shrink: files of tmpfs and huge pages, and memfds without a seal.

use crate::host::{AttachHost, media};
use headwater_dma::iova::Iova;
use headwater_frontend::attach::AttachHoldings;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::Nanos;
use headwater_host::fault_guard::LostPages;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::ring_queue::{QueueWakeups, RingQueue};
use headwater_io::{Buffer, Command, Queue, StoreCondition};
use headwater_nvme::queue_pair::{QueuePair, words_for};
use headwater_nvme::spec::status::Status;
use headwater_testkit::unsealed_memory::unsealed_files;
use rustix::fs::ftruncate;
use std::os::fd::{AsFd as _, OwnedFd};

const BYTES: usize = 4 << 20;
/// The address of the client's memory.
const START: u64 = 1 << 32;
const DEPTH: u32 = 16;
/// Longest wait for a completion.
const ANSWER_MAX: Nanos = Nanos::from_millis(3_000);

/// A client with one region and one queue.
struct UnsealedClient {
    memory: SharedMemory,
    queue: Queue,
    connection: AttachConnection,
}

impl UnsealedClient {
    fn new(host: &AttachHost, file: &OwnedFd) -> Self {
        let mut connection = AttachConnection::open(&host.path).unwrap();
        let region = AttachRequest::Region { start: START, bytes: BYTES as u64, offset: 0 };
        assert_eq!(connection.call(&region, &[file.as_fd()]).unwrap().0, AttachReply::Done);
        let memory = SharedMemory::map_client(file.as_fd(), 0, BYTES, &LostPages::default()).unwrap();
        let (reply, descriptors) = connection.call(&AttachRequest::Queue { depth: DEPTH }, &[]).unwrap();
        let AttachReply::Queue { bytes, .. } = reply else { panic!("{reply:?}") };
        let [rings, line] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
        let rings = SharedMemory::map_descriptor(rings.as_fd(), 0, usize::try_from(bytes).unwrap()).unwrap();
        let words = SharedMemoryWords::new(rings, 0, words_for(DEPTH).unwrap()).unwrap();
        let pair = QueuePair::host_side(words, DEPTH).unwrap();
        let queue = Queue::over(Box::new(RingQueue::new(pair, QueueWakeups::WakeLine(line.into()))));
        Self { memory, queue, connection }
    }

    fn buffer(&self, offset: usize, bytes: usize) -> Buffer {
        let all = Buffer::from_region(self.memory.clone(), Iova(START));
        all.slice(offset, bytes).unwrap()
    }

    fn put(&self, key: &[u8], offset: usize, bytes: usize) -> Command {
        Command::put(1, key, self.buffer(offset, bytes), StoreCondition::Always).unwrap()
    }
}

#[test]
fn client_in_unsealed_memory_is_served_like_any_other() {
    for (name, file) in unsealed_files(BYTES as u64) {
        let folder = tempfile::tempdir().unwrap();
        let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
        let mut client = UnsealedClient::new(&host, &file);
        let value: Vec<u8> = (0..=u8::MAX).cycle().take(3 << 20).collect();
        client.memory.copy_out(4_000, &value).unwrap();
        let put = client.put(b"key", 4_000, value.len());
        client.queue.submit(put, 1).unwrap();
        assert_eq!(client.queue.wait(None).unwrap().unwrap().status, Status::SUCCESS, "{name}");
        assert!(host.client().get(b"key").unwrap().unwrap() == value, "{name}");
        let AttachReply::Done =
            client.connection.call(&AttachRequest::Release { start: START }, &[]).unwrap().0
        else {
            panic!("{name}: the region is not released")
        };
        drop(client);
        drop(host.end());
    }
}

#[test]
fn truncated_memory_costs_its_client_the_connection_and_no_other_client_anything() {
    for (name, file) in unsealed_files(BYTES as u64) {
        let folder = tempfile::tempdir().unwrap();
        let host = AttachHost::start(folder.path(), GrantPolicy::new([]), media());
        let mut good = host.client();
        good.put(b"good", b"1").unwrap();
        let mut bad = UnsealedClient::new(&host, &file);
        let mut submitted = 0;
        // Commands are in flight all the time, before and after the file shrinks.
        loop {
            if submitted == 100 {
                ftruncate(&file, 2 << 20).unwrap();
            }
            assert!(submitted < 100_000, "{name}: the client still has its connection");
            bad.queue.submit(bad.put(b"bad", (2 << 20) - 32_768, 65_536), submitted).unwrap();
            submitted += 1;
            if submitted % 25 == 0 {
                assert_eq!(good.get(b"good").unwrap().unwrap(), b"1", "{name}");
            }
            if bad.queue.in_flight() < DEPTH / 2 {
                continue;
            }
            match bad.queue.wait(Some(ANSWER_MAX)).unwrap() {
                Some(done) => assert_eq!(done.status, Status::SUCCESS, "{name}"),
                // A bare queue does not notice the end of its connection.
                None => break,
            }
        }
        assert!(submitted >= 100, "{name}: a command before the truncation has no completion");
        let reason = bad.connection.call(&AttachRequest::Namespaces, &[]).unwrap_err().to_string();
        assert!(reason.contains("its file was truncated"), "{name}: {reason}");
        let left = AttachHoldings { clients: 1, queues: 1, regions: 1, in_flight: 0 };
        host.until_holdings(left);
        good.put(b"good", b"2").unwrap();
        assert_eq!(good.get(b"good").unwrap().unwrap(), b"2", "{name}");
        drop(host.end());
    }
}
