//! The map of the staged write that is visible at each byte of the device.
//!
//! Input: ranges, as writes are staged and complete. Output: for a range, the newest staged write of every byte that
//! has one. Invariant: segments never overlap, none is empty, and each belongs to a write that is staged now.

use std::collections::BTreeMap;
use std::ops::Range;

/// A segment, without its first byte, which is the key of the map.
#[derive(Clone, Copy, Debug)]
struct VisibleSegment {
    end: u64,
    slot: usize,
}

/// Segments by their first byte.
#[derive(Debug, Default)]
pub(super) struct VisibleWrites {
    segments: BTreeMap<u64, VisibleSegment>,
}

impl VisibleWrites {
    /// Adds a newer write over `range`. Calls `hides` for every slot of which it hides a byte, in the order of the
    /// bytes, for some slots more than once.
    pub(super) fn cover(&mut self, range: Range<u64>, slot: usize, mut hides: impl FnMut(usize)) {
        self.cut(range.start);
        self.cut(range.end);
        while let Some((&start, &segment)) = self.segments.range(range.clone()).next() {
            self.segments.remove(&start);
            hides(segment.slot);
        }
        assert!(range.start < range.end, "a staged write has a byte");
        let other = self.segments.insert(range.start, VisibleSegment { end: range.end, slot });
        assert!(other.is_none(), "two writes are visible at byte {}", range.start);
    }

    /// Removes the write of `range` that is no longer staged.
    pub(super) fn uncover(&mut self, range: Range<u64>, slot: usize) {
        let mut from = range.start;
        // A segment never extends past its own write, so the segments of this one all start in its range.
        while let Some((&start, &segment)) = self.segments.range(from..range.end).next() {
            if segment.slot == slot {
                self.segments.remove(&start);
            }
            // Segments of newer writes may end past the range.
            from = segment.end.min(range.end);
        }
    }

    /// Returns the visible segments in `range`, clipped to it, in the order of the bytes.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, usize)> + '_ {
        let before = self.segments.range(..range.start).next_back();
        let inside = self.segments.range(range.clone());
        before.into_iter().chain(inside).filter_map(move |(&start, segment)| {
            let part = start.max(range.start)..segment.end.min(range.end);
            (part.start < part.end).then_some((part, segment.slot))
        })
    }

    /// Splits the segment that contains `at`, if any, at `at`.
    fn cut(&mut self, at: u64) {
        if let Some((_, segment)) = self.segments.range_mut(..at).next_back()
            && segment.end > at
        {
            let rest = *segment;
            segment.end = at;
            self.segments.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(byte: u64) -> usize {
        usize::try_from(byte).unwrap()
    }

    fn shown(visible: &VisibleWrites, range: Range<u64>) -> Vec<(Range<u64>, usize)> {
        visible.within(range).collect()
    }

    #[test]
    fn the_newest_write_is_visible_and_the_rest_of_the_older_stays() {
        let mut visible = VisibleWrites::default();
        visible.cover(10..40, 1, |_| panic!("nothing was staged"));
        let mut hidden = Vec::new();
        visible.cover(20..30, 2, |slot| hidden.push(slot));
        assert_eq!(hidden, [1]);
        assert_eq!(shown(&visible, 0..100), [(10..20, 1), (20..30, 2), (30..40, 1)]);
        assert_eq!(shown(&visible, 25..35), [(25..30, 2), (30..35, 1)]);
        visible.uncover(10..40, 1);
        assert_eq!(shown(&visible, 0..100), [(20..30, 2)]);
    }

    #[test]
    fn random_writes_match_a_byte_by_byte_table() {
        let seed = 0x51AE;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut visible = VisibleWrites::default();
        let mut table = [None; 64];
        let mut staged: Vec<(Range<u64>, usize)> = Vec::new();
        for slot in 0..4_000 {
            let start = random.u64(0..60);
            let range = start..start + random.u64(1..=64 - start);
            let mut hides = Vec::new();
            visible.cover(range.clone(), slot, |hidden| hides.push(hidden));
            for byte in range.clone() {
                let before = table[index(byte)].replace(slot);
                assert!(before.is_none_or(|before| hides.contains(&before)), "seed {seed} slot {slot}");
            }
            staged.push((range, slot));
            while staged.len() > 5 {
                let (range, slot) = staged.remove(random.usize(0..staged.len()));
                visible.uncover(range, slot);
                table.iter_mut().filter(|shown| **shown == Some(slot)).for_each(|shown| *shown = None);
            }
            let mut found = [None; 64];
            for (range, slot) in visible.within(0..64) {
                range.for_each(|byte| assert_eq!(found[index(byte)].replace(slot), None, "seed {seed}"));
            }
            assert_eq!(found, table, "seed {seed} slot {slot}");
        }
    }
}
