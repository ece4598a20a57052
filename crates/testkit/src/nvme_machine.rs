//! A simulated machine with one NVMe function: this crate's controller over memory that it may access, with injected
//! faults.
//!
//! Input: register accesses of a driver. Output: the controller's responses; written blocks. Invariant: the controller
//! accesses only allocated or lent memory, and none at all while its bus mastering is off.

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
    AdminCompletion, AdminData, AdminQueueAddresses, AdminQueues, AdminStep, ArbiterError, CommandToken,
    CompletionQueueSpec, ControllerConfig, DeviceController, FetchedCommand, QueueArbiter, QueueId,
    QueueKind, QueueLimits, RegisterEffect, SubmissionQueueSpec,
};
use headwater_nvme::data_pointer::{DataRange, HostTransfer, PageBytes, data_ranges};
use headwater_nvme::driver::{DmaBlock, HostMemory, PciFunction, PciFunctionError, RegistersFile};
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
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
    pub mute: bool,
    /// It fetches I/O commands and completes none, until they are aborted.
    pub holds: bool,
    /// It completes no Abort.
    pub ignores_aborts: bool,
    /// I/O commands that are executed and whose completions are not posted.
    pub lost: u32,
    /// CSTS.RDY stays 1 after CC.EN is cleared.
    pub stuck_ready: bool,
    /// CSTS.RDY stays 0.
    pub never_ready: bool,
    /// Function reset fails.
    pub no_reset: bool,
    /// Changes of bus mastering fail.
    pub no_mastering: bool,
    /// Admin opcodes that fail, with their status.
    pub refuses: BTreeMap<u8, Status>,
    /// NSIDs whose reads and writes fail.
    pub broken: BTreeSet<u32>,
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
    pub bells: BTreeMap<u16, WakeDescriptor>,
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
        f.write_str("Machine")
    }
}

