//! The NVMe driver against a hostile controller: for any values of registers and any writes into its memory, nothing
//! panics, no doorbell outside the registers is rung, bring-up and recovery end, and each command is answered once.
//!
//! Input: bytes that are taken one after the other: each chooses the controller's next action, or an operand of it. A
//! controller that mostly behaves correctly gets far enough to reach deep states.

use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::Nanos;
use headwater_host::pinning::vfio::BusMastering;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::{RingMemory, SharedMemoryWords};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::driver::{
    DmaBlock, DriverConfig, DriverPhase, HostMemory, IoQueue, IoQueueState, NvmeDriver, OverdueCommand,
    PciFunction, PciFunctionError, QueueSpec, RequestTicket, ResetCause,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::priority::QueuePriority;
use std::cell::RefCell;
use std::rc::Rc;

const BAR_BYTES: usize = 0x2000;
const MEMORY_WORDS: usize = 1 << 19;
const MEMORY_AT: u64 = 0x10_0000;
const STEPS_MAX: u32 = 2_000;
const DEPTH: u32 = 3;
/// Registers: CC, CSTS, ASQ, ACQ.
const CC: usize = 0x14;
const CSTS: usize = 0x1C;
const ASQ: usize = 0x28;
const ACQ: usize = 0x30;

/// The controller: registers with any values, and rings that it writes at any time.
struct HostileController {
    registers: [u32; 0x40 / 4],
    region: SharedMemory,
    memory: SharedMemoryWords,
    taken: usize,
    /// The rest of the input, the next byte last.
    bytes: Vec<u8>,
    /// Rung tails by queue; the next field is how far each was answered.
    tails: [u32; 4],
    answered: [u32; 4],
    posted: [u32; 4],
    bases: [(u64, u64, u32); 4],
    unstoppable: bool,
}

/// The PCI function and the memory of the hostile controller, as the driver accesses them.
#[derive(Clone)]
struct HostileFunction(Rc<RefCell<HostileController>>);

fn low16(value: u64) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}

impl HostileController {
    fn byte(&mut self) -> u8 {
        self.bytes.pop().unwrap_or(0)
    }

    fn word_at(&self, address: u64) -> Option<usize> {
        let word = usize::try_from(address.checked_sub(MEMORY_AT)? / 8).ok()?;
        (word + 8 <= MEMORY_WORDS).then_some(word)
    }

    /// Completes the next command of a queue, mostly correctly.
    fn answer(&mut self, queue: usize) {
        let (submissions, completions, slots) = self.bases[queue];
        let wrong = self.byte();
        if slots < 2 || (self.answered[queue] == self.tails[queue] && wrong & 1 == 0) {
            return;
        }
        let Some(entry) = self.word_at(submissions + u64::from(self.answered[queue] % slots) * 64) else {
            return;
        };
        let words: [u64; 8] = std::array::from_fn(|word| self.memory.load_relaxed(entry + word));
        let mut command = low16(words[0] >> 16);
        self.answered[queue] = (self.answered[queue] + 1) % slots;
        let mut head = low16(u64::from(self.answered[queue]));
        if queue == 0 {
            self.admin(&words);
        }
        let mut status = 0_u64;
        let mut of = low16(queue as u64);
        if wrong & 0x10 != 0 {
            match wrong & 0b110 {
                0b000 => command = command.wrapping_add(u16::from(self.byte()) << 6),
                0b010 => head = head.wrapping_add(u16::from(self.byte())),
                0b100 => status = u64::from(self.byte()) << 1,
                _ => of = u16::from(self.byte()),
            }
        }
        let slot = self.posted[queue] % slots;
        let phase =
            u64::from((self.posted[queue] / slots).is_multiple_of(2)) ^ u64::from(wrong & 0x28 == 0x28);
        self.posted[queue] = (self.posted[queue] + 1) % (2 * slots);
        let result = if wrong & 0x40 == 0 { 0x0003_0003 } else { u64::from(self.byte()) * 0x0101_0101 };
        let Some(word) = self.word_at(completions + u64::from(slot) * 16) else { return };
        let second =
            u64::from(head) | u64::from(of) << 16 | u64::from(command) << 32 | (status | phase) << 48;
        self.memory.store_relaxed(word, result);
        self.memory.store_release(word + 1, second);
    }

    /// Applies an admin command: creates queues, and fills pages.
    fn admin(&mut self, words: &[u64; 8]) {
        let (opcode, cdw10, prp) = (words[0] & 0xFF, words[5] & 0xFFFF_FFFF, words[3]);
        let queue = usize::from(low16(cdw10));
        let slots = u32::from(low16(cdw10 >> 16)) + 1;
        match opcode {
            0x05 if queue < 4 => {
                self.bases[queue].1 = prp;
                self.posted[queue] = 0;
            }
            0x01 if queue < 4 => {
                (self.bases[queue].0, self.bases[queue].2) = (prp, slots);
                (self.answered[queue], self.tails[queue]) = (0, 0);
            }
            0x06 | 0x02 => self.fill(prp, cdw10 & 0xFF),
            _ => {}
        }
    }

