//! Translates a decoded NVMe command of any transport into a command of the device and the rule of its completion.
//!
//! Input: an [`IoCommand`] and its bytes, or their resolved addresses ([`RequestData`]). Output: a [`DeviceRequest`], or the status
//! that refuses it. Invariant: the data is exactly as long as [`IoCommand::data`] returned; memory that a client may
//! still change is copied once, and the copy is checked.
//!
//! # What this does not do
//! It reads no capsule: a network transport passes the bytes of its capsules. [`AddressResolver`] resolves addresses in client
//! memory, by flat address, PRPs or SGLs.

mod address;
mod block_commands;
mod completion_builder;
#[cfg(test)]
mod tests;

use crate::command::{
    Fua, ListPosition, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, ValueReceipt,
    ValueSink, ValueSource, WriteCondition,
};
use crate::config::Durability;
use crate::engine::SsdDevice;
use crate::media::Media;
use crate::nvme::decoder::{DataNeed, IoCommand, IoOperation};
use bytes::{Bytes, BytesMut};
use headwater_dma::iova::ClientSegments;
use headwater_nvme::spec::status::Status;

pub use address::{AddressMode, AddressResolver};
pub use completion_builder::{CompletionBuilder, FlushedCommand, ListBuilder, NvmeResult};

/// Bytes of key buffer allocated at a time.
const KEYS_BYTES: usize = 4_096;

/// The data of a command, or its location.
#[derive(Debug)]
pub enum RequestData {
    /// No data.
    None,
    /// Data from or to client memory.
    Client(ClientSegments),
    /// Bytes that arrived with the command.
    Bytes(Bytes),
    /// A value to store, whose first bytes the device has received itself. Only for [`IoOperation::Store`].
    Received {
        /// The receipt of the first bytes, complete.
        receipt: ValueReceipt,
        /// The bytes behind them.
        rest: Bytes,
    },
    /// Bytes to return with the answer, in [`NvmeResult::data`].
    Returned,
    /// Key and value of a UIO put or get, each at its own address in client memory.
    KeyAndValue {
        /// Memory of the key.
        key: ClientSegments,
        /// Memory of the value.
        value: ClientSegments,
    },
}

/// A command for the device and the rule of its completion.
#[derive(Debug)]
pub struct DeviceRequest {
    /// The namespace to submit it with.
    pub namespace: NamespaceId,
    /// The first command to submit.
    pub command: SsdCommand,
    /// The state that turns its completions into the answer.
    pub completion: CompletionBuilder,
}

impl DeviceRequest {
    /// Joins a command with its data.
    ///
    /// # Errors
    /// The status that the command completes with: [`Status::DATA_SGL_LENGTH_INVALID`] for data of another length than
    /// the command gives, [`Status::DATA_TRANSFER_ERROR`] for client memory that cannot be read.
    pub fn new<M: Media>(
        io: &IoCommand,
        data: RequestData,
        keys: &mut KeyBuffer,
        device: &SsdDevice<M>,
    ) -> Result<Self, Status> {
        let need = io.data();
        let namespace = io.namespace;
        let request = |command, answer| Self { namespace, command, completion: answer };
        Ok(match io.operation {
            IoOperation::Store { key, condition } => request(
                store(keys.copy_key(key.as_bytes()), payload(data, need)?, condition),
                CompletionBuilder::Status,
            ),
            IoOperation::Retrieve { key, offset, caching } => request(
                retrieve(keys.copy_key(key.as_bytes()), sink(data, need)?, (offset, need), caching),
                CompletionBuilder::Length,
            ),
            IoOperation::Put { .. } => {
                let (key, value) = copy_key_of(data)?;
                let value = payload(RequestData::Client(value), need)?;
                request(store(key, value, WriteCondition::Always), CompletionBuilder::Status)
            }
            IoOperation::Get { .. } => {
                let (key, value) = copy_key_of(data)?;
                let sink = sink(RequestData::Client(value), need)?;
                request(retrieve(key, sink, (0, need), ReadCaching::ByLength), CompletionBuilder::Length)
            }
            IoOperation::Delete { key, missing } => {
                let key = keys.copy_key(key.as_bytes());
                request(
                    SsdCommand::Delete { key, condition: WriteCondition::Always },
                    CompletionBuilder::Delete(missing),
                )
            }
            IoOperation::Exist { key } => {
                let key = keys.copy_key(key.as_bytes());
                request(
                    SsdCommand::Exist { key, release: ReadRelease::WhenDurable },
                    CompletionBuilder::Status,
                )
            }
            IoOperation::Flush => request(SsdCommand::Flush, CompletionBuilder::Status),
            IoOperation::List { from } => {
                let from = from
                    .map_or(ListPosition::START, |key| device.list_position_of(namespace, key.as_bytes()));
                let into = match sink(data, need)? {
                    ValueSink::Client(segments) => Some(segments),
                    ValueSink::Bytes(_) => None,
                };
                let list =
                    ListBuilder::new(namespace, from, need.bytes(), into).ok_or(Status::INVALID_FIELD)?;
                request(list.next_command().1, CompletionBuilder::List(Box::new(list)))
            }
            IoOperation::Block(operation) => {
                let (command, read) = block_commands::block_command(operation, need, data)?;
                let request = request(command, CompletionBuilder::Status);
                // With `Durability::Always` a read returns only durable data; else Force Unit Access needs a flush.
                if read == Fua::Yes && device.durability(namespace) != Durability::Always {
                    return Ok(request.after_flush());
                }
                request
            }
        })
    }

