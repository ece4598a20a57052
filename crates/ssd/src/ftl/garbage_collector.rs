//! Collection: live records are moved out of a block so that it can be erased (UIO paper section 3.4.3, last
//! paragraph).
//!
//! Input: a victim, chosen by policy. Output: its live records and needed tombstones at the write frontier of the log,
//! and the block queued for an erase, which happens only once the moved records are durable. Invariant: a record is
//! moved only if the index names exactly its address at that moment (compare and swap); a tombstone is dropped only if
//! no block is left that was opened before it was written.

use super::incomplete_batches::IncompleteBatches;
use super::prefetch::PREFETCH_PAGES;
use super::victim_pages::VictimPages;
use super::{Ftl, RecordPieces, StallReason};
use crate::config::{FailedOperation, VictimPolicy};
use crate::index::{EntryLifetime, IndexEntry, RecordIndex};
use crate::log::blocks::BlockState;
use crate::log::flash_log::DIRECT_PIECES_MAX;
use crate::log::page::{NO_RECORD, PageKind, PageSpare};
use crate::log::record::{
    FLAG_TOMBSTONE, FLAGS_BATCH, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES,
};
use crate::log::{ChecksumMode, RecordSource};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, MediaError};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// Free blocks above the low mark at which collection stops.
const STOP_ABOVE_LOW: usize = 1;
/// Records processed before other work gets a turn.
const RECORDS_PER_TURN: usize = 256;

/// A block being collected, and the position reached in it.
#[derive(Clone, Copy, Debug)]
struct VictimCursor {
    block: BlockId,
    page: usize,
    offset: usize,
    continued_done: bool,
}

/// The collector's state.
#[derive(Debug)]
pub(super) struct GarbageCollector {
    policy: VictimPolicy,
    victim: Option<VictimCursor>,
    /// Evacuated blocks, each with the barrier that must be durable before its erase.
    evacuated: VecDeque<(BlockId, u64)>,
    /// Blocks that recovery leaves to collect first.
    incomplete: IncompleteBatches,
    cleaning: bool,
    /// True until the first page of this epoch is durable; no block is collected before.
    on_hold: bool,
    /// Free blocks that a waiter needs beyond the usual number.
    requested_blocks: usize,
    pub(super) pages: VictimPages,
}

impl GarbageCollector {
    pub(super) fn new(policy: VictimPolicy) -> Self {
        Self {
            policy,
            victim: None,
            evacuated: VecDeque::new(),
            incomplete: IncompleteBatches::default(),
            cleaning: false,
            on_hold: false,
            requested_blocks: 0,
            pages: VictimPages::default(),
        }
    }

    /// Returns the next evacuated block whose moved records are durable.
    pub(super) fn next_erase(&self, durable_barrier: u64) -> Option<BlockId> {
        self.evacuated.front().filter(|(_, barrier)| *barrier <= durable_barrier).map(|(block, _)| *block)
    }

    pub(super) fn erase_accepted(&mut self) {
        self.evacuated.pop_front();
    }

    /// Ends the clean-up if all of its blocks were collected; every erase so far is durable.
    pub(super) fn finish_clean_up(&mut self) {
        if self.incomplete.blocks.is_empty() && self.victim.is_none() && self.evacuated.is_empty() {
            self.incomplete = IncompleteBatches::default();
            self.cleaning = false;
        }
    }

    /// Returns true while discarded records are on the medium: no page may claim that their sequences are durable.
    pub(super) fn blocks_stamp(&self) -> bool {
        self.cleaning
    }

    /// Takes what recovery left to collect first.
    pub(super) fn start_clean_up(&mut self, mut incomplete: IncompleteBatches) {
        self.pages.pass_over(std::mem::take(&mut incomplete.unreadable_pages));
        self.cleaning = !incomplete.blocks.is_empty();
        self.incomplete = incomplete;
        self.on_hold = true;
    }

    /// Permits collection, now that the first page of this epoch is durable.
    pub(super) fn release_hold(&mut self) {
        self.on_hold = false;
    }

