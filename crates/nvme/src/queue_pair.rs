//! The host side of an I/O queue pair: submit, ring, reap, and sleep in between.
//!
//! Input: entries without a command id, each with the caller's context. Output: one [`CommandCompletion`] for each
//! accepted entry, with its context; the slot that holds the context is the command id that the device sees. Invariant:
//! a completion of a command that is not in flight, stale or duplicate, is never passed on: an id carries the generation
//! of its slot, and a slot gets a new generation each time it is freed.
//!
//! # Limits
//! It holds no context of a command and wakes no thread: [`WakeDecision`] tells the owner to do so.

pub(crate) mod command_table;

use crate::ring::completion::{CompletionConsumer, CompletionProducer};
use crate::ring::doorbell::WakeDecision;
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::ring::submission::{HeadFault, QueueFull, SubmissionConsumer, SubmissionProducer};
use crate::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use crate::spec::status::Status;
use command_table::CommandTable;
use headwater_host::ring_memory::{HeapWords, RingMemory};
use std::fmt;

/// Most commands in flight on one queue pair: 12 bits of a command id name the slot, the rest its generation.
pub const QUEUE_DEPTH_MAX: u32 = 4_096;

/// The command id in the first word of an entry.
const COMMAND_ID_MASK: u64 = 0xFFFF << 16;

/// The identifier of a command in flight: a slot below the depth, and the generation of its use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(u16);

impl CommandId {
    /// Wraps a command id as it is on the wire; no command in flight need have it.
    #[inline]
    #[must_use]
    pub const fn of(number: u16) -> Self {
        Self(number)
    }

    /// Returns the number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommandId({:04x}h)", self.0)
    }
}

/// The completion of one command, with the context that its submission brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCompletion<C = ()> {
    /// The command; its slot may be used again from now on, with another generation.
    pub command: CommandId,
    /// Slot of the command in a table of [`QueuePair::depth`] entries; free again.
    pub slot: usize,
    /// The context of its submission.
    pub context: C,
    /// Command specific: the full length of a value in bytes, for those that read one.
    pub result: u32,
    /// The status of the command.
    pub status: Status,
}

/// The reason why a queue pair cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The depth is zero or above the limit.
    #[error("queue pair depth {depth} is out of range; choose 1 to {QUEUE_DEPTH_MAX}")]
    Depth {
        /// Requested depth.
        depth: u32,
    },
    /// The ring memory is smaller than the pair.
    #[error(
        "the queue pair needs {words} words of ring memory, but there are {given}; give more or choose a smaller depth"
    )]
    Memory {
        /// Words that the pair needs.
        words: usize,
        /// Words of the given memory.
        given: usize,
    },
}

/// A violation of the protocol by the controller. The entry is consumed; other commands may still complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerFault {
    /// A completion of a command that is not in flight: a duplicate, or older than the use of its slot.
    #[error(
        "completion for command {command_id:04x}h, which is not in flight; reset the queue pair if this repeats"
    )]
    UnknownCommand {
        /// The id in the completion.
        command_id: u16,
    },
    /// A completion with an impossible submission head.
    #[error(transparent)]
    Head(#[from] HeadFault),
}

/// The result of a preparation to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "pending work must be done before sleeping"]
pub enum SleepDecision {
    /// There is no work: sleep; the other side sends a wake-up.
    UntilWoken,
    /// Work has arrived: do not sleep.
    WorkPending,
}

/// The controller side, the input of a [`crate::controller::queue::ControllerQueuePair`].
#[derive(Debug)]
pub struct ControllerEnd<M> {
    pub(crate) submissions: SubmissionConsumer<M>,
    pub(crate) completions: CompletionProducer<M>,
    pub(crate) layout: RingLayout,
}

/// The host side of a queue pair.
#[derive(Debug)]
pub struct QueuePair<M, C = ()> {
    memory: M,
    submissions: SubmissionProducer<M>,
    completions: CompletionConsumer<M>,
    commands: CommandTable<C>,
}

