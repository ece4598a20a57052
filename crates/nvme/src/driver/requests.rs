//! Requests of the controller's owner: create and delete queues, aborts, admin commands; and the handling of events.
//!
//! Input: requests. Output: a ticket for each, and later its outcome. Invariant: a ticket has exactly one outcome; the
//! memory of a queue stays allocated until the controller has deleted the queue or was certainly disabled or reset.

use super::admin_queue::{ADMIN_DATA_BYTES, AdminPurpose, PageUse};
use super::bring_up::BringUpStep;
use super::entries;
use super::error::{QueueError, RequestError, ResetCause};
use super::events::{AsyncNotice, NOTICES_MAX};
use super::io_queue::{IoQueue, TransferRules};
use super::lent::LentQueue;
use super::list_pages::ListPages;
use super::memory::{DmaBlock, HostMemory};
use super::nvme_driver::NvmeDriver;
use super::pci_function::PciFunction;
use super::recovery::DriverState;
use super::ring_pair::{DoorbellOffsets, PairMemory, RingPair, ring_bytes};
use crate::queue_pair::{CommandCompletion, CommandId};
use crate::ring::layout::QueueSlots;
use crate::spec::command::SubmissionEntry;
use crate::spec::priority::QueuePriority;
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use headwater_host::width::to_usize;

/// Most aborts that wait to be sent.
const ABORTS_WAITING_MAX: usize = 256;
/// Slots of the admin queue reserved for the driver's own commands.
const ADMIN_RESERVE: u32 = 8;
/// List pages of a queue beyond those of one command of maximum length.
const LIST_PAGES: usize = 64;

/// The parameters of a requested I/O queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// Most commands in flight.
    pub depth: u32,
    /// The interrupt vector of its completion queue; `None` for no interrupts.
    pub vector: Option<u16>,
    /// Its priority class, if the controller has weighted round robin.
    pub priority: QueuePriority,
}

/// The identifier of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestTicket(u64);

impl RequestTicket {
    pub(super) const fn number(self) -> u64 {
        self.0
    }
}

/// The reply to an admin command of the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminReply {
    /// The status; [`Status::ABORTED_BY_HOST`] if the controller was reset or is dead.
    pub status: Status,
    /// Dword 0 of the completion.
    pub result: u32,
    /// The data page of a command that transfers data to the host and succeeded.
    pub data: Vec<u8>,
}

/// Data of an admin command of the owner: at most 4,096 bytes.
#[derive(Clone, Copy, Debug)]
pub enum AdminRequestData<'a> {
    /// None.
    None,
    /// From the controller.
    ToHost,
    /// To the controller.
    FromHost(&'a [u8]),
}

/// The bus addresses of a pair's rings.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingBases {
    pub(super) submissions: u64,
    pub(super) completions: u64,
}

/// Memory of a queue that this process drives.
#[derive(Debug)]
pub(super) struct OwnedQueueMemory<M> {
    rings: PairMemory<M>,
    lists: DmaBlock<M>,
}

/// A queue that is being created.
#[derive(Debug)]
pub(super) struct QueueCreation<M> {
    pub(super) ticket: RequestTicket,
    pub(super) queue: u16,
    pub(super) slots: QueueSlots,
    pub(super) priority: QueuePriority,
    pub(super) bases: RingBases,
    /// `None` for a lent queue.
    pub(super) own: Option<OwnedQueueMemory<M>>,
}

/// A queue that exists at the controller, or that it is creating.
#[derive(Debug)]
pub(super) struct HeldQueue<M> {
    /// Empty for a lent queue: its lender keeps the memory.
    memory: Vec<DmaBlock<M>>,
    deleting: bool,
}

impl<M> HeldQueue<M> {
    pub(super) fn lent() -> Self {
        Self { memory: Vec::new(), deleting: false }
    }

    /// Returns the queue's memory, to be leaked if the controller does not stop.
    pub(super) fn into_memory(self) -> Vec<DmaBlock<M>> {
        self.memory
    }
}