    /// Fills a page of an answer: plausible values, and bytes of the input over them.
    fn fill(&mut self, address: u64, view: u64) {
        let Some(first) = self.word_at(address).filter(|first| first + 512 <= MEMORY_WORDS) else { return };
        (first..first + 512).for_each(|word| self.memory.store_relaxed(word, 0));
        match view {
            0x00 => {
                self.memory.store_relaxed(first, 1_000);
                self.memory.store_relaxed(first + 16, 9 << 16);
            }
            0x01 => self.memory.store_relaxed(first + 64, 0x4466),
            0x02 => self.memory.store_relaxed(first, 0x2_0000_0001),
            _ => {}
        }
        for _ in 0..self.byte() % 8 {
            let word = usize::from(self.byte()) * 2 + usize::from(self.byte() & 1);
            let value = u64::from_le_bytes(std::array::from_fn(|_| self.byte()));
            self.memory.store_relaxed(first + word, value);
        }
    }

    fn step(&mut self) {
        match self.byte() {
            0 => self.registers[CSTS / 4] = u32::from(self.byte()),
            1 => self.registers.fill(u32::MAX),
            2 => self.registers[CSTS / 4] |= 2,
            3 => self.registers[0] = u32::from(self.byte()) << 8 | 0x0F01_0007,
            4 => {
                let word = usize::from(self.byte()) * 64 + usize::from(self.byte());
                let value = u64::from_le_bytes(std::array::from_fn(|_| self.byte()));
                self.memory.store_relaxed(word, value);
            }
            5 => self.unstoppable = !self.unstoppable,
            other => self.answer(usize::from(other) % 4 * usize::from(other > 0x60)),
        }
    }

    fn store(&mut self, at: usize, value: u32) {
        if let Some(register) = self.registers.get_mut(at / 4) {
            *register = value;
        }
        match at {
            CC if value & 1 == 1 => {
                let base = |at: usize| {
                    u64::from(self.registers[at / 4]) | u64::from(self.registers[at / 4 + 1]) << 32
                };
                self.bases = [(base(ASQ), base(ACQ), 32), (0, 0, 0), (0, 0, 0), (0, 0, 0)];
                (self.tails, self.answered, self.posted) = ([0; 4], [0; 4], [0; 4]);
                self.registers[CSTS / 4] = 1;
            }
            CC if !self.unstoppable => self.registers[CSTS / 4] = 0,
            0x1000.. if (at - 0x1000).is_multiple_of(8) && (at - 0x1000) / 8 < 4 => {
                self.tails[(at - 0x1000) / 8] = value;
            }
            _ => {}
        }
    }
}

impl DeviceRegisters for HostileFunction {
    fn bytes(&self) -> usize {
        BAR_BYTES
    }
    fn load32(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4) && at < BAR_BYTES, "a register outside the BAR: {at:#x}");
        self.0.borrow().registers.get(at / 4).copied().unwrap_or(0)
    }
    fn store32(&self, at: usize, value: u32) {
        assert!(at.is_multiple_of(4) && at < BAR_BYTES, "a register outside the BAR: {at:#x}");
        self.0.borrow_mut().store(at, value);
    }
    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }
}

impl PciFunction for HostileFunction {
    type Registers = Self;
    fn registers(&self) -> &Self {
        self
    }
    fn set_mastering(&mut self, _mastering: BusMastering) -> Result<(), PciFunctionError> {
        Ok(())
    }
    fn reset(&mut self) -> Result<(), PciFunctionError> {
        let mut hostile = self.0.borrow_mut();
        if hostile.byte() & 1 == 1 {
            return Err(PciFunctionError { errno: 5 });
        }
        hostile.registers[CSTS / 4] = 0;
        Ok(())
    }
}

impl HostMemory for HostileFunction {
    type Words = SharedMemoryWords;
    fn take(&mut self, bytes: usize, align: usize) -> Option<DmaBlock<SharedMemoryWords>> {
        let mut hostile = self.0.borrow_mut();
        let start = hostile.taken.checked_next_multiple_of(align)?;
        if start + bytes > MEMORY_WORDS * 8 {
            return None;
        }
        hostile.taken = start + bytes;
        let words = SharedMemoryWords::new(hostile.region.clone(), start, bytes / 8).ok()?;
        Some(DmaBlock { words, address: MEMORY_AT + u64::try_from(start).ok()? })
    }
}

/// A queue, as the owner of the driver holds it.
struct LiveQueue {
    queue: Box<IoQueue<SharedMemoryWords, HostileFunction>>,
    in_flight: u32,
}

