//! The unity translation layer: keys to records on flash, and back (UIO paper section 3.4.3).
//!
//! In: keys, values, addresses. Out: records found, written and accounted for. Everything here happens at once in device
//! memory, or says which pages it needs first ([`Stall`]); the caller asks again when they have come, from the start.
//! Invariant: the index names exactly the newest record of every key that exists, and the block table, the expiry queue
//! and the key counts agree with it.

mod ahead;
mod collect;
mod debris;
mod find;
mod purge;
mod write;

pub(crate) use collect::Collector;
pub(crate) use debris::Debris;
pub(crate) use find::{Found, Gather, Reach, Window};
pub(crate) use write::NewRecord;

use crate::blocks::Blocks;
use crate::checkpoint::is_checkpoint;
use crate::command::{NamespaceId, Sequence};
use crate::commit::{Commit, CommitState, FLUSH_TOKEN, Target};
use crate::device::{DeviceConfig, DeviceStats};
use crate::dram::Dram;
use crate::expiry::ExpiryQueue;
use crate::index::{CompositeIndex, Entry, Index, KeyHasher};
use crate::limits::SPACES;
use crate::log::{Log, program_id};
use crate::media::geometry::{BLOCK_DATA_BYTES, Geometry, PAGE_DATA_BYTES, PageAddress};
use crate::media::{BlockId, Media, MediaDone, MediaOp, MediaToken, MediaTraits};
use crate::namespace::NamespaceKind;
use crate::namespace::table::{Slot, Table};
use crate::reads::{Reads, Waiter, read_page};
use crate::record::UNIT_BYTES;
use crate::recovery::RECOVERY_FRAMES;
use ahead::Ahead;
use headwater_dma::frame::FramePool;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use std::cell::Cell;

/// Blocks that only the collector may open.
const RESERVE_BLOCKS: usize = 3;
/// Collection starts when fewer blocks than this are free.
const LOW_BLOCKS: usize = 6;
/// Blocks kept erased ahead of need.
const READY_BLOCKS: usize = 4;

/// Why something cannot happen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stall {
    /// These pages must come from the media first.
    Pages(Vec<PageAddress>),
    /// So many blocks must be ready to be opened, or frames be free, first.
    Room {
        /// Ready blocks, the collector's reserve not counted.
        blocks: usize,
    },
    /// This must be durable first.
    Durable(Sequence),
}

/// What is kept of a namespace.
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
    /// A key or block came to exist with this record.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.keys += 1;
        self.bytes += u64::from(entry.units) * UNIT_BYTES as u64;
    }

    /// It ceased to exist.
    pub(crate) fn remove(&mut self, entry: Entry) {
        self.keys -= 1;
        self.bytes -= u64::from(entry.units) * UNIT_BYTES as u64;
    }
}

/// The translation layer over one medium.
#[derive(Debug)]
pub(crate) struct Utl<M> {
    pub(crate) media: M,
    pub(crate) geometry: Geometry,
    pub(crate) traits: MediaTraits,
    pub(crate) dram: Dram,
    /// Frames that recovery reads into; none are kept while the device serves.
    pub(crate) recovery_frames: FramePool,
    pub(crate) blocks: Blocks,
    pub(crate) log: Log,
    pub(crate) index: CompositeIndex,
    pub(crate) hasher: KeyHasher,
    pub(crate) expiry: ExpiryQueue,
    pub(crate) namespaces: [NamespaceState; SPACES],
    pub(crate) table: Table,
    pub(crate) reads: Reads,
    pub(crate) commit: Commit,
    pub(crate) collector: Collector,
    pub(crate) stats: DeviceStats,
    pub(crate) wall_ms: u64,
    /// Sequence of the last tombstone or clear: what a command saw that found nothing.
    pub(crate) last_removal: Sequence,
    /// Sequence of the last record that removed more than its own key: a clear, or a delete of a batch.
    pub(crate) last_joint_removal: Sequence,
    /// Blocks that a stalled append needs erased ahead.
    pub(crate) ready_wanted: usize,
    /// Blocks that the collector needs beyond its usual reserve, to move the largest chained record there has been.
    chain_reserve: usize,
    /// Blocks that a checkpoint waits for: clients leave them alone meanwhile.
    pub(crate) set_aside: usize,
    /// Set when a program, erase or flush failed: nothing can be promised any more, so nothing is accepted.
    pub(crate) failed: Option<crate::media::MediaError>,
    /// Pages of a checkpoint that were programmed since the checkpointer last looked.
    pub(crate) checkpoint_done: usize,
    /// What is left to be asked for of the record that is read next.
    ahead: Cell<Ahead>,
    done: Vec<MediaDone>,
}

