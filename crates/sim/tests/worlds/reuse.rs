//! Worlds whose blocks are collected and used again: few blocks, more work, on flash and on the file medium.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::simulated_device::DeviceActivity;
use headwater_sim::world::{FILE_SEEDS, LYING_SEEDS, REUSE_SEEDS, SWARM_SEEDS};
use std::sync::Mutex;

const SEEDS: u64 = 24;

#[test]
fn acked_writes_survive_where_blocks_are_used_again() {
    let total = Mutex::new(DeviceActivity::default());
    on_all_cores(0..SEEDS, |seed| {
        for kind in [SWARM_SEEDS, SWARM_SEEDS + LYING_SEEDS, FILE_SEEDS] {
            let report = replay(REUSE_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
            total.lock().unwrap().add(report.activity);
        }
        Ok(())
    });
    let total = total.into_inner().unwrap();
    println!("{total:?}");
    // Without collection and checkpoints these worlds would find nothing that all worlds do not find.
    let worlds = 3 * SEEDS;
    assert!(total.collected > 4 * worlds && total.checkpoints > 4 * worlds, "{total:?}");
    assert!(total.expired > worlds && total.lossy_openings > 1, "{total:?}");
}
