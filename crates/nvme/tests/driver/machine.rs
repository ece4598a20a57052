//! A machine with one NVMe function in it: our own controller over memory that it may reach, and faults when they are told.
//!
//! In: register accesses of a driver. Out: what the controller says; blocks that were written. Invariant: the controller
//! touches nothing but what the machine lent, and nothing at all while its bus mastering is off.

#[path = "machine_blocks.rs"]
mod blocks;
#[path = "machine_page.rs"]
mod page;

use crate::fake_subsystem::FakeSubsystem;
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::pinning::vfio::Mastering;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::controller::{
    AdminAnswer, AdminData, AdminQueuePlaces, AdminQueues, AdminStep, Arbiter, ArbiterError, CommandToken,
    CompletionQueueSpec, Controller, ControllerConfig, Fetched, QueueId, QueueKind, QueueLimits,
    RegisterEffect, SubmissionQueueSpec,
};
use headwater_nvme::data_pointer::{DataRange, PageBytes, Transfer, data_ranges};
use headwater_nvme::driver::{Block, Function, FunctionError, HostMemory, RegistersFile};
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use page::{DoorbellPage, Rung};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MEMORY_BYTES: usize = 96 << 20;
/// The controller's address of the memory.
pub(crate) const MEMORY_AT: u64 = 0x4000_0000;
const BAR_BYTES: usize = 0x4000;
const DOORBELLS: usize = 0x1000;

/// What is wrong with the function.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own, and they come together")]
pub(crate) struct Faults {
    /// It is not there any more.
    pub(crate) removed: bool,
    /// CSTS.CFS.
    pub(crate) fatal: bool,
    /// It takes no commands.
    pub(crate) mute: bool,
    /// It takes I/O commands and answers none, until they are aborted.
    pub(crate) holds: bool,
    /// It answers no Abort.
    pub(crate) ignores_aborts: bool,
    /// Completions of I/O commands that are carried out and never told.
    pub(crate) lost: u32,
    /// CSTS.RDY does not fall by CC.EN.
    pub(crate) stuck_ready: bool,
    /// CSTS.RDY does not rise.
    pub(crate) never_ready: bool,
    /// Function reset fails.
    pub(crate) no_reset: bool,
    /// Bus mastering cannot be switched off.
    pub(crate) no_mastering: bool,
    /// Admin opcodes that are answered with a status.
    pub(crate) refuses: BTreeMap<u8, Status>,
    /// NSIDs whose reads and writes fail.
    pub(crate) broken: BTreeSet<u32>,
}

pub(crate) struct Machine {
    pub(crate) faults: Faults,
    pub(crate) subsystem: FakeSubsystem,
    pub(crate) controller: Controller,
    pub(crate) arbiter: Arbiter<ForeignWords>,
    pub(crate) blocks: BTreeMap<u32, Vec<u8>>,
    pub(crate) now: Nanos,
    pub(crate) mastering: bool,
    pub(crate) function_resets: u32,
    /// What the controller reaches, from [`MEMORY_AT`] on.
    pub(crate) memory: Foreign,
    taken: usize,
    /// Memory of others that the controller reaches, by its address of the first byte.
    pub(crate) lent: BTreeMap<u64, Foreign>,
    /// It works whenever it is looked at or rung, and not only when it is told to.
    pub(crate) is_awake: bool,
    /// Who hears of interrupts, by vector.
    pub(crate) bells: BTreeMap<u16, WakeDescriptor>,
    /// Most bytes that the driver may take.
    pub(crate) memory_max: usize,
    events: Vec<CommandToken>,
    deletions: Vec<(QueueId, CommandToken)>,
    pub(crate) held: Vec<Fetched>,
    /// Doorbells as a process has them that maps BAR0.
    page: DoorbellPage,
}

/// The machine, as everybody has it.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Machine>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

