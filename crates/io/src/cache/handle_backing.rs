//! Handles as the backing device of a cache: their queues, selectors, schedulers and completion policies serve the
//! transfers.
//!
//! Input: transfers in bytes relative to the first accessible byte. Output: requests of handles, in the class of the request
//! that causes the transfer. Invariants: the transfers of a user go to the user's own handle if it has one, else to the
//! handle of the cache; the list buffer of a discard is reused only after the device has finished with it.

use super::backing::{
    BackingDevice, BackingLimits, BackingTransfer, SHARED_PATH, TransferCompletion, TransferKind,
    TransferOrigin, TransferRefusal,
};
use super::request::CacheUser;
use super::shape::DeviceShape;
use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::{BLOCKS_MAX, TransferData};
use crate::completion::SleepObservation;
use crate::error::{CacheError, IoError, RequestError};
use crate::handle::{Handle, IoRequest, RefusedRequest};
use headwater_host::clock::Nanos;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// The bytes of a discard list with one range.
const DISCARD_LIST_BYTES: usize = size_of::<DatasetRange>();
/// The bytes of memory for the discard lists.
pub const DISCARD_LISTS_BYTES: usize = 1_024;

/// The interval between two polls of a handle whose completion policy has no pace.
const UNPACED_INTERVAL: Nanos = Nanos::from_micros(50);

/// Handles as backing device. Offset 0 of the cache is the first byte that this client may access.
#[derive(Debug)]
pub struct HandleBacking {
    /// The handle of the cache, then those of users.
    handles: Vec<BackingHandle>,
    /// The handle that is polled next.
    turn: usize,
    first_byte: u64,
    discard_lists: Vec<Buffer>,
    failure: Option<IoError>,
}

/// A handle that serves transfers.
#[derive(Debug)]
struct BackingHandle {
    handle: Handle,
    /// Its path: [`SHARED_PATH`] for the handle of the cache, else the number of its user plus one.
    path: u16,
    /// True once its user has left: it takes no more transfers, and is dropped when it has completed those in flight.
    is_leaving: bool,
    /// The completions that arrived during a wait.
    ready: VecDeque<CompletedCommand>,
}

impl BackingHandle {
    fn new(handle: Handle, path: u16) -> Self {
        Self { handle, path, is_leaving: false, ready: VecDeque::new() }
    }

    fn is_idle(&self) -> bool {
        self.handle.outstanding() == 0 && self.ready.is_empty()
    }

    fn poll(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        match self.ready.pop_front() {
            Some(answer) => Ok(Some(answer)),
            None => self.handle.poll(),
        }
    }
}

impl HandleBacking {
    /// Wraps a handle without other users. `discard_lists` is a buffer of the same device with 16 bytes for each discard in
    /// flight ([`DISCARD_LISTS_BYTES`] are ample).
    ///
    /// # Errors
    /// [`IoError::Namespace`] for a namespace without blocks.
    pub fn new(handle: Handle, facts: &ClientNamespace, lists: &Buffer) -> Result<Self, IoError> {
        if facts.block_bytes == 0 {
            return Err(IoError::Namespace { namespace: facts.id, what: "holds keys; a cache needs blocks" });
        }
        let (first, _) = facts.blocks.unwrap_or((0, facts.size));
        let cut = |at| lists.slice(at * DISCARD_LIST_BYTES, DISCARD_LIST_BYTES);
        let lists = (0..lists.bytes() / DISCARD_LIST_BYTES).map(cut).collect::<Result<_, _>>()?;
        let first = first.saturating_mul(handle.block_bytes());
        let handles = vec![BackingHandle::new(handle, SHARED_PATH)];
        Ok(Self { handles, turn: 0, first_byte: first, discard_lists: lists, failure: None })
    }

    /// Adds the handle of a user, which serves the transfers that its requests cause.
    ///
    /// # Errors
    /// [`CacheError::OtherRange`] with the handle, for one with other blocks than the cache;
    /// [`CacheError::UserNumber`] for a user that can have no handle.
    pub fn add_handle(&mut self, user: CacheUser, handle: Handle) -> Result<(), (Box<Handle>, CacheError)> {
        let DeviceShape { device_bytes, block_bytes } = self.shape();
        let same = handle.namespace() == self.base().namespace()
            && handle.first_byte() == self.first_byte
            && handle.end() == self.base().end()
            && handle.block_bytes() == u64::from(block_bytes);
        if !same {
            let error = CacheError::OtherRange { first: self.first_byte, device_bytes };
            return Err((Box::new(handle), error));
        }
        match path_of_user(user) {
            Some(path) => self.handles.push(BackingHandle::new(handle, path)),
            None => return Err((Box::new(handle), CacheError::UserNumber { user: user.0 })),
        }
        Ok(())
    }

