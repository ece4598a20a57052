//! Worlds whose long values lie in extents, on flash and on the file medium.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{
    BLOCK_SEEDS, EXTENT_SEEDS, FILE_SEEDS, LYING_SEEDS, PART_SEEDS, RECEIPT_SEEDS, SWARM_SEEDS,
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
    let received = AtomicU64::new(0);
    on_all_cores(0..SEEDS, |seed| {
        let lying = SWARM_SEEDS + LYING_SEEDS;
        for kind in [0, BLOCK_SEEDS, SWARM_SEEDS, SWARM_SEEDS + PART_SEEDS, lying, FILE_SEEDS] {
            let report = replay(EXTENT_SEEDS + RECEIPT_SEEDS + kind + seed, None);
            let report = report.map_err(|failure| failure.to_string())?;
            received.fetch_add(report.received, Ordering::Relaxed);
        }
        Ok(())
    });
    let received = received.into_inner();
    assert!(received > 1_000, "only {received} values were received in parts");
}
