//! The NVMe controller of one guest: queues in its memory, registers behind its BAR0.
//!
//! Input: writes of the guest's driver, to registers and to its own memory. Output: commands to the device, completions
//! and interrupts to the guest. Invariant: a fetched command is completed once, or its queue is gone; while a command
//! is in flight, the memory that it names stays mapped.
//!
//! ```text
//!   Disabled --CC.EN--> Ready --CC.EN cleared, reset--> Resetting --(none in flight)--> Disabled
//! ```

mod abort;
mod admin;
mod registers;
mod ring_ranges;

use super::data::DataResolver;
use super::in_flight_command::GuestCommand;
use super::layout::{IO_QUEUES_MAX, VECTORS};
use crate::in_flight::InFlightTable;
use headwater_dma::iova::ClientMemory;
use headwater_host::clock::Nanos;
use headwater_host::fault_guard::FaultGuard;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_nvme::controller::admin::AsyncEvent;
use headwater_nvme::controller::{
    CommandToken, ControllerConfig, DeviceController, DoorbellError, FetchedCommand, QueueArbiter,
    QueueArbitration, QueueId, QueueLimits,
};
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand, SubmitError};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::TRANSFER_BYTES_MAX;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::decoder::decode;
use headwater_ssd::nvme::request::{DeviceRequest, KeyBuffer};
use std::collections::VecDeque;

pub use registers::GuestRegisters;
use ring_ranges::{RingRanges, RingUse};

/// Its number in the subsystem (CNTLID). Controllers of fabrics are numbered when hosts connect.
const CONTROLLER_ID: u16 = 1;
/// MDTS: the device's maximum transfer, so that a guest can read and write the longest value.
const TRANSFER_PAGES_SHIFT: u8 = 12;
const _: () = assert!(4_096 << TRANSFER_PAGES_SHIFT == TRANSFER_BYTES_MAX);
/// Maximum entries fetched in one poll, so that a guest with many refused entries does not delay the device.
const FETCHES_MAX: usize = 1_024;

/// The controller of a guest, with its commands in flight.
#[derive(Debug)]
pub struct GuestController {
    front_end_id: FrontEndId,
    controller: DeviceController,
    arbiter: QueueArbiter<SharedMemoryWords>,
    in_flight: InFlightTable<GuestCommand>,
    keys: KeyBuffer,
    data_resolver: DataResolver,
    /// An entry fetched while the device was busy.
    held_entry: Option<FetchedCommand>,
    /// Numbers of List commands that need more keys.
    waiting_lists: VecDeque<u64>,
    /// Asynchronous Event Requests.
    event_requests: Vec<CommandToken>,
    /// Queues in deletion, and the commands that delete them.
    deletions: Vec<(QueueId, CommandToken)>,
    /// Guest memory of queues and doorbells.
    ring_ranges: RingRanges,
    /// True if a register write began a reset that is not finished.
    resetting: bool,
    shutting_down: bool,
    armed: bool,
    registration: RegistrationState,
}

/// The registration of the controller with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegistrationState {
    Unregistered,
    Registered,
}

impl GuestController {
    /// Creates a controller in its power-on state; `front_end_id` is its front-end identifier in the device.
    #[must_use]
    pub fn new(front_end_id: FrontEndId) -> Self {
        let config = ControllerConfig {
            io_queues_max: IO_QUEUES_MAX,
            interrupt_vectors: VECTORS,
            transfer_pages_shift: TRANSFER_PAGES_SHIFT,
            ..ControllerConfig::pcie(CONTROLLER_ID)
        };
        let Ok(slots) = QueueSlots::new(config.queue_slots_max) else {
            unreachable!("a PCIe controller has queues of {} slots", config.queue_slots_max);
        };
        let limits = QueueLimits {
            submission_queues: IO_QUEUES_MAX,
            completion_queues: IO_QUEUES_MAX,
            slots,
            vectors: VECTORS,
        };
        Self {
            front_end_id,
            controller: DeviceController::new(config),
            arbiter: QueueArbiter::for_host(limits),
            in_flight: InFlightTable::default(),
            keys: KeyBuffer::default(),
            data_resolver: DataResolver::default(),
            held_entry: None,
            waiting_lists: VecDeque::new(),
            event_requests: Vec::new(),
            deletions: Vec::new(),
            ring_ranges: RingRanges::default(),
            resetting: false,
            shutting_down: false,
            armed: false,
            registration: RegistrationState::Unregistered,
        }
    }

