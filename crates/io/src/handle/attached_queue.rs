//! One queue of a handle, either its own or shared with other handles.
//!
//! Input: commands with the slots of their requests. Output: their completions. Invariant: the fast path uses only the
//! handle's own queue, which needs no lock.

use super::HANDLE_TOKEN;
use crate::backend::{ArmResult, CompletedCommand, IoLimits};
use crate::clock::IoClock;
use crate::command::Command;
use crate::completion::CompletionPolicy;
use crate::error::{IoError, RejectedCommand};
use crate::queue::Queue;
use crate::selector::{QueueLoad, QueueName};
use crate::shared_queue::{QueueUser, SharedQueue};
use std::os::fd::BorrowedFd;

/// A queue to attach to a handle.
#[derive(Debug)]
pub enum QueueAttachment {
    /// A queue that only this handle uses.
    Own(Queue),
    /// A queue shared with other handles.
    Shared(SharedQueue),
}

impl From<Queue> for QueueAttachment {
    fn from(queue: Queue) -> Self {
        Self::Own(queue)
    }
}

impl From<SharedQueue> for QueueAttachment {
    fn from(queue: SharedQueue) -> Self {
        Self::Shared(queue)
    }
}

/// The connection to the queue, owned or shared.
#[derive(Debug)]
pub(super) enum QueueLink {
    Own(Queue),
    Shared(QueueUser),
}

/// An attached queue and its name.
#[derive(Debug)]
pub(super) struct AttachedQueue {
    pub(super) name: QueueName,
    pub(super) link: QueueLink,
    /// True while the queue is being detached: it receives no new commands.
    pub(super) detaching: bool,
    /// True if an own queue is shared only because a completion thread polls it.
    shared_for_thread: bool,
}

impl AttachedQueue {
    pub(super) fn new(name: QueueName, attachment: QueueAttachment) -> Self {
        let link = match attachment {
            QueueAttachment::Own(queue) => QueueLink::Own(queue),
            QueueAttachment::Shared(shared) => QueueLink::Shared(shared.add_user()),
        };
        Self { name, link, detaching: false, shared_for_thread: false }
    }

    /// Applies a completion policy. An own queue is shared while a thread polls it, and is own again afterwards if no
    /// other handle shares it.
    pub(super) fn apply_policy(
        self,
        policy: CompletionPolicy,
        time: &IoClock,
    ) -> (Self, Result<(), IoError>) {
        let CompletionPolicy::Thread(pace, aggregation) = policy else {
            if let QueueLink::Shared(seat) = &self.link
                && !self.shared_for_thread
            {
                seat.release_thread();
            }
            return (self.reclaim_own(), Ok(()));
        };
        let Self { name, link, detaching, shared_for_thread } = self;
        let (seat, shared_for_thread) = match link {
            QueueLink::Own(mut queue) => {
                // A shared queue names commands by their slots alone.
                queue.visit_tokens(&mut |token| *token &= !HANDLE_TOKEN);
                (SharedQueue::share_busy(queue), true)
            }
            QueueLink::Shared(seat) => (seat, shared_for_thread),
        };
        let started = seat.start_thread(pace, aggregation, time);
        let queue = Self { name, link: QueueLink::Shared(seat), detaching, shared_for_thread };
        match started {
            Ok(()) => (queue, Ok(())),
            Err(error) => (queue.reclaim_own(), Err(error)),
        }
    }

    fn reclaim_own(self) -> Self {
        let Self { name, link, detaching, shared_for_thread } = self;
        let link = match link {
            QueueLink::Shared(seat) if shared_for_thread && !seat.has_completions() => {
                seat.reclaim().map_or_else(QueueLink::Shared, |mut queue| {
                    queue.visit_tokens(&mut |token| *token |= HANDLE_TOKEN);
                    QueueLink::Own(queue)
                })
            }
            link => link,
        };
        let shared_for_thread = shared_for_thread && matches!(link, QueueLink::Shared(_));
        Self { name, link, detaching, shared_for_thread }
    }

    /// Visits the tokens of the commands in flight on a queue that only this handle uses.
    pub(super) fn visit_own_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        if let QueueLink::Own(queue) = &mut self.link {
            queue.visit_tokens(visit);
        }
    }

    pub(super) fn load(&self) -> QueueLoad {
        QueueLoad { name: self.name, in_flight: self.in_flight(), depth: self.depth() }
    }

    pub(super) fn limits(&self) -> IoLimits {
        match &self.link {
            QueueLink::Own(queue) => queue.limits(),
            QueueLink::Shared(seat) => seat.limits(),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        match &self.link {
            QueueLink::Own(queue) => queue.depth(),
            QueueLink::Shared(seat) => seat.depth(),
        }
    }

    /// Returns the number of this handle's commands in flight.
    pub(super) fn in_flight(&self) -> u32 {
        match &self.link {
            QueueLink::Own(queue) => queue.in_flight(),
            QueueLink::Shared(seat) => seat.in_flight(),
        }
    }

    pub(super) fn submit(&mut self, command: Command, slot: u32) -> Result<(), RejectedCommand> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.submit(command, HANDLE_TOKEN | u64::from(slot)),
            QueueLink::Shared(seat) => seat.submit(command, slot),
        }
    }

    pub(super) fn ring(&mut self) -> Result<(), IoError> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.ring(),
            QueueLink::Shared(seat) => seat.ring(),
        }
    }

    pub(super) fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.poll_command(),
            QueueLink::Shared(seat) => Ok(seat.poll()?.map(|mut done| {
                done.completion.token |= HANDLE_TOKEN;
                done
            })),
        }
    }

    /// Sends an abort of a command of the fast path.
    pub(super) fn cancel_token(&mut self, token: u64) -> Result<(), IoError> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.cancel(token),
            QueueLink::Shared(_) => unreachable!("a shared queue carries no command of the fast path"),
        }
    }

    pub(super) fn cancel(&mut self, slot: u32) -> Result<(), IoError> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.cancel(HANDLE_TOKEN | u64::from(slot)),
            QueueLink::Shared(seat) => seat.cancel(slot),
        }
    }

    pub(super) fn arm(&mut self) -> Result<ArmResult, IoError> {
        match &mut self.link {
            QueueLink::Own(queue) => queue.arm(),
            QueueLink::Shared(seat) => seat.arm(),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            QueueLink::Own(queue) => queue.descriptor(),
            QueueLink::Shared(seat) => seat.descriptor(),
        }
    }
}