impl<C> QueuePair<HeapWords, C> {
    /// Creates both sides of a pair in this process, for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`QueuePairError::Depth`] outside 1 to [`QUEUE_DEPTH_MAX`].
    pub fn new(depth: u32) -> Result<(Self, ControllerEnd<HeapWords>), QueuePairError> {
        let layout = layout_for(depth)?;
        Self::over(HeapWords::zeroed(layout.words()), depth)
    }
}

impl<M: RingMemory + Clone> ControllerEnd<M> {
    /// Creates only the controller side, if another process creates the host side. Memory that was never used as this
    /// pair must be zero.
    ///
    /// # Errors
    /// [`QueuePairError`] for a depth out of range or too little memory.
    pub fn over(memory: M, depth: u32) -> Result<Self, QueuePairError> {
        let layout = layout_in(&memory, depth)?;
        Ok(Self {
            submissions: SubmissionConsumer::new(memory.clone(), layout),
            completions: CompletionProducer::new(memory, layout),
            layout,
        })
    }
}

impl<M: RingMemory + Clone, C> QueuePair<M, C> {
    /// Creates both sides of a pair in the given memory, which must be zero where it was never used as this pair.
    ///
    /// # Errors
    /// [`QueuePairError`] for a depth out of range or too little memory.
    pub fn over(memory: M, depth: u32) -> Result<(Self, ControllerEnd<M>), QueuePairError> {
        let device = ControllerEnd::over(memory.clone(), depth)?;
        Ok((Self::host_side(memory, depth)?, device))
    }

    /// Creates only the host side, if another process has already created the controller side with the same depth.
    ///
    /// # Errors
    /// [`QueuePairError`] for a depth out of range or too little memory.
    pub fn host_side(memory: M, depth: u32) -> Result<Self, QueuePairError> {
        let layout = layout_in(&memory, depth)?;
        Ok(Self {
            submissions: SubmissionProducer::new(memory.clone(), layout),
            completions: CompletionConsumer::new(memory.clone(), layout),
            memory,
            commands: CommandTable::new(depth),
        })
    }
}

/// Returns the words of ring memory that a pair of this depth needs.
///
/// # Errors
/// [`QueuePairError::Depth`] outside 1 to [`QUEUE_DEPTH_MAX`].
pub fn words_for(depth: u32) -> Result<usize, QueuePairError> {
    layout_for(depth).map(RingLayout::words)
}

