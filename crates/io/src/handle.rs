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
//! `HANDLE_TOKEN` at the queue; a request whose own token has that bit takes the slow path.
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
pub(crate) use blocking::single_buffer;
pub use builder::HandleBuilder;
pub use cancel::RequestCancellation;
pub use error::RefusedRequest;
pub use request::{IoRequest, RequestOperation};

use crate::backend::{CompletedCommand, IoLimits};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::clock::IoClock;
use crate::command::{BLOCKS_MAX, Command, TransferData};
use crate::completion::{CompletionPolicy, PollPeriod};
use crate::error::{IoError, RejectedCommand, RequestError, SubmitError};
use crate::queue::Queue;
use crate::scheduler::{InFlightWindow, MergePolicy, RequestMerger, RequestScheduler};
use crate::selector::QueueSelector;
use attached_queue::{AttachedQueue, QueueLink};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};
use request_table::RequestTable;
use std::collections::{BTreeSet, VecDeque};

/// The most blocks that one range of a discard covers.
const RANGE_BLOCKS_MAX: u64 = u32::MAX as u64;

/// The bit of a token at a queue that marks a command of the slow path; the rest of the token is the slot of its request.
const HANDLE_TOKEN: u64 = 1 << 63;

/// A handle on a namespace. One thread uses it at a time; it may move between threads.
#[derive(Debug)]
pub struct Handle {
    geometry: NamespaceGeometry,
    queues: Vec<AttachedQueue>,
    slots: RequestTable,
    /// The limits that every queue supports.
    limits: IoLimits,
    /// The largest read or write that is one command, in bytes.
    command_bytes_max: u64,
    /// True if queues and policies allow the fast path.
    fast_path: bool,
    /// Requests on the fast path that are in flight.
    plain_in_flight: u32,
    /// Requests on the slow path plus completions not yet taken. While it is not 0, every request takes the slow path.
    slow_requests: u32,
    /// Parts of divided requests that are in flight.
    parts: u32,
    /// The number of accepted requests beyond what the queues hold.
    waiting_max: u32,
    next_name: u32,
    selector: QueueSelector,
    scheduler: RequestScheduler,
    merging: MergePolicy,
    merger: RequestMerger,
    window: InFlightWindow,
    in_flight_max: u32,
    completion: CompletionPolicy,
    period: PollPeriod,
    /// Requests that the scheduler chose and that are not fully submitted to a queue.
    outgoing: VecDeque<u32>,
    completed: VecDeque<CompletedCommand>,
    /// The completion that a blocking call waits for.
    awaited: Option<CompletedCommand>,
    deadlines: BTreeSet<(Nanos, u32)>,
    clock: IoClock,
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
        if let Err(error) = self.geometry.validate(&request, &self.limits) {
            return Err(NamespaceGeometry::refuse(request, error));
        }
        let alone = matches!(request.data, TransferData::FromDevice(_) | TransferData::ToDevice(_))
            && request.operation != RequestOperation::Discard;
        if self.fast_path
            && self.slow_requests == 0
            && alone
            && token & HANDLE_TOKEN == 0
            && request.bytes <= self.command_bytes_max
            && request.timeout.is_none()
            && let [AttachedQueue { link: QueueLink::Own(queue), .. }] = self.queues.as_mut_slice()
        {
            let IoRequest { operation, offset, bytes, data, class, timeout: within } = request;
            let entry = self.geometry.entry(operation, offset, bytes);
            let Err(rejected) = queue.transport.submit(Command { entry, data }, token) else {
                self.plain_in_flight += 1;
                return Ok(());
            };
            let request =
                IoRequest { operation, offset, bytes, data: TransferData::None, class, timeout: within };
            return self.keep_or_refuse(request, rejected, token);
        }
        self.submit_slow(request, token)
    }

    /// Keeps a request waiting in the handle if its queue is full; refuses it otherwise.
    #[cold]
    fn keep_or_refuse(
        &mut self,
        request: IoRequest,
        rejected: RejectedCommand,
        token: u64,
    ) -> Result<(), RefusedRequest> {
        let request = IoRequest { data: rejected.command.data, ..request };
        match rejected.reason {
            SubmitError::Full => self.submit_slow(request, token),
            reason => Err(NamespaceGeometry::refuse(request, reason.into())),
        }
    }

    /// Rings the doorbells for what was submitted, as far as policies and queues allow.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone.
    #[inline]
    pub fn ring(&mut self) -> Result<(), IoError> {
        if self.slow_requests > 0 {
            let now = self.now();
            self.dispatch_waiting(now);
        }
        self.queues.iter_mut().try_for_each(AttachedQueue::ring)
    }

    /// Returns the next completion, if there is one, with the request's token and buffers.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol.
    ///
    /// # Panics
    /// A command of the slow path completes while no request takes that path: an error of the handle itself.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if self.fast_path
            && self.slow_requests == 0
            && let [AttachedQueue { link: QueueLink::Own(queue), .. }] = self.queues.as_mut_slice()
        {
            return Self::poll_plain(queue, &mut self.plain_in_flight);
        }
        self.poll_slow()
    }

    /// Polls a queue on which no command of the slow path is in flight. Returns the result of the queue as it is, without
    /// a copy.
    #[inline]
    fn poll_plain(queue: &mut Queue, in_flight: &mut u32) -> Result<Option<CompletedCommand>, IoError> {
        let completed = queue.transport.poll();
        if let Ok(Some(done)) = &completed {
            assert!(
                done.completion.token & HANDLE_TOKEN == 0,
                "a command of the slow path is in flight while no request takes it"
            );
            *in_flight -= 1;
        }
        completed
    }

    /// Returns the number of requests that are accepted and not yet completed to the caller.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.slots.used() - self.parts + self.plain_in_flight + narrow::<_, u32>(self.completed.len())
    }

    /// Returns the most requests that the handle accepts: what its queues hold plus what may wait.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.depth().saturating_add(self.waiting_max)
    }

    /// Returns the bytes of a block: offsets and lengths are multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.geometry.block_bytes()
    }

    /// Returns the number of the namespace.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        self.geometry.namespace
    }

    /// Returns the first byte of the accessible range.
    #[must_use]
    pub fn first_byte(&self) -> u64 {
        self.geometry.first
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
        self.queues.iter().map(AttachedQueue::depth).fold(0, u32::saturating_add)
    }

    /// Returns the current time if a policy needs it, else zero.
    fn now(&self) -> Nanos {
        if self.is_timed() { self.clock.now() } else { Nanos::ZERO }
    }
}

