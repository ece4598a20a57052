//! A queue pair that another process drives: its rings lie in memory that both share, its doorbells in a page of registers
//! that both have mapped.
//!
//! In, at the owner of the controller: addresses of rings. Out: a [`LentQueue`]. In, at the borrower: what the owner said of
//! it, and the memory. Out: an [`IoQueue`] like one of the owner's, and the [`Lease`] that ends it. Invariant: the owner
//! keeps the memory of the rings, and all memory that the borrower's commands may name, until
//! [`is_over`](LentQueue::is_over) says that the controller touches none of it.
//!
//! Nobody looks at what the borrower submits: it can name every block of the controller, and ring every queue's doorbell of
//! its page.

use super::controller::Controller;
use super::describe::SglUse;
use super::error::{QueueError, RequestError};
use super::function::Function;
use super::io_queue::{DataRules, IoQueue};
use super::life::{Fate, Life, Phase};
use super::list_pages::ListPages;
use super::memory::{Block, HostMemory};
use super::pair::{DoorbellPlaces, Pair, PairMemory, ring_bytes};
use super::requests::{HeldQueue, Outcome, QueueJob, QueueSpec, RingBases, Ticket};
use crate::data_pointer::PageBytes;
use crate::ring::layout::QueueSlots;
use headwater_host::clock::Nanos;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::RingMemory;

/// Where the parts of a lent queue lie in its memory: submissions at its front, the others at multiples of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentLayout {
    /// Offset of the completions.
    pub completions: usize,
    /// Offset of the pages for lists of addresses.
    pub lists: usize,
    /// Length of the whole.
    pub bytes: usize,
}

/// A queue that the controller has for somebody else.
#[derive(Clone, Debug)]
pub struct LentQueue {
    /// Its number at the controller.
    pub id: u16,
    /// Where its doorbells are in BAR0: of the submission tail, and of the completion head.
    pub doorbells: [usize; 2],
    life: Life,
    epoch: u32,
}

impl LentQueue {
    /// Whether a reset, or the end of the controller, took it: then the controller touches no memory of it, unless a dead
    /// controller is not [quiet](Controller::is_quiet).
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.life.fate(self.epoch), Fate::Lost | Fate::Dead)
    }
}

impl<F: Function, H: HostMemory> Controller<F, H> {
    /// How the memory of a lent queue must be laid out.
    ///
    /// # Errors
    /// [`RequestError`] when the controller is not ready, or has no queue so deep.
    pub fn lent_layout(&self, depth: u32) -> Result<LentLayout, RequestError> {
        let capabilities = self.capabilities.ok_or(RequestError::NotReady)?;
        let page = capabilities.page.get() as usize;
        let (submissions, completions) = ring_bytes(capabilities.slots_for(depth)?);
        let completions_at = submissions.next_multiple_of(page);
        let lists = (completions_at + completions).next_multiple_of(page);
        Ok(LentLayout { completions: completions_at, lists, bytes: lists + self.list_bytes(page) })
    }

    /// What holds for every I/O queue; `None` before the controller was ever ready.
    #[must_use]
    pub fn queue_rules(&self) -> Option<QueueRules> {
        let (capabilities, facts) = (self.capabilities?, self.facts.as_ref()?);
        Some(QueueRules {
            page: capabilities.page,
            sgl: if facts.has_sgl { self.config.sgl } else { SglUse::Never },
            transfer_bytes_max: self.transfer_bytes_max(),
            timeout: self.config.command_timeout,
        })
    }

    /// Asks for a queue pair whose memory, zeroed and laid out as [`lent_layout`](Self::lent_layout) says, the controller
    /// reaches from `address` on. Its outcome comes by [`take_lent`](Self::take_lent).
    ///
    /// # Errors
    /// [`RequestError`]: nothing was asked.
    pub fn lend_queue(&mut self, spec: QueueSpec, address: u64, now: Nanos) -> Result<Ticket, RequestError> {
        let (queue, slots) = self.room_for(spec.depth)?;
        let layout = self.lent_layout(spec.depth)?;
        let bases = RingBases {
            submissions: address,
            completions: address.saturating_add(layout.completions as u64),
        };
        self.queues.insert(queue, HeldQueue::lent());
        let job = QueueJob { ticket: self.ticket(), queue, slots, priority: spec.priority, bases, own: None };
        Ok(self.create_queue(job, spec.vector, now))
    }

