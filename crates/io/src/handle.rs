//! The application's interface to a namespace: a handle over one or several queues, with its own policies.
//!
//! Input: [`IoRequest`]s in bytes, with buffers lent until completion. Output: one completion for each accepted request,
//! with its buffers. Invariant: `Ok` from [`submit`](Handle::submit) means exactly one completion follows, also when
//! the request is divided, merged or cancelled, and when policies and queues change while it is in flight; a refused
//! request reaches no device, and its buffers come back with the reason.
//!
//! ```text
//!   submit --validate--> fast path: one command on the handle's own queue, in order          --> queue
//!                    \-> slow path: selector -> scheduler, merging -> window -> divide --> queues
//!   poll, wait    <-- (parts reassembled; each member of a group has its own completion) <-- completion policy
//! ```
//!
//! A request takes the fast path while the handle has one queue of its own, schedules first come first served and polls
//! inline: the queue then keeps the caller's token and buffers in the slot whose number is the command identifier that the
//! device sees, and the handle keeps nothing of the request. No allocation, lock or clock. Commands of the slow path carry
//! [`HANDLE_TOKEN`] at the queue; a request whose own token has that bit takes the slow path.
//!
//! # Order
//! Outstanding requests have no order among each other, like NVMe commands. A flush covers the requests that completed
//! before it was submitted.
mod attached_queue;
mod blocking;
mod builder;
mod cancel;
mod error;
mod policies;
mod request;
mod request_table;
mod slow_path;
mod waiting;

pub use attached_queue::QueueAttachment;
pub use blocking::FailedRequest;
pub use builder::HandleBuilder;
pub use cancel::RequestCancellation;
pub use error::{RefusedRequest, RequestError};
pub use request::{IoRequest, RequestOperation};

use crate::backend::{CompletedCommand, IoLimits};
use crate::clock::IoClock;
use crate::command::{Command, TransferData};
use crate::completion::{CompletionPolicy, PollPeriod};
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::scheduler::{InFlightWindow, MergePolicy, RequestMerger, RequestScheduler};
use crate::selector::QueueSelector;
use attached_queue::{AttachedQueue, QueueLink};
use headwater_host::clock::Nanos;
use request::NamespaceGeometry;
use request_table::RequestTable;
use std::collections::{BTreeSet, VecDeque};

/// The bit of a token at a queue that marks a command of the slow path; the rest of the token is the slot of its request.
const HANDLE_TOKEN: u64 = 1 << 63;

/// A handle on a namespace. One thread uses it at a time; it may move between threads.
#[derive(Debug)]
pub struct Handle {
    geometry: NamespaceGeometry,
    lanes: Vec<AttachedQueue>,
    slots: RequestTable,
    /// The limits that every queue supports.
    limits: IoLimits,
    /// The largest read or write that is one command, in bytes.
    plain_bytes_max: u64,
    /// True if queues and policies allow the fast path.
    plain: bool,
    /// Requests on the fast path that are in flight.
    plain_in_flight: u32,
    /// Requests on the slow path plus completions not yet taken. While it is not 0, every request takes the slow path.
    detours: u32,
    /// Parts of divided requests that are in flight.
    parts: u32,
    /// The number of accepted requests beyond what the queues hold.
    waiting_max: u32,
    names: u32,
    selector: QueueSelector,
    scheduler: RequestScheduler,
    merging: MergePolicy,
    merger: RequestMerger,
    window: InFlightWindow,
    window_max: u32,
    completion: CompletionPolicy,
    period: PollPeriod,
    /// Requests that the scheduler chose and that are not fully submitted to a queue.
    outgoing: VecDeque<u32>,
    ready: VecDeque<CompletedCommand>,
    /// The completion that a blocking call waits for.
    awaited: Option<CompletedCommand>,
    deadlines: BTreeSet<(Nanos, u32)>,
    time: IoClock,
}