/// The layout and access rights of a namespace.
#[derive(Clone, Copy, Debug)]
struct NamespaceGeometry {
    namespace: u32,
    block_shift: u32,
    /// The block size minus 1, in bytes.
    block_mask: u64,
    /// The first accessible byte; `end` is one past the last.
    first: u64,
    end: u64,
    writable: bool,
}

impl NamespaceGeometry {
    pub(super) fn of(facts: &ClientNamespace) -> Result<Self, IoError> {
        let namespace = facts.id;
        if !facts.block_bytes.is_power_of_two() {
            return Err(IoError::Namespace { namespace, what: "holds keys; a handle needs blocks" });
        }
        let block_bytes = u64::from(facts.block_bytes);
        let (first, end) = facts.blocks.unwrap_or((0, facts.size));
        Ok(Self {
            namespace,
            block_shift: facts.block_bytes.trailing_zeros(),
            block_mask: block_bytes - 1,
            first: first.saturating_mul(block_bytes),
            end: end.min(facts.size).saturating_mul(block_bytes),
            writable: facts.writable,
        })
    }

    /// Returns the bytes of a block.
    pub(super) fn block_bytes(&self) -> u64 {
        self.block_mask + 1
    }

    /// Returns the end of the accessible range, one past its last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Validates that a request can be executed, by one command or several.
    #[inline]
    pub(super) fn validate(&self, request: &IoRequest, limits: &IoLimits) -> Result<(), RequestError> {
        let (offset, bytes) = (request.offset, request.bytes);
        if request.operation == RequestOperation::Flush {
            return Ok(());
        }
        if (offset | bytes) & self.block_mask != 0 || bytes == 0 {
            return Err(self.misaligned(offset, bytes));
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= self.end && offset >= self.first => {}
            _ => return Err(RequestError::OutOfRange { offset, bytes, end: self.end }),
        }
        if !self.writable && request.operation.is_change() {
            return Err(RequestError::ReadOnly { namespace: self.namespace });
        }
        match &request.data {
            TransferData::FromDevice(buffer) => check_alignment(buffer, limits),
            TransferData::None => Ok(()),
            TransferData::ToDevice(buffer) if request.operation != RequestOperation::Discard => {
                check_alignment(buffer, limits)
            }
            _ => self.validate_buffers(request, limits),
        }
    }

