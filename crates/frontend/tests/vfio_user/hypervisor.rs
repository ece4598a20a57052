//! A hypervisor with one guest: the client's end of the socket, guest memory, and a device polled by the test.

use crate::wire::{dma_map, message, outcome, read, set_irqs, version, write};
use headwater_frontend::vfio_user::VfioUserFrontEnd;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Bytes of guest memory, from address 0.
pub(crate) const MEMORY_BYTES: usize = 1 << 20;
const WALL: UnixMillis = UnixMillis(1_000_000);

/// A node's device with its front end, without a core loop: each turn advances the time.
pub(crate) struct VfioTestNode {
    pub(crate) device: SsdDevice<MemoryMedia>,
    pub(crate) front_end: VfioUserFrontEnd,
    pub(crate) now: Nanos,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl VfioTestNode {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guest.sock");
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let front_end = VfioUserFrontEnd::bind(&path, FrontEndId(4)).unwrap();
        Self { device, front_end, now: Nanos::ZERO, path, _folder: folder }
    }

    /// Runs one turn of the core loop.
    pub(crate) fn turn(&mut self) -> bool {
        self.now = self.now.after(Nanos::from_micros(10));
        let moved = self.front_end.poll(&mut self.device, self.now);
        self.device.poll(self.now, WALL) | moved
    }

    /// Runs turns until there is no progress.
    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the node makes progress without end");
    }

    pub(crate) fn connect(&mut self) -> TestGuest {
        let (memory, descriptor) = SharedMemory::memfd(MEMORY_BYTES).unwrap();
        self.connect_over(memory, descriptor)
    }

    fn connect_over(&mut self, memory: SharedMemory, descriptor: OwnedFd) -> TestGuest {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_nonblocking(true).unwrap();
        TestGuest { socket, memory, descriptor, eventfds: Vec::new() }
    }

    /// Connects a guest with memory, interrupts and bus mastering.
    pub(crate) fn guest(&mut self) -> TestGuest {
        let guest = self.connect();
        self.start_guest(guest)
    }

    /// Connects a guest whose memory is this file, as [`guest`](Self::guest).
    pub(crate) fn guest_over(&mut self, descriptor: OwnedFd) -> TestGuest {
        let lost = LostPages::default();
        let memory = SharedMemory::map_client(descriptor.as_fd(), 0, MEMORY_BYTES, &lost).unwrap();
        let guest = self.connect_over(memory, descriptor);
        self.start_guest(guest)
    }

    fn start_guest(&mut self, mut guest: TestGuest) -> TestGuest {
        guest.ask(self, &version()).unwrap();
        let memory = guest.descriptor.try_clone().unwrap();
        let bytes = u64::try_from(MEMORY_BYTES).unwrap();
        guest.ask_with(self, &dma_map(3, 0, bytes, 0), &[memory.as_fd()]).unwrap();
        guest.eventfds = (0..3).map(|_| WakeDescriptor::new().unwrap()).collect();
        let bells = guest.eventfds.clone();
        let sent: Vec<BorrowedFd<'_>> = bells.iter().map(|bell| bell.as_fd()).collect();
        guest.ask_with(self, &set_irqs(0x24, 2, 0, 3), &sent).unwrap();
        guest.config_write(self, 4, &[6, 4]);
        guest
    }
}

/// The client, and its guest's memory and interrupts.
pub(crate) struct TestGuest {
    pub(crate) socket: UnixStream,
    pub(crate) memory: SharedMemory,
    pub(crate) descriptor: OwnedFd,
    pub(crate) eventfds: Vec<WakeDescriptor>,
}

impl TestGuest {
    pub(crate) fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent.unwrap(), message.len());
    }

    /// Returns a reply, if one is received. `None` also when the node has closed the connection.
    pub(crate) fn reply(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 16];
        match self.socket.read(&mut header) {
            Ok(0) => return None,
            Ok(bytes) => assert_eq!(bytes, 16, "replies are sent whole"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("{error}"),
        }
        let size = usize::try_from(u32::from_le_bytes(header[4..8].try_into().unwrap())).unwrap();
        let mut reply = header.to_vec();
        reply.resize(size, 0);
        self.socket.read_exact(&mut reply[16..]).unwrap();
        Some(reply)
    }

    pub(crate) fn is_connected(&mut self) -> bool {
        let mut byte = [0; 1];
        matches!(self.socket.read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub(crate) fn ask_with(
        &mut self,
        node: &mut VfioTestNode,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        self.send(message, descriptors);
        for _ in 0..10_000 {
            node.turn();
            if let Some(reply) = self.reply() {
                return outcome(&reply).map(<[u8]>::to_vec);
            }
        }
        panic!("no reply to command {}", message[2]);
    }

    pub(crate) fn ask(&mut self, node: &mut VfioTestNode, message: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask_with(node, message, &[])
    }

    pub(crate) fn config_write(&mut self, node: &mut VfioTestNode, offset: u64, data: &[u8]) {
        self.ask(node, &write(7, offset, data)).unwrap();
    }

    pub(crate) fn register(&mut self, node: &mut VfioTestNode, offset: u64) -> u32 {
        let reply = self.ask(node, &read(0, offset, 4)).unwrap();
        u32::from_le_bytes(reply[16..20].try_into().unwrap())
    }

    pub(crate) fn set_register(&mut self, node: &mut VfioTestNode, offset: u64, value: u32) {
        self.ask(node, &write(0, offset, &value.to_le_bytes())).unwrap();
    }

    pub(crate) fn reset(&mut self, node: &mut VfioTestNode) {
        self.ask(node, &message(13, 0, &[])).unwrap();
    }
}
