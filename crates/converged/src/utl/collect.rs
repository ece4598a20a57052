//! Collection: live records leave a block so that it can be erased (UIO paper section 3.4.3, last paragraph).
//!
//! In: a victim, chosen by policy. Out: its live records and needed tombstones at the frontier of the log, and the block
//! in line for an erase, which happens only when the moved records are durable.
//! Invariant: a record is moved only if the index names exactly its address at that moment (compare and swap); a
//! tombstone is dropped only when no block is left that was opened before it was written.

use super::ahead::PAGES_AHEAD;
use super::debris::Debris;
use super::{Found, Gather, Stall, Utl};
use crate::blocks::BlockState;
use crate::device::VictimPolicy;
use crate::index::{Entry, Index, Lifetime};
use crate::log::{Checksum, Source};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PageAddress};
use crate::media::{Media, MediaError};
use crate::page::{NO_RECORD, PageKind, PageSpare};
use crate::record::{FLAG_TOMBSTONE, FLAGS_BATCH, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use std::collections::VecDeque;

/// So many more blocks stand free before collection rests.
const HIGH_ABOVE_LOW: usize = 1;
/// Records looked at before other work gets a turn.
const RECORDS_PER_TURN: usize = 256;

/// A block being collected: how far it was walked.
#[derive(Clone, Copy, Debug)]
struct Victim {
    block: BlockId,
    page: usize,
    offset: usize,
    head_done: bool,
}

/// The collector's state.
#[derive(Debug)]
pub(crate) struct Collector {
    policy: VictimPolicy,
    victim: Option<Victim>,
    /// Evacuated blocks and the barrier that must be durable before each is erased.
    evacuated: VecDeque<(BlockId, u64)>,
    /// What recovery wants collected before anything else.
    debris: Debris,
    cleaning: bool,
    /// Nothing may be erased until the first page of this epoch is durable.
    held: bool,
    /// Blocks that somebody waits for, beyond the usual stock.
    demand: usize,
    waiting: bool,
}

impl Collector {
    pub(super) fn new(policy: VictimPolicy) -> Self {
        Self {
            policy,
            victim: None,
            evacuated: VecDeque::new(),
            debris: Debris::default(),
            cleaning: false,
            held: false,
            demand: 0,
            waiting: false,
        }
    }

    /// The next block whose moved records are durable.
    pub(super) fn next_erase(&self, durable_barrier: u64) -> Option<BlockId> {
        self.evacuated.front().filter(|(_, barrier)| *barrier <= durable_barrier).map(|(block, _)| *block)
    }

    pub(super) fn erase_accepted(&mut self) {
        self.evacuated.pop_front();
    }

    /// Every erase so far is durable: if recovery's debris was among them, it is gone for good.
    pub(super) fn settle(&mut self) {
        if self.debris.blocks.is_empty() && self.victim.is_none() && self.evacuated.is_empty() {
            self.debris = Debris::default();
            self.cleaning = false;
        }
    }

    /// While discarded records lie on the medium, no page may claim that their sequences are durable.
    pub(super) fn holds_stamp(&self) -> bool {
        self.cleaning
    }

    /// Recovery found this: it goes before anything is served.
    pub(crate) fn clean_up(&mut self, debris: Debris) {
        self.cleaning = !debris.blocks.is_empty();
        self.debris = debris;
        self.held = true;
    }

    /// The first page of this epoch is durable.
    pub(crate) fn let_go(&mut self) {
        self.held = false;
    }

    /// Whether recovery's debris is still there.
    pub(crate) fn is_cleaning_up(&self) -> bool {
        self.cleaning
    }

    /// Somebody waits for so many blocks. Returns whether that is more than was asked for before.
    pub(crate) fn demand(&mut self, blocks: usize) -> bool {
        let more = blocks > self.demand;
        self.demand = self.demand.max(blocks);
        more
    }

    /// Nobody waits for more than the usual stock.
    pub(super) fn forget_demand(&mut self) {
        self.demand = 0;
    }

    /// The pages the collector waited for have come.
    pub(crate) fn wake(&mut self) {
        self.waiting = false;
    }
}

/// What became of one record of a victim.
enum Moved {
    /// It was not needed, or it is at the frontier now.
    Done,
    /// Its bytes cannot be trusted.
    Damaged,
}

impl<M: Media> Utl<M> {
    /// Blocks that are free or will be when what is under way is done.
    fn blocks_in_sight(&self) -> usize {
        self.blocks.free() + self.blocks.erasing_now() + self.collector.evacuated.len()
    }

    /// Does a turn of collection if it is needed. Returns whether anything moved, and asks for pages through `Stall`.
    pub(crate) fn collect(&mut self) -> Result<bool, Stall> {
        if self.collector.waiting || self.collector.held || self.failed.is_some() {
            return Ok(false);
        }
        if self.collector.victim.is_none() && !self.choose_victim() {
            return Ok(false);
        }
        for _ in 0..RECORDS_PER_TURN {
            match self.collect_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(stall) => {
                    self.collector.waiting = matches!(stall, Stall::Pages(_));
                    return Err(stall);
                }
            }
        }
        Ok(true)
    }

    fn choose_victim(&mut self) -> bool {
        let victim = match self.collector.debris.blocks.pop_first() {
            Some(block) => Some(block),
            None => self.next_victim(),
        };
        self.collector.victim = victim.map(|block| Victim { block, page: 0, offset: 0, head_done: false });
        victim.is_some()
    }

    fn next_victim(&mut self) -> Option<BlockId> {
        let in_sight = self.blocks_in_sight();
        let high = self.low_blocks() + HIGH_ABOVE_LOW + self.collector.demand;
        if in_sight >= high {
            // What is in sight may still wait for a flush: whoever wants it would ask again, and again, if it were forgotten.
            if self.blocks.free() >= high {
                self.collector.demand = 0;
            }
            return None;
        }
        // Tombstones that wait for the oldest block pile up under greedy; then the oldest goes first.
        let policy = if self.tombstones_pile_up() { VictimPolicy::Fifo } else { self.collector.policy };
        let victim = self.blocks.victim(policy, (self.commit.witnessed, self.commit.witnessed_order));
        let hopeless = |block: &BlockId| {
            policy == VictimPolicy::Greedy && self.blocks.cost(*block) as usize > BLOCK_DATA_BYTES / 64 * 63
        };
        let victim = victim.filter(|block| !hopeless(block));
        if victim.is_none() {
            // Nothing may be touched until a later page says that it is durable.
            self.want_witness();
        }
        victim
    }

    /// Whether blocks that were never looked into are in the way: no tombstone can go before they are erased. While
    /// there is room enough nobody minds the tombstones, and erases are spared.
    pub(super) fn wants_all_erased(&self) -> bool {
        let short = self.blocks_in_sight() <= self.low_blocks() + HIGH_ABOVE_LOW + self.collector.demand;
        self.blocks.has_unknown() && (short || self.tombstones_pile_up())
    }

    fn tombstones_pile_up(&self) -> bool {
        self.blocks.tombstone_bytes() > self.geometry.data_bytes() / 16
    }

    /// Programs a page with the current stamps and asks for a commit. False when there is no room for it now.
    pub(crate) fn witness(&mut self) -> bool {
        if self.room(PAGE_DATA_BYTES, 0).is_err() {
            return false;
        }
        self.log.witness(&mut self.dram, &mut self.blocks);
        self.commit.want_barrier(self.log.position());
        true
    }

    /// Makes the next commit program a page that witnesses the durable sequence.
    fn want_witness(&mut self) {
        let applied = self.applied();
        if (self.commit.witnessed < applied
            || self.commit.witnessed_order < self.log.begun_order(&self.blocks))
            && self.commit.is_idle()
        {
            if self.commit.durable < applied {
                self.commit.want(applied);
            } else {
                self.witness();
            }
        }
    }

    /// Looks at the next record of the victim. False when the victim is finished.
    fn collect_next(&mut self) -> Result<bool, Stall> {
        let Some(mut victim) = self.collector.victim else {
            return Ok(false);
        };
        if let Some(hidden) = self.collector.debris.hidden_in(victim.block) {
            self.move_at(hidden)?;
            self.collector.debris.rescue.remove(&(victim.block, hidden));
            return Ok(true);
        }
        self.want_block(victim.block, victim.page)?;
        if victim.offset == 0 && victim.page.is_multiple_of(PAGES_AHEAD) {
            self.look_ahead(victim.block, victim.page);
        }
        if victim.page >= usize::from(self.blocks.get(victim.block).pages) {
            self.finish_victim(victim.block);
            return Ok(false);
        }
        let page = page_of(victim.block, victim.page);
        let spare = self.page(page).and_then(|bytes| PageSpare::decode(bytes, page.page));
        // A page of the block's earlier life may have outlived an erase that a power cut interrupted.
        let order = self.blocks.get(victim.block).order;
        let Some(spare) = spare.filter(|spare| spare.kind == PageKind::Log && spare.order == order) else {
            self.collector.victim = Some(Victim { page: victim.page + 1, offset: 0, ..victim });
            return Ok(true);
        };
        if victim.page == 0 && !victim.head_done {
            if spare.continues != 0
                && self.blocks.leads_to(RecordAddress(spare.continues - 1).block(), victim.block)
            {
                self.move_at(RecordAddress(spare.continues - 1))?;
            }
            victim.head_done = true;
        }
        if spare.first == NO_RECORD {
            self.collector.victim = Some(Victim { page: victim.page + 1, offset: 0, ..victim });
            return Ok(true);
        }
        let offset = victim.offset.max(victim.page * PAGE_DATA_BYTES + usize::from(spare.first));
        let address = RecordAddress::in_block(victim.block, offset);
        let next = self.move_at(address)?.unwrap_or((victim.page + 1) * PAGE_DATA_BYTES - offset) + offset;
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

    /// Asks for every page of the victim that is not within reach when one is needed.
    fn want_block(&self, block: BlockId, from: usize) -> Result<(), Stall> {
        let pages = usize::from(self.blocks.get(block).pages);
        if self.traits.addressable || from >= pages || self.page(page_of(block, from)).is_some() {
            return Ok(());
        }
        let missing =
            (from..pages).map(|page| page_of(block, page)).filter(|page| self.page(*page).is_none());
        Err(Stall::Pages(missing.collect()))
    }

    /// Moves what must be kept of the record at an address. Returns the record's length in bytes, or `None` when there
    /// is no record that can be read.
    fn move_at(&mut self, address: RecordAddress) -> Result<Option<usize>, Stall> {
        let probe = Entry {
            address,
            units: 3,
            namespace: crate::command::NamespaceId::FIRST,
            lifetime: Lifetime::Unlimited,
        };
        let Some(header) = self.header(probe, super::Reach::Key)? else {
            return Ok(None);
        };
        let entry = Entry { units: header.units(), namespace: header.namespace, ..probe };
        let bytes = entry.units as usize * UNIT_BYTES;
        if self.blocks.get(address.block()).suspect && !self.is_intact(entry, &header)? {
            // Recovery stopped here too: it believed nothing behind a damaged record of the same page.
            return Ok(None);
        }
        let moved = if header.is_tombstone() || header.is_clear() {
            self.move_tombstone(entry, &header)?
        } else {
            self.move_live(entry, &header)?
        };
        Ok(match moved {
            Moved::Done => Some(bytes),
            Moved::Damaged => {
                self.stats.damaged += 1;
                None
            }
        })
    }

    fn move_tombstone(&mut self, entry: Entry, header: &RecordHeader) -> Result<Moved, Stall> {
        let needed = header.sequence >= self.blocks.watermark()
            && !self.collector.debris.discarded.contains(&header.sequence);
        if !needed {
            return Ok(Moved::Done);
        }
        if !self.is_intact(entry, header)? {
            return Ok(Moved::Damaged);
        }
        let address = self.append_moved(entry, header)?;
        self.blocks.remove_tombstone(entry.address, entry.units);
        self.blocks.add_tombstone(address, entry.units, header.sequence);
        Ok(Moved::Done)
    }

    fn move_live(&mut self, entry: Entry, header: &RecordHeader) -> Result<Moved, Stall> {
        let hash = self.hash_of(entry, header)?;
        if !self.index.contains(hash, entry.address) {
            return self.stand_in(entry, header);
        }
        if !self.is_intact(entry, header)? {
            return Ok(Moved::Damaged);
        }
        let address = self.append_moved(entry, header)?;
        let lifetime = if header.expiry_ms == 0 { Lifetime::Unlimited } else { Lifetime::Limited };
        let swapped = self.index.replace(hash, entry.address, Entry { address, lifetime, ..entry });
        assert!(swapped, "a record left the index while it was moved, though nothing ran in between");
        self.blocks.remove_live(entry.address, entry.units);
        self.blocks.add_live(address, entry.units);
        if lifetime == Lifetime::Limited {
            self.expiry.remove(header.expiry_ms, hash, entry.address);
            self.expiry.insert(header.expiry_ms, hash, address);
        }
        Ok(Moved::Done)
    }

    /// Nobody needs the record itself any more. But recovery counts the records of a batch that no page calls durable,
    /// and would take the rest for a torn one: a tombstone in its place is as good, for something newer has its key.
    fn stand_in(&mut self, entry: Entry, header: &RecordHeader) -> Result<Moved, Stall> {
        let counted =
            header.flags & FLAGS_BATCH != 0 && self.collector.debris.believed.contains(&header.sequence);
        if !counted || !self.is_intact(entry, header)? {
            return Ok(Moved::Done);
        }
        let key = self.key_of(entry, header)?;
        let header = RecordHeader { flags: FLAG_TOMBSTONE, value_bytes: 0, expiry_ms: 0, ..*header };
        self.room(header.units() as usize * UNIT_BYTES, 0)?;
        let payload = [Source::Bytes(&key)];
        let address = self.log.append(&mut self.dram, &mut self.blocks, &header, Checksum::Compute, &payload);
        self.blocks.add_tombstone(address, header.units(), header.sequence);
        Ok(Moved::Done)
    }

    /// Copies an intact record to the frontier. It keeps its sequence; what belonged to a complete batch stands alone
    /// from now on, because the rest of the batch may be collected before it.
    fn append_moved(&mut self, entry: Entry, header: &RecordHeader) -> Result<RecordAddress, Stall> {
        let bytes = entry.units as usize * UNIT_BYTES;
        self.room(bytes, 0)?;
        let flags = header.flags & !FLAGS_BATCH;
        let checksum = if flags == header.flags { Checksum::Known } else { Checksum::Compute };
        let header = RecordHeader { flags, ..*header };
        self.stats.moved_bytes += bytes as u64;
        let payload_bytes = header.payload_end() - HEADER_BYTES;
        let mut spans = Gather::new(self, entry.address, HEADER_BYTES, payload_bytes);
        let mut places = [None; PIECES_IN_PLACE];
        places.iter_mut().for_each(|place| *place = spans.next_span());
        if spans.next_span().is_none()
            && let Some(pieces) = in_place(&self.media, &places)
        {
            return Ok(self.log.append(&mut self.dram, &mut self.blocks, &header, checksum, &pieces));
        }
        let mut payload = Vec::with_capacity(payload_bytes);
        for piece in Gather::new(self, entry.address, HEADER_BYTES, payload_bytes) {
            payload.extend_from_slice(piece.map_err(|page| Stall::Pages(vec![page]))?);
        }
        let payload = [Source::Bytes(&payload)];
        Ok(self.log.append(&mut self.dram, &mut self.blocks, &header, checksum, &payload))
    }

    fn finish_victim(&mut self, block: BlockId) {
        self.collector.victim = None;
        if self.blocks.get(block).live_bytes > 0 {
            // Something live is left that could not be read: the block stays, so that the damage shows.
            self.blocks.quarantine(block);
            self.stats.quarantined += 1;
            if self.collector.cleaning && !self.collector.debris.rotten.contains(&block) {
                // Recovery read this record a moment ago, so the medium is failing. What recovery set aside can neither
                // be erased nor left behind; the next opening sees for itself what can still be read.
                let page = page_of(block, 0);
                self.failed.get_or_insert(MediaError::Unreadable { page });
            }
            // No erase follows that would find the debris gone.
            self.settle();
            return;
        }
        debug_assert_eq!(self.blocks.get(block).state, BlockState::Closed);
        self.blocks.evacuated(block);
        let barrier = self.log.position();
        self.collector.evacuated.push_back((block, barrier));
        self.commit.want_barrier(barrier);
    }

    /// Whether the record named by an index entry has been removed because its time came.
    pub(crate) fn expired(&self, found: &Found) -> bool {
        found.header.is_some_and(|header| header.is_expired(self.wall_ms))
    }
}

/// Records of up to so many pieces are moved without a copy in between, where the medium shows its pages.
const PIECES_IN_PLACE: usize = 3;

/// The pieces as the medium shows them; `None` when it does not show one.
fn in_place<'a, M: Media>(
    media: &'a M,
    places: &[Option<(PageAddress, usize, usize)>; PIECES_IN_PLACE],
) -> Option<[Source<'a>; PIECES_IN_PLACE]> {
    let mut pieces = [Source::Bytes(&[]); PIECES_IN_PLACE];
    for (piece, place) in pieces.iter_mut().zip(places) {
        if let Some((page, within, bytes)) = *place {
            *piece = Source::Bytes(media.view(page)?.get(within..within + bytes)?);
        }
    }
    Some(pieces)
}

#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) const fn page_of(block: BlockId, page: usize) -> PageAddress {
    PageAddress::new(block, page as u8)
}
