//! Tests the driver with a controller opened through VFIO: prints its properties, checks that data arrives at the right
//! blocks, and checks recovery from a reset.
//!
//! Input: the address of an NVMe function that is bound to vfio-pci. Output: the observations, and an error for the
//! first wrong byte.
//!
//! `vfio_nvme 0000:00:04.0 write|verify|reset` works on the first 24 MiB of every block namespace;
//! `vfio_nvme pattern NAMESPACE` writes the expected content to its output, for comparison by other programs.
#![expect(clippy::print_stdout, reason = "this program prints its observations")]

use headwater_dma::iova::{Iova, IovaRange};
use headwater_dma::pool::{Pool, PoolConfig, VfioPinner};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::vfio::{PciClass, VfioContainer};
use headwater_host::registers::MappedRegisters;
use headwater_host::ring_memory::{RingMemory, SharedMemoryWords};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{
    DmaBlock, DriverConfig, DriverPhase, HostMemory, IoQueueState, NamespaceKind, NvmeDriver, PoolMemory,
    QueueSpec, SglUse, VfioFunction,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange};
use headwater_nvme::spec::priority::QueuePriority;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

type ExampleResult<T> = Result<T, Box<dyn Error>>;
type VfioDriver = NvmeDriver<VfioFunction, PoolMemory>;
type VfioQueue = headwater_nvme::driver::IoQueue<SharedMemoryWords, MappedRegisters>;

/// Bytes of each namespace in use.
const AREA: u64 = 24 << 20;
const QUEUES: u16 = 4;
const DEPTH: u32 = 31;
const TIMEOUT: Nanos = Nanos::from_millis(30_000);
/// Bytes of a command, in turn, and offset of its data in a page: one PRP entry, three, lists, and a list that fills
/// its page to the last slot (QEMU transfers no more in one command).
const LENGTHS: [(u64, u64); 6] =
    [(4_096, 0), (8_192, 512), (65_536, 1_024), (131_072, 3_584), (2 << 20, 2_048), (1 << 20, 4)];

