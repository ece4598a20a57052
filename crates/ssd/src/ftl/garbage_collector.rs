//! Collection: live records are moved out of a block so that it can be erased (UIO paper section 3.4.3, last
//! paragraph).
//!
//! Input: a victim, chosen by policy. Output: its live records and needed tombstones at the write frontier of the log,
//! and the block queued for an erase, which happens only once the moved records are durable. Invariant: a record is
//! moved only if the index names exactly its address at that moment (compare and swap); a tombstone is dropped only if
//! no block is left that was opened before it was written.

mod victim_cursor;

use super::evacuated_blocks::EvacuatedBlocks;
use super::space_reserve::surplus_blocks;
use super::victim_pages::VictimPages;
use super::{Ftl, RecordPieces, StallReason};
use crate::config::VictimPolicy;
use crate::index::{EntryLifetime, IndexEntry, RecordIndex};
use crate::log::blocks::BlockState;
use crate::log::flash_log::{CHECKED_PIECES_MAX, CheckedMove};
use crate::log::page::NO_RECORD;
use crate::log::record::{FLAGS_BATCH, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::log::{ChecksumMode, RecordSource};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use std::collections::BTreeSet;
pub(super) use victim_cursor::VictimCursor;

/// Free blocks above the low mark at which collection stops.
const STOP_ABOVE_LOW: usize = 1;
/// Records processed before other work gets a turn.
const RECORDS_PER_TURN: usize = 256;

/// The victims since clients made garbage. When every block was one, another round would free nothing either, and a
/// collector that cannot free as much as it should would never end.
#[derive(Clone, Copy, Debug, Default)]
struct CollectionRound {
    victims: usize,
    /// Bytes of the log that clients wrote since its start: at least a page a record, because each may be the last one of a
    /// commit.
    client_bytes: u64,
    /// Bytes that were live at its start.
    live_bytes: u64,
}

impl CollectionRound {
    /// Returns true if a block may be collected. A block of garbage begins another round.
    fn may_go_on(&mut self, blocks: usize, live_bytes: u64) -> bool {
        let made = self.client_bytes + self.live_bytes.saturating_sub(live_bytes);
        if made >= BLOCK_DATA_BYTES as u64 {
            *self = Self { victims: 0, client_bytes: 0, live_bytes };
        }
        self.victims < 2 * blocks
    }
}

/// The collector's state.
#[derive(Debug)]
pub(super) struct GarbageCollector {
    policy: VictimPolicy,
    pub(super) victim: Option<VictimCursor>,
    pub(super) evacuated: EvacuatedBlocks,
    /// Set when a checkpoint would let more blocks be collected.
    pub(super) wants_checkpoint: bool,
    /// Free blocks that a waiter needs beyond the usual number.
    requested_blocks: usize,
    round: CollectionRound,
    /// True while blocks of version 1 are collected whatever they hold.
    pub(super) rewrites_version_1: bool,
    pub(super) pages: VictimPages,
    /// The blocks that are quarantined.
    pub(super) quarantined: Vec<BlockId>,
}

impl GarbageCollector {
    pub(super) fn new(policy: VictimPolicy) -> Self {
        Self {
            policy,
            victim: None,
            evacuated: EvacuatedBlocks::default(),
            wants_checkpoint: false,
            requested_blocks: 0,
            round: CollectionRound::default(),
            rewrites_version_1: false,
            pages: VictimPages::default(),
            quarantined: Vec::new(),
        }
    }

    /// Notes a record that a client wrote.
    pub(super) fn note_client_record(&mut self, bytes: usize) {
        self.round.client_bytes += bytes.max(PAGE_DATA_BYTES) as u64;
    }

    /// Takes the pages that need not be read: their loss was accepted.
    pub(super) fn pass_over(&mut self, pages: BTreeSet<PageAddress>) {
        self.pages.pass_over(pages);
    }

    /// Requests a checkpoint, behind whose start more blocks can be collected.
    pub(super) fn request_checkpoint(&mut self) {
        self.wants_checkpoint = true;
    }

    /// Raises the number of free blocks requested. Returns true if it grew.
    pub(super) fn request_blocks(&mut self, blocks: usize) -> bool {
        let more = blocks > self.requested_blocks;
        self.requested_blocks = self.requested_blocks.max(blocks);
        more
    }

    /// Clears the request for free blocks.
    pub(super) fn clear_requested_blocks(&mut self) {
        self.requested_blocks = 0;
    }
}

/// The result for one record of a victim.
enum MoveOutcome {
    /// It was not needed, or it was moved to the write frontier.
    Done,
    /// Its bytes fail their checksum.
    Damaged,
}

impl<M: Media> Ftl<M> {
    /// Returns the blocks that are free or will be free when collections and erases under way are done.
    fn expected_free_blocks(&self) -> usize {
        let (snapshot, held) = (&self.snapshot, &self.held_values);
        let keeps = |block, order| snapshot.keeps(block, order) || held.keeps(block);
        let reusable = self.collector.evacuated.reusable(self.reusable_below(), keeps);
        self.blocks().free_count() + self.blocks().erasing_count() + reusable
    }

    /// Returns the number of free blocks that are needed now, with those that waiters asked for.
    pub(super) fn needed_blocks(&self) -> usize {
        self.space.low_blocks() + self.checkpoint_reserve() + self.collector.requested_blocks
    }

    /// Returns the number of free blocks below which collection starts.
    fn wanted_blocks(&self) -> usize {
        let blocks = self.blocks();
        self.needed_blocks() + surplus_blocks(blocks.len(), blocks.live_bytes())
    }

    /// Runs one turn of collection if it is needed. Returns true if anything moved, and requests pages through
    /// [`StallReason`].
    pub(crate) fn collect(&mut self, now: Nanos) -> Result<bool, StallReason> {
        if self.collector.pages.must_wait(now) || self.failure().is_some() || self.is_read_only() {
            return Ok(false);
        }
        if self.collector.victim.is_none() && !self.choose_victim() {
            return Ok(false);
        }
        for _ in 0..RECORDS_PER_TURN {
            match self.collect_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(StallReason::Unreadable(_)) => {
                    self.set_victim_aside();
                    break;
                }
                Err(stall) => {
                    if let StallReason::Pages(pages) = &stall {
                        self.collector.pages.wait(pages.len());
                    }
                    return Err(stall);
                }
            }
        }
        Ok(true)
    }

    fn choose_victim(&mut self) -> bool {
        let victim = self.next_victim();
        self.collector.victim = victim.map(VictimCursor::new);
        victim.is_some()
    }

    fn next_victim(&mut self) -> Option<BlockId> {
        if self.collector.rewrites_version_1
            && let Some(block) = self.next_version_1_victim()
        {
            return Some(block);
        }
        let in_sight = self.expected_free_blocks();
        let high = self.wanted_blocks() + STOP_ABOVE_LOW;
        if in_sight >= high {
            // Blocks not free yet may wait for a flush: a demand dropped too early would be requested again and again.
            if self.blocks().free_count() >= self.needed_blocks() + STOP_ABOVE_LOW {
                self.collector.requested_blocks = 0;
            }
            return None;
        }
        self.release_quarantined();
        // Under greedy, tombstones accumulate that only the erase of the oldest block makes droppable: collect it
        // first.
        let is_oldest_first = self.has_excess_tombstones() || self.has_excess_quarantined();
        let policy = if is_oldest_first { VictimPolicy::Fifo } else { self.collector.policy };
        let (blocks, live_bytes) = (self.blocks().len(), self.blocks().live_bytes());
        if !self.collector.round.may_go_on(blocks, live_bytes) {
            return None;
        }
        let victim = self.blocks().victim(policy, self.commit.witnessed().tick, self.reusable_below());
        let hopeless = |block: &BlockId| {
            policy == VictimPolicy::Greedy && self.blocks().cost(*block) as usize > BLOCK_DATA_BYTES / 64 * 63
        };
        let victim = victim.filter(|block| !hopeless(block));
        match victim {
            Some(_) => self.collector.round.victims += 1,
            None if self.request_victims() => {}
            // For more free blocks than are needed no reader loses its value.
            None if in_sight <= self.needed_blocks() => _ = self.give_up_longest_held(),
            None => {}
        }
        victim
    }

    fn has_excess_tombstones(&self) -> bool {
        self.blocks().tombstone_bytes() > self.geometry().data_bytes() / 16
    }

    /// Processes the next record of the victim. Returns false when there is none, or the victim is finished.
    fn collect_next(&mut self) -> Result<bool, StallReason> {
        let Some(mut victim) = self.collector.victim.take() else {
            return Ok(false);
        };
        let (block, pages) = (victim.block, usize::from(self.blocks().get(victim.block).pages));
        let is_left = victim.find_page(pages, |page| self.blocks().needs_page(block, page));
        // Where nothing in it, or in the rest of it, is needed, its pages are not read.
        let is_garbage = self.is_garbage(&victim);
        if is_garbage && !self.collector.pages.is_quiet() {
            self.collector.pages.wait(0);
            self.collector.victim = Some(victim);
            return Ok(false);
        }
        if is_garbage || !is_left {
            self.finish_victim(block);
            return Ok(false);
        }
        let result = self.collect_record(&mut victim);
        self.collector.victim = Some(victim);
        result.map(|()| true)
    }

    /// Processes the record at the cursor, which moves to the next one.
    fn collect_record(&mut self, victim: &mut VictimCursor) -> Result<(), StallReason> {
        self.check_victim_pages(victim)?;
        if victim.takes_prefetch() {
            self.prefetch_pages(victim.block, victim.page);
        }
        let page = page_of(victim.block, victim.page);
        if self.collector.pages.has_failed(page) && !self.collector.pages.is_passed_over(page) {
            return Err(StallReason::Unreadable(page));
        }
        let order = self.blocks().get(victim.block).order;
        let Some(spare) =
            self.page(page).and_then(|bytes| self.flash.record_page(bytes, page)).filter(|spare| {
                // A page of the block's earlier use may remain after an erase.
                spare.order == order
            })
        else {
            victim.end_page();
            return Ok(());
        };
        if victim.page == 0 && !victim.continued_done {
            if spare.continues != 0
                && self.blocks().chain_reaches(RecordAddress(spare.continues - 1).block(), victim.block)
            {
                self.move_record(RecordAddress(spare.continues - 1))?;
            }
            victim.continued_done = true;
        }
        if spare.first == NO_RECORD {
            victim.end_page();
            return Ok(());
        }
        let offset = victim.offset.max(victim.page * PAGE_DATA_BYTES + usize::from(spare.first));
        let address = RecordAddress::in_block(victim.block, offset);
        let next =
            self.move_record(address)?.unwrap_or((victim.page + 1) * PAGE_DATA_BYTES - offset) + offset;
        if next >= victim.page * PAGE_DATA_BYTES + usize::from(spare.used) {
            victim.end_page();
        } else {
            victim.offset = next;
        }
        Ok(())
    }

    /// Returns true if the rest of a victim holds nothing that is needed, as far as that is known without a long look:
    /// tombstones are looked at once a page.
    fn is_garbage(&self, victim: &VictimCursor) -> bool {
        let entry = self.blocks().get(victim.block);
        let has_tombstones =
            || entry.tombstone_bytes > 0 && (victim.offset > 0 || self.blocks().cost(victim.block) > 0);
        entry.live_bytes == 0 && !has_tombstones()
    }

    /// Returns a stall if the next page is not cached: with every page that is not cached, and is needed, or is left.
    fn check_victim_pages(&self, victim: &VictimCursor) -> Result<(), StallReason> {
        let (blocks, block) = (self.blocks(), victim.block);
        let is_here = |page| self.page(page).is_some() || self.collector.pages.has_failed(page);
        if is_here(page_of(block, victim.page)) {
            return Ok(());
        }
        let is_wanted = |page| match victim.is_in_needed_pages() {
            true => blocks.needs_page(block, page),
            false => !victim.is_done(page),
        };
        let wanted = (victim.page..usize::from(blocks.get(block).pages)).filter(|page| is_wanted(*page));
        let missing = wanted.map(|page| page_of(block, page)).filter(|page| !is_here(*page));
        Err(StallReason::Pages(missing.collect()))
    }

    /// Moves the record at an address if it must be kept. Returns the record's length in bytes, or `None` if no
    /// readable record is there.
    fn move_record(&mut self, address: RecordAddress) -> Result<Option<usize>, StallReason> {
        let failed = std::mem::take(&mut self.collector.pages.failed);
        self.set_failed_pages(&failed);
        self.collector.pages.failed = failed;
        let moved = self.move_readable_record(address);
        self.clear_failed_pages();
        match moved {
            Err(StallReason::Unreadable(page)) if self.collector.pages.is_passed_over(page) => {
                self.stats.damaged += 1;
                Ok(None)
            }
            moved => moved,
        }
    }

    fn move_readable_record(&mut self, address: RecordAddress) -> Result<Option<usize>, StallReason> {
        let probe = IndexEntry::probe(address);
        let Some(header) = self.header(probe, super::RecordPart::Key)? else {
            return Ok(None);
        };
        let has_extents = header.extents > 0;
        let entry = IndexEntry { units: header.units(), namespace: header.namespace, has_extents, ..probe };
        let bytes = entry.units as usize * UNIT_BYTES;
        if self.blocks().get(address.block()).has_damage && !self.is_intact(entry, &header)? {
            // Recovery stopped here too: it used no record after a damaged one of the same page.
            return Ok(None);
        }
        let moved = if header.is_tombstone() || header.is_clear() {
            self.move_tombstone(entry, &header)?
        } else {
            self.move_live(entry, &header)?
        };
        Ok(match moved {
            MoveOutcome::Done => Some(bytes),
            MoveOutcome::Damaged => {
                self.stats.damaged += 1;
                None
            }
        })
    }

    fn move_tombstone(
        &mut self,
        entry: IndexEntry,
        header: &RecordHeader,
    ) -> Result<MoveOutcome, StallReason> {
        let needed =
            header.sequence >= self.blocks().watermark() && !self.is_version_1(entry.address.block());
        if !needed || mutant(Mutant::TombstoneDropped) {
            // A damaged header may name any length.
            if self.is_intact(entry, header) == Ok(true) {
                self.flash.blocks_mut().remove_tombstone(entry.address, entry.units);
            }
            return Ok(MoveOutcome::Done);
        }
        let Some(address) = self.append_intact(entry, header)? else {
            return Ok(MoveOutcome::Damaged);
        };
        self.flash.blocks_mut().remove_tombstone(entry.address, entry.units);
        self.flash.blocks_mut().add_tombstone(address, entry.units, header.sequence);
        Ok(MoveOutcome::Done)
    }

    fn move_live(&mut self, entry: IndexEntry, header: &RecordHeader) -> Result<MoveOutcome, StallReason> {
        let hash = self.index_key(entry, header)?;
        let is_live = self.index().contains(hash, entry.address) || mutant(Mutant::DeadRecordMoved);
        if !is_live || self.retire_cleared(hash, entry, header) {
            return Ok(MoveOutcome::Done);
        }
        let Some(address) = self.append_intact(entry, header)? else {
            return Ok(MoveOutcome::Damaged);
        };
        let lifetime = if header.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
        let moved = IndexEntry { address, lifetime, ..entry };
        self.catalog.relocate(hash, entry.address, moved, header.expiry_ms);
        self.flash.blocks_mut().remove_live(entry.address, entry.units);
        self.flash.blocks_mut().add_live(address, entry.units);
        if entry.has_extents {
            self.extents.relocate(entry.address, address);
        }
        Ok(MoveOutcome::Done)
    }

    /// Copies a record to the write frontier; `None` if its bytes fail its checksum. It keeps its sequence, but loses its batch
    /// flags, because the rest of the complete batch may be collected before it.
    fn append_intact(
        &mut self,
        entry: IndexEntry,
        header: &RecordHeader,
    ) -> Result<Option<RecordAddress>, StallReason> {
        let bytes = entry.units as usize * UNIT_BYTES;
        let flags = header.flags & !FLAGS_BATCH;
        let expiry_ms = if mutant(Mutant::ExpiryLostByMove) { 0 } else { header.expiry_ms };
        let kept = RecordHeader { flags, expiry_ms, ..*header };
        let moved =
            if kept == *header { self.append_checked(entry, header) } else { CheckedMove::Unsuitable };
        let address = match moved {
            CheckedMove::Moved(address) => address,
            CheckedMove::Damaged => return Ok(None),
            CheckedMove::Unsuitable if !self.is_intact(entry, header)? => return Ok(None),
            CheckedMove::Unsuitable => {
                // Only now: a damaged header may name any length.
                self.check_room(bytes)?;
                let checksum = if kept == *header { ChecksumMode::Keep } else { ChecksumMode::Compute };
                self.append_proven(entry, &kept, checksum)?
            }
        };
        self.stats.moved_bytes += bytes as u64;
        Ok(Some(address))
    }

    /// Copies a record that is proven while it is copied. One without room is proven first.
    fn append_checked(&mut self, entry: IndexEntry, header: &RecordHeader) -> CheckedMove {
        let mut pieces = RecordPieces::new(self, entry.address, 4, header.payload_end() - 4);
        let spans: [_; CHECKED_PIECES_MAX] = std::array::from_fn(|_| pieces.next_span());
        let is_long = pieces.next_span().is_some();
        if is_long || self.check_room(entry.units as usize * UNIT_BYTES).is_err() {
            return CheckedMove::Unsuitable;
        }
        self.flash.append_checked(header, &spans)
    }

    /// Copies a record that was proven.
    fn append_proven(
        &mut self,
        entry: IndexEntry,
        header: &RecordHeader,
        checksum: ChecksumMode,
    ) -> Result<RecordAddress, StallReason> {
        let payload_bytes = header.payload_end() - HEADER_BYTES;
        let mut payload = Vec::with_capacity(payload_bytes);
        for piece in RecordPieces::new(self, entry.address, HEADER_BYTES, payload_bytes) {
            payload.extend_from_slice(piece.map_err(|page| StallReason::Pages(vec![page]))?);
        }
        let payload = [RecordSource::Bytes(&payload)];
        Ok(self.flash.append_copy(header, checksum, &payload))
    }

    fn finish_victim(&mut self, block: BlockId) {
        self.collector.victim = None;
        if self.blocks().get(block).live_bytes > 0 {
            // A live record could not be read: the block stays, so that the damage stays visible.
            self.quarantine(block);
            return;
        }
        self.release_victim_pages();
        assert_eq!(self.blocks().get(block).state, BlockState::Closed, "{block} was collected while open");
        self.evacuate(block);
        self.stats.collected += 1;
    }

    /// Ends with a block of which nothing is needed: it may be erased once everything that was appended so far is durable.
    pub(super) fn evacuate(&mut self, block: BlockId) {
        self.flash.blocks_mut().mark_evacuated(block);
        self.flash.drop_evacuated(block);
        let order = self.blocks().get(block).order;
        // No commit for each block: it would waste the rest of its last page and a guard.
        let barrier = self.flash.log().barrier();
        self.collector.evacuated.add(block, order, barrier);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) const fn page_of(block: BlockId, page: usize) -> PageAddress {
    PageAddress::new(block, page as u8)
}
