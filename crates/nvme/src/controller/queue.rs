//! The types that describe a controller's queues, and the controller side of one queue pair.
//!
//! Input: what a host wrote into its rings, valid or not. Output: commands with their tokens, and exactly one
//! completion for each. Invariant: a pair is one submission queue and one completion queue, and follows the rules of
//! queues that hosts create separately.

use crate::controller::completion_queue::CompletionQueue;
use crate::controller::submission_queue::SubmissionQueue;
use crate::controller::token::CommandToken;
use crate::queue_pair::ControllerEnd;
use crate::ring::doorbell::{DoorbellFault, WakeDecision};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;
use headwater_host::ring_memory::RingMemory;
use std::fmt;

/// The number of a submission queue, a completion queue or a pair. 0 is the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

impl QueueId {
    /// The admin queue pair.
    pub const ADMIN: Self = Self(0);
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

/// The commands that a queue accepts; fixed at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// The command set of each namespace: Key Value or NVM.
    Standard,
    /// The standard commands, and on key spaces also UIO put and get, whose keys lie in client memory.
    Uio,
}

/// The lifecycle state of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Accepts commands.
    Serving,
    /// Being deleted: accepts no command, completes every command that it accepted.
    Draining,
    /// Stopped by an invalid doorbell value: accepts no command. Live commands are still completed unless their
    /// completion queue failed.
    Failed(DoorbellFault),
    /// Abandoned because its host is gone: accepts no command and discards completions.
    Abandoned,
}

/// A command and the token that obliges its holder to complete it.
#[derive(Debug)]
pub struct FetchedCommand {
    /// The kind of the queue that the command came from; the token names the queue.
    pub kind: QueueKind,
    /// The command, a copy that the host cannot change.
    pub entry: SubmissionEntry,
    /// The token to complete it with.
    pub token: CommandToken,
}

/// The outcome of one fetch from a queue.
#[derive(Debug)]
pub enum FetchOutcome {
    /// A fetched command.
    Command(FetchedCommand),
    /// An entry that was completed at once because a live command uses its id.
    Completed,
    /// No entry can be fetched now.
    Empty,
}

/// The progress of a queue deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainProgress {
    /// Every command has its completion; the queue can be removed.
    Done,
    /// The deletion is not complete.
    Waiting {
        /// Commands fetched and not completed.
        live: u32,
        /// Completions that do not fit the completion queue.
        unposted: usize,
    },
}

/// The controller side of one queue pair.
#[derive(Debug)]
pub struct ControllerQueuePair<M> {
    pub(crate) submission: SubmissionQueue<M>,
    pub(crate) completion: CompletionQueue<M>,
}

impl<M: RingMemory> ControllerQueuePair<M> {
    /// Creates a serving queue pair.
    #[must_use]
    pub fn new(id: QueueId, kind: QueueKind, end: ControllerEnd<M>) -> Self {
        let (consumer, completion) = CompletionQueue::of_pair(id, end);
        Self { submission: SubmissionQueue::new(id, id, kind, consumer), completion }
    }

    /// Returns a read-only view of both queues.
    #[must_use]
    pub fn view(&self) -> QueueView<'_, M> {
        QueueView { submission: &self.submission, completion: &self.completion }
    }

    /// Fetches at most one entry. Never allocates.
    #[inline]
    pub fn fetch(&mut self) -> FetchOutcome {
        self.submission.fetch(&mut self.completion)
    }

    /// Fetches every available entry and completes each at once with the dword 0 and status that `answer` returns.
    #[inline]
    pub fn complete_each(&mut self, answer: impl FnMut(&SubmissionEntry) -> (u32, Status)) {
        self.submission.complete_each(&mut self.completion, answer);
    }

    /// Completes a command. `result` is dword 0 of the completion.
    ///
    /// # Panics
    /// If the token belongs to another queue or was completed before: both are bugs of the caller.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        self.submission.complete(&mut self.completion, token, result, status);
    }

    /// Posts the completions that wait for room, in order, until the completion queue is full.
    pub fn post_waiting(&mut self) {
        self.completion.post_waiting();
    }

    /// Issues a fence and returns whether the host must be woken for the completions posted since the last call.
    #[inline]
    pub fn ring(&mut self) -> WakeDecision {
        self.completion.ring()
    }

    /// Stops accepting commands. Each command that the host submitted before still gets a completion: live commands
    /// from their token holders, the rest [`Status::ABORTED_SQ_DELETION`]. Call [`drain`](Self::drain) until it returns
    /// [`DrainProgress::Done`].
    pub fn begin_delete(&mut self) {
        self.submission.begin_delete();
    }

    /// Advances a deletion as far as the completion queue has room.
    pub fn drain(&mut self) -> DrainProgress {
        self.submission.drain(&mut self.completion)
    }

    /// Returns true if a fetch would return an entry, or a waiting completion can be posted.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.submission.has_work(&self.completion)
    }
}

/// A read-only view of a submission queue and its completion queue.
#[derive(Debug)]
pub struct QueueView<'a, M> {
    pub(crate) submission: &'a SubmissionQueue<M>,
    pub(crate) completion: &'a CompletionQueue<M>,
}

impl<M: RingMemory> QueueView<'_, M> {
    /// Returns the number of the submission queue.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.submission.id()
    }

    /// Returns the lifecycle state of the submission queue.
    #[must_use]
    pub fn state(&self) -> QueueState {
        self.submission.state(self.completion)
    }

    /// Returns the number of commands fetched and not completed.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.submission.live()
    }

    /// Returns true if a command with this id was fetched and not completed.
    #[must_use]
    pub fn is_live(&self, command_id: u16) -> bool {
        self.submission.is_live(command_id)
    }

    /// Returns the number of completions that wait for room in the completion queue, of all its submission queues.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.completion.waiting()
    }
}
