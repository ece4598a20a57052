//! The NVMe controller of one guest: queues in its memory, registers behind its BAR0.
//!
//! In: what the guest's driver writes, to registers and to its own memory. Out: commands to the device, completions and
//! interrupts to the guest. Invariant: a command that was taken is answered once, or nobody is left to read the answer; while
//! one is in flight, the memory that it names stays mapped.
//!
//! ```text
//!   Disabled --CC.EN--> Ready --CC.EN cleared, reset--> Resetting --(nothing in flight)--> Disabled
//! ```

mod abort;
mod admin;
mod registers;

use super::data::DataFinder;
use super::flight::Flight;
use super::layout::{IO_QUEUES_MAX, VECTORS};
use crate::in_flight::Flights;
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::ForeignWords;
use headwater_nvme::controller::admin::AsyncEvent;
use headwater_nvme::controller::{
    Arbiter, CommandToken, Controller, ControllerConfig, DoorbellError, Fetched, Mechanism, QueueId,
    QueueLimits,
};
use headwater_nvme::queue_pair::Sleep;
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, FaceId, NamespaceId, SubmitError};
use headwater_ssd::engine::Device;
use headwater_ssd::limits::TRANSFER_BYTES_MAX;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::interpreter::decode;
use headwater_ssd::nvme::request::{Keys, Request};
use std::collections::VecDeque;

pub use registers::Behind;

/// Its number in the subsystem (CNTLID). Those of fabrics are given out as hosts connect.
const CONTROLLER_ID: u16 = 1;
/// MDTS: what the device moves in one command, so that the longest value is one for a guest too.
const TRANSFER_PAGES_SHIFT: u8 = 12;
const _: () = assert!(4_096 << TRANSFER_PAGES_SHIFT == TRANSFER_BYTES_MAX);
/// Entries taken in one poll, so that guests who are refused all the time do not keep the device from its work.
const FETCHES_MAX: usize = 1_024;

/// The controller and everything in flight.
#[derive(Debug)]
pub struct GuestController {
    face: FaceId,
    controller: Controller,
    arbiter: Arbiter<ForeignWords>,
    flights: Flights<Flight>,
    keys: Keys,
    finder: DataFinder,
    /// Fetched when the device was busy.
    held: Option<Fetched>,
    /// Numbers of lists that want more keys.
    lists: VecDeque<u64>,
    /// Asynchronous Event Requests.
    event_requests: Vec<CommandToken>,
    /// Queues that are being deleted, and the commands that asked for it.
    deletions: Vec<(QueueId, CommandToken)>,
    /// Guest memory that queues and doorbells lie in: first address and length.
    rings: Vec<(Iova, u64)>,
    /// What a register write asked for and is not done yet.
    resetting: bool,
    shutting_down: bool,
    armed: bool,
    presence: Presence,
}

/// Whether the device knows that the controller is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Untold,
    Told,
}

impl GuestController {
    /// A controller as it is after power on, which the device knows as `face`.
    #[must_use]
    pub fn new(face: FaceId) -> Self {
        let config = ControllerConfig {
            io_queues_max: IO_QUEUES_MAX,
            interrupt_vectors: VECTORS,
            transfer_pages_shift: TRANSFER_PAGES_SHIFT,
            ..ControllerConfig::pcie(CONTROLLER_ID)
        };
        let limits = QueueLimits {
            submission_queues: IO_QUEUES_MAX,
            completion_queues: IO_QUEUES_MAX,
            slots: QueueSlots::new(config.queue_slots_max).unwrap_or(QueueSlots::MOST),
            vectors: VECTORS,
        };
        Self {
            face,
            controller: Controller::new(config),
            arbiter: Arbiter::for_host(limits),
            flights: Flights::default(),
            keys: Keys::default(),
            finder: DataFinder::default(),
            held: None,
            lists: VecDeque::new(),
            event_requests: Vec::new(),
            deletions: Vec::new(),
            rings: Vec::new(),
            resetting: false,
            shutting_down: false,
            armed: false,
            presence: Presence::Untold,
        }
    }