    #[cold]
    fn misaligned(&self, offset: u64, bytes: u64) -> RequestError {
        if bytes == 0 {
            return RequestError::Empty { offset };
        }
        RequestError::Misaligned { offset, bytes, block_bytes: 1 << self.block_shift }
    }

    /// Validates range lists and buffer vectors.
    fn validate_buffers(&self, request: &IoRequest, limits: &IoLimits) -> Result<(), RequestError> {
        if request.operation == RequestOperation::Discard {
            let ranges = (request.bytes >> self.block_shift).div_ceil(RANGE_BLOCKS_MAX);
            let (given, needed) = (request.data.bytes() as u64, ranges * size_of::<DatasetRange>() as u64);
            if given < needed {
                return Err(RequestError::BufferTooShort { given, needed });
            }
        } else {
            for buffer in request.data.buffers() {
                let bytes = buffer.bytes() as u64;
                if bytes == 0 || bytes & self.block_mask != 0 {
                    return Err(self.misaligned(request.offset, bytes));
                }
            }
        }
        request.data.buffers().iter().try_for_each(|buffer| check_alignment(buffer, limits))
    }

    /// Builds the entry of a validated run of bytes that fits one command.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a run that fits one command has at most BLOCKS_MAX blocks"
    )]
    pub(super) fn entry(&self, operation: RequestOperation, offset: u64, bytes: u64) -> SubmissionEntry {
        let range =
            BlockRange { start: offset >> self.block_shift, blocks: (bytes >> self.block_shift) as u32 };
        match operation {
            RequestOperation::Read => nvm::read(self.namespace, range, 0, BlockOptions::NONE),
            RequestOperation::Write(durable) => nvm::write(self.namespace, range, 0, durable.options()),
            RequestOperation::Compare => nvm::compare(self.namespace, range, 0, BlockOptions::NONE),
            RequestOperation::WriteZeroes(durable) => {
                nvm::write_zeroes(self.namespace, range, durable.options())
            }
            RequestOperation::Discard | RequestOperation::Flush => kv::flush(self.namespace),
        }
    }

    /// Builds the command of a validated discard.
    pub(super) fn discard(&self, offset: u64, bytes: u64, list: &Buffer) -> Result<Command, IoError> {
        let (mut first, mut blocks) = (offset >> self.block_shift, bytes >> self.block_shift);
        let mut ranges = Vec::new();
        while blocks > 0 {
            let part = blocks.min(RANGE_BLOCKS_MAX);
            ranges.push((first, narrow(part)));
            first += part;
            blocks -= part;
        }
        Command::discard(self.namespace, &ranges, list)
    }

    /// Returns the most bytes of one command.
    pub(super) fn command_bytes_max(&self, operation: RequestOperation, limits: &IoLimits) -> u64 {
        let of_blocks = u64::from(BLOCKS_MAX) << self.block_shift;
        match operation {
            RequestOperation::Read | RequestOperation::Write(_) | RequestOperation::Compare => {
                (limits.transfer_bytes_max as u64 & !self.block_mask).clamp(self.block_bytes(), of_blocks)
            }
            RequestOperation::WriteZeroes(_) => of_blocks,
            RequestOperation::Discard | RequestOperation::Flush => u64::MAX,
        }
    }

    /// Returns a refused request with the reason.
    #[cold]
    pub(super) fn refuse(request: IoRequest, error: RequestError) -> RefusedRequest {
        RefusedRequest { request, error }
    }
}

#[inline]
fn check_alignment(buffer: &Buffer, limits: &IoLimits) -> Result<(), RequestError> {
    let (address, align) = (buffer.address(), limits.memory_align.max(1));
    if align.is_power_of_two() && address & (align as u64 - 1) != 0 {
        return Err(RequestError::Unreachable { address, align });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
