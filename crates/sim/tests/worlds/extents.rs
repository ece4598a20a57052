//! Worlds whose long values lie in extents, on flash and on the file medium.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{BLOCK_SEEDS, EXTENT_SEEDS, FILE_SEEDS, LYING_SEEDS, SWARM_SEEDS};

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
