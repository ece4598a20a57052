//! The index from page numbers to frames: a lookup touches mostly one cache line.
//!
//! Input: page numbers below 2^40. Output: frames below 2^24. Invariant: an entry lies at its hashed position or after
//! it without a gap between; at most half of the positions are used.

use super::shape::PAGES_MAX;
use headwater_host::width::to_usize;

/// The most frames that an entry can hold (64 GiB of pages).
pub(super) const FRAMES_MAX: usize = 1 << FRAME_BITS;
const FRAME_BITS: u32 = 24;
/// An empty entry: its page would be [`PAGES_MAX`].
const EMPTY: u64 = u64::MAX;
/// 2^64 divided by the golden ratio, which spreads adjacent pages far apart.
const HASH_MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash table of pages and their frames.
#[derive(Debug)]
pub(super) struct FrameIndex {
    /// The page in the upper 40 bits, the frame in the lower 24.
    entries: Vec<u64>,
    /// The shift from a hash to a position.
    shift: u32,
}

impl FrameIndex {
    /// Returns an index with room for this many pages.
    pub(super) fn with_room(pages: usize) -> Self {
        let positions = (pages.max(4) * 2).next_power_of_two();
        Self { entries: vec![EMPTY; positions], shift: 64 - positions.trailing_zeros() }
    }

    #[inline]
    fn hashed_position(&self, page: u64) -> usize {
        to_usize(page.wrapping_mul(HASH_MULTIPLIER) >> self.shift)
    }

    #[inline]
    fn next_position(&self, position: usize) -> usize {
        (position + 1) & (self.entries.len() - 1)
    }

    /// Returns the frame of a page.
    #[inline]
    pub(super) fn find(&self, page: u64) -> Option<u32> {
        let mut position = self.hashed_position(page);
        loop {
            let entry = self.entries[position];
            if entry >> FRAME_BITS == page {
                return Some(frame_of(entry));
            }
            if entry == EMPTY {
                return None;
            }
            position = self.next_position(position);
        }
    }

    /// Sets the frame of a page, new or present.
    pub(super) fn set(&mut self, page: u64, frame: u32) {
        debug_assert!(page < PAGES_MAX && (frame as usize) < FRAMES_MAX);
        let mut position = self.hashed_position(page);
        while self.entries[position] != EMPTY && self.entries[position] >> FRAME_BITS != page {
            position = self.next_position(position);
        }
        self.entries[position] = (page << FRAME_BITS) | u64::from(frame);
    }

    /// Removes a page.
    pub(super) fn remove(&mut self, page: u64) {
        let mut gap = self.hashed_position(page);
        while self.entries[gap] >> FRAME_BITS != page {
            if self.entries[gap] == EMPTY {
                return;
            }
            gap = self.next_position(gap);
        }
        // Following entries move up, unless that would put them before their hashed position.
        let mut position = self.next_position(gap);
        while self.entries[position] != EMPTY {
            let home = self.hashed_position(self.entries[position] >> FRAME_BITS);
            let mask = self.entries.len() - 1;
            if (position.wrapping_sub(home) & mask) >= (position.wrapping_sub(gap) & mask) {
                self.entries[gap] = self.entries[position];
                gap = position;
            }
            position = self.next_position(position);
        }
        self.entries[gap] = EMPTY;
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the mask leaves 24 bits")]
fn frame_of(entry: u64) -> u32 {
    (entry & (FRAMES_MAX as u64 - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn seeded_runs_agree_with_a_naive_model() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut index = FrameIndex::with_room(64);
            let mut model = BTreeMap::new();
            for _ in 0..4_000 {
                let page = [0, PAGES_MAX - 100][random.usize(0..2)] + random.u64(0..100);
                if model.len() < 64 && random.bool() {
                    let frame = random.u32(0..1 << FRAME_BITS);
                    index.set(page, frame);
                    model.insert(page, frame);
                } else {
                    index.remove(page);
                    model.remove(&page);
                }
                let probe = random.u64(0..100);
                assert_eq!(index.find(probe), model.get(&probe).copied(), "seed {seed}");
            }
            for (page, frame) in model {
                assert_eq!(index.find(page), Some(frame), "seed {seed}");
            }
        }
    }
}
