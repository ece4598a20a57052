//! Decodes the commands of key spaces: the Key Value command set, and the UIO put and get.
//!
//! Input: an entry for a key space. Output: an [`IoOperation`] and its data; key and lengths are inside the limits.

use super::{DataNeed, IoOperation, MissingKey};
use crate::command::{ReadCaching, WriteCondition};
use crate::limits::{KEY_BYTES_MAX, TRANSFER_BYTES_MAX, VALUE_BYTES_MAX};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{InlineKey, LIST_HEADER_BYTES, StoreOptions};
use headwater_nvme::spec::opcode::IoOpcode;
use headwater_nvme::spec::status::Status;

pub(super) fn decode(entry: &SubmissionEntry, kind: QueueKind) -> Result<(IoOperation, DataNeed), Status> {
    let opcode = IoOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    if kind == QueueKind::Standard && matches!(opcode, IoOpcode::UioPut | IoOpcode::UioGet) {
        return Err(Status::INVALID_OPCODE);
    }
    let operation = match opcode {
        IoOpcode::Store => store(entry)?,
        IoOpcode::Retrieve => retrieve(entry)?,
        IoOpcode::List => list(entry)?,
        IoOpcode::Delete => IoOperation::Delete { key: plain_key(entry)?, missing: MissingKey::Ignored },
        IoOpcode::Exist => IoOperation::Exist { key: plain_key(entry)? },
        IoOpcode::Flush => IoOperation::Flush,
        IoOpcode::UioPut => IoOperation::Put {
            key: uio_key(entry)?,
            value: IovaRange {
                start: Iova(entry.uio_value_address()),
                bytes: checked_value_bytes(entry.uio_value_bytes()).ok_or(Status::INVALID_VALUE_SIZE)?,
            },
        },
        IoOpcode::UioGet => IoOperation::Get {
            key: uio_key(entry)?,
            buffer: IovaRange {
                start: Iova(entry.uio_value_address()),
                bytes: checked_value_bytes(entry.uio_value_bytes()).unwrap_or(VALUE_BYTES_LIMIT),
            },
        },
    };
    Ok((operation, data_of(entry, &operation, kind)?))
}

/// Returns the data of a decoded command.
fn data_of(entry: &SubmissionEntry, operation: &IoOperation, kind: QueueKind) -> Result<DataNeed, Status> {
    let Some(transfer) = entry.kv_transfer() else {
        return Ok(match operation {
            IoOperation::Put { value, .. } => DataNeed::FromHost(value.bytes),
            IoOperation::Get { buffer, .. } => DataNeed::ToHost(buffer.bytes),
            _ => DataNeed::None,
        });
    };
    let bytes = match operation {
        IoOperation::Store { .. } => {
            transfer_bytes(transfer.bytes, kind).ok_or(Status::INVALID_VALUE_SIZE)?
        }
        IoOperation::List { .. } => list_bytes(transfer.bytes)?,
        // No transfer is longer, so the rest of a longer buffer is never written.
        _ => transfer_bytes(transfer.bytes, kind).unwrap_or(value_bytes_max(kind)),
    };
    Ok(DataNeed::of(transfer.direction, bytes))
}

fn store(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    let exists = StoreOptions::ONLY_IF_EXISTS;
    let absent = StoreOptions::ONLY_IF_ABSENT;
    let key = inline_key(entry, exists.union(absent).union(StoreOptions::NO_COMPRESSION))?;
    let options = entry.kv_options();
    let condition = match (options.contains(exists), options.contains(absent)) {
        (false, false) => WriteCondition::Always,
        (true, false) => WriteCondition::IfExists,
        (false, true) => WriteCondition::IfAbsent,
        // The two conditions exclude each other.
        (true, true) => return Err(Status::INVALID_FIELD),
    };
    Ok(IoOperation::Store { key, condition })
}

#[inline]
fn retrieve(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    let (from, keep) = (StoreOptions::RETRIEVE_FROM, StoreOptions::RETRIEVE_KEEP);
    let key = inline_key(entry, StoreOptions::RETRIEVE_RAW.union(from).union(keep))?;
    let options = entry.kv_options();
    let offset = if options.contains(from) { entry.cdw12.get() } else { 0 };
    let caching = if options.contains(keep) { ReadCaching::Keep } else { ReadCaching::ByLength };
    Ok(IoOperation::Retrieve { key, offset, caching })
}

fn list(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    let from = match entry.kv_key_bytes() {
        0 => None,
        _ => Some(plain_key(entry)?),
    };
    Ok(IoOperation::List { from })
}

/// Returns the length of the answer to a List with a buffer of this length, in which at least the count of keys fits.
fn list_bytes(buffer_bytes: u64) -> Result<u32, Status> {
    // No answer exceeds the maximum transfer of a command; the host continues from the last key.
    let bytes = u32::try_from(buffer_bytes).unwrap_or(u32::MAX).min(TRANSFER_BYTES_MAX);
    if usize::try_from(bytes).is_ok_and(|bytes| bytes < LIST_HEADER_BYTES) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(bytes)
}

/// Returns the key, if the options byte has only `allowed` bits.
fn inline_key(entry: &SubmissionEntry, allowed: StoreOptions) -> Result<InlineKey, Status> {
    if !allowed.contains(entry.kv_options()) {
        return Err(Status::INVALID_FIELD);
    }
    InlineKey::from_entry(entry).ok_or(Status::INVALID_KEY_SIZE)
}

/// Returns the key of a command without options.
fn plain_key(entry: &SubmissionEntry) -> Result<InlineKey, Status> {
    inline_key(entry, StoreOptions(u8::MAX))
}

fn uio_key(entry: &SubmissionEntry) -> Result<IovaRange, Status> {
    let bytes = u32::try_from(entry.uio_key_bytes())
        .ok()
        .filter(|&bytes| (1..=KEY_BYTES_LIMIT).contains(&bytes))
        .ok_or(Status::INVALID_KEY_SIZE)?;
    Ok(IovaRange { start: Iova(entry.uio_key_address()), bytes })
}

/// Returns the length if one command can move it.
fn transfer_bytes(bytes: u64, kind: QueueKind) -> Option<u32> {
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= value_bytes_max(kind))
}

/// Returns the most bytes of a value that one command moves: an NVMe host is told one limit for all transfers.
const fn value_bytes_max(kind: QueueKind) -> u32 {
    match kind {
        QueueKind::Standard => TRANSFER_BYTES_MAX,
        QueueKind::Uio => VALUE_BYTES_LIMIT,
    }
}

/// Returns the length if a value can have it.
fn checked_value_bytes(bytes: u64) -> Option<u32> {
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= VALUE_BYTES_LIMIT)
}

#[expect(clippy::cast_possible_truncation, reason = "the limit is far below 32 bits, asserted below")]
const VALUE_BYTES_LIMIT: u32 = VALUE_BYTES_MAX as u32;
const _: () = assert!(VALUE_BYTES_LIMIT as usize == VALUE_BYTES_MAX);

#[expect(clippy::cast_possible_truncation, reason = "the limit is far below 32 bits, asserted below")]
const KEY_BYTES_LIMIT: u32 = KEY_BYTES_MAX as u32;
const _: () = assert!(KEY_BYTES_LIMIT as usize == KEY_BYTES_MAX);
