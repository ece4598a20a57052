//! A set of small numbers as a hierarchical bitmap: 64 bits per word, and one summary bit for each word that is not
//! zero.
//!
//! Input: numbers below a fixed bound. Output: membership, the lowest member, the next one. Invariant: a summary bit is
//! set exactly when the word below it is not zero, so a lookup reads one word per level and never scans.

/// Levels needed for 2^32 numbers: 6 bits each.
const LEVELS_MAX: usize = 6;

/// A set of numbers with summaries. The allocator zeroes its memory, so untouched words cost no pages.
#[derive(Clone, Debug)]
pub(super) struct BitTree {
    words: Vec<u64>,
    /// Index of each level's first word in `words`; the members themselves come first.
    levels: [usize; LEVELS_MAX],
    depth: usize,
}

impl BitTree {
    /// Creates an empty set for numbers below `bound`.
    pub(super) fn new(bound: usize) -> Self {
        let mut levels = [0; LEVELS_MAX];
        let (mut depth, mut words, mut bits) = (0, 0, bound.max(1));
        loop {
            levels[depth] = words;
            let here = bits.div_ceil(64);
            (depth, words, bits) = (depth + 1, words + here, here);
            if here == 1 || depth == LEVELS_MAX {
                break;
            }
        }
        Self { words: vec![0; words], levels, depth }
    }

    /// Returns true if the set is empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words[self.levels[self.depth - 1]] == 0
    }

    /// Returns true if `number` is a member. It must be below the bound or the buddy of a number that is.
    #[inline]
    pub(super) fn has(&self, number: usize) -> bool {
        self.words.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// Adds `number` to the set.
    #[inline]
    pub(super) fn insert(&mut self, mut number: usize) {
        for &start in &self.levels[..self.depth] {
            let word = &mut self.words[start + number / 64];
            let before = *word;
            *word = before | 1 << (number % 64);
            if before != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Removes `number` from the set.
    #[inline]
    pub(super) fn remove(&mut self, mut number: usize) {
        for &start in &self.levels[..self.depth] {
            let word = &mut self.words[start + number / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Returns the lowest member.
    #[inline]
    pub(super) fn first(&self) -> Option<usize> {
        if self.is_empty() { None } else { Some(self.descend(self.depth, 0)) }
    }

    /// Returns the lowest member that is not below `from`.
    pub(super) fn next_from(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (level, &start) in self.levels[..self.depth].iter().enumerate() {
            let end = self.levels.get(level + 1).filter(|_| level + 1 < self.depth);
            let words = end.map_or(self.words.len(), |&end| end) - start;
            if at / 64 >= words {
                return None;
            }
            let rest = self.words[start + at / 64] & (u64::MAX << (at % 64));
            if rest != 0 {
                return Some(self.descend(level, at / 64 * 64 + rest.trailing_zeros() as usize));
            }
            at = at / 64 + 1;
        }
        None
    }

    /// Returns the lowest member below bit `at` of the level that is `level` levels above the members.
    #[inline]
    fn descend(&self, level: usize, mut at: usize) -> usize {
        for &start in self.levels[..level].iter().rev() {
            at = at * 64 + self.words[start + at].trailing_zeros() as usize;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    #[expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]
    fn agrees_with_a_sorted_set_over_random_changes() {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for bound in [1, 63, 64, 65, 4_096, 4_097, 300_000] {
            let (mut tree, mut model) = (BitTree::new(bound), BTreeSet::new());
            for _ in 0..3_000 {
                let number = random.usize(..bound);
                if random.bool() {
                    tree.insert(number);
                    model.insert(number);
                } else {
                    // Half of the removals hit a member.
                    let number = model.range(number..).next().copied().unwrap_or(number);
                    tree.remove(number);
                    model.remove(&number);
                }
                let from = random.usize(..bound + 2);
                assert_eq!(tree.first(), model.first().copied());
                assert_eq!(tree.next_from(from), model.range(from..).next().copied(), "from {from}");
                assert_eq!(tree.is_empty(), model.is_empty());
                assert_eq!(tree.has(number), model.contains(&number));
            }
        }
    }
}