/// A requested queue, or the reason for its failure.
pub type QueueResult<M, R> = Result<Box<IoQueue<M, R>>, QueueError>;

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum RequestOutcome<M, R> {
    Queue(QueueResult<M, R>),
    Lent(Result<LentQueue, QueueError>),
    Admin(AdminReply),
}

impl<M, R> RequestOutcome<M, R> {
    /// Returns the outcome of a queue whose creation failed.
    fn creation_failed(job: &QueueCreation<M>, error: QueueError) -> Self {
        if job.own.is_some() { Self::Queue(Err(error)) } else { Self::Lent(Err(error)) }
    }
}

impl<F: PciFunction, H: HostMemory> NvmeDriver<F, H> {
    /// Submits the request for a queue pair. Its outcome comes from [`take_queue`](Self::take_queue).
    ///
    /// # Errors
    /// [`RequestError`]: no command was sent.
    pub fn request_queue(&mut self, spec: QueueSpec, now: Nanos) -> Result<RequestTicket, RequestError> {
        let (queue, slots) = self.find_queue_id(spec.depth)?;
        let depth = spec.depth;
        let page = self.capabilities.ok_or(RequestError::NotReady)?.page.get() as usize;
        let (submissions, completions) = ring_bytes(slots);
        let lists = self.list_bytes(page);
        let mut take = |bytes| self.memory.take(bytes, page).ok_or(RequestError::Memory { depth });
        let rings = PairMemory { submissions: take(submissions)?, completions: take(completions)? };
        let lists = take(lists)?;
        let memory = vec![rings.submissions.clone(), rings.completions.clone(), lists.clone()];
        self.queues.insert(queue, HeldQueue { memory, deleting: false });
        // The ring may have held another queue: its old entries must not look new before the controller writes there.
        rings.completions.zero(completions);
        let bases =
            RingBases { submissions: rings.submissions.address, completions: rings.completions.address };
        let own = Some(OwnedQueueMemory { rings, lists });
        let job = QueueCreation { ticket: self.ticket(), queue, slots, priority: spec.priority, bases, own };
        Ok(self.send_create_queue(job, spec.vector, now))
    }

    /// Returns a free queue identifier for a queue of that depth, and its slots.
    pub(super) fn find_queue_id(&self, depth: u32) -> Result<(u16, QueueSlots), RequestError> {
        let DriverState::Ready { .. } = self.state else { return Err(RequestError::NotReady) };
        let (Some(capabilities), Some(facts)) = (self.capabilities, &self.info) else {
            return Err(RequestError::NotReady);
        };
        let slots = capabilities.slots_for(depth)?;
        let granted = facts.io_queues;
        let free = (1..=granted).find(|queue| !self.queues.contains_key(queue));
        let queue = free.ok_or(RequestError::NoQueue { granted })?;
        if self.admin_room() == 0 { Err(RequestError::Busy) } else { Ok((queue, slots)) }
    }

    /// Sends the first command that creates the pair; its identifier is already reserved.
    pub(super) fn send_create_queue(
        &mut self,
        job: QueueCreation<H::Words>,
        vector: Option<u16>,
        now: Nanos,
    ) -> RequestTicket {
        let ticket = job.ticket;
        let entry =
            entries::create_completion_queue(job.queue, job.slots.get(), job.bases.completions, vector);
        self.send(entry, PageUse::None, AdminPurpose::CreateCompletion(Box::new(job)), now);
        ticket
    }

    /// Returns the queue or its error; `None` while it is being created, or if the ticket is not of a queue.
    pub fn take_queue(&mut self, ticket: RequestTicket) -> Option<QueueResult<H::Words, F::Registers>> {
        match self.outcomes.remove(&ticket.0)? {
            RequestOutcome::Queue(outcome) => Some(outcome),
            other => {
                self.outcomes.insert(ticket.0, other);
                None
            }
        }
    }

