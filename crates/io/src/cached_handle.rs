//! A handle with a block cache above its queues: the same requests and completions, with byte granularity.
//!
//! Input: [`IoRequest`]s as a [`Handle`] takes them. Output: one completion for each accepted request, with its buffers.
//! Invariant: all device access follows the cache's rules, cached or direct, so that both paths see the same bytes.
//!
//! ```text
//!   submit --validate--> pieces, one for each buffer --> cache --misses, write-backs--> Handle --> queues
//! ```
//!
//! Several handles may share one cache: each [`join`](CachedHandle::join)s it, over the queues of the cache, or
//! [with a handle of its own](CachedHandle::join_with), whose queues and policies then carry the transfers that its requests
//! cause. Scheduler, selector, queues and completion policy of the underlying handle are changed through
//! [`with_handle`](CachedHandle::with_handle), at any time. Misses, write-backs and direct transfers go to the scheduler in
//! the class of the request that causes them.
//!
//! A thread of the cache writes back dirty pages by their age although no handle is called
//! ([`BackgroundWork`]).

use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::cache::{
    BackgroundWork, BlockCache, CacheConfig, CacheMember, CacheRequest as Asked, CacheStatistics,
    FinishedRequest, HandleBacking, RequestTag, SharedCache, SubmitResult, WritePolicy,
};
use crate::client_namespace::ClientNamespace;
use crate::clock::IoClock;
use crate::command::TransferData;
use crate::error::{IoError, RequestError};
use crate::handle::{Handle, IoRequest, RefusedRequest, RequestOperation};
use crate::queue::Completion;
use crate::scheduler::RequestClass;
use headwater_dma::mover::{Mover, MoverCounters};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use std::collections::{BTreeMap, VecDeque};

mod blocking;
mod membership;

/// The path of reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePath {
    /// Through the cache.
    #[default]
    Cached,
    /// Around the cache, between the device and the caller's buffers, in whole blocks; still coherent.
    Direct,
}

/// The form in which a request's buffers were given and are returned.
#[derive(Debug)]
enum BufferForm {
    None,
    /// The list buffer of a discard.
    List(TransferData),
    ToDevice,
    FromDevice,
    Gather,
    Scatter,
}

/// A request in progress, one piece for each of its buffers.
#[derive(Debug)]
struct SplitRequest {
    token: u64,
    shape: BufferForm,
    pieces: Vec<Option<Buffer>>,
    left: usize,
    status: Status,
    deadline: Option<Nanos>,
}

impl SplitRequest {
    fn of(token: u64, shape: BufferForm, pieces: usize, deadline: Option<Nanos>) -> Self {
        let pieces: Vec<Option<Buffer>> = (0..pieces).map(|_| None).collect();
        let left = pieces.len();
        Self { token, shape, pieces, left, status: Status::SUCCESS, deadline }
    }

    fn into_completion(self) -> CompletedCommand {
        let mut buffers: Vec<Buffer> = self.pieces.into_iter().flatten().collect();
        let data = match self.shape {
            BufferForm::None => TransferData::None,
            BufferForm::List(list) => list,
            BufferForm::ToDevice => buffers.pop().map_or(TransferData::None, TransferData::ToDevice),
            BufferForm::FromDevice => buffers.pop().map_or(TransferData::None, TransferData::FromDevice),
            BufferForm::Gather => TransferData::Gather(buffers),
            BufferForm::Scatter => TransferData::Scatter(buffers),
        };
        CompletedCommand {
            completion: Completion { token: self.token, result: 0, status: self.status },
            data,
        }
    }
}

/// Returns the cache request for a piece of a read, a write or a compare.
fn cache_request_for(operation: RequestOperation, offset: u64, buffer: Buffer, past: bool) -> Asked {
    match operation {
        RequestOperation::Write(durable) if past => Asked::DirectWrite { offset, from: buffer, durable },
        RequestOperation::Write(durable) => Asked::Write { offset, from: buffer, durable },
        RequestOperation::Compare => Asked::Compare { offset, with: buffer },
        _ if past => Asked::DirectRead { offset, into: buffer },
        _ => Asked::Read { offset, into: buffer },
    }
}

/// Returns the token of a piece at the cache.
fn piece_token(key: u32, piece: u32) -> u64 {
    (u64::from(key) << 32) | u64::from(piece)
}

fn piece_of(token: u64) -> (u32, u32) {
    let half = |half: u64| narrow(half & u64::from(u32::MAX));
    (half(token >> 32), half(token))
}

