//! Operations in flight.
//!
//! Input: accepted commands. Output: the state of each from its submission until its completion is made.
//! Invariant: of the operations that hold a key, only the first one runs.

use crate::command::{
    BatchWrite, FrontEndId, LbaRange, ListPosition, ListedKey, NamespaceId, ReadCaching, Sequence,
    SsdCommand, SsdCompletion, ValueSink,
};
use crate::engine::batch_keys::{BatchChecks, BatchKeys, SHORT_BATCH_WRITES, names_key_twice};
use crate::engine::batch_namespaces::{BatchNamespaces, NamespaceSet};
use crate::engine::batch_plan::BatchPlan;
use crate::engine::execute::BlockBatch;
use crate::engine::key_span::{KeySpan, merged};
use crate::engine::operation_moves::OperationMoves;
use crate::ftl::ExtentStore;
use crate::ftl::namespace_table::record_position;
use crate::index::{KeyHash, KeyHasher};
use crate::log::extent_reads::ReadRun;
use crate::log::record::RecordAddress;
use crate::log::record_draft::RecordDraft;
use crate::media::PageAddress;
use crate::mutant::{Mutant, mutant};
use crate::namespace::BlockFormat;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// The work of an operation.
#[derive(Debug)]
pub(crate) enum OperationWork {
    /// None: there is no operation.
    Vacant,
    /// A command of a front end.
    Command(SsdCommand),
    /// The removal of an expired record.
    Expire {
        /// Address of the record when it expired. If it has moved since, the expiry queue names it again.
        address: RecordAddress,
    },
    /// The opening of the next extent of a value that is being received.
    OpenExtent {
        /// The number of its receipt.
        receipt: u64,
    },
}

/// The kind of object that a command works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandSubject {
    /// Keys of a key space.
    Keys,
    /// Blocks of a block namespace.
    Blocks,
    /// A namespace as a whole, of either kind.
    Namespace,
    /// The namespace table.
    NamespaceTable,
}

impl SsdCommand {
    /// Returns the kind of object that the command works on.
    #[inline]
    pub(crate) const fn subject(&self) -> CommandSubject {
        match self {
            Self::Store { .. }
            | Self::Retrieve { .. }
            | Self::OpenValue { .. }
            | Self::ReadPart { .. }
            | Self::Exist { .. }
            | Self::Delete { .. }
            | Self::Batch { .. }
            | Self::BatchAcross { .. }
            | Self::List { .. } => CommandSubject::Keys,
            Self::Read { .. }
            | Self::Write { .. }
            | Self::Deallocate { .. }
            | Self::Compare { .. }
            | Self::Verify { .. }
            | Self::Copy { .. } => CommandSubject::Blocks,
            Self::Flush | Self::Fence { .. } | Self::Clear => CommandSubject::Namespace,
            Self::Namespace(_) => CommandSubject::NamespaceTable,
        }
    }
}

/// The hold of an operation on its keys and blocks, for which later operations wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHold {
    /// It holds none: it has neither waited for an earlier operation nor stalled.
    None,
    /// It had to wait for an earlier one, and has not stalled itself.
    InOrder,
    /// It has stalled.
    Stalled,
}

/// The progress of a command on many blocks, kept while it waits.
#[derive(Debug, Default)]
pub(crate) struct BlockProgress {
    /// Blocks read.
    pub(crate) blocks_done: u64,
    /// The position at which removal continues.
    pub(crate) next_removal: Option<KeyHash>,
    /// The highest sequence it saw or wrote.
    pub(crate) seen: Sequence,
    /// The highest sequence that it read of a batch, which a power cut loses only as a whole.
    pub(crate) seen_in_batch: Sequence,
    /// Bytes of the blocks being copied, compared or written.
    pub(crate) bytes: Vec<u8>,
    /// The records of a command that writes many blocks, while they are appended.
    pub(crate) batch: Option<Box<BlockBatch>>,
}

/// The progress of a read of a long value, kept while other operations have their turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueProgress {
    /// Sequence of the record.
    pub(crate) sequence: Sequence,
    /// Bytes that were read: of the value if it lies in the log, of the part that the command wants if it lies in extents.
    pub(crate) bytes_done: usize,
    /// Checksum of the record up to there, if it lies in the log.
    pub(crate) crc: u32,
    /// Checksum of the record as it was found first. A move of the record takes the flags of a batch off its header.
    pub(crate) record_crc: u32,
    /// True if the value lies in extents: its pages leave device DRAM once they are copied.
    pub(crate) in_extents: bool,
}

/// The progress of a store of long values, kept while other operations have their turn.
#[derive(Debug, Default)]
pub(crate) struct StoreProgress {
    /// The records that are built, the last one perhaps in part.
    pub(crate) drafts: VecDeque<RecordDraft>,
    /// True if all of them are built whole.
    pub(crate) is_whole: bool,
}

