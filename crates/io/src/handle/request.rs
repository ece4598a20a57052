//! Requests of an application, in bytes.
//!
//! Input: offsets, lengths and buffers. Output: requests, and their parts. Stateless.

use crate::buffer::Buffer;
use crate::command::{TransferData, WriteDurability};
use crate::completion::{CommandProfile, TransferDirection};
use crate::scheduler::RequestClass;
use headwater_host::clock::Nanos;
use headwater_host::width::to_usize;

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
    pub(super) fn merge_key(self) -> Option<u8> {
        match self {
            Self::Read => Some(0),
            Self::Write(WriteDurability::NamespaceDefault) => Some(1),
            Self::Write(WriteDurability::Immediate) => Some(2),
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
    pub timeout: Option<Nanos>,
}

impl IoRequest {
    fn new(operation: RequestOperation, offset: u64, bytes: u64, data: TransferData) -> Self {
        Self { operation, offset, bytes, data, class: RequestClass::FIRST, timeout: None }
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
    pub fn with_class(self, class: RequestClass) -> Self {
        Self { class, ..self }
    }

    /// Sets a deadline relative to submission, at which the request is cancelled: its status is then
    /// [`ABORT_REQUESTED`](headwater_nvme::spec::status::Status::ABORT_REQUESTED).
    #[must_use]
    pub fn with_timeout(self, span: Nanos) -> Self {
        Self { timeout: Some(span), ..self }
    }

    /// Returns the properties by which its latency is estimated.
    #[must_use]
    #[inline]
    pub fn profile(&self) -> CommandProfile {
        CommandProfile { direction: self.operation.direction(), bytes: to_usize(self.bytes) }
    }
}

/// Returns a run of a request's buffers from byte `from` on: at most `bytes_max` bytes and `segments_max` buffers.
pub(super) fn slice_data(
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
    (into_data(parts, matches!(data, TransferData::FromDevice(_) | TransferData::Scatter(_))), taken)
}

/// Converts buffers to the data of one command.
pub(super) fn into_data(mut parts: Vec<Buffer>, from_device: bool) -> TransferData {
    match (parts.len(), from_device) {
        (0, _) => TransferData::None,
        (1, true) => parts.pop().map_or(TransferData::None, TransferData::FromDevice),
        (1, false) => parts.pop().map_or(TransferData::None, TransferData::ToDevice),
        (_, true) => TransferData::Scatter(parts),
        (_, false) => TransferData::Gather(parts),
    }
}
