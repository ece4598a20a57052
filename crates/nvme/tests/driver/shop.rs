//! The host side of a test: owns the driver, advances time, creates queues, and transfers blocks.

use headwater_testkit::nvme_machine::{Machine, Shared};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::Nanos;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::{ForeignWords, RingMemory};
use headwater_nvme::controller::{ControllerConfig, Priority};
use headwater_nvme::driver::{
    Block, Controller, DriverConfig, HostMemory, IoQueue, Phase, QueueError, QueueSpec, RequestError,
};
use headwater_nvme::queue_pair::Completion;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::status::Status;

pub(crate) type Driver = Controller<Shared, Shared>;
pub(crate) type Queue = IoQueue<ForeignWords, Shared>;

/// Time of one turn.
pub(crate) const TURN: Nanos = Nanos::from_millis(50);

pub(crate) struct Shop {
    pub(crate) driver: Driver,
    pub(crate) machine: Shared,
    pub(crate) now: Nanos,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self::with(ControllerConfig::pcie(1), config())
    }

    pub(crate) fn with(controller: ControllerConfig, config: DriverConfig) -> Self {
        let machine = Machine::with(controller);
        let driver = Controller::new(machine.clone(), machine.clone(), config);
        Self { driver, machine, now: Nanos::ZERO }
    }

    pub(crate) fn ready() -> Self {
        let mut host = Self::new();
        assert_eq!(host.start(), Phase::Ready);
        host
    }

    /// Starts the driver and advances time until it is ready or dead.
    pub(crate) fn start(&mut self) -> Phase {
        self.driver.start(self.now);
        self.settle()
    }

    /// Advances time until the driver is ready or dead; fails the test if it never is.
    pub(crate) fn settle(&mut self) -> Phase {
        for _ in 0..100_000 {
            match self.turn() {
                Phase::Starting | Phase::Recovering => {}
                phase => return phase,
            }
        }
        panic!("recovery does not end: {:?}", self.driver);
    }

    /// Runs the machine, advances time and polls the driver.
    pub(crate) fn turn(&mut self) -> Phase {
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
    ) -> Result<Result<Box<Queue>, QueueError>, RequestError> {
        let ticket = self.driver.make_queue(spec, self.now)?;
        for _ in 0..1_000 {
            self.turn();
            if let Some(outcome) = self.driver.take_queue(ticket) {
                return Ok(outcome);
            }
        }
        panic!("the ticket has no outcome");
    }

    pub(crate) fn queue(&mut self, depth: u32) -> Box<Queue> {
        self.try_queue(spec(depth)).unwrap().unwrap()
    }

    pub(crate) fn buffer(&mut self, bytes: usize) -> Block<ForeignWords> {
        self.machine.take(bytes, 4_096).unwrap()
    }

    /// Submits one command and returns its completion.
    pub(crate) fn one<R: Registers>(
        &mut self,
        queue: &mut IoQueue<ForeignWords, R>,
        entry: SubmissionEntry,
        data: &[IovaRange],
    ) -> Completion {
        let command = queue.submit(entry, data).unwrap();
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
    pub(crate) fn answers<R: Registers>(&mut self, queue: &mut IoQueue<ForeignWords, R>) -> Vec<Completion> {
        let mut answers = Vec::new();
        for _ in 0..10_000 {
            self.turn();
            answers.extend(std::iter::from_fn(|| queue.reap()));
            queue.ring();
            let (driver, now) = (&mut self.driver, self.now);
            let id = queue.id();
            queue.watch(now, |overdue| tell(driver, id, overdue, now));
            if queue.in_flight() == 0 || queue.fate() != headwater_nvme::driver::Fate::Live {
                return answers;
            }
        }
        panic!("some commands have no completions");
    }
}

/// Processes an overdue command as an owner does.
pub(crate) fn tell(driver: &mut Driver, queue: u16, overdue: headwater_nvme::driver::Overdue, now: Nanos) {
    use headwater_nvme::driver::{Overdue, Trouble};
    match overdue {
        Overdue::Abort(command) => drop(driver.abort(queue, command, now)),
        Overdue::Stuck(command) => driver.report(Trouble::Stuck { queue, command }, now),
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
    QueueSpec { depth, vector: Some(1), priority: Priority::Medium }
}

pub(crate) fn run(block: &Block<ForeignWords>, from: u64, bytes: u32) -> IovaRange {
    IovaRange { start: Iova(block.address + from), bytes }
}

/// Builds a write or read of blocks of 512 bytes (namespace 3).
pub(crate) fn small(writes: bool, start: u64, bytes: u32) -> SubmissionEntry {
    let range = BlockRange { start, blocks: bytes / 512 };
    let make = if writes { nvm::write } else { nvm::read };
    make(3, range, 0, BlockOptions::NONE)
}

pub(crate) fn fill(block: &Block<ForeignWords>, seed: u64) {
    for word in 0..block.words.words() {
        block.words.store_relaxed(word, seed ^ (word as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
}

pub(crate) fn bytes(block: &Block<ForeignWords>) -> Vec<u8> {
    (0..block.words.words()).flat_map(|word| block.words.load_relaxed(word).to_le_bytes()).collect()
}

pub(crate) fn succeeded(completion: Completion) {
    assert_eq!(completion.status, Status::SUCCESS);
}