    /// Removes the handle of a user once it has nothing in flight. Returns `None` for a user without a handle of its own,
    /// or with transfers in flight: the handle takes no more, poll the cache and call again.
    pub fn take_handle(&mut self, user: CacheUser) -> Option<Handle> {
        let path = path_of_user(user)?;
        let at = self.handles.iter().position(|own| own.path == path)?;
        self.handles[at].is_leaving = true;
        if !self.handles[at].is_idle() {
            return None;
        }
        self.turn = 0;
        Some(self.handles.remove(at).handle)
    }

    /// Returns true if a user has a handle of its own.
    #[must_use]
    pub fn has_handle(&self, user: CacheUser) -> bool {
        path_of_user(user).is_some_and(|path| self.handles.iter().any(|own| own.path == path))
    }

    fn base(&self) -> &Handle {
        &self.handles[0].handle
    }

    /// Returns the index of the handle that carries the transfers of a path.
    fn index_of(&self, path: u16) -> usize {
        if self.handles.len() == 1 || path == SHARED_PATH {
            return 0;
        }
        self.handles.iter().position(|own| own.path == path && !own.is_leaving).unwrap_or(0)
    }

    /// Returns the shape for a cache over it.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        let block_bytes = narrow(self.base().block_bytes());
        DeviceShape { device_bytes: self.base().end().saturating_sub(self.first_byte), block_bytes }
    }

    /// Returns the first byte that this client may access.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first_byte
    }

    /// Returns the handle that serves a user, to change its queues and policies: its own, or that of the cache. Only the
    /// cache submits requests.
    pub fn handle(&mut self, user: CacheUser) -> &mut Handle {
        let index = self.index_of(path_of_user(user).unwrap_or(SHARED_PATH));
        &mut self.handles[index].handle
    }

    /// Returns the handle of the cache, once the cache has nothing in progress.
    #[must_use]
    pub fn into_handle(mut self) -> Handle {
        self.handles.swap_remove(0).handle
    }

    /// Returns the reason why the device is gone, once.
    pub fn take_failure(&mut self) -> Option<IoError> {
        self.failure.take()
    }

    /// Waits for a completion as the completion policy of a user's handle says, at most for `longest`.
    pub fn wait_for_completion(&mut self, user: CacheUser, longest: Nanos) {
        let mut index = self.index_of(path_of_user(user).unwrap_or(SHARED_PATH));
        if self.handles[index].is_idle() {
            // The user waits for a transfer that another user caused.
            index = self.handles.iter().position(|other| !other.is_idle()).unwrap_or(index);
        }
        let waiting = &mut self.handles[index];
        match waiting.handle.wait(Some(longest)) {
            Ok(answer) => waiting.ready.extend(answer),
            Err(error) => self.failure = Some(error),
        }
    }

    /// Polls the handles in turn. A handle whose user has left is dropped after its last completion.
    fn poll_handles(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        for _ in 0..self.handles.len() {
            if self.turn >= self.handles.len() {
                self.turn = 0;
            }
            let polled = &mut self.handles[self.turn];
            if let Some(answer) = polled.poll()? {
                return Ok(Some(answer));
            }
            if polled.is_leaving && polled.is_idle() {
                self.handles.remove(self.turn);
            } else {
                self.turn += 1;
            }
        }
        Ok(None)
    }

    /// Recovers the list buffer of a discard.
    fn recover_list(&mut self, kind: TransferKind, data: TransferData) -> Vec<Buffer> {
        match data {
            TransferData::None => Vec::new(),
            TransferData::ToDevice(list) if kind == TransferKind::Discard => {
                self.discard_lists.push(list);
                Vec::new()
            }
            TransferData::ToDevice(segment) | TransferData::FromDevice(segment) => vec![segment],
            TransferData::Gather(segments) | TransferData::Scatter(segments) => segments,
        }
    }
}

