//! Decodes an I/O submission entry into a typed command, or into the status that refuses it.
//!
//! Input: the copy of an entry that the controller fetched, any 64 bytes, and the settings of its namespace. Output: an
//! [`IoCommand`] whose namespace, lengths and options are valid, or a [`Status`] with a truthful Do Not Retry: while
//! the namespace is unchanged the same entry would be refused again. Invariant: decoding reads the entry only; it
//! accesses no client memory and allocates nothing.
//!
//! Opcodes 01h and 02h mean different commands on a key space and on a block namespace, so the namespace is looked up
//! first. Reserved dwords are ignored, as hosts need not clear them; reserved values of fields are refused. So the vendor
//! specific offset of a Retrieve, in a reserved dword, counts only with an option bit that other devices of this kind refuse.
//!
//! # What this does not do
//! It decodes no data pointer and looks up no key: [`IoCommand::data`] gives length and direction of the data, the
//! transport locates it, and [`DeviceRequest`](crate::nvme::request::DeviceRequest) joins the two.

mod kv;
mod nvm;
#[cfg(test)]
mod tests;

use crate::command::{NamespaceId, ReadCaching, WriteCondition};
use crate::limits::NAMESPACES;
use crate::namespace::{Namespace, NamespaceKind};

pub use crate::namespace::MissingKey;
use headwater_dma::iova::IovaRange;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::InlineKey;
use headwater_nvme::spec::opcode::{DataTransfer, IoOpcode};
use headwater_nvme::spec::status::Status;

pub use nvm::{BlockOperation, BlockSpace, DatasetUse};

/// A well-formed command of an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// The key space or block namespace.
    pub namespace: NamespaceId,
    /// The operation on it.
    pub operation: IoOperation,
    /// The length and direction of its data.
    pub(super) data: DataNeed,
}

/// The operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOperation {
    /// KV Store (KV 1.0d section 3.2.5).
    Store {
        /// The key.
        key: InlineKey,
        /// The condition of the store.
        condition: WriteCondition,
    },
    /// KV Retrieve (3.2.3): as much of the value as fits the buffer, from its front or from an offset on; its full length into
    /// dword 0 of the completion.
    Retrieve {
        /// The key.
        key: InlineKey,
        /// The first byte of the value to read: 0, or CDW12 if option bit 15 says so.
        offset: u32,
        /// The use of device DRAM: option bit 14 keeps the pages of a long value there.
        caching: ReadCaching,
    },
    /// KV List (3.2.2): the complete keys that fit the buffer.
    List {
        /// The key to start at; `None`, sent as key length 0, is the start of the device's order.
        from: Option<InlineKey>,
    },
    /// KV Delete (3.2.1).
    Delete {
        /// The key.
        key: InlineKey,
        /// The result if the key does not exist.
        missing: MissingKey,
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
        /// Address range of the key; 1 to [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX) bytes.
        key: IovaRange,
        /// Address range of the value.
        value: IovaRange,
    },
    /// UIO get: key by address.
    Get {
        /// Address range of the key; 1 to [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX) bytes.
        key: IovaRange,
        /// Address range of the buffer for the value.
        buffer: IovaRange,
    },
    /// A command of a block namespace.
    Block(BlockOperation),
}

/// The length and direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataNeed {
    /// No data; the data pointer is ignored.
    None,
    /// This number of bytes to the controller.
    FromHost(u32),
    /// A host buffer for this number of bytes.
    ToHost(u32),
}

impl DataNeed {
    /// Returns the need for this number of bytes in the direction that an opcode states. No I/O command has data in
    /// both directions.
    #[inline]
    const fn of(direction: DataTransfer, bytes: u32) -> Self {
        match direction {
            DataTransfer::None | DataTransfer::Bidirectional => Self::None,
            DataTransfer::HostToController => Self::FromHost(bytes),
            DataTransfer::ControllerToHost => Self::ToHost(bytes),
        }
    }

