//! The flash translation layer (the UIO paper's UTL): keys to records on flash, and back (UIO paper section 3.4.3).
//!
//! Input: keys, values, addresses. Output: records found, written and accounted for. Every call completes at once in
//! device memory, or returns the pages it needs first ([`StallReason`]); the caller repeats the whole call when they are
//! cached. Invariant: the index names exactly the newest record of every existing key, and the block table, the expiry
//! queue and the key counts agree with it.

mod catalog;
mod checkpoint_space;
mod clear_walks;
mod commit;
mod counters;
pub(crate) mod doubt;
mod erase;
mod evacuated_blocks;
mod extent_reads;
mod extent_store;
mod extents;
mod find;
mod found_record;
mod garbage_collector;
mod health;
pub(crate) mod held_values;
mod log_reservation;
mod lone_commits;
mod lost_entry;
mod moves;
mod namespace_state;
pub(crate) mod namespace_table;
mod open_receipts;
mod prefetch;
mod purge;
mod quarantine;
mod receipts;
pub(crate) mod recovering;
mod removal_marks;
mod room;
pub(crate) mod sanitize_mark;
mod sink_range;
pub(crate) mod snapshot;
mod space_reserve;
mod value_extents;
mod value_parts;
mod version_1_blocks;
mod victim_pages;
mod whole_record;
mod write;

pub(crate) use clear_walks::ClearStep;
pub(crate) use extent_reads::RangeRead;
pub(crate) use extent_store::ExtentStore;
pub(crate) use find::{RecordPart, RecordPieces};
pub(crate) use found_record::FoundRecord;
pub(crate) use sink_range::SinkRange;
pub(crate) use write::NewRecord;

use crate::command::{NamespaceId, Sequence};
use crate::config::{DeviceConfig, DeviceStats, FailedRead, FailedWrite};
use crate::index::expiry::ExpiryQueue;
use crate::index::{CompositeIndex, KeyHash, KeyHasher, RecordIndex};
use crate::limits::{NAMESPACES, SPACES};
use crate::log::blocks::BlockTable;
use crate::log::extent_reads::{ExtentRun, ReadRun};
use crate::log::flash_log::{FlashCompletion, FlashLog};
use crate::log::group_commit::GroupCommit;
use crate::log::health_counters::HealthState;
use crate::log::page_cache::PageCache;
use crate::log::page_proof::PageProof;
use crate::log::page_reads::{EndedRead, ReadWaiter};
use crate::log::prefix::Prefix;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::media::geometry::{BLOCK_DATA_BYTES, FlashGeometry, PAGE_DATA_BYTES, PageAddress};
use crate::media::{Media, MediaError, MediumVersion};
use crate::namespace::attachment::NamespaceAttachment;
use crate::namespace::{Namespace, NamespaceKind};
use catalog::Catalog;
use doubt::Doubts;
use find::PendingPrefetch;
use garbage_collector::GarbageCollector;
use headwater_dma::pool::Pool;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use held_values::HeldValues;
use log_reservation::LogReservation;
use lone_commits::LoneCommits;
use namespace_state::NamespaceState;
use namespace_table::{NamespaceDefinition, NamespaceTable};
use removal_marks::RemovalMarks;
use snapshot::SnapshotState;
use space_reserve::SpaceReserve;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use value_extents::ValueExtents;

/// The reason why a call cannot complete now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StallReason {
    /// These pages must be read from the medium first.
    Pages(Vec<PageAddress>),
    /// These runs of extents must be read from the medium first.
    Runs(Vec<ExtentRun>),
    /// Blocks must become ready, or frames free, first.
    Room {
        /// Ready blocks needed, without the collector's reserve.
        blocks: usize,
    },
    /// This sequence must be durable first.
    NotDurable(Sequence),
    /// Other operations get their turn first: a part of a long copy is done, or none yet.
    Turn,
    /// Pages of extents must be programmed first.
    ExtentPages,
    /// Jobs of the mover must end first, which copy this range of the value.
    Moves(Range<usize>),
    /// The operation that the log is reserved for must end first.
    LogReserved,
    /// This page is needed, and the read for this call failed. A later call asks the medium again.
    Unreadable(PageAddress),
    /// A record that the medium lost may supersede the one that is found. Only a write of the key ends this.
    InDoubt,
}

