//! The host's half of an I/O queue pair: submit, ring, reap, and the way to sleep in between.
//!
//! In: entries without a command id. Out: one [`Completion`] for each accepted entry, named by the [`CommandId`] that
//! submit gave. Invariant: an answer to a command that is not in flight, stale or doubled, is never passed on: an id
//! carries the generation of its slot, and a slot gets a new generation each time it is freed.
//!
//! # What this does not do
//! It holds no context for a command and wakes nobody: [`Wake`] tells the owner to.

pub(crate) mod command_ids;

use crate::ring::completion::{CompletionConsumer, CompletionProducer};
use crate::ring::doorbell::Wake;
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::ring::submission::{HeadFault, QueueFull, SubmissionConsumer, SubmissionProducer};
use crate::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use crate::spec::status::Status;
use command_ids::CommandIds;
use headwater_host::ring_memory::{RingMemory, SharedWords};
use std::fmt;

/// Most commands in flight on one queue pair: 12 bits of a command id name the slot, the rest its generation.
pub const QUEUE_DEPTH_MAX: u32 = 4_096;

/// The command id in the first word of an entry.
const COMMAND_ID_MASK: u64 = 0xFFFF << 16;

/// Names a command in flight: a slot below the depth, and the generation of its use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(u16);

impl CommandId {
    /// The command of this number on the wire, if one is in flight.
    #[inline]
    #[must_use]
    pub const fn of(number: u16) -> Self {
        Self(number)
    }

    /// The number on the wire.
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

/// The answer to one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which command; its id may be given out again from now on, with another generation.
    pub command: CommandId,
    /// Place of the command in a table of [`QueuePair::depth`] entries; free again.
    pub slot: usize,
    /// Command specific: the full length of a value in bytes, for those that read one.
    pub result: u32,
    /// What became of it.
    pub status: Status,
}

/// How a queue pair cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The depth is zero or above the limit.
    #[error("a queue pair of depth {depth} was asked for; choose 1 to {QUEUE_DEPTH_MAX}")]
    Depth {
        /// What was asked for.
        depth: u32,
    },
    /// The ring memory is smaller than the pair.
    #[error(
        "the queue pair takes {words} words of ring memory, but there are {given}; give more or ask for less depth"
    )]
    Memory {
        /// What the pair takes.
        words: usize,
        /// What there is.
        given: usize,
    },
}

/// The controller broke the protocol. The entry is taken; other commands may still be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControllerFault {
    /// An answer to a command that is not in flight: it came twice, or is older than the use of its slot.
    #[error(
        "completion for command {command_id:04x}h, which is not in flight; reset the queue pair if it goes on"
    )]
    UnknownCommand {
        /// The id it named.
        command_id: u16,
    },
    /// An answer with an impossible submission head.
    #[error(transparent)]
    Head(#[from] HeadFault),
}

/// Whether the caller may go to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "work that came meanwhile must be done before sleeping"]
pub enum Sleep {
    /// Nothing to do: the other side will wake us.
    Until,
    /// Something came meanwhile.
    No,
}

/// The controller's half, to be made into a [`crate::controller::queue::IoQueue`].
#[derive(Debug)]
pub struct DeviceEnd<M> {
    pub(crate) submissions: SubmissionConsumer<M>,
    pub(crate) completions: CompletionProducer<M>,
    pub(crate) layout: RingLayout,
}

/// The host's half.
#[derive(Debug)]
pub struct QueuePair<M> {
    memory: M,
    submissions: SubmissionProducer<M>,
    completions: CompletionConsumer<M>,
    ids: CommandIds,
    depth: u32,
}

impl QueuePair<SharedWords> {
    /// A pair in this process for up to `depth` commands in flight: the host's half and the controller's.
    ///
    /// # Errors
    /// [`QueuePairError::Depth`] outside 1 to [`QUEUE_DEPTH_MAX`].
    pub fn new(depth: u32) -> Result<(Self, DeviceEnd<SharedWords>), QueuePairError> {
        let layout = layout_for(depth)?;
        Self::over(SharedWords::zeroed(layout.words()), depth)
    }
}

impl<M: RingMemory + Clone> DeviceEnd<M> {
    /// The controller's half alone, when the host's is made by another process. The memory must be zero where it was
    /// never used as this pair.
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

impl<M: RingMemory + Clone> QueuePair<M> {
    /// A pair in given memory, which must be zero where it was never used as this pair.
    ///
    /// # Errors
    /// [`QueuePairError`] for a depth out of range or too little memory.
    pub fn over(memory: M, depth: u32) -> Result<(Self, DeviceEnd<M>), QueuePairError> {
        let device = DeviceEnd::over(memory.clone(), depth)?;
        Ok((Self::host_half(memory, depth)?, device))
    }

