//! A process without a free descriptor serves its connected clients and does not spin. A separate test process with one
//! test, because it takes every descriptor.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::attach::{AttachFrontEnd, AttachFrontEndIds, SsdExecutor};
use headwater_frontend::counters::FrontEndCounters;
use headwater_frontend::front_end::FrontEnd;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFrontEnd};
use headwater_frontend::resp::{RespConfig, RespFrontEnd};
use headwater_frontend::vfio_user::VfioUserFrontEnd;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

type MemoryDevice = SsdDevice<MemoryMedia>;

const WALL: UnixMillis = UnixMillis(1_000_000);
const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A front end, and a way to connect to it without waiting for it.
struct Watched {
    name: &'static str,
    front_end: Box<dyn FrontEnd<MemoryDevice>>,
    connect: Box<dyn Fn() -> OwnedFd>,
    /// Its listeners with a client that waits.
    listeners: u64,
}

impl Watched {
    fn counters(&self) -> FrontEndCounters {
        let mut counters = FrontEndCounters::default();
        self.front_end.add_counters(&mut counters);
        counters
    }

    /// Returns true if a core loop would be woken at once.
    fn is_readable(&self) -> bool {
        let mut descriptors = [PollFd::from_borrowed_fd(self.front_end.wake_descriptor(), PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }
}

fn tcp(address: SocketAddr) -> OwnedFd {
    TcpStream::connect(address).unwrap().into()
}

fn sequenced(path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn all_front_ends(folder: &Path) -> (SocketAddr, Vec<Watched>) {
    let config = RespConfig { listen: vec![LOOPBACK.into()], ..RespConfig::default() };
    let resp = RespFrontEnd::bind(config).unwrap();
    let resp_address = resp.local_addr().unwrap();
    let listen = LOOPBACK.into();
    let config = NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: Vec::new() };
    let nvme_tcp = NvmeTcpFrontEnd::bind(&config).unwrap();
    let nvme_address = nvme_tcp.local_addr();
    let attach_path = folder.join("attach.sock");
    let ids = AttachFrontEndIds { rings: FrontEndId(2), control: FrontEndId(3) };
    let executor = SsdExecutor::<MemoryMedia>::new(ids).unwrap();
    let attach = AttachFrontEnd::bind(&attach_path, GrantPolicy::new([]), executor).unwrap();
    let guest_path = folder.join("guest.sock");
    let vfio_user = VfioUserFrontEnd::bind(&guest_path, FrontEndId(4)).unwrap();
    let watched = |name, front_end: Box<dyn FrontEnd<MemoryDevice>>, connect: Box<dyn Fn() -> OwnedFd>| {
        Watched { name, front_end, connect, listeners: 1 }
    };
    let all = vec![
        watched("resp", Box::new(resp), Box::new(move || tcp(resp_address))),
        watched("nvme-tcp", Box::new(nvme_tcp), Box::new(move || tcp(nvme_address))),
        watched("attach", Box::new(attach), Box::new(move || sequenced(&attach_path))),
        watched(
            "vfio-user",
            Box::new(vfio_user),
            Box::new(move || UnixStream::connect(&guest_path).unwrap().into()),
        ),
    ];
    (resp_address, all)
}

/// Opens descriptors until none is left.
fn take_all_descriptors() -> Vec<OwnedFd> {
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: hard }).unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let mut taken = Vec::new();
    while let Ok(copy) = socket.try_clone() {
        taken.push(copy.into());
    }
    // The pair was needed for copies only; its two descriptors are taken as well.
    taken.push(socket.into());
    while let Ok(null) = std::fs::File::open("/dev/null") {
        taken.push(null.into());
    }
    taken
}

/// Checks for a former defect: a front end whose process was out of descriptors called `accept` in every turn, and the
/// core loop never slept.
#[test]
fn without_free_descriptors_connected_clients_are_served_and_waiting_ones_are_accepted_later() {
    const TURN: Nanos = Nanos::from_micros(100);
    let folder = tempfile::tempdir().unwrap();
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap();
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
    let (resp_address, mut all) = all_front_ends(folder.path());
    let mut now = Nanos::from_millis(1);
    let mut turn = |all: &mut Vec<Watched>, now: &mut Nanos| {
        *now = now.after(TURN);
        let moved: Vec<bool> =
            all.iter_mut().map(|watched| watched.front_end.poll(&mut device, *now, WALL)).collect();
        device.poll(*now, WALL);
        moved
    };
    let mut connected = TcpStream::connect(resp_address).unwrap();
    connected.set_nonblocking(true).unwrap();
    for _ in 0..100 {
        turn(&mut all, &mut now);
    }
    assert_eq!(all[0].counters().connections, 1);

    let waiting: Vec<OwnedFd> = all.iter().map(|watched| (watched.connect)()).collect();
    let taken = take_all_descriptors();
    let mut moves = vec![0; all.len()];
    // One second of the core's clock.
    for _ in 0..10_000 {
        for (total, moved) in moves.iter_mut().zip(turn(&mut all, &mut now)) {
            *total += u64::from(moved);
        }
    }
    for (watched, moves) in all.iter().zip(&moves) {
        let (name, pauses) = (watched.name, watched.counters().accept_pauses);
        assert!((9..=11).contains(&pauses), "{name}: {pauses} failed calls of accept in a second");
        assert!(*moves <= pauses * watched.listeners, "{name}: {moves} turns with progress, {pauses} pauses");
        assert!(!watched.is_readable(), "{name} ends every sleep of the core loop");
        let deadline = watched.front_end.next_deadline().unwrap();
        assert!(deadline > now && deadline <= now.after(Nanos::from_millis(100)), "{name}: {deadline:?}");
    }

    // The connected client is served.
    connected.write_all(b"SET key value\r\nGET key\r\n").unwrap();
    let mut reply: Vec<u8> = Vec::new();
    for _ in 0..1_000 {
        turn(&mut all, &mut now);
        let mut bytes = [0; 64];
        if let Ok(count) = connected.read(&mut bytes) {
            reply.extend(&bytes[..count]);
        }
    }
    assert_eq!(reply, b"+OK\r\n$5\r\nvalue\r\n");

    // The waiting clients are accepted once there are descriptors.
    drop(taken);
    let pauses: Vec<u64> = all.iter().map(|watched| watched.counters().accept_pauses).collect();
    for _ in 0..2_000 {
        turn(&mut all, &mut now);
    }
    for ((watched, pauses), accepted) in all.iter().zip(pauses).zip([1, 0, 0, 0]) {
        let counters = watched.counters();
        assert_eq!(
            counters.connections,
            1 + accepted,
            "{}: the waiting client was not accepted",
            watched.name
        );
        assert_eq!(counters.accept_pauses, pauses, "{}: paused with free descriptors", watched.name);
    }
    drop(waiting);
}