/// Returns the expected 64-bit word at a position of a namespace.
fn word(namespace: u32, at: u64) -> u64 {
    (at ^ u64::from(namespace) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

struct VfioHarness {
    driver: VfioDriver,
    memory: PoolMemory,
    clock: Clock,
    bells: Vec<WakeDescriptor>,
}

impl VfioHarness {
    fn open(name: &str) -> ExampleResult<Self> {
        let container = Arc::new(VfioContainer::open(&[name])?);
        let device = Arc::new(container.device(name)?);
        if device.class()? != Some(PciClass::NVME) {
            return Err(format!("{name} is not an NVMe controller: {:?}", device.class()?).into());
        }
        let config = PoolConfig {
            chunk: 8 << 20,
            cap: 128 << 20,
            pinner: Arc::new(VfioPinner::new(Arc::clone(&container))),
            ..PoolConfig::default()
        };
        let memory = PoolMemory::new(Pool::open(config)?);
        let vectors = device.vector_count()?.min(u32::from(QUEUES) + 1);
        device.allocate_vectors(vectors)?;
        let bells = (0..vectors).map(|_| WakeDescriptor::new()).collect::<Result<Vec<_>, _>>()?;
        for (vector, bell) in (0_u32..).zip(&bells) {
            device.connect_vector(vector, Some(bell))?;
        }
        let config = DriverConfig { io_queues: QUEUES, sgl: SglUse::Never, ..DriverConfig::default() };
        let driver = NvmeDriver::new(VfioFunction::new(device)?, memory.clone(), config);
        let mut machine = Self { driver, memory, clock: Clock::start(), bells };
        machine.driver.start(machine.clock.now());
        machine.until_ready()?;
        Ok(machine)
    }

    fn until_ready(&mut self) -> ExampleResult<()> {
        let start = self.clock.now();
        loop {
            let now = self.clock.now();
            match self.driver.poll(now) {
                DriverPhase::Ready => return Ok(()),
                DriverPhase::Dead => {
                    return Err(format!("the controller is dead: {:?}", self.driver.death_cause()).into());
                }
                _ if now.since(start) > TIMEOUT => return Err("the controller is not ready in time".into()),
                _ => Clock::sleep(Nanos::from_micros(100)),
            }
        }
    }

    fn queue(&mut self, vector: u16) -> ExampleResult<VfioQueue> {
        let spec = QueueSpec { depth: DEPTH, vector: Some(vector), priority: QueuePriority::Medium };
        let ticket = self.driver.request_queue(spec, self.clock.now())?;
        loop {
            self.driver.poll(self.clock.now());
            if let Some(queue) = self.driver.take_queue(ticket) {
                return Ok(*queue?);
            }
        }
    }

    fn buffer(&mut self, bytes: u64) -> ExampleResult<DmaBlock<SharedMemoryWords>> {
        self.memory.take(usize::try_from(bytes)?, 4_096).ok_or_else(|| "no memory for a buffer".into())
    }

    /// Transfers bytes of a namespace by one command of a queue, and sleeps until its interrupt.
    fn execute(
        &mut self,
        queue: &mut VfioQueue,
        vector: u16,
        entry: SubmissionEntry,
        at: u64,
        bytes: u64,
    ) -> ExampleResult<()> {
        let command = queue
            .submit(entry, &[IovaRange { start: Iova(at), bytes: u32::try_from(bytes)? }], ())
            .map_err(|(fault, ())| fault)?;
        queue.ring();
        let start = self.clock.now();
        loop {
            if let Some(done) = queue.reap() {
                queue.ring();
                return match done.status {
                    status if status.is_success() && done.command == command => Ok(()),
                    status => Err(format!("{command:?} of {bytes} bytes: {status}").into()),
                };
            }
            if self.clock.now().since(start) > TIMEOUT {
                return Err(format!("{command:?} of {bytes} bytes timed out").into());
            }
            if let Some(bell) = self.bells.get(usize::from(vector)) {
                bell.wait(Some(Nanos::from_millis(1_000)))?;
            }
        }
    }

    /// Writes or verifies the area of a namespace with commands of varying length, on all queues in turn.
    fn process_area(
        &mut self,
        namespace: u32,
        shift: u32,
        queues: &mut [VfioQueue],
        writes: bool,
    ) -> ExampleResult<()> {
        let (mut at, mut round) = (0, 0);
        while at < AREA {
            let (length, offset) = LENGTHS[round % LENGTHS.len()];
            let bytes = length.min(AREA - at);
            let buffer = self.buffer(bytes + 4_096)?;
            let first = usize::try_from(offset / 4 * 4)?;
            let range = BlockRange { start: at >> shift, blocks: u32::try_from(bytes >> shift)? };
            let address = buffer.address + offset;
            let lane = round % queues.len();
            let entry = if writes {
                store(&buffer, first, namespace, at, bytes);
                nvm::write(namespace, range, 0, BlockOptions::NONE)
            } else {
                nvm::read(namespace, range, 0, BlockOptions::NONE)
            };
            let vector = u16::try_from(lane)? + 1;
            self.execute(&mut queues[lane], vector, entry, address, bytes)?;
            if !writes {
                compare(&buffer, first, namespace, at, bytes)?;
            }
            at += bytes;
            round += 1;
        }
        println!("namespace {namespace}: {AREA} bytes {}", if writes { "written" } else { "verified" });
        Ok(())
    }

    /// Fills every queue with reads and resets the controller while they are in flight.
    fn reset(&mut self, namespace: u32, shift: u32, mut queues: Vec<VfioQueue>) -> ExampleResult<()> {
        let buffer = self.buffer(64 * 4_096)?;
        let mut submitted = 0;
        for queue in &mut queues {
            for slot in 0..queue.depth() {
                let range = BlockRange { start: u64::from(slot) * 8, blocks: 4_096 >> shift };
                let start = Iova(buffer.address + u64::from(slot) * 4_096);
                let entry = nvm::read(namespace, range, 0, BlockOptions::NONE);
                queue.submit(entry, &[IovaRange { start, bytes: 4_096 }], ()).map_err(|(fault, ())| fault)?;
                submitted += 1;
            }
            queue.ring();
        }
        self.driver.reset(self.clock.now());
        self.until_ready()?;
        let (mut answered, mut lost) = (0, 0);
        for mut queue in queues {
            while queue.reap().is_some() {
                answered += 1;
            }
            if queue.state() != IoQueueState::Lost {
                return Err("a queue is still live after a reset".into());
            }
            lost += queue.abandon().map_err(|_| "a lost queue cannot be abandoned")?.len();
        }
        if answered + lost != submitted {
            return Err(format!("{submitted} commands, but {answered} completed and {lost} lost").into());
        }
        println!("reset with {submitted} commands in flight: {answered} completed, {lost} lost");
        Ok(())
    }

    fn close(mut self) -> ExampleResult<()> {
        self.driver.close(self.clock.now());
        while self.driver.poll(self.clock.now()) != DriverPhase::Dead {
            Clock::sleep(Nanos::from_micros(100));
        }
        println!("closed: {:?}", self.driver.death_cause());
        Ok(())
    }
}

fn words(first: usize, bytes: u64) -> impl Iterator<Item = (usize, u64)> {
    // In units of 4 bytes, so that data may begin in the middle of a word.
    (first / 4..).zip((0..bytes).step_by(4))
}

fn half(namespace: u32, at: u64) -> u32 {
    let [a, b, c, d, e, f, g, h] = word(namespace, at & !7).to_le_bytes();
    u32::from_le_bytes(if at.is_multiple_of(8) { [a, b, c, d] } else { [e, f, g, h] })
}

fn store(buffer: &DmaBlock<SharedMemoryWords>, first: usize, namespace: u32, at: u64, bytes: u64) {
    for (cell, offset) in words(first, bytes) {
        buffer.words.store_cell_relaxed(cell, half(namespace, at + offset));
    }
}

fn compare(
    buffer: &DmaBlock<SharedMemoryWords>,
    first: usize,
    namespace: u32,
    at: u64,
    bytes: u64,
) -> ExampleResult<()> {
    for (cell, offset) in words(first, bytes) {
        let found = buffer.words.load_cell_acquire(cell);
        if found != half(namespace, at + offset) {
            return Err(format!("namespace {namespace}, byte {}: {found:#010x}", at + offset).into());
        }
    }
    Ok(())
}

fn pattern(namespace: u32) -> ExampleResult<()> {
    let mut out = std::io::stdout().lock();
    for at in (0..AREA).step_by(4_096) {
        let page: Vec<u8> =
            (at..at + 4_096).step_by(8).flat_map(|at| word(namespace, at).to_le_bytes()).collect();
        out.write_all(&page)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> ExampleResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, second] = &arguments[..] else {
        return Err("usage: vfio_nvme DEVICE write|verify|reset, or vfio_nvme pattern NAMESPACE".into());
    };
    if first == "pattern" {
        return pattern(second.parse()?);
    }
    let mut machine = VfioHarness::open(first)?;
    println!("{:?}", machine.driver.info().ok_or("a ready controller has facts")?);
    let namespaces = machine.driver.namespaces().to_vec();
    let mut queues = (1..=QUEUES).map(|vector| machine.queue(vector)).collect::<ExampleResult<Vec<_>>>()?;
    for namespace in namespaces {
        println!("{namespace:?}");
        let NamespaceKind::Block { block_shift, .. } = namespace.kind else { continue };
        match second.as_str() {
            "reset" => {
                machine.reset(namespace.id, block_shift, std::mem::take(&mut queues))?;
                queues =
                    (1..=QUEUES).map(|vector| machine.queue(vector)).collect::<ExampleResult<Vec<_>>>()?;
                machine.process_area(namespace.id, block_shift, &mut queues, false)?;
            }
            what => machine.process_area(namespace.id, block_shift, &mut queues, what == "write")?,
        }
    }
    machine.close()
}