/// The translation layer over one medium.
#[derive(Debug)]
pub(crate) struct Ftl<M> {
    /// The log on its medium.
    flash: FlashLog<M>,
    /// The keys, blocks and namespaces that exist.
    catalog: Catalog,
    /// The durable part of the log.
    commit: GroupCommit,
    lone_commits: LoneCommits,
    /// Blocks below this order lie in front of the window of the checkpoint that a durable record names.
    reusable_below: u64,
    /// The time at which an idle device says that its last commit is durable.
    idle_record_due: Option<Nanos>,
    /// Blocks below this order are of version 1.
    version_1_below: u64,
    collector: GarbageCollector,
    space: SpaceReserve,
    removals: RemovalMarks,
    snapshot: SnapshotState,
    held_values: HeldValues,
    extents: ValueExtents,
    /// Bytes from which a value is stored in extents.
    extents_from: usize,
    reservation: LogReservation,
    stats: DeviceStats,
    health: HealthState,
    /// The number of erases when a write found no room that could be freed: until the next erase nothing changed.
    stuck_at_erases: Option<u64>,
    /// Pages whose reads failed for the present caller.
    failed_pages: BTreeSet<PageAddress>,
    /// Runs of extents that were read for the present caller.
    read_runs: Vec<ReadRun>,
    /// The rest of the next record to read that is not prefetched yet.
    pending_prefetch: Cell<PendingPrefetch>,
}

/// The result of one call of [`Ftl::pump`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PumpOutcome {
    /// True if anything moved.
    pub(crate) moved: bool,
    /// Pages of a checkpoint that were programmed.
    pub(crate) checkpoint_pages: usize,
    /// Pages of extents that were programmed.
    pub(crate) extent_pages: usize,
}

impl<M: Media> Ftl<M> {
    /// Makes an FTL without any state of its medium.
    fn new(media: M, config: &DeviceConfig, pool: &Pool) -> Self {
        Self {
            flash: FlashLog::new(media, config.frames_max, pool.clone()),
            catalog: Catalog::new(KeyHasher::new(config.hash_seed, config.hash_bits)),
            commit: GroupCommit::new(Prefix::default(), Prefix::default(), 0),
            reusable_below: 0,
            idle_record_due: None,
            lone_commits: LoneCommits::default(),
            version_1_below: 0,
            collector: GarbageCollector::new(config.victim),
            space: SpaceReserve::default(),
            removals: RemovalMarks::default(),
            snapshot: SnapshotState::default(),
            held_values: HeldValues::default(),
            extents: ValueExtents::default(),
            extents_from: config.extents_from.max(BLOCK_DATA_BYTES),
            reservation: LogReservation::new(config.batch_part_writes),
            stats: DeviceStats::default(),
            health: HealthState::default(),
            stuck_at_erases: None,
            failed_pages: BTreeSet::new(),
            read_runs: Vec::new(),
            pending_prefetch: Cell::new(PendingPrefetch::NOTHING),
        }
    }

    /// Returns the bytes of a page (data, then spare) if they are in memory that the CPU can address.
    #[inline]
    pub(crate) fn page(&self, page: PageAddress) -> Option<&[u8]> {
        self.flash.page(page)
    }

    /// Returns the medium.
    pub(crate) fn media(&self) -> &M {
        self.flash.media()
    }

    /// Returns the medium, for a wait or an injected fault.
    pub(crate) fn media_mut(&mut self) -> &mut M {
        self.flash.media_mut()
    }

    /// Returns the medium and drops the rest.
    pub(crate) fn into_media(self) -> M {
        self.flash.into_media()
    }