/// One operation in flight.
#[derive(Debug)]
pub(crate) struct DeviceOperation {
    pub(crate) front_end: FrontEndId,
    pub(crate) token: u64,
    pub(crate) namespace: NamespaceId,
    pub(crate) work: OperationWork,
    /// The format with which its blocks were counted.
    pub(crate) format: Option<BlockFormat>,
    /// The span of its one key, or of its one range of blocks.
    pub(crate) span: KeySpan,
    /// The spans of all keys of a short batch, or of several ranges of blocks: sorted and disjoint. Empty otherwise.
    pub(crate) spans: Vec<KeySpan>,
    /// The keys of a long batch, until it holds them.
    pub(crate) batch_keys: Option<Box<BatchKeys>>,
    /// Pages requested and not yet read.
    pub(crate) missing_pages: usize,
    /// Pages pinned for it.
    pub(crate) pinned_pages: Vec<PageAddress>,
    /// Pages whose reads failed for it.
    pub(crate) failed_pages: Vec<PageAddress>,
    /// Runs of extents that were read for it.
    pub(crate) read_runs: Vec<ReadRun>,
    /// The hold on its keys.
    pub(crate) hold: KeyHold,
    /// Keys that a list has found so far.
    pub(crate) listed_keys: Vec<ListedKey>,
    pub(crate) list_position: ListPosition,
    /// The progress of a command on many blocks.
    pub(crate) progress: BlockProgress,
    /// The progress of a read of a long value.
    pub(crate) value_progress: Option<ValueProgress>,
    /// The progress of a store of long values.
    pub(crate) store_progress: Option<StoreProgress>,
    /// The progress of a store of a value with extents.
    pub(crate) extent_store: Option<ExtentStore>,
    /// The jobs of the mover that it waits for.
    pub(crate) moves: Option<Box<OperationMoves>>,
    /// The progress of a batch that is carried out in parts.
    pub(crate) batch_plan: Option<Box<BatchPlan>>,
    /// The namespaces whose limits a batch over several has still to wait for.
    pub(crate) throttle_claims: NamespaceSet,
    pub(crate) submitted: Nanos,
    pub(crate) started: Option<Nanos>,
}

impl DeviceOperation {
    /// Returns true if a part of what it copies in parts is copied.
    pub(crate) fn has_begun_copy(&self) -> bool {
        self.value_progress.is_some_and(|progress| progress.bytes_done > 0)
            || self.store_progress.as_ref().is_some_and(|progress| !progress.drafts.is_empty())
            || self.is_write() && !self.progress.bytes.is_empty()
    }

    /// Returns true if it reads a value in parts, and needs the pages of a part only until the next one.
    pub(crate) fn reads_pages_once(&self) -> bool {
        self.value_progress.is_some_and(|progress| progress.in_extents)
            || matches!(self.work, OperationWork::Command(SsdCommand::ReadPart { .. }))
    }

    /// Returns true if a part of its records is appended.
    pub(crate) fn is_appending(&self) -> bool {
        self.progress.batch.is_some() || self.batch_plan.as_ref().is_some_and(|plan| plan.open.is_some())
    }

    /// Returns true if it appends to the log, or shows the records of many keys at one moment: it waits while the log is
    /// reserved for another one.
    pub(crate) fn waits_for_reservation(&self) -> bool {
        match &self.work {
            OperationWork::Command(SsdCommand::List { .. }) => true,
            // It ends when everything is durable, the batch too.
            OperationWork::Command(SsdCommand::Flush) => false,
            _ => self.is_write() && !mutant(Mutant::WritesDuringBatch),
        }
    }

