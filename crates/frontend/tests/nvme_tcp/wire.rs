//! A raw host on the same thread as the front end and the device, so that tests control every turn.

use headwater_frontend::counters::FrontEndCounters;
use headwater_frontend::front_end::FrontEnd;
use headwater_frontend::nvme_tcp::{NvmeTcpConfig, NvmeTcpFrontEnd};
use headwater_host::clock::Clock;
use headwater_nvme::controller::NvmSubsystem as _;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::fabrics::{CONTROLLER_DYNAMIC, ConnectData, ConnectFields, PropertyFields};
use headwater_nvme::spec::register::ControllerRegister;
use headwater_nvme::tcp::{CommandTransfer, InitiatorConnection, InitiatorParameters, InitiatorStep};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use zerocopy::IntoBytes as _;

/// Maximum turns to wait for an event.
const TURNS_MAX: u32 = 1_000_000;
/// The shortest piece of data that is corrupted.
const CORRUPTED_BYTES_MIN: usize = 10_000;

/// A front end and its device.
pub(crate) struct TcpHarness {
    pub(crate) front_end: NvmeTcpFrontEnd,
    pub(crate) device: SsdDevice<MemoryMedia>,
    clock: Clock,
}

impl TcpHarness {
    pub(crate) fn new() -> Self {
        Self::with_blocks(64)
    }

    /// Creates a front end over a device with so many blocks.
    pub(crate) fn with_blocks(blocks: u32) -> Self {
        let listen = ([127, 0, 0, 1], 0).into();
        let front_end =
            NvmeTcpFrontEnd::bind(&NvmeTcpConfig { listen, front_end_id: FrontEndId(5), keys: Vec::new() })
                .unwrap();
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: clock.wall() };
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        Self { front_end, device, clock }
    }

    /// Runs one turn of the front end, which polls the device as needed.
    pub(crate) fn turn(&mut self) {
        self.front_end.poll(&mut self.device, self.clock.now(), self.clock.wall());
    }

    /// Runs one turn of the front end, and one of the device.
    pub(crate) fn turn_both(&mut self) {
        self.turn();
        self.device.poll(self.clock.now(), self.clock.wall());
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> u64 {
        let mut numbers = FrontEndCounters::default();
        FrontEnd::<SsdDevice<MemoryMedia>>::add_counters(&self.front_end, &mut numbers);
        numbers.connections
    }

    /// Creates and enables a controller; returns its admin queue and its number.
    pub(crate) fn controller(&mut self) -> (RawConnection, u16) {
        let mut admin = RawConnection::open(self);
        let done = admin.connect(self, 0, CONTROLLER_DYNAMIC);
        assert!(done.status().is_success(), "{}", done.status());
        let enable = PropertyFields::set(ControllerRegister::Configuration.offset(), 0x0046_0061);
        assert!(admin.call(self, enable, CommandTransfer::None).status().is_success());
        let [a, b, ..] = done.result.to_bytes();
        (admin, u16::from_le_bytes([a, b]))
    }
}

/// One connection of a raw host.
pub(crate) struct RawConnection {
    stream: TcpStream,
    connection: InitiatorConnection<Vec<u8>>,
    /// Bytes at the end of what is to be sent that are held back.
    pub(crate) held_back: usize,
    /// True to send the next long piece of data with a wrong byte, after its digest was computed.
    pub(crate) corrupts_next: bool,
}

impl RawConnection {
    pub(crate) fn open(bench: &mut TcpHarness) -> Self {
        Self::open_with(bench, InitiatorParameters::default())
    }

    pub(crate) fn open_with(bench: &mut TcpHarness, parameters: InitiatorParameters) -> Self {
        let stream = TcpStream::connect(bench.front_end.local_addr()).unwrap();
        stream.set_nonblocking(true).unwrap();
        // Data is sent at once, not after the acknowledgement of earlier data.
        stream.set_nodelay(true).unwrap();
        let connection = InitiatorConnection::new(parameters);
        let mut wire = Self { stream, connection, held_back: 0, corrupts_next: false };
        wire.flush();
        for _ in 0..TURNS_MAX {
            bench.turn();
            if let Some(InitiatorStep::Opened) = wire.next_step() {
                return wire;
            }
        }
        panic!("the connection did not open in {TURNS_MAX} turns");
    }

    /// Connects queue `number` of a controller.
    pub(crate) fn connect(
        &mut self,
        bench: &mut TcpHarness,
        number: u16,
        controller: u16,
    ) -> CompletionEntry {
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
        self.call(bench, fields.to_entry(), CommandTransfer::Out(data))
    }

    /// Sends a command, which the front end receives in its next turn. Returns its identifier.
    pub(crate) fn send(&mut self, entry: SubmissionEntry, transfer: CommandTransfer<Vec<u8>>) -> u16 {
        let id = self.connection.submit(entry, transfer).unwrap();
        self.flush();
        id.0
    }

    /// Returns a completion that is already received, if there is one.
    pub(crate) fn received_completion(&mut self) -> Option<CompletionEntry> {
        match self.next_step() {
            Some(InitiatorStep::Completed(done)) => Some(done.entry),
            _ => None,
        }
    }

    /// Waits for the next completion.
    pub(crate) fn wait_completion(&mut self, bench: &mut TcpHarness) -> CompletionEntry {
        for _ in 0..TURNS_MAX {
            bench.turn();
            if let Some(InitiatorStep::Completed(done)) = self.next_step() {
                return done.entry;
            }
        }
        panic!("no completion in {TURNS_MAX} turns");
    }

    pub(crate) fn call(
        &mut self,
        bench: &mut TcpHarness,
        entry: SubmissionEntry,
        transfer: CommandTransfer<Vec<u8>>,
    ) -> CompletionEntry {
        self.send(entry, transfer);
        self.wait_completion(bench)
    }

    /// Returns true if the front end closes the connection and no data is left to read.
    pub(crate) fn is_closed(&mut self, bench: &mut TcpHarness) -> bool {
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

    /// Sends the start of a PDU and closes the connection, before the front end sees either.
    pub(crate) fn vanish(mut self) {
        assert_eq!(self.stream.write(&[4, 0]).unwrap(), 2);
    }

    /// Sends what the socket accepts, except for what is held back.
    pub(crate) fn flush(&mut self) {
        loop {
            let unsent = self.connection.outgoing().pending();
            let allowed = unsent.saturating_sub(self.held_back);
            let mut pieces = [IoSlice::new(&[]); 1];
            if allowed == 0 || self.connection.outgoing().gather(&mut pieces) == 0 {
                return;
            }
            let mut part = &pieces[0][..pieces[0].len().min(allowed)];
            let mut wrong = Vec::new();
            let is_corrupted = self.corrupts_next && part.len() >= CORRUPTED_BYTES_MIN;
            if is_corrupted {
                wrong.extend_from_slice(part);
                wrong[0] ^= 1;
                part = &wrong;
            }
            match self.stream.write(part) {
                Ok(sent) => {
                    self.corrupts_next &= !is_corrupted;
                    self.connection.outgoing_mut().sent(sent, drop);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    return;
                }
            }
        }
    }

    /// Returns the number of bytes that are not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.connection.outgoing().pending()
    }

    /// Returns the next received step; reads byte by byte, so that nothing after it is lost.
    fn next_step(&mut self) -> Option<InitiatorStep<Vec<u8>>> {
        loop {
            self.flush();
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(1) => {}
                _ => return None,
            }
            match self.connection.advance(&mut &byte[..]) {
                InitiatorStep::NeedInput => {}
                step => return Some(step),
            }
        }
    }
}
