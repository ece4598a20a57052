//! Malicious clients: each harms only itself, and its resources are reclaimed within a second.

use crate::host::{AttachHost, media};
use headwater_dma::iova::Iova;
use headwater_dma::pool::PROCESS_POOL_CAP;
use headwater_frontend::attach::AttachHoldings;
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::{RingMemory as _, SharedMemoryWords};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::connection::{AttachConnection, receive_message, send_message};
use headwater_io::attach::protocol::{AttachReply, AttachRequest, decode_reply};
use headwater_io::device_pool::FIRST_DEVICE_ADDRESS;
use headwater_io::error::IoError;
use headwater_io::{Buffer, Command, StoreCondition};
use headwater_nvme::queue_pair::words_for;
use headwater_nvme::ring::layout::RingLayout;
use headwater_nvme::spec::kv;
use headwater_nvme::spec::status::Status;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd as _, OwnedFd};

/// Maximum time until the resources of a bad client are reclaimed.
const RECLAIM_MAX: Nanos = Nanos::from_millis(1_500);

fn host(folder: &std::path::Path) -> AttachHost {
    AttachHost::start(folder, GrantPolicy::new([]), media())
}

/// Creates a queue without the checks of a client library.
fn raw_queue(connection: &mut AttachConnection, depth: u32) -> (SharedMemoryWords, WakeLine) {
    let (reply, descriptors) = connection.call(&AttachRequest::Queue { depth }, &[]).unwrap();
    let AttachReply::Queue { bytes, .. } = reply else { panic!("{reply:?}") };
    let [memory, line] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    let region = SharedMemory::map_descriptor(memory.as_fd(), 0, usize::try_from(bytes).unwrap()).unwrap();
    (SharedMemoryWords::new(region, 0, words_for(depth).unwrap()).unwrap(), line.into())
}

/// Runs `harm` next to a good client: that is served, and the resources of bad clients are reclaimed in time.
fn with_good_client(harm: impl FnOnce(&AttachHost)) {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let mut good = host.client();
    good.put(b"before", b"1").unwrap();
    harm(&host);
    good.put(b"after", b"2").unwrap();
    assert!(
        host.until_holdings(AttachHoldings { clients: 1, queues: 1, regions: 1, in_flight: 0 }) < RECLAIM_MAX
    );
    assert_eq!(good.get(b"before").unwrap().unwrap(), b"1");
    assert_eq!(good.get(b"after").unwrap().unwrap(), b"2");
    drop(host.end());
}

#[test]
fn garbage_in_ring_words_evicts_only_its_client() {
    with_good_client(|host| {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let mut bad = AttachConnection::open(&host.path).unwrap();
            let (ring, line) = raw_queue(&mut bad, 16);
            for _ in 0..2_000 {
                ring.store_release(random.usize(..ring.words()), random.u64(..));
            }
            let _ = line.wake();
        }
    });
}

#[test]
fn random_entries_are_completed_or_evict_their_client() {
    with_good_client(|host| {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..20 {
            let mut bad = AttachConnection::open(&host.path).unwrap();
            let (ring, line) = raw_queue(&mut bad, 16);
            for tail in (1..=16).chain(0..16) {
                for word in 40..40 + 17 * 8 {
                    ring.store_relaxed(word, random.u64(..));
                }
                ring.store_release(RingLayout::SUBMISSION_TAIL, tail);
                ring.fence();
                let _ = line.wake();
            }
        }
    });
}

#[test]
fn a_client_that_never_reaps_is_evicted_in_time() {
    with_good_client(|host| {
        let mut bad = AttachConnection::open(&host.path).unwrap();
        let depth = 8;
        let (ring, line) = raw_queue(&mut bad, depth);
        // The whole ring repeatedly: more commands than the ring has completion slots.
        let entry = kv::flush(1);
        for slot in 0..9 {
            for (word, value) in (40 + slot * 8..).zip(entry.to_words()) {
                // Each slot has its own command identifier.
                let id = if word == 40 + slot * 8 { (slot as u64) << 16 } else { 0 };
                ring.store_relaxed(word, value | id);
            }
        }
        for turn in 1..=30_u64 {
            ring.store_release(RingLayout::SUBMISSION_TAIL, turn * 8 % 9);
            ring.fence();
            let _ = line.wake();
            headwater_host::clock::Clock::sleep(Nanos::from_millis(2));
        }
        let waited = headwater_host::clock::Clock::start();
        assert!(
            matches!(line.wait(Some(RECLAIM_MAX)).unwrap(), headwater_host::wake_line::WakeEvent::HungUp)
                || loop {
                    match line.wait(Some(RECLAIM_MAX)).unwrap() {
                        headwater_host::wake_line::WakeEvent::HungUp => break true,
                        _ if waited.now() > RECLAIM_MAX => break false,
                        _ => {}
                    }
                },
            "the stuck client was not evicted in time"
        );
    });
}