    /// Posts completions of the device and fetches new commands. Never blocks. Without `memory` the function may not
    /// access the guest, and no command is fetched. Returns true if there was progress.
    pub fn poll<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        memory: Option<&ClientMemory>,
        now: Nanos,
    ) -> bool {
        self.end_sleep();
        let before = std::mem::replace(&mut self.registration, RegistrationState::Registered);
        if before == RegistrationState::Unregistered && !device.add_controller(CONTROLLER_ID) {
            tracing::warn!(controller = CONTROLLER_ID, "the controller's number is in use already");
        }
        let mut moved = self.post_completions(device);
        if self.continue_lists(device)
            && let Some(memory) = memory
            && self.controller.is_ready()
        {
            moved |= self.fetch(device, memory, now);
        }
        moved | self.complete_pending(device, now)
    }

    /// Posts the device's completions to the guest.
    fn post_completions<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut moved = false;
        while let Some(completion) = device.next_completion(self.front_end_id) {
            moved = true;
            if let Some(GuestCommand::Io(_, answer)) = self.in_flight.get_mut(completion.token)
                && answer.needs_more(&completion)
            {
                self.waiting_lists.push_back(completion.token);
                continue;
            }
            let number = completion.token;
            match self.in_flight.remove(number) {
                Some(GuestCommand::Io(token, answer)) => {
                    let closed = answer.build(completion);
                    self.arbiter.complete(token, closed.result, closed.status);
                }
                Some(GuestCommand::Shutdown) => self.controller.complete_shutdown(),
                Some(GuestCommand::Admin(_)) => {
                    unreachable!("the change of namespaces {number} is completed by `next_admin_completion`")
                }
                None => unreachable!("the device completed command {number}, which is not in flight"),
            }
        }
        while let Some((number, answer)) = device.next_admin_completion(self.front_end_id) {
            moved = true;
            let Some(GuestCommand::Admin(token)) = self.in_flight.remove(number) else {
                unreachable!(
                    "the device completed the change of namespaces {number}, which is not in flight"
                );
            };
            self.arbiter.complete(token, answer.result, answer.status);
        }
        moved
    }

    /// Submits the next device command of waiting List commands. Returns false if the device is busy.
    fn continue_lists<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        while let Some(&number) = self.waiting_lists.front() {
            if !self.continue_list(device, number) {
                return false;
            }
            self.waiting_lists.pop_front();
        }
        true
    }

    /// Fetches entries until there are none, the device is busy, or the limit is reached.
    fn fetch<M: Media>(&mut self, device: &mut SsdDevice<M>, memory: &ClientMemory, now: Nanos) -> bool {
        let mut moved = false;
        let faults = FaultGuard::faults();
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.held_entry.take().or_else(|| self.arbiter.fetch()) else {
                return moved;
            };
            moved = true;
            if FaultGuard::faults() != faults {
                // A page was gone, maybe one of the ring: then a part of the entry is zeroes, and its guest ends before the
                // next poll.
                self.held_entry = Some(fetched);
                return true;
            }
            if fetched.token.queue() == QueueId::ADMIN {
                self.start_admin(device, memory, fetched, now);
            } else if let Err(held) = self.start_io(device, memory, fetched) {
                self.held_entry = Some(held);
                return self.fetch_admin(device, memory, now) | moved;
            }
        }
        moved
    }

    /// Fetches admin commands while an I/O command waits for the device: one of them may be its Abort.
    fn fetch_admin<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        memory: &ClientMemory,
        now: Nanos,
    ) -> bool {
        let mut moved = false;
        while self.held_entry.is_some()
            && let Some(fetched) = self.arbiter.fetch_admin()
        {
            self.start_admin(device, memory, fetched, now);
            moved = true;
        }
        moved
    }

    /// Submits an entry to the device, or completes it with an error. Returns it as the error when the device is busy.
    fn start_io<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        memory: &ClientMemory,
        fetched: FetchedCommand,
    ) -> Result<(), FetchedCommand> {
        let FetchedCommand { kind, entry, token } = fetched;
        let namespace = |id| device.namespace(id).filter(|_| device.is_attached(id, CONTROLLER_ID));
        let request = decode(&entry, kind, namespace).and_then(|command| {
            if !self.controller.has_io_commands() {
                return Err(Status::INVALID_OPCODE);
            }
            if device.is_sanitizing() {
                return Err(Status::SANITIZE_IN_PROGRESS);
            }
            let data = self.data_resolver.resolve_command(&command, &entry, memory)?;
            DeviceRequest::new(&command, data, &mut self.keys, device)
        });
        let submitted = request.and_then(|DeviceRequest { namespace, command, completion: answer }| {
            match device.submit(self.front_end_id, namespace, self.in_flight.next(), command) {
                Ok(()) => Ok(Some(answer)),
                Err(SubmitError::Busy(_)) => Ok(None),
                Err(SubmitError::Refused(status)) => Err(status),
            }
        });
        match submitted {
            Ok(Some(answer)) => {
                self.in_flight.insert(GuestCommand::Io(token, answer));
            }
            // The command is built again from the same copy of the entry when the device has room.
            Ok(None) => return Err(FetchedCommand { kind, entry, token }),
            Err(status) => self.arbiter.complete(token, 0, status),
        }
        Ok(())
    }

    /// Submits the next device command of a List command. Returns false if the device is busy.
    fn continue_list<M: Media>(&mut self, device: &mut SsdDevice<M>, number: u64) -> bool {
        let next = match self.in_flight.get_mut(number) {
            Some(GuestCommand::Io(_, answer)) => answer.next_command(),
            _ => None,
        };
        let Some((namespace, command)) = next else {
            unreachable!("command {number} waits for its next request and has none");
        };
        match device.submit(self.front_end_id, namespace, number, command) {
            Ok(()) => {}
            Err(SubmitError::Busy(_)) => return false,
            Err(SubmitError::Refused(status)) => {
                if let Some(GuestCommand::Io(token, _)) = self.in_flight.remove(number) {
                    self.arbiter.complete(token, 0, status);
                }
            }
        }
        true
    }

    /// Completes pending deletions, events, a shutdown or a reset whose condition holds.
    fn complete_pending<M: Media>(&mut self, device: &mut SsdDevice<M>, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(queue) = self.arbiter.next_deleted() {
            if let Some(at) = self.deletions.iter().position(|(deleted, _)| *deleted == queue) {
                let (_, token) = self.deletions.swap_remove(at);
                self.ring_ranges.remove(RingUse::Submission(queue));
                self.arbiter.complete(token, 0, Status::SUCCESS);
            }
            moved = true;
        }
        while let Some(error) = self.arbiter.take_doorbell_error() {
            self.report_doorbell_error(error);
        }
        // On PCI Express no host sets a Keep Alive timer.
        let _ = self.controller.poll(device, now);
        while let Some(answer) = self.controller.take_async_event() {
            let of = |token: &CommandToken| token.command_id() == answer.command_id;
            if let Some(at) = self.event_requests.iter().position(of) {
                let token = self.event_requests.swap_remove(at);
                self.arbiter.complete(token, answer.result, answer.status);
            }
            moved = true;
        }
        if self.shutting_down {
            let number = self.in_flight.next();
            match device.submit(self.front_end_id, NamespaceId::FIRST, number, SsdCommand::Flush) {
                Ok(()) => {
                    self.in_flight.insert(GuestCommand::Shutdown);
                }
                Err(SubmitError::Busy(_)) => return moved,
                // The device accepts no more writes, and acknowledged writes are durable already.
                Err(SubmitError::Refused(_)) => self.controller.complete_shutdown(),
            }
            self.shutting_down = false;
            moved = true;
        }
        if self.resetting && self.in_flight.is_empty() {
            self.resetting = false;
            self.controller.complete_disable();
            moved = true;
        }
        moved
    }

    /// Fires the vectors that have completions to announce.
    pub fn interrupt(&mut self, now: Nanos, fire: impl FnMut(u16)) {
        self.arbiter.fire_interrupts(now, fire);
    }

    /// Removes every queue at once. Commands in flight continue, and their completions are dropped.
    fn remove_queues(&mut self) {
        self.arbiter.reset(QueueArbitration::RoundRobin);
        self.ring_ranges.clear();
        self.held_entry.take().map(|held| held.token).into_iter().for_each(CommandToken::abandon);
        self.event_requests.drain(..).for_each(CommandToken::abandon);
        self.deletions.drain(..).for_each(|(_, token)| token.abandon());
        // The device holds no command of these: they waited for their next request.
        for number in self.waiting_lists.drain(..) {
            self.in_flight.remove(number).into_iter().for_each(GuestCommand::abandon);
        }
    }

    /// Resets to the power-on state after the guest disconnected or reset the function. Commands in flight continue.
    pub fn abandon(&mut self) {
        self.remove_queues();
        self.controller = DeviceController::new(*self.controller.config());
        self.resetting = false;
        self.shutting_down = false;
    }

    /// Returns true if no command is in flight.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn report_doorbell_error(&mut self, error: DoorbellError) {
        tracing::debug!(%error, "a guest wrote an invalid doorbell");
        self.controller.notify(match error {
            DoorbellError::NoQueue(_) => AsyncEvent::InvalidDoorbell,
            _ => AsyncEvent::InvalidDoorbellValue,
        });
    }

    /// Makes the guest write a doorbell register when it submits; see
    /// [`FrontEnd::prepare_sleep`](crate::front_end::FrontEnd::prepare_sleep).
    pub fn prepare_sleep(&mut self) -> SleepDecision {
        if !self.controller.is_ready() {
            return SleepDecision::UntilWoken;
        }
        let sleep = self.arbiter.prepare_sleep();
        self.armed = sleep == SleepDecision::UntilWoken;
        sleep
    }

    fn end_sleep(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.arbiter.disarm();
        }
    }

    /// Returns the time of the next work that no descriptor announces.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.arbiter.next_interrupt().into_iter().chain(self.controller.next_deadline()).min()
    }
}

impl Drop for GuestController {
    /// Abandons all tokens: the node shuts down, and no completion is posted.
    fn drop(&mut self) {
        self.remove_queues();
        self.in_flight.drain().for_each(GuestCommand::abandon);
    }
}
