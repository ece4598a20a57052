//! A host that says what it likes, on the same thread as the face and the device: nothing happens in between.

use headwater_frontend::front_end::Face;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFace};
use headwater_host::clock::Clock;
use headwater_nvme::controller::Subsystem as _;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::fabrics::{CONTROLLER_DYNAMIC, ConnectData, ConnectFields, PropertyFields};
use headwater_nvme::spec::register::Register;
use headwater_nvme::tcp::{HostStep, InitiatorConnection, InitiatorParameters, Transfer};
use headwater_ssd::command::FaceId;
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use zerocopy::IntoBytes as _;

/// Turns after which nothing more is expected.
const TURNS_MAX: u32 = 1_000_000;

/// A face and its device.
pub(crate) struct Bench {
    pub(crate) face: NvmeTcpFace,
    pub(crate) device: Device<MemoryMedia>,
    clock: Clock,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let listen = ([127, 0, 0, 1], 0).into();
        let face = NvmeTcpFace::bind(&NvmeTcpConfig { listen, face: FaceId(5), keys: Vec::new() }).unwrap();
        let clock = Clock::start();
        let start = Start { now: clock.now(), wall: clock.wall() };
        let media = MemoryMedia::erased(Geometry::with_blocks(64)).unwrap();
        let device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        Self { face, device, clock }
    }

    /// One turn of the face, with as much of the device as the face itself runs.
    pub(crate) fn turn(&mut self) {
        self.face.poll(&mut self.device, self.clock.now(), self.clock.wall());
    }

    /// A controller with its admin queue, enabled; and the number it has.
    pub(crate) fn controller(&mut self) -> (Wire, u16) {
        let mut admin = Wire::open(self);
        let done = admin.connect(self, 0, CONTROLLER_DYNAMIC);
        assert!(done.status().is_success(), "{}", done.status());
        let enable = PropertyFields::set(Register::Configuration.offset(), 0x0046_0061);
        assert!(admin.call(self, enable, Transfer::None).status().is_success());
        let [a, b, ..] = done.result.to_bytes();
        (admin, u16::from_le_bytes([a, b]))
    }
}

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    connection: InitiatorConnection<Vec<u8>>,
}

impl Wire {
    pub(crate) fn open(bench: &mut Bench) -> Self {
        let stream = TcpStream::connect(bench.face.local_addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        // What is sent is there at once, not when the one before was acknowledged.
        stream.set_nodelay(true).unwrap();
        let connection = InitiatorConnection::new(InitiatorParameters::default());
        let mut wire = Self { stream, connection };
        wire.flush();
        for _ in 0..TURNS_MAX {
            bench.turn();
            if let Some(HostStep::Opened) = wire.look() {
                return wire;
            }
        }
        panic!("the connection does not open");
    }

    /// Connects it as queue `number` of a controller.
    pub(crate) fn connect(&mut self, bench: &mut Bench, number: u16, controller: u16) -> CompletionEntry {
        bench.turn();
        let fields = ConnectFields {
            format: 0,
            queue: number,
            size: 31,
            attributes: ConnectFields::FLOW_CONTROL_DISABLED,
            keep_alive_ms: 0,
        };
        let host = ("nqn.2026-01.test:wire", [7; 16]);
        let name = bench.device.identity().subsystem_name.clone();
        let data = ConnectData::new(host, &name, controller).as_bytes().to_vec();
        self.call(bench, fields.to_entry(), Transfer::Out(data))
    }

    /// Sends a command; the face sees it with its next turn. Its identifier.
    pub(crate) fn send(&mut self, entry: SubmissionEntry, transfer: Transfer<Vec<u8>>) -> u16 {
        let id = self.connection.submit(entry, transfer).unwrap();
        self.flush();
        id.0
    }

    /// The completion that has come already, if one has.
    pub(crate) fn already(&mut self) -> Option<CompletionEntry> {
        match self.look() {
            Some(HostStep::Completed(done)) => Some(done.entry),
            _ => None,
        }
    }

    /// Waits for the next completion.
    pub(crate) fn answer(&mut self, bench: &mut Bench) -> CompletionEntry {
        for _ in 0..TURNS_MAX {
            bench.turn();
            if let Some(HostStep::Completed(done)) = self.look() {
                return done.entry;
            }
        }
        panic!("no answer");
    }

    pub(crate) fn call(
        &mut self,
        bench: &mut Bench,
        entry: SubmissionEntry,
        transfer: Transfer<Vec<u8>>,
    ) -> CompletionEntry {
        self.send(entry, transfer);
        self.answer(bench)
    }

    /// Whether the other side has closed the connection and nothing was left to read.
    pub(crate) fn is_closed(&mut self, bench: &mut Bench) -> bool {
        for _ in 0..TURNS_MAX {
            bench.turn();
            match self.stream.read(&mut [0]) {
                Ok(0) => return true,
                Ok(_) => return false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return true,
            }
        }
        false
    }

    fn flush(&mut self) {
        while self.connection.outgoing().pending() > 0 {
            let mut pieces = [IoSlice::new(&[]); 8];
            let count = self.connection.outgoing().gather(&mut pieces);
            let sent = self.stream.write_vectored(&pieces[..count]).unwrap();
            self.connection.outgoing_mut().sent(sent, drop);
        }
    }

    /// What came, a byte at a time so that nothing behind it is lost.
    fn look(&mut self) -> Option<HostStep<Vec<u8>>> {
        loop {
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(1) => {}
                _ => return None,
            }
            match self.connection.advance(&mut &byte[..]) {
                HostStep::Starved => {}
                step => return Some(step),
            }
        }
    }
}
