//! The flash translation layer (the UIO paper's UTL): keys to records on flash, and back (UIO paper section 3.4.3).
//!
//! Input: keys, values, addresses. Output: records found, written and accounted for. Every call completes at once in
//! device memory, or returns the pages it needs first ([`StallReason`]); the caller repeats the whole call when they are
//! cached. Invariant: the index names exactly the newest record of every existing key, and the block table, the expiry
//! queue and the key counts agree with it.

mod find;
mod garbage_collector;
mod incomplete_batches;
pub(crate) mod namespace_table;
mod prefetch;
mod purge;
pub(crate) mod sanitize_mark;
mod write;

pub(crate) use find::{FoundRecord, RecordPart, RecordPieces, SinkRange};
pub(crate) use garbage_collector::GarbageCollector;
pub(crate) use incomplete_batches::IncompleteBatches;
pub(crate) use write::NewRecord;

use crate::command::{NamespaceId, Sequence};
use crate::config::{DeviceConfig, DeviceStats};
use crate::ftl::namespace_table::{NamespaceDefinition, NamespaceTable};
use crate::index::expiry::ExpiryQueue;
use crate::index::{CompositeIndex, IndexEntry, KeyHasher, RecordIndex};
use crate::limits::{RECOVERY_FRAMES, SPACES};
use crate::log::RecordLog;
use crate::log::blocks::BlockTable;
use crate::log::group_commit::{CommitState, CommitTarget, GroupCommit};
use crate::log::page_cache::PageCache;
use crate::log::reads::{PageReads, ReadWaiter};
use crate::log::record::UNIT_BYTES;
use crate::media::geometry::{BLOCK_DATA_BYTES, FlashGeometry, PAGE_DATA_BYTES, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{BlockId, Media, MediaCompletion, MediaOp, MediaTraits};
use crate::namespace::NamespaceKind;
use headwater_dma::frame::FramePool;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use prefetch::PendingPrefetch;
use std::cell::Cell;

/// Blocks that only the collector may open.
const RESERVE_BLOCKS: usize = 3;
/// Collection starts when fewer blocks than this are free.
const LOW_BLOCKS: usize = 6;
/// Blocks kept erased in advance.
const READY_BLOCKS: usize = 4;

/// The reason why a call cannot complete now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StallReason {
    /// These pages must be read from the medium first.
    Pages(Vec<PageAddress>),
    /// Blocks must become ready, or frames free, first.
    Room {
        /// Ready blocks needed, without the collector's reserve.
        blocks: usize,
    },
    /// This sequence must be durable first.
    Durable(Sequence),
}

/// The counts of a namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamespaceState {
    /// Keys, or blocks, that exist.
    pub(crate) keys: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    /// Records below this sequence were removed by a clear.
    pub(crate) cleared: Sequence,
}

impl NamespaceState {
    /// Counts a key or block that was created with this record.
    pub(crate) fn add(&mut self, entry: IndexEntry) {
        self.keys += 1;
        self.bytes += u64::from(entry.units) * UNIT_BYTES as u64;
    }

    /// Uncounts a key or block whose record was removed.
    pub(crate) fn remove(&mut self, entry: IndexEntry) {
        self.keys -= 1;
        self.bytes -= u64::from(entry.units) * UNIT_BYTES as u64;
    }
}