    /// The host's half alone, when the controller's was made by another process, with the same depth and before this.
    ///
    /// # Errors
    /// [`QueuePairError`] for a depth out of range or too little memory.
    pub fn host_half(memory: M, depth: u32) -> Result<Self, QueuePairError> {
        let layout = layout_in(&memory, depth)?;
        Ok(Self {
            submissions: SubmissionProducer::new(memory.clone(), layout),
            completions: CompletionConsumer::new(memory.clone(), layout),
            memory,
            ids: CommandIds::new(depth),
            depth,
        })
    }
}

/// Words of ring memory that a pair of this depth takes.
///
/// # Errors
/// [`QueuePairError::Depth`] outside 1 to [`QUEUE_DEPTH_MAX`].
pub fn words_for(depth: u32) -> Result<usize, QueuePairError> {
    layout_for(depth).map(RingLayout::words)
}

impl<M: RingMemory> QueuePair<M> {
    /// Writes a command; the controller sees it after [`ring`](Self::ring). `Ok` means exactly one completion will follow.
    ///
    /// # Errors
    /// [`QueueFull`] when [`depth`](Self::depth) commands are in flight, or fetched ones are not yet known to be: reap,
    /// then try again. Nothing happened.
    #[inline]
    pub fn submit(&mut self, entry: SubmissionEntry) -> Result<CommandId, QueueFull> {
        self.submit_words(entry.to_words())
    }

    /// As [`submit`](Self::submit), for an entry that is in words already; its command id is written here.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit).
    #[inline]
    pub fn submit_words(&mut self, mut words: [u64; SUBMISSION_WORDS]) -> Result<CommandId, QueueFull> {
        if self.submissions.room() == 0 {
            return Err(QueueFull);
        }
        let id = self.ids.take().ok_or(QueueFull)?;
        // Bytes 2 and 3; the word as a whole, because an entry that was just written in parts is slow to load in others.
        words[0] = words[0] & !COMMAND_ID_MASK | u64::from(id) << 16;
        self.submissions.push_words(words)?;
        Ok(CommandId(id))
    }

    /// The place of a command in a table of [`depth`](Self::depth) entries; stays its own until it completes.
    #[must_use]
    #[inline]
    pub fn slot(&self, command: CommandId) -> usize {
        self.ids.slot(command.0)
    }

    /// Write, fence, ring: shows the submitted commands to the controller, gives reaped slots back to it, and says
    /// whether it must be woken.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        // Slots first: a controller that sees the new commands also sees the room for their answers.
        let reaped = self.completions.publish();
        let submitted = self.submissions.publish();
        if submitted || reaped {
            self.memory.fence();
        }
        let wake = self.submissions.wake_after_fence();
        wake.or(self.completions.wake_after_fence())
    }

    /// Takes the next answer. Its slot goes back to the controller with the next [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`ControllerFault`] for an answer that no correct controller gives; it is taken and not passed on.
    #[inline]
    pub fn reap(&mut self) -> Result<Option<Completion>, ControllerFault> {
        let Some(entry) = self.completions.reap() else {
            return Ok(None);
        };
        let command_id = entry.command_id.get();
        let Some(slot) = self.ids.give_back(command_id) else {
            return Err(ControllerFault::UnknownCommand { command_id });
        };
        // A wrong head costs room, not the answer: the command is over either way.
        let completion = Completion {
            command: CommandId(command_id),
            slot,
            result: entry.result.get(),
            status: entry.status(),
        };
        self.submissions.set_head(entry.submission_head.get())?;
        Ok(Some(completion))
    }

    /// Commands accepted and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.ids.in_flight()
    }

    /// Most commands in flight.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Rings, then asks to be woken by the next completion. When the answer is [`Sleep::Until`] the owner wakes the
    /// controller if the [`Wake`] says so, sleeps, and calls [`awake`](Self::awake).
    pub fn prepare_sleep(&mut self) -> (Wake, Sleep) {
        let wake = self.ring();
        self.completions.arm();
        if self.completions.has_work() {
            self.completions.disarm();
            return (wake, Sleep::No);
        }
        (wake, Sleep::Until)
    }

    /// Says that this side is awake, so that completions cost no call into the kernel.
    pub fn awake(&mut self) {
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
