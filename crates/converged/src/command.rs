//! What the device is asked and what it answers, beneath every ring and every face.
//!
//! In: a [`Command`] with the bytes it brings or the place its bytes go. Out: one [`Completion`] with the same token.
//! The contract of `submit` is one sentence: `Ok` means exactly one completion will follow; `Err` means none will.

use crate::namespace::NamespaceChange;
use bytes::Bytes;
use headwater_dma::iova::Segments;
use headwater_nvme::spec::status::Status;
use std::fmt;

/// A key space with its own durability mode. Numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u8);

impl NamespaceId {
    /// The first namespace: what a client sees that never chose one.
    pub const FIRST: Self = Self(1);

    /// Where the table of namespaces lies. No face ever sees it.
    pub(crate) const SYSTEM: Self = Self(17);

    /// Its place in a table of namespaces.
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

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaRange {
    /// The first.
    pub start: Lba,
    /// How many.
    pub blocks: u32,
}

/// Force Unit Access: whether a write is durable before it completes, whatever its namespace promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fua {
    /// Durable first.
    Yes,
    /// As the namespace promises.
    No,
}

/// Who submitted a command and gets its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FaceId(pub u16);

/// Place of a record in the order of all writes of a device. A moved record keeps its sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// When a record ceases to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// At this wall time, in milliseconds since the epoch; never zero.
    At(u64),
    /// Whenever the record it replaces would have.
    Keep,
}

/// What must hold for a store or a delete to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// The key exists (KV 1.0d: store option bit 8), else [`Status::KEY_DOES_NOT_EXIST`].
    IfExists,
    /// The key does not exist (option bit 9), else [`Status::KEY_EXISTS`].
    IfAbsent,
    /// The key's record is this very one, else [`Status::SEQUENCE_MISMATCH`]. How read-modify-write is made atomic.
    IfSequence(Sequence),
}

/// The bytes of a value to be stored.
#[derive(Clone, Debug)]
pub enum Payload {
    /// They are here.
    Bytes(Bytes),
    /// They lie in client memory, and are copied once, straight into the record.
    Client(Segments),
}