    /// The lent queue, or why there is none; `None` while it is being made, or for a ticket that is none of such a queue.
    pub fn take_lent(&mut self, ticket: Ticket) -> Option<Result<LentQueue, QueueError>> {
        match self.outcomes.remove(&ticket.number())? {
            Outcome::Lent(outcome) => Some(outcome),
            other => {
                self.outcomes.insert(ticket.number(), other);
                None
            }
        }
    }

    /// A queue that the controller has made.
    pub(super) fn lent(&self, id: u16, doorbells: DoorbellPlaces) -> LentQueue {
        let DoorbellPlaces { tail, head } = doorbells;
        LentQueue { id, doorbells: [tail, head], life: self.life.clone(), epoch: self.life.epoch() }
    }
}

/// What holds for every I/O queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRules {
    /// The controller's page.
    pub page: PageBytes,
    /// Where SGLs are used.
    pub sgl: SglUse,
    /// Most bytes of data in one command.
    pub transfer_bytes_max: u64,
    /// How long a command may take.
    pub timeout: Nanos,
}

/// What a borrower is told of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentTerms {
    /// Number of the queue at the controller.
    pub id: u16,
    /// Most commands in flight.
    pub depth: u32,
    /// Where the doorbells are in the borrower's window of registers: of the submission tail, and of the completion head.
    pub doorbells: [usize; 2],
    /// What holds for all of them.
    pub rules: QueueRules,
}

/// Terms that contradict each other, or the memory and the window that came with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lent queue of depth {depth} makes no sense: {what}")]
pub struct LentFault {
    /// The depth that was said.
    pub depth: u32,
    /// What is wrong.
    pub what: &'static str,
}

/// A borrower's word on its queue.
#[derive(Debug)]
pub struct Lease {
    life: Life,
}

impl Lease {
    /// Something happened to the controller: the queue takes no commands until it is known what.
    pub fn suspend(&self) {
        self.life.set(Phase::Recovering);
    }

    /// Whether it is not known yet.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.life.phase() == Phase::Recovering
    }

    /// The controller has forgotten the queue and touches none of its memory: its commands are lost.
    pub fn end(&self) {
        self.life.next_epoch();
    }

    /// Nobody knows what became of the queue, and nobody will.
    pub fn fail(&self) {
        self.life.set(Phase::Dead);
    }
}

impl<M: RingMemory + Clone, R: Registers> IoQueue<M, R> {
    /// A queue that somebody else's controller has for us: `memory` is laid out as the terms say, and `registers` is the
    /// window with its doorbells.
    ///
    /// # Errors
    /// [`LentFault`]: nothing was touched.
    pub fn borrowed(
        terms: &LentTerms,
        memory: LentMemory<M>,
        registers: R,
        now: Nanos,
    ) -> Result<(Self, Lease), LentFault> {
        let wrong = |what| LentFault { depth: terms.depth, what };
        let slots =
            QueueSlots::new(terms.depth.saturating_add(1)).map_err(|_| wrong("no queue is so deep"))?;
        let (submissions, completions) = ring_bytes(slots);
        let has = |block: &Block<M>, bytes| block.words.words() * 8 >= bytes;
        if !has(&memory.submissions, submissions) || !has(&memory.completions, completions) {
            return Err(wrong("its memory is too short"));
        }
        let [tail, head] = terms.doorbells;
        let is_inside = |at: usize| at.is_multiple_of(4) && at < registers.bytes();
        if !is_inside(tail) || !is_inside(head) || tail == head {
            return Err(wrong("its doorbells do not lie in the page"));
        }
        let LentMemory { submissions, completions, lists } = memory;
        let rings = PairMemory { submissions, completions };
        let pair = Pair::new(terms.id, slots, &rings, registers, DoorbellPlaces { tail, head });
        let QueueRules { page, sgl, transfer_bytes_max, timeout } = terms.rules;
        let lists = ListPages::within(&lists, page);
        let rules = DataRules { sgl, transfer_bytes_max };
        let life = Life::new();
        life.set(Phase::Ready);
        let queue = Self::new(pair, lists, rules, life.clone(), timeout, now);
        Ok((queue, Lease { life }))
    }
}

/// The memory of a lent queue, in its parts.
#[derive(Debug)]
pub struct LentMemory<M> {
    /// The submission ring.
    pub submissions: Block<M>,
    /// The completion ring.
    pub completions: Block<M>,
    /// Pages for lists of addresses.
    pub lists: Block<M>,
}