/// The translation layer over one medium.
#[derive(Debug)]
pub(crate) struct Ftl<M> {
    pub(crate) media: M,
    pub(crate) geometry: FlashGeometry,
    pub(crate) traits: MediaTraits,
    pub(crate) dram: PageCache,
    /// Frames that recovery reads into; empty while the device serves commands.
    pub(crate) recovery_frames: FramePool,
    pub(crate) blocks: BlockTable,
    pub(crate) log: RecordLog,
    pub(crate) index: CompositeIndex,
    pub(crate) hasher: KeyHasher,
    pub(crate) expiry: ExpiryQueue,
    pub(crate) namespaces: [NamespaceState; SPACES],
    pub(crate) table: NamespaceTable,
    pub(crate) reads: PageReads,
    pub(crate) commit: GroupCommit,
    pub(crate) collector: GarbageCollector,
    pub(crate) stats: DeviceStats,
    pub(crate) wall_ms: u64,
    /// Sequence of the last tombstone or clear, which a command reports if it finds no record.
    pub(crate) last_removal: Sequence,
    /// Sequence of the last record that removed more than its own key: a clear, or a delete of a batch.
    pub(crate) last_joint_removal: Sequence,
    /// Ready blocks that a stalled append needs.
    pub(crate) ready_wanted: usize,
    /// Blocks that the collector needs beyond its usual reserve, to move the largest chained record so far.
    chain_reserve: usize,
    /// Blocks reserved for a checkpoint; appends of clients may not open them.
    pub(crate) set_aside: usize,
    /// Error of a failed program, erase or flush. From then on nothing is guaranteed, so no command is accepted.
    pub(crate) failed: Option<crate::media::MediaError>,
    /// Pages of a checkpoint that were programmed since the checkpointer last polled.
    pub(crate) checkpoint_done: usize,
    /// The rest of the next record to read that is not prefetched yet.
    ahead: Cell<PendingPrefetch>,
    done: Vec<MediaCompletion>,
}

impl<M: Media> Ftl<M> {
    /// Makes an FTL without any state of its medium.
    pub(crate) fn new(media: M, config: &DeviceConfig, pool: &Pool) -> Self {
        let (geometry, traits) = (media.geometry(), media.traits());
        Self {
            geometry,
            traits,
            dram: PageCache::new(geometry, config.frames_max, pool.clone()),
            recovery_frames: FramePool::new(pool.clone(), RECOVERY_FRAMES),
            blocks: BlockTable::new(geometry),
            log: RecordLog::new(traits.guard_pages, traits.addressable),
            index: CompositeIndex::default(),
            hasher: KeyHasher::new(config.hash_seed, config.hash_bits),
            expiry: ExpiryQueue::default(),
            namespaces: [NamespaceState::default(); SPACES],
            table: NamespaceTable::default(),
            reads: PageReads::default(),
            commit: GroupCommit::new(Sequence(0), Sequence(0), 0),
            collector: GarbageCollector::new(config.victim),
            stats: DeviceStats::default(),
            wall_ms: 0,
            last_removal: Sequence(0),
            last_joint_removal: Sequence(0),
            ready_wanted: 0,
            chain_reserve: 0,
            set_aside: 0,
            failed: None,
            checkpoint_done: 0,
            ahead: Cell::new(PendingPrefetch::NOTHING),
            done: Vec::new(),
            media,
        }
    }

    /// Returns the bytes of a page (data, then spare) if they are in memory that the CPU can address.
    #[inline]
    pub(crate) fn page(&self, page: PageAddress) -> Option<&[u8]> {
        let open = self.log.peek(page);
        if self.traits.addressable {
            // Device DRAM holds a page of an addressable medium only if the medium does not show it.
            return open.or_else(|| self.media.view(page)).or_else(|| self.dram.peek(page));
        }
        open.or_else(|| self.dram.peek(page))
    }

    /// Returns the last sequence given out.
    pub(crate) fn applied(&self) -> Sequence {
        Sequence(self.log.sequence_next().0 - 1)
    }

    /// Returns the number of blocks that only the collector may open.
    pub(crate) fn reserve_blocks(&self) -> usize {
        RESERVE_BLOCKS + self.chain_reserve
    }

    /// Returns the number of free blocks below which collection starts.
    pub(crate) fn low_blocks(&self) -> usize {
        LOW_BLOCKS + self.chain_reserve
    }

    /// Raises the reserve so that the collector can move a record of this many bytes whole at any fill level.
    pub(crate) fn reserve_for(&mut self, bytes: usize) {
        self.chain_reserve = self.chain_reserve.max(chain_reserve(bytes));
    }