    /// Returns true until the incomplete batches that recovery found are erased.
    pub(super) fn is_cleaning_up(&self) -> bool {
        self.cleaning
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
    /// Permits collection, now that the first page of this epoch is durable.
    pub(crate) fn permit_collection(&mut self) {
        self.collector.release_hold();
    }

    /// Returns true until the incomplete batches that recovery found are erased.
    pub(crate) fn is_cleaning_up(&self) -> bool {
        self.collector.is_cleaning_up()
    }

    /// Returns the blocks that are free or will be free when collections and erases under way are done.
    fn expected_free_blocks(&self) -> usize {
        self.blocks().free_count() + self.blocks().erasing_count() + self.collector.evacuated.len()
    }

    /// Runs one turn of collection if it is needed. Returns true if anything moved, and requests pages through
    /// [`StallReason`].
    pub(crate) fn collect(&mut self, now: Nanos) -> Result<bool, StallReason> {
        let on_hold = self.collector.on_hold && !mutant(Mutant::HoldIgnored);
        if self.collector.pages.must_wait(now) || on_hold || self.failure().is_some() {
            return Ok(false);
        }
        if self.collector.victim.is_none() && !self.choose_victim() {
            return Ok(false);
        }
        for _ in 0..RECORDS_PER_TURN {
            match self.collect_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(StallReason::Unreadable(page)) => {
                    self.set_victim_aside(page);
                    break;
                }
                Err(stall) => {
                    if let StallReason::Pages(_) = stall {
                        self.collector.pages.wait();
                    }
                    return Err(stall);
                }
            }
        }
        Ok(true)
    }

    fn choose_victim(&mut self) -> bool {
        let victim = match self.collector.incomplete.blocks.pop_first() {
            Some(block) => Some(block),
            None => self.next_victim(),
        };
        self.collector.victim =
            victim.map(|block| VictimCursor { block, page: 0, offset: 0, continued_done: false });
        victim.is_some()
    }

    fn next_victim(&mut self) -> Option<BlockId> {
        let in_sight = self.expected_free_blocks();
        let high = self.space.low_blocks() + STOP_ABOVE_LOW + self.collector.requested_blocks;
        if in_sight >= high {
            // Blocks not free yet may wait for a flush: a demand dropped too early would be requested again and again.
            if self.blocks().free_count() >= high {
                self.collector.requested_blocks = 0;
            }
            return None;
        }
        // Under greedy, tombstones accumulate that only the erase of the oldest block makes droppable: collect it
        // first.
        let policy = if self.has_excess_tombstones() { VictimPolicy::Fifo } else { self.collector.policy };
        let victim = self.blocks().victim(policy, self.commit.durable_stamp());
        let hopeless = |block: &BlockId| {
            policy == VictimPolicy::Greedy && self.blocks().cost(*block) as usize > BLOCK_DATA_BYTES / 64 * 63
        };
        let victim = victim.filter(|block| !hopeless(block));
        if victim.is_none() {
            // No block is eligible until a durable page carries a later durable stamp.
            self.request_stamp();
        }
        victim
    }

    /// Returns true if blocks of unknown contents must be erased now: while one is left, no tombstone can be dropped.
    /// With enough free blocks the tombstones do no harm, and the erases are saved.
    pub(super) fn wants_all_erased(&self) -> bool {
        let short = self.expected_free_blocks()
            <= self.space.low_blocks() + STOP_ABOVE_LOW + self.collector.requested_blocks;
        self.blocks().has_unknown() && (short || self.has_excess_tombstones())
    }

    fn has_excess_tombstones(&self) -> bool {
        self.blocks().tombstone_bytes() > self.geometry().data_bytes() / 16
    }

    /// Makes the next commit program a page with the current durable stamp.
    fn request_stamp(&mut self) {
        let applied = self.last_sequence();
        let (stamped, stamped_order) = self.commit.durable_stamp();
        if (stamped < applied || stamped_order < self.flash.begun_order()) && self.commit.is_idle() {
            if self.durable() < applied {
                self.commit.request_sequence(applied);
            } else {
                self.request_stamp_page();
            }
        }
    }

    /// Processes the next record of the victim. Returns false when the victim is finished.
    fn collect_next(&mut self) -> Result<bool, StallReason> {
        let Some(mut victim) = self.collector.victim else {
            return Ok(false);
        };
        if let Some(hidden) = self.collector.incomplete.unlisted_in(victim.block) {
            self.move_record(hidden)?;
            self.collector.incomplete.unlisted_records.remove(&(victim.block, hidden));
            return Ok(true);
        }
        self.check_victim_pages(victim.block, victim.page)?;
        if victim.offset == 0 && victim.page.is_multiple_of(PREFETCH_PAGES) {
            self.prefetch_pages(victim.block, victim.page);
        }
        if victim.page >= usize::from(self.blocks().get(victim.block).pages) {
            self.finish_victim(victim.block);
            return Ok(false);
        }
        let page = page_of(victim.block, victim.page);
        if self.collector.pages.has_failed(page) && !self.collector.pages.is_passed_over(page) {
            return Err(StallReason::Unreadable(page));
        }
        let spare = self.page(page).and_then(|bytes| PageSpare::decode(bytes, page.page));
        // A page of the block's earlier use may remain after an erase that a power cut interrupted.
        let order = self.blocks().get(victim.block).order;
        let Some(spare) = spare.filter(|spare| spare.kind == PageKind::Log && spare.order == order) else {
            self.collector.victim = Some(VictimCursor { page: victim.page + 1, offset: 0, ..victim });
            return Ok(true);
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
            self.collector.victim = Some(VictimCursor { page: victim.page + 1, offset: 0, ..victim });
            return Ok(true);
        }
        let offset = victim.offset.max(victim.page * PAGE_DATA_BYTES + usize::from(spare.first));
        let address = RecordAddress::in_block(victim.block, offset);
        let next =
            self.move_record(address)?.unwrap_or((victim.page + 1) * PAGE_DATA_BYTES - offset) + offset;
        let page_end = victim.page * PAGE_DATA_BYTES + usize::from(spare.used);
        if next >= page_end {
            victim.page += 1;
            victim.offset = 0;
        } else {
            victim.offset = next;
        }
        self.collector.victim = Some(victim);
        Ok(true)
    }