#[test]
fn unregistered_addresses_are_a_data_transfer_error() {
    with_good_client(|host| {
        let mut client = host.client();
        let own = client.buffer(4_096).unwrap();
        let mut queue = client.queue(4).unwrap();
        let mut status = |buffer| {
            queue.submit(Command::put(1, b"bad", buffer, StoreCondition::Always).unwrap(), 0).unwrap();
            queue.wait(None).unwrap().unwrap().status
        };
        assert_eq!(status(own.clone()), Status::SUCCESS);
        let at = |address| Buffer::from_region(SharedMemory::anonymous(4_096).unwrap(), Iova(address));
        let past_all = own.address() + PROCESS_POOL_CAP as u64;
        for address in [0, 4_096, FIRST_DEVICE_ADDRESS - 4_096, past_all, u64::MAX - 4_095] {
            assert_eq!(status(at(address)), Status::DATA_TRANSFER_ERROR, "{address:#x}");
        }
        drop(queue);
        client.delete(b"bad").unwrap();
    });
}

#[test]
fn files_outside_memory_and_too_short_ones_are_refused() {
    with_good_client(|host| {
        let mut bad = AttachConnection::open(&host.path).unwrap();
        let refused = |bad: &mut AttachConnection, descriptor: &OwnedFd, start, bytes| {
            let answer = bad.call(&AttachRequest::Region { start, bytes, offset: 0 }, &[descriptor.as_fd()]);
            assert!(matches!(answer, Err(IoError::Daemon { .. })), "{answer:?}");
        };
        let (_, sealed) = SharedMemory::memfd(8_192).unwrap();
        for (start, bytes) in [(0, 8_193), (0, 0), (0, u64::MAX), (u64::MAX - 10, 8_192)] {
            refused(&mut bad, &sealed, start, bytes);
        }
        refused(&mut bad, &std::fs::File::open("/proc/self/maps").unwrap().into(), 0, 4_096);
        refused(&mut bad, &std::fs::File::open("/dev/zero").unwrap().into(), 0, 4_096);
        assert!(matches!(
            bad.call(&AttachRequest::Region { start: 0, bytes: 4_096, offset: 0 }, &[]),
            Err(IoError::Daemon { .. })
        ));
        bad.call(&AttachRequest::Region { start: 0, bytes: 8_192, offset: 0 }, &[sealed.as_fd()]).unwrap();
        refused(&mut bad, &sealed, 4_096, 8_192);
    });
}

#[test]
fn invalid_requests_are_refused_and_the_client_stays() {
    with_good_client(|host| {
        let mut client = AttachConnection::open(&host.path).unwrap();
        for request in [
            AttachRequest::Queue { depth: 0 },
            AttachRequest::Queue { depth: 4_097 },
            AttachRequest::Queue { depth: u32::MAX },
            AttachRequest::DeleteQueue { id: 1 },
            AttachRequest::DeleteQueue { id: 0 },
            AttachRequest::Release { start: 77 },
            AttachRequest::Hello { version: 1, direct: false },
        ] {
            assert!(matches!(client.call(&request, &[]), Err(IoError::Daemon { .. })), "{request:?}");
        }
        // A queue whose wake line the client closes is reclaimed: the line stays open until the queue is deleted.
        let (reply, _line) = client.call(&AttachRequest::Queue { depth: 1 }, &[]).unwrap();
        let AttachReply::Queue { id, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(client.call(&AttachRequest::DeleteQueue { id }, &[]).unwrap().0, AttachReply::Done);
    });
}

fn connect_raw(host: &AttachHost) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&host.path).unwrap()).unwrap();
    socket
}

#[test]
fn malformed_unsupported_or_too_long_messages_end_the_connection() {
    with_good_client(|host| {
        let long = vec![b' '; 70_000];
        for message in [&b"\xff\xfe"[..], b"{}", b"{\"hello\":{\"version\":2}}", b"\"namespaces\"", &long] {
            let socket = connect_raw(host);
            let _ = send_message(socket.as_fd(), message, &[]);
            let mut buffer = vec![0; 1 << 16];
            let mut last = None;
            while let Ok((bytes @ 1.., _)) = receive_message(socket.as_fd(), &mut buffer, RecvFlags::empty())
            {
                last = Some(decode_reply(&buffer[..bytes]).unwrap());
            }
            assert!(
                matches!(last, Some(AttachReply::Refused { .. } | AttachReply::Gone { .. }) | None),
                "{last:?}"
            );
        }
    });
}

#[test]
fn a_client_without_a_hello_is_evicted() {
    with_good_client(|host| {
        let quiet: Vec<OwnedFd> = (0..20).map(|_| connect_raw(host)).collect();
        let mut buffer = [0; 100];
        for socket in &quiet {
            while let Ok((1.., _)) = receive_message(socket.as_fd(), &mut buffer, RecvFlags::empty()) {}
        }
    });
}

#[test]
fn unexpected_descriptors_are_closed() {
    with_good_client(|host| {
        let mut client = AttachConnection::open(&host.path).unwrap();
        let files: Vec<OwnedFd> = (0..2).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let borrowed: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
        // Tests beside this one open some hundreds. One of the two descriptors of each call would be twice the bound.
        for _ in 0..2_000 {
            client.call(&AttachRequest::Namespaces, &borrowed).unwrap();
        }
        let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(after < before + 1_000, "descriptors leaked: {before} before, {after} after");
    });
}

#[test]
fn the_number_of_clients_is_bounded_and_all_are_released() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let crowd: Vec<_> = (0..300).filter_map(|_| AttachConnection::open(&host.path).ok()).collect();
    assert_eq!(crowd.len(), headwater_frontend::attach::CLIENTS_PER_USER_MAX);
    drop(crowd);
    host.until_holdings(AttachHoldings::default());
    host.client().put(b"k", b"v").unwrap();
    drop(host.end());
}
