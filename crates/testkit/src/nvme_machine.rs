//! A simulated machine with one NVMe function: this crate's controller over memory that it may access, with injected
//! faults.
//!
//! Input: register accesses of a driver. Output: the controller's responses; written blocks. Invariant: the controller
//! accesses only allocated or lent memory, and none at all while its bus mastering is off.

mod admin;
mod blocks;
mod page;

use crate::fake_subsystem::FakeSubsystem;
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::Nanos;
use headwater_host::pinning::vfio::BusMastering;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::controller::{
    AdminQueueAddresses, AdminQueues, CommandToken, ControllerConfig, DeviceController, FetchedCommand,
    QueueArbiter, QueueId, QueueLimits, RegisterEffect,
};
use headwater_nvme::data_pointer::{DataRange, HostTransfer, PageBytes, data_ranges};
use headwater_nvme::driver::{DmaBlock, HostMemory, PciFunction, PciFunctionError, RegistersFile};
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use page::{DoorbellPage, RungDoorbell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MEMORY_BYTES: usize = 96 << 20;
/// The bus address of the memory.
pub const MEMORY_AT: u64 = 0x4000_0000;
const BAR_BYTES: usize = 0x4000;
const DOORBELLS: usize = 0x1000;

/// The injected faults of the function.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the faults are independent and can be combined")]
pub struct InjectedFaults {
    /// The device is removed.
    pub removed: bool,
    /// CSTS.CFS.
    pub fatal: bool,
    /// It fetches no commands.
    pub unresponsive: bool,
    /// It fetches I/O commands and completes none, until they are aborted.
    pub holds_commands: bool,
    /// It completes no Abort.
    pub ignores_aborts: bool,
    /// I/O commands that are executed and whose completions are not posted.
    pub lost_completions: u32,
    /// CSTS.RDY stays 1 after CC.EN is cleared.
    pub stuck_ready: bool,
    /// CSTS.RDY stays 0.
    pub never_ready: bool,
    /// Function reset fails.
    pub reset_fails: bool,
    /// Changes of bus mastering fail.
    pub mastering_fails: bool,
    /// Admin opcodes that fail, with their status.
    pub refused_opcodes: BTreeMap<u8, Status>,
    /// NSIDs whose reads and writes fail.
    pub failing_namespaces: BTreeSet<u32>,
}

/// The machine: one function, its controller, and the memory that it may access.
pub struct NvmeMachine {
    /// Injected faults.
    pub faults: InjectedFaults,
    /// The subsystem behind the controller.
    pub subsystem: FakeSubsystem,
    /// The controller under test.
    pub controller: DeviceController,
    /// Its queues.
    pub arbiter: QueueArbiter<SharedMemoryWords>,
    /// The bytes of each block namespace, by NSID.
    pub blocks: BTreeMap<u32, Vec<u8>>,
    /// Virtual time.
    pub now: Nanos,
    /// True while bus mastering is on.
    pub mastering: bool,
    /// Function resets so far.
    pub function_resets: u32,
    /// The memory that the controller reaches, from [`MEMORY_AT`] on.
    pub memory: SharedMemory,
    taken: usize,
    /// Lent memory of other processes that the controller reaches, by the bus address of its first byte.
    pub lent: BTreeMap<u64, SharedMemory>,
    /// True if it runs at every register access, and not only on a call of [`work`](Self::work).
    pub is_awake: bool,
    /// The receivers of interrupts, by vector.
    pub interrupt_receivers: BTreeMap<u16, WakeDescriptor>,
    /// Most bytes that the driver may allocate.
    pub memory_max: usize,
    events: Vec<CommandToken>,
    deletions: Vec<(QueueId, CommandToken)>,
    /// Commands that were fetched and are held back.
    pub held: Vec<FetchedCommand>,
    /// The doorbells as a process that maps BAR0 sees them.
    page: DoorbellPage,
}

/// A handle to the machine, shared by its driver, its memory and the test.
#[derive(Clone)]
pub struct SharedMachine(Arc<Mutex<NvmeMachine>>);

impl SharedMachine {
    /// Locks the machine; a panic of an earlier holder is ignored.
    pub fn lock(&self) -> MutexGuard<'_, NvmeMachine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for NvmeMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NvmeMachine")
    }
}