impl Payload {
    /// How many there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Client(segments) => segments.bytes(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<B: Into<Bytes>> From<B> for Payload {
    fn from(bytes: B) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Where the bytes of a value go that is read.
#[derive(Clone, Debug)]
pub enum Sink {
    /// Appended to this; it comes back with the completion, error included.
    Bytes(Vec<u8>),
    /// To client memory, as many as fit.
    Client(Segments),
}

impl From<Vec<u8>> for Sink {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// Whether a read may be answered before what it saw is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The release rule: never.
    WhenDurable,
    /// At once. Only for a face that will not let the answer out: it feeds a store with
    /// [`Condition::IfSequence`], or is followed by [`Command::Fence`].
    Speculative,
}

/// One write of an all-or-nothing [`Command::Batch`].
#[derive(Clone, Debug)]
pub enum BatchWrite {
    /// Store a value.
    Store {
        /// Key bytes.
        key: Bytes,
        /// Value bytes.
        value: Bytes,
        /// What must hold.
        condition: Condition,
        /// When the record ceases.
        expiry: Expiry,
    },
    /// Remove a key. A missing key is no failure unless the condition says so.
    Delete {
        /// Key bytes.
        key: Bytes,
        /// What must hold.
        condition: Condition,
    },
}

/// A request to the device.
#[derive(Clone, Debug)]
pub enum Command {
    /// Store a value under a key (KV Store 01h; UIO put 81h).
    Store {
        /// Key bytes, 1 to [`KEY_BYTES_MAX`](crate::limits::KEY_BYTES_MAX).
        key: Bytes,
        /// Value bytes, up to [`VALUE_BYTES_MAX`](crate::limits::VALUE_BYTES_MAX).
        value: Payload,
        /// What must hold.
        condition: Condition,
        /// When the record ceases.
        expiry: Expiry,
    },
    /// Read the value of a key (KV Retrieve 02h; UIO get 82h). The completion brings at most `bytes_max` bytes in
    /// `sink`, and the value's full length.
    Retrieve {
        /// Key bytes.
        key: Bytes,
        /// Where the value goes.
        sink: Sink,
        /// At most so many bytes of the value's front.
        bytes_max: u32,
        /// When the answer may leave.
        release: Release,
    },
    /// Whether a key exists, with the length, sequence and expiry of its record (KV Exist 14h).
    Exist {
        /// Key bytes.
        key: Bytes,
        /// When the answer may leave.
        release: Release,
    },
    /// Remove a key (KV Delete 10h). A missing key answers [`Status::KEY_DOES_NOT_EXIST`]; the face decides what
    /// that means to its client.
    Delete {
        /// Key bytes.
        key: Bytes,
        /// What must hold.
        condition: Condition,
    },
    /// Several writes of one namespace, all or nothing, also across a power cut. If a condition fails the completion
    /// carries its status and the index of the failing write in `position`.
    Batch {
        /// The writes, in order; no key twice.
        writes: Vec<BatchWrite>,
    },
    /// Keys of the namespace in the device's own order, which does not change while keys are added and removed
    /// (KV List 06h). The completion brings the keys and the position to go on from.
    List {
        /// Where to start: [`ListPosition::START`], one that a completion returned, or that of a key
        /// ([`Device::position_of`](crate::device::Device::position_of)).
        from: ListPosition,
        /// At most so many keys (more only where keys share one position).
        keys_max: u32,
    },
    /// Everything this namespace acknowledged before is durable when this completes (Flush 00h).
    Flush,
    /// Everything up to this sequence is durable when this completes, in the namespace's own durability mode.
    Fence {
        /// The last sequence that must be durable.
        up_to: Sequence,
    },
    /// Remove every key, or every block, of the namespace.
    Clear,
    /// Read blocks (NVM Read 02h). A block that was never written, or was deallocated, reads as zeroes.
    Read {
        /// Which blocks.
        range: LbaRange,
        /// Where their bytes go, all of them: the blocks' bytes, no fewer.
        sink: Sink,
    },
    /// Write blocks (NVM Write 01h), all or nothing, also across a power cut.
    Write {
        /// The first block.
        start: Lba,
        /// Their bytes, a whole number of blocks and at least one.
        data: Payload,
        /// Whether it is durable first.
        fua: Fua,
    },
    /// Make blocks read as zeroes and give their space back (NVM Write Zeroes 08h, Dataset Management 09h deallocate).
    Deallocate {
        /// Which blocks.
        ranges: Vec<LbaRange>,
        /// Whether it is durable first.
        fua: Fua,
    },
    /// Compare blocks with bytes (NVM Compare 05h), else [`Status::COMPARE_FAILURE`].
    Compare {
        /// The first block.
        start: Lba,
        /// What they should hold, a whole number of blocks.
        data: Payload,
    },
    /// Read blocks and check them against their checksums, without moving a byte (NVM Verify 0Ch).
    Verify {
        /// Which blocks.
        range: LbaRange,
    },
    /// Copy blocks within the namespace (NVM Copy 19h), source ranges in order, to one destination; all or nothing.
    Copy {
        /// From where.
        sources: Vec<LbaRange>,
        /// To where, without a gap.
        destination: Lba,
        /// Whether it is durable first.
        fua: Fua,
    },
    /// Change the table of namespaces, all or nothing, durable when this completes. The namespace that a command is
    /// submitted with is the one changed; for [`NamespaceChange::Create`] it is ignored, and the completion's `position`
    /// is the number given.
    Namespace(NamespaceChange),
}

/// A place in the device's order of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition(pub u64);

impl ListPosition {
    /// Before the first key.
    pub const START: Self = Self(0);
}

/// One key of a [`Command::List`] answer.
#[derive(Clone, Debug)]
pub struct ListedKey {
    /// Key bytes.
    pub key: Bytes,
    /// Length of its value.
    pub value_bytes: u32,
    /// When it ceases to exist, 0 for never.
    pub expiry_ms: u64,
}

/// The one answer to an accepted command.
#[derive(Debug)]
pub struct Completion {
    /// The submitter's token.
    pub token: u64,
    /// What became of the command.
    pub status: Status,
    /// Retrieve and Exist: full length of the value.
    pub value_bytes: u32,
    /// Sequence of the record written or seen; [`Sequence`] 0 when there is none.
    pub sequence: Sequence,
    /// Retrieve and Exist: wall time at which the record ceases, 0 for never.
    pub expiry_ms: u64,
    /// Batch: index of the write whose condition failed. Clear: how many keys went, capped.
    pub position: u32,
    /// Retrieve: the bytes that went in as [`Sink::Bytes`], with the value appended on success.
    pub sink: Vec<u8>,
    /// List: the keys found.
    pub keys: Vec<ListedKey>,
    /// List: where to go on, or `None` at the end.
    pub next: Option<ListPosition>,
}

impl Completion {
    /// An answer that brings nothing but a status.
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
            next: None,
        }
    }
}

/// Why a command was not accepted: nothing happened, and no completion will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many commands are in flight as the device takes; ask again after a completion.
    #[error("the device has its limit of {0} commands in flight; retry after a completion")]
    Busy(usize),
    /// The command can never be carried out.
    #[error("command refused: {0}")]
    Refused(Status),
}