    /// Returns the shape of the medium.
    pub(crate) fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }

    /// Returns the device DRAM.
    pub(crate) fn page_cache(&self) -> &PageCache {
        self.flash.page_cache()
    }

    /// Returns the block table.
    #[inline]
    pub(crate) fn blocks(&self) -> &BlockTable {
        self.flash.blocks()
    }

    /// Returns the failure of the medium after which nothing is guaranteed, if there was one.
    #[inline]
    pub(crate) fn failure(&self) -> Option<MediaError> {
        self.flash.failure()
    }

    /// Returns the last write that found no space beneath the medium, until a write succeeds. The medium repeats it.
    #[inline]
    pub(crate) fn lack_of_space(&self) -> Option<MediaError> {
        self.flash.media().lack_of_space()
    }

    /// Returns the status of every command that writes, while none can be carried out.
    #[inline]
    pub(crate) fn write_refusal(&self) -> Option<Status> {
        if self.failure().is_some() {
            return Some(Status::MEDIUM_FAILED);
        }
        self.lack_of_space().map(|_| Status::CAPACITY_EXCEEDED)
    }

    /// Returns true if no commit runs, no operation of the medium is in flight and no page waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.flash.is_idle() && self.commit.is_idle()
    }

    /// Returns the last sequence given out.
    #[inline]
    pub(crate) fn last_sequence(&self) -> Sequence {
        self.flash.last_sequence()
    }

    /// Returns true if the medium is of version 1, which is only read.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.flash.traits().version == MediumVersion::One
    }

    /// Returns what is in doubt.
    #[inline]
    pub(crate) fn doubts(&self) -> &Doubts {
        self.catalog.doubts()
    }

    /// Returns true if the removal of an absent key or block may be left out: its absence is durable and certain.
    pub(crate) fn is_absence_final(&self, namespace: NamespaceId) -> bool {
        self.last_removal() <= self.durable() && !self.doubts().is_in_doubt(namespace)
    }

    /// Returns the number of ends of epochs in commit records.
    pub(crate) fn epoch_ends(&self) -> usize {
        self.flash.records().epoch_ends()
    }

    /// Returns what pages are checked by when they are read.
    pub(crate) fn proof(&self) -> PageProof {
        self.flash.proof()
    }

    /// Returns true if a checkpoint would let the collector go on, and forgets it.
    pub(crate) fn take_checkpoint_request(&mut self) -> bool {
        std::mem::take(&mut self.collector.wants_checkpoint)
    }

    /// Adds a waiter for a page, and queues a read of the page if none is in flight.
    pub(crate) fn request_page(&mut self, page: PageAddress, waiter: ReadWaiter) {
        self.flash.request_page(page, waiter);
    }

    /// Unpins a page of a waiter, which has used it or not. A used page of an extent leaves device DRAM.
    pub(crate) fn unpin(&mut self, page: PageAddress, is_used: bool) {
        self.flash.unpin(page, is_used);
    }

    /// Returns the index.
    #[inline]
    pub(crate) fn index(&self) -> &CompositeIndex {
        self.catalog.index()
    }

    /// Returns the index, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn index_mut(&mut self) -> &mut CompositeIndex {
        self.catalog.index_mut()
    }

    /// Returns the hasher of keys.
    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        self.catalog.hasher()
    }

    /// Returns the expiry queue.
    pub(crate) fn expiry(&self) -> &ExpiryQueue {
        self.catalog.expiry()
    }

    /// Sets the wall time at which expiries are due.
    pub(crate) fn set_wall(&mut self, wall: UnixMillis) {
        self.catalog.set_wall(wall);
    }

    /// Returns true if a record with this header has expired.
    #[inline]
    pub(crate) fn is_expired(&self, header: &RecordHeader) -> bool {
        self.catalog.is_expired(header)
    }

    /// Returns true if a found record has expired.
    #[inline]
    pub(crate) fn expired(&self, found: &FoundRecord) -> bool {
        found.header.is_some_and(|header| self.is_expired(&header))
    }

    /// Returns the record that expires first, if it is due.
    pub(crate) fn first_due(&self) -> Option<(u64, KeyHash, RecordAddress)> {
        self.catalog.first_due()
    }

    /// Removes a record from the expiry queue, because its expiry is being carried out.
    pub(crate) fn take_expiry(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        self.catalog.take_expiry(expiry_ms, hash, address);
    }

    /// Removes a record whose expiry is unknown from the expiry queue.
    pub(crate) fn forget_expiry(&mut self, hash: KeyHash, address: RecordAddress) {
        self.catalog.forget_expiry(hash, address);
    }

    /// Returns the counts of all namespaces, by index.
    pub(crate) fn counts(&self) -> &[NamespaceState; SPACES] {
        self.catalog.counts()
    }

    /// Returns the namespace table.
    #[inline]
    pub(crate) fn namespace_table(&self) -> &NamespaceTable {
        self.catalog.namespace_table()
    }

    /// Applies a change of a namespace whose record was written with this sequence.
    pub(crate) fn change_namespace(
        &mut self,
        namespace: NamespaceId,
        definition: NamespaceDefinition,
        attachment: NamespaceAttachment,
        sequence: Sequence,
    ) {
        self.catalog.change_namespace(namespace, definition, attachment, sequence);
    }

    /// Makes the durable changes of namespaces visible.
    #[inline]
    pub(crate) fn show_durable_namespaces(&mut self) {
        self.catalog.make_visible(self.commit.durable());
    }

    /// Removes a controller that is gone from the attachments of all namespaces.
    pub(crate) fn forget_controller(&mut self, controller: u16) {
        self.catalog.forget_controller(controller);
    }

    /// Returns true if the records of a key space may grow by `more` bytes and shrink by `less` within its quota.
    pub(crate) fn fits_quota(&self, namespace: NamespaceId, more: usize, less: usize) -> bool {
        self.catalog.fits_quota(namespace, more, less)
    }

    /// Returns the sequence of the last tombstone or clear, which a command reports if it finds no record.
    #[inline]
    pub(crate) fn last_removal(&self) -> Sequence {
        self.removals.last()
    }

    /// Returns the sequence of the last record that removed more than its own key: a clear, or a delete of a batch.
    #[inline]
    pub(crate) fn last_multi_key_removal(&self) -> Sequence {
        self.removals.last_multi_key()
    }

    /// Advances completions, filled pages, reads, erases and commits as far as possible. Appends the ends of reads to
    /// `awake`.
    pub(crate) fn pump(&mut self, now: Nanos, awake: &mut Vec<EndedRead>) -> PumpOutcome {
        let mut outcome = self.process_completions(now, awake);
        if self.is_read_only() {
            outcome.moved |= self.flash.submit_reads(now);
            return outcome;
        }
        outcome.moved |= self.flash.poll_moves();
        outcome.moved |= self.flash.submit_extents(now);
        outcome.moved |= self.flash.submit_programs(now);
        outcome.moved |= self.flash.submit_records(now);
        outcome.moved |= self.flash.submit_reads(now);
        outcome.moved |= self.prepare_blocks(now);
        outcome.moved |= self.advance_commit(now);
        outcome
    }

    fn process_completions(&mut self, now: Nanos, awake: &mut Vec<EndedRead>) -> PumpOutcome {
        let mut completions = self.flash.poll(now);
        let mut outcome = PumpOutcome { moved: !completions.is_empty(), ..PumpOutcome::default() };
        for completion in completions.drain(..) {
            match self.flash.complete(completion, awake) {
                FlashCompletion::Page => {}
                FlashCompletion::CheckpointPage => outcome.checkpoint_pages += 1,
                FlashCompletion::ExtentPage => outcome.extent_pages += 1,
                FlashCompletion::Cell => {}
                FlashCompletion::Flush => self.complete_flush(now),
                FlashCompletion::Erase => self.complete_erase(),
            }
        }
        self.flash.return_buffer(completions);
        outcome
    }

    /// Returns the counters of the FTL; those of the stages above are zero.
    pub(crate) fn stats(&self) -> DeviceStats {
        let mut stats = self.stats;
        for (number, state) in (1..).map(NamespaceId).zip(self.counts()).take(NAMESPACES) {
            let slot = self.namespace_table().get(number);
            let is_blocks =
                matches!(slot, NamespaceDefinition::Created(Namespace { kind: NamespaceKind::Block(_), .. }));
            let records = if is_blocks { &mut stats.blocks } else { &mut stats.keys };
            records[number.index()] = state.keys;
        }
        let pages = self.flash.log().programmed_pages() + self.flash.programmed_extent_pages();
        stats.programmed_bytes = pages * PAGE_DATA_BYTES as u64;
        stats.free_blocks = narrow(self.blocks().free_count());
        stats.quarantined = self.collector.quarantined.len() as u64;
        stats.live_bytes = self.live_bytes();
        stats.tombstone_bytes = self.blocks().tombstone_bytes();
        stats.index_bytes = self.index().bytes();
        stats.capacity_bytes = self.capacity_with(0);
        stats.commits = self.commit.commits();
        let (mover, waited) = self.flash.mover();
        let moved = mover.counters();
        stats.moves_waited = waited;
        stats.move_channels = mover.channel_counters();
        stats.move_decisions = mover.policy().map_or_else(Default::default, |policy| *policy.counters());
        (stats.moved_in_large_jobs, stats.moved_in_small_jobs) = (moved.large_bytes, moved.small_bytes);
        stats.received_bytes = self.received_bytes();
        let (errors, last) = self.flash.read_errors();
        stats.read_errors += errors;
        stats.damaged_pages = self.flash.damaged_pages();
        stats.collection_stuck = self.stuck_at_erases == Some(stats.erases);
        stats.last_read_error = last.and_then(FailedRead::of_page);
        stats.failed_write = self.flash.failed_write();
        stats.lack_of_space = self.lack_of_space().map(FailedWrite::for_lack_of_space);
        stats
    }
}