    /// Returns the bytes of live records that the medium may hold, with room for a new record of `bytes`: the whole
    /// medium without the reserve, two checkpoints of the index, quarantined blocks, and one part in 32 that collection
    /// needs.
    pub(crate) fn capacity_with(&self, bytes: usize) -> u64 {
        let checkpoints = (2 * self.index.len() * crate::index::hashed::ENTRY_BYTES as u64)
            .div_ceil(BLOCK_DATA_BYTES as u64);
        let reserve = LOW_BLOCKS + 2 + self.chain_reserve.max(chain_reserve(bytes));
        let set_aside = reserve as u64 + self.stats.quarantined + checkpoints;
        let blocks = u64::from(self.geometry.blocks).saturating_sub(set_aside);
        blocks * BLOCK_DATA_BYTES as u64 / 32 * 31
    }

    /// Changes the counts of a namespace.
    pub(crate) fn count(&mut self, namespace: NamespaceId, change: impl FnOnce(&mut NamespaceState)) {
        let state = &mut self.namespaces[namespace.index()];
        let was_empty = state.keys == 0;
        change(state);
        if was_empty != (state.keys == 0) {
            self.table.turned(namespace);
        }
    }

    /// Returns true if the records of a key space may grow by `more` bytes and shrink by `less` within its quota.
    pub(crate) fn has_quota(&self, namespace: NamespaceId, more: usize, less: usize) -> bool {
        match self.table.get(namespace) {
            NamespaceDefinition::Made(made) if made.size > 0 && made.kind == NamespaceKind::Kv => {
                let bytes = self.namespaces[namespace.index()].bytes;
                more <= less || bytes + more as u64 <= made.size + less as u64
            }
            _ => true,
        }
    }

    /// Advances filled pages, reads, erases and commits as far as possible. Returns true if anything moved; appends the
    /// waiters of completed reads to `awake`.
    pub(crate) fn pump(&mut self, now: Nanos, awake: &mut Vec<ReadWaiter>) -> bool {
        let mut moved = self.reap(now, awake);
        moved |= self.log.submit(&mut self.media, &mut self.dram, now);
        moved |= self.reads.submit(&mut self.media, &mut self.dram, now);
        moved |= self.prepare_blocks(now);
        moved |= self.advance_commit(now);
        moved
    }

