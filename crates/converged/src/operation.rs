//! Operations in flight: the slab that every stage indexes into.
//!
//! In: accepted commands. Out: slots that carry a command from submission to completion. A slot is freed exactly when its
//! completion is made. Invariant: an operation that holds keys is the only one that runs on them.

use crate::command::{
    BatchWrite, Command, Completion, FaceId, Lba, LbaRange, ListPosition, ListedKey, NamespaceId, Sequence,
    Sink,
};
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

/// Neighbours in the order of the index: one key, or blocks one behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) first: KeyHash,
    pub(crate) last: KeyHash,
}

impl Span {
    /// One key.
    #[inline]
    pub(crate) const fn one(hash: KeyHash) -> Self {
        Self { first: hash, last: hash }
    }

    /// Blocks; `None` for none.
    #[inline]
    fn of_blocks(namespace: NamespaceId, range: LbaRange) -> Option<Self> {
        let last = Lba(range.start.0 + u64::from(range.blocks).checked_sub(1)?);
        Some(Self {
            first: KeyHash::of_block(namespace, range.start),
            last: KeyHash::of_block(namespace, last),
        })
    }
}

/// How far a command on many blocks has come, kept while it waits.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Blocks read.
    pub(crate) blocks: u64,
    /// Where removal goes on.
    pub(crate) from: Option<KeyHash>,
    /// The highest sequence it saw or wrote.
    pub(crate) seen: Sequence,
    /// The highest sequence of those it read that a power cut takes only together with others.
    pub(crate) joint: Sequence,
    /// Bytes of blocks on their way from one place to another.
    pub(crate) bytes: Vec<u8>,
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
    /// Of the one key, or of one run of blocks.
    pub(crate) span: Span,
    /// Of every key of a batch, or of several runs of blocks: in order, none meeting another. Empty otherwise.
    pub(crate) spans: Vec<Span>,
    /// Pages asked for and not yet come.
    pub(crate) missing: usize,
    /// Pages pinned for it.
    pub(crate) pinned: Vec<PageAddress>,
    /// Whether it holds its keys.
    pub(crate) holds: bool,
    /// A list's way so far.
    pub(crate) listed: Vec<ListedKey>,
    pub(crate) position: ListPosition,
    /// How far a command on many blocks has come.
    pub(crate) walk: Walk,
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
            span: Span::one(KeyHash(0)),
            spans: Vec::new(),
            missing: 0,
            pinned: Vec::new(),
            holds: false,
            listed: Vec::new(),
            position: ListPosition::START,
            walk: Walk::default(),
            submitted: now,
            started: None,
        }
    }

    /// Finds the keys or blocks that it will work on; their ranges were checked against the limits.
    pub(crate) fn find_keys(&mut self, hasher: &KeyHasher) {
        let Work::Command(command) = &self.work else {
            return;
        };
        let namespace = self.namespace;
        match command {
            Command::Store { key, .. }
            | Command::Retrieve { key, .. }
            | Command::Exist { key, .. }
            | Command::Delete { key, .. } => self.span = Span::one(hasher.hash(namespace, key)),
            Command::Batch { writes } => {
                let keys = writes.iter().map(|write| Span::one(hasher.hash(namespace, write.key())));
                self.spans = merged(keys.collect());
            }
            Command::List { from, .. } => self.position = *from,
            // Changes of the table keep their order, whichever namespace they are for.
            Command::Namespace(_) => self.span = Span::one(place(NamespaceId::SYSTEM)),
            Command::Read { range, .. } | Command::Verify { range } => {
                self.span = Span::of_blocks(namespace, *range).unwrap_or(self.span);
            }
            Command::Write { start, data, .. } | Command::Compare { start, data } => {
                let range = LbaRange { start: *start, blocks: self.blocks_in(data.len()) };
                self.span = Span::of_blocks(namespace, range).unwrap_or(self.span);
            }
            Command::Deallocate { ranges, .. } => self.hold_ranges(ranges.clone()),
            Command::Copy { sources, destination, .. } => {
                let blocks = sources.iter().map(|range| range.blocks).sum();
                let target = LbaRange { start: *destination, blocks };
                self.hold_ranges(sources.iter().copied().chain([target]).collect());
            }
            Command::Flush | Command::Fence { .. } | Command::Clear => {}
        }
    }

    fn hold_ranges(&mut self, ranges: Vec<LbaRange>) {
        let spans = ranges.into_iter().filter_map(|range| Span::of_blocks(self.namespace, range));
        self.spans = merged(spans.collect());
    }

    /// Blocks of its format in so many bytes.
    pub(crate) fn blocks_in(&self, bytes: usize) -> u32 {
        self.format.map_or(0, |format| u32::try_from(bytes >> format.shift()).unwrap_or(u32::MAX))
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
        matches!(&self.work, Work::Command(Command::Retrieve { .. } | Command::Read { .. }))
    }

    /// The keys and blocks it works on.
    pub(crate) fn spans(&self) -> &[Span] {
        if !self.is_keyed() {
            &[]
        } else if self.spans.is_empty() {
            std::slice::from_ref(&self.span)
        } else {
            &self.spans
        }
    }

    /// Its answer, with the sink that came with it.
    pub(crate) fn answer(&mut self, completion: &mut Completion) {
        if let Work::Command(
            Command::Retrieve { sink: Sink::Bytes(bytes), .. }
            | Command::Read { sink: Sink::Bytes(bytes), .. },
        ) = &mut self.work
        {
            completion.sink = std::mem::take(bytes);
        }
        completion.keys = std::mem::take(&mut self.listed);
    }
}

/// The same spans in order, with those that meet made one.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    spans.dedup_by(|next, span| {
        let meets = next.first <= span.last;
        if meets {
            span.last = span.last.max(next.last);
        }
        meets
    });
    spans
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

    /// Where the command of a face lies. Looks at every slot.
    pub(crate) fn find(&self, face: FaceId, token: u64) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|operation| {
                matches!(operation.work, Work::Command(_))
                    && operation.face == face
                    && operation.token == token
            })
        })
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
