//! The host side of a queue pair of a PCIe controller: rings in memory that the controller reads, doorbells in its
//! registers.
//!
//! Input: entries without a command id. Output: completions of commands in flight, and stray completions. Invariant: a
//! queue of `depth` commands has one slot more (NVMe Base 2.0 section 3.3.1.4), in both rings, so neither can overrun
//! while the controller follows the protocol; a doorbell store is ordered after the entries that it publishes.
use super::memory::DmaBlock;
use crate::queue_pair::command_table::CommandTable;
use crate::queue_pair::{CommandCompletion, CommandId};
use crate::ring::completion::CompletionConsumer;
use crate::ring::layout::QueueSlots;
use crate::ring::submission::{HeadFault, QueueFull, SubmissionProducer};
use crate::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use crate::spec::completion::COMPLETION_WORDS;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;
use zerocopy::little_endian::U16;

/// Bytes of a submission and of a completion entry.
const SUBMISSION_BYTES: usize = SUBMISSION_WORDS * 8;
const COMPLETION_BYTES: usize = COMPLETION_WORDS * 8;

/// The offsets of a pair's doorbells.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoorbellOffsets {
    pub(super) tail: usize,
    pub(super) head: usize,
}

/// A classified entry of the completion queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReapedEntry<C> {
    /// The completion of a command.
    Completed(CommandCompletion<C>),
    /// A completion that names no command in flight, or another queue.
    Stray,
}

/// A submission and completion queue pair.
#[derive(Debug)]
pub(super) struct RingPair<M, R, C> {
    queue: u16,
    submissions: SubmissionProducer<M>,
    completions: CompletionConsumer<M>,
    commands: CommandTable<C>,
    registers: R,
    doorbells: DoorbellOffsets,
    fault: Option<HeadFault>,
}

/// The memory of a pair.
#[derive(Clone, Debug)]
pub(super) struct PairMemory<M> {
    pub(super) submissions: DmaBlock<M>,
    pub(super) completions: DmaBlock<M>,
}

/// Returns the bytes of the two rings of a pair, submissions first.
pub(super) fn ring_bytes(slots: QueueSlots) -> (usize, usize) {
    (slots.get() as usize * SUBMISSION_BYTES, slots.get() as usize * COMPLETION_BYTES)
}

impl<M: RingMemory + Clone, R: DeviceRegisters, C> RingPair<M, R, C> {
    /// Creates a pair that does not exist at the controller yet. Zeroes the completion ring, so that no old entry has a
    /// phase that looks new.
    pub(super) fn new(
        queue: u16,
        slots: QueueSlots,
        memory: &PairMemory<M>,
        registers: R,
        doorbells: DoorbellOffsets,
    ) -> Self {
        let (_, completion_bytes) = ring_bytes(slots);
        memory.completions.zero(completion_bytes);
        Self {
            queue,
            submissions: SubmissionProducer::over(memory.submissions.words.clone(), slots),
            completions: CompletionConsumer::over(memory.completions.words.clone(), slots),
            commands: CommandTable::new(slots.entries_max()),
            registers,
            doorbells,
            fault: None,
        }
    }
}

impl<M: RingMemory, R: DeviceRegisters, C> RingPair<M, R, C> {
    /// Returns the queue identifier.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Writes a command and keeps its context; the controller sees it after [`ring`](Self::ring).
    #[inline]
    pub(super) fn submit(
        &mut self,
        mut entry: SubmissionEntry,
        context: C,
    ) -> Result<CommandId, QueueFull<C>> {
        if self.submissions.room() == 0 {
            return Err(QueueFull { context });
        }
        let id = self.commands.insert(context).map_err(|context| QueueFull { context })?;
        entry.command_id = U16::new(id);
        self.submissions.push_words(entry.to_words());
        Ok(CommandId::of(id))
    }

    /// Returns the slot of the next command, if there is room.
    pub(super) fn next_slot(&self) -> Option<usize> {
        self.commands.next_slot().filter(|_| self.submissions.room() > 0)
    }

    /// Returns true if one more command can be submitted.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.submissions.room() > 0 && self.commands.in_flight() < self.commands.depth()
    }

    /// Returns the command's slot in a table with one entry per command of the depth.
    #[inline]
    pub(super) fn slot(&self, command: CommandId) -> usize {
        self.commands.slot(command.number())
    }

    /// Iterates over the commands in flight.
    pub(super) fn commands(&self) -> impl Iterator<Item = (CommandId, &C)> {
        self.commands.iter().map(|(id, context)| (CommandId::of(id), context))
    }

    /// Iterates over the commands in flight, to change their contexts.
    pub(super) fn commands_mut(&mut self) -> impl Iterator<Item = (CommandId, &mut C)> {
        self.commands.iter_mut().map(|(id, context)| (CommandId::of(id), context))
    }

    /// Removes the contexts of all commands in flight: no completion follows.
    pub(super) fn take_contexts(&mut self) -> impl Iterator<Item = C> {
        self.commands.drain()
    }

    /// Returns the same pair for contexts of another type.
    ///
    /// # Panics
    /// If commands are in flight: their contexts would be lost.
    pub(super) fn carrying<D>(self) -> RingPair<M, R, D> {
        assert!(
            self.commands.in_flight() == 0,
            "the contexts of commands in flight cannot change their type"
        );
        let Self { queue, submissions, completions, commands, registers, doorbells, fault } = self;
        let commands = CommandTable::new(commands.depth());
        RingPair { queue, submissions, completions, commands, registers, doorbells, fault }
    }

    /// Rings the doorbells. The head doorbell is rung only together with the tail doorbell, or when nothing is in
    /// flight: until then no completion needs the freed slots, and each store to a register is expensive.
    #[inline]
    pub(super) fn ring(&mut self) {
        let tail = self.submissions.unpublished();
        if (tail.is_some() || self.commands.in_flight() == 0)
            && let Some(head) = self.completions.unpublished()
        {
            // The head first: a controller that sees the new commands also sees the free slots for their completions.
            self.registers.store32_release(self.doorbells.head, head);
        }
        if let Some(tail) = tail {
            self.registers.store32_release(self.doorbells.tail, tail);
        }
    }

    /// Takes the next entry of the completion queue.
    #[inline]
    pub(super) fn reap(&mut self) -> Option<ReapedEntry<C>> {
        let entry = self.completions.reap()?;
        let command_id = entry.command_id.get();
        if entry.submission_queue.get() != self.queue {
            return Some(ReapedEntry::Stray);
        }
        let Some((slot, context)) = self.commands.remove(command_id) else {
            return Some(ReapedEntry::Stray);
        };
        // A wrong head costs free slots, not the completion: the command is complete in either case.
        if let Err(fault) = self.submissions.set_head(entry.submission_head.get()) {
            self.fault = Some(fault);
        }
        Some(ReapedEntry::Completed(CommandCompletion {
            command: CommandId::of(command_id),
            slot,
            context,
            result: entry.result.get(),
            status: entry.status(),
        }))
    }

    /// Returns true if [`reap`](Self::reap) would return an entry.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.completions.has_work()
    }

    /// Returns the last impossible submission head in a completion.
    pub(super) fn fault(&self) -> Option<HeadFault> {
        self.fault
    }

    /// Returns the number of commands accepted and not yet completed.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.commands.in_flight()
    }

    /// Returns the most commands in flight.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.commands.depth()
    }
}