impl fmt::Debug for SharedMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
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
            bells: BTreeMap::new(),
            memory_max: MEMORY_BYTES,
            events: Vec::new(),
            deletions: Vec::new(),
            held: Vec::new(),
            page: DoorbellPage::new(BAR_BYTES),
        })))
    }

    /// Returns the offset of an address in the memory; validates every access.
    fn place(&self, at: u64, bytes: usize) -> Option<usize> {
        assert!(self.mastering, "the controller accesses memory while its bus mastering is off");
        let start = usize::try_from(at.checked_sub(MEMORY_AT)?).ok()?;
        (start.checked_add(bytes)? <= self.taken).then_some(start)
    }

    /// Returns the memory at an address, the machine's or lent, and the offset in it.
    fn reach(&self, at: u64, bytes: usize) -> Option<(&SharedMemory, usize)> {
        let lent = self.lent.range(..=at).next_back().and_then(|(start, memory)| {
            let offset = usize::try_from(at - start).ok()?;
            (offset.checked_add(bytes)? <= memory.bytes()).then_some((memory, offset))
        });
        lent.filter(|_| self.mastering).or_else(|| Some((&self.memory, self.place(at, bytes)?)))
    }

    fn ring_at(&self, base: u64, words: usize) -> Option<SharedMemoryWords> {
        let (memory, offset) = self.reach(base, words * 8)?;
        SharedMemoryWords::new(memory.clone(), offset, words).ok()
    }

    /// Copies bytes at a bus address into a slice.
    ///
    /// # Errors
    /// Data Transfer Error if the function may not access them.
    pub fn read_memory(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        let (memory, offset) = self.reach(at, into.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
        memory.copy_in(offset, into).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    /// Copies a slice to a bus address.
    ///
    /// # Errors
    /// Data Transfer Error if the function may not access it.
    pub fn write_memory(&self, at: u64, from: &[u8]) -> Result<(), Status> {
        let (memory, offset) = self.reach(at, from.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
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
                Some(()) => self.controller.enabled(),
                None => self.controller.fail(),
            },
            RegisterEffect::Disable | RegisterEffect::SubsystemReset => {
                self.forget();
                if !self.faults.stuck_ready {
                    self.controller.disabled();
                }
            }
            RegisterEffect::Shutdown(_) => self.controller.shut_down(),
        }
    }

    fn enable(&mut self, places: &AdminQueueAddresses) -> Option<()> {
        self.arbiter.reset(self.controller.mechanism());
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

    fn forget(&mut self) {
        self.arbiter.reset(self.controller.mechanism());
        let events = std::mem::take(&mut self.events);
        let deletions = std::mem::take(&mut self.deletions).into_iter().map(|(_, token)| token);
        let held = std::mem::take(&mut self.held).into_iter().map(|fetched| fetched.token);
        for token in events.into_iter().chain(deletions).chain(held).collect::<Vec<_>>() {
            self.arbiter.complete(token, 0, Status::SUCCESS);
        }
    }

    /// Runs the controller until it is idle.
    pub fn work(&mut self) {
        if self.faults.removed || self.faults.mute || !self.controller.is_ready() || !self.mastering {
            return;
        }
        for rung in self.page.rung() {
            // A doorbell of a deleted queue has no effect.
            let _ = match rung {
                RungDoorbell::Tail(queue, tail) => self.arbiter.ring_submission(queue, tail),
                RungDoorbell::Head(queue, head) => self.arbiter.ring_completion(queue, head),
            };
        }
        while let Some(fetched) = self.arbiter.fetch() {
            if fetched.token.queue() == QueueId::ADMIN {
                self.admin(fetched);
            } else if self.faults.holds {
                self.held.push(fetched);
            } else {
                self.io(fetched);
            }
        }
        let vitality = self.controller.poll(&self.subsystem, self.now);
        assert_eq!(vitality, headwater_nvme::controller::admin::KeepAliveStatus::Alive);
        while let Some(answer) = self.controller.take_async_event() {
            let at = self.events.iter().position(|token| token.command_id() == answer.command_id).unwrap();
            let token = self.events.swap_remove(at);
            self.arbiter.complete(token, answer.result, answer.status);
        }
        let bells = &self.bells;
        self.arbiter.interrupt(self.now, |vector| {
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

    fn admin(&mut self, fetched: FetchedCommand) {
        let FetchedCommand { entry, token, .. } = fetched;
        if let Some(&status) = self.faults.refuses.get(&entry.opcode) {
            return self.arbiter.complete(token, 0, status);
        }
        if entry.opcode == AdminOpcode::Abort.number() && self.faults.ignores_aborts {
            return self.held.push(FetchedCommand { entry, token, kind: QueueKind::Standard });
        }
        let data = match self.controller.admin_data(&entry) {
            Ok(AdminData::ToHost(bytes)) => Ok((self.ranges(&entry, HostTransfer::ToHost(bytes)), 0)),
            Ok(AdminData::FromHost(bytes)) => Ok((self.ranges(&entry, HostTransfer::FromHost(bytes)), bytes)),
            Ok(AdminData::None) => Ok((Ok(Vec::new()), 0)),
            Err(status) => Err(status),
        };
        let (ranges, sent) = match data {
            Ok((Ok(ranges), sent)) => (ranges, sent),
            Ok((Err(status), _)) | Err(status) => return self.arbiter.complete(token, 0, status),
        };
        let mut bytes = Vec::new();
        for range in ranges.iter().filter(|_| sent > 0) {
            let mut here = vec![0; range.bytes as usize];
            self.read_memory(range.start.0, &mut here).unwrap();
            bytes.append(&mut here);
        }
        let step = self.controller.admin(&entry, &bytes, &self.subsystem, self.now);
        self.step(step, &entry, token, &ranges);
    }

    fn step(&mut self, step: AdminStep, entry: &SubmissionEntry, token: CommandToken, ranges: &[IovaRange]) {
        let done = match step {
            AdminStep::Done(answer) => return self.answer(entry, token, &answer, ranges),
            AdminStep::Held => return self.events.push(token),
            AdminStep::CreateCompletionQueue(request) => {
                self.page.clear(request.id);
                let memory = self.ring_at(request.base, request.slots as usize * 2);
                let spec = CompletionQueueSpec { slots: request.slots, vector: request.vector };
                self.arbiter.create_completion_queue(request.id, spec, |_| memory)
            }
            AdminStep::CreateSubmissionQueue(request) => {
                let memory = self.ring_at(request.base, request.slots as usize * 8);
                let spec = SubmissionQueueSpec {
                    slots: request.slots,
                    completion: request.completion,
                    priority: request.priority,
                    kind: QueueKind::Standard,
                };
                self.arbiter.create_submission_queue(request.id, spec, |_| memory)
            }
            AdminStep::DeleteCompletionQueue(queue) => self.arbiter.delete_completion_queue(queue),
            AdminStep::DeleteSubmissionQueue(queue) => match self.arbiter.delete_submission_queue(queue) {
                Ok(()) => {
                    // Held commands are aborted, as a real device aborts commands that it has not begun.
                    let (of_queue, rest): (Vec<_>, Vec<_>) =
                        self.held.drain(..).partition(|held| held.token.queue() == queue);
                    self.held = rest;
                    for held in of_queue {
                        self.arbiter.complete(held.token, 0, Status::ABORTED_SQ_DELETION);
                    }
                    return self.deletions.push((queue, token));
                }
                Err(error) => Err(error),
            },
            AdminStep::Abort { queue, command } => {
                let aborted = self.abort(queue, command);
                return self.arbiter.complete(token, u32::from(!aborted), Status::SUCCESS);
            }
            other => panic!("the driver sends no command that leads to {other:?}"),
        };
        let status = done.map_or_else(ArbiterError::status, |()| Status::SUCCESS);
        self.arbiter.complete(token, 0, status);
    }

    fn answer(
        &mut self,
        entry: &SubmissionEntry,
        token: CommandToken,
        answer: &AdminCompletion,
        ranges: &[IovaRange],
    ) {
        if entry.opcode == AdminOpcode::SetFeatures.number() {
            self.arbiter.set_arbitration(self.controller.arbitration());
            self.arbiter.grant_queues(self.controller.io_queues(), self.controller.io_queues());
        }
        let mut rest = &answer.data[..];
        for range in ranges {
            let (here, next) = rest.split_at(rest.len().min(range.bytes as usize));
            self.write_memory(range.start.0, here).unwrap();
            rest = next;
        }
        self.arbiter.complete(token, answer.result, answer.status);
    }

    fn abort(&mut self, queue: QueueId, command: u16) -> bool {
        let is_it = |held: &FetchedCommand| held.token.queue() == queue && held.token.command_id() == command;
        match self.held.iter().position(is_it) {
            Some(at) => {
                let held = self.held.swap_remove(at);
                self.arbiter.complete(held.token, 0, Status::ABORT_REQUESTED);
                true
            }
            None => self.arbiter.abort(queue, command),
        }
    }

    /// Executes the held commands in reverse order.
    pub fn release(&mut self) {
        self.faults.holds = false;
        for held in std::mem::take(&mut self.held).into_iter().rev() {
            self.io(held);
        }
    }

    fn io(&mut self, fetched: FetchedCommand) {
        let status = self.carry_out(&fetched.entry).err().unwrap_or(Status::SUCCESS);
        if self.faults.lost > 0 {
            self.faults.lost -= 1;
            // No completion is posted; the command ends with the next reset.
            return self.held.push(fetched);
        }
        self.arbiter.complete(fetched.token, 0, status);
    }
}

impl Drop for NvmeMachine {
    fn drop(&mut self) {
        self.forget();
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
                0 => machine.arbiter.ring_submission(queue, value),
                _ => machine.arbiter.ring_completion(queue, value),
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
        if machine.faults.no_mastering {
            return Err(PciFunctionError { errno: 5 });
        }
        machine.mastering = mastering == BusMastering::On && !machine.faults.removed;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), PciFunctionError> {
        let mut machine = self.lock();
        if machine.faults.no_reset {
            return Err(PciFunctionError { errno: 95 });
        }
        machine.function_resets += 1;
        machine.mastering = false;
        machine.forget();
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