impl Machine {
    pub(crate) fn with(config: ControllerConfig) -> Shared {
        let limits = QueueLimits {
            submission_queues: config.io_queues_max,
            completion_queues: config.io_queues_max,
            slots: QueueSlots::new(config.queue_slots_max).unwrap(),
            vectors: config.interrupt_vectors,
        };
        let blocks = BTreeMap::from([(2, vec![0; 8 << 20]), (3, vec![0; 8 << 20])]);
        Shared(Arc::new(Mutex::new(Self {
            faults: Faults::default(),
            subsystem: FakeSubsystem::new(),
            controller: Controller::new(config),
            arbiter: Arbiter::for_host(limits),
            blocks,
            now: Nanos::ZERO,
            mastering: false,
            function_resets: 0,
            memory: Foreign::anonymous(MEMORY_BYTES).unwrap(),
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

    /// Where in the memory an address is; the machine's check of every access.
    fn place(&self, at: u64, bytes: usize) -> Option<usize> {
        assert!(self.mastering, "the controller touches memory while its bus mastering is off");
        let start = usize::try_from(at.checked_sub(MEMORY_AT)?).ok()?;
        (start.checked_add(bytes)? <= self.taken).then_some(start)
    }

    /// Memory that the machine has, or that was lent to it.
    fn reach(&self, at: u64, bytes: usize) -> Option<(&Foreign, usize)> {
        let lent = self.lent.range(..=at).next_back().and_then(|(start, memory)| {
            let place = usize::try_from(at - start).ok()?;
            (place.checked_add(bytes)? <= memory.bytes()).then_some((memory, place))
        });
        lent.filter(|_| self.mastering).or_else(|| Some((&self.memory, self.place(at, bytes)?)))
    }

    fn ring_at(&self, base: u64, words: usize) -> Option<ForeignWords> {
        let (memory, place) = self.reach(base, words * 8)?;
        ForeignWords::new(memory.clone(), place, words).ok()
    }

    pub(crate) fn read_memory(&self, at: u64, into: &mut [u8]) -> Result<(), Status> {
        let (memory, place) = self.reach(at, into.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
        memory.copy_in(place, into).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    pub(crate) fn write_memory(&self, at: u64, from: &[u8]) -> Result<(), Status> {
        let (memory, place) = self.reach(at, from.len()).ok_or(Status::DATA_TRANSFER_ERROR)?;
        memory.copy_out(place, from).map_err(|_| Status::DATA_TRANSFER_ERROR)
    }

    fn ranges(&self, entry: &SubmissionEntry, transfer: Transfer) -> Result<Vec<IovaRange>, Status> {
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

    fn enable(&mut self, places: &AdminQueuePlaces) -> Option<()> {
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

    /// Works until there is nothing to do.
    pub(crate) fn work(&mut self) {
        if self.faults.removed || self.faults.mute || !self.controller.is_ready() || !self.mastering {
            return;
        }
        for rung in self.page.rung() {
            // A queue that is not there any more hears nothing.
            let _ = match rung {
                Rung::Tail(queue, tail) => self.arbiter.ring_submission(queue, tail),
                Rung::Head(queue, head) => self.arbiter.ring_completion(queue, head),
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
        assert_eq!(vitality, headwater_nvme::controller::admin::Vitality::Alive);
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

    fn admin(&mut self, fetched: Fetched) {
        let Fetched { entry, token, .. } = fetched;
        if let Some(&status) = self.faults.refuses.get(&entry.opcode) {
            return self.arbiter.complete(token, 0, status);
        }
        if entry.opcode == AdminOpcode::Abort.number() && self.faults.ignores_aborts {
            return self.held.push(Fetched { entry, token, kind: QueueKind::Standard });
        }
        let data = match self.controller.admin_data(&entry) {
            Ok(AdminData::ToHost(bytes)) => Ok((self.ranges(&entry, Transfer::ToHost(bytes)), 0)),
            Ok(AdminData::FromHost(bytes)) => Ok((self.ranges(&entry, Transfer::FromHost(bytes)), bytes)),
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
                    // Commands that are held are given up, as a real device gives up what it has not begun.
                    let (of_queue, others): (Vec<_>, Vec<_>) =
                        self.held.drain(..).partition(|held| held.token.queue() == queue);
                    self.held = others;
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
            other => panic!("{other:?} is nothing that the driver asks for"),
        };
        let status = done.map_or_else(ArbiterError::status, |()| Status::SUCCESS);
        self.arbiter.complete(token, 0, status);
    }

    fn answer(
        &mut self,
        entry: &SubmissionEntry,
        token: CommandToken,
        answer: &AdminAnswer,
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
        let is_it = |held: &Fetched| held.token.queue() == queue && held.token.command_id() == command;
        match self.held.iter().position(is_it) {
            Some(at) => {
                let held = self.held.swap_remove(at);
                self.arbiter.complete(held.token, 0, Status::ABORT_REQUESTED);
                true
            }
            None => self.arbiter.abort(queue, command),
        }
    }

    /// Carries the commands out that were held, in the reverse of their order.
    pub(crate) fn release(&mut self) {
        self.faults.holds = false;
        for held in std::mem::take(&mut self.held).into_iter().rev() {
            self.io(held);
        }
    }

    fn io(&mut self, fetched: Fetched) {
        let status = self.carry_out(&fetched.entry).err().unwrap_or(Status::SUCCESS);
        if self.faults.lost > 0 {
            self.faults.lost -= 1;
            // Nobody hears of it; what is live goes with the next reset.
            return self.held.push(fetched);
        }
        self.arbiter.complete(fetched.token, 0, status);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Registers for Shared {
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

    fn ring32(&self, at: usize, value: u32) {
        self.store32(at, value);
    }
}

impl Function for Shared {
    type Registers = Self;

    fn registers(&self) -> &Self {
        self
    }

    fn registers_file(&self) -> Result<RegistersFile, FunctionError> {
        Ok(RegistersFile { file: self.lock().page.file(), offset: 0 })
    }

    fn set_mastering(&mut self, mastering: Mastering) -> Result<(), FunctionError> {
        let mut machine = self.lock();
        if machine.faults.no_mastering {
            return Err(FunctionError { errno: 5 });
        }
        machine.mastering = mastering == Mastering::On && !machine.faults.removed;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), FunctionError> {
        let mut machine = self.lock();
        if machine.faults.no_reset {
            return Err(FunctionError { errno: 95 });
        }
        machine.function_resets += 1;
        machine.mastering = false;
        machine.forget();
        let config = *machine.controller.config();
        machine.controller = Controller::new(config);
        Ok(())
    }
}

impl HostMemory for Shared {
    type Words = ForeignWords;

    fn take(&mut self, bytes: usize, align: usize) -> Option<Block<ForeignWords>> {
        let mut machine = self.lock();
        let start = machine.taken.checked_next_multiple_of(align)?;
        let bytes = bytes.checked_next_multiple_of(4_096)?;
        if start + bytes > machine.memory_max {
            return None;
        }
        // What was there before does not matter to whoever takes it.
        machine.memory.copy_out(start, &vec![0xA5; bytes]).ok()?;
        machine.taken = start + bytes;
        let words = ForeignWords::new(machine.memory.clone(), start, bytes / 8).ok()?;
        Some(Block { words, address: MEMORY_AT + u64::try_from(start).ok()? })
    }
}
