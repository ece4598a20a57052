//! The host side of a test: owns the driver, advances time, creates queues, and transfers blocks.

use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::{RingMemory, SharedMemoryWords};
use headwater_nvme::controller::ControllerConfig;
use headwater_nvme::driver::{
    DmaBlock, DriverConfig, DriverPhase, HostMemory, IoQueue, NvmeDriver, QueueError, QueueSpec, RequestError,
};
use headwater_nvme::queue_pair::CommandCompletion;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use headwater_testkit::nvme_machine::{NvmeMachine, SharedMachine};

pub(crate) type TestDriver = NvmeDriver<SharedMachine, SharedMachine>;
pub(crate) type TestQueue = IoQueue<SharedMemoryWords, SharedMachine>;

/// Time of one turn.
pub(crate) const TURN: Nanos = Nanos::from_millis(50);

pub(crate) struct HostHarness {
    pub(crate) driver: TestDriver,
    pub(crate) machine: SharedMachine,
    pub(crate) now: Nanos,
}

impl HostHarness {
    pub(crate) fn new() -> Self {
        Self::with(ControllerConfig::pcie(1), config())
    }

    pub(crate) fn with(controller: ControllerConfig, config: DriverConfig) -> Self {
        let machine = NvmeMachine::with(controller);
        let driver = NvmeDriver::new(machine.clone(), machine.clone(), config);
        Self { driver, machine, now: Nanos::ZERO }
    }

    pub(crate) fn ready() -> Self {
        let mut host = Self::new();
        assert_eq!(host.start(), DriverPhase::Ready);
        host
    }

    /// Starts the driver and advances time until it is ready or dead.
    pub(crate) fn start(&mut self) -> DriverPhase {
        self.driver.start(self.now);
        self.settle()
    }

    /// Advances time until the driver is ready or dead; fails the test if it never is.
    pub(crate) fn settle(&mut self) -> DriverPhase {
        for _ in 0..100_000 {
            match self.turn() {
                DriverPhase::Starting | DriverPhase::Recovering => {}
                phase => return phase,
            }
        }
        panic!("recovery does not end: {:?}", self.driver);
    }

    /// Runs the machine, advances time and polls the driver.
    pub(crate) fn turn(&mut self) -> DriverPhase {
        self.machine.lock().work();
        self.now = self.now.after(TURN);
        self.machine.lock().now = self.now;
        let phase = self.driver.poll(self.now);
        self.machine.lock().work();
        phase
    }

    pub(crate) fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.turn();
        }
    }

    pub(crate) fn try_queue(
        &mut self,
        spec: QueueSpec,
    ) -> Result<Result<Box<TestQueue>, QueueError>, RequestError> {
        let ticket = self.driver.request_queue(spec, self.now)?;
        for _ in 0..1_000 {
            self.turn();
            if let Some(outcome) = self.driver.take_queue(ticket) {
                return Ok(outcome);
            }
        }
        panic!("the ticket has no outcome");
    }

    pub(crate) fn queue(&mut self, depth: u32) -> Box<TestQueue> {
        self.try_queue(spec(depth)).unwrap().unwrap()
    }

    pub(crate) fn buffer(&mut self, bytes: usize) -> DmaBlock<SharedMemoryWords> {
        self.machine.take(bytes, 4_096).unwrap()
    }

    /// Submits one command and returns its completion.
    pub(crate) fn execute<R: DeviceRegisters>(
        &mut self,
        queue: &mut IoQueue<SharedMemoryWords, R>,
        entry: SubmissionEntry,
        data: &[IovaRange],
    ) -> CommandCompletion {
        let command = queue.submit(entry, data, ()).unwrap();
        queue.ring();
        for _ in 0..1_000 {
            self.turn();
            if let Some(done) = queue.reap() {
                assert_eq!(done.command, command);
                queue.ring();
                return done;
            }
        }
        panic!("the command has no completion");
    }

    /// Runs turns and reports overdue commands to the driver, until the queue is idle or not live. Returns the
    /// completions.
    pub(crate) fn drain_completions<R: DeviceRegisters>(
        &mut self,
        queue: &mut IoQueue<SharedMemoryWords, R>,
    ) -> Vec<CommandCompletion> {
        let mut answers = Vec::new();
        for _ in 0..10_000 {
            self.turn();
            answers.extend(std::iter::from_fn(|| queue.reap()));
            queue.ring();
            let (driver, now) = (&mut self.driver, self.now);
            let id = queue.id();
            queue.check_timeouts(now, |overdue| handle_overdue(driver, id, overdue, now));
            if queue.in_flight() == 0 || queue.state() != headwater_nvme::driver::IoQueueState::Live {
                return answers;
            }
        }
        panic!("some commands have no completions");
    }
}

/// Processes an overdue command as an owner does.
pub(crate) fn handle_overdue(
    driver: &mut TestDriver,
    queue: u16,
    overdue: headwater_nvme::driver::OverdueCommand,
    now: Nanos,
) {
    use headwater_nvme::driver::{OverdueCommand, ResetCause};
    match overdue {
        OverdueCommand::Abort(command) => drop(driver.abort(queue, command, now)),
        OverdueCommand::Stuck(command) => {
            driver.reset_for(ResetCause::CommandTimeout { queue, command }, now);
        }
    }
}

pub(crate) fn config() -> DriverConfig {
    DriverConfig {
        io_queues: 4,
        command_timeout: Nanos::from_millis(4_000),
        admin_timeout: Nanos::from_millis(2_000),
        ..DriverConfig::default()
    }
}

pub(crate) fn spec(depth: u32) -> QueueSpec {
    QueueSpec { depth, vector: Some(1), priority: QueuePriority::Medium }
}

pub(crate) fn run(block: &DmaBlock<SharedMemoryWords>, from: u64, bytes: u32) -> IovaRange {
    IovaRange { start: Iova(block.address + from), bytes }
}

/// Builds a write or read of blocks of 512 bytes (namespace 3).
pub(crate) fn small(writes: bool, start: u64, bytes: u32) -> SubmissionEntry {
    let range = BlockRange { start, blocks: bytes / 512 };
    let make = if writes { nvm::write } else { nvm::read };
    make(3, range, 0, BlockOptions::NONE)
}

pub(crate) fn fill(block: &DmaBlock<SharedMemoryWords>, seed: u64) {
    for word in 0..block.words.words() {
        block.words.store_relaxed(word, seed ^ (word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
}

pub(crate) fn bytes(block: &DmaBlock<SharedMemoryWords>) -> Vec<u8> {
    (0..block.words.words()).flat_map(|word| block.words.load_relaxed(word).to_le_bytes()).collect()
}

pub(crate) fn succeeded(completion: CommandCompletion) {
    assert_eq!(completion.status, Status::SUCCESS);
}
