//! Worlds whose batches have keys of several namespaces, as transactions over several databases do.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::workload::FeatureUse;
use headwater_sim::world::{
    ACROSS_SEEDS, BATCH_CLEAR_SEEDS, FILE_SEEDS, LYING_SEEDS, PART_SEEDS, REUSE_SEEDS, SWARM_SEEDS,
    WorldConfig,
};

const SEEDS: u64 = 48;

#[test]
fn batches_over_namespaces_are_present_as_a_whole_or_not_at_all() {
    on_all_cores(0..SEEDS, |seed| {
        let kinds = [
            0,
            SWARM_SEEDS,
            SWARM_SEEDS + LYING_SEEDS,
            FILE_SEEDS,
            REUSE_SEEDS + SWARM_SEEDS,
            PART_SEEDS,
            PART_SEEDS + REUSE_SEEDS,
        ];
        for kind in kinds {
            replay(ACROSS_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}

#[test]
fn batches_that_clear_namespaces_are_present_as_a_whole_or_not_at_all() {
    on_all_cores(0..SEEDS, |seed| {
        for kind in [0, SWARM_SEEDS, FILE_SEEDS, REUSE_SEEDS + SWARM_SEEDS, PART_SEEDS] {
            let seed = ACROSS_SEEDS + BATCH_CLEAR_SEEDS + kind + seed;
            replay(seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}

#[test]
fn batches_clear_in_worlds_of_their_own_kind_only() {
    let clears = |seed| WorldConfig::from_seed(seed).workload.batch_clears;
    assert_eq!(clears(ACROSS_SEEDS + BATCH_CLEAR_SEEDS), FeatureUse::Some);
    for seed in [0, ACROSS_SEEDS, BATCH_CLEAR_SEEDS, 1_795_439_093_698_000_000, 1_764_118_488_903_411_270] {
        assert_eq!(clears(seed), FeatureUse::Never, "{seed}");
    }
}

#[test]
fn seeds_of_old_swarms_have_no_batches_over_namespaces() {
    // Wall times in nanoseconds, some with the part that makes a world use its blocks again.
    for seed in [1_764_118_488_903_411_270, 1_795_439_093_698_000_000, 11_018_797_000_000_001_902] {
        assert_eq!(WorldConfig::from_seed(seed).workload.across, FeatureUse::Never, "{seed}");
    }
    assert_eq!(WorldConfig::from_seed(ACROSS_SEEDS).workload.across, FeatureUse::Some);
}
