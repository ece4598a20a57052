//! Clients of every bad kind, at the same time, for a while.
//!
//! Input: a node. Output: how often each kind did what it does. Invariant: when the attack ends, all its connections are
//! closed.

use crate::model::{LARGE_KEY, TORN_KEYS, torn_key};
use crate::node::SoakNode;
use headwater_frontend::backup::message::BackupRequest;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::attach::protocol::AttachRequest;
use headwater_testkit::unsealed_memory::UnsealedClient;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use zerocopy::IntoBytes as _;

/// Connections that receive nothing, and the values that each requests.
const READERS: usize = 6;
const REQUESTS: usize = 100;
/// Longest wait for a node that does not receive.
const SEND_MAX: Duration = Duration::from_secs(2);
const MEMORY_BYTES: usize = 4 << 20;
const TORN_BYTES: usize = 256 << 10;
/// Attach clients in one attack. A queue that ends with commands in flight keeps its memory mapped, of which a process has
/// 32,768 guarded ranges: enough for the 90 attacks of a run of any length.
const ATTACHED_MAX: u64 = 200;
/// Pause after each connection, so that the good client gets its share of the machine.
const PAUSE: Nanos = Nanos::from_millis(2);

/// The number of times that each kind of client did what it does.
#[derive(Clone, Copy, Default)]
pub(crate) struct HostileCounts {
    readers: u64,
    vanished: u64,
    malformed: u64,
    died: u64,
    truncated: u64,
}

impl HostileCounts {
    fn all(&self) -> [(&'static str, u64); 5] {
        [
            ("connections that received nothing", self.readers),
            ("clients that vanished", self.vanished),
            ("malformed messages", self.malformed),
            ("attach clients that died", self.died),
            ("attach clients that truncated their memory", self.truncated),
        ]
    }

    /// Adds other counts.
    pub(crate) fn add(&mut self, other: &Self) {
        self.readers += other.readers;
        self.vanished += other.vanished;
        self.malformed += other.malformed;
        self.died += other.died;
        self.truncated += other.truncated;
    }

    /// Returns the counts as text.
    pub(crate) fn text(&self) -> String {
        self.all().map(|(what, count)| format!("{count} {what}")).join(", ")
    }

    /// Asserts that no kind is missing.
    pub(crate) fn assert_all_happened(&self) {
        assert!(
            self.all().iter().all(|(_, count)| *count > 0),
            "a kind of client is missing: {}",
            self.text()
        );
    }
}

/// Runs all kinds of clients for this time.
pub(crate) fn attack(node: &SoakNode, seed: u64, time: Nanos) -> HostileCounts {
    let clock = Clock::start();
    let is_over = || clock.now() >= time;
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let readers = scope.spawn(move || receive_nothing(node, is_over));
        let vanished = scope.spawn(move || vanish(node, seed, is_over));
        let malformed = scope.spawn(move || send_malformed(node, seed, is_over));
        let attached = scope.spawn(move || take_memory_away(node, seed, is_over));
        let (died, truncated) = attached.join().unwrap();
        HostileCounts {
            readers: readers.join().unwrap(),
            vanished: vanished.join().unwrap(),
            malformed: malformed.join().unwrap(),
            died,
            truncated,
        }
    })
}

fn request(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend(format!("${}\r\n", part.len()).into_bytes());
        bytes.extend(*part);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn connected(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(SEND_MAX)).unwrap();
    stream.set_read_timeout(Some(SEND_MAX)).unwrap();
    stream
}

/// Requests much more than the node keeps for a client, and receives nothing of it.
fn receive_nothing(node: &SoakNode, is_over: &dyn Fn() -> bool) -> u64 {
    let open = |_| {
        let mut stream = connected(&node.resp);
        stream.write_all(&request(&[b"GET", LARGE_KEY]).repeat(REQUESTS)).unwrap();
        stream
    };
    let held: Vec<TcpStream> = (0..READERS).map(open).collect();
    while !is_over() {
        Clock::sleep(PAUSE);
    }
    held.len() as u64
}

