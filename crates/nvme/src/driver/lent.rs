//! A queue pair that another process drives: its rings lie in memory that both share, its doorbells in a page of
//! registers that both have mapped.
//!
//! Input at the owner of the controller: addresses of rings. Output: a [`LentQueue`]. Input at the borrower: the terms
//! from the owner, and the memory. Output: an [`IoQueue`] like one of the owner's, and the [`QueueLease`] that ends it.
//! Invariant: the owner keeps the memory of the rings, and all memory that the borrower's commands may name, until
//! [`is_invalidated`](LentQueue::is_invalidated) returns true: then the controller accesses none of it.
//!
//! The owner does not check what the borrower submits: the borrower can address every block of the controller, and ring
//! every doorbell in its page.

use super::error::{QueueError, RequestError};
use super::io_queue::{IoQueue, TransferRules};
use super::lifecycle::{DriverPhase, IoQueueState, SharedLifecycle};
use super::list_pages::ListPages;
use super::memory::{DmaBlock, HostMemory};
use super::nvme_driver::NvmeDriver;
use super::pci_function::PciFunction;
use super::pointer_builder::SglUse;
use super::requests::{HeldQueue, QueueCreation, QueueSpec, RequestOutcome, RequestTicket, RingBases};
use super::ring_pair::{DoorbellOffsets, PairMemory, RingPair, ring_bytes};
use crate::data_pointer::PageBytes;
use crate::ring::layout::QueueSlots;
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;

/// The layout of a lent queue's memory: submissions at the front, the other parts at multiples of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentLayout {
    /// Offset of the completions.
    pub completions: usize,
    /// Offset of the list pages.
    pub lists: usize,
    /// Length of all parts.
    pub bytes: usize,
}

/// A queue that another process drives, as the owner of its controller sees it.
#[derive(Clone, Debug)]
pub struct LentQueue {
    /// Queue identifier.
    pub id: u16,
    /// Offsets of its doorbells in BAR0: of the submission tail, and of the completion head.
    pub doorbells: [usize; 2],
    life: SharedLifecycle,
    epoch: u32,
}

impl LentQueue {
    /// Returns true if a reset or the end of the controller invalidated the queue: then the controller accesses no
    /// memory of it, unless a dead controller has not [stopped its DMA](NvmeDriver::is_dma_stopped).
    #[must_use]
    pub fn is_invalidated(&self) -> bool {
        matches!(self.life.queue_state(self.epoch), IoQueueState::Lost | IoQueueState::Dead)
    }
}

impl<F: PciFunction, H: HostMemory> NvmeDriver<F, H> {
    /// Returns the required layout of a lent queue's memory.
    ///
    /// # Errors
    /// [`RequestError`] if the controller is not ready, or the depth is out of range.
    pub fn lent_layout(&self, depth: u32) -> Result<LentLayout, RequestError> {
        let capabilities = self.capabilities.ok_or(RequestError::NotReady)?;
        let page = capabilities.page.get() as usize;
        let (submissions, completions) = ring_bytes(capabilities.slots_for(depth)?);
        let completions_at = submissions.next_multiple_of(page);
        let lists = (completions_at + completions).next_multiple_of(page);
        Ok(LentLayout { completions: completions_at, lists, bytes: lists + self.list_bytes(page) })
    }

    /// Returns the rules of all I/O queues; `None` before the controller was ready for the first time.
    #[must_use]
    pub fn queue_rules(&self) -> Option<QueueRules> {
        let (capabilities, facts) = (self.capabilities?, self.info.as_ref()?);
        Some(QueueRules {
            page: capabilities.page,
            sgl: if facts.has_sgl { self.config.sgl } else { SglUse::Never },
            transfer_bytes_max: self.transfer_bytes_max(),
            timeout: self.config.command_timeout,
        })
    }

    /// Submits the request for a queue pair whose memory the controller reaches from `address` on. The memory must be
    /// zeroed and have the layout of [`lent_layout`](Self::lent_layout). The outcome comes from
    /// [`take_lent`](Self::take_lent).
    ///
    /// # Errors
    /// [`RequestError`]: no command was sent.
    pub fn lend_queue(
        &mut self,
        spec: QueueSpec,
        address: u64,
        now: Nanos,
    ) -> Result<RequestTicket, RequestError> {
        let (queue, slots) = self.find_queue_id(spec.depth)?;
        let layout = self.lent_layout(spec.depth)?;
        let bases = RingBases {
            submissions: address,
            completions: address.saturating_add(layout.completions as u64),
        };
        self.queues.insert(queue, HeldQueue::lent());
        let job =
            QueueCreation { ticket: self.ticket(), queue, slots, priority: spec.priority, bases, own: None };
        Ok(self.send_create_queue(job, spec.vector, now))
    }

