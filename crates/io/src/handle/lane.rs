//! One queue of a handle, its own or shared with others.
//!
//! In: commands with the places of their requests. Out: their answers. Invariant: the handle's short way knows one kind,
//! its own queue, which costs no lock.

use crate::backend::{Answer, Armed, Limits};
use crate::command::Command;
use crate::completion::CompletionPolicy;
use crate::error::{IoError, Rejected};
use crate::queue::Queue;
use crate::selector::{QueueLoad, QueueName};
use crate::shared_queue::{Seat, SharedQueue};
use crate::timepiece::Timepiece;
use std::os::fd::BorrowedFd;

/// A queue that is, or can be, attached to a handle.
#[derive(Debug)]
pub enum Attachment {
    /// The handle's own.
    Own(Queue),
    /// One that other handles use too.
    Shared(SharedQueue),
}

impl From<Queue> for Attachment {
    fn from(queue: Queue) -> Self {
        Self::Own(queue)
    }
}

impl From<SharedQueue> for Attachment {
    fn from(queue: SharedQueue) -> Self {
        Self::Shared(queue)
    }
}

/// The way to the queue.
#[derive(Debug)]
pub(super) enum Link {
    Own(Queue),
    Shared(Seat),
}

/// A queue and its name.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: QueueName,
    pub(super) link: Link,
    /// Gets nothing more.
    pub(super) leaving: bool,
    /// It is shared only because a thread looks at it.
    adopted: bool,
}

impl Lane {
    pub(super) fn new(name: QueueName, attachment: Attachment) -> Self {
        let link = match attachment {
            Attachment::Own(queue) => Link::Own(queue),
            Attachment::Shared(shared) => Link::Shared(shared.seat()),
        };
        Self { name, link, leaving: false, adopted: false }
    }

    /// Does its part of a completion policy. A queue of the handle's own becomes a shared one while a thread looks at it,
    /// and is its own again afterwards, if nobody else came to it.
    pub(super) fn follow(self, policy: CompletionPolicy, time: &Timepiece) -> (Self, Result<(), IoError>) {
        let CompletionPolicy::Thread(pace, aggregation) = policy else {
            return (self.by_itself(), Ok(()));
        };
        let Self { name, link, leaving, adopted } = self;
        let (seat, adopted) = match link {
            Link::Own(queue) => (SharedQueue::adopting(queue), true),
            Link::Shared(seat) => (seat, adopted),
        };
        let started = seat.queue().start_thread(pace, aggregation, time);
        let lane = Self { name, link: Link::Shared(seat), leaving, adopted };
        match started {
            Ok(()) => (lane, Ok(())),
            Err(error) => (lane.by_itself(), Err(error)),
        }
    }

    fn by_itself(self) -> Self {
        let Self { name, link, leaving, adopted } = self;
        let link = match link {
            Link::Shared(seat) if adopted && !seat.has_mail() => {
                seat.reclaim().map_or_else(Link::Shared, Link::Own)
            }
            link => link,
        };
        let adopted = adopted && matches!(link, Link::Shared(_));
        Self { name, link, leaving, adopted }
    }

    pub(super) fn load(&self) -> QueueLoad {
        QueueLoad { name: self.name, in_flight: self.in_flight(), depth: self.depth() }
    }

    pub(super) fn limits(&self) -> Limits {
        match &self.link {
            Link::Own(queue) => queue.limits(),
            Link::Shared(seat) => seat.limits(),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        match &self.link {
            Link::Own(queue) => queue.depth(),
            Link::Shared(seat) => seat.depth(),
        }
    }

    /// Commands of this handle.
    pub(super) fn in_flight(&self) -> u32 {
        match &self.link {
            Link::Own(queue) => queue.in_flight(),
            Link::Shared(seat) => seat.in_flight(),
        }
    }

    pub(super) fn submit(&mut self, command: Command, place: u32) -> Result<(), Rejected> {
        match &mut self.link {
            Link::Own(queue) => queue.submit(command, place.into()),
            Link::Shared(seat) => seat.submit(command, place),
        }
    }

    pub(super) fn ring(&mut self) -> Result<(), IoError> {
        match &mut self.link {
            Link::Own(queue) => queue.ring(),
            Link::Shared(seat) => seat.ring(),
        }
    }

    pub(super) fn poll(&mut self) -> Result<Option<Answer>, IoError> {
        match &mut self.link {
            Link::Own(queue) => queue.poll_with(),
            Link::Shared(seat) => seat.poll(),
        }
    }

    pub(super) fn cancel(&mut self, place: u32) -> Result<(), IoError> {
        match &mut self.link {
            Link::Own(queue) => queue.cancel(place.into()),
            Link::Shared(seat) => seat.cancel(place),
        }
    }

    pub(super) fn arm(&mut self) -> Result<Armed, IoError> {
        match &mut self.link {
            Link::Own(queue) => queue.arm(),
            Link::Shared(seat) => seat.arm(),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Own(queue) => queue.descriptor(),
            Link::Shared(seat) => seat.descriptor(),
        }
    }
}
