//! Device DRAM: frames for open pages and transfers, and the cache of clean pages (UIO paper section 2.1).
//!
//! Input: pages that were read or programmed. Output: their bytes, until CLOCK evicts them. Invariant: a pinned page is
//! never evicted; a page of an erased block is never served, because the FTL drops the block's pages before it erases
//! the block.

use crate::media::geometry::{BlockId, FlashGeometry, PAGES_PER_BLOCK, PageAddress};
use headwater_dma::frame::{FramePool, MediaFrame};
use headwater_dma::pool::Pool;
use std::cell::Cell;

/// Index into `slots` plus one; zero means that the page is not cached.
type SlotLink = u32;

#[derive(Debug)]
struct CacheSlot {
    page: PageAddress,
    frame: MediaFrame,
    pins: u16,
    /// True if the page was used since the clock hand last passed it.
    is_used: Cell<bool>,
}

/// Frames and the page cache.
#[derive(Debug)]
pub struct PageCache {
    pool: FramePool,
    slot_links: Vec<SlotLink>,
    slots: Vec<Option<CacheSlot>>,
    free_slots: Vec<u32>,
    pinned: usize,
    clock_hand: usize,
}

impl PageCache {
    /// Makes DRAM of `frames_max` frames from a pool, for a medium with this geometry.
    #[must_use]
    pub fn new(geometry: FlashGeometry, frames_max: usize, pool: Pool) -> Self {
        Self {
            pool: FramePool::new(pool, frames_max),
            slot_links: vec![0; geometry.blocks as usize * PAGES_PER_BLOCK],
            slots: Vec::new(),
            free_slots: Vec::new(),
            pinned: 0,
            clock_hand: 0,
        }
    }

    /// Takes a frame, and evicts a clean page for it if necessary; `None` if every frame is in use.
    pub fn take_frame(&mut self) -> Option<MediaFrame> {
        if let Some(frame) = self.pool.take() {
            return Some(frame);
        }
        self.evict();
        self.pool.take()
    }

    /// Makes sure that this many frames can be taken now. Returns false if frames are in use or the pool is exhausted.
    pub fn reserve(&mut self, frames: usize) -> bool {
        let evictable = self.slots.len() - self.free_slots.len() - self.pinned;
        let missing = frames.saturating_sub(evictable);
        frames <= self.available() && (missing <= self.pool.kept() || self.pool.reserve(missing))
    }

    /// Returns a frame to the pool.
    pub fn return_frame(&mut self, frame: MediaFrame) {
        self.pool.put_back(frame);
    }

    /// Returns the frames that can be taken within the limit, including those that eviction frees.
    #[must_use]
    pub fn available(&self) -> usize {
        self.pool.available() + (self.slots.len() - self.free_slots.len() - self.pinned)
    }

    /// Returns the limit of frames.
    #[must_use]
    pub fn frames_max(&self) -> usize {
        self.pool.frames_max()
    }

    fn slot_of(&self, page: PageAddress) -> Option<usize> {
        let link = *self.slot_links.get(page.index())?;
        (link as usize).checked_sub(1)
    }

    /// Returns the bytes of a page (data, then spare) if it is cached, and marks it as used.
    #[must_use]
    #[inline]
    pub fn peek(&self, page: PageAddress) -> Option<&[u8]> {
        let slot = self.slots[self.slot_of(page)?].as_ref()?;
        // Most uses are of a page that is marked already: the line of its slot stays unmodified then.
        if !slot.is_used.get() {
            slot.is_used.set(true);
        }
        Some(&slot.frame)
    }