    /// Deletes a queue: the controller completes or aborts its commands. Once [`has_queue`](Self::has_queue) returns
    /// false, the controller accesses none of their memory any more.
    ///
    /// # Errors
    /// [`RequestError`]: no command was sent.
    pub fn delete_queue(&mut self, queue: u16, now: Nanos) -> Result<(), RequestError> {
        if !matches!(self.state, DriverState::Ready { .. }) {
            return Err(RequestError::NotReady);
        }
        if self.admin_room() == 0 {
            return Err(RequestError::Busy);
        }
        if let Some(held) = self.queues.get_mut(&queue)
            && !std::mem::replace(&mut held.deleting, true)
        {
            let entry = entries::delete_submission_queue(queue);
            self.send(entry, PageUse::None, AdminPurpose::DeleteSubmission(queue), now);
        }
        Ok(())
    }

    /// Returns true if a queue of this identifier may still exist at the controller.
    #[must_use]
    pub fn has_queue(&self, queue: u16) -> bool {
        self.queues.contains_key(&queue)
    }

    /// Submits the request to abort a command. In either case the command has exactly one completion, on its own queue.
    ///
    /// # Errors
    /// [`RequestError`]: no abort was queued.
    pub fn abort(&mut self, queue: u16, command: CommandId, now: Nanos) -> Result<(), RequestError> {
        if !matches!(self.state, DriverState::Ready { .. }) {
            return Err(RequestError::NotReady);
        }
        if self.aborts.len() >= ABORTS_WAITING_MAX {
            return Err(RequestError::Busy);
        }
        self.aborts.push_back((queue, command.number()));
        self.send_aborts(now);
        Ok(())
    }

    /// Sends an admin command of the owner. Its outcome comes from [`take_reply`](Self::take_reply).
    ///
    /// # Errors
    /// [`RequestError`]: no command was sent.
    pub fn submit_admin(
        &mut self,
        entry: SubmissionEntry,
        data: AdminRequestData<'_>,
        now: Nanos,
    ) -> Result<RequestTicket, RequestError> {
        let DriverState::Ready { .. } = self.state else { return Err(RequestError::NotReady) };
        let page = match data {
            AdminRequestData::None => PageUse::None,
            AdminRequestData::ToHost => PageUse::ToHost,
            AdminRequestData::FromHost(bytes) if bytes.len() > ADMIN_DATA_BYTES => {
                return Err(RequestError::Data { bytes: bytes.len(), max: ADMIN_DATA_BYTES });
            }
            AdminRequestData::FromHost(bytes) => PageUse::FromHost(bytes),
        };
        if self.admin_room() == 0 {
            return Err(RequestError::Busy);
        }
        let ticket = self.ticket();
        self.send(entry, page, AdminPurpose::OwnerCommand(ticket.0), now);
        Ok(ticket)
    }

    /// Returns the reply to an admin command; `None` while there is none.
    pub fn take_reply(&mut self, ticket: RequestTicket) -> Option<AdminReply> {
        match self.outcomes.remove(&ticket.0)? {
            RequestOutcome::Admin(reply) => Some(reply),
            other => {
                self.outcomes.insert(ticket.0, other);
                None
            }
        }
    }

    /// Scans all namespaces again. [`namespaces`](Self::namespaces) changes at the end of the scan.
    ///
    /// # Errors
    /// [`RequestError`]: no scan was started.
    pub fn rescan(&mut self, now: Nanos) -> Result<(), RequestError> {
        if !matches!(self.state, DriverState::Ready { .. }) {
            return Err(RequestError::NotReady);
        }
        if self.scan.running {
            self.scan.rescan = true;
        } else {
            self.begin(BringUpStep::Active { after: 0 }, now);
        }
        Ok(())
    }

    pub(super) fn ticket(&mut self) -> RequestTicket {
        self.next_ticket += 1;
        RequestTicket(self.next_ticket)
    }