    /// Returns a stall with every uncached page of the victim if the next page is not cached.
    fn check_victim_pages(&self, block: BlockId, from: usize) -> Result<(), StallReason> {
        let pages = usize::from(self.blocks().get(block).pages);
        let is_here = |page| self.page(page).is_some() || self.collector.pages.has_failed(page);
        if from >= pages || is_here(page_of(block, from)) {
            return Ok(());
        }
        let missing = (from..pages).map(|page| page_of(block, page)).filter(|page| !is_here(*page));
        Err(StallReason::Pages(missing.collect()))
    }

    /// Moves the record at an address if it must be kept. Returns the record's length in bytes, or `None` if no
    /// readable record is there.
    fn move_record(&mut self, address: RecordAddress) -> Result<Option<usize>, StallReason> {
        let mut failed = std::mem::take(&mut self.collector.pages.failed);
        let moved = self.with_failed_pages(&mut failed, |ftl| ftl.move_readable_record(address));
        self.collector.pages.failed = failed;
        match moved {
            Err(StallReason::Unreadable(page)) if self.collector.pages.is_passed_over(page) => {
                self.stats.damaged += 1;
                Ok(None)
            }
            moved => moved,
        }
    }

    fn move_readable_record(&mut self, address: RecordAddress) -> Result<Option<usize>, StallReason> {
        let probe = IndexEntry {
            address,
            units: 3,
            namespace: crate::command::NamespaceId::FIRST,
            lifetime: EntryLifetime::Unlimited,
        };
        let Some(header) = self.header(probe, super::RecordPart::Key)? else {
            return Ok(None);
        };
        let entry = IndexEntry { units: header.units(), namespace: header.namespace, ..probe };
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
            MoveOutcome::Done => {
                self.collector.incomplete.settle(address, header.sequence);
                Some(bytes)
            }
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
        let incomplete = &self.collector.incomplete;
        let discarded = incomplete.discarded.contains(&header.sequence);
        let counted = incomplete.is_counted(entry.address, header.sequence);
        let needed = (counted || header.sequence >= self.blocks().watermark())
            && (!discarded || mutant(Mutant::DiscardedTombstoneMoved));
        if !needed || mutant(Mutant::TombstoneDropped) {
            return Ok(MoveOutcome::Done);
        }
        if !self.is_intact(entry, header)? {
            return Ok(MoveOutcome::Damaged);
        }
        let address = self.append_moved(entry, header)?;
        self.flash.blocks_mut().remove_tombstone(entry.address, entry.units);
        self.flash.blocks_mut().add_tombstone(address, entry.units, header.sequence);
        Ok(MoveOutcome::Done)
    }

    fn move_live(&mut self, entry: IndexEntry, header: &RecordHeader) -> Result<MoveOutcome, StallReason> {
        let hash = self.index_key(entry, header)?;
        if !self.index().contains(hash, entry.address) && !mutant(Mutant::DeadRecordMoved) {
            return self.replace_by_tombstone(entry, header);
        }
        if !self.is_intact(entry, header)? {
            return Ok(MoveOutcome::Damaged);
        }
        let address = self.append_moved(entry, header)?;
        let lifetime = if header.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
        let moved = IndexEntry { address, lifetime, ..entry };
        self.catalog.relocate(hash, entry.address, moved, header.expiry_ms);
        self.flash.blocks_mut().remove_live(entry.address, entry.units);
        self.flash.blocks_mut().add_live(address, entry.units);
        Ok(MoveOutcome::Done)
    }

