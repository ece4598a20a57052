//! The test harness: a machine with a controller, the executor over it, and clients with their own rights, in virtual
//! time.

use headwater_dma::iova::{DeviceMapping, Iova};
use headwater_frontend::attach::executor::EntryExecutor as _;
use headwater_frontend::mediated::{
    HardwareDevice, InterruptEventfd as DeviceBell, LentQueues, MediatedExecutor, MemoryMapper,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_io::vfio::NoVectors;
use headwater_nvme::controller::{ControllerConfig, QueueId, QueueKind};
use headwater_nvme::driver::{DriverConfig, NvmeDriver};
use headwater_nvme::queue_pair::{CommandId, QueuePair, words_for};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::rights::{AccessLevel, ClientRights, NamespaceRights};
use headwater_ssd::nvme::rings::{ClientId, ClientWakeup};
use headwater_testkit::nvme_machine::{NvmeMachine, SharedMachine};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::little_endian::U64;

/// The namespace with blocks of 4,096 bytes.
pub(crate) const NAMESPACE: u32 = 2;
pub(crate) const BLOCK: usize = 4_096;
/// The address of its memory for each client: all use the same.
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 4 << 20;
/// The first address at which the controller maps memory lent to it.
const FIRST_MAPPING: u64 = 0x80_0000_0000;
/// The virtual time of one turn.
const TURN: Nanos = Nanos::from_millis(50);

pub(crate) type TestDevice = HardwareDevice<SharedMachine, SharedMachine>;
pub(crate) type TestExecutor = MediatedExecutor<SharedMachine, SharedMachine>;

/// A mapper that lends memory to the machine.
#[derive(Debug)]
pub(crate) struct TestMapper(pub(crate) SharedMachine);

/// A mapping of lent memory.
#[derive(Debug)]
struct LentMemoryMapping(SharedMachine, u64);

impl MemoryMapper for TestMapper {
    fn map(&self, region: &SharedMemory) -> Result<Box<dyn DeviceMapping>, String> {
        let mut machine = self.0.lock();
        let last = machine.lent.last_key_value();
        // A gap of one page, so that an access past the end finds no memory.
        let free = last.map_or(FIRST_MAPPING, |(at, memory)| at + memory.bytes() as u64 + 4_096);
        machine.lent.insert(free, region.clone());
        Ok(Box::new(LentMemoryMapping(self.0.clone(), free)))
    }
}

impl DeviceMapping for LentMemoryMapping {
    fn address(&self) -> u64 {
        self.1
    }
}

impl Drop for LentMemoryMapping {
    fn drop(&mut self) {
        self.0.lock().lent.remove(&self.1).unwrap();
    }
}

/// Creates a lender without vectors, for clients that drive no hardware queues.
pub(crate) fn no_queues() -> LentQueues {
    LentQueues::new(Box::new(NoVectors), [])
}

pub(crate) fn machine() -> SharedMachine {
    let machine = NvmeMachine::with(ControllerConfig::pcie(1));
    machine.lock().is_awake = true;
    machine
}

/// Creates a ready device over a machine without interrupts.
pub(crate) fn device(machine: &SharedMachine, command_timeout: Nanos) -> TestDevice {
    device_with(machine, command_timeout, None)
}

pub(crate) fn device_with(
    machine: &SharedMachine,
    command_timeout: Nanos,
    bell: Option<DeviceBell>,
) -> TestDevice {
    let config = DriverConfig {
        io_queues: 4,
        command_timeout,
        admin_timeout: Nanos::from_millis(2_000),
        ..DriverConfig::default()
    };
    let driver = NvmeDriver::new(machine.clone(), machine.clone(), config);
    let mut device = HardwareDevice::new(driver, &mut machine.clone(), bell).unwrap();
    device.start(&Clock::start()).unwrap();
    device
}

pub(crate) struct MediatedHarness {
    pub(crate) machine: SharedMachine,
    pub(crate) device: TestDevice,
    pub(crate) executor: TestExecutor,
    pub(crate) now: Nanos,
}

pub(crate) struct MediatedClient {
    pub(crate) id: ClientId,
    pub(crate) queue: QueueId,
    pub(crate) pair: QueuePair<SharedMemoryWords>,
    pub(crate) memory: SharedMemory,
}

/// The status of each completed command.
pub(crate) type StatusByCommand = BTreeMap<CommandId, Status>;

impl MediatedHarness {
    pub(crate) fn new() -> Self {
        let machine = machine();
        let device = device(&machine, Nanos::from_millis(4_000));
        let executor = MediatedExecutor::new(Box::new(TestMapper(machine.clone())), no_queues()).unwrap();
        Self { machine, device, executor, now: Nanos::from_millis(10_000) }
    }

    /// Creates a client with one queue, one region and access to `blocks`.
    pub(crate) fn client(&mut self, access: AccessLevel, blocks: Range<u64>, depth: u32) -> MediatedClient {
        let part = NamespaceRights { access, blocks: Some(blocks) };
        let number = u8::try_from(NAMESPACE).unwrap();
        let rights = ClientRights::none().with_namespace(NamespaceId(number), part);
        let id = self.executor.rings_mut().add_client_with(rights);
        let memory = SharedMemory::anonymous(MEMORY_BYTES).unwrap();
        self.executor.register(id, Iova(BASE), memory.clone()).unwrap();
        let words = words_for(depth).unwrap();
        let rings = SharedMemoryWords::new(SharedMemory::anonymous(words * 8).unwrap(), 0, words).unwrap();
        let (pair, end) = QueuePair::over(rings, depth).unwrap();
        let bell = ClientWakeup::Descriptor(WakeDescriptor::new().unwrap());
        let queue = self.executor.rings_mut().add_queue(id, end, QueueKind::Uio, bell).unwrap();
        MediatedClient { id, queue, pair, memory }
    }

    /// Runs one turn of the core loop and of the machine.
    pub(crate) fn turn(&mut self) -> bool {
        self.now = self.now.after(TURN);
        {
            let mut machine = self.machine.lock();
            machine.now = self.now;
            machine.work();
        }
        self.executor.poll(&mut self.device, self.now) | self.device.poll_controller(self.now)
    }

    pub(crate) fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Runs turns until `count` commands of a client are completed, each once.
    pub(crate) fn wait_completions(&mut self, client: &mut MediatedClient, count: usize) -> StatusByCommand {
        let mut answers = StatusByCommand::new();
        for _ in 0..10_000 {
            self.turn();
            while let Some(done) = client.pair.reap().unwrap() {
                assert!(answers.insert(done.command, done.status).is_none(), "a command completed twice");
            }
            let _ = client.pair.ring();
            if answers.len() >= count {
                // A further completion would be one too many.
                self.turns(5);
                assert_eq!(client.pair.reap().unwrap(), None);
                return answers;
            }
        }
        panic!("only {} of {count} commands completed", answers.len());
    }

    /// Runs one command until its completion.
    pub(crate) fn run_one(&mut self, client: &mut MediatedClient, entry: SubmissionEntry) -> Status {
        let command = client.submit(entry);
        self.wait_completions(client, 1)[&command]
    }

    /// Returns the number of regions mapped for the controller.
    pub(crate) fn mapped_regions(&self) -> usize {
        self.machine.lock().lent.len()
    }

    pub(crate) fn blocks(&self) -> Vec<u8> {
        self.machine.lock().blocks[&NAMESPACE].clone()
    }
}

impl MediatedClient {
    pub(crate) fn submit(&mut self, entry: SubmissionEntry) -> CommandId {
        let command = self.pair.submit(entry, ()).unwrap();
        let _ = self.pair.ring();
        command
    }
}

/// Returns a client's address of a byte of its memory.
pub(crate) fn at(offset: usize) -> u64 {
    BASE + offset as u64
}

/// Returns the entry with another data pointer.
pub(crate) fn pointing(entry: SubmissionEntry, prp1: u64, prp2: u64) -> SubmissionEntry {
    SubmissionEntry { prp1: U64::new(prp1), prp2: U64::new(prp2), ..entry }
}