    /// Computes the spans of the keys or blocks that it works on; their ranges were checked against the limits. Those of a
    /// long batch are computed while it is checked.
    ///
    /// # Errors
    /// The status of a batch that names a key twice.
    pub(crate) fn compute_spans(&mut self, hasher: &KeyHasher) -> Result<(), Status> {
        let OperationWork::Command(command) = &self.work else {
            return Ok(());
        };
        let namespace = self.namespace;
        match command {
            SsdCommand::Store { key, .. }
            | SsdCommand::Retrieve { key, .. }
            | SsdCommand::OpenValue { key, .. }
            | SsdCommand::Exist { key, .. }
            | SsdCommand::Delete { key, .. } => self.span = KeySpan::one(hasher.hash(namespace, key)),
            SsdCommand::Batch { .. } if self.batch_keys.is_some() => {}
            SsdCommand::Batch { writes } | SsdCommand::BatchAcross { writes, .. }
                if writes.len() > SHORT_BATCH_WRITES =>
            {
                self.batch_keys = Some(Box::new(BatchKeys::with_writes(writes.len())));
            }
            SsdCommand::Batch { writes } => {
                self.spans = key_spans(writes, BatchNamespaces::One(namespace), hasher)?;
            }
            SsdCommand::BatchAcross { writes, runs } => {
                self.spans = key_spans(writes, BatchNamespaces::Runs(runs), hasher)?;
            }
            SsdCommand::List { position: from, .. } => self.list_position = *from,
            // All changes of the table share one span, so that they keep their order.
            SsdCommand::Namespace(_) => self.span = KeySpan::one(record_position(NamespaceId::SYSTEM)),
            SsdCommand::Read { range, .. } | SsdCommand::Verify { range } => {
                self.span = KeySpan::of_blocks(namespace, *range).unwrap_or(self.span);
            }
            SsdCommand::Write { start, data, .. } | SsdCommand::Compare { start, data } => {
                let range = LbaRange { start: *start, blocks: self.blocks_in(data.len()) };
                self.span = KeySpan::of_blocks(namespace, range).unwrap_or(self.span);
            }
            SsdCommand::Deallocate { ranges, .. } => self.set_block_spans(ranges.clone()),
            SsdCommand::Copy { sources, destination, .. } => {
                let blocks = sources.iter().map(|range| range.blocks).sum();
                let target = LbaRange { start: *destination, blocks };
                self.set_block_spans(sources.iter().copied().chain([target]).collect());
            }
            SsdCommand::ReadPart { .. }
            | SsdCommand::Flush
            | SsdCommand::Fence { .. }
            | SsdCommand::Clear => {}
        }
        Ok(())
    }

    /// Returns true unless it is a long batch of which a part was not checked yet.
    #[inline]
    pub(crate) fn is_checked(&self) -> bool {
        self.batch_keys.as_ref().is_none_or(|keys| keys.is_whole())
    }

    /// Checks the next part of a long batch. A batch of one part is refused at its submission.
    ///
    /// # Errors
    /// The status of the limit that it exceeds, or of a key that the batch names twice.
    pub(crate) fn check_part(&mut self, checks: BatchChecks) -> Result<(), Status> {
        match (&mut self.batch_keys, &self.work) {
            (Some(keys), OperationWork::Command(SsdCommand::Batch { writes })) => {
                keys.check_part(writes, BatchNamespaces::One(self.namespace), checks)
            }
            (Some(keys), OperationWork::Command(SsdCommand::BatchAcross { writes, runs })) => {
                keys.check_part(writes, BatchNamespaces::Runs(runs), checks)
            }
            _ => Ok(()),
        }
    }

    fn set_block_spans(&mut self, ranges: Vec<LbaRange>) {
        let spans = ranges.into_iter().filter_map(|range| KeySpan::of_blocks(self.namespace, range));
        self.spans = merged(spans.collect());
    }

    /// Returns the number of blocks of its format in `bytes`.
    pub(crate) fn blocks_in(&self, bytes: usize) -> u32 {
        self.format.map_or(0, |format| narrow(bytes >> format.shift()))
    }

