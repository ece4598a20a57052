//! The controller's end of one I/O queue pair.
//!
//! In: what a host wrote into its rings, true or not. Out: commands with their tokens, and exactly one completion for
//! each. Invariant: commands fetched and not answered never exceed the completion queue's size; answers that do not fit
//! wait here in order, and while any waits nothing is fetched.
//!
//! ```text
//!             begin_delete                    nothing live, nothing waiting
//!   Serving ---------------> Draining -------------------------------> Drain::Done, removed
//!      |                        |                                          ^
//!      | impossible doorbell    | impossible doorbell, abandon             | nothing live
//!      +--------> Failed <------+------------------> Abandoned ------------+
//! ```

use crate::controller::live_ids::LiveIds;
use crate::controller::token::CommandToken;
use crate::queue_pair::DeviceEnd;
use crate::ring::completion::CompletionProducer;
use crate::ring::doorbell::{DoorbellFault, DoorbellName, Wake};
use crate::ring::submission::SubmissionConsumer;
use crate::spec::command::SubmissionEntry;
use crate::spec::completion::CompletionEntry;
use crate::spec::status::Status;
use headwater_host::ring_memory::RingMemory;
use std::collections::VecDeque;
use std::fmt;
use zerocopy::little_endian::{U16, U32};

/// Names a queue pair of a controller. 0 is the admin queue's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u16);

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

#[derive(Clone, Copy, Debug)]
struct Answer {
    command_id: u16,
    result: u32,
    status: Status,
}

/// The controller's end of one queue pair.
#[derive(Debug)]
pub struct IoQueue<M> {
    id: QueueId,
    kind: QueueKind,
    state: QueueState,
    submissions: SubmissionConsumer<M>,
    completions: CompletionProducer<M>,
    live: LiveIds,
    /// Most commands fetched and not answered.
    live_max: u32,
    /// Answers that found the completion queue full, first in first out.
    unposted: VecDeque<Answer>,
}

impl<M: RingMemory> IoQueue<M> {
    /// A serving queue.
    #[must_use]
    pub fn new(id: QueueId, kind: QueueKind, end: DeviceEnd<M>) -> Self {
        let live_max = end.layout.completion_slots.entries_max();
        // Every live command may find the queue full, and one more answer of a duplicate id.
        let unposted_max = usize::try_from(live_max).map_or(0, |max| max + 1);
        Self {
            id,
            kind,
            state: QueueState::Serving,
            submissions: end.submissions,
            completions: end.completions,
            live: LiveIds::new(),
            live_max,
            unposted: VecDeque::with_capacity(unposted_max),
        }
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Where it is in its life.
    #[must_use]
    pub fn state(&self) -> QueueState {
        self.state
    }

    /// Commands fetched and not answered.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live.count()
    }

    /// Answers that wait for room in the completion queue.
    #[must_use]
    pub fn unposted(&self) -> usize {
        self.unposted.len()
    }

    /// Fetches at most one entry. Never allocates.
    #[inline]
    pub fn fetch(&mut self) -> Fetch {
        if !self.unposted.is_empty() {
            self.post_waiting();
        }
        if self.state != QueueState::Serving || !self.may_fetch() {
            return Fetch::Empty;
        }
        let entry = match self.submissions.fetch() {
            Ok(Some(entry)) => entry,
            Ok(None) => return Fetch::Empty,
            Err(fault) => {
                self.fail(fault);
                return Fetch::Empty;
            }
        };
        let command_id = entry.command_id.get();
        if !self.live.insert(command_id) {
            self.answer(Answer { command_id, result: 0, status: Status::COMMAND_ID_CONFLICT });
            return Fetch::Answered;
        }
        Fetch::Command(Fetched { kind: self.kind, entry, token: CommandToken::new(self.id, command_id) })
    }