/// The owner of the driver: it requests queues and transfers data as long as there is a controller.
struct DriverOwner {
    driver: NvmeDriver<HostileFunction, HostileFunction>,
    live_queues: Vec<LiveQueue>,
    making: Option<RequestTicket>,
    now: Nanos,
    accepted: u64,
    answered: u64,
}

impl DriverOwner {
    fn turn(&mut self) -> DriverPhase {
        self.now = self.now.after(Nanos::from_millis(100));
        let phase = self.driver.poll(self.now);
        if let Some(ticket) = self.making
            && let Some(made) = self.driver.take_queue(ticket)
        {
            self.making = None;
            self.live_queues.extend(made.ok().map(|queue| LiveQueue { queue, in_flight: 0 }));
        }
        if phase == DriverPhase::Ready && self.making.is_none() && self.live_queues.len() < 2 {
            let spec = QueueSpec { depth: DEPTH, vector: Some(1), priority: QueuePriority::Medium };
            self.making = self.driver.request_queue(spec, self.now).ok();
        }
        for mut live in std::mem::take(&mut self.live_queues) {
            self.work(&mut live);
            match live.queue.state() {
                IoQueueState::Live | IoQueueState::Waiting => self.live_queues.push(live),
                IoQueueState::Lost | IoQueueState::Dead => {
                    let lost = live.queue.abandon().map(|slots| slots.len());
                    let lost = lost.unwrap_or_else(|_| panic!("a lost queue cannot be abandoned"));
                    assert_eq!(lost, live.in_flight as usize, "each command is answered or lost");
                    self.answered += lost as u64;
                }
            }
        }
        phase
    }

    fn work(&mut self, live: &mut LiveQueue) {
        let data = [IovaRange { start: Iova(MEMORY_AT + 512), bytes: 16_384 }];
        let entry = SubmissionEntry { opcode: 2, ..SubmissionEntry::default() };
        while live.queue.submit(entry, &data, ()).is_ok() {
            live.in_flight += 1;
            self.accepted += 1;
        }
        live.queue.ring();
        while let Some(done) = live.queue.reap() {
            assert!(done.slot < DEPTH as usize, "a completion without a slot");
            assert!(live.in_flight > 0, "more completions than commands");
            live.in_flight -= 1;
            self.answered += 1;
        }
        let (driver, now, queue) = (&mut self.driver, self.now, live.queue.id());
        live.queue.check_timeouts(now, |overdue| match overdue {
            OverdueCommand::Abort(command) => drop(driver.abort(queue, command, now)),
            OverdueCommand::Stuck(command) => {
                driver.reset_for(ResetCause::CommandTimeout { queue, command }, now);
            }
        });
        if let Some(fault) = live.queue.fault() {
            driver.reset_for(ResetCause::QueueViolation { queue, fault }, now);
        }
    }
}

/// Runs the driver against a hostile controller until it is closed.
///
/// # Panics
/// If a register outside the BAR is accessed, if closing does not end, or if a command is answered twice or never.
pub fn body(bytes: &[u8]) {
    let Ok(region) = SharedMemory::anonymous(MEMORY_WORDS * 8) else { return };
    let Ok(memory) = SharedMemoryWords::new(region.clone(), 0, MEMORY_WORDS) else { return };
    let mut registers = [0; 0x40 / 4];
    registers[..3].copy_from_slice(&[0x0F01_0007, 0x20, 0x0001_0400]);
    let hostile = HostileFunction(Rc::new(RefCell::new(HostileController {
        registers,
        region,
        memory,
        taken: 1 << 16,
        bytes: bytes.iter().rev().copied().collect(),
        tails: [0; 4],
        answered: [0; 4],
        posted: [0; 4],
        bases: [(0, 0, 0); 4],
        unstoppable: false,
    })));
    let config = DriverConfig {
        io_queues: 3,
        command_timeout: Nanos::from_millis(2_000),
        admin_timeout: Nanos::from_millis(1_000),
        transfer_bytes_max: 65_536,
        ..DriverConfig::default()
    };
    let driver = NvmeDriver::new(hostile.clone(), hostile.clone(), config);
    let mut owner = DriverOwner {
        driver,
        live_queues: Vec::new(),
        making: None,
        now: Nanos::ZERO,
        accepted: 0,
        answered: 0,
    };
    owner.driver.start(owner.now);
    for _ in 0..STEPS_MAX {
        if hostile.0.borrow().bytes.is_empty() {
            break;
        }
        hostile.0.borrow_mut().step();
        owner.turn();
        while owner.driver.take_notice().is_some() {}
    }
    owner.driver.close(owner.now);
    let ended = (0..STEPS_MAX).any(|_| owner.turn() == DriverPhase::Dead);
    assert!(ended, "closing does not end: {:?}", owner.driver);
    owner.turn();
    assert_eq!((owner.live_queues.len(), owner.answered), (0, owner.accepted));
}
