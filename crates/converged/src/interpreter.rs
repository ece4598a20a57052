//! Decodes an I/O submission entry into a typed command, or into the status that refuses it.
//!
//! In: the copy of an entry that the controller fetched, any 64 bytes. Out: an [`IoCommand`] whose namespace, lengths and
//! options are possible, or a [`Status`] with a truthful Do Not Retry: the same entry would be refused again. Invariant:
//! decoding looks at the entry only; no memory of the client is touched and nothing is allocated.
//!
//! # The data pointer of rings in this process
//! Their client memory has addresses of its own ([`dma::iova`](headwater_dma::iova)), in which every buffer is one run. So
//! PRP Entry 1 is the address of the first byte, of any alignment, PRP Entry 2 is zero, and dword 10 is the length. SGLs
//! are refused.
//!
//! # What this does not do
//! It resolves no address and looks up no key. Whether the memory is there is asked when bytes move.

use crate::command::{Condition, NamespaceId};
use crate::limits::{KEY_BYTES_MAX, NAMESPACES, VALUE_BYTES_MAX};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{InlineKey, KV_KEY_BYTES_MAX, LIST_HEADER_BYTES, StoreOptions};
use headwater_nvme::spec::opcode::IoOpcode;
use headwater_nvme::spec::status::Status;

/// A well-formed command of an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Which key space.
    pub namespace: NamespaceId,
    /// What to do there.
    pub operation: IoOperation,
}

/// What a command asks for, with the places of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// KV Store (KV 1.0d section 3.2.5).
    Store {
        /// The key.
        key: InlineKey,
        /// Where the value lies; empty for a key without a value.
        value: IovaRange,
        /// What must hold.
        condition: Condition,
    },
    /// KV Retrieve (3.2.3): the value's front to the buffer, its full length to dword 0 of the completion.
    Retrieve {
        /// The key.
        key: InlineKey,
        /// Where the value goes.
        buffer: IovaRange,
    },
    /// KV List (3.2.2): the complete keys that fit the buffer.
    List {
        /// The key to start at; `None`, sent as key length 0, is the front of the device's order.
        from: Option<InlineKey>,
        /// Where the keys go; at least their count fits.
        buffer: IovaRange,
    },
    /// KV Delete (3.2.1).
    Delete {
        /// The key.
        key: InlineKey,
    },
    /// KV Exist (3.2.4).
    Exist {
        /// The key.
        key: InlineKey,
    },
    /// Flush (Base 2.0 section 7.1).
    Flush,
    /// UIO put: key and value by address.
    Put {
        /// Where the key lies; 1 to [`KEY_BYTES_MAX`] bytes.
        key: IovaRange,
        /// Where the value lies.
        value: IovaRange,
    },
    /// UIO get: key by address.
    Get {
        /// Where the key lies; 1 to [`KEY_BYTES_MAX`] bytes.
        key: IovaRange,
        /// Where the value goes.
        buffer: IovaRange,
    },
}

/// Decodes an entry that came from a queue of this kind.
///
/// # Errors
/// The status that the command completes with; each has Do Not Retry set:
/// [`Status::INVALID_OPCODE`] for what this queue does not take, [`Status::INVALID_FIELD`] for fused commands, SGLs,
/// reserved bits, a key length above 16 and a second PRP, [`Status::INVALID_NAMESPACE`] for a namespace that is none,
/// [`Status::INVALID_KEY_SIZE`] for an empty key (or a UIO key above [`KEY_BYTES_MAX`]), [`Status::INVALID_VALUE_SIZE`]
/// for a value above [`VALUE_BYTES_MAX`].
pub fn decode(entry: &SubmissionEntry, kind: QueueKind) -> Result<IoCommand, Status> {
    let opcode = IoOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    if kind == QueueKind::Kv && matches!(opcode, IoOpcode::UioPut | IoOpcode::UioGet) {
        return Err(Status::INVALID_OPCODE);
    }
    if entry.has_special_flags() || entry.cdw12.get() != 0 || entry.cdw13.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let namespace = decode_namespace(entry)?;
    let operation = match opcode {
        IoOpcode::Store => decode_store(entry)?,
        IoOpcode::Retrieve => IoOperation::Retrieve {
            key: inline_key(entry, StoreOptions::RETRIEVE_RAW)?,
            buffer: data_buffer(entry)?,
        },
        IoOpcode::List => decode_list(entry)?,
        IoOpcode::Delete => IoOperation::Delete { key: key_without_data(entry)? },
        IoOpcode::Exist => IoOperation::Exist { key: key_without_data(entry)? },
        IoOpcode::Flush => decode_flush(entry)?,
        IoOpcode::UioPut => decode_put(entry)?,
        IoOpcode::UioGet => IoOperation::Get {
            key: uio_key(entry)?,
            buffer: IovaRange {
                start: Iova(entry.uio_value_address()),
                // No value is longer, so a longer buffer is never touched behind this.
                bytes: value_bytes(entry.uio_value_bytes()).unwrap_or(VALUE_BYTES_LIMIT),
            },
        },
    };
    Ok(IoCommand { namespace, operation })
}

