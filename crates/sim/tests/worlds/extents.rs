//! Worlds whose long values lie in extents, on flash and on the file medium.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{
    BLOCK_SEEDS, EXTENT_SEEDS, FILE_SEEDS, LYING_SEEDS, MOVE_SEEDS, PART_SEEDS, RECEIPT_SEEDS, RunReport,
    SWARM_SEEDS, has_channels,
};
use std::sync::atomic::{AtomicU64, Ordering};

const SEEDS: u64 = 48;

#[test]
fn acked_writes_survive_where_values_lie_in_extents() {
    on_all_cores(0..SEEDS, |seed| {
        let lying = SWARM_SEEDS + LYING_SEEDS;
        for kind in [0, BLOCK_SEEDS, SWARM_SEEDS, lying, FILE_SEEDS, FILE_SEEDS + lying] {
            replay(EXTENT_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}

#[test]
fn acked_writes_survive_where_the_device_receives_values_in_parts() {
    let (received, again) = (AtomicU64::new(0), AtomicU64::new(0));
    on_all_cores(0..SEEDS, |seed| {
        let lying = SWARM_SEEDS + LYING_SEEDS;
        for kind in [0, BLOCK_SEEDS, SWARM_SEEDS, SWARM_SEEDS + PART_SEEDS, lying, FILE_SEEDS] {
            let report = replay(EXTENT_SEEDS + RECEIPT_SEEDS + kind + seed, None);
            let report = report.map_err(|failure| failure.to_string())?;
            received.fetch_add(report.received, Ordering::Relaxed);
            again.fetch_add(report.received_again, Ordering::Relaxed);
        }
        Ok(())
    });
    let (received, again) = (received.into_inner(), again.into_inner());
    assert!(received > 1_000, "only {received} values were received in parts");
    assert!(again > 10, "only {again} values of {received} were stored from a receipt that came back");
}

#[test]
fn acked_writes_survive_where_channels_move_values_while_the_device_goes_on() {
    let waited = AtomicU64::new(0);
    on_all_cores(0..SEEDS, |seed| {
        let lying = SWARM_SEEDS + LYING_SEEDS;
        for kind in [0, BLOCK_SEEDS, SWARM_SEEDS, lying, FILE_SEEDS, FILE_SEEDS + lying, PART_SEEDS] {
            let report = replay(EXTENT_SEEDS + MOVE_SEEDS + kind + seed, None);
            let report = report.map_err(|failure| failure.to_string())?;
            waited.fetch_add(report.activity.moves_waited, Ordering::Relaxed);
        }
        Ok(())
    });
    let waited = waited.into_inner();
    assert!(waited > 10_000, "operations waited for {waited} jobs");
}

#[test]
fn the_same_seed_gives_the_same_completions_with_channels() {
    on_all_cores(0..8, |seed| {
        let run = || -> RunReport { replay(EXTENT_SEEDS + MOVE_SEEDS + seed, None).unwrap() };
        let (one, other) = (run(), run());
        let same = one.digest == other.digest && one.activity == other.activity;
        if same { Ok(()) } else { Err(format!("seed {seed} differs")) }
    });
}

#[test]
fn channels_are_in_worlds_of_their_own_kind_only() {
    assert!(has_channels(EXTENT_SEEDS + MOVE_SEEDS));
    // Wall times in microseconds and in nanoseconds: the seeds of swarms.
    let walls = [1_795_643_686_296_566, 1_795_439_093_698_000_000, 1_764_118_488_903_411_270];
    for seed in [0, EXTENT_SEEDS, MOVE_SEEDS].into_iter().chain(walls) {
        assert!(!has_channels(seed), "{seed}");
    }
}
