//! Planted changes of the device: each breaks one promise, so that a test can show that the checker notices.
//!
//! Input: the change that a test planted on its thread. Output: true at the places that the change alters. Invariant:
//! without the feature `mutants` nothing can be planted, and the compiler removes every altered branch.

/// Declares the changes, and keeps the description of each.
macro_rules! mutants {
    ($($(#[doc = $does:literal])+ $name:ident,)+) => {
        /// A planted change of the device, named for what it breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $does])+ $name,)+
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            /// Every planted change.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the description of the change.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($does),+),)+
                }
            }
        }
    };
}

mutants! {
    // Commit and release.
    /// A commit on a volatile cache ends without a flush.
    FlushSkipped,
    /// A commit ends although programs of its pages are in flight.
    ProgramsNotAwaited,
    /// A commit covers records that were appended after its seal.
    CommitCoversLaterRecords,
    /// Pages say that the records of a commit are durable before its flush has completed.
    StampBeforeFlush,
    /// A commit does not wait for the writes of its records.
    RecordsNotAwaited,
    /// Both records of a commit lie on one side of the blocks.
    CommitRecordsOnOneSide,
    /// An idle device writes no record that says what is durable.
    IdleRecordSkipped,
    /// No guard page separates acknowledged pages from later programs.
    GuardPageSkipped,
    /// A completion is released before its gate is durable.
    GateIgnored,
    /// A completion waits for a gate that no commit was asked for.
    GateNotRequested,
    /// The interval after which acknowledged writes must be durable passes without a commit.
    IntervalIgnored,
    /// A read is released before what it saw is durable.
    ReadGateIgnored,
    /// A read of an absent key is released before the removal that it saw is durable.
    AbsenceGateIgnored,
    /// Once the medium failed, speculative reads still show what is not durable.
    SpeculativeAfterFailure,
    /// A Flush completes at once.
    FlushGateIgnored,
    /// A Fence completes at once.
    FenceGateIgnored,
    /// A write with forced unit access is acknowledged like one without.
    ForcedUnitAccessIgnored,
    // Conditions and batches.
    /// A batch is carried out whatever the keys are that it only checks.
    CheckIgnored,
    /// A write under the condition of a sequence is carried out whatever the sequence is.
    ConditionIgnored,
    /// An operation does not wait for another one that holds its key.
    HeldKeysIgnored,
    /// A batch leaves out the delete of an absent key although the absence is not durable.
    AbsentDeleteSkipped,
    /// A deallocation leaves out an absent block although the absence is not durable.
    AbsentBlockSkipped,
    /// A commit seals the log between two parts of a batch.
    CommitSplitsBatch,
    /// The collector, expiries and checkpoints go on between two parts of a batch.
    CollectedDuringBatch,
    /// Writes run between two parts of a batch.
    WritesDuringBatch,
    /// A batch replaces records where its plan found them, although the collector moved them since.
    PlanNotRenewed,
    /// Of a long value that is stored in parts, only the first part is stored.
    LaterPartsNotStored,
    /// Commands of a namespace run while entries that a clear removed are in the index.
    ClearNotAwaited,
    /// A batch over several namespaces waits for the clear of its first one only.
    OneClearAwaited,
    /// The writes of a batch do not wait until what it cleared has left the index.
    BatchClearNotAwaited,
    /// A commit seals the log between the clears of a batch and its writes.
    CommitBehindBatchClear,
    /// A batch over several namespaces is as durable as the first of them asks.
    FirstDurabilityCounts,
    // Proof of the medium.
    /// The checksum of a page's data is ignored.
    PageChecksumIgnored,
    /// The checksum of a page that is not full lacks the rest of it.
    PageRestUnsummed,
    /// A page that lies elsewhere than it says counts.
    OwnAddressIgnored,
    /// A page enters the page cache although it is not the one that was programmed there.
    PageNotProven,
    /// An opening does not make durable what it found.
    OpeningNotFlushed,
    /// An opening writes one record instead of two.
    OpeningRecordOnce,
    /// An opening serves before its records are durable.
    OpeningRecordNotFlushed,
    /// An opening takes the epoch of the one before.
    EpochReused,
    /// An opening gives out numbers of commit records again.
    NumberReused,
    /// An opening gives out the sequences of records again that do not count.
    SequenceReused,
    /// Pages of the window may be missing that other pages or records call durable.
    DurableIgnored,
    /// Pages behind the end of what counts are replayed.
    UncountedAnswered,
    /// Recovery forgets the ends of all epochs but the last one.
    EpochEndForgotten,
    /// A page of an older life of its block counts.
    OlderLifeAccepted,
    /// The last commit counts although a page of it is lost.
    HoleAccepted,
    /// Lost pages put nothing in doubt.
    DoubtIgnored,
    /// A key without a record is absent although a record of it may be lost.
    AbsenceNotDoubted,
    /// A checkpoint lacks the doubts.
    DoubtNotInCheckpoint,
    /// Lost pages of older epochs put nothing in doubt.
    OldLossIgnored,
    /// A lost page could hold a record of no namespace, if a page or record names those that it could hold.
    LossNamesNothing,
    /// A page names no namespaces of the pages before it.
    BeforeMaskForgets,
    /// A page names a sequence for the pages before it that is too low.
    BeforeSequenceLow,
    /// A checkpoint may lack the blocks that a power cut takes back.
    ListedBlocksCounted,
    /// A record is answered although a newer one may be lost.
    RecordInDoubtAnswered,
    /// A removal ends no doubt of its key.
    RemovalSettlesNothing,
    /// A clear ends no doubt of its namespace.
    ClearSettlesNothing,
    /// A clear ends doubt about records that are newer than it.
    OldClearSettles,
    /// Entries of the checkpoint whose records are lost are dropped.
    LostEntriesDropped,
    /// Recovery takes a record that lies where a lost one was for that of another key with the same hash.
    LostEntryMistaken,
    /// A damaged index of a checkpoint is taken for an empty one.
    DamagedIndexEmpty,
    /// Lost pages of the blocks from which an index is built again put nothing in doubt.
    OldBlocksNotDoubted,
    // Extents.
    /// The record of a value is appended although pages of its extents are in flight.
    ExtentsNotAwaited,
    /// An extent is used again before anything durable says that what replaced its record is.
    ExtentReusedEarly,
    /// The last commit counts although an extent of it is not intact.
    TornExtentAccepted,
    /// The extents of a replaced record are never free.
    ExtentsNotFreed,
    /// Extents that an opening finds are free.
    ExtentsNotAdopted,
    /// A block that several records claim belongs to the first of them on the medium.
    FirstClaimWins,
    /// A page of an extent is passed on although it does not prove itself.
    ExtentPageNotProven,
    /// Pages of an extent are kept for the reads that follow although their block was erased since.
    KeptAcrossLives,
    // Moves by channels.
    /// The record of a value is appended although channels still fill pages of its extents.
    FillsNotAwaited,
    /// Pages of an extent that channels filled are programmed in the order in which their jobs ended.
    FillsOutOfOrder,
    /// A read goes on although channels still copy a part of its value.
    CopiesNotAwaited,
    // Lookups.
    /// A key is found by its hash alone.
    KeyNotCompared,
    /// A list names one of the keys that share a hash.
    CollisionsNotListed,
    /// A value is returned although the checksum of its record is wrong.
    ReadChecksumIgnored,
    /// The pages of an erased block stay in the page cache.
    ErasedPagesCached,
    /// A block does not name the record that continues at its start.
    ChainNotNamed,
    // Expiries and accounts.
    /// A record with an expiry does not enter the expiry queue.
    ExpiryNotQueued,
    /// A record loses its expiry when the collector moves it.
    ExpiryLostByMove,
    /// The live bytes of a block grow by less than the length of a new record.
    LiveBytesShort,
    /// The live bytes of a block stay the same when a record in it is replaced.
    LiveBytesKept,
    // Collection and erases.
    /// A block is erased before the records moved out of it are durable.
    ErasedBeforeMoved,
    /// A dirty block is opened without an erase.
    OpenedWithoutErase,
    /// Blocks of the window are collected and used again.
    WindowReused,
    /// The collector drops every tombstone.
    TombstoneDropped,
    /// The collector moves a record that the index does not name.
    DeadRecordMoved,
    // Checkpoints.
    /// A checkpoint names the next block as its start instead of the open one.
    CheckpointStartsLate,
    /// A checkpoint begins while entries that a clear removed are in the index.
    CheckpointDuringClear,
    /// A checkpoint becomes valid before the removals that it reflects are durable.
    CheckpointEndsEarly,
    /// The old checkpoint is discarded before a durable record names the new one.
    CheckpointDiscardedEarly,
    /// The map of a checkpoint lacks the entries of blocks that were freed while it was encoded.
    FreedBlocksNotFilled,
    /// Recovery reads no second page of a block where the last commit is not whole.
    SecondPagesIgnored,
    /// Recovery takes an entry of a checkpoint whose block was reused since.
    EntryOfReusedBlockLoaded,
    /// Recovery keeps the entry of a checkpoint beside that of a newer record of its key.
    OutdatedEntryKept,
    // Recovery from the log.
    /// Of two records of a key, recovery takes the one with the lower sequence.
    LowerSequenceWins,
    /// Recovery ignores tombstones.
    TombstonesNotReplayed,
    /// Recovery ignores clears.
    ClearNotReplayed,
    /// A page spare with a wrong checksum is used.
    SpareChecksumIgnored,
    // Namespaces.
    /// A change of the namespace table is acknowledged before it is durable.
    ChangeGateIgnored,
    /// A format keeps the blocks.
    FormattedBlocksKept,
    /// The record of a namespace lacks its attachment.
    AttachmentNotStored,
    /// Every controller may use every namespace.
    AttachmentIgnored,
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Sets the change of this thread, in place of the one before; `None` restores the device.
#[cfg(feature = "mutants")]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// Returns true if this change is planted on this thread.
#[cfg(feature = "mutants")]
#[must_use]
pub fn mutant(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// Returns false: nothing can be planted.
#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline]
pub const fn mutant(_: Mutant) -> bool {
    false
}