    /// Replaces a dead record of a complete batch by a tombstone. Recovery counts the records of a batch that no page
    /// calls durable, and would take an incomplete one for torn. The tombstone changes nothing, because its key has a
    /// newer record.
    fn replace_by_tombstone(
        &mut self,
        entry: IndexEntry,
        header: &RecordHeader,
    ) -> Result<MoveOutcome, StallReason> {
        let counted = self.collector.incomplete.is_counted(entry.address, header.sequence);
        if !counted || mutant(Mutant::DeadBatchRecordDropped) || !self.is_intact(entry, header)? {
            return Ok(MoveOutcome::Done);
        }
        let key = self.key_of(entry, header)?;
        let header = RecordHeader { flags: FLAG_TOMBSTONE, value_bytes: 0, expiry_ms: 0, ..*header };
        self.check_room(header.units() as usize * UNIT_BYTES, 0)?;
        let payload = [RecordSource::Bytes(&key)];
        let address = self.flash.append_copy(&header, ChecksumMode::Compute, &payload);
        self.flash.blocks_mut().add_tombstone(address, header.units(), header.sequence);
        Ok(MoveOutcome::Done)
    }

    /// Copies an intact record to the write frontier. It keeps its sequence, but loses its batch flags, because the
    /// rest of the complete batch may be collected before it.
    fn append_moved(
        &mut self,
        entry: IndexEntry,
        header: &RecordHeader,
    ) -> Result<RecordAddress, StallReason> {
        let bytes = entry.units as usize * UNIT_BYTES;
        self.check_room(bytes, 0)?;
        let flags = header.flags & !FLAGS_BATCH;
        let keeps = flags == header.flags && !mutant(Mutant::ExpiryLostByMove);
        let checksum = if keeps { ChecksumMode::Keep } else { ChecksumMode::Compute };
        let expiry_ms = if mutant(Mutant::ExpiryLostByMove) { 0 } else { header.expiry_ms };
        let header = RecordHeader { flags, expiry_ms, ..*header };
        self.stats.moved_bytes += bytes as u64;
        let payload_bytes = header.payload_end() - HEADER_BYTES;
        let mut spans = RecordPieces::new(self, entry.address, HEADER_BYTES, payload_bytes);
        let mut piece_spans = [None; DIRECT_PIECES_MAX];
        piece_spans.iter_mut().for_each(|span| *span = spans.next_span());
        if spans.next_span().is_none()
            && let Some(address) = self.flash.append_viewed(&header, checksum, &piece_spans)
        {
            return Ok(address);
        }
        let mut payload = Vec::with_capacity(payload_bytes);
        for piece in RecordPieces::new(self, entry.address, HEADER_BYTES, payload_bytes) {
            payload.extend_from_slice(piece.map_err(|page| StallReason::Pages(vec![page]))?);
        }
        let payload = [RecordSource::Bytes(&payload)];
        Ok(self.flash.append_copy(&header, checksum, &payload))
    }

    /// Ends with a victim of which this page, or this page of a record that continues in it, cannot be read. The page may
    /// hold records that must not be erased, live ones or tombstones: the block stays as it is.
    fn set_victim_aside(&mut self, page: PageAddress) {
        if let Some(VictimCursor { block, .. }) = self.collector.victim.take() {
            if self.collector.cleaning {
                // Recovery could read this page, so the medium is failing. The block can neither be erased nor ignored;
                // the next opening of the device finds out what is readable.
                self.flash.fail(FailedOperation::Collect, MediaError::Unreadable { page });
            }
            self.quarantine(block);
        }
    }

    /// Takes a block out of service for good, and releases its pages.
    fn quarantine(&mut self, block: BlockId) {
        self.flash.blocks_mut().quarantine(block);
        self.stats.quarantined += 1;
        self.release_victim_pages();
        // No erase follows that would end the clean-up.
        self.finish_clean_up();
    }

    fn finish_victim(&mut self, block: BlockId) {
        self.collector.victim = None;
        if self.blocks().get(block).live_bytes > 0 {
            let is_known = self.collector.incomplete.corrupt_blocks.contains(&block)
                || (0..PAGES_PER_BLOCK).any(|page| self.collector.pages.is_passed_over(page_of(block, page)));
            if self.collector.cleaning && !is_known {
                // Recovery could read this record, so the medium is failing.
                self.flash.fail(FailedOperation::Collect, MediaError::Unreadable { page: page_of(block, 0) });
            }
            // A live record could not be read: the block stays, so that the damage stays visible.
            self.quarantine(block);
            return;
        }
        self.release_victim_pages();
        assert_eq!(self.blocks().get(block).state, BlockState::Closed, "{block} was collected while open");
        self.flash.blocks_mut().mark_evacuated(block);
        let barrier = self.request_barrier();
        self.collector.evacuated.push_back((block, barrier));
    }
}

#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) const fn page_of(block: BlockId, page: usize) -> PageAddress {
    PageAddress::new(block, page as u8)
}