    /// Returns the lent queue or its error; `None` while it is being created, or if the ticket is not of a lent queue.
    pub fn take_lent(&mut self, ticket: RequestTicket) -> Option<Result<LentQueue, QueueError>> {
        match self.outcomes.remove(&ticket.number())? {
            RequestOutcome::Lent(outcome) => Some(outcome),
            other => {
                self.outcomes.insert(ticket.number(), other);
                None
            }
        }
    }

    /// Returns the owner's handle to a queue that the controller has created.
    pub(super) fn lent_handle(&self, id: u16, doorbells: DoorbellOffsets) -> LentQueue {
        let DoorbellOffsets { tail, head } = doorbells;
        LentQueue { id, doorbells: [tail, head], life: self.lifecycle.clone(), epoch: self.lifecycle.epoch() }
    }
}

/// The rules of all I/O queues of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRules {
    /// The controller's page size.
    pub page: PageBytes,
    /// The use of SGLs.
    pub sgl: SglUse,
    /// Most bytes of data in one command.
    pub transfer_bytes_max: u64,
    /// Time until a command is overdue.
    pub timeout: Nanos,
}

/// The parameters of a lent queue, as its borrower receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentTerms {
    /// Queue identifier at the controller.
    pub id: u16,
    /// Most commands in flight.
    pub depth: u32,
    /// Offsets of the doorbells in the borrower's window of registers: of the submission tail, and of the completion
    /// head. head.
    pub doorbells: [usize; 2],
    /// The rules of all I/O queues.
    pub rules: QueueRules,
}

/// Terms that contradict each other, or the memory and the window that came with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the terms of a lent queue of depth {depth} are invalid: {contradiction}")]
pub struct LentFault {
    /// The depth in the terms.
    pub depth: u32,
    /// The contradiction.
    pub contradiction: &'static str,
}

/// The borrower's control over its queue's state.
#[derive(Debug)]
pub struct QueueLease {
    life: SharedLifecycle,
}

impl QueueLease {
    /// Stops new commands while the state of the controller is unknown.
    pub fn suspend(&self) {
        self.life.set(DriverPhase::Recovering);
    }

    /// Returns true while the queue is suspended.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.life.phase() == DriverPhase::Recovering
    }

    /// Invalidates the queue: the controller has deleted it and accesses none of its memory, and its commands are lost.
    pub fn invalidate(&self) {
        self.life.next_epoch();
    }

    /// Marks the queue as dead: its state at the controller is unknown and stays unknown.
    pub fn mark_dead(&self) {
        self.life.set(DriverPhase::Dead);
    }
}

impl<M: RingMemory + Clone, R: DeviceRegisters> IoQueue<M, R> {
    /// Creates a queue on another process's controller: `memory` is laid out as the terms require, and `registers` is
    /// the window with its doorbells.
    ///
    /// # Errors
    /// [`LentFault`]: no memory or register was accessed.
    pub fn borrowed(
        terms: &LentTerms,
        memory: LentMemory<M>,
        registers: R,
        now: Nanos,
    ) -> Result<(Self, QueueLease), LentFault> {
        let wrong = |what| LentFault { depth: terms.depth, contradiction: what };
        let slots =
            QueueSlots::new(terms.depth.saturating_add(1)).map_err(|_| wrong("the depth is out of range"))?;
        let (submissions, completions) = ring_bytes(slots);
        let has = |block: &DmaBlock<M>, bytes| block.words.words() * 8 >= bytes;
        if !has(&memory.submissions, submissions) || !has(&memory.completions, completions) {
            return Err(wrong("its memory is too short"));
        }
        let [tail, head] = terms.doorbells;
        let is_inside = |at: usize| at.is_multiple_of(4) && at < registers.bytes();
        if !is_inside(tail) || !is_inside(head) || tail == head {
            return Err(wrong("its doorbells do not lie in the window"));
        }
        let LentMemory { submissions, completions, lists } = memory;
        let rings = PairMemory { submissions, completions };
        let pair = RingPair::new(terms.id, slots, &rings, registers, DoorbellOffsets { tail, head });
        let QueueRules { page, sgl, transfer_bytes_max, timeout } = terms.rules;
        let lists = ListPages::within(&lists, page);
        let rules = TransferRules { sgl, transfer_bytes_max };
        let life = SharedLifecycle::new();
        life.set(DriverPhase::Ready);
        let queue = Self::new(pair, lists, rules, life.clone(), timeout, now);
        Ok((queue, QueueLease { life }))
    }
}

/// The parts of a lent queue's memory.
#[derive(Debug)]
pub struct LentMemory<M> {
    /// The submission ring.
    pub submissions: DmaBlock<M>,
    /// The completion ring.
    pub completions: DmaBlock<M>,
    /// The list pages.
    pub lists: DmaBlock<M>,
}
