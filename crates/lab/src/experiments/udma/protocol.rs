//! The paper's requests and settings, and the check that every request was served by the tier of its length.
//!
//! Input: a class of requests, an upper bound of their length, and a seed.
//! Output: requests, settings of pools, and an error for a pool that served them otherwise.
//! Invariant: all methods receive the same requests.

use super::failed;
use crate::experiment::LabError;
use headwater_dma::pool::{PAPER_BLOCKS, PinTier, Pool, TierSetting, TierThresholds};
use headwater_io::PoolSettings;

/// One of the paper's three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UdmaClass {
    /// Its name in claims.
    pub(super) name: &'static str,
    /// Number of requests of a run.
    pub(super) requests: usize,
    /// Every request is longer than this.
    pub(super) above: usize,
    /// Upper bounds of the lengths: the axis of figures 5 and 6. The last is the class's own.
    pub(super) bounds: &'static [usize],
}

pub(super) const CLASSES: [UdmaClass; 3] = [
    UdmaClass { name: "small", requests: 50_000, above: 0, bounds: &[1 << 10, 2 << 10, 4 << 10] },
    UdmaClass { name: "medium", requests: 5_000, above: 4 << 10, bounds: &[16 << 10, 64 << 10, 128 << 10] },
    UdmaClass { name: "big", requests: 5_000, above: 128 << 10, bounds: &[256 << 10, 512 << 10, 1 << 20] },
];

/// A read or write request.
#[derive(Clone, Copy, Debug)]
pub(super) struct UdmaRequest {
    pub(super) bytes: usize,
    pub(super) direction: UdmaDirection,
    /// Byte offset on the device, a multiple of 4 KiB that leaves room for the longest request.
    pub(super) offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UdmaDirection {
    Read,
    Write,
}

/// Returns `count` random requests of up to `bound` bytes, in whole units, on a device of so many bytes with units of so
/// many.
pub(super) fn requests(
    class: &UdmaClass,
    bound: usize,
    count: usize,
    (device_bytes, unit_bytes): (u64, usize),
    seed: u64,
) -> Vec<UdmaRequest> {
    let mut random = fastrand::Rng::with_seed(seed);
    let sectors = (device_bytes - bound.next_multiple_of(unit_bytes) as u64) / 4_096;
    let mut one = || UdmaRequest {
        bytes: random.usize(class.above + 1..=bound).next_multiple_of(unit_bytes),
        direction: if random.bool() { UdmaDirection::Read } else { UdmaDirection::Write },
        offset: random.u64(..sectors) * 4_096,
    };
    (0..count).map(|_| one()).collect()
}

/// The limits of the tiers that a run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TierPreset {
    /// Section 5.2 of the paper, in which it measures.
    Paper52,
    /// Section 4.1 of the paper, its design.
    Paper41,
    /// The limits measured on this machine, and the sizes that a device uses by default.
    Ours,
}

impl TierPreset {
    pub(super) const ALL: [Self; 3] = [Self::Paper52, Self::Paper41, Self::Ours];

    /// Returns the name in rows and claims.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Paper52 => "paper_5_2",
            Self::Paper41 => "paper_4_1",
            Self::Ours => "ours",
        }
    }

    /// Returns the settings with which a device is opened. The paper's blocks are 32 MB for small requests and 4 MB for
    /// the pool; its blocks of 32 MB for big requests, which many requests share, are no dynamic tier.
    pub(super) fn settings(self) -> PoolSettings {
        let paper = |limits: TierThresholds| PoolSettings {
            tiers: Some(limits.into()),
            chunk_bytes: Some(PAPER_BLOCKS.medium),
            static_bytes: Some(PAPER_BLOCKS.small),
            ..PoolSettings::default()
        };
        match self {
            Self::Paper52 => paper(TierThresholds::PAPER_5_2),
            Self::Paper41 => paper(TierThresholds::PAPER_4_1),
            Self::Ours => PoolSettings { tiers: Some(TierSetting::Calibrated), ..PoolSettings::default() },
        }
    }
}

