//! Chunk sizing: adapts the chunk size m to the load.
//!
//! Input: the bytes in use, at every tick. Output: the size of the next chunk. Invariant: it is a power of two within
//! the configured bounds, and existing chunks never change.

use super::config::ChunkRule;
use headwater_host::width::to_usize;

/// The moving average of the load and its peak.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkSizing {
    rule: ChunkRule,
    average: u64,
    peak: u64,
}

impl ChunkSizing {
    pub(super) fn new(rule: ChunkRule) -> Self {
        Self { rule, average: 0, peak: 0 }
    }

    /// Takes one sample. Returns the new m, or `None` if m is fixed or nothing was ever in use.
    pub(super) fn sample(&mut self, in_use: u64) -> Option<usize> {
        let ChunkRule::Adaptive { min: least, max: most } = self.rule else { return None };
        self.average = self.average - self.average / 8 + in_use / 8;
        self.peak = self.average.max(self.peak - self.peak / 32);
        if self.peak == 0 {
            return None;
        }
        let eighth = to_usize(self.peak / 8).min(most);
        Some(eighth.next_power_of_two().clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn after(rule: &mut ChunkSizing, ticks: u32, in_use: u64) -> Option<usize> {
        (0..ticks).map(|_| rule.sample(in_use)).last().flatten()
    }

    #[test]
    fn chunks_are_an_eighth_of_the_bytes_in_use_within_bounds() {
        let mut rule = ChunkSizing::new(ChunkRule::DEFAULT);
        assert_eq!(after(&mut rule, 5, 0), None);
        assert_eq!(after(&mut rule, 60, 8 * MIB), Some(2 << 20));
        assert_eq!(after(&mut rule, 60, 100 * MIB), Some(16 << 20));
        assert_eq!(after(&mut rule, 60, 10_000 * MIB), Some(64 << 20));
        assert_eq!(after(&mut rule, 400, MIB), Some(2 << 20));
    }

    #[test]
    fn one_burst_changes_the_chunk_size_little() {
        let mut rule = ChunkSizing::new(ChunkRule::DEFAULT);
        after(&mut rule, 60, 16 * MIB);
        assert_eq!(rule.sample(100 * MIB), Some(4 << 20));
        assert_eq!(ChunkSizing::new(ChunkRule::Fixed).sample(100 * MIB), None);
    }
}
