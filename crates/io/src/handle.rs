//! What an application thread calls: a handle on a namespace, over one queue or several, with its own policies.
//!
//! In: [`Request`]s in bytes, with buffers lent for as long as they take. Out: one answer for each accepted request, with its
//! buffers. Invariant: `Ok` from [`submit`](Handle::submit) means exactly one answer follows, also when the request was
//! divided, merged, cancelled or given up, and whichever policies and queues were changed meanwhile; a request that is
//! refused reached no device, and its buffers come back with the reason.
//!
//! ```text
//!   submit --judge--> short way: one command, one queue of its own, in order       --> queue
//!                 \-> long way:  selector -> scheduler, merging -> window -> divide --> queues
//!   poll, wait    <-- (whole again, each member of a group its own answer)         <-- completion policy
//! ```
//!
//! The short way is taken while the handle has one queue of its own, schedules first come first served and looks for
//! completions itself: then a request is one table entry and one command, without allocation, lock or clock.
//!
//! # Order
//! Requests that are not answered have no order among each other, as commands of NVMe have none. A flush covers what was
//! answered before it was submitted.
//!
mod blocking;
mod builder;
mod error;
mod flow;
mod giving_up;
mod lane;
mod policies;
mod request;
mod slots;
mod waiting;

pub use blocking::Failed;
pub use builder::HandleBuilder;
pub use error::{Refused, RequestError};
pub use giving_up::Cancelled;
pub use lane::Attachment;
pub use request::{Operation, Request};

use crate::backend::{Answer, Limits};
use crate::command::{Command, Data};
use crate::completion::{CompletionPolicy, Period};
use crate::error::{IoError, Rejected, SubmitError};
use crate::queue::Completion;
use crate::scheduler::{Merger, Merging, Scheduler, Window};
use crate::selector::Selector;
use crate::timepiece::Timepiece;
use headwater_host::clock::Nanos;
use lane::{Lane, Link};
use request::Geometry;
use slots::{Kind, Slots};
use std::collections::{BTreeSet, VecDeque};

/// A handle. It belongs to one thread at a time, and may go to another.
#[derive(Debug)]
pub struct Handle {
    geometry: Geometry,
    lanes: Vec<Lane>,
    slots: Slots,
    /// What every queue can do.
    limits: Limits,
    /// Most bytes of a read or write that is one command.
    plain_bytes_max: u64,
    /// Whether queues and policies allow the short way.
    plain: bool,
    /// Requests on the long way, and answers that wait to be taken: while there are any, everything goes the long way.
    detours: u32,
    /// Parts of divided requests that are in flight.
    parts: u32,
    /// Accepted requests beyond what the queues hold.
    waiting_max: u32,
    names: u32,
    selector: Selector,
    scheduler: Scheduler,
    merging: Merging,
    merger: Merger,
    window: Window,
    window_max: u32,
    completion: CompletionPolicy,
    period: Period,
    /// Chosen by the scheduler, not all of it given to a queue.
    outgoing: VecDeque<u32>,
    ready: VecDeque<Answer>,
    /// The answer that a blocking call waits for.
    awaited: Option<Answer>,
    deadlines: BTreeSet<(Nanos, u32)>,
    time: Timepiece,
}

impl Handle {
    /// Takes a request. It goes to a device with the next [`ring`](Self::ring), [`poll`](Self::poll) or
    /// [`wait`](Self::wait), so that several go together. `Ok` means that exactly one answer with this token will follow.
    ///
    /// # Errors
    /// [`Refused`], with the request: nothing happened.
    #[inline]
    pub fn submit(&mut self, request: Request, token: u64) -> Result<(), Refused> {
        if let Err(error) = self.geometry.judge(&request, &self.limits) {
            return Err(Geometry::refuse(request, error));
        }
        let alone = matches!(request.data, Data::FromDevice(_) | Data::ToDevice(_))
            && request.operation != Operation::Discard;
        if self.plain
            && self.detours == 0
            && alone
            && request.bytes <= self.plain_bytes_max
            && request.within.is_none()
            && let [Lane { link: Link::Own(queue), .. }] = self.lanes.as_mut_slice()
            && let Some(place) = self.slots.take(token, Kind::Plain, 0)
        {
            let Request { operation, offset, bytes, data, class, within } = request;
            let entry = self.geometry.entry(operation, offset, bytes);
            let Err(rejected) = queue.submit(Command { entry, data }, place.into()) else {
                return Ok(());
            };
            let request = Request { operation, offset, bytes, data: Data::None, class, within };
            return self.rejected(request, rejected, place, token);
        }
        self.submit_long(request, token)
    }

    /// The queue did not take it: it waits here, if it may.
    #[cold]
    fn rejected(
        &mut self,
        request: Request,
        rejected: Rejected,
        place: u32,
        token: u64,
    ) -> Result<(), Refused> {
        self.slots.give_back(place);
        let request = Request { data: rejected.command.data, ..request };
        match rejected.reason {
            SubmitError::Full => self.submit_long(request, token),
            reason => Err(Geometry::refuse(request, reason.into())),
        }
    }

    /// Shows the devices what was submitted, as far as policies and queues let it go.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), IoError> {
        if self.detours > 0 {
            let now = self.now();
            self.give_out(now);
        }
        self.lanes.iter_mut().try_for_each(Lane::ring)
    }

    /// Takes the next answer, if one has come. Its token is the request's, its data the request's buffers.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Answer>, IoError> {
        if self.plain
            && self.detours == 0
            && let [Lane { link: Link::Own(queue), .. }] = self.lanes.as_mut_slice()
        {
            let Some(Answer { completion, data }) = queue.poll_with()? else {
                return Ok(None);
            };
            let place = u32::try_from(completion.token).unwrap_or(slots::NOWHERE);
            let token = self.slots.give_back(place);
            return Ok(Some(Answer { completion: Completion { token, ..completion }, data }));
        }
        self.poll_long()
    }

    /// Requests accepted and not yet answered to the caller.
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        let ready = u32::try_from(self.ready.len()).unwrap_or(u32::MAX);
        (self.slots.used() - self.parts).saturating_add(ready)
    }

    /// Most requests that it accepts: what its queues hold, and what may wait.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.depth().saturating_add(self.waiting_max)
    }

    /// Bytes of a block: what offsets and lengths are multiples of.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes()
    }

    /// One past the last byte that may be touched.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.geometry.end()
    }

    /// What one command of its queues can be; larger requests are divided.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn depth(&self) -> u32 {
        self.lanes.iter().map(Lane::depth).fold(0, u32::saturating_add)
    }

    /// The time, if a policy needs it.
    fn now(&self) -> Nanos {
        if self.is_timed() { self.time.now() } else { Nanos::ZERO }
    }
}

#[cfg(test)]
mod tests;
