//! Operations in flight: the slab that every stage indexes into.
//!
//! In: accepted commands. Out: slots that carry a command from submission to completion. A slot is freed exactly when its
//! completion is made. Invariant: an operation that holds keys is the only one that runs on them.

use crate::command::{BatchWrite, Command, Completion, FaceId, ListPosition, ListedKey, NamespaceId, Sink};
use crate::index::{KeyHash, KeyHasher};
use crate::limits::OPERATIONS_MAX;
use crate::media::PageAddress;
use crate::namespace::BlockFormat;
use crate::namespace::table::place;
use crate::record::RecordAddress;
use headwater_host::clock::Nanos;

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Work {
    /// A face asked for it.
    Command(Command),
    /// The record's time has come.
    Expire {
        /// Where the record was when it came due; it may have moved since, then the queue names it again.
        address: RecordAddress,
    },
}

/// What a command works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Keys of a key space.
    Keys,
    /// Blocks of a block namespace.
    Blocks,
    /// A namespace as a whole, of either kind.
    Anything,
    /// The table of namespaces.
    Table,
}

impl Command {
    /// What it works on.
    #[inline]
    pub(crate) const fn subject(&self) -> Subject {
        match self {
            Self::Store { .. }
            | Self::Retrieve { .. }
            | Self::Exist { .. }
            | Self::Delete { .. }
            | Self::Batch { .. }
            | Self::List { .. } => Subject::Keys,
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Deallocate { .. }
            | Self::Compare { .. }
            | Self::Verify { .. }
            | Self::Copy { .. } => Subject::Blocks,
            Self::Flush | Self::Fence { .. } | Self::Clear => Subject::Anything,
            Self::Namespace(_) => Subject::Table,
        }
    }
}

/// One operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) face: FaceId,
    pub(crate) token: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) work: Work,
    /// The format by which its blocks were counted.
    pub(crate) format: Option<BlockFormat>,
    /// Of the one key, or of the first of a batch.
    pub(crate) hash: KeyHash,
    /// Of every key of a batch, each once; empty otherwise.
    pub(crate) hashes: Vec<KeyHash>,
    /// Pages asked for and not yet come.
    pub(crate) missing: usize,
    /// Pages pinned for it.
    pub(crate) pinned: Vec<PageAddress>,
    /// Whether it holds its keys.
    pub(crate) holds: bool,
    /// A list's way so far.
    pub(crate) listed: Vec<ListedKey>,
    pub(crate) position: ListPosition,
    pub(crate) submitted: Nanos,
    pub(crate) started: Option<Nanos>,
}

impl Operation {
    pub(crate) fn new(face: FaceId, token: u64, namespace: NamespaceId, work: Work, now: Nanos) -> Self {
        Self {
            face,
            token,
            namespace,
            work,
            format: None,
            hash: KeyHash(0),
            hashes: Vec::new(),
            missing: 0,
            pinned: Vec::new(),
            holds: false,
            listed: Vec::new(),
            position: ListPosition::START,
            submitted: now,
            started: None,
        }
    }

    /// Computes the hashes of the keys it will work on.
    pub(crate) fn hash_keys(&mut self, hasher: &KeyHasher) {
        let Work::Command(command) = &self.work else {
            return;
        };
        match command {
            Command::Store { key, .. }
            | Command::Retrieve { key, .. }
            | Command::Exist { key, .. }
            | Command::Delete { key, .. } => self.hash = hasher.hash(self.namespace, key),
            Command::Batch { writes } => {
                self.hashes = writes.iter().map(|write| hasher.hash(self.namespace, write.key())).collect();
                self.hashes.sort_unstable();
                self.hashes.dedup();
            }
            Command::List { from, .. } => self.position = *from,
            // Changes of the table keep their order, whichever namespace they are for.
            Command::Namespace(_) => self.hash = place(NamespaceId::SYSTEM),
            _ => {}
        }
    }

    /// Whether it works on single keys, so that operations on the same key must keep their order.
    pub(crate) fn is_keyed(&self) -> bool {
        match &self.work {
            Work::Expire { .. } => true,
            Work::Command(command) => !matches!(
                command,
                Command::List { .. } | Command::Flush | Command::Fence { .. } | Command::Clear
            ),
        }
    }

    /// Whether it will read a value that it found.
    #[inline]
    pub(crate) fn reads_value(&self) -> bool {
        matches!(&self.work, Work::Command(Command::Retrieve { .. }))
    }

    /// The hashes it works on.
    pub(crate) fn keys(&self) -> &[KeyHash] {
        if !self.is_keyed() {
            &[]
        } else if self.hashes.is_empty() {
            std::slice::from_ref(&self.hash)
        } else {
            &self.hashes
        }
    }

    /// Its answer, with the sink that came with it.
    pub(crate) fn answer(&mut self, completion: &mut Completion) {
        if let Work::Command(Command::Retrieve { sink: Sink::Bytes(bytes), .. }) = &mut self.work {
            completion.sink = std::mem::take(bytes);
        }
        completion.keys = std::mem::take(&mut self.listed);
    }
}

impl BatchWrite {
    /// The key written.
    #[must_use]
    pub fn key(&self) -> &bytes::Bytes {
        match self {
            Self::Store { key, .. } | Self::Delete { key, .. } => key,
        }
    }
}

/// The slab.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Option<Operation>>,
    vacant: Vec<usize>,
    live: usize,
}

impl Slab {
    /// Whether the limit is reached.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.live == OPERATIONS_MAX
    }

    /// Puts an operation in.
    ///
    /// # Panics
    /// When the limit is reached: the caller asks [`is_full`](Self::is_full) before it makes an operation, which is large
    /// and would otherwise be moved once more to come back.
    #[inline]
    pub(crate) fn insert(&mut self, operation: Operation) -> usize {
        assert!(!self.is_full(), "an operation was made that no slot is left for");
        self.live += 1;
        match self.vacant.pop() {
            Some(at) => {
                self.slots[at] = Some(operation);
                at
            }
            None => {
                self.slots.push(Some(operation));
                self.slots.len() - 1
            }
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut Operation> {
        self.slots.get_mut(at)?.as_mut()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&Operation> {
        self.slots.get(at)?.as_ref()
    }

    /// Ends the operation in a slot, where it lies. Returns whether a face waits for its answer.
    #[inline]
    pub(crate) fn vacate(&mut self, at: usize) -> bool {
        let Some(operation) = self.get(at) else {
            return false;
        };
        let answered = matches!(operation.work, Work::Command(_));
        self.slots[at] = None;
        self.vacant.push(at);
        self.live -= 1;
        answered
    }

    /// Operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

impl Operation {
    /// Whether it changes anything or promises durability: refused once the media has failed.
    pub(crate) fn is_write(&self) -> bool {
        match &self.work {
            Work::Expire { .. } => true,
            Work::Command(command) => match command {
                Command::Store { .. }
                | Command::Delete { .. }
                | Command::Batch { .. }
                | Command::Flush
                | Command::Fence { .. }
                | Command::Clear
                | Command::Write { .. }
                | Command::Deallocate { .. }
                | Command::Copy { .. }
                | Command::Namespace(_) => true,
                Command::Retrieve { .. }
                | Command::Exist { .. }
                | Command::List { .. }
                | Command::Read { .. }
                | Command::Compare { .. }
                | Command::Verify { .. } => false,
            },
        }
    }
}