    /// Puts a page into the cache, unmarked: pages that are written or read once leave before those that are used again. A
    /// page that is cached already keeps its frame; the new frame goes back to the pool.
    #[expect(clippy::cast_possible_truncation, reason = "slots are limited by frames, frames by memory")]
    pub fn insert(&mut self, page: PageAddress, frame: MediaFrame) {
        if self.slot_of(page).is_some() {
            self.pool.put_back(frame);
            return;
        }
        let slot = CacheSlot { page, frame, pins: 0, is_used: Cell::new(false) };
        let at = match self.free_slots.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(slot);
                at as usize
            }
            None => {
                self.slots.push(Some(slot));
                self.slots.len() - 1
            }
        };
        self.slot_links[page.index()] = at as u32 + 1;
    }

    /// Keeps a cached page from eviction until it is unpinned as many times as it was pinned.
    pub fn pin(&mut self, page: PageAddress) {
        if let Some(slot) = self.slot_of(page).and_then(|at| self.slots[at].as_mut()) {
            slot.pins += 1;
            self.pinned += usize::from(slot.pins == 1);
        }
    }

    /// Removes one pin of a page; does nothing for a page that was dropped since.
    pub fn unpin(&mut self, page: PageAddress) {
        if let Some(slot) = self.slot_of(page).and_then(|at| self.slots[at].as_mut()) {
            self.pinned -= usize::from(slot.pins == 1);
            slot.pins = slot.pins.saturating_sub(1);
        }
    }

    /// Drops a page that nothing pins.
    pub fn drop_unpinned(&mut self, page: PageAddress) {
        let at = self.slot_of(page).filter(|at| self.slots[*at].as_ref().is_some_and(|slot| slot.pins == 0));
        if let Some(at) = at {
            self.drop_slot(at);
        }
    }

    /// Drops every page of a block from the cache.
    #[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
    pub fn drop_block(&mut self, block: BlockId) {
        for page in 0..PAGES_PER_BLOCK {
            if let Some(at) = self.slot_of(PageAddress::new(block, page as u8)) {
                self.drop_slot(at);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "slots are limited by frames, frames by memory")]
    fn drop_slot(&mut self, at: usize) {
        if let Some(slot) = self.slots[at].take() {
            self.slot_links[slot.page.index()] = 0;
            self.pinned -= usize::from(slot.pins > 0);
            self.pool.put_back(slot.frame);
            self.free_slots.push(at as u32);
        }
    }

    /// Evicts the first unpinned page that was not used since the clock hand last passed it.
    fn evict(&mut self) {
        // Two rounds: the first may only clear the marks.
        for _ in 0..self.slots.len() * 2 {
            let at = self.clock_hand;
            self.clock_hand = (self.clock_hand + 1) % self.slots.len();
            match self.slots[at].as_mut() {
                Some(slot) if slot.pins == 0 && slot.is_used.replace(false) => {}
                Some(slot) if slot.pins == 0 => return self.drop_slot(at),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::PoolConfig;

    fn page(page: u8) -> PageAddress {
        PageAddress::new(BlockId(0), page)
    }

    fn dram(frames_max: usize) -> PageCache {
        let pool = Pool::of_process().expect("a process has a pool");
        PageCache::new(FlashGeometry::with_blocks(1), frames_max, pool)
    }

    fn filled(dram: &mut PageCache, byte: u8) -> MediaFrame {
        let mut frame = dram.take_frame().unwrap();
        frame.fill(byte);
        frame
    }

    #[test]
    fn pinned_pages_survive_pressure_and_unpinned_pages_are_evicted() {
        let mut dram = dram(3);
        for number in 0..3 {
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
        }
        dram.pin(page(0));
        for number in 3..20 {
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
            assert_eq!(dram.peek(page(0)).unwrap()[0], 0);
            assert_eq!(dram.peek(page(number)).unwrap()[0], number);
        }
        dram.unpin(page(0));
        for number in 20..24 {
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
        }
        assert!(dram.peek(page(0)).is_none());
    }

    #[test]
    fn a_page_in_use_outlives_any_number_of_pages_that_are_used_once() {
        let mut dram = dram(8);
        let frame = filled(&mut dram, 0);
        dram.insert(page(0), frame);
        for number in 1..64 {
            assert!(dram.peek(page(0)).is_some(), "page 0 was evicted before page {number}");
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
        }
        dram.drop_block(BlockId(0));
        for number in 0..16 {
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
        }
        assert!(dram.peek(page(0)).is_none(), "a page that is not used stayed");
    }

    #[test]
    fn a_dropped_block_is_not_served() {
        let mut dram = dram(4);
        let frame = filled(&mut dram, 1);
        dram.insert(page(9), frame);
        dram.drop_block(BlockId(0));
        assert!(dram.peek(page(9)).is_none());
        assert_eq!(dram.available(), 4);
    }

    #[test]
    fn secured_frames_can_be_taken_from_an_exhausted_pool() {
        let pool =
            Pool::open(PoolConfig { cap: 2 << 20, cap_max: 2 << 20, ..PoolConfig::default() }).unwrap();
        let mut dram = PageCache::new(FlashGeometry::with_blocks(1), 4_000, pool);
        assert!(!dram.reserve(1_000));
        let at_hand = dram.pool.kept();
        for number in 0..64 {
            let frame = filled(&mut dram, number);
            dram.insert(page(number), frame);
        }
        dram.pin(page(0));
        assert!(!dram.reserve(at_hand));
        assert!(dram.reserve(at_hand - 1));
        let held: Vec<MediaFrame> = (1..at_hand).filter_map(|_| dram.take_frame()).collect();
        assert_eq!(held.len(), at_hand - 1);
        assert!(dram.take_frame().is_none());
        assert!(dram.peek(page(0)).is_some());
    }

    #[test]
    fn no_frame_is_available_while_every_page_is_pinned() {
        let mut dram = dram(1);
        let frame = filled(&mut dram, 1);
        dram.insert(page(0), frame);
        dram.pin(page(0));
        assert!(dram.take_frame().is_none());
        assert_eq!(dram.available(), 0);
    }
}
