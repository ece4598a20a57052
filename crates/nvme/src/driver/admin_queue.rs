//! The admin queue: commands of the driver and of its owner, each with a page for its data.
//!
//! Input: entries with a purpose. Output: the purpose with the completion. Invariant: each purpose is returned once,
//! with a completion or by [`drain_pending`](AdminQueue::drain_pending).

use super::capabilities::ControllerCapabilities;
use super::memory::{DmaBlock, HostMemory};
use super::requests::QueueCreation;
use super::ring_pair::{DoorbellOffsets, PairMemory, ReapedEntry, RingPair, ring_bytes};
use crate::queue_pair::CommandCompletion;
use crate::ring::layout::QueueSlots;
use crate::spec::command::SubmissionEntry;
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;
use zerocopy::little_endian::U64;

/// Slots of the admin queues.
pub(super) const ADMIN_SLOTS: u32 = 32;
/// Bytes of the data page of each admin command.
pub(super) const ADMIN_DATA_BYTES: usize = 4_096;
/// The deadline of a command without one: an Asynchronous Event Request.
const NEVER: Nanos = Nanos(u64::MAX);

/// The purpose of an admin command.
#[derive(Debug)]
pub(super) enum AdminPurpose<M> {
    /// A step of bring-up or of a namespace scan.
    Step(super::bring_up::BringUpStep),
    /// Create I/O Completion Queue.
    CreateCompletion(Box<QueueCreation<M>>),
    /// Create I/O Submission Queue.
    CreateSubmission(Box<QueueCreation<M>>),
    /// Delete I/O Completion Queue after its submission queue was refused.
    DeleteAfterRefusal(Box<QueueCreation<M>>, crate::spec::status::Status),
    /// Delete I/O Submission Queue.
    DeleteSubmission(u16),
    /// Delete I/O Completion Queue.
    DeleteCompletion(u16),
    /// Abort.
    Abort,
    /// Asynchronous Event Request.
    EventRequest,
    /// Get Log Page that clears an event.
    ClearEvent(super::events::AsyncNotice),
    /// A command of the owner, with its ticket.
    OwnerCommand(u64),
}

/// The use of the data page by a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageUse<'a> {
    /// Unused.
    None,
    /// The controller writes it.
    ToHost,
    /// The controller reads these bytes, at most one page.
    FromHost(&'a [u8]),
}

#[derive(Debug)]
struct PendingAdminCommand<M> {
    purpose: AdminPurpose<M>,
    opcode: u8,
    deadline: Nanos,
}

/// A completion with the purpose of its command.
#[derive(Debug)]
pub(super) struct CompletedAdminCommand<M> {
    pub(super) purpose: AdminPurpose<M>,
    pub(super) completion: CommandCompletion,
    /// The command's data page, if it succeeded.
    pub(super) data: Vec<u8>,
}

/// Memory of the admin queue, kept across resets.
#[derive(Clone, Debug)]
pub(super) struct AdminMemory<M> {
    rings: PairMemory<M>,
    data: DmaBlock<M>,
}

impl<M: RingMemory + Clone> AdminMemory<M> {
    /// Allocates it; returns `None` if there is no memory.
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

    /// Returns ASQ and ACQ.
    pub(super) fn bases(&self) -> (u64, u64) {
        (self.rings.submissions.address, self.rings.completions.address)
    }
}

/// The admin queue pair.
#[derive(Debug)]
pub(super) struct AdminQueue<M, R> {
    pair: RingPair<M, R, PendingAdminCommand<M>>,
    data: DmaBlock<M>,
    stray_completions: u32,
}

impl<M: RingMemory + Clone, R: DeviceRegisters> AdminQueue<M, R> {
    /// Creates the queue; its controller must not be enabled yet.
    pub(super) fn new(
        memory: &AdminMemory<M>,
        slots: QueueSlots,
        registers: R,
        capabilities: &ControllerCapabilities,
    ) -> Self {
        let tail = capabilities.doorbell(0);
        let doorbells = DoorbellOffsets { tail, head: tail + capabilities.doorbell_stride };
        let pair = RingPair::new(0, slots, &memory.rings, registers, doorbells);
        Self { pair, data: memory.data.clone(), stray_completions: 0 }
    }
}

impl<M: RingMemory, R: DeviceRegisters> AdminQueue<M, R> {
    /// Returns the number of commands that can be sent now.
    pub(super) fn room(&self) -> u32 {
        self.pair.depth() - self.pair.in_flight()
    }

    /// Writes a command to the ring. Returns the purpose if there is no room.
    pub(super) fn send(
        &mut self,
        mut entry: SubmissionEntry,
        data: PageUse<'_>,
        purpose: AdminPurpose<M>,
        deadline: Option<Nanos>,
    ) -> Result<(), AdminPurpose<M>> {
        // The page belongs to the slot; the entry gets its slot at submission, but the next slot to be used is known.
        let Some(slot) = self.pair.next_slot() else { return Err(purpose) };
        let at = slot * ADMIN_DATA_BYTES;
        match data {
            PageUse::None => {}
            // Bytes that the controller does not write read as zeroes, not as data of an earlier command.
            PageUse::ToHost => self.data.write(at, &[0; ADMIN_DATA_BYTES]),
            PageUse::FromHost(bytes) => self.data.write(at, bytes.get(..ADMIN_DATA_BYTES).unwrap_or(bytes)),
        }
        if !matches!(data, PageUse::None) {
            entry.prp1 = U64::new(self.data.address + at as u64);
        }
        let pending =
            PendingAdminCommand { purpose, opcode: entry.opcode, deadline: deadline.unwrap_or(NEVER) };
        match self.pair.submit(entry, pending) {
            Ok(_) => Ok(()),
            Err(full) => Err(full.context.purpose),
        }
    }

    /// Rings the doorbells.
    pub(super) fn ring(&mut self) {
        self.pair.ring();
    }

    /// Returns the next completion; drops and counts completions of no pending command.
    pub(super) fn reap(&mut self) -> Option<CompletedAdminCommand<M>> {
        for _ in 0..ADMIN_SLOTS {
            match self.pair.reap()? {
                ReapedEntry::Stray => self.stray_completions = self.stray_completions.saturating_add(1),
                ReapedEntry::Completed(completion) => {
                    let CommandCompletion { command, slot, context, result, status } = completion;
                    let completion = CommandCompletion { command, slot, context: (), result, status };
                    let data = match completion.status.is_success() {
                        true => self.data.read(completion.slot * ADMIN_DATA_BYTES, ADMIN_DATA_BYTES),
                        false => Vec::new(),
                    };
                    return Some(CompletedAdminCommand { purpose: context.purpose, completion, data });
                }
            }
        }
        None
    }

    /// Returns the number of stray completions so far, and an impossible submission head.
    pub(super) fn faults(&self) -> (u32, Option<u16>) {
        (self.stray_completions, self.pair.fault().map(|fault| fault.head))
    }

    /// Returns the opcode of an overdue command.
    pub(super) fn overdue_opcode(&self, now: Nanos) -> Option<u8> {
        self.pair.commands().find(|(_, pending)| pending.deadline <= now).map(|(_, pending)| pending.opcode)
    }

    /// Returns the earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.pair.commands().map(|(_, pending)| pending.deadline).min().filter(|&at| at != NEVER)
    }

    /// Returns the purposes of all pending commands, which will not complete any more.
    pub(super) fn drain_pending(&mut self) -> impl Iterator<Item = AdminPurpose<M>> {
        self.pair.take_contexts().map(|pending| pending.purpose)
    }
}
