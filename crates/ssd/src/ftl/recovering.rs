//! The FTL while recovery fills it.
//!
//! Input: what recovery finds on the medium. Output: the [`Ftl`] that serves commands. Invariant: what recovery alone
//! may do is possible only here: after [`into_ftl`](RecoveringFtl::into_ftl) no block, record or sequence enters the
//! FTL that it did not write itself.

use super::Ftl;
use super::doubt::Doubts;
use super::namespace_table::NamespaceDefinition;
use super::removal_marks::RemovalMarks;
use super::sanitize_mark::FoundMark;
use crate::command::{NamespaceId, Sequence};
use crate::config::DeviceConfig;
use crate::index::{CompositeIndex, IndexEntry, KeyHash, KeyHasher};
use crate::limits::RECOVERY_FRAMES;
use crate::log::blocks::BlockEntry;
use crate::log::commit_record::CheckpointRoot;
use crate::log::commit_records::CommitRecords;
use crate::log::extent_list::Extent;
use crate::log::group_commit::GroupCommit;
use crate::log::health_counters::HealthCounters;
use crate::log::page_cache::PageCache;
use crate::log::prefix::{Prefix, Tick};
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::unreadable::{PageNeed, ReadFailures, UnreadablePages};
use crate::media::{CellNumber, Media};
use crate::mutant::{Mutant, mutant};
use crate::namespace::attachment::NamespaceAttachment;
use headwater_dma::frame::{FramePool, MediaFrame};
use headwater_dma::pool::Pool;
use headwater_host::clock::UnixMillis;
use std::collections::BTreeSet;
use std::ops::Deref;

/// The end of the log that a recovered FTL continues.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundLog {
    /// The end of what counts.
    pub(crate) accepted: Prefix,
    /// The highest epoch on the medium, whether it counts or not.
    pub(crate) epoch: u64,
    /// The highest number of a commit record.
    pub(crate) number: u64,
    /// The highest sequence on the medium, whether it counts or not.
    pub(crate) sequence: Sequence,
    /// The checkpoint from which recovery began.
    pub(crate) root: CheckpointRoot,
    /// The highest number of a checkpoint of which a block is left, whether it was ever named or not.
    pub(crate) checkpoint_number: u64,
    /// The ends of the epochs of the window, with the last one.
    pub(crate) epoch_ends: Vec<Prefix>,
    /// Blocks below this order were written by version 1.
    pub(crate) version_1_below: u64,
    /// The counters of the SMART log, without this opening.
    pub(crate) health: HealthCounters,
}

/// An FTL that recovery fills, and the frames that recovery reads into.
#[derive(Debug)]
pub(crate) struct RecoveringFtl<M> {
    ftl: Ftl<M>,
    frames: FramePool,
    failures: ReadFailures,
    /// The entries of values in extents, which are not adopted yet.
    with_extents: Vec<IndexEntry>,
}

/// The source of the pages that recovery reads.
#[derive(Debug)]
pub(crate) struct PageSource<'a, M> {
    pub(crate) media: &'a mut M,
    /// Frames to read into.
    pub(crate) frames: &'a mut FramePool,
    /// The failed reads of this recovery.
    pub(crate) failures: &'a mut ReadFailures,
    /// The purpose of the reads.
    pub(crate) need: PageNeed,
}

impl<M> Deref for RecoveringFtl<M> {
    type Target = Ftl<M>;

    fn deref(&self) -> &Ftl<M> {
        &self.ftl
    }
}

impl<M: Media> RecoveringFtl<M> {
    /// Makes an FTL without any state of its medium.
    pub(crate) fn new(media: M, config: &DeviceConfig, pool: &Pool) -> Self {
        let frames = FramePool::new(pool.clone(), RECOVERY_FRAMES);
        let ftl = Ftl::new(media, config, pool);
        Self { ftl, frames, failures: ReadFailures::default(), with_extents: Vec::new() }
    }

    /// Makes sure that this many frames of device DRAM can be taken, and one for recovery.
    pub(crate) fn reserve_frames(&mut self, frames: usize) -> bool {
        self.ftl.flash.reserve_frames(frames) && self.frames.reserve(1)
    }

    /// Returns the memory of the frames that recovery reads into, while it reads nothing.
    pub(crate) fn release_frames(&mut self) {
        self.frames.release_idle();
    }

    /// Ends recovery, and makes the collector pass over pages whose loss was accepted.
    pub(crate) fn into_ftl(self, passed_over: BTreeSet<PageAddress>) -> Ftl<M> {
        let mut ftl = self.ftl;
        ftl.failed_pages.clear();
        ftl.collector.pass_over(passed_over);
        ftl
    }

    /// Returns the medium and drops the rest.
    pub(crate) fn into_media(self) -> M {
        self.ftl.into_media()
    }