/// Connects, sends a part of something, and is gone, sometimes with a reset.
fn vanish(node: &SoakNode, seed: u64, is_over: &dyn Fn() -> bool) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed ^ 1);
    let mut count = 0;
    while !is_over() {
        let mut stream = connected(if random.bool() { &node.resp } else { &node.nvme_tcp });
        let key = torn_key(random.u8(..TORN_KEYS));
        let sent = match random.u8(..16) {
            0 => request(&[b"GET", LARGE_KEY]).repeat(3),
            1..8 => request(&[b"GET", &key]).repeat(3),
            _ => request(&[b"SET", b"vanished", &vec![b'x'; random.usize(1..200_000)]]),
        };
        // A node that closes the connection first is right too.
        let _ = stream.write_all(&sent[..random.usize(..sent.len())]);
        if random.bool() {
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        count += 1;
        Clock::sleep(PAUSE);
    }
    count
}

/// Sends bytes that are no message, or only the start of one, to every socket of the node.
fn send_malformed(node: &SoakNode, seed: u64, is_over: &dyn Fn() -> bool) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed ^ 2);
    let mut count = 0;
    while !is_over() {
        let mut bytes = vec![0; random.usize(1..4_000)];
        random.fill(&mut bytes);
        let backup = BackupRequest::new(random.u32(..4));
        let starts: [&[u8]; 8] = [
            b"",
            b"*-5\r\n",
            b"*3\r\n$3\r\nSET\r\n$536870913\r\n",
            b"*2\r\n$-1\r\n",
            b"POST / HTTP/1.1\r\n",
            // The start of an initialize connection request of NVMe/TCP, 128 bytes.
            &[0, 0, 128, 0, 128, 0, 0, 0],
            // A vfio-user message whose header says its whole length: a version.
            &[1, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            backup.as_bytes(),
        ];
        let message = [starts[random.usize(..starts.len())], &bytes].concat();
        match random.u8(..6) {
            0 => send_and_close(connected(&node.resp), &message),
            1 => send_and_close(connected(&node.nvme_tcp), &message),
            2 => send_and_close(connected(&node.metrics), &message),
            3 => send_to_path(&node.vfio_user(), &message),
            4 => send_to_path(&node.backup(), &message),
            _ => send_datagram(&node.attach(), &message),
        }
        count += 1;
        Clock::sleep(PAUSE);
    }
    count
}

fn send_and_close(mut stream: TcpStream, message: &[u8]) {
    // The node may close the connection at any byte.
    let _ = stream.write_all(message);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
    let _ = stream.read(&mut [0; 512]);
}

fn send_to_path(path: &Path, message: &[u8]) {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_write_timeout(Some(SEND_MAX)).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let _ = stream.write_all(message);
    let _ = stream.read(&mut [0; 512]);
}

fn send_datagram(path: &Path, message: &[u8]) {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let _ = send(&socket, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Attaches with memory that is not sealed, and dies or truncates it while puts are in flight. Returns how often each.
fn take_memory_away(node: &SoakNode, seed: u64, is_over: &dyn Fn() -> bool) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed ^ 3);
    let (mut died, mut truncated) = (0, 0);
    while !is_over() && died + truncated < ATTACHED_MAX {
        let file = memfd_create(c"soak", MemfdFlags::empty()).unwrap();
        ftruncate(&file, MEMORY_BYTES as u64).unwrap();
        let mut client = UnsealedClient::connect(&node.attach(), &file, MEMORY_BYTES);
        client.memory.copy_out(0, &vec![random.u8(1..); MEMORY_BYTES]).unwrap();
        for number in 0..TORN_KEYS {
            let put = client.put(&torn_key(number), usize::from(number) * TORN_BYTES, TORN_BYTES);
            client.queue.submit(put, u64::from(number)).unwrap();
        }
        client.queue.ring().unwrap();
        (0..random.u32(..5_000)).for_each(|_| std::hint::spin_loop());
        if random.bool() {
            died += 1;
        } else {
            ftruncate(&file, TORN_BYTES as u64 + 4_096).unwrap();
            client.queue.submit(client.put(&torn_key(0), TORN_BYTES, TORN_BYTES), 100).unwrap();
            client.queue.ring().unwrap();
            while client.connection.call(&AttachRequest::Namespaces, &[]).is_ok() {
                Clock::sleep(PAUSE);
            }
            truncated += 1;
        }
        drop(client);
        // A queue that ends with commands in flight keeps its memory mapped, because a device may still write there.
        ftruncate(&file, 0).unwrap();
        Clock::sleep(PAUSE);
    }
    (died, truncated)
}
