//! Large values: server CPU of a gigabyte over RESP, and gigabytes a second through shared memory.
//!
//! Input: a node, the installed peers without persistence, and an attached client.
//! Output: rows for each value length, and the claims `p8.large.*`. Beside each stands the floor: for a value one
//! transfer between memory and a file in the same folder and one checksum; for the sockets the server of fixed replies;
//! for attach the copy of the same bytes by one core.
//!
//! A length above the longest value of the product has no figure. Data is larger than device DRAM, so that a GET reads
//! flash. The peers keep all data in memory and write no file.

mod attached;
mod sockets;

use crate::claim::{ClaimGoal, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use headwater_ssd::limits::VALUE_BYTES_MAX;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "large",
    summary: "values of 256 KiB to 64 MiB: server CPU a GB over RESP, bandwidth over attach",
    baseline: "redis-server without persistence; one transfer and one checksum (floor); a copy by one core",
    claims: &["p8.large.set.*", "p8.large.get.*", "p8.large.attach.get.*", "p8.large.attach.put.*"],
    run,
};

/// A length of values, and its name in claims.
#[derive(Clone, Copy, Debug)]
struct LargeSize {
    bytes: usize,
    name: &'static str,
}

const SIZES: [LargeSize; 5] = [
    LargeSize { bytes: 256 << 10, name: "256k" },
    LargeSize { bytes: 1 << 20, name: "1m" },
    LargeSize { bytes: 4 << 20, name: "4m" },
    LargeSize { bytes: 16 << 20, name: "16m" },
    LargeSize { bytes: 64 << 20, name: "64m" },
];

/// A promise for every length.
#[derive(Clone, Copy, Debug)]
struct LargePromise {
    /// The part of the claim's name before the length.
    name: &'static str,
    goal: ClaimGoal,
    unit: &'static str,
}

impl LargePromise {
    fn claim(self, size: LargeSize) -> String {
        format!("p8.large.{}.{}", self.name, size.name)
    }

    fn not_run(self, size: LargeSize, why: &str) -> LabClaim {
        LabClaim::not_run(self.claim(size), self.goal, self.unit, why)
    }
}

impl LargeSize {
    /// Returns the number of keys of about `data_bytes` in all.
    fn keys(self, data_bytes: usize) -> u64 {
        (data_bytes / self.bytes).max(4) as u64
    }

    /// Returns the number of values of a round of about `bytes`.
    fn count(self, bytes: usize) -> u64 {
        (bytes / self.bytes).max(1) as u64
    }

    /// Returns the reason why the product cannot store such a value, if it cannot.
    fn refused(self) -> Option<String> {
        (self.bytes > VALUE_BYTES_MAX).then(|| format!("a value has at most {} MiB", VALUE_BYTES_MAX >> 20))
    }
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    sockets::run(context, &mut findings)?;
    attached::run(context, &mut findings)?;
    Ok(findings)
}

/// Returns the device DRAM of the node: enough for the longest value, of which a value takes at most 2/9.
fn memory_option() -> String {
    let longest = SIZES.iter().map(|size| size.bytes).filter(|&bytes| bytes <= VALUE_BYTES_MAX).max();
    let frames = longest.unwrap_or(0) / 4_096;
    (frames * 9 / 2 * 4_608).max(64 << 20).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_above_the_limit_of_the_product_are_left_out_with_a_reason() {
        assert!(SIZES[0].refused().is_none());
        let above = LargeSize { bytes: VALUE_BYTES_MAX + 1, name: "above" };
        assert!(above.refused().unwrap().contains("at most"));
        let claim = sockets::SET.not_run(above, &above.refused().unwrap());
        assert_eq!(claim.name, "p8.large.set.above");
        assert!(!claim.holds && claim.why.is_some());
    }

    #[test]
    fn counts_of_values_are_never_zero() {
        assert_eq!((SIZES[4].count(1 << 20), SIZES[4].keys(1 << 20)), (1, 4));
        assert_eq!(SIZES[0].count(64 << 20), 256);
    }
}