    fn reap(&mut self, now: Nanos, awake: &mut Vec<ReadWaiter>) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.media.poll(now, &mut done);
        let moved = !done.is_empty();
        for answer in done.drain(..) {
            let purpose = MediaPurpose::decode(answer.token);
            if let MediaPurpose::Read(page) = purpose {
                awake.extend(self.reads.done(page, answer, &mut self.dram, &self.blocks));
                continue;
            }
            if let Err(error) = answer.result {
                self.failed.get_or_insert(error);
            }
            match purpose {
                MediaPurpose::Program(id) => self.log.programmed(id, answer.frame, &mut self.dram),
                MediaPurpose::Checkpoint => {
                    self.checkpoint_done += 1;
                    if let Some(frame) = answer.frame {
                        self.dram.put_back(frame);
                    }
                }
                MediaPurpose::Flush => self.flushed(),
                MediaPurpose::Erase(block) => self.erase_done(block),
                MediaPurpose::Read(_) => {}
            }
        }
        self.done = done;
        moved
    }

    fn erase_done(&mut self, block: BlockId) {
        self.blocks.erased(block);
        self.stats.erases += 1;
        if !self.traits.volatile_cache {
            self.blocks.flush_started();
            self.blocks.flush_done();
            self.settle();
        } else if self.collector.holds_stamp() {
            self.commit.want_flush();
        }
    }

    fn settle(&mut self) {
        if !self.blocks.is_fading() && self.blocks.erasing_now() == 0 {
            self.collector.settle();
        }
    }

    /// Erases evacuated blocks whose records are durable elsewhere, and dirty ones so that some are always ready.
    fn prepare_blocks(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        if self.failed.is_some() {
            return false;
        }
        while let Some(block) = self.collector.next_erase(self.commit.durable_barrier) {
            if !self.submit_erase(block, now) {
                break;
            }
            self.collector.erase_accepted();
            self.blocks.erasing(block);
            moved = true;
        }
        let wanted = if self.wants_all_erased() {
            usize::MAX
        } else {
            READY_BLOCKS.max(self.ready_wanted + self.set_aside + self.reserve_blocks() + 1)
        };
        while self.blocks.ready() + self.blocks.erasing_now() < wanted {
            let Some(block) = self.blocks.take_dirty() else {
                break;
            };
            if !self.submit_erase(block, now) {
                self.blocks.put_back_dirty(block);
                break;
            }
            moved = true;
        }
        moved
    }

    fn submit_erase(&mut self, block: BlockId, now: Nanos) -> bool {
        self.dram.forget(block);
        self.media.submit(MediaPurpose::Erase(block).encode(), MediaOp::Erase { block }, now).is_ok()
    }

    fn advance_commit(&mut self, now: Nanos) -> bool {
        match self.commit.state {
            CommitState::Idle if self.commit.is_due() && self.failed.is_none() => self.begin_commit(now),
            CommitState::Programming(target) if self.log.completed_to(target.barrier) => {
                if self.failed.is_some() {
                    return false;
                }
                if !self.traits.volatile_cache {
                    self.end_commit(target);
                    return true;
                }
                let accepted = self.media.submit(MediaPurpose::Flush.encode(), MediaOp::Flush, now).is_ok();
                if accepted {
                    self.blocks.flush_started();
                    self.stats.flushes += 1;
                    self.commit.state = CommitState::Flushing(target);
                }
                accepted
            }
            _ => false,
        }
    }

    /// Returns the hasher, the index and the medium, and drops the rest.
    pub(crate) fn into_parts(self) -> (KeyHasher, CompositeIndex, M) {
        (self.hasher, self.index, self.media)
    }

    /// Seals the log for a commit. The guard pages need frames; without them the commit waits.
    fn begin_commit(&mut self, now: Nanos) -> bool {
        if !self.dram.secure(2 + usize::from(self.traits.guard_pages)) {
            return false;
        }
        let sequence = self.applied();
        let barrier = self.log.seal(&mut self.dram, &mut self.blocks);
        let order = self.log.begun_order(&self.blocks);
        let stamp = self.log.durable_stamp();
        self.commit.begin(CommitTarget { sequence, barrier, order, stamp });
        self.log.submit(&mut self.media, &mut self.dram, now);
        true
    }

    fn flushed(&mut self) {
        if let CommitState::Flushing(target) = self.commit.state
            && self.failed.is_none()
        {
            self.blocks.flush_done();
            self.settle();
            self.end_commit(target);
        }
    }

    fn end_commit(&mut self, target: CommitTarget) {
        self.commit.finish(target);
        if !self.collector.holds_stamp() {
            self.log.stamp_durable(self.commit.durable, self.commit.durable_order);
        }
    }

    /// Checks that a client or the collector can append this many bytes now.
    pub(crate) fn room(&mut self, bytes: usize, reserve: usize) -> Result<(), StallReason> {
        let blocks = self.log.blocks_for(bytes);
        let frames = self.log.frames_for(bytes) + usize::from(self.traits.guard_pages);
        if (blocks > 0 && self.blocks.ready() < blocks + reserve) || !self.dram.secure(frames) {
            return Err(StallReason::Room { blocks });
        }
        Ok(())
    }

    /// Returns the data bytes of pages programmed so far.
    pub(crate) fn programmed_bytes(&self) -> u64 {
        self.log.programmed_pages() * PAGE_DATA_BYTES as u64
    }
}

/// Returns the blocks that moving a record of this many bytes may open, beyond the usual reserve.
const fn chain_reserve(bytes: usize) -> usize {
    (bytes.div_ceil(BLOCK_DATA_BYTES) + 2).saturating_sub(RESERVE_BLOCKS)
}

const _: () =
    assert!(chain_reserve(BLOCK_DATA_BYTES) == 0, "records of one block must need no extra reserve");
