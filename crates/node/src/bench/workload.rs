//! The operations of a benchmark: keys, reads and writes, and values.
//!
//! Input: a seed. Output: [`BenchOperation`]s and value bytes. Invariant: a value is a function of its key and its
//! generation, and holds the generation in its first eight bytes, so that a reader can verify every byte of it.

use fastrand::Rng;
use std::str::FromStr;

/// Minimum size of a value that holds its generation.
pub const VERIFIABLE_BYTES: usize = 8;

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyDistribution {
    /// All keys equally frequent.
    Uniform,
    /// Zipf: the frequency of the i-th key is proportional to i to the power of minus this number, which is above 0 and
    /// below 1.
    Zipf(f64),
    /// Every key once, in order, each thread its own share; for filling.
    EachOnce,
}

/// The error of a text that is not a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a distribution: use uniform, zipf or zipf:THETA with THETA above 0 and below 1")]
pub struct DistributionError(String);

impl FromStr for KeyDistribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "zipf" => Ok(Self::Zipf(0.99)),
            _ => match text.strip_prefix("zipf:").and_then(|theta| theta.parse().ok()) {
                Some(theta) if theta > 0.0 && theta < 1.0 => Ok(Self::Zipf(theta)),
                _ => Err(DistributionError(text.to_owned())),
            },
        }
    }
}

/// Keys, sizes and mix of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchWorkload {
    /// Number of keys.
    pub keys: u64,
    /// Distribution of keys.
    pub distribution: KeyDistribution,
    /// Sizes of values, in bytes; all equally frequent.
    pub sizes: Vec<usize>,
    /// Share of reads, 0 to 1.
    pub read_share: f64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// One operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchOperation {
    /// Reads a key.
    Get(u64),
    /// Stores the next generation of a key.
    Set(u64),
}

/// The generator of one thread's operations.
#[derive(Debug)]
pub struct OperationChooser {
    rng: Rng,
    keys: u64,
    read_share: f64,
    pick: KeyChoice,
}

#[derive(Debug)]
enum KeyChoice {
    Uniform,
    Zipf(ZipfRanks),
    Next { next: u64, step: u64 },
}

impl OperationChooser {
    /// Returns the generator of thread `index` of `threads`.
    #[must_use]
    pub fn new(workload: &BenchWorkload, index: u64, threads: u64) -> Self {
        Self {
            rng: Rng::with_seed(mix(workload.seed ^ mix(index + 1))),
            keys: workload.keys,
            read_share: workload.read_share,
            pick: match workload.distribution {
                KeyDistribution::Uniform => KeyChoice::Uniform,
                KeyDistribution::Zipf(theta) => KeyChoice::Zipf(ZipfRanks::new(workload.keys, theta)),
                KeyDistribution::EachOnce => KeyChoice::Next { next: index, step: threads },
            },
        }
    }

    /// Returns the next operation.
    pub fn next_operation(&mut self) -> BenchOperation {
        let key = match &mut self.pick {
            KeyChoice::Uniform => self.rng.u64(..self.keys),
            // Ranks are hashed, so that frequent keys are not adjacent.
            KeyChoice::Zipf(zipf) => mix(zipf.rank(&mut self.rng)) % self.keys,
            KeyChoice::Next { next, step } => {
                let key = *next % self.keys;
                *next += *step;
                key
            }
        };
        if self.read_share > 0.0 && self.rng.f64() < self.read_share {
            BenchOperation::Get(key)
        } else {
            BenchOperation::Set(key)
        }
    }
}

/// A generator of Zipf ranks by the method of Gray et al., "Quickly generating billion-record synthetic databases"
/// (SIGMOD 1994).
#[derive(Debug)]
struct ZipfRanks {
    keys: f64,
    alpha: f64,
    eta: f64,
    zeta: f64,
    second: f64,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "ranks are approximate by nature; key counts stay far below 2^53"
)]
impl ZipfRanks {
    fn new(keys: u64, theta: f64) -> Self {
        let zeta: f64 = (1..=keys).map(|rank| (rank as f64).powf(-theta)).sum();
        let second = 1.0 + 0.5_f64.powf(theta);
        let count = keys as f64;
        Self {
            keys: count,
            alpha: 1.0 / (1.0 - theta),
            eta: (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - second / zeta),
            zeta,
            second,
        }
    }

