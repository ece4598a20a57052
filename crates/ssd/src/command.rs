//! Commands to the device and their completions, independent of queue format and front end.
//!
//! Input: a [`SsdCommand`] with the bytes it carries or the buffer its bytes go to. Output: one [`SsdCompletion`] with the
//! same token.
//! Invariant: if `submit` returns `Ok`, exactly one completion follows; if it returns `Err`, none follows.

mod value_receipt;

pub use value_receipt::{ReceiptStep, ValueReceipt};

use crate::namespace::NamespaceChange;
use bytes::Bytes;
use headwater_dma::iova::ClientSegments;
use headwater_nvme::spec::status::Status;
use std::fmt;
use std::sync::Arc;

/// A key space with its own durability mode. Numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u8);

impl NamespaceId {
    /// The first namespace: the default of clients that do not select one.
    pub const FIRST: Self = Self(1);

    /// The namespace that holds the namespace table. Front ends never see it.
    pub(crate) const SYSTEM: Self = Self(17);

    /// Returns its index in a table of namespaces.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 as usize).wrapping_sub(1)
    }
}

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}", self.0)
    }
}

const _: () = assert!(NamespaceId::SYSTEM.index() + 1 == crate::limits::SPACES);

/// A logical block address of a block namespace, in blocks of its format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}", self.0)
    }
}

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaRange {
    /// The first block.
    pub start: Lba,
    /// Number of blocks.
    pub blocks: u32,
}

/// Force Unit Access: selects if a write is durable before it completes, whatever the durability of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fua {
    /// Durable before it completes.
    Yes,
    /// As the durability of the namespace says.
    No,
}

/// The front end that submitted a command and receives its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontEndId(pub u16);

/// Position of a record in the order of all writes of a device. A moved record keeps its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// The time at which a record expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordExpiry {
    /// Never.
    Never,
    /// At this wall time, in milliseconds since the epoch; never zero.
    At(u64),
    /// At the same time as the record it replaces.
    Keep,
}

/// The condition of a store or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCondition {
    /// No condition.
    Always,
    /// The key exists (KV 1.0d: store option bit 8), else [`Status::KEY_DOES_NOT_EXIST`].
    IfExists,
    /// The key does not exist (option bit 9), else [`Status::KEY_EXISTS`].
    IfAbsent,
    /// The key's record has this sequence, else [`Status::SEQUENCE_MISMATCH`]. This makes read-modify-write atomic.
    IfSequence(Sequence),
}

/// The bytes of a value to be stored.
#[derive(Clone, Debug)]
pub enum ValueSource {
    /// Bytes that the command owns.
    Bytes(Bytes),
    /// Bytes in client memory. They are copied once, straight into the record, unless the client can take the memory away.
    Client(ClientSegments),
    /// A value whose first bytes the device has received itself. Only for [`SsdCommand::Store`].
    Received {
        /// The receipt of the first bytes, complete.
        receipt: ValueReceipt,
        /// The bytes behind them.
        rest: Bytes,
    },
}

impl ValueSource {
    /// Returns the number of bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Client(segments) => segments.bytes(),
            Self::Received { receipt, rest } => receipt.bytes() + rest.len(),
        }
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Into<Bytes>> From<B> for ValueSource {
    fn from(bytes: B) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// The destination of a value that is read.
#[derive(Clone, Debug)]
pub enum ValueSink {
    /// A vector that the value is appended to. It comes back with the completion, also after an error.
    Bytes(Vec<u8>),
    /// Client memory, which receives as many bytes as fit.
    Client(ClientSegments),
}

impl From<Vec<u8>> for ValueSink {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// A reader of one value in parts: the value is the one that was found when the reader was opened, also if its key is
/// written later. Clones are the same reader, which is closed by the drop of the last one that its front end has.
#[derive(Clone, Debug)]
pub struct ValueReader(Arc<u64>);

impl ValueReader {
    /// Creates a reader that is not open. No other reader of the same front end that is open may have its number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(Arc::new(number))
    }

    /// Returns its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        *self.0
    }

    /// Returns true if there is no other clone.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The point at which a read may complete, relative to the durability of the record it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRelease {
    /// Once the record is durable (the release rule).
    WhenDurable,
    /// At once. Only for a front end that holds the result back: it feeds a store with [`WriteCondition::IfSequence`], or a
    /// [`SsdCommand::Fence`] follows.
    Speculative,
}

/// The use of device DRAM for the pages of a value that a read brings there from the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadCaching {
    /// By the length of the value: pages of the log stay until their room is needed, the pages of a value in extents
    /// leave when they are copied. A page that is there already is not read again.
    #[default]
    ByLength,
    /// The pages of a value in extents stay too, for the reads that follow. Their bytes are copied by the core itself.
    Keep,
}

