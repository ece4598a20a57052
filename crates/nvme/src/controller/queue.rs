//! What a queue of a controller is, and the controller's end of one pair.
//!
//! In: what a host wrote into its rings, true or not. Out: commands with their tokens, and exactly one completion for
//! each. Invariant: a pair is one submission queue and one completion queue of the kind that real hosts make apart; the
//! rules are theirs.

use crate::controller::completion_queue::CompletionQueue;
use crate::controller::submission_queue::SubmissionQueue;
use crate::controller::token::CommandToken;
use crate::queue_pair::DeviceEnd;
use crate::ring::doorbell::{DoorbellFault, Wake};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;
use headwater_host::ring_memory::RingMemory;
use std::fmt;

/// Names a submission queue, a completion queue or a pair of both of a controller. 0 is the admin queue's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

impl QueueId {
    /// The admin queues.
    pub const ADMIN: Self = Self(0);
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.0)
    }
}

/// Which commands a queue takes; fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// The command set of each namespace: Key Value or NVM.
    Standard,
    /// These, and on key spaces the UIO put and get, whose keys lie in client memory.
    Uio,
}

/// Where a queue is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// Takes commands.
    Serving,
    /// Being deleted: takes none, answers all.
    Draining,
    /// Its host wrote an impossible doorbell: takes none. Live commands are still answered if their queue can be trusted.
    Failed(DoorbellFault),
    /// Its host is gone: takes none, and answers go nowhere.
    Abandoned,
}

/// A command and the duty to answer it.
#[derive(Debug)]
pub struct Fetched {
    /// What kind of queue it came from; the token says which one.
    pub kind: QueueKind,
    /// The command, a copy that the host cannot change any more.
    pub entry: SubmissionEntry,
    /// The duty.
    pub token: CommandToken,
}

/// What one look at a queue brought.
#[derive(Debug)]
pub enum Fetch {
    /// A command.
    Command(Fetched),
    /// An entry that was answered on the spot: its command id is in use by a live command.
    Answered,
    /// Nothing that may be fetched now.
    Empty,
}

/// How far a deletion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// Every command has its completion; the queue can be removed.
    Done,
    /// Not yet.
    Waiting {
        /// Commands fetched and not answered.
        live: u32,
        /// Answers that do not fit the completion queue.
        unposted: usize,
    },
}

/// The controller's end of one queue pair.
#[derive(Debug)]
pub struct IoQueue<M> {
    pub(crate) submission: SubmissionQueue<M>,
    pub(crate) completion: CompletionQueue<M>,
}

impl<M: RingMemory> IoQueue<M> {
    /// A serving queue.
    #[must_use]
    pub fn new(id: QueueId, kind: QueueKind, end: DeviceEnd<M>) -> Self {
        let (consumer, completion) = CompletionQueue::of_pair(id, end);
        Self { submission: SubmissionQueue::new(id, id, kind, consumer), completion }
    }

    /// What it is and does.
    #[must_use]
    pub fn view(&self) -> QueueView<'_, M> {
        QueueView { submission: &self.submission, completion: &self.completion }
    }

    /// Fetches at most one entry. Never allocates.
    #[inline]
    pub fn fetch(&mut self) -> Fetch {
        self.submission.fetch(&mut self.completion)
    }

    /// Fetches what there is, and answers each on the spot: with `judge`'s dword 0 and status.
    #[inline]
    pub fn answer_each(&mut self, judge: impl FnMut(&SubmissionEntry) -> (u32, Status)) {
        self.submission.answer_each(&mut self.completion, judge);
    }

    /// Answers a command. `result` is dword 0 of the completion.
    ///
    /// # Panics
    /// When the token is another queue's, or was answered: our own promise is broken.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        self.submission.complete(&mut self.completion, token, result, status);
    }

    /// Posts the answers that waited, in order, as far as there is room.
    pub fn post_waiting(&mut self) {
        self.completion.post_waiting();
    }

    /// Fence, ring: says whether the host must be woken for the answers since the last call.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        self.completion.ring()
    }

    /// Stops taking commands. What the host rang for so far still gets its completion: what is live from whoever
    /// answers it, the rest [`Status::ABORTED_SQ_DELETION`]. Call [`drain`](Self::drain) until it is done.
    pub fn begin_delete(&mut self) {
        self.submission.begin_delete();
    }

    /// Moves a deletion on as far as the completion queue has room.
    pub fn drain(&mut self) -> Drain {
        self.submission.drain(&mut self.completion)
    }

    /// Whether a look at this queue would bring something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.submission.has_work(&self.completion)
    }
}

/// What a submission queue is and does, and the completion queue it answers to.
#[derive(Debug)]
pub struct QueueView<'a, M> {
    pub(crate) submission: &'a SubmissionQueue<M>,
    pub(crate) completion: &'a CompletionQueue<M>,
}

impl<M: RingMemory> QueueView<'_, M> {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.submission.id()
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> QueueState {
        self.submission.state(self.completion)
    }

    /// Commands fetched and not answered.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.submission.live()
    }

    /// Whether a command was fetched and not answered.
    #[must_use]
    pub fn is_live(&self, command_id: u16) -> bool {
        self.submission.is_live(command_id)
    }

    /// Answers that wait for room in the completion queue, of whichever submission queue.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.completion.waiting()
    }
}