    /// Answers a command. `result` is dword 0 of the completion.
    ///
    /// # Panics
    /// When the token is another queue's, or was answered: our own promise is broken.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        assert_eq!(token.queue(), self.id, "a token was answered on a queue it did not come from");
        let command_id = token.answer();
        assert!(self.live.remove(command_id), "a command was answered twice");
        self.answer(Answer { command_id, result, status });
    }

    /// Fence, ring: says whether the host must be woken for the answers since the last call.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        self.completions.ring()
    }

    /// Stops taking commands. What the host rang for so far still gets its completion: what is live from whoever
    /// answers it, the rest [`Status::ABORTED_SQ_DELETION`]. Call [`drain`](Self::drain) until it is done.
    pub fn begin_delete(&mut self) {
        if self.state != QueueState::Serving {
            return;
        }
        match self.submissions.refresh() {
            Ok(()) => self.state = QueueState::Draining,
            Err(fault) => self.fail(fault),
        }
    }

    /// Stops taking commands and forgets answers: the host is gone. Live commands must still be completed.
    pub fn abandon(&mut self) {
        self.state = QueueState::Abandoned;
        self.unposted.clear();
    }

    /// Moves a deletion on as far as the completion queue has room.
    pub fn drain(&mut self) -> Drain {
        self.post_waiting();
        while self.state == QueueState::Draining && self.unposted.is_empty() {
            let Some(entry) = self.submissions.fetch_seen() else {
                break;
            };
            self.answer(Answer {
                command_id: entry.command_id.get(),
                result: 0,
                status: Status::ABORTED_SQ_DELETION,
            });
        }
        if self.live.count() == 0 && self.unposted.is_empty() {
            return Drain::Done;
        }
        Drain::Waiting { live: self.live.count(), unposted: self.unposted.len() }
    }

    /// Whether it takes commands.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.state == QueueState::Serving
    }

    /// Whether a look at this queue would bring something.
    #[must_use]
    pub fn has_work(&self) -> bool {
        if !self.unposted.is_empty() {
            return self.completions.head_moved();
        }
        self.state == QueueState::Serving && self.may_fetch() && self.submissions.has_work()
    }

    /// Asks the host for wake-ups: by its next command, and by its next reap if answers wait for room.
    pub fn arm(&self) {
        self.submissions.arm();
        if !self.unposted.is_empty() {
            self.completions.arm();
        }
    }

    /// Says that this side is awake.
    pub fn disarm(&self) {
        self.submissions.disarm();
        self.completions.disarm();
    }

    fn may_fetch(&self) -> bool {
        self.unposted.is_empty() && self.live.count() < self.live_max
    }

    fn can_post(&self) -> bool {
        match self.state {
            QueueState::Serving | QueueState::Draining => true,
            QueueState::Failed(fault) => fault.doorbell != DoorbellName::CompletionHead,
            QueueState::Abandoned => false,
        }
    }

    fn fail(&mut self, fault: DoorbellFault) {
        self.state = QueueState::Failed(fault);
        if !self.can_post() {
            self.unposted.clear();
        }
    }

    #[inline]
    fn answer(&mut self, answer: Answer) {
        if !self.unposted.is_empty() || !self.post(answer) {
            self.unposted.push_back(answer);
        }
    }

    /// Posts the answers that waited, in order, as far as there is room.
    pub fn post_waiting(&mut self) {
        while let Some(&answer) = self.unposted.front() {
            if !self.post(answer) {
                return;
            }
            // Empty if the host's doorbell turned out impossible meanwhile.
            self.unposted.pop_front();
        }
    }

    /// Posts an answer, or forgets it where nobody can read it. False when it must wait.
    #[inline]
    fn post(&mut self, answer: Answer) -> bool {
        if !self.can_post() {
            return true;
        }
        let entry = CompletionEntry {
            result: U32::new(answer.result),
            reserved: U32::new(0),
            submission_head: U16::new(self.submissions.head()),
            submission_queue: U16::new(self.id.0),
            command_id: U16::new(answer.command_id),
            status_and_phase: U16::new(answer.status.to_field()),
        };
        if self.completions.post(entry).is_ok() {
            return true;
        }
        if let Err(fault) = self.completions.refresh() {
            self.fail(fault);
            return true;
        }
        self.completions.post(entry).is_ok()
    }
}