    /// Posts what the device has answered and takes new commands as far as it goes; never waits. Without `memory` the
    /// function may not touch the guest: nothing is taken. Returns whether anything moved.
    pub fn poll<M: Media>(
        &mut self,
        device: &mut Device<M>,
        memory: Option<&ClientMemory>,
        now: Nanos,
    ) -> bool {
        self.awake();
        let before = std::mem::replace(&mut self.presence, Presence::Told);
        if before == Presence::Untold && !device.add_controller(CONTROLLER_ID) {
            tracing::warn!(controller = CONTROLLER_ID, "the controller's number is taken");
        }
        let mut moved = self.land(device);
        if self.go_on_with_lists(device)
            && let Some(memory) = memory
            && self.controller.is_ready()
        {
            moved |= self.fetch(device, memory, now);
        }
        moved | self.settle(device, now)
    }

    /// Gives the device's completions to the guest.
    fn land<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut moved = false;
        while let Some(completion) = device.next_completion(self.face) {
            moved = true;
            if let Some(Flight::Io(_, answer)) = self.flights.get_mut(completion.token)
                && answer.wants_more_than(&completion)
            {
                self.lists.push_back(completion.token);
                continue;
            }
            // The device answers each accepted command once, so the flight is there.
            match self.flights.remove(completion.token) {
                Some(Flight::Io(token, answer)) => {
                    let closed = answer.close(completion);
                    self.arbiter.complete(token, closed.result, closed.status);
                }
                Some(Flight::Shutdown) => self.controller.shut_down(),
                // Actions are answered below.
                Some(Flight::Admin(token)) => token.abandon(),
                None => {}
            }
        }
        while let Some((number, answer)) = device.next_administered(self.face) {
            moved = true;
            if let Some(Flight::Admin(token)) = self.flights.remove(number) {
                self.arbiter.complete(token, answer.result, answer.status);
            }
        }
        moved
    }

    /// Asks the device for more keys of lists that want them. False when it is busy.
    fn go_on_with_lists<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        while let Some(&number) = self.lists.front() {
            if !self.go_on(device, number) {
                return false;
            }
            self.lists.pop_front();
        }
        true
    }

    /// Takes entries in turn until there are none, the device is busy, or it was enough.
    fn fetch<M: Media>(&mut self, device: &mut Device<M>, memory: &ClientMemory, now: Nanos) -> bool {
        let mut moved = false;
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.held.take().or_else(|| self.arbiter.fetch()) else {
                return moved;
            };
            moved = true;
            if fetched.token.queue() == QueueId::ADMIN {
                self.start_admin(device, memory, fetched, now);
            } else if let Err(held) = self.start_io(device, memory, fetched) {
                self.held = Some(held);
                return self.fetch_admin(device, memory, now) | moved;
            }
        }
        moved
    }

    /// Takes admin commands while an I/O command waits for the device: one of them may be its Abort.
    fn fetch_admin<M: Media>(&mut self, device: &mut Device<M>, memory: &ClientMemory, now: Nanos) -> bool {
        let mut moved = false;
        while self.held.is_some()
            && let Some(fetched) = self.arbiter.fetch_admin()
        {
            self.start_admin(device, memory, fetched, now);
            moved = true;
        }
        moved
    }

    /// Makes an entry a command of the device, or answers it. Gives it back when the device is busy.
    fn start_io<M: Media>(
        &mut self,
        device: &mut Device<M>,
        memory: &ClientMemory,
        fetched: Fetched,
    ) -> Result<(), Fetched> {
        let Fetched { kind, entry, token } = fetched;
        let namespace = |id| device.namespace(id).filter(|_| device.is_attached(id, CONTROLLER_ID));
        let request = decode(&entry, kind, namespace).and_then(|command| {
            if device.is_sanitizing() {
                return Err(Status::SANITIZE_IN_PROGRESS);
            }
            let data = self.finder.of_command(&command, &entry, memory)?;
            Request::new(&command, data, &mut self.keys, device)
        });
        let submitted = request.and_then(|Request { namespace, command, answer }| {
            match device.submit(self.face, namespace, self.flights.next(), command) {
                Ok(()) => Ok(Some(answer)),
                Err(SubmitError::Busy(_)) => Ok(None),
                Err(SubmitError::Refused(status)) => Err(status),
            }
        });
        match submitted {
            Ok(Some(answer)) => {
                self.flights.insert(Flight::Io(token, answer));
            }
            // The command is made anew from the same copy of the entry when the device has room.
            Ok(None) => return Err(Fetched { kind, entry, token }),
            Err(status) => self.arbiter.complete(token, 0, status),
        }
        Ok(())
    }

    /// Asks the device for more keys of a list. False when the device is busy.
    fn go_on<M: Media>(&mut self, device: &mut Device<M>, number: u64) -> bool {
        let next = match self.flights.get_mut(number) {
            Some(Flight::Io(_, answer)) => answer.next_command(),
            _ => None,
        };
        let Some((namespace, command)) = next else {
            return true;
        };
        match device.submit(self.face, namespace, number, command) {
            Ok(()) => {}
            Err(SubmitError::Busy(_)) => return false,
            Err(SubmitError::Refused(status)) => {
                if let Some(Flight::Io(token, _)) = self.flights.remove(number) {
                    self.arbiter.complete(token, 0, status);
                }
            }
        }
        true
    }

    /// Ends what waits for something else to end: deletions, events, a shutdown, a reset.
    fn settle<M: Media>(&mut self, device: &mut Device<M>, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(queue) = self.arbiter.next_deleted() {
            if let Some(at) = self.deletions.iter().position(|(deleted, _)| *deleted == queue) {
                let (_, token) = self.deletions.swap_remove(at);
                self.arbiter.complete(token, 0, Status::SUCCESS);
            }
            moved = true;
        }
        while let Some(error) = self.arbiter.take_doorbell_error() {
            self.report(error);
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
            let number = self.flights.next();
            match device.submit(self.face, NamespaceId::FIRST, number, Command::Flush) {
                Ok(()) => {
                    self.flights.insert(Flight::Shutdown);
                }
                Err(SubmitError::Busy(_)) => return moved,
                // Nothing can be written any more, and what was acknowledged is durable as it is.
                Err(SubmitError::Refused(_)) => self.controller.shut_down(),
            }
            self.shutting_down = false;
            moved = true;
        }
        if self.resetting && self.flights.is_empty() {
            self.resetting = false;
            self.controller.disabled();
            moved = true;
        }
        moved
    }

    /// Interrupts the guest by the vectors that have completions to announce.
    pub fn interrupt(&mut self, now: Nanos, fire: impl FnMut(u16)) {
        self.arbiter.interrupt(now, fire);
    }

    /// Forgets every queue at once. Commands in flight go on, and their answers go nowhere.
    fn forget_queues(&mut self) {
        self.arbiter.reset(Mechanism::RoundRobin);
        self.rings.clear();
        self.held.take().map(|held| held.token).into_iter().for_each(CommandToken::abandon);
        self.event_requests.drain(..).for_each(CommandToken::abandon);
        self.deletions.drain(..).for_each(|(_, token)| token.abandon());
        // The device has no command of these: they waited to be asked on.
        for number in self.lists.drain(..) {
            self.flights.remove(number).into_iter().for_each(Flight::abandon);
        }
    }

    /// The guest is gone, or power was: everything is as after power on, but what is in flight.
    pub fn abandon(&mut self) {
        self.forget_queues();
        self.controller = Controller::new(*self.controller.config());
        self.resetting = false;
        self.shutting_down = false;
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.flights.is_empty()
    }

    fn report(&mut self, error: DoorbellError) {
        tracing::debug!(%error, "a guest rang wrongly");
        self.controller.notify(match error {
            DoorbellError::NoQueue(_) => AsyncEvent::InvalidDoorbell,
            _ => AsyncEvent::InvalidDoorbellValue,
        });
    }

    /// Asks the guest to announce what it rings; see [`Face::prepare_sleep`](crate::front_end::Face::prepare_sleep).
    pub fn prepare_sleep(&mut self) -> Sleep {
        if !self.controller.is_ready() {
            return Sleep::Until;
        }
        let sleep = self.arbiter.prepare_sleep();
        self.armed = sleep == Sleep::Until;
        sleep
    }

    fn awake(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.arbiter.awake();
        }
    }

    /// When there is something to do that nobody announces.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.arbiter.next_interrupt().into_iter().chain(self.controller.next_deadline()).min()
    }
}

impl Drop for GuestController {
    /// The device goes down: nobody is there to read answers.
    fn drop(&mut self) {
        self.forget_queues();
        self.flights.drain().for_each(Flight::abandon);
    }
}