    fn rank(&self, rng: &mut Rng) -> u64 {
        let uniform = rng.f64();
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < self.second {
            1
        } else {
            (self.keys * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64
        }
    }
}

/// Writes the name of a key.
pub fn write_key(key: u64, out: &mut Vec<u8>) {
    use std::io::Write as _;
    out.clear();
    // Writing to a vector cannot fail.
    let _ = write!(out, "bench:{key:012}");
}

/// Writes the value of a key in one generation.
pub fn write_value(key: u64, generation: u64, sizes: &[usize], out: &mut Vec<u8>) {
    let mut state = mix(mix(key) ^ generation);
    let count = u64::try_from(sizes.len()).unwrap_or(1).max(1);
    let index = usize::try_from(state % count).unwrap_or(0);
    let size = sizes.get(index).copied().unwrap_or(0);
    out.clear();
    out.extend_from_slice(&generation.to_le_bytes());
    while out.len() < size {
        state = mix(state);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(size);
}

/// Returns true if `value` is a complete value of this key, of any generation.
#[must_use]
pub fn is_value_of(key: u64, value: &[u8], sizes: &[usize], scratch: &mut Vec<u8>) -> bool {
    let Some(&generation) = value.first_chunk::<VERIFIABLE_BYTES>() else {
        return false;
    };
    write_value(key, u64::from_le_bytes(generation), sizes, scratch);
    scratch == value
}

/// Returns a hash of `value` by the finisher of splitmix64: every bit of the result depends on every bit of the input.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(distribution: KeyDistribution) -> BenchWorkload {
        BenchWorkload { keys: 1_000, distribution, sizes: vec![100], read_share: 0.5, seed: 7 }
    }

    #[test]
    fn filling_reaches_every_key_once() {
        let workload = BenchWorkload { read_share: 0.0, ..workload(KeyDistribution::EachOnce) };
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..3 {
            let mut chooser = OperationChooser::new(&workload, index, 3);
            let share = (0..1_000).filter(|key| key % 3 == index).count();
            for _ in 0..share {
                let BenchOperation::Set(key) = chooser.next_operation() else { panic!("filling read a key") };
                assert!(seen.insert(key), "key {key} twice");
            }
        }
        assert_eq!(seen.len(), 1_000);
    }

    #[test]
    fn zipf_prefers_few_keys_and_stays_in_range() {
        let mut zipf_counts = vec![0u32; 1_000];
        let mut chooser = OperationChooser::new(&workload(KeyDistribution::Zipf(0.99)), 0, 1);
        for _ in 0..20_000 {
            let (BenchOperation::Get(key) | BenchOperation::Set(key)) = chooser.next_operation();
            zipf_counts[usize::try_from(key).unwrap()] += 1;
        }
        zipf_counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = zipf_counts[..10].iter().sum();
        assert!(top > 20_000 / 4, "the ten most popular of 1,000 keys got {top} of 20,000");
    }

    #[test]
    fn torn_values_and_values_of_other_keys_are_detected() {
        let sizes = [8, 100, 4_096];
        let mut scratch = Vec::new();
        let mut value = Vec::new();
        for generation in 0..50 {
            write_value(3, generation, &sizes, &mut value);
            assert!(sizes.contains(&value.len()));
            assert!(is_value_of(3, &value, &sizes, &mut scratch));
            assert!(!is_value_of(3, &value[..value.len() - 1], &sizes, &mut scratch));
            if value.len() > 8 {
                assert!(!is_value_of(4, &value, &sizes, &mut scratch));
                *value.last_mut().unwrap() ^= 1;
                assert!(!is_value_of(3, &value, &sizes, &mut scratch));
            }
        }
    }

    #[test]
    fn invalid_distributions_are_refused() {
        assert_eq!("zipf:0.5".parse(), Ok(KeyDistribution::Zipf(0.5)));
        for text in ["zipf:1", "zipf:0", "zipf:", "zipf:nan", "normal", ""] {
            assert!(text.parse::<KeyDistribution>().is_err(), "{text}");
        }
    }
}
