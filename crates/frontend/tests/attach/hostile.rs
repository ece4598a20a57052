//! Clients that lie: each harms only itself, and what it held is taken back within a second.

use crate::host::{Host, media};
use headwater_dma::iova::Iova;
use headwater_dma::pool::PROCESS_CAP;
use headwater_frontend::attach::Holdings;
use headwater_frontend::attach::policy::Policy;
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::{ForeignWords, RingMemory as _};
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::connection::{Connection, receive_message, send_message};
use headwater_io::attach::protocol::{Reply, Request, decode_reply};
use headwater_io::device_pool::FIRST_ADDRESS;
use headwater_io::error::IoError;
use headwater_io::{Buffer, Command, Condition};
use headwater_nvme::queue_pair::words_for;
use headwater_nvme::ring::layout::RingLayout;
use headwater_nvme::spec::kv;
use headwater_nvme::spec::status::Status;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd as _, OwnedFd};

/// Longest that anything of a bad client may stay.
const RECLAIM_MAX: Nanos = Nanos::from_millis(1_500);

fn host(folder: &std::path::Path) -> Host {
    Host::start(folder, Policy::new([]), media())
}

/// A queue without any of the care of a client library.
fn raw_queue(connection: &mut Connection, depth: u32) -> (ForeignWords, WakeLine) {
    let (reply, descriptors) = connection.call(&Request::Queue { depth }, &[]).unwrap();
    let Reply::Queue { bytes, .. } = reply else { panic!("{reply:?}") };
    let [memory, line] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    let region = Foreign::take(memory.as_fd(), 0, usize::try_from(bytes).unwrap()).unwrap();
    (ForeignWords::new(region, 0, words_for(depth).unwrap()).unwrap(), line.into())
}

/// A good client works on while `harm` is done, and what it leaves is gone soon.
fn beside_a_good_client(harm: impl FnOnce(&Host)) {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let mut good = host.client();
    good.put(b"before", b"1").unwrap();
    harm(&host);
    good.put(b"after", b"2").unwrap();
    assert!(host.settle(Holdings { clients: 1, queues: 1, regions: 1, in_flight: 0 }) < RECLAIM_MAX);
    assert_eq!(good.get(b"before").unwrap().unwrap(), b"1");
    assert_eq!(good.get(b"after").unwrap().unwrap(), b"2");
    drop(host.end());
}

#[test]
fn garbage_in_every_word_of_a_ring_ends_its_client_only() {
    beside_a_good_client(|host| {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let mut bad = Connection::open(&host.path).unwrap();
            let (ring, line) = raw_queue(&mut bad, 16);
            for _ in 0..2_000 {
                ring.store_release(random.usize(..ring.words()), random.u64(..));
            }
            let _ = line.wake();
        }
    });
}

