//! A handle as the backing device of a cache: its queues, selector, scheduler and completion policy serve the
//! transfers.
//!
//! Input: transfers in bytes relative to the first accessible byte. Output: requests of the handle. Invariant: the list
//! buffer of a discard is reused only after the device has finished with it.

use super::backing::{
    BackingDevice, BackingLimits, BackingTransfer, TransferCompletion, TransferKind, TransferRefusal,
};
use super::shape::DeviceShape;
use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::{BLOCKS_MAX, TransferData};
use crate::error::IoError;
use crate::error::RequestError;
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

/// A handle as backing device. Offset 0 of the cache is the first byte that this client may access.
#[derive(Debug)]
pub struct HandleBacking {
    handle: Handle,
    first_byte: u64,
    discard_lists: Vec<Buffer>,
    /// The completions that arrived during a wait.
    ready: VecDeque<CompletedCommand>,
    failure: Option<IoError>,
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
        Ok(Self { handle, first_byte: first, discard_lists: lists, ready: VecDeque::new(), failure: None })
    }

    /// Returns the shape for a cache over it.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        let block_bytes = narrow(self.handle.block_bytes());
        DeviceShape { device_bytes: self.handle.end().saturating_sub(self.first_byte), block_bytes }
    }

    /// Returns the first byte that this client may access.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first_byte
    }

    /// Returns the handle, to change its queues and policies. Only the cache submits requests.
    pub fn handle(&mut self) -> &mut Handle {
        &mut self.handle
    }

    /// Returns the handle, once the cache has nothing in progress.
    #[must_use]
    pub fn into_handle(self) -> Handle {
        self.handle
    }

    /// Returns the reason why the device is gone, once.
    pub fn take_failure(&mut self) -> Option<IoError> {
        self.failure.take()
    }

    /// Waits for a completion as the handle's completion policy says, at most for `longest`.
    pub fn wait_for_completion(&mut self, longest: Nanos) {
        match self.handle.wait(Some(longest)) {
            Ok(answer) => self.ready.extend(answer),
            Err(error) => self.failure = Some(error),
        }
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

impl BackingDevice for HandleBacking {
    fn limits(&self) -> BackingLimits {
        let limits = self.handle.limits();
        let most = self.handle.block_bytes().saturating_mul(u64::from(BLOCKS_MAX));
        let bytes = to_usize(most);
        BackingLimits {
            transfer_bytes_max: limits.transfer_bytes_max.min(bytes),
            segments_max: limits.segments_max.max(1),
            range_bytes_max: most,
        }
    }

    fn submit(&mut self, transfer: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal> {
        if transfer.kind == TransferKind::Discard && self.discard_lists.is_empty() {
            return Err(TransferRefusal::Full(transfer));
        }
        let BackingTransfer { kind, offset, bytes, durable, mut segments } = transfer;
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
        let Err(RefusedRequest { request, error }) = self.handle.submit(request, ticket) else {
            return Ok(());
        };
        let segments = self.recover_list(kind, request.data);
        Err(match error {
            RequestError::Full { .. } => {
                TransferRefusal::Full(BackingTransfer { kind, offset, bytes, durable, segments })
            }
            RequestError::OutOfRange { .. } => TransferRefusal::Failed(Status::LBA_OUT_OF_RANGE),
            RequestError::ReadOnly { .. } => TransferRefusal::Failed(Status::READ_ONLY),
            RequestError::NoQueue | RequestError::Gone => TransferRefusal::Failed(Status::INTERNAL_ERROR),
            _ => TransferRefusal::Failed(Status::INVALID_FIELD),
        })
    }

    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status> {
        let answer = match self.ready.pop_front() {
            Some(answer) => Some(answer),
            None => self.handle.poll().map_err(|error| {
                let status = error.status().unwrap_or(Status::INTERNAL_ERROR);
                self.failure = Some(error);
                status
            })?,
        };
        Ok(answer.map(|CompletedCommand { completion, data }| {
            // Only discard lists have this length.
            if data.bytes() == DISCARD_LIST_BYTES {
                self.recover_list(TransferKind::Discard, data);
            }
            TransferCompletion { ticket: completion.token, status: completion.status }
        }))
    }
}
