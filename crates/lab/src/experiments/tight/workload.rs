//! The operations of YCSB's workloads A to C: reads and updates of keys by a Zipfian distribution.
//!
//! Input: the number of keys and the share of updates. Output: a list of operations, the same for every store, also as a
//! file for another program. Popular keys are spread over the key space.

use std::io;
use std::path::Path;

/// Skew of the distribution, as YCSB sets it.
const THETA: f64 = 0.99;
/// Bit of an operation that makes it an update.
pub(super) const UPDATE: u32 = 1 << 31;
/// An odd prime: multiplying by it visits every key once.
const SPREAD: u64 = 2_654_435_761;

/// A generator of Zipfian ranks (Gray et al., SIGMOD 1994), as in YCSB.
#[derive(Clone, Debug)]
pub(super) struct ZipfRanks {
    count: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl ZipfRanks {
    /// Prepares ranks from 0 to `keys`, without it.
    pub(super) fn new(keys: u32) -> Self {
        let zeta = zeta(keys);
        let count = f64::from(keys);
        let eta = (1.0 - (2.0 / count).powf(1.0 - THETA)) / (1.0 - zeta_of_two() / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// Draws a rank; 0 is the most popular.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is between 0 and the number of keys"
    )]
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> u32 {
        let uniform = random.f64();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < zeta_of_two() {
            1
        } else {
            let rank = self.count * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
            rank.min(self.count - 1.0) as u32
        }
    }
}

fn zeta(keys: u32) -> f64 {
    (1..=keys).map(|rank| f64::from(rank).powf(-THETA)).sum()
}

fn zeta_of_two() -> f64 {
    1.0 + 2.0_f64.powf(-THETA)
}

/// Returns the key of a rank.
pub(super) fn key_of_rank(rank: u32, keys: u32) -> u32 {
    u32::try_from(u64::from(rank) * SPREAD % u64::from(keys)).unwrap_or(0)
}

/// Returns the number of a key as text, with which both stores name it.
pub(super) fn key_name(key: u32) -> String {
    format!("key:{key:012}")
}

/// Draws operations, of which `updates` in a hundred are updates.
pub(super) fn operations(
    ranks: &ZipfRanks,
    keys: u32,
    updates: u32,
    count: usize,
    random: &mut fastrand::Rng,
) -> Vec<u32> {
    let mut one = || {
        let key = key_of_rank(ranks.draw(random), keys);
        if random.u32(..100) < updates { key | UPDATE } else { key }
    };
    (0..count).map(|_| one()).collect()
}

/// Writes operations to a file, as the driver of `RocksDB` reads them.
pub(super) fn write_operations(path: &Path, operations: &[u32]) -> io::Result<()> {
    let bytes: Vec<u8> = operations.iter().flat_map(|operation| operation.to_le_bytes()).collect();
    std::fs::write(path, bytes)
}

/// Returns the share of the operations that read keys which are not among the `cached` most popular ones: the reads of the
/// medium that a cache of as many values cannot avoid, whatever its policy.
#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
pub(super) fn miss_share(operations: &[u32], keys: u32, cached: u32) -> f64 {
    let mut popular = vec![false; keys as usize];
    (0..cached.min(keys)).for_each(|rank| popular[key_of_rank(rank, keys) as usize] = true);
    // An update is a number beyond the keys.
    let misses = operations.iter().filter(|&&key| popular.get(key as usize) == Some(&false)).count();
    misses as f64 / operations.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 10_000;

    #[test]
    fn ranks_follow_the_distribution() {
        let ranks = ZipfRanks::new(KEYS);
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = vec![0_u32; KEYS as usize];
        let draws = 1_000_000;
        for _ in 0..draws {
            counts[ranks.draw(&mut random) as usize] += 1;
        }
        // The first two ranks are exact, the approximation of later ones is that of YCSB.
        for (rank, tolerance) in [(0_u32, 0.02), (1, 0.03), (9, 0.3), (99, 0.3)] {
            let expected = f64::from(draws) * f64::from(rank + 1).powf(-THETA) / zeta(KEYS);
            let found = f64::from(counts[rank as usize]);
            assert!((found / expected - 1.0).abs() < tolerance, "rank {rank}: {found}, not {expected}");
        }
    }

    #[test]
    fn every_rank_has_a_key_of_its_own() {
        let mut seen = vec![false; KEYS as usize];
        for rank in 0..KEYS {
            assert!(!std::mem::replace(&mut seen[key_of_rank(rank, KEYS) as usize], true), "{rank}");
        }
    }

    #[test]
    fn share_of_updates_and_of_misses_is_as_asked() {
        let ranks = ZipfRanks::new(KEYS);
        let mut random = fastrand::Rng::with_seed(2);
        let list = operations(&ranks, KEYS, 50, 20_000, &mut random);
        let updates = list.iter().filter(|&&operation| operation & UPDATE != 0).count();
        assert!((9_500..10_500).contains(&updates), "{updates}");
        assert!((miss_share(&list, KEYS, KEYS)).abs() < 1e-9);
        let tenth = miss_share(&list, KEYS, KEYS / 10);
        assert!((0.05..0.25).contains(&tenth), "half of the misses are updates: {tenth}");
        assert!(
            operations(&ranks, KEYS, 0, 100, &mut random).iter().all(|operation| operation & UPDATE == 0)
        );
    }
}