#[test]
fn entries_of_noise_are_answered_or_end_the_client() {
    beside_a_good_client(|host| {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..20 {
            let mut bad = Connection::open(&host.path).unwrap();
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
fn a_client_that_never_reaps_is_ended_within_a_second() {
    beside_a_good_client(|host| {
        let mut bad = Connection::open(&host.path).unwrap();
        let depth = 8;
        let (ring, line) = raw_queue(&mut bad, depth);
        // The whole ring again and again: more commands than there is room for answers.
        let entry = kv::flush(1);
        for slot in 0..9 {
            for (word, value) in (40 + slot * 8..).zip(entry.to_words()) {
                // Each slot has a command id of its own.
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
            matches!(line.wait(Some(RECLAIM_MAX)).unwrap(), headwater_host::wake_line::Line::HungUp)
                || loop {
                    match line.wait(Some(RECLAIM_MAX)).unwrap() {
                        headwater_host::wake_line::Line::HungUp => break true,
                        _ if waited.now() > RECLAIM_MAX => break false,
                        _ => {}
                    }
                },
            "the stuck client was kept"
        );
    });
}

#[test]
fn addresses_that_were_never_registered_are_a_transfer_error() {
    beside_a_good_client(|host| {
        let mut client = host.client();
        let own = client.buffer(4_096).unwrap();
        let mut queue = client.queue(4).unwrap();
        let mut status = |buffer| {
            queue.submit(Command::put(1, b"bad", buffer, Condition::Always).unwrap(), 0).unwrap();
            queue.wait(None).unwrap().unwrap().status
        };
        assert_eq!(status(own.clone()), Status::SUCCESS);
        let at = |address| Buffer::whole(Foreign::anonymous(4_096).unwrap(), Iova(address));
        let behind_all = own.address() + PROCESS_CAP as u64;
        for address in [0, 4_096, FIRST_ADDRESS - 4_096, behind_all, u64::MAX - 4_095] {
            assert_eq!(status(at(address)), Status::DATA_TRANSFER_ERROR, "{address:#x}");
        }
        drop(queue);
        client.delete(b"bad").unwrap();
    });
}

#[test]
fn memory_that_could_shrink_or_is_too_short_is_refused() {
    beside_a_good_client(|host| {
        let mut bad = Connection::open(&host.path).unwrap();
        let refused = |bad: &mut Connection, descriptor: &OwnedFd, start, bytes| {
            let answer = bad.call(&Request::Region { start, bytes, offset: 0 }, &[descriptor.as_fd()]);
            assert!(matches!(answer, Err(IoError::Refused { .. })), "{answer:?}");
        };
        let open = memfd_create(c"open", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 8_192).unwrap();
        refused(&mut bad, &open, 0, 8_192);
        let (_, sealed) = Foreign::memfd(8_192).unwrap();
        for (start, bytes) in [(0, 8_193), (0, 0), (0, u64::MAX), (u64::MAX - 10, 8_192)] {
            refused(&mut bad, &sealed, start, bytes);
        }
        refused(&mut bad, &tempfile::tempfile().unwrap().into(), 0, 4_096);
        assert!(matches!(
            bad.call(&Request::Region { start: 0, bytes: 4_096, offset: 0 }, &[]),
            Err(IoError::Refused { .. })
        ));
        bad.call(&Request::Region { start: 0, bytes: 8_192, offset: 0 }, &[sealed.as_fd()]).unwrap();
        refused(&mut bad, &sealed, 4_096, 8_192);
    });
}

#[test]
fn impossible_wishes_are_refused_and_the_client_stays() {
    beside_a_good_client(|host| {
        let mut client = Connection::open(&host.path).unwrap();
        for wish in [
            Request::Queue { depth: 0 },
            Request::Queue { depth: 4_097 },
            Request::Queue { depth: u32::MAX },
            Request::DeleteQueue { id: 1 },
            Request::DeleteQueue { id: 0 },
            Request::Release { start: 77 },
            Request::Hello { version: 1, direct: false },
        ] {
            assert!(matches!(client.call(&wish, &[]), Err(IoError::Refused { .. })), "{wish:?}");
        }
        // A queue whose line the client closes is reclaimed, so the line is held until the queue is deleted.
        let (reply, _line) = client.call(&Request::Queue { depth: 1 }, &[]).unwrap();
        let Reply::Queue { id, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(client.call(&Request::DeleteQueue { id }, &[]).unwrap().0, Reply::Done);
    });
}

fn stranger(host: &Host) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&host.path).unwrap()).unwrap();
    socket
}

#[test]
fn who_speaks_nonsense_another_version_or_too_long_is_shown_the_door() {
    beside_a_good_client(|host| {
        let long = vec![b' '; 70_000];
        for message in [&b"\xff\xfe"[..], b"{}", b"{\"hello\":{\"version\":2}}", b"\"namespaces\"", &long] {
            let socket = stranger(host);
            let _ = send_message(socket.as_fd(), message, &[]);
            let mut room = vec![0; 1 << 16];
            let mut last = None;
            while let Ok((bytes @ 1.., _)) = receive_message(socket.as_fd(), &mut room, RecvFlags::empty()) {
                last = Some(decode_reply(&room[..bytes]).unwrap());
            }
            assert!(matches!(last, Some(Reply::Refused { .. } | Reply::Gone { .. }) | None), "{last:?}");
        }
    });
}

#[test]
fn who_never_says_hello_is_not_kept() {
    beside_a_good_client(|host| {
        let quiet: Vec<OwnedFd> = (0..20).map(|_| stranger(host)).collect();
        let mut room = [0; 100];
        for socket in &quiet {
            while let Ok((1.., _)) = receive_message(socket.as_fd(), &mut room, RecvFlags::empty()) {}
        }
    });
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    beside_a_good_client(|host| {
        let mut client = Connection::open(&host.path).unwrap();
        let files: Vec<OwnedFd> = (0..2).map(|_| tempfile::tempfile().unwrap().into()).collect();
        let borrowed: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
        for _ in 0..200 {
            client.call(&Request::Namespaces, &borrowed).unwrap();
        }
        let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(after < before + 100, "{before} descriptors became {after}");
    });
}

#[test]
fn the_crowd_is_bounded_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let crowd: Vec<_> = (0..300).filter_map(|_| Connection::open(&host.path).ok()).collect();
    assert_eq!(crowd.len(), headwater_frontend::attach::CLIENTS_PER_USER_MAX);
    drop(crowd);
    host.settle(Holdings::default());
    host.client().put(b"k", b"v").unwrap();
    drop(host.end());
}