fn decode_store(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    let exists = StoreOptions::ONLY_IF_EXISTS;
    let absent = StoreOptions::ONLY_IF_ABSENT;
    let key = inline_key(entry, exists.and(absent).and(StoreOptions::NO_COMPRESSION))?;
    let options = entry.kv_options();
    let condition = match (options.contains(exists), options.contains(absent)) {
        (false, false) => Condition::Always,
        (true, false) => Condition::IfExists,
        (false, true) => Condition::IfAbsent,
        // No key both exists and does not: the host cannot mean it.
        (true, true) => return Err(Status::INVALID_FIELD),
    };
    let value = data_buffer(entry)?;
    value_bytes(u64::from(value.bytes)).ok_or(Status::INVALID_VALUE_SIZE)?;
    Ok(IoOperation::Store { key, value, condition })
}

fn decode_list(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    check_options(entry, StoreOptions::NONE)?;
    let from = match entry.kv_key_bytes() {
        0 => None,
        _ => Some(inline_key(entry, StoreOptions::NONE)?),
    };
    let buffer = data_buffer(entry)?;
    if usize::try_from(buffer.bytes).is_ok_and(|bytes| bytes < LIST_HEADER_BYTES) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(IoOperation::List { from, buffer })
}

fn decode_flush(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    let unused = [entry.cdw10, entry.cdw11, entry.cdw14, entry.cdw15];
    if unused.iter().any(|dword| dword.get() != 0) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(IoOperation::Flush)
}

fn decode_put(entry: &SubmissionEntry) -> Result<IoOperation, Status> {
    Ok(IoOperation::Put {
        key: uio_key(entry)?,
        value: IovaRange {
            start: Iova(entry.uio_value_address()),
            bytes: value_bytes(entry.uio_value_bytes()).ok_or(Status::INVALID_VALUE_SIZE)?,
        },
    })
}

/// NSID: namespaces count from 1. The broadcast value is refused too: no command here acts on all namespaces.
fn decode_namespace(entry: &SubmissionEntry) -> Result<NamespaceId, Status> {
    u8::try_from(entry.namespace.get())
        .ok()
        .filter(|&number| (1..=NAMESPACES).contains(&usize::from(number)))
        .map(NamespaceId)
        .ok_or(Status::INVALID_NAMESPACE)
}

/// The reserved half of CDW11 is zero and the options byte has none but `allowed` bits.
fn check_options(entry: &SubmissionEntry, allowed: StoreOptions) -> Result<(), Status> {
    if entry.kv_reserved() != 0 || !allowed.contains(entry.kv_options()) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(())
}

fn inline_key(entry: &SubmissionEntry, allowed: StoreOptions) -> Result<InlineKey, Status> {
    if usize::from(entry.kv_key_bytes()) > KV_KEY_BYTES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    check_options(entry, allowed)?;
    InlineKey::of_entry(entry).ok_or(Status::INVALID_KEY_SIZE)
}

fn key_without_data(entry: &SubmissionEntry) -> Result<InlineKey, Status> {
    if entry.cdw10.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    inline_key(entry, StoreOptions::NONE)
}

fn data_buffer(entry: &SubmissionEntry) -> Result<IovaRange, Status> {
    if entry.prp2.get() != 0 {
        return Err(Status::INVALID_FIELD);
    }
    Ok(IovaRange { start: Iova(entry.prp1.get()), bytes: entry.kv_data_bytes() })
}

/// A UIO key: its dwords 10, 11, 14 and 15 are reserved.
fn uio_key(entry: &SubmissionEntry) -> Result<IovaRange, Status> {
    let unused = [entry.cdw10, entry.cdw11, entry.cdw14, entry.cdw15];
    if unused.iter().any(|dword| dword.get() != 0) {
        return Err(Status::INVALID_FIELD);
    }
    let bytes = u32::try_from(entry.uio_key_bytes())
        .ok()
        .filter(|&bytes| (1..=KEY_BYTES_LIMIT).contains(&bytes))
        .ok_or(Status::INVALID_KEY_SIZE)?;
    Ok(IovaRange { start: Iova(entry.uio_key_address()), bytes })
}

/// A length that a value can have.
fn value_bytes(bytes: u64) -> Option<u32> {
    u32::try_from(bytes).ok().filter(|&bytes| bytes <= VALUE_BYTES_LIMIT)
}

#[expect(clippy::cast_possible_truncation, reason = "the limit is far below 32 bits, asserted beneath")]
const VALUE_BYTES_LIMIT: u32 = VALUE_BYTES_MAX as u32;
const _: () = assert!(VALUE_BYTES_LIMIT as usize == VALUE_BYTES_MAX);

#[expect(clippy::cast_possible_truncation, reason = "the limit is far below 32 bits, asserted beneath")]
const KEY_BYTES_LIMIT: u32 = KEY_BYTES_MAX as u32;
const _: () = assert!(KEY_BYTES_LIMIT as usize == KEY_BYTES_MAX);

#[cfg(test)]
mod tests;
