//! The machines of the study: published constants, and nothing else but the ceiling, which is stated.
//!
//! Input: a number of channels and a ceiling. Output: a [`StudySetup`]. Invariant: a single job, a list and a job in flight
//! take the published times, within the errors that the constants state.

use super::machine::{AffineTime, BandwidthSharing, ChannelModel, MoveMachine};
use super::modelled_machine::JobCosts;
use super::published::{
    AMD_HOST_RATES, AMD_SINGLE, DSA_HOST_CPU, DSA_HOST_RATES, DSA_LIST_RATE, DSA_OPERATION_MIN_NS,
    DSA_SINGLE, DSA_SUBMIT_NS, DSA_UNALIGNED_NS, DSA_UNALIGNED_OPERATION,
};
use super::study::{RATIO_PART_MIN, StudySetup, StudyWay};
use headwater_dma::mover::policy::CacheWrites;

/// A ceiling that limits nothing, in bytes a nanosecond.
pub const NO_CEILING: f64 = 1e9;
/// Engines of a DSA device behind a shared work queue, and the entries of the queue.
const DSA_ENGINES: usize = 4;
const DSA_ENTRIES: usize = 128;

/// Returns DSA devices beside one core of their host, under a ceiling in bytes a nanosecond that has no published value.
#[must_use]
pub fn dsa_setup(channels: usize, ceiling_bytes_per_ns: f64) -> StudySetup {
    // The published time of a single job includes its submission.
    let pieces = DSA_SINGLE.map(|piece| AffineTime { fixed_ns: piece.fixed_ns - DSA_SUBMIT_NS, ..piece });
    let channel = ChannelModel { pieces, engines: DSA_ENGINES, depth: DSA_ENTRIES };
    StudySetup {
        machine: MoveMachine {
            cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: DSA_HOST_CPU },
            submit_ns: DSA_SUBMIT_NS,
            channels: vec![channel; channels],
            ceiling_bytes_per_ns,
            sharing: BandwidthSharing::Proportional,
        },
        costs: JobCosts {
            cpu_rates: &DSA_HOST_RATES,
            operation_min_ns: DSA_OPERATION_MIN_NS,
            operation_bytes_per_ns: DSA_LIST_RATE,
            unaligned_ns: DSA_UNALIGNED_NS,
            unaligned_operation: Some(DSA_UNALIGNED_OPERATION),
            ..JobCosts::default()
        },
        way: StudyWay::Channels,
        known_cpu_rate: DSA_HOST_CPU,
        ratio_part_min: RATIO_PART_MIN,
        jobs_max: DSA_ENTRIES,
        cache_writes: CacheWrites::NonAllocating,
    }
}

/// Returns one PTDMA channel beside one core, for the migration of folios: the copy is a part of it. No time of a
/// submission was published; it is in that of a job.
#[must_use]
pub fn amd_setup() -> StudySetup {
    let channel = ChannelModel { pieces: AMD_SINGLE, engines: 1, depth: DSA_ENTRIES };
    let usual = dsa_setup(0, NO_CEILING);
    StudySetup {
        machine: MoveMachine { submit_ns: 0.0, channels: vec![channel], ..usual.machine },
        costs: JobCosts { cpu_rates: &AMD_HOST_RATES, ..JobCosts::default() },
        known_cpu_rate: 7.0,
        ..usual
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::{
        BATCH_ERROR, DSA_BATCH_TABLE, DSA_IN_FLIGHT_TABLE, DSA_SINGLE_TABLE, DSA_UNALIGNED_BATCH_TABLE,
        DSA_UNALIGNED_TABLE, SINGLE_ERROR, UNALIGNED_ERROR, amd_channels_us, amd_cpu_us, largest_error,
    };
    use super::super::study::{StudyPoint, StudyRun};
    use super::*;

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths of the tables")]
    fn us(setup: &StudySetup, point: impl Fn(usize) -> StudyPoint) -> impl Fn(f64) -> f64 {
        move |bytes| {
            let mut run = StudyRun::new(setup, 1);
            let time = run.time(&point(bytes as usize)).ns_per_copy / 1_000.0;
            assert_eq!(run.wrong_bytes(), 0);
            time
        }
    }

    #[test]
    fn mover_over_the_modelled_device_takes_the_published_times() {
        let dsa = dsa_setup(1, NO_CEILING);
        let list = |bytes| StudyPoint { copies: 32, depth: 8, ..StudyPoint::synchronous(bytes) };
        let single = largest_error(&DSA_SINGLE_TABLE, us(&dsa, StudyPoint::synchronous));
        assert!(single <= SINGLE_ERROR, "{single}");
        let batch = largest_error(&DSA_BATCH_TABLE[..6], us(&dsa, list));
        assert!(batch <= BATCH_ERROR, "{batch}");
        let shifted = |bytes| StudyPoint { offset: 8, ..StudyPoint::synchronous(bytes) };
        let unaligned = largest_error(&DSA_UNALIGNED_TABLE, us(&dsa, shifted));
        assert!(unaligned <= UNALIGNED_ERROR, "{unaligned}");
        let shifted = |bytes| StudyPoint { offset: 8, ..list(bytes) };
        let unaligned = largest_error(&DSA_UNALIGNED_BATCH_TABLE, us(&dsa, shifted));
        assert!(unaligned <= UNALIGNED_ERROR, "{unaligned}");
        let in_flight = |bytes| StudyPoint { depth: 32, ..StudyPoint::synchronous(bytes) };
        let in_flight = largest_error(&DSA_IN_FLIGHT_TABLE, us(&dsa, in_flight));
        assert!(in_flight <= BATCH_ERROR, "{in_flight}");
    }

    #[test]
    fn mover_over_the_modelled_ptdma_takes_the_times_of_its_constants() {
        let (amd, cpu) = (amd_setup(), amd_setup().by(StudyWay::Cpu));
        for bytes in [4_096.0, 65_536.0, 262_144.0, 2_097_152.0] {
            let [channel, core] = [&amd, &cpu].map(|setup| us(setup, StudyPoint::synchronous)(bytes));
            assert!((channel / amd_channels_us(bytes, 1.0) - 1.0).abs() < 0.001, "{bytes}: {channel}");
            assert!((core / amd_cpu_us(bytes).unwrap() - 1.0).abs() < 0.001, "{bytes}: {core}");
        }
    }
}