    /// Returns the hasher, the index and the medium, and drops the rest.
    pub(crate) fn into_parts(self) -> (KeyHasher, CompositeIndex, M) {
        let (hasher, index) = self.ftl.catalog.into_index();
        (hasher, index, self.ftl.flash.into_media())
    }

    /// Returns the source of pages for a purpose, and the device DRAM that keeps them.
    pub(crate) fn reading(&mut self, need: PageNeed) -> (PageSource<'_, M>, &mut PageCache) {
        let (media, page_cache) = self.ftl.flash.reading();
        (PageSource { media, frames: &mut self.frames, failures: &mut self.failures, need }, page_cache)
    }

    /// Returns the failed reads of this recovery.
    pub(crate) fn failures(&self) -> &ReadFailures {
        &self.failures
    }

    /// Takes the failed reads, for another recovery of the same medium.
    pub(crate) fn take_failures(&mut self) -> ReadFailures {
        std::mem::take(&mut self.failures)
    }

    /// Sets the failed reads of an earlier recovery: these pages are not asked for again.
    pub(crate) fn set_failures(&mut self, failures: ReadFailures) {
        self.failures = failures;
    }

    /// Makes lookups of records on this page end, because the page cannot be read.
    pub(crate) fn add_failed_page(&mut self, page: PageAddress) {
        self.ftl.failed_pages.insert(page);
    }

    /// Sets the wall time at which expiries are due.
    pub(crate) fn set_wall(&mut self, wall: UnixMillis) {
        self.ftl.set_wall(wall);
    }

    /// Sets the hasher of keys, before any key is found.
    pub(crate) fn set_hasher(&mut self, hasher: KeyHasher) {
        self.ftl.catalog.set_hasher(hasher);
    }

    /// Counts the failed reads of this recovery, and the pages whose loss was accepted.
    pub(crate) fn count_opening_reads(&mut self, accepted: Option<&UnreadablePages>) {
        self.ftl.stats.read_errors = self.failures.count();
        self.ftl.stats.unreadable_pages = accepted.map_or(0, |report| report.pages.len() as u64);
    }

    /// Counts records whose checksum does not match.
    pub(crate) fn count_damaged(&mut self, records: u64) {
        self.ftl.count_damaged(records);
    }

    /// Puts a block in use into the block table.
    pub(crate) fn adopt(&mut self, block: BlockId, found: BlockEntry) {
        self.ftl.flash.blocks_mut().adopt(block, found);
    }

    /// Ends the adoption of blocks: orders continue in a new epoch.
    pub(crate) fn finish_adoption(&mut self, epoch: u64) {
        self.ftl.flash.blocks_mut().finish_adoption(epoch);
    }

    /// Notes a block of the map that was freed since.
    pub(crate) fn note_freed(&mut self, block: BlockId, open_sequence: Sequence) {
        self.ftl.flash.blocks_mut().note_freed(block, open_sequence);
    }

    /// Inserts an entry of a checkpoint whose record is lost with its block: reads of its key fail. The block stays as it is,
    /// so that the damage stays visible.
    pub(crate) fn insert_lost(&mut self, block: BlockId, lost: BlockEntry, hash: KeyHash, entry: IndexEntry) {
        if self.ftl.blocks().get(block).order == 0 {
            self.ftl.flash.blocks_mut().adopt_lost(block, lost);
            self.ftl.note_quarantined(block);
        }
        self.ftl.catalog.insert_lost(hash, entry);
        self.with_extents.extend(entry.has_extents.then_some(entry));
        self.ftl.flash.blocks_mut().add_live(entry.address, entry.units);
    }

    /// Sets the order below which blocks were written by version 1.
    pub(crate) fn set_version_1_below(&mut self, order: u64) {
        self.ftl.version_1_below = order;
        self.ftl.flash.set_version_1_below(order);
    }

    /// Takes a free block for a checkpoint that is written past the medium, and returns it with its order.
    pub(crate) fn take_checkpoint_block(&mut self) -> Option<(BlockId, u64)> {
        let blocks = self.ftl.flash.blocks_mut();
        let block = blocks.open_unerased()?;
        Some((block, blocks.get(block).order))
    }

    /// Sets what is in doubt.
    pub(crate) fn set_doubts(&mut self, doubts: Doubts) {
        *self.ftl.catalog.doubts_mut() = doubts;
    }

    /// Ends all doubt: the operator accepted the loss.
    pub(crate) fn accept_doubts(&mut self) {
        self.ftl.catalog.doubts_mut().accept();
    }

    /// Notes that a key was removed by a record that recovery found.
    pub(crate) fn settle_removed(&mut self, namespace: NamespaceId, digest: u128, sequence: Sequence) {
        self.ftl.catalog.doubts_mut().remove_key(namespace, digest, sequence);
    }