    /// Returns the namespaces of the keys of its batch, or its own one.
    #[inline]
    pub(crate) fn batch_namespaces(&self) -> BatchNamespaces<'_> {
        match &self.work {
            OperationWork::Command(SsdCommand::BatchAcross { runs, .. }) => BatchNamespaces::Runs(runs),
            _ => BatchNamespaces::One(self.namespace),
        }
    }

    /// Returns true if it works on single keys or blocks, so that operations on the same key must keep their order.
    pub(crate) fn is_keyed(&self) -> bool {
        match &self.work {
            OperationWork::Expire { .. } => true,
            OperationWork::OpenExtent { .. } | OperationWork::Vacant => false,
            OperationWork::Command(command) => !matches!(
                command,
                SsdCommand::ReadPart { .. }
                    | SsdCommand::List { .. }
                    | SsdCommand::Flush
                    | SsdCommand::Fence { .. }
                    | SsdCommand::Clear
            ),
        }
    }

    /// Returns true if it waits behind earlier writes that wait for room.
    #[inline]
    pub(crate) fn may_wait_behind(&self) -> bool {
        self.is_write() && (self.is_keyed() || matches!(self.work, OperationWork::OpenExtent { .. }))
    }

    /// Returns true if it reads the value of the record that it finds.
    #[inline]
    pub(crate) fn reads_value(&self) -> bool {
        matches!(&self.work, OperationWork::Command(SsdCommand::Retrieve { .. } | SsdCommand::Read { .. }))
    }

    /// Returns the use of device DRAM for the pages of extents that it reads.
    #[inline]
    pub(crate) fn caching(&self) -> ReadCaching {
        match &self.work {
            OperationWork::Command(SsdCommand::Retrieve { caching, .. }) => *caching,
            _ => ReadCaching::ByLength,
        }
    }

    /// Returns the status of a failed read of one of its pages.
    pub(crate) fn unreadable_status(&self) -> Status {
        match &self.work {
            OperationWork::Command(command) if command.subject() == CommandSubject::Blocks => {
                Status::UNRECOVERED_READ_ERROR
            }
            _ => Status::UNRECOVERED_ERROR,
        }
    }

    /// Returns the status with which it ends when something that it wrote or saw cannot become durable.
    pub(crate) fn status_after_failure(&self) -> Status {
        if self.is_write() { Status::MEDIUM_FAILED } else { self.unreadable_status() }
    }

    /// Returns the spans of the keys and blocks that it works on.
    pub(crate) fn spans(&self) -> &[KeySpan] {
        if !self.is_keyed() {
            &[]
        } else if self.spans.is_empty() {
            std::slice::from_ref(&self.span)
        } else {
            &self.spans
        }
    }

    /// Drops the parts of a value that it read before one that cannot be read.
    pub(crate) fn drop_read_parts(&mut self) {
        let done = self.value_progress.take().map_or(0, |progress| progress.bytes_done);
        if let OperationWork::Command(SsdCommand::Retrieve { sink: ValueSink::Bytes(bytes), .. }) =
            &mut self.work
        {
            bytes.truncate(bytes.len().saturating_sub(done));
        }
    }

    /// Moves its sink and its listed keys into the completion.
    pub(crate) fn fill_completion(&mut self, completion: &mut SsdCompletion) {
        if let OperationWork::Command(
            SsdCommand::Retrieve { sink: ValueSink::Bytes(bytes), .. }
            | SsdCommand::Read { sink: ValueSink::Bytes(bytes), .. }
            | SsdCommand::ReadPart { sink: bytes, .. },
        ) = &mut self.work
        {
            completion.sink = std::mem::take(bytes);
        }
        completion.keys = std::mem::take(&mut self.listed_keys);
    }
}

impl DeviceOperation {
    /// Returns true if it changes stored data or promises durability, and is refused after a media failure.
    pub(crate) fn is_write(&self) -> bool {
        match &self.work {
            OperationWork::Expire { .. } | OperationWork::OpenExtent { .. } => true,
            OperationWork::Vacant => false,
            OperationWork::Command(command) => match command {
                SsdCommand::Batch { writes } => writes.iter().any(BatchWrite::is_write),
                SsdCommand::BatchAcross { writes, runs } => {
                    writes.iter().any(BatchWrite::is_write)
                        || !BatchNamespaces::Runs(runs).cleared().is_empty()
                }
                SsdCommand::Store { .. }
                | SsdCommand::Delete { .. }
                | SsdCommand::Flush
                | SsdCommand::Clear
                | SsdCommand::Write { .. }
                | SsdCommand::Deallocate { .. }
                | SsdCommand::Copy { .. }
                | SsdCommand::Namespace(_) => true,
                SsdCommand::Retrieve { .. }
                | SsdCommand::OpenValue { .. }
                | SsdCommand::ReadPart { .. }
                | SsdCommand::Exist { .. }
                | SsdCommand::List { .. }
                // A fence ends the reads of an edit that writes nothing.
                | SsdCommand::Fence { .. }
                | SsdCommand::Read { .. }
                | SsdCommand::Compare { .. }
                | SsdCommand::Verify { .. } => false,
            },
        }
    }
}

/// Returns the spans of the keys of a short batch, sorted and disjoint.
#[inline]
fn key_spans(
    writes: &[BatchWrite],
    namespaces: BatchNamespaces<'_>,
    hasher: &KeyHasher,
) -> Result<Vec<KeySpan>, Status> {
    let mut hashes: Vec<KeyHash> = match namespaces {
        BatchNamespaces::One(namespace) => {
            writes.iter().map(|write| hasher.hash(namespace, write.key())).collect()
        }
        BatchNamespaces::Runs(_) => hashes_across(writes, namespaces, hasher),
    };
    hashes.sort_unstable();
    hashes.dedup();
    // Only keys that share a hash may be the same.
    if hashes.len() < writes.len() && names_key_twice(writes, namespaces) {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    Ok(hashes.into_iter().map(KeySpan::one).collect())
}

/// Returns the hashes of the keys of a batch over several namespaces.
#[cold]
fn hashes_across(writes: &[BatchWrite], namespaces: BatchNamespaces<'_>, hasher: &KeyHasher) -> Vec<KeyHash> {
    (0..).zip(writes).map(|(at, write)| hasher.hash(namespaces.of(at), write.key())).collect()
}