    /// Returns the number of commands that the owner may send now; the driver reserves some slots for itself.
    fn admin_room(&self) -> u32 {
        self.admin.as_ref().map_or(0, |admin| admin.room().saturating_sub(ADMIN_RESERVE))
    }

    fn send(
        &mut self,
        entry: SubmissionEntry,
        page: PageUse<'_>,
        purpose: AdminPurpose<H::Words>,
        now: Nanos,
    ) {
        let deadline = Some(now.after(self.config.admin_timeout));
        let Some(admin) = &mut self.admin else { return };
        match admin.send(entry, page, purpose, deadline) {
            Ok(()) => admin.ring(),
            Err(purpose) => {
                // Slots are reserved, so only a controller that does not advance its submission head causes this.
                self.fail_request(purpose);
                self.start_reset(ResetCause::AdminTimeout { opcode: entry.opcode }, now);
            }
        }
    }

    /// Returns the bytes of list pages: enough for the longest command, and for many commands of one page each.
    pub(super) fn list_bytes(&self, page: usize) -> usize {
        let pages = to_usize(self.transfer_bytes_max()) / page + 1;
        (pages.div_ceil(page / 8 - 1) + LIST_PAGES) * page
    }

    /// Returns the most bytes of data in one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        let ours = self.config.transfer_bytes_max;
        self.info.as_ref().and_then(|facts| facts.transfer_bytes_max).map_or(ours, |theirs| theirs.min(ours))
    }

    pub(super) fn send_aborts(&mut self, now: Nanos) {
        let max = self.info.as_ref().map_or(1, |facts| facts.aborts_max);
        while self.aborts_in_flight < max.min(ADMIN_RESERVE / 2)
            && let Some((queue, command)) = self.aborts.pop_front()
        {
            self.aborts_in_flight += 1;
            self.send(entries::abort(queue, command), PageUse::None, AdminPurpose::Abort, now);
        }
    }

    /// Processes the completion of a request's command, or of a command that followed from one.
    pub(super) fn finish_request(
        &mut self,
        purpose: AdminPurpose<H::Words>,
        completion: CommandCompletion,
        data: Vec<u8>,
        now: Nanos,
    ) {
        let status = completion.status;
        match purpose {
            AdminPurpose::CreateCompletion(job) if status.is_success() => {
                let base = job.bases.submissions;
                let entry = entries::create_submission_queue(job.queue, job.slots.get(), base, job.priority);
                self.send(entry, PageUse::None, AdminPurpose::CreateSubmission(job), now);
            }
            AdminPurpose::CreateCompletion(job) => {
                self.queues.remove(&job.queue);
                let refused = RequestOutcome::creation_failed(&job, QueueError::Refused(status));
                self.outcomes.insert(job.ticket.0, refused);
            }
            AdminPurpose::CreateSubmission(job) if status.is_success() => {
                self.finish_queue_creation(*job, now);
            }
            AdminPurpose::CreateSubmission(job) => {
                let entry = entries::delete_completion_queue(job.queue);
                self.send(entry, PageUse::None, AdminPurpose::DeleteAfterRefusal(job, status), now);
            }
            AdminPurpose::DeleteAfterRefusal(job, why) => {
                if status.is_success() {
                    self.queues.remove(&job.queue);
                }
                let refused = RequestOutcome::creation_failed(&job, QueueError::Refused(why));
                self.outcomes.insert(job.ticket.0, refused);
            }
            AdminPurpose::DeleteSubmission(queue) if status.is_success() => {
                let entry = entries::delete_completion_queue(queue);
                self.send(entry, PageUse::None, AdminPurpose::DeleteCompletion(queue), now);
            }
            AdminPurpose::DeleteCompletion(queue) if status.is_success() => {
                self.queues.remove(&queue);
            }
            // A queue whose deletion fails exists until the next reset, and holds its memory until then.
            AdminPurpose::DeleteSubmission(_) | AdminPurpose::DeleteCompletion(_) => {}
            AdminPurpose::Abort => {
                self.aborts_in_flight = self.aborts_in_flight.saturating_sub(1);
                self.send_aborts(now);
            }
            AdminPurpose::OwnerCommand(ticket) => {
                let reply = AdminReply { status, result: completion.result, data };
                self.outcomes.insert(ticket, RequestOutcome::Admin(reply));
            }
            AdminPurpose::Step(_) | AdminPurpose::EventRequest | AdminPurpose::ClearEvent(_) => {}
        }
    }

    fn finish_queue_creation(&mut self, job: QueueCreation<H::Words>, now: Nanos) {
        let (Some(capabilities), Some(rules)) = (self.capabilities, self.queue_rules()) else { return };
        let tail = capabilities.doorbell(job.queue);
        let doorbells = DoorbellOffsets { tail, head: tail + capabilities.doorbell_stride };
        let Some(OwnedQueueMemory { rings, lists }) = job.own else {
            let lent = self.lent_handle(job.queue, doorbells);
            self.outcomes.insert(job.ticket.0, RequestOutcome::Lent(Ok(lent)));
            return;
        };
        let registers = self.function.registers().clone();
        let pair = RingPair::new(job.queue, job.slots, &rings, registers, doorbells);
        let lists = ListPages::within(&lists, capabilities.page);
        let data = TransferRules { sgl: rules.sgl, transfer_bytes_max: rules.transfer_bytes_max };
        let queue = IoQueue::new(pair, lists, data, self.lifecycle.clone(), rules.timeout, now);
        self.outcomes.insert(job.ticket.0, RequestOutcome::Queue(Ok(Box::new(queue))));
    }

    /// Sends an Asynchronous Event Request.
    pub(super) fn send_event_request(&mut self) {
        if let Some(admin) = &mut self.admin {
            // If the queue is full, there is one request fewer until the next reset.
            let _ = admin.send(entries::event_request(), PageUse::None, AdminPurpose::EventRequest, None);
            admin.ring();
        }
    }

    pub(super) fn handle_event(&mut self, completion: CommandCompletion, now: Nanos) {
        // A refused request is not repeated: the controller accepts no more of them.
        if !completion.status.is_success() {
            return;
        }
        let notice = AsyncNotice::of(completion.result);
        if self.event_notices.len() < NOTICES_MAX {
            self.event_notices.push_back(notice);
        }
        let entry = entries::log_page(notice.log_page, notice.log_bytes());
        self.send(entry, PageUse::ToHost, AdminPurpose::ClearEvent(notice), now);
    }

    pub(super) fn finish_event(&mut self, notice: AsyncNotice, now: Nanos) {
        self.send_event_request();
        if notice.is_namespace_change() {
            // The error can be ignored: if the controller is not ready, bring-up scans the namespaces anyway.
            let _ = self.rescan(now);
        }
    }

    /// Fails every request that waits for a completion of the admin queue.
    pub(super) fn fail_pending(&mut self) {
        self.aborts.clear();
        self.aborts_in_flight = 0;
        self.scan = super::bring_up::NamespaceScan::default();
        if let Some(admin) = &mut self.admin {
            let lost: Vec<_> = admin.drain_pending().collect();
            lost.into_iter().for_each(|purpose| self.fail_request(purpose));
        }
    }

    fn fail_request(&mut self, purpose: AdminPurpose<H::Words>) {
        match purpose {
            AdminPurpose::CreateCompletion(job)
            | AdminPurpose::CreateSubmission(job)
            | AdminPurpose::DeleteAfterRefusal(job, _) => {
                self.outcomes.insert(job.ticket.0, RequestOutcome::creation_failed(&job, QueueError::Reset));
            }
            AdminPurpose::OwnerCommand(ticket) => {
                let reply = AdminReply { status: Status::ABORTED_BY_HOST, result: 0, data: Vec::new() };
                self.outcomes.insert(ticket, RequestOutcome::Admin(reply));
            }
            _ => {}
        }
    }
}