/// One write of an all-or-nothing [`SsdCommand::Batch`].
#[derive(Clone, Debug)]
pub enum BatchWrite {
    /// Stores a value.
    Store {
        /// Key bytes.
        key: Bytes,
        /// Value bytes.
        value: Bytes,
        /// The condition of the store.
        condition: WriteCondition,
        /// The time at which the record expires.
        expiry: RecordExpiry,
    },
    /// Removes a key. A missing key is no failure unless the condition requires the key.
    Delete {
        /// Key bytes.
        key: Bytes,
        /// The condition of the delete.
        condition: WriteCondition,
    },
    /// Writes nothing: the condition decides on the other writes of the batch, at the moment in which they take effect.
    Check {
        /// Key bytes.
        key: Bytes,
        /// The condition that the key must meet.
        condition: WriteCondition,
    },
}

/// The namespace of some consecutive writes of a [`SsdCommand::BatchAcross`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRun {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The index behind its last write, where the next run begins.
    pub end: usize,
    /// The clear of the namespace by the batch.
    pub clear: BatchClear,
}

/// The clear of a namespace by a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchClear {
    /// The batch does not clear it.
    No,
    /// The batch removes every key of it, before any of its writes.
    BeforeWrites,
}

/// A request to the device.
#[derive(Clone, Debug)]
pub enum SsdCommand {
    /// Stores a value under a key (KV Store 01h; UIO put 81h).
    Store {
        /// Key bytes, 1 to [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX).
        key: Bytes,
        /// Value bytes, up to [`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX).
        value: ValueSource,
        /// The condition of the store.
        condition: WriteCondition,
        /// The time at which the record expires.
        expiry: RecordExpiry,
    },
    /// Reads the value of a key, or a part of it (KV Retrieve 02h; UIO get 82h). The completion carries at most `bytes_max`
    /// bytes of the value from `offset` on in `sink`, and the value's full length. All of them are of one value.
    Retrieve {
        /// Key bytes.
        key: Bytes,
        /// The destination of the bytes.
        sink: ValueSink,
        /// The first byte of the value to read. There are none to read from the end of the value on.
        offset: u32,
        /// Most bytes to read.
        bytes_max: u32,
        /// The use of device DRAM for the pages of a long value.
        caching: ReadCaching,
        /// The point at which the read may complete.
        release: ReadRelease,
    },
    /// Opens a reader of a key's value, which [`SsdCommand::ReadPart`] then reads in order. Completes like an Exist
    /// that waits until the record is durable.
    OpenValue {
        /// Key bytes.
        key: Bytes,
        /// The reader to open. It is open only if the command succeeds.
        reader: ValueReader,
    },
    /// Reads bytes of a value behind those that were read before, with no other command on the same reader in flight. The end
    /// of the value closes the reader, and so does [`Status::SEQUENCE_MISMATCH`]: the key was written or removed, and the device
    /// needed the room of the old value. [`Status::UNRECOVERED_ERROR`] if the part cannot be read, [`Status::INVALID_FIELD`] if
    /// the reader is not open, or if the part begins in front of the end of the last one or behind the value, which closes it.
    ReadPart {
        /// The reader.
        reader: ValueReader,
        /// The first byte of the value to read. What lies between the last part and this one is passed over: of a value in
        /// extents it is not read, of another one it is, because the checksum of the record covers it.
        offset: u32,
        /// The vector that receives the bytes. It comes back with the completion.
        sink: Vec<u8>,
        /// Most bytes to read. The part is shorter at the end of the value, and if device DRAM has no room for as many pages.
        bytes_max: u32,
    },
    /// Checks that a key exists and returns length, sequence and expiry of its record (KV Exist 14h).
    Exist {
        /// Key bytes.
        key: Bytes,
        /// The point at which the command may complete.
        release: ReadRelease,
    },
    /// Removes a key (KV Delete 10h). A missing key completes with [`Status::KEY_DOES_NOT_EXIST`]; the front end
    /// decides what it reports to its client.
    Delete {
        /// Key bytes.
        key: Bytes,
        /// The condition of the delete.
        condition: WriteCondition,
    },
    /// Executes several writes of one namespace, all or nothing, also across a power cut. If a condition fails, the
    /// completion carries its status, and the index of the failed write in `position`. A batch of many writes is checked in
    /// parts: if a later part can never work, the batch is not refused, and the completion carries the status.
    Batch {
        /// The writes, in order; no key twice.
        writes: Vec<BatchWrite>,
    },
    /// Executes several writes of several key spaces, all or nothing, as [`SsdCommand::Batch`] does those of one: under the
    /// strictest durability, and within the quota and the rate limits of each. It is submitted with the namespace of its
    /// first run. It may clear key spaces too: conditions are decided on what is there before, and all writes come behind
    /// all clears, whichever run says so.
    BatchAcross {
        /// The writes, in order; no key of a namespace twice.
        writes: Vec<BatchWrite>,
        /// Their namespaces, up to [`BATCH_RUNS_MAX`](crate::limits::BATCH_RUNS_MAX) runs. The last one ends with the last
        /// write, and only one that clears its namespace may be empty.
        runs: Vec<NamespaceRun>,
    },
    /// Lists keys of the namespace in the device's own order, which does not change while keys are added and removed
    /// (KV List 06h). The completion carries the keys and the position to continue from.
    List {
        /// The position to start at: [`ListPosition::START`], one that a completion returned, or that of a key
        /// ([`SsdDevice::list_position_of`](crate::engine::SsdDevice::list_position_of)).
        position: ListPosition,
        /// Most keys to return (more only if keys share one position).
        keys_max: u32,
    },
    /// Completes when everything that the namespace acknowledged before is durable (Flush 00h).
    Flush,
    /// Completes when everything up to a sequence is durable, in the namespace's own durability mode.
    Fence {
        /// The last sequence that must be durable.
        up_to: Sequence,
    },
    /// Removes every key, or every block, of the namespace.
    Clear,
    /// Reads blocks (NVM Read 02h). A block that was never written, or was deallocated, reads as zeroes.
    Read {
        /// The blocks to read.
        range: LbaRange,
        /// The destination of the bytes, with room for all of the blocks.
        sink: ValueSink,
    },
    /// Writes blocks (NVM Write 01h), all or nothing, also across a power cut.
    Write {
        /// The first block.
        start: Lba,
        /// Their bytes, a whole number of blocks and at least one.
        data: ValueSource,
        /// Force Unit Access.
        fua: Fua,
    },
    /// Makes blocks read as zeroes and frees their space (NVM Write Zeroes 08h, Dataset Management 09h deallocate).
    Deallocate {
        /// The blocks to deallocate.
        ranges: Vec<LbaRange>,
        /// Force Unit Access.
        fua: Fua,
    },
    /// Compares blocks with bytes (NVM Compare 05h), else [`Status::COMPARE_FAILURE`].
    Compare {
        /// The first block.
        start: Lba,
        /// The expected bytes, a whole number of blocks.
        data: ValueSource,
    },
    /// Reads blocks and checks their checksums, without a data transfer (NVM Verify 0Ch).
    Verify {
        /// The blocks to check.
        range: LbaRange,
    },
    /// Copies blocks within the namespace (NVM Copy 19h), source ranges in order, to one destination; all or nothing.
    Copy {
        /// The source ranges.
        sources: Vec<LbaRange>,
        /// The first destination block; the destination is contiguous.
        destination: Lba,
        /// Force Unit Access.
        fua: Fua,
    },
    /// Changes the namespace table, all or nothing; durable when this completes. The change applies to the namespace
    /// that the command is submitted with. [`NamespaceChange::Create`] ignores it and returns the new number in the
    /// completion's `position`.
    Namespace(NamespaceChange),
}

