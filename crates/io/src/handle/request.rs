//! Requests of an application, in bytes, and their translation to NVMe entries.
//!
//! Input: requests with their buffers. Output: commands. Invariant: every entry names whole blocks inside the range
//! that this client may access, and its length is that of its buffers.

use super::error::{RefusedRequest, RequestError};
use crate::backend::IoLimits;
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::{BLOCKS_MAX, Command, TransferData, WriteDurability};
use crate::completion::{CommandProfile, TransferDirection};
use crate::error::IoError;
use crate::scheduler::RequestClass;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv;
use headwater_nvme::spec::nvm::{self, BlockOptions, BlockRange, DatasetRange};

/// The most blocks that one range of a discard covers.
const RANGE_BLOCKS_MAX: u64 = u32::MAX as u64;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOperation {
    /// Moves bytes from the device to buffers.
    Read,
    /// Moves bytes from buffers to the device.
    Write(WriteDurability),
    /// Compares the device's bytes with a buffer.
    Compare,
    /// Writes zeroes to the device.
    WriteZeroes(WriteDurability),
    /// Deallocates a run of bytes. The buffer holds the range list that the device reads.
    Discard,
    /// Makes the requests completed before it durable.
    Flush,
}

impl RequestOperation {
    /// Returns true if the operation changes the device's contents.
    #[must_use]
    #[inline]
    pub fn is_change(self) -> bool {
        matches!(self, Self::Write(_) | Self::WriteZeroes(_) | Self::Discard)
    }

    /// Returns the direction of the data transfer.
    #[must_use]
    #[inline]
    pub fn direction(self) -> TransferDirection {
        match self {
            Self::Read => TransferDirection::Read,
            Self::Write(_) | Self::Compare => TransferDirection::Write,
            Self::WriteZeroes(_) | Self::Discard | Self::Flush => TransferDirection::Other,
        }
    }

    /// Returns the merge key: requests with equal keys may be merged.
    pub(super) fn sort(self) -> Option<u8> {
        match self {
            Self::Read => Some(0),
            Self::Write(WriteDurability::AsPromised) => Some(1),
            Self::Write(WriteDurability::Now) => Some(2),
            _ => None,
        }
    }
}

/// A request of an application.
#[derive(Debug)]
pub struct IoRequest {
    /// The operation.
    pub operation: RequestOperation,
    /// The first byte on the device.
    pub offset: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The buffers.
    pub data: TransferData,
    /// The class by which policies treat it.
    pub class: RequestClass,
    /// The deadline, relative to submission; a request not completed by then is cancelled.
    pub within: Option<Nanos>,
}

impl IoRequest {
    fn new(operation: RequestOperation, offset: u64, bytes: u64, data: TransferData) -> Self {
        Self { operation, offset, bytes, data, class: RequestClass::FIRST, within: None }
    }

    /// Reads as many bytes as fill `into`.
    #[must_use]
    #[inline]
    pub fn read(offset: u64, into: Buffer) -> Self {
        Self::new(RequestOperation::Read, offset, into.bytes() as u64, TransferData::FromDevice(into))
    }

    /// Writes the bytes of `from`.
    #[must_use]
    #[inline]
    pub fn write(offset: u64, from: Buffer, durable: WriteDurability) -> Self {
        Self::new(RequestOperation::Write(durable), offset, from.bytes() as u64, TransferData::ToDevice(from))
    }

    /// Reads into several buffers in order, each of whole blocks.
    #[must_use]
    pub fn read_scattered(offset: u64, into: Vec<Buffer>) -> Self {
        let data = TransferData::Scatter(into);
        Self::new(RequestOperation::Read, offset, data.bytes() as u64, data)
    }

    /// Writes several buffers in order, each of whole blocks.
    #[must_use]
    pub fn write_gathered(offset: u64, from: Vec<Buffer>, durable: WriteDurability) -> Self {
        let data = TransferData::Gather(from);
        Self::new(RequestOperation::Write(durable), offset, data.bytes() as u64, data)
    }

    /// Compares the device's bytes with those of `with`: the status is
    /// [`COMPARE_FAILURE`](headwater_nvme::spec::status::Status::COMPARE_FAILURE) when a byte differs.
    #[must_use]
    pub fn compare(offset: u64, with: Buffer) -> Self {
        Self::new(RequestOperation::Compare, offset, with.bytes() as u64, TransferData::ToDevice(with))
    }

    /// Zeroes a run of bytes.
    #[must_use]
    pub fn write_zeroes(offset: u64, bytes: u64, durable: WriteDurability) -> Self {
        Self::new(RequestOperation::WriteZeroes(durable), offset, bytes, TransferData::None)
    }

    /// Deallocates a run of bytes. `list` holds the ranges sent to the device: 16 bytes for each 4 G blocks.
    #[must_use]
    pub fn discard(offset: u64, bytes: u64, list: Buffer) -> Self {
        Self::new(RequestOperation::Discard, offset, bytes, TransferData::ToDevice(list))
    }

    /// Makes the requests completed before it durable.
    #[must_use]
    pub fn flush() -> Self {
        Self::new(RequestOperation::Flush, 0, 0, TransferData::None)
    }