impl fmt::Debug for SharedMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedMachine")
    }
}

impl NvmeMachine {
    /// Creates a machine whose controller has this configuration.
    ///
    /// # Panics
    /// The configuration has no queue slots, or there is no memory for the machine.
    #[must_use]
    pub fn with(config: ControllerConfig) -> SharedMachine {
        let limits = QueueLimits {
            submission_queues: config.io_queues_max,
            completion_queues: config.io_queues_max,
            slots: QueueSlots::new(config.queue_slots_max).unwrap(),
            vectors: config.interrupt_vectors,
        };
        let blocks = BTreeMap::from([(2, vec![0; 8 << 20]), (3, vec![0; 8 << 20])]);
        SharedMachine(Arc::new(Mutex::new(Self {
            faults: InjectedFaults::default(),
            subsystem: FakeSubsystem::new(),
            controller: DeviceController::new(config),
            arbiter: QueueArbiter::for_host(limits),
            blocks,
            now: Nanos::ZERO,
            mastering: false,
            function_resets: 0,
            memory: SharedMemory::anonymous(MEMORY_BYTES).unwrap(),
            taken: 0,
            lent: BTreeMap::new(),
            is_awake: false,
            interrupt_receivers: BTreeMap::new(),
            memory_max: MEMORY_BYTES,
            events: Vec::new(),
            deletions: Vec::new(),
            held: Vec::new(),
            page: DoorbellPage::new(BAR_BYTES),
        })))
    }

    /// Returns the offset of an address in the memory; validates every access.
    fn memory_offset(&self, at: u64, bytes: usize) -> Option<usize> {
        assert!(self.mastering, "the controller accesses memory while its bus mastering is off");
        let start = usize::try_from(at.checked_sub(MEMORY_AT)?).ok()?;
        (start.checked_add(bytes)? <= self.taken).then_some(start)
    }

    /// Returns the memory at an address, the machine's or lent, and the offset in it.
    fn memory_at(&self, at: u64, bytes: usize) -> Option<(&SharedMemory, usize)> {
        let lent = self.lent.range(..=at).next_back().and_then(|(start, memory)| {
            let offset = usize::try_from(at - start).ok()?;
            (offset.checked_add(bytes)? <= memory.bytes()).then_some((memory, offset))
        });
        lent.filter(|_| self.mastering).or_else(|| Some((&self.memory, self.memory_offset(at, bytes)?)))
    }

    fn ring_at(&self, base: u64, words: usize) -> Option<SharedMemoryWords> {
        let (memory, offset) = self.memory_at(base, words * 8)?;
        SharedMemoryWords::new(memory.clone(), offset, words).ok()
    }