    /// Returns the number of bytes in either direction.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::FromHost(bytes) | Self::ToHost(bytes) => bytes,
        }
    }
}

impl IoCommand {
    /// Returns the length and direction that the data pointer must describe; for UIO commands, which have no data
    /// pointer, those of the value. A buffer is not longer than the longest value or, for a List, the maximum transfer.
    #[must_use]
    #[inline]
    pub const fn data(&self) -> DataNeed {
        self.data
    }

    /// Sets the result of a Delete without key to that of the namespace's EDNEK bit.
    #[inline]
    fn set_missing_key(&mut self, of_namespace: MissingKey) {
        if let IoOperation::Delete { missing, .. } = &mut self.operation {
            *missing = of_namespace;
        }
    }
}

/// NSID of a command for all namespaces.
const NSID_ALL: u32 = u32::MAX;
/// FUSE and the reserved bits between it and PSDT.
const FUSED_OR_RESERVED: u8 = 0x3F;
/// PSDT with its reserved value.
const RESERVED_POINTER: u8 = 0xC0;

/// Decodes an entry from a queue of this kind. `namespace` returns the namespace of a number for this host, `None` if
/// the host sees none there.
///
/// # Errors
/// The status that the command completes with; each has Do Not Retry set:
/// [`Status::INVALID_FIELD`] for fused commands, reserved values, a namespace that is not active, blocks of more bytes than
/// one command may move, protection and directives; [`Status::INVALID_NAMESPACE`] for a number that no namespace can have;
/// [`Status::INVALID_OPCODE`] for what this queue or the namespace's command set does not have;
/// [`Status::INVALID_KEY_SIZE`] for an empty key or one that is too long;
/// [`Status::INVALID_VALUE_SIZE`] for a value above the limit; [`Status::LBA_OUT_OF_RANGE`] for blocks that the
/// namespace does not have; [`Status::COMMAND_SIZE_LIMIT`] for a Copy of too many ranges.
#[inline]
pub fn decode(
    entry: &SubmissionEntry,
    kind: QueueKind,
    namespace: impl Fn(NamespaceId) -> Option<Namespace>,
) -> Result<IoCommand, Status> {
    if entry.flags & FUSED_OR_RESERVED != 0 || entry.flags & RESERVED_POINTER == RESERVED_POINTER {
        return Err(Status::INVALID_FIELD);
    }
    if entry.opcode == IoOpcode::Flush.number() && entry.namespace.get() == NSID_ALL {
        // All namespaces share one log, so a flush of one makes all acknowledged writes durable.
        let operation = IoOperation::Flush;
        return Ok(IoCommand { namespace: NamespaceId::FIRST, operation, data: DataNeed::None });
    }
    let id = namespace_id(entry)?;
    let namespace = namespace(id).ok_or(Status::INVALID_FIELD)?;
    let (operation, data) = match namespace.kind {
        NamespaceKind::Kv => kv::decode(entry, kind)?,
        NamespaceKind::Block(_) if entry.opcode == IoOpcode::Flush.number() => {
            (IoOperation::Flush, DataNeed::None)
        }
        NamespaceKind::Block(format) => {
            let space = BlockSpace { blocks: namespace.size, format };
            let (operation, data) = nvm::decode(entry, space)?;
            (IoOperation::Block(operation), data)
        }
    };
    let mut command = IoCommand { namespace: id, operation, data };
    command.set_missing_key(namespace.missing_key);
    Ok(command)
}

/// Decodes the NSID, which counts from 1.
#[inline]
fn namespace_id(entry: &SubmissionEntry) -> Result<NamespaceId, Status> {
    u8::try_from(entry.namespace.get())
        .ok()
        .filter(|&number| (1..=NAMESPACES).contains(&usize::from(number)))
        .map(NamespaceId)
        .ok_or(Status::INVALID_NAMESPACE)
}
