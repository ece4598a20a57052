//! A machine with a controller, the executor in front of it, and clients with rights of their own, all on one desk in
//! virtual time.

use headwater_testkit::nvme_machine::{Machine, Shared};
use headwater_dma::iova::{Iova, Reach};
use headwater_frontend::attach::executor::Executor as _;
use headwater_frontend::mediated::{
    Bell as DeviceBell, ForwardingExecutor, HardwareDevice, LentQueues, Mapper,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeDescriptor;
use headwater_io::vfio::NoVectors;
use headwater_nvme::controller::{ControllerConfig, QueueId, QueueKind};
use headwater_nvme::driver::{Controller, DriverConfig};
use headwater_nvme::queue_pair::{CommandId, QueuePair, words_for};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::rights::{Access, NamespaceRights, Rights};
use headwater_ssd::nvme::rings::{Bell, ClientId};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::little_endian::U64;

/// The namespace of blocks of 4,096 bytes, and a block.
pub(crate) const NAMESPACE: u32 = 2;
pub(crate) const BLOCK: usize = 4_096;
/// Where clients know their memory: each of them at the same address.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 4 << 20;
/// The controller's first address of memory that is lent to it.
const LENT_AT: u64 = 0x80_0000_0000;
/// How far time goes in one turn.
const TURN: Nanos = Nanos::from_millis(50);

pub(crate) type Device = HardwareDevice<Shared, Shared>;
pub(crate) type TestExecutor = ForwardingExecutor<Shared, Shared>;

/// Lends memory to the machine.
#[derive(Debug)]
pub(crate) struct Lender(pub(crate) Shared);

/// Memory that is lent.
#[derive(Debug)]
struct Loan(Shared, u64);

impl Mapper for Lender {
    fn map(&self, region: &Foreign) -> Result<Box<dyn Reach>, String> {
        let mut machine = self.0.lock();
        let last = machine.lent.last_key_value();
        // A gap of a page, so that a run over the end finds nothing.
        let free = last.map_or(LENT_AT, |(at, memory)| at + memory.bytes() as u64 + 4_096);
        machine.lent.insert(free, region.clone());
        Ok(Box::new(Loan(self.0.clone(), free)))
    }
}

impl Reach for Loan {
    fn address(&self) -> u64 {
        self.1
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.lock().lent.remove(&self.1).unwrap();
    }
}

/// For clients who drive none of the controller's queues.
pub(crate) fn no_queues() -> LentQueues {
    LentQueues::new(Box::new(NoVectors), [])
}

pub(crate) fn machine() -> Shared {
    let machine = Machine::with(ControllerConfig::pcie(1));
    machine.lock().is_awake = true;
    machine
}

/// A device over a machine without interrupts, ready.
pub(crate) fn device(machine: &Shared, command_timeout: Nanos) -> Device {
    device_with(machine, command_timeout, None)
}

pub(crate) fn device_with(machine: &Shared, command_timeout: Nanos, bell: Option<DeviceBell>) -> Device {
    let config = DriverConfig {
        io_queues: 4,
        command_timeout,
        admin_timeout: Nanos::from_millis(2_000),
        ..DriverConfig::default()
    };
    let driver = Controller::new(machine.clone(), machine.clone(), config);
    let mut device = HardwareDevice::new(driver, &mut machine.clone(), bell).unwrap();
    device.start(&Clock::start()).unwrap();
    device
}

pub(crate) struct Desk {
    pub(crate) machine: Shared,
    pub(crate) device: Device,
    pub(crate) executor: TestExecutor,
    pub(crate) now: Nanos,
}

pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) queue: QueueId,
    pub(crate) pair: QueuePair<ForeignWords>,
    pub(crate) memory: Foreign,
}

/// What came back, by command.
pub(crate) type Answers = BTreeMap<CommandId, Status>;

impl Desk {
    pub(crate) fn new() -> Self {
        let machine = machine();
        let device = device(&machine, Nanos::from_millis(4_000));
        let executor = ForwardingExecutor::new(Box::new(Lender(machine.clone())), no_queues()).unwrap();
        Self { machine, device, executor, now: Nanos::from_millis(10_000) }
    }

    /// A client with one queue and one region, who may touch these blocks.
    pub(crate) fn client(&mut self, access: Access, blocks: Range<u64>, depth: u32) -> Client {
        let part = NamespaceRights { access, blocks: Some(blocks) };
        let number = u8::try_from(NAMESPACE).unwrap();
        let rights = Rights::none().with(NamespaceId(number), part);
        let id = self.executor.rings_mut().add_client_with(rights);
        let memory = Foreign::anonymous(MEMORY_BYTES).unwrap();
        self.executor.register(id, Iova(BASE), memory.clone()).unwrap();
        let words = words_for(depth).unwrap();
        let rings = ForeignWords::new(Foreign::anonymous(words * 8).unwrap(), 0, words).unwrap();
        let (pair, end) = QueuePair::over(rings, depth).unwrap();
        let bell = Bell::Descriptor(WakeDescriptor::new().unwrap());
        let queue = self.executor.rings_mut().add_queue(id, end, QueueKind::Uio, bell).unwrap();
        Client { id, queue, pair, memory }
    }

    /// A turn of the core's loop, and the machine's work.
    pub(crate) fn turn(&mut self) -> bool {
        self.now = self.now.after(TURN);
        {
            let mut machine = self.machine.lock();
            machine.now = self.now;
            machine.work();
        }
        self.executor.poll(&mut self.device, self.now) | self.device.turn(self.now)
    }

    pub(crate) fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Lets time pass until every command of a client is answered, each once.
    pub(crate) fn answers(&mut self, client: &mut Client, count: usize) -> Answers {
        let mut answers = Answers::new();
        for _ in 0..10_000 {
            self.turn();
            while let Some(done) = client.pair.reap().unwrap() {
                assert!(answers.insert(done.command, done.status).is_none(), "answered twice");
            }
            let _ = client.pair.ring();
            if answers.len() >= count {
                // Whatever is still to come would be one too many.
                self.turns(5);
                assert_eq!(client.pair.reap().unwrap(), None);
                return answers;
            }
        }
        panic!("{} of {count} commands have an answer", answers.len());
    }

    /// One command from submission to answer.
    pub(crate) fn one(&mut self, client: &mut Client, entry: SubmissionEntry) -> Status {
        let command = client.submit(entry);
        self.answers(client, 1)[&command]
    }

    /// Regions that the controller reaches.
    pub(crate) fn lent(&self) -> usize {
        self.machine.lock().lent.len()
    }

    pub(crate) fn blocks(&self) -> Vec<u8> {
        self.machine.lock().blocks[&NAMESPACE].clone()
    }
}

impl Client {
    pub(crate) fn submit(&mut self, entry: SubmissionEntry) -> CommandId {
        let command = self.pair.submit(entry).unwrap();
        let _ = self.pair.ring();
        command
    }
}

/// The address by which a client knows a byte of its memory.
pub(crate) fn at(offset: usize) -> u64 {
    BASE + offset as u64
}

/// The entry with another data pointer.
pub(crate) fn pointing(entry: SubmissionEntry, prp1: u64, prp2: u64) -> SubmissionEntry {
    SubmissionEntry { prp1: U64::new(prp1), prp2: U64::new(prp2), ..entry }
}