    /// Copies bytes at a bus address into a slice.
    ///
    /// # Errors
    /// Data Transfer Error if the function may not access them.
    pub fn read_memory(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        let (memory, offset) = self.memory_at(at, into.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
        memory.copy_in(offset, into).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    /// Copies a slice to a bus address.
    ///
    /// # Errors
    /// Data Transfer Error if the function may not access it.
    pub fn write_memory(&self, at: u64, from: &[u8]) -> Result<(), Status> {
        let (memory, offset) = self.memory_at(at, from.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
        memory.copy_out(offset, from).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    fn ranges(&self, entry: &SubmissionEntry, transfer: HostTransfer) -> Result<Vec<IovaRange>, Status> {
        let mut found = Vec::new();
        let read = |at: Iova, into: &mut [u8]| self.read_memory(at.0, into);
        data_ranges(entry, transfer, PageBytes::MIN, read, &mut found)?;
        let memory = found.into_iter().filter_map(|range| match range {
            DataRange::Memory(range) => Some(range),
            DataRange::Discard(_) => None,
        });
        Ok(memory.collect())
    }

    fn write_register(&mut self, at: u32, value: u32) {
        match self.controller.write_register(at, 4, u64::from(value), self.now) {
            RegisterEffect::None | RegisterEffect::InterruptMask => {}
            RegisterEffect::Enable(_) if self.faults.never_ready => {}
            RegisterEffect::Enable(places) => match self.enable(&places) {
                Some(()) => self.controller.complete_enable(),
                None => self.controller.fail(),
            },
            RegisterEffect::Disable | RegisterEffect::SubsystemReset => {
                self.reset_queues();
                if !self.faults.stuck_ready {
                    self.controller.complete_disable();
                }
            }
            RegisterEffect::Shutdown(_) => self.controller.complete_shutdown(),
        }
    }

    fn enable(&mut self, places: &AdminQueueAddresses) -> Option<()> {
        self.arbiter.reset(self.controller.queue_arbitration());
        let submission_slots = QueueSlots::new(places.submission_slots).ok()?;
        let completion_slots = QueueSlots::new(places.completion_slots).ok()?;
        let pair = AdminQueues {
            submission: self.ring_at(places.submission_base, places.submission_slots as usize * 8)?,
            submission_slots,
            completion: self.ring_at(places.completion_base, places.completion_slots as usize * 2)?,
            completion_slots,
            vector: Some(0),
        };
        self.arbiter.create_admin_queues(pair).ok()
    }

    fn reset_queues(&mut self) {
        self.arbiter.reset(self.controller.queue_arbitration());
        let events = std::mem::take(&mut self.events);
        let deletions = std::mem::take(&mut self.deletions).into_iter().map(|(_, token)| token);
        let held = std::mem::take(&mut self.held).into_iter().map(|fetched| fetched.token);
        for token in events.into_iter().chain(deletions).chain(held).collect::<Vec<_>>() {
            self.arbiter.complete(token, 0, Status::SUCCESS);
        }
    }

    /// Runs the controller until it is idle.
    ///
    /// # Panics
    /// The controller breaks the protocol: it loses an event or a deletion, or its keep-alive timer expires.
    pub fn work(&mut self) {
        if self.faults.removed || self.faults.unresponsive || !self.controller.is_ready() || !self.mastering {
            return;
        }
        for rung in self.page.rung() {
            // A doorbell of a deleted queue has no effect.
            let _ = match rung {
                RungDoorbell::Tail(queue, tail) => self.arbiter.write_submission_doorbell(queue, tail),
                RungDoorbell::Head(queue, head) => self.arbiter.write_completion_doorbell(queue, head),
            };
        }
        while let Some(fetched) = self.arbiter.fetch() {
            if fetched.token.queue() == QueueId::ADMIN {
                self.admin(fetched);
            } else if self.faults.holds_commands {
                self.held.push(fetched);
            } else {
                self.execute_io(fetched);
            }
        }
        let vitality = self.controller.poll(&self.subsystem, self.now);
        assert_eq!(vitality, headwater_nvme::controller::admin::KeepAliveStatus::Alive);
        while let Some(answer) = self.controller.take_async_event() {
            let at = self.events.iter().position(|token| token.command_id() == answer.command_id).unwrap();
            let token = self.events.swap_remove(at);
            self.arbiter.complete(token, answer.result, answer.status);
        }
        let bells = &self.interrupt_receivers;
        self.arbiter.fire_interrupts(self.now, |vector| {
            if let Some(bell) = bells.get(&vector) {
                bell.wake().unwrap();
            }
        });
        while let Some(queue) = self.arbiter.next_deleted() {
            let at = self.deletions.iter().position(|(deleted, _)| *deleted == queue).unwrap();
            let (_, token) = self.deletions.swap_remove(at);
            self.arbiter.complete(token, 0, Status::SUCCESS);
        }
    }

    /// Executes the held commands in reverse order.
    pub fn complete_held(&mut self) {
        self.faults.holds_commands = false;
        for held in std::mem::take(&mut self.held).into_iter().rev() {
            self.execute_io(held);
        }
    }

    fn execute_io(&mut self, fetched: FetchedCommand) {
        let status = self.execute_block(&fetched.entry).err().unwrap_or(Status::SUCCESS);
        if self.faults.lost_completions > 0 {
            self.faults.lost_completions -= 1;
            // No completion is posted; the command ends with the next reset.
            return self.held.push(fetched);
        }
        self.arbiter.complete(fetched.token, 0, status);
    }
}

impl Drop for NvmeMachine {
    fn drop(&mut self) {
        self.reset_queues();
    }
}

impl DeviceRegisters for SharedMachine {
    fn bytes(&self) -> usize {
        BAR_BYTES
    }

    fn load32(&self, at: usize) -> u32 {
        let mut machine = self.lock();
        if machine.faults.removed {
            return u32::MAX;
        }
        if machine.is_awake {
            machine.work();
        }
        let value = machine.controller.read_register(u32::try_from(at).unwrap(), 4);
        let value = u32::try_from(value).unwrap();
        if at == 0x1C && machine.faults.fatal { value | 2 } else { value }
    }

    fn store32(&self, at: usize, value: u32) {
        let mut machine = self.lock();
        if machine.faults.removed {
            return;
        }
        if at < DOORBELLS {
            return machine.write_register(u32::try_from(at).unwrap(), value);
        }
        let doorbell = (at - DOORBELLS) / 4;
        let queue = QueueId(u16::try_from(doorbell / 2).unwrap());
        if machine.controller.is_ready() {
            let rung = match doorbell % 2 {
                0 => machine.arbiter.write_submission_doorbell(queue, value),
                _ => machine.arbiter.write_completion_doorbell(queue, value),
            };
            rung.unwrap_or_else(|error| panic!("the driver rang {value} at {at:#x}: {error}"));
            if machine.is_awake {
                machine.work();
            }
        }
    }

    fn store32_release(&self, at: usize, value: u32) {
        self.store32(at, value);
    }
}

impl PciFunction for SharedMachine {
    type Registers = Self;

    fn registers(&self) -> &Self {
        self
    }

    fn registers_file(&self) -> Result<RegistersFile, PciFunctionError> {
        Ok(RegistersFile { file: self.lock().page.file(), offset: 0 })
    }

    fn set_mastering(&mut self, mastering: BusMastering) -> Result<(), PciFunctionError> {
        let mut machine = self.lock();
        if machine.faults.mastering_fails {
            return Err(PciFunctionError { errno: 5 });
        }
        machine.mastering = mastering == BusMastering::On && !machine.faults.removed;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), PciFunctionError> {
        let mut machine = self.lock();
        if machine.faults.reset_fails {
            return Err(PciFunctionError { errno: 95 });
        }
        machine.function_resets += 1;
        machine.mastering = false;
        machine.reset_queues();
        let config = *machine.controller.config();
        machine.controller = DeviceController::new(config);
        Ok(())
    }
}

impl HostMemory for SharedMachine {
    type Words = SharedMemoryWords;

    fn take(&mut self, bytes: usize, align: usize) -> Option<DmaBlock<SharedMemoryWords>> {
        let mut machine = self.lock();
        let start = machine.taken.checked_next_multiple_of(align)?;
        let bytes = bytes.checked_next_multiple_of(4_096)?;
        if start + bytes > machine.memory_max {
            return None;
        }
        // The content is arbitrary: fresh memory must not look like zeroes.
        machine.memory.copy_out(start, &vec![0xA5; bytes]).ok()?;
        machine.taken = start + bytes;
        let words = SharedMemoryWords::new(machine.memory.clone(), start, bytes / 8).ok()?;
        Some(DmaBlock { words, address: MEMORY_AT + u64::try_from(start).ok()? })
    }
}