    /// Returns the command that accesses data, even if a flush is submitted before it: rights are checked for this one.
    #[must_use]
    #[inline]
    pub fn data_command(&self) -> &SsdCommand {
        match &self.completion {
            CompletionBuilder::Flushed(flushed) => flushed.command(),
            _ => &self.command,
        }
    }

    fn after_flush(self) -> Self {
        let answer = CompletionBuilder::Flushed(Box::new(FlushedCommand::new(self.namespace, self.command)));
        Self { namespace: self.namespace, command: SsdCommand::Flush, completion: answer }
    }
}

/// A buffer for the keys of commands in flight, which share allocations because one for each costs more than the key.
#[derive(Debug, Default)]
pub struct KeyBuffer {
    buffer: BytesMut,
}

impl KeyBuffer {
    #[inline]
    fn copy_key(&mut self, key: &[u8]) -> Bytes {
        if self.buffer.capacity() < key.len() {
            // Reuses the old allocation if no key is left in it.
            self.buffer.reserve(KEYS_BYTES.max(key.len()));
        }
        self.buffer.extend_from_slice(key);
        self.buffer.split().freeze()
    }
}

fn store(key: Bytes, value: ValueSource, condition: WriteCondition) -> SsdCommand {
    SsdCommand::Store { key, value, condition, expiry: RecordExpiry::Never }
}

fn retrieve(
    key: Bytes,
    sink: ValueSink,
    (offset, need): (u32, DataNeed),
    caching: ReadCaching,
) -> SsdCommand {
    let (bytes_max, release) = (need.bytes(), ReadRelease::WhenDurable);
    SsdCommand::Retrieve { key, sink, offset, bytes_max, caching, release }
}

/// Returns the data that a command carries to the device.
#[inline]
fn payload(data: RequestData, need: DataNeed) -> Result<ValueSource, Status> {
    let payload = match data {
        RequestData::Client(segments) => ValueSource::Client(segments),
        RequestData::Bytes(bytes) => ValueSource::Bytes(bytes),
        RequestData::Received { receipt, rest } => ValueSource::Received { receipt, rest },
        RequestData::None | RequestData::Returned | RequestData::KeyAndValue { .. } => {
            ValueSource::Bytes(Bytes::new())
        }
    };
    check_length(payload.len(), need)?;
    Ok(payload)
}

/// Returns the sink for the data that a command reads.
#[inline]
fn sink(data: RequestData, need: DataNeed) -> Result<ValueSink, Status> {
    match data {
        RequestData::Client(segments) => {
            check_length(segments.bytes(), need)?;
            Ok(ValueSink::Client(segments))
        }
        RequestData::Returned => Ok(ValueSink::Bytes(Vec::new())),
        RequestData::None
        | RequestData::Bytes(_)
        | RequestData::Received { .. }
        | RequestData::KeyAndValue { .. } => {
            check_length(0, need)?;
            Ok(ValueSink::Bytes(Vec::new()))
        }
    }
}

/// Checks that the transport resolved exactly the length that [`IoCommand::data`] returned.
#[inline]
fn check_length(bytes: usize, need: DataNeed) -> Result<(), Status> {
    if u32::try_from(bytes) == Ok(need.bytes()) { Ok(()) } else { Err(Status::DATA_SGL_LENGTH_INVALID) }
}

/// Copies the key of a UIO command out of client memory, which may still change, and returns it with the value.
fn copy_key_of(data: RequestData) -> Result<(Bytes, ClientSegments), Status> {
    let RequestData::KeyAndValue { key, value } = data else {
        return Err(Status::INVALID_FIELD);
    };
    let mut bytes = vec![0; key.bytes()];
    if key.copy_in(0, &mut bytes) != bytes.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    Ok((bytes.into(), value))
}