const ERASE_TOKENS: u64 = 3 << 60;

impl<M: Media> Utl<M> {
    /// A layer that knows nothing yet of what its medium holds.
    pub(crate) fn new(media: M, config: &DeviceConfig, pool: &Pool) -> Self {
        let (geometry, traits) = (media.geometry(), media.traits());
        Self {
            geometry,
            traits,
            dram: Dram::new(geometry, config.frames_max, pool.clone()),
            recovery_frames: FramePool::new(pool.clone(), RECOVERY_FRAMES),
            blocks: Blocks::new(geometry),
            log: Log::new(traits.guard_pages, traits.addressable),
            index: CompositeIndex::default(),
            hasher: KeyHasher::new(config.hash_seed, config.hash_bits),
            expiry: ExpiryQueue::default(),
            namespaces: [NamespaceState::default(); SPACES],
            table: Table::default(),
            reads: Reads::default(),
            commit: Commit::new(Sequence(0), Sequence(0), 0),
            collector: Collector::new(config.victim),
            stats: DeviceStats::default(),
            wall_ms: 0,
            last_removal: Sequence(0),
            last_joint_removal: Sequence(0),
            ready_wanted: 0,
            chain_reserve: 0,
            set_aside: 0,
            failed: None,
            checkpoint_done: 0,
            ahead: Cell::new(Ahead::NOTHING),
            done: Vec::new(),
            media,
        }
    }

    /// The bytes of a page (data, then spare) if the CPU can reach them now.
    #[inline]
    pub(crate) fn page(&self, page: PageAddress) -> Option<&[u8]> {
        let open = self.log.peek(page);
        if self.traits.addressable {
            // Device DRAM holds pages of such a medium only where it has none to show.
            return open.or_else(|| self.media.view(page)).or_else(|| self.dram.peek(page));
        }
        open.or_else(|| self.dram.peek(page))
    }

    /// The last sequence given out.
    pub(crate) fn applied(&self) -> Sequence {
        Sequence(self.log.sequence_next().0 - 1)
    }

    /// Blocks that only the collector may open.
    pub(crate) fn reserve_blocks(&self) -> usize {
        RESERVE_BLOCKS + self.chain_reserve
    }

    /// Collection starts when fewer blocks than this are free.
    pub(crate) fn low_blocks(&self) -> usize {
        LOW_BLOCKS + self.chain_reserve
    }

    /// A record of so many bytes is on the medium: the collector must be able to move it whole, whatever else is full.
    pub(crate) fn reserve_for(&mut self, bytes: usize) {
        self.chain_reserve = self.chain_reserve.max(chain_reserve(bytes));
    }

    /// Bytes of live records that the medium may hold: all of it but the reserve, room for two checkpoints of the
    /// index, quarantined blocks, and one part in 32 that collection needs to breathe. A record of `bytes` may come.
    pub(crate) fn capacity_with(&self, bytes: usize) -> u64 {
        let checkpoints = (2 * self.index.len() * crate::index::hashed::ENTRY_BYTES as u64)
            .div_ceil(BLOCK_DATA_BYTES as u64);
        let reserve = LOW_BLOCKS + 2 + self.chain_reserve.max(chain_reserve(bytes));
        let set_aside = reserve as u64 + self.stats.quarantined + checkpoints;
        let blocks = u64::from(self.geometry.blocks).saturating_sub(set_aside);
        blocks * BLOCK_DATA_BYTES as u64 / 32 * 31
    }

    /// Changes what is counted of a namespace.
    pub(crate) fn count(&mut self, namespace: NamespaceId, change: impl FnOnce(&mut NamespaceState)) {
        let state = &mut self.namespaces[namespace.index()];
        let was_empty = state.keys == 0;
        change(state);
        if was_empty != (state.keys == 0) {
            self.table.turned(namespace);
        }
    }