/// Returns the tier that must serve a request, by the limits alone.
pub(super) fn claimed_tier(limits: TierThresholds, bytes: usize) -> PinTier {
    if bytes <= limits.small_max {
        PinTier::Static
    } else if bytes < limits.large_min {
        PinTier::Pool
    } else {
        PinTier::Dynamic
    }
}

/// The number of requests that each tier of a pool must have served.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierLedger {
    claimed: [u64; 3],
}

impl TierLedger {
    /// Counts a request that a tier must serve.
    pub(super) fn count(&mut self, tier: PinTier) {
        self.claimed[tier as usize] += 1;
    }

    /// Compares with the counters of the pool: every request was served by the tier that is claimed for it, and no other
    /// memory was used.
    ///
    /// # Errors
    /// The numbers, if they differ: then the run does not measure what it claims.
    pub(super) fn check(&self, pool: &Pool) -> Result<(), LabError> {
        let counted = pool.statistics().tiers;
        if counted.served == self.claimed && (counted.overflowed, counted.imported) == (0, 0) {
            return Ok(());
        }
        Err(failed(format!(
            "requests by tier (static, pool, dynamic) are {:?} by the limits and {:?} by the pool's counters, {} \
             overflowed and {} imported: the run did not go through the tiers that it claims",
            self.claimed, counted.served, counted.overflowed, counted.imported
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::PoolConfig;

    #[test]
    fn requests_fit_their_class_and_are_reproducible() {
        for unit in [512, 4_096] {
            for class in &CLASSES {
                for &bound in class.bounds {
                    let list = requests(class, bound, 500, (64 << 20, unit), 1);
                    let most = bound.next_multiple_of(unit);
                    assert!(list.iter().all(|request| request.bytes > class.above && request.bytes <= most));
                    assert!(list.iter().all(|request| request.offset + request.bytes as u64 <= 64 << 20));
                    assert!(list.iter().all(|request| request.bytes.is_multiple_of(unit)));
                    let again = requests(class, bound, 500, (64 << 20, unit), 1);
                    assert!(list.iter().zip(&again).all(|(a, b)| (a.bytes, a.offset) == (b.bytes, b.offset)));
                }
            }
        }
        assert_eq!(CLASSES.map(|class| class.requests), [50_000, 5_000, 5_000]);
    }

    #[test]
    fn each_class_of_the_paper_has_one_tier_of_its_section_5_2() {
        for (class, tier) in CLASSES.iter().zip(PinTier::ALL) {
            let list = requests(class, class.bounds[2], 500, (64 << 20, 512), 1);
            let claimed = |request: &UdmaRequest| claimed_tier(TierThresholds::PAPER_5_2, request.bytes);
            assert!(list.iter().all(|request| claimed(request) == tier), "{}", class.name);
        }
        assert_eq!(claimed_tier(TierThresholds::PAPER_4_1, 1 << 20), PinTier::Pool);
        assert_eq!(claimed_tier(TierThresholds::PAPER_4_1, 4 << 20), PinTier::Dynamic);
    }

    #[test]
    fn run_that_does_not_go_through_its_tier_fails() {
        let limits = TierThresholds::PAPER_5_2;
        let config =
            PoolConfig { tiers: Some(limits.into()), static_bytes: 64 << 10, ..PoolConfig::default() };
        let pool = Pool::open(config).unwrap();
        let mut ledger = TierLedger::default();
        for bytes in [512, 4_096, 64 << 10, 256 << 10] {
            drop(pool.buffer(bytes).unwrap());
            ledger.count(claimed_tier(limits, bytes));
        }
        ledger.check(&pool).unwrap();
        // A kept buffer, as the ring of one buffer that stood in for the small tier.
        ledger.count(PinTier::Static);
        let refused = ledger.check(&pool).unwrap_err().to_string();
        assert!(
            refused.contains("[3, 1, 1] by the limits and [2, 1, 1] by the pool's counters"),
            "{refused}"
        );
        // A request that its tier could not serve is counted for the pool.
        let slots: Vec<_> = (0..17).map(|_| pool.buffer(4_096).unwrap()).collect();
        (0..16).for_each(|_| ledger.count(PinTier::Static));
        let refused = ledger.check(&pool).unwrap_err().to_string();
        assert!(refused.contains("1 overflowed"), "{refused}");
        drop(slots);
    }
}