/// Returns the path of a user's own handle.
fn path_of_user(user: CacheUser) -> Option<u16> {
    u16::try_from(user.0).ok()?.checked_add(1)
}

impl BackingDevice for HandleBacking {
    fn limits(&self) -> BackingLimits {
        let most = self.base().block_bytes().saturating_mul(u64::from(BLOCKS_MAX));
        let (mut bytes, mut segments) = (to_usize(most), usize::MAX);
        for own in &self.handles {
            let limits = own.handle.limits();
            (bytes, segments) = (bytes.min(limits.transfer_bytes_max), segments.min(limits.segments_max));
        }
        BackingLimits { transfer_bytes_max: bytes, segments_max: segments.max(1), range_bytes_max: most }
    }

    fn path_of(&self, origin: TransferOrigin) -> u16 {
        let path = origin.user().and_then(path_of_user).unwrap_or(SHARED_PATH);
        self.handles[self.index_of(path)].path
    }

    fn poll_interval(&mut self) -> Nanos {
        let busy = self.handles.iter_mut().filter(|own| !own.is_idle());
        busy.map(|own| own.handle.next_pause().unwrap_or(UNPACED_INTERVAL)).min().unwrap_or(UNPACED_INTERVAL)
    }

    fn observe_sleep(&mut self, sleep: SleepObservation) {
        self.handles.iter_mut().for_each(|own| own.handle.observe_pause(sleep));
    }

    fn user_left(&mut self, user: CacheUser) {
        if let Some(path) = path_of_user(user) {
            // The number of the user, and so its path, may be given to another.
            for own in self.handles.iter_mut().filter(|own| own.path == path) {
                (own.path, own.is_leaving) = (SHARED_PATH, true);
            }
        }
    }

    fn submit(&mut self, transfer: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal> {
        if transfer.kind == TransferKind::Discard && self.discard_lists.is_empty() {
            return Err(TransferRefusal::Full(transfer));
        }
        let BackingTransfer { kind, offset, bytes, durable, origin, mut segments } = transfer;
        let at = self.first_byte + offset;
        let one = if segments.len() == 1 { segments.pop() } else { None };
        let request = match (kind, one) {
            (TransferKind::Read, Some(into)) => IoRequest::read(at, into),
            (TransferKind::Read, None) => IoRequest::read_scattered(at, segments),
            (TransferKind::Write, Some(from)) => IoRequest::write(at, from, durable),
            (TransferKind::Write, None) => IoRequest::write_gathered(at, segments, durable),
            (TransferKind::Zeroes, _) => IoRequest::write_zeroes(at, bytes, durable),
            (TransferKind::Discard, _) => match self.discard_lists.pop() {
                Some(list) => IoRequest::discard(at, bytes, list),
                None => return Err(TransferRefusal::Failed(Status::INTERNAL_ERROR)),
            },
            (TransferKind::Flush, _) => IoRequest::flush(),
        };
        let request = request.with_class(origin.class);
        let index = self.index_of(self.path_of(origin));
        let Err(RefusedRequest { request, error }) = self.handles[index].handle.submit(request, ticket)
        else {
            return Ok(());
        };
        let segments = self.recover_list(kind, request.data);
        Err(match error {
            RequestError::Full { .. } => {
                TransferRefusal::Full(BackingTransfer { kind, offset, bytes, durable, origin, segments })
            }
            RequestError::OutOfRange { .. } => TransferRefusal::Failed(Status::LBA_OUT_OF_RANGE),
            RequestError::ReadOnly { .. } => TransferRefusal::Failed(Status::READ_ONLY),
            RequestError::NoQueue | RequestError::Gone => TransferRefusal::Failed(Status::INTERNAL_ERROR),
            _ => TransferRefusal::Failed(Status::INVALID_FIELD),
        })
    }

    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status> {
        let answer = self.poll_handles().map_err(|error| {
            let status = error.status().unwrap_or(Status::INTERNAL_ERROR);
            self.failure = Some(error);
            status
        })?;
        Ok(answer.map(|CompletedCommand { completion, data }| {
            // Only discard lists have this length.
            if data.bytes() == DISCARD_LIST_BYTES {
                self.recover_list(TransferKind::Discard, data);
            }
            TransferCompletion { ticket: completion.token, status: completion.status }
        }))
    }
}