impl<M: RingMemory, C> QueuePair<M, C> {
    /// Writes a command and keeps its context; the controller sees it after [`ring`](Self::ring). `Ok` means exactly one
    /// completion will follow.
    ///
    /// # Errors
    /// [`QueueFull`] with the context if [`depth`](Self::depth) commands are in flight, or no fetched slot is reported free
    /// yet: reap, then try again. The pair is unchanged.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a call would load the entry in wider parts than it was just stored in"
    )]
    pub fn submit(&mut self, entry: SubmissionEntry, context: C) -> Result<CommandId, QueueFull<C>> {
        if !self.has_room() {
            return Err(QueueFull { context });
        }
        Ok(self.push_words(entry.to_words(), context))
    }

    /// Returns true if one more command can be submitted.
    #[must_use]
    #[inline]
    pub fn has_room(&self) -> bool {
        self.submissions.room() > 0 && self.commands.has_free_slot()
    }

    /// Submits as [`submit`](Self::submit) does, for an entry in words; its command id is written here.
    ///
    /// # Panics
    /// If there is no [room](Self::has_room): the caller has checked it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call would copy the entry and the context to the stack")]
    pub fn push_words(&mut self, mut words: [u64; SUBMISSION_WORDS], context: C) -> CommandId {
        let Ok(id) = self.commands.insert(context) else {
            panic!("a command submitted to a full queue pair");
        };
        // Bytes 2 and 3. The whole word is stored: a load of an entry that was just written in other parts is slow.
        words[0] = words[0] & !COMMAND_ID_MASK | u64::from(id) << 16;
        self.submissions.push_words(words);
        CommandId(id)
    }

    /// Returns the command's slot in a table of [`depth`](Self::depth) entries; no other command has it until
    /// completion.
    #[must_use]
    #[inline]
    pub fn slot(&self, command: CommandId) -> usize {
        self.commands.slot(command.0)
    }

    /// Iterates over the commands in flight and their contexts.
    pub fn commands(&self) -> impl Iterator<Item = (CommandId, &C)> {
        self.commands.iter().map(|(id, context)| (CommandId(id), context))
    }

    /// Iterates over the commands in flight, to change their contexts.
    pub fn commands_mut(&mut self) -> impl Iterator<Item = (CommandId, &mut C)> {
        self.commands.iter_mut().map(|(id, context)| (CommandId(id), context))
    }

    /// Removes the contexts of all commands in flight: the pair is at its end, and no completion follows.
    pub fn take_contexts(&mut self) -> impl Iterator<Item = C> {
        self.commands.drain()
    }

    /// Publishes the submitted commands, frees reaped slots, fences, and returns whether the controller must be woken.
    #[inline]
    pub fn ring(&mut self) -> WakeDecision {
        // The head first: a controller that sees the new commands also sees the free slots for their completions.
        let reaped = self.completions.publish();
        let submitted = self.submissions.publish();
        if submitted || reaped {
            self.memory.fence();
        }
        let wake = self.submissions.wake_after_fence();
        wake.or(self.completions.wake_after_fence())
    }

    /// Returns the next completion. Its slot is freed for the controller by the next [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`ControllerFault`] for a completion that no correct controller posts; it is consumed and not passed on.
    #[inline]
    pub fn reap(&mut self) -> Result<Option<CommandCompletion<C>>, ControllerFault> {
        self.reap_with(|completion| completion)
    }

    /// Returns what `finish` makes of the next completion. The context moves from its slot to the result, with no copy in
    /// between; therefore the result has the caller's own error.
    ///
    /// # Errors
    /// As for [`reap`](Self::reap).
    #[inline]
    pub fn reap_with<T, E: From<ControllerFault>>(
        &mut self,
        finish: impl FnOnce(CommandCompletion<C>) -> T,
    ) -> Result<Option<T>, E> {
        let Some(entry) = self.completions.reap() else {
            return Ok(None);
        };
        let command_id = entry.command_id.get();
        let unknown = ControllerFault::UnknownCommand { command_id };
        if !self.commands.is_in_flight(command_id) {
            return Err(unknown.into());
        }
        if let Err(fault) = self.submissions.set_head(entry.submission_head.get()) {
            // A wrong head does not change that the command is complete.
            self.commands.remove(command_id);
            return Err(ControllerFault::from(fault).into());
        }
        let (command, result, status) = (CommandId(command_id), entry.result.get(), entry.status());
        let Some((slot, context)) = self.commands.remove(command_id) else {
            return Err(unknown.into());
        };
        Ok(Some(finish(CommandCompletion { command, slot, context, result, status })))
    }

    /// Returns the number of commands accepted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.commands.in_flight()
    }

    /// Returns the most commands in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.commands.depth()
    }

    /// Rings, then requests a wake-up by the next completion. The owner wakes the controller if [`WakeDecision`] requires it;
    /// on [`SleepDecision::UntilWoken`] it then sleeps, and calls [`disarm`](Self::disarm) after the wake-up.
    pub fn prepare_sleep(&mut self) -> (WakeDecision, SleepDecision) {
        let wake = self.ring();
        self.completions.arm();
        if self.completions.has_work() {
            self.completions.disarm();
            return (wake, SleepDecision::WorkPending);
        }
        (wake, SleepDecision::UntilWoken)
    }

    /// Announces that this side is awake, so that completions cost no system call.
    pub fn disarm(&mut self) {
        self.completions.disarm();
    }
}

fn layout_in(memory: &impl RingMemory, depth: u32) -> Result<RingLayout, QueuePairError> {
    let layout = layout_for(depth)?;
    if memory.words() < layout.words() {
        return Err(QueuePairError::Memory { words: layout.words(), given: memory.words() });
    }
    Ok(layout)
}

fn layout_for(depth: u32) -> Result<RingLayout, QueuePairError> {
    let slots = depth
        .checked_add(1)
        .filter(|_| depth <= QUEUE_DEPTH_MAX)
        .and_then(|slots| QueueSlots::new(slots).ok())
        .ok_or(QueuePairError::Depth { depth })?;
    Ok(RingLayout { submission_slots: slots, completion_slots: slots })
}