    /// Whether the records of a key space may grow by `more` bytes and shrink by `less`, its quota being what it is.
    pub(crate) fn has_quota(&self, namespace: NamespaceId, more: usize, less: usize) -> bool {
        match self.table.get(namespace) {
            Slot::Made(made) if made.size > 0 && made.kind == NamespaceKind::Kv => {
                let bytes = self.namespaces[namespace.index()].bytes;
                more <= less || bytes + more as u64 <= made.size + less as u64
            }
            _ => true,
        }
    }

    /// Runs everything between memory and media as far as it goes: filled pages, reads, erases, commits. Returns whether
    /// anything moved; waiters of pages that came are appended to `awake`.
    pub(crate) fn pump(&mut self, now: Nanos, awake: &mut Vec<Waiter>) -> bool {
        let mut moved = self.reap(now, awake);
        moved |= self.log.submit(&mut self.media, &mut self.dram, now);
        moved |= self.reads.submit(&mut self.media, &mut self.dram, now);
        moved |= self.prepare_blocks(now);
        moved |= self.advance_commit(now);
        moved
    }

    fn reap(&mut self, now: Nanos, awake: &mut Vec<Waiter>) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.media.poll(now, &mut done);
        let moved = !done.is_empty();
        for answer in done.drain(..) {
            let token = answer.token;
            if let Some(page) = read_page(token) {
                awake.extend(self.reads.done(page, answer, &mut self.dram, &self.blocks));
                continue;
            }
            if let Err(error) = answer.result {
                self.failed.get_or_insert(error);
            }
            if let Some(id) = program_id(token) {
                self.log.programmed(id, answer.frame, &mut self.dram);
            } else if token == FLUSH_TOKEN {
                self.flushed();
            } else if is_checkpoint(token) {
                self.checkpoint_done += 1;
                if let Some(frame) = answer.frame {
                    self.dram.put_back(frame);
                }
            } else {
                self.erase_done(token);
            }
        }
        self.done = done;
        moved
    }

    fn erase_done(&mut self, token: MediaToken) {
        let block = BlockId(u32::try_from(token.0 & (ERASE_TOKENS / 3 - 1)).unwrap_or(u32::MAX));
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
        let token = MediaToken(ERASE_TOKENS | u64::from(block.0));
        self.media.submit(token, MediaOp::Erase { block }, now).is_ok()
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
                let accepted = self.media.submit(FLUSH_TOKEN, MediaOp::Flush, now).is_ok();
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

    /// What it hashed with, what it found, and the medium. The rest is given back.
    pub(crate) fn into_parts(self) -> (KeyHasher, CompositeIndex, M) {
        (self.hasher, self.index, self.media)
    }

    /// Seals the log. The guard pages need frames; without them the commit waits.
    fn begin_commit(&mut self, now: Nanos) -> bool {
        if !self.dram.secure(2 + usize::from(self.traits.guard_pages)) {
            return false;
        }
        let sequence = self.applied();
        let barrier = self.log.seal(&mut self.dram, &mut self.blocks);
        let order = self.log.begun_order(&self.blocks);
        let stamp = self.log.durable_stamp();
        self.commit.begin(Target { sequence, barrier, order, stamp });
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

    fn end_commit(&mut self, target: Target) {
        self.commit.finish(target);
        if !self.collector.holds_stamp() {
            self.log.stamp_durable(self.commit.durable, self.commit.durable_order);
        }
    }

    /// Whether an append of this many bytes can happen now, for a client or for the collector.
    pub(crate) fn room(&mut self, bytes: usize, reserve: usize) -> Result<(), Stall> {
        let blocks = self.log.blocks_for(bytes);
        let frames = self.log.frames_for(bytes) + usize::from(self.traits.guard_pages);
        if (blocks > 0 && self.blocks.ready() < blocks + reserve) || !self.dram.secure(frames) {
            return Err(Stall::Room { blocks });
        }
        Ok(())
    }

    /// Bytes of pages programmed so far, data part.
    pub(crate) fn programmed_bytes(&self) -> u64 {
        self.log.programmed_pages() * PAGE_DATA_BYTES as u64
    }
}

/// Blocks that moving a record of so many bytes may open, beyond the usual reserve.
const fn chain_reserve(bytes: usize) -> usize {
    (bytes.div_ceil(BLOCK_DATA_BYTES) + 2).saturating_sub(RESERVE_BLOCKS)
}

const _: () =
    assert!(chain_reserve(BLOCK_DATA_BYTES) == 0, "records of one block need nothing beyond the usual");
