//! The admin queue: commands of the driver's own and of its owner, each with a page for its data.
//!
//! In: entries with a purpose. Out: the purpose again with the answer. Invariant: each purpose comes back once, by an
//! answer or by [`lose`](AdminQueue::lose).

use super::capabilities::Capabilities;
use super::memory::{Block, HostMemory};
use super::pair::{DoorbellPlaces, Pair, PairMemory, Reaped, ring_bytes};
use super::requests::QueueJob;
use crate::queue_pair::Completion;
use crate::ring::layout::QueueSlots;
use crate::spec::command::SubmissionEntry;
use headwater_host::clock::Nanos;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::RingMemory;
use zerocopy::little_endian::U64;

/// Slots of the admin queues.
pub(super) const ADMIN_SLOTS: u32 = 32;
/// Bytes of data that come with an admin command.
pub(super) const ADMIN_DATA_BYTES: usize = 4_096;
/// A command that is answered when something happens has no deadline.
const NEVER: Nanos = Nanos(u64::MAX);

/// What an admin command is for.
#[derive(Debug)]
pub(super) enum Purpose<M> {
    /// A step of bringing up or looking again.
    Step(super::bring_up::Step),
    /// Create I/O Completion Queue.
    CreateCompletion(Box<QueueJob<M>>),
    /// Create I/O Submission Queue.
    CreateSubmission(Box<QueueJob<M>>),
    /// Delete I/O Completion Queue, whose submission queue was refused.
    Undo(Box<QueueJob<M>>, crate::spec::status::Status),
    /// Delete I/O Submission Queue.
    DeleteSubmission(u16),
    /// Delete I/O Completion Queue.
    DeleteCompletion(u16),
    /// Abort.
    Abort,
    /// Asynchronous Event Request.
    Event,
    /// Get Log Page that lets an event go.
    Clear(super::events::AsyncNotice),
    /// The owner's.
    Asked(u64),
}

/// What a command does with its data page.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageUse<'a> {
    /// Nothing.
    None,
    /// The controller writes it.
    ToHost,
    /// The controller reads these bytes, at most a page of them.
    FromHost(&'a [u8]),
}

#[derive(Debug)]
struct Pending<M> {
    purpose: Purpose<M>,
    opcode: u8,
    deadline: Nanos,
}

/// An answer, and what it is the answer to.
#[derive(Debug)]
pub(super) struct AdminAnswered<M> {
    pub(super) purpose: Purpose<M>,
    pub(super) completion: Completion,
    /// The command's data page, when it succeeded.
    pub(super) data: Vec<u8>,
}

/// Memory of the admin queue, which outlives resets.
#[derive(Clone, Debug)]
pub(super) struct AdminMemory<M> {
    rings: PairMemory<M>,
    data: Block<M>,
}

impl<M: RingMemory + Clone> AdminMemory<M> {
    /// Takes it; `None` when there is none.
    pub(super) fn take(
        memory: &mut impl HostMemory<Words = M>,
        page: usize,
        slots: QueueSlots,
    ) -> Option<Self> {
        let (submissions, completions) = ring_bytes(slots);
        Some(Self {
            rings: PairMemory {
                submissions: memory.take(submissions, page)?,
                completions: memory.take(completions, page)?,
            },
            data: memory.take(slots.get() as usize * ADMIN_DATA_BYTES, page)?,
        })
    }

    /// ASQ and ACQ.
    pub(super) fn bases(&self) -> (u64, u64) {
        (self.rings.submissions.address, self.rings.completions.address)
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct AdminQueue<M, R> {
    pair: Pair<M, R>,
    data: Block<M>,
    pending: Box<[Option<Pending<M>>]>,
    strays: u32,
}

impl<M: RingMemory + Clone, R: Registers> AdminQueue<M, R> {
    /// The queue before its controller is enabled.
    pub(super) fn new(
        memory: &AdminMemory<M>,
        slots: QueueSlots,
        registers: R,
        capabilities: &Capabilities,
    ) -> Self {
        let tail = capabilities.doorbell(0);
        let doorbells = DoorbellPlaces { tail, head: tail + capabilities.doorbell_stride };
        let pair = Pair::new(0, slots, &memory.rings, registers, doorbells);
        let pending = (0..pair.depth()).map(|_| None).collect();
        Self { pair, data: memory.data.clone(), pending, strays: 0 }
    }
}

impl<M: RingMemory, R: Registers> AdminQueue<M, R> {
    /// Commands that can be sent now.
    pub(super) fn room(&self) -> u32 {
        self.pair.depth() - self.pair.in_flight()
    }

    /// Sends a command. The purpose comes back when there is no room.
    pub(super) fn send(
        &mut self,
        mut entry: SubmissionEntry,
        data: PageUse<'_>,
        purpose: Purpose<M>,
        deadline: Option<Nanos>,
    ) -> Result<(), Purpose<M>> {
        // The page goes by the slot, which the entry gets only when it is submitted; the next one to be given out is known.
        let Some(slot) = self.pair.next_slot() else { return Err(purpose) };
        let at = slot * ADMIN_DATA_BYTES;
        match data {
            PageUse::None => {}
            // What the controller does not write reads as zeroes, not as the answer before.
            PageUse::ToHost => self.data.write(at, &[0; ADMIN_DATA_BYTES]),
            PageUse::FromHost(bytes) => self.data.write(at, bytes.get(..ADMIN_DATA_BYTES).unwrap_or(bytes)),
        }
        if !matches!(data, PageUse::None) {
            entry.prp1 = U64::new(self.data.address + u64::try_from(at).unwrap_or(0));
        }
        let opcode = entry.opcode;
        if self.pair.submit(entry).is_err() {
            return Err(purpose);
        }
        self.pending[slot] = Some(Pending { purpose, opcode, deadline: deadline.unwrap_or(NEVER) });
        Ok(())
    }

    /// Shows what was sent.
    pub(super) fn ring(&mut self) {
        self.pair.ring();
    }

    /// Takes the next answer; what answers nothing is dropped and counted.
    pub(super) fn reap(&mut self) -> Option<AdminAnswered<M>> {
        for _ in 0..ADMIN_SLOTS {
            match self.pair.reap()? {
                Reaped::Stray => self.strays = self.strays.saturating_add(1),
                Reaped::Answer(completion) => {
                    let pending = self.pending.get_mut(completion.slot).and_then(Option::take);
                    let Some(Pending { purpose, .. }) = pending else { continue };
                    let data = match completion.status.is_success() {
                        true => self.data.read(completion.slot * ADMIN_DATA_BYTES, ADMIN_DATA_BYTES),
                        false => Vec::new(),
                    };
                    return Some(AdminAnswered { purpose, completion, data });
                }
            }
        }
        None
    }

    /// Answers to nothing so far, and an impossible submission head.
    pub(super) fn faults(&self) -> (u32, Option<u16>) {
        (self.strays, self.pair.fault().map(|fault| fault.head))
    }

    /// The opcode of a command that takes too long.
    pub(super) fn overdue(&self, now: Nanos) -> Option<u8> {
        let late = |pending: &&Pending<M>| pending.deadline <= now;
        self.pending.iter().flatten().find(late).map(|pending| pending.opcode)
    }

    /// When the next command is overdue.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.pending.iter().flatten().map(|pending| pending.deadline).min().filter(|&at| at != NEVER)
    }

    /// The purposes of everything that will not be answered any more.
    pub(super) fn lose(&mut self) -> impl Iterator<Item = Purpose<M>> {
        self.pending.iter_mut().filter_map(Option::take).map(|pending| pending.purpose)
    }
}