    /// Sets the class.
    #[must_use]
    pub fn of_class(self, class: RequestClass) -> Self {
        Self { class, ..self }
    }

    /// Sets a deadline relative to submission, at which the request is cancelled: its status is then
    /// [`ABORT_REQUESTED`](headwater_nvme::spec::status::Status::ABORT_REQUESTED).
    #[must_use]
    pub fn within(self, span: Nanos) -> Self {
        Self { within: Some(span), ..self }
    }

    /// Returns the properties by which its latency is estimated.
    #[must_use]
    #[inline]
    pub fn work(&self) -> CommandProfile {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        CommandProfile { direction: self.operation.direction(), bytes }
    }
}

/// The layout and access rights of a namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceGeometry {
    namespace: u32,
    block_shift: u32,
    /// The block size minus 1, in bytes.
    mask: u64,
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
            mask: block_bytes - 1,
            first: first.saturating_mul(block_bytes),
            end: end.min(facts.size).saturating_mul(block_bytes),
            writable: facts.writable,
        })
    }

    /// Returns the bytes of a block.
    pub(super) fn block_bytes(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the end of the accessible range, one past its last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Validates that a request can be executed, by one command or several.
    #[inline]
    pub(super) fn judge(&self, request: &IoRequest, limits: &IoLimits) -> Result<(), RequestError> {
        let (offset, bytes) = (request.offset, request.bytes);
        if request.operation == RequestOperation::Flush {
            return Ok(());
        }
        if (offset | bytes) & self.mask != 0 || bytes == 0 {
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
            TransferData::FromDevice(buffer) => reachable(buffer, limits),
            TransferData::None => Ok(()),
            TransferData::ToDevice(buffer) if request.operation != RequestOperation::Discard => {
                reachable(buffer, limits)
            }
            _ => self.judge_data(request, limits),
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
    fn judge_data(&self, request: &IoRequest, limits: &IoLimits) -> Result<(), RequestError> {
        if request.operation == RequestOperation::Discard {
            let ranges = (request.bytes >> self.block_shift).div_ceil(RANGE_BLOCKS_MAX);
            let (given, needed) = (request.data.bytes() as u64, ranges * size_of::<DatasetRange>() as u64);
            if given < needed {
                return Err(RequestError::Short { given, needed });
            }
        } else {
            for buffer in request.data.buffers() {
                let bytes = buffer.bytes() as u64;
                if bytes == 0 || bytes & self.mask != 0 {
                    return Err(self.misaligned(request.offset, bytes));
                }
            }
        }
        request.data.buffers().iter().try_for_each(|buffer| reachable(buffer, limits))
    }

    /// Builds the entry of a validated run of bytes that fits one command.
    #[inline]
    pub(super) fn entry(&self, operation: RequestOperation, offset: u64, bytes: u64) -> SubmissionEntry {
        let blocks = u32::try_from(bytes >> self.block_shift).unwrap_or(u32::MAX);
        let range = BlockRange { start: offset >> self.block_shift, blocks };
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
            ranges.push((first, u32::try_from(part).unwrap_or(u32::MAX)));
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
                (limits.transfer_bytes_max as u64 & !self.mask).clamp(self.block_bytes(), of_blocks)
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
fn reachable(buffer: &Buffer, limits: &IoLimits) -> Result<(), RequestError> {
    let (address, align) = (buffer.address(), limits.memory_align.max(1));
    if align.is_power_of_two() && address & (align as u64 - 1) != 0 {
        return Err(RequestError::Unreachable { address, align });
    }
    Ok(())
}

/// Returns a run of a request's buffers from byte `from` on: at most `bytes_max` bytes and `segments_max` buffers.
pub(super) fn cut(
    data: &TransferData,
    from: u64,
    bytes_max: u64,
    segments_max: usize,
) -> (TransferData, u64) {
    let mut parts = Vec::new();
    let (mut at, mut taken) = (0, 0);
    for buffer in data.buffers() {
        let end = at + buffer.bytes() as u64;
        if end > from + taken && parts.len() < segments_max && taken < bytes_max {
            let begin = from + taken - at;
            let bytes = (end - at - begin).min(bytes_max - taken);
            // In range, by the lines above.
            let part = usize::try_from(begin).ok().zip(usize::try_from(bytes).ok());
            parts.extend(part.and_then(|(begin, bytes)| buffer.slice(begin, bytes).ok()));
            taken += bytes;
        }
        at = end;
    }
    (shaped(parts, matches!(data, TransferData::FromDevice(_) | TransferData::Scatter(_))), taken)
}

/// Converts buffers to the data of one command.
pub(super) fn shaped(mut parts: Vec<Buffer>, from_device: bool) -> TransferData {
    match (parts.len(), from_device) {
        (0, _) => TransferData::None,
        (1, true) => parts.pop().map_or(TransferData::None, TransferData::FromDevice),
        (1, false) => parts.pop().map_or(TransferData::None, TransferData::ToDevice),
        (_, true) => TransferData::Scatter(parts),
        (_, false) => TransferData::Gather(parts),
    }
}