    /// Ends the doubt of a namespace that was cleared by a record that recovery found.
    pub(crate) fn settle_cleared(&mut self, namespace: NamespaceId, sequence: Sequence) {
        self.ftl.catalog.doubts_mut().clear(namespace, sequence);
    }

    /// Raises the sequence of the last clear of a namespace. Returns true if it grew.
    pub(crate) fn raise_cleared(&mut self, namespace: NamespaceId, sequence: Sequence) -> bool {
        self.ftl.catalog.raise_cleared(namespace, sequence)
    }

    /// Counts a tombstone in the block that holds it.
    pub(crate) fn add_tombstone(&mut self, address: RecordAddress, units: u32, sequence: Sequence) {
        self.ftl.flash.blocks_mut().add_tombstone(address, units, sequence);
    }

    /// Inserts an entry of a checkpoint, unless its block is there already.
    pub(crate) fn insert_block(&mut self, position: KeyHash, entry: IndexEntry) {
        self.ftl.catalog.insert_block(position, entry);
    }

    /// Inserts the entries of one segment of a checkpoint, sorted by hash. Drops all of them if they are out of order.
    pub(crate) fn insert_segment(&mut self, number: usize, entries: &[(KeyHash, IndexEntry)]) {
        self.ftl.catalog.insert_segment(number, entries);
    }

    /// Inserts a record that the scan found.
    pub(crate) fn insert_record(&mut self, hash: KeyHash, entry: IndexEntry, expiry_ms: u64) {
        self.ftl.catalog.insert_record(hash, entry, expiry_ms);
    }

    /// Removes an entry of a checkpoint for which the scan found a newer record.
    pub(crate) fn remove_outdated(&mut self, hash: KeyHash, address: RecordAddress) {
        self.ftl.catalog.remove_outdated(hash, address);
    }

    /// Inserts an expiry of a checkpoint, if its record is live.
    pub(crate) fn insert_expiry(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        self.ftl.catalog.insert_expiry(expiry_ms, hash, address);
    }

    /// Counts every record that the index names: in its namespace, in its blocks, and for the collector's reserve.
    pub(crate) fn count_live_records(&mut self) {
        let Self { ftl: Ftl { flash, catalog, space, .. }, with_extents, .. } = self;
        catalog.count_all(|entry| {
            flash.blocks_mut().add_live(entry.address, entry.units);
            space.raise_for_record(entry.units as usize * UNIT_BYTES);
            with_extents.extend(entry.has_extents.then_some(entry));
        });
    }

    /// Takes the entries of values in extents, in the order of their addresses.
    pub(crate) fn take_with_extents(&mut self) -> Vec<IndexEntry> {
        self.with_extents.sort_unstable_by_key(|entry| entry.address);
        std::mem::take(&mut self.with_extents)
    }

    /// Sets the extents of the records that were found. No block is named by two records. The unowned extents are in use and of
    /// no record.
    pub(crate) fn load_extents(&mut self, found: Vec<(IndexEntry, Vec<Extent>)>, unowned: &[Extent]) {
        self.ftl.load_extents(found, unowned);
    }

    /// Continues in a new epoch, after what recovery found.
    pub(crate) fn continue_after(&mut self, found: FoundLog) {
        let FoundLog { accepted, epoch, number, sequence, root, epoch_ends, health, .. } = found;
        let epoch = if mutant(Mutant::EpochReused) { epoch.max(1) } else { epoch + 1 };
        let number = if mutant(Mutant::NumberReused) { number / 2 } else { number };
        let sequence = if mutant(Mutant::SequenceReused) { accepted.sequence } else { sequence };
        let (checkpoint, start_order) = (root.number, root.start_order);
        let health = health + HealthCounters { power_cycles: 1, ..HealthCounters::default() };
        let records = CommitRecords::new(epoch, number, root, epoch_ends, health);
        self.ftl.flash.begin_epoch(records, Sequence(sequence.0 + 1), accepted);
        self.ftl.removals = RemovalMarks::after_recovery(sequence);
        let durable = Prefix { tick: Tick::before_epoch(epoch), sequence };
        self.ftl.commit = GroupCommit::new(durable, accepted, checkpoint);
        self.ftl.reusable_below = start_order;
    }

    /// Encodes the next record of the opening into a frame, and returns its cell.
    pub(crate) fn encode_opened(&mut self, frame: &mut MediaFrame) -> CellNumber {
        self.ftl.flash.encode_opened(frame)
    }

    /// Sets the definition of a namespace.
    pub(crate) fn load_namespace(
        &mut self,
        namespace: NamespaceId,
        definition: NamespaceDefinition,
        attachment: &NamespaceAttachment,
    ) {
        self.ftl.catalog.load_namespace(namespace, definition, attachment);
    }

    /// Sets the sanitize mark.
    pub(crate) fn load_sanitize(&mut self, mark: Option<FoundMark>) {
        self.ftl.catalog.load_sanitize(mark);
    }
}