impl Handle {
    /// Accepts a request. It reaches a device with the next [`ring`](Self::ring), [`poll`](Self::poll) or
    /// [`wait`](Self::wait), so that several are submitted together. `Ok` means that exactly one completion with this
    /// token follows.
    ///
    /// # Errors
    /// [`RefusedRequest`], with the request: it had no effect.
    #[inline]
    pub fn submit(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest> {
        if let Err(error) = self.geometry.judge(&request, &self.limits) {
            return Err(NamespaceGeometry::refuse(request, error));
        }
        let alone = matches!(request.data, TransferData::FromDevice(_) | TransferData::ToDevice(_))
            && request.operation != RequestOperation::Discard;
        if self.plain
            && self.detours == 0
            && alone
            && token & HANDLE_TOKEN == 0
            && request.bytes <= self.plain_bytes_max
            && request.within.is_none()
            && let [AttachedQueue { link: QueueLink::Own(queue), .. }] = self.lanes.as_mut_slice()
        {
            let IoRequest { operation, offset, bytes, data, class, within } = request;
            let entry = self.geometry.entry(operation, offset, bytes);
            let Err(rejected) = queue.submit(Command { entry, data }, token) else {
                self.plain_in_flight += 1;
                return Ok(());
            };
            let request = IoRequest { operation, offset, bytes, data: TransferData::None, class, within };
            return self.rejected(request, rejected, token);
        }
        self.submit_long(request, token)
    }

    /// Keeps a request waiting in the handle if its queue is full; refuses it otherwise.
    #[cold]
    fn rejected(
        &mut self,
        request: IoRequest,
        rejected: RejectedCommand,
        token: u64,
    ) -> Result<(), RefusedRequest> {
        let request = IoRequest { data: rejected.command.data, ..request };
        match rejected.reason {
            SubmitError::Full => self.submit_long(request, token),
            reason => Err(NamespaceGeometry::refuse(request, reason.into())),
        }
    }

    /// Rings the doorbells for what was submitted, as far as policies and queues allow.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), IoError> {
        if self.detours > 0 {
            let now = self.now();
            self.give_out(now);
        }
        self.lanes.iter_mut().try_for_each(AttachedQueue::ring)
    }

    /// Returns the next completion, if there is one, with the request's token and buffers.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if self.plain
            && self.detours == 0
            && let [AttachedQueue { link: QueueLink::Own(queue), .. }] = self.lanes.as_mut_slice()
        {
            let completed = queue.poll_with()?;
            if let Some(done) = &completed {
                assert!(
                    done.completion.token & HANDLE_TOKEN == 0,
                    "a command of the slow path is in flight while no request takes it"
                );
                self.plain_in_flight -= 1;
            }
            return Ok(completed);
        }
        self.poll_long()
    }

    /// Returns the number of requests that are accepted and not yet completed to the caller.
    #[must_use]
    pub fn unanswered(&self) -> u32 {
        let ready = u32::try_from(self.ready.len()).unwrap_or(u32::MAX);
        (self.slots.used() - self.parts + self.plain_in_flight).saturating_add(ready)
    }

    /// Returns the most requests that the handle accepts: what its queues hold plus what may wait.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.depth().saturating_add(self.waiting_max)
    }

    /// Returns the bytes of a block: offsets and lengths are multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes()
    }

    /// Returns the end of the accessible range, one past its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.geometry.end()
    }

    /// Returns the limits of one command on its queues; larger requests are divided.
    #[must_use]
    pub fn limits(&self) -> IoLimits {
        self.limits
    }

    fn depth(&self) -> u32 {
        self.lanes.iter().map(AttachedQueue::depth).fold(0, u32::saturating_add)
    }

    /// Returns the current time if a policy needs it, else zero.
    fn now(&self) -> Nanos {
        if self.is_timed() { self.time.now() } else { Nanos::ZERO }
    }
}

#[cfg(test)]
mod tests;