impl SsdCommand {
    /// Makes the read of a whole value: from its first byte on, all of its bytes, with the caching of its length.
    #[must_use]
    pub fn retrieve_whole(key: Bytes, sink: ValueSink, release: ReadRelease) -> Self {
        let (offset, bytes_max, caching) = (0, u32::MAX, ReadCaching::ByLength);
        Self::Retrieve { key, sink, offset, bytes_max, caching, release }
    }
}

/// A position in the device's order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition(pub u64);

impl ListPosition {
    /// Before the first key.
    pub const START: Self = Self(0);
}

/// One key in the completion of a [`SsdCommand::List`].
#[derive(Clone, Debug)]
pub struct ListedKey {
    /// Key bytes.
    pub key: Bytes,
    /// Length of its value.
    pub value_bytes: u32,
    /// Wall time in milliseconds at which it expires, 0 for never.
    pub expiry_ms: u64,
}

/// The completion of an accepted command.
#[derive(Debug)]
pub struct SsdCompletion {
    /// The submitter's token.
    pub token: u64,
    /// The result of the command.
    pub status: Status,
    /// Retrieve and Exist: full length of the value.
    pub value_bytes: u32,
    /// Sequence of the record written or read; [`Sequence`] 0 if there is none.
    pub sequence: Sequence,
    /// Retrieve and Exist: wall time in milliseconds at which the record expires, 0 for never.
    pub expiry_ms: u64,
    /// Batch: index of the write whose condition failed. Clear: number of keys removed, capped.
    pub position: u32,
    /// Retrieve: the vector of [`ValueSink::Bytes`], with the value appended on success.
    pub sink: Vec<u8>,
    /// List: the keys found.
    pub keys: Vec<ListedKey>,
    /// List: the position to continue from, or `None` at the end.
    pub next_position: Option<ListPosition>,
}

impl SsdCompletion {
    /// Returns the bytes of the value and of the keys that it carries.
    #[must_use]
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.sink.len() + self.keys.iter().map(|listed| listed.key.len()).sum::<usize>()
    }

    /// Returns a completion that carries only a status.
    #[must_use]
    pub fn new(token: u64, status: Status) -> Self {
        Self {
            token,
            status,
            value_bytes: 0,
            sequence: Sequence(0),
            expiry_ms: 0,
            position: 0,
            sink: Vec::new(),
            keys: Vec::new(),
            next_position: None,
        }
    }
}

/// The reason why a command was not accepted. Nothing happened, and no completion follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The limit of commands in flight is reached; retry after a completion.
    #[error("the device has its limit of {0} commands in flight; retry after a completion")]
    Busy(usize),
    /// The command can never be executed.
    #[error("the device cannot execute the command: {0}; do not retry it unchanged")]
    Refused(Status),
}