/// A handle on a namespace with a cache above its queues. One thread uses it at a time.
#[derive(Debug)]
pub struct CachedHandle {
    member: CacheMember<HandleBacking>,
    facts: ClientNamespace,
    first: u64,
    end: u64,
    path: CachePath,
    requests: BTreeMap<u32, SplitRequest>,
    next: u32,
    /// The available completions, by the request's key.
    ready: VecDeque<(u32, CompletedCommand)>,
    time: IoClock,
}

impl CachedHandle {
    /// Adds a cache to a handle with nothing outstanding. `memory` allocates memory of the device
    /// ([`Device::buffer`](crate::Device::buffer)).
    ///
    /// # Errors
    /// [`IoError`] for a key space, an invalid configuration, or when memory is exhausted.
    pub fn new(
        handle: Handle,
        facts: &ClientNamespace,
        config: CacheConfig,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Self, IoError> {
        Self::try_new(handle, facts, config, memory).map_err(|(_, error)| error)
    }

    /// Adds a cache as [`new`](Self::new) does, and returns the handle if that fails.
    ///
    /// # Errors
    /// [`IoError`], as there, with the handle.
    pub fn try_new(
        handle: Handle,
        facts: &ClientNamespace,
        config: CacheConfig,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Self, (Option<Box<Handle>>, IoError)> {
        let lists = match memory(crate::cache::DISCARD_LISTS_BYTES) {
            Ok(lists) => lists,
            Err(error) => return Err((Some(Box::new(handle)), error)),
        };
        let lower = HandleBacking::new(handle, facts, &lists).map_err(|error| (None, error))?;
        let cache = match BlockCache::new(lower.shape(), config, memory) {
            Ok(cache) => SharedCache::new(cache, lower),
            Err(error) => return Err((Some(Box::new(lower.into_handle())), error)),
        };
        if config.background == BackgroundWork::Thread
            && let Err(error) = cache.start_thread()
        {
            let parts = cache.into_parts().ok();
            return Err((parts.map(|(_, lower)| Box::new(lower.into_handle())), error));
        }
        Ok(Self::join(&cache, facts))
    }

    /// Creates another handle on a cache, over the queues of the cache and with its policies.
    #[must_use]
    pub fn join(cache: &SharedCache<HandleBacking>, facts: &ClientNamespace) -> Self {
        let (first, bytes) = cache.with_parts(|cache, lower| (lower.first(), cache.shape().device_bytes));
        Self {
            member: cache.join(),
            facts: facts.clone(),
            first,
            end: first.saturating_add(bytes),
            path: CachePath::Cached,
            requests: BTreeMap::new(),
            next: 0,
            ready: VecDeque::new(),
            time: cache.clock(),
        }
    }

    /// Returns the end of the accessible range, one past its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the cache, for other handles to join.
    #[must_use]
    pub fn cache(&self) -> SharedCache<HandleBacking> {
        self.member.cache().clone()
    }

    /// Sets the path of reads and writes; requests in progress keep theirs.
    pub fn set_path(&mut self, path: CachePath) {
        self.path = path;
    }

    /// Sets the write policy for all users of the cache.
    pub fn set_policy(&mut self, policy: WritePolicy) {
        self.member.cache().set_policy(policy);
    }

    /// Resizes the cache and waits for the result.
    ///
    /// # Errors
    /// [`IoError`] for an invalid size, without memory, or when a dirty page cannot be written.
    pub fn resize(
        &mut self,
        pages: usize,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<(), IoError> {
        let key = self.insert_request(SplitRequest::of(0, BufferForm::None, 1, None));
        match self.member.resize(pages, piece_token(key, 0), memory) {
            Ok(SubmitResult::Pending) => self.wait_for_key(key).completion.into_result().map(drop),
            Ok(SubmitResult::Done(finished)) => {
                self.requests.remove(&key);
                if finished.status.is_success() { Ok(()) } else { Err(IoError::Status(finished.status)) }
            }
            Err(error) => {
                self.requests.remove(&key);
                Err(error)
            }
        }
    }

    /// Gives the cache a mover, for all handles on it. Reads and writes of cached pages that are long enough for the policy of
    /// the mover (16 KiB if it has no channels) are moved as one job then. While a channel moves the bytes, the request waits
    /// for it as for a page that is read: [`poll`](Self::poll) finds the end. Shorter requests, and
    /// [`read_hit`](Self::read_hit) and [`write_hit`](Self::write_hit) of any length, are copied as without a mover.
    ///
    /// # Errors
    /// The mover, if the cache has one.
    pub fn set_mover(&mut self, mover: Mover) -> Result<(), Mover> {
        self.member.cache().with_parts(|cache, _| cache.set_mover(mover))
    }

    /// Returns the counters of the mover's jobs, if the cache has one.
    #[must_use]
    pub fn mover_counters(&self) -> Option<MoverCounters> {
        self.member.cache().with_parts(|cache, _| cache.mover().map(Mover::counters))
    }

    /// Sets the class of the transfers that [`read_hit`](Self::read_hit) and [`write_hit`](Self::write_hit) cause later:
    /// prefetches and write-backs.
    pub fn set_class(&mut self, class: RequestClass) {
        self.member.set_class(class);
    }

    /// Calls a function with the underlying handle, to change its queues and policies: the own handle of this user, or
    /// that of the cache.
    pub fn with_handle<R>(&mut self, call: impl FnOnce(&mut Handle) -> R) -> R {
        let user = self.member.user();
        self.member.cache().with_parts(|_, lower| call(lower.handle(user)))
    }

    /// Returns the cache's counters and state.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.member.cache().statistics()
    }

    /// Copies bytes that are all in the cache. Returns `false` if nothing was copied: [`submit`](Self::submit) a read.
    #[inline]
    pub fn read_hit(&mut self, offset: u64, into: &mut [u8]) -> bool {
        self.path == CachePath::Cached
            && offset >= self.first
            && self.member.read_hit(offset - self.first, into)
    }

    /// Copies bytes to pages that are all in the cache. Returns `false` if nothing was copied: [`submit`](Self::submit)
    /// a write.
    #[inline]
    pub fn write_hit(&mut self, offset: u64, from: &[u8]) -> bool {
        let may = self.facts.writable && self.path == CachePath::Cached && offset >= self.first;
        may && self.member.write_hit(offset - self.first, from)
    }

    /// Accepts a request. `Ok` means that exactly one completion with this token follows.
    ///
    /// # Errors
    /// [`RefusedRequest`], with the request: it had no effect.
    pub fn submit(&mut self, request: IoRequest, token: u64) -> Result<(), RefusedRequest> {
        match self.admit(&request) {
            Ok(()) => {
                self.start(request, token);
                Ok(())
            }
            Err(error) => Err(RefusedRequest { request, error }),
        }
    }

    /// Validates a request. A change is refused once after a failed write-back, so that the caller learns of it without a
    /// flush.
    fn admit(&mut self, request: &IoRequest) -> Result<(), RequestError> {
        self.validate(request)?;
        if request.operation.is_change()
            && let Some(status) = self.member.take_failure()
        {
            return Err(RequestError::WriteBackFailed { status });
        }
        Ok(())
    }

    fn validate(&self, request: &IoRequest) -> Result<(), RequestError> {
        let IoRequest { operation, offset, bytes, .. } = *request;
        if operation == RequestOperation::Flush {
            return Ok(());
        }
        if bytes == 0 {
            return Err(RequestError::Empty { offset });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= self.end && offset >= self.first => {}
            _ => return Err(RequestError::OutOfRange { offset, bytes, end: self.end }),
        }
        if !self.facts.writable && operation.is_change() {
            return Err(RequestError::ReadOnly { namespace: self.facts.id });
        }
        let through = matches!(operation, RequestOperation::Read | RequestOperation::Write(_))
            && self.path == CachePath::Cached;
        if through || operation == RequestOperation::Compare {
            return Ok(());
        }
        let block_bytes = self.facts.block_bytes;
        let block = u64::from(block_bytes);
        let moved = if operation == RequestOperation::Discard { &[] } else { request.data.buffers() };
        let whole = moved.iter().all(|buffer| buffer.bytes().is_multiple_of(block_bytes as usize));
        if offset.is_multiple_of(block) && bytes.is_multiple_of(block) && whole {
            return Ok(());
        }
        Err(RequestError::Misaligned { offset, bytes, block_bytes })
    }

    /// Submits a validated request to the cache, piece by piece.
    fn start(&mut self, request: IoRequest, token: u64) -> u32 {
        let IoRequest { operation, offset, bytes, data, class, timeout: within } = request;
        let deadline = within.map(|span| self.time.now().after(span));
        let mut at = offset.saturating_sub(self.first);
        let past = self.path == CachePath::Direct;
        let (shape, buffers) = match (operation, data) {
            (RequestOperation::Discard, list) => (BufferForm::List(list), Vec::new()),
            (_, TransferData::None) => (BufferForm::None, Vec::new()),
            (_, TransferData::ToDevice(buffer)) => (BufferForm::ToDevice, vec![buffer]),
            (_, TransferData::FromDevice(buffer)) => (BufferForm::FromDevice, vec![buffer]),
            (_, TransferData::Gather(buffers)) => (BufferForm::Gather, buffers),
            (_, TransferData::Scatter(buffers)) => (BufferForm::Scatter, buffers),
        };
        let key = self.insert_request(SplitRequest::of(token, shape, buffers.len().max(1), deadline));
        if buffers.is_empty() {
            let asked = match operation {
                RequestOperation::WriteZeroes(durable) => Asked::Zeroes { offset: at, bytes, durable },
                RequestOperation::Discard => Asked::Discard { offset: at, bytes },
                _ => Asked::Flush,
            };
            self.submit_piece(asked, class, (key, 0));
            return key;
        }
        for (piece, buffer) in (0..).zip(buffers) {
            let bytes = buffer.bytes() as u64;
            self.submit_piece(cache_request_for(operation, at, buffer, past), class, (key, piece));
            at += bytes;
        }
        key
    }

    fn submit_piece(&mut self, asked: Asked, class: RequestClass, (key, piece): (u32, u32)) {
        let token = piece_token(key, piece);
        match self.member.submit(asked, RequestTag { token, class }) {
            Ok(SubmitResult::Pending) => {}
            Ok(SubmitResult::Done(finished)) => self.piece_done(finished),
            Err(refused) => {
                // It was validated: the device has failed since.
                let data = refused.request.into_buffer();
                self.piece_done(FinishedRequest { token, status: Status::INTERNAL_ERROR, data });
            }
        }
    }

    fn insert_request(&mut self, whole: SplitRequest) -> u32 {
        while self.requests.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let key = self.next;
        self.next = key.wrapping_add(1);
        self.requests.insert(key, whole);
        key
    }

    fn piece_done(&mut self, finished: FinishedRequest) {
        let (key, piece) = piece_of(finished.token);
        let Some(whole) = self.requests.get_mut(&key) else { return };
        if let Some(returned) = whole.pieces.get_mut(piece as usize) {
            *returned = finished.data;
        }
        if whole.status.is_success() {
            whole.status = finished.status;
        }
        whole.left = whole.left.saturating_sub(1);
        if whole.left == 0
            && let Some(whole) = self.requests.remove(&key)
        {
            self.ready.push_back((key, whole.into_completion()));
        }
    }

    /// Returns the next completion, if there is one, after doing due work for all users of the cache.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, once all requests in progress have completed.
    pub fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.poll_cache();
        if let Some((_, answer)) = self.ready.pop_front() {
            return Ok(Some(answer));
        }
        // Requests whose buffers a job of the mover uses have not completed.
        let failure = |cache: &mut BlockCache, lower: &mut HandleBacking| {
            if cache.moves_in_flight() == 0 { lower.take_failure() } else { None }
        };
        match self.member.cache().with_parts(failure) {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    fn poll_cache(&mut self) {
        let now = self.time.now();
        let late = |whole: &SplitRequest| whole.deadline.is_some_and(|deadline| deadline <= now);
        let expired: Vec<u32> =
            self.requests.iter().filter(|(_, whole)| late(whole)).map(|(&key, _)| key).collect();
        for key in expired {
            self.cancel_key(key);
        }
        while let Some(finished) = self.member.poll(now) {
            self.piece_done(finished);
        }
    }

    /// Cancels a request, which still completes once: when the jobs of the mover that use its buffers have ended. Returns
    /// `false` if there is none, or all of it is at the device.
    pub fn cancel(&mut self, token: u64) -> bool {
        let found = self.requests.iter().find(|(_, whole)| whole.token == token).map(|(&key, _)| key);
        found.is_some_and(|key| self.cancel_key(key))
    }

    fn cancel_key(&mut self, key: u32) -> bool {
        let Some(whole) = self.requests.get_mut(&key) else { return false };
        whole.deadline = None;
        let pieces = narrow::<usize, u32>(whole.pieces.len()).max(1);
        let given_up = (0..pieces).filter(|&piece| self.member.cancel(piece_token(key, piece)));
        given_up.count() > 0
    }

    /// Returns the number of requests that are accepted and not yet completed to the caller.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.requests.len() + self.ready.len()
    }
}
