//! Page replacement: S3-FIFO (Yang et al., SOSP 2023).
//!
//! Input: pages as they become clean, and their uses. Output: the frame to evict. Invariant: a page used once passes
//! through a tenth of the cache and cannot evict a page that is used repeatedly; a use moves nothing.
//!
//! A new page enters the small list. At the list's end it moves to the main list if it was used since, else it is
//! evicted and its number is remembered; a page that returns while remembered enters the main list at once. At the end
//! of the main list a used page moves to the front again. Dirty pages are on neither list until they are clean.

use super::frames::{FrameList, FrameTable, PageFlags};
use super::shape::to_u64;
use headwater_host::width::{narrow, to_usize};

/// The most uses that are counted.
pub(super) const USES_MAX: u8 = 3;
/// The uses after which a page of the small list is kept.
const USES_PROVEN: u8 = 2;
/// The divisor of the cache size that gives the size of the small list.
const SMALL_LIST_DIVISOR: usize = 10;

/// The state of the policy: pages recently evicted from the small list.
#[derive(Debug)]
pub(super) struct ReplacementPolicy {
    /// The low half of a page's hash above its eviction number. The later of two at one index stays.
    ghosts: Vec<u64>,
    evictions: u32,
    /// The number of evictions for which a page is remembered.
    ghost_lifetime: u32,
    small_max: usize,
}

impl ReplacementPolicy {
    pub(super) fn for_frames(frames: usize) -> Self {
        let ghost_lifetime = narrow(frames);
        let small_max = (frames / SMALL_LIST_DIVISOR).max(1);
        Self { ghosts: vec![0; frames.next_power_of_two()], evictions: 0, ghost_lifetime, small_max }
    }

    fn ghost_slot(&self, page: u64) -> (usize, u64) {
        let hash =
            page.wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (to_usize(hash >> 32) & (self.ghosts.len() - 1), hash & 0xFFFF_FFFF)
    }

    fn remember(&mut self, page: u64) {
        self.evictions = self.evictions.wrapping_add(1).max(1);
        let (at, tag) = self.ghost_slot(page);
        self.ghosts[at] = (tag << 32) | u64::from(self.evictions);
    }

    /// Returns true if a page was evicted recently.
    pub(super) fn was_evicted_recently(&self, page: u64) -> bool {
        let (at, tag) = self.ghost_slot(page);
        let ghost = self.ghosts[at];
        let age = u64::from(self.evictions).wrapping_sub(ghost & 0xFFFF_FFFF);
        ghost != 0 && ghost >> 32 == tag && age < u64::from(self.ghost_lifetime)
    }

    /// Removes and returns the clean page to evict.
    pub(super) fn evict(&mut self, frames: &mut FrameTable) -> Option<u32> {
        loop {
            let from_small =
                frames.len(FrameList::Small) > self.small_max || frames.len(FrameList::Main) == 0;
            let frame = frames.last(if from_small { FrameList::Small } else { FrameList::Main })?;
            frames.unlink(frame);
            let at = frames.frame_mut(frame);
            if from_small && at.uses < USES_PROVEN {
                let page = at.page;
                self.remember(page);
                return Some(frame);
            }
            if !from_small && at.uses == 0 {
                return Some(frame);
            }
            // Each round takes a use away or moves a page to the main list, so the loop terminates.
            at.uses = if from_small { 0 } else { at.uses - 1 };
            at.flags.set(PageFlags::PROVEN);
            frames.push_front(FrameList::Main, frame);
        }
    }
}

/// Returns `percent` of `frames`, at least one page.
pub(super) fn percentage_of(frames: usize, percent: u8) -> usize {
    to_usize(to_u64(frames) * u64::from(percent) / 100).max(1)
}
