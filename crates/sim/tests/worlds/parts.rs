//! Worlds whose batches are carried out in many parts, on flash and on the file medium, with and without reuse of blocks.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{
    BLOCK_SEEDS, EXTENT_SEEDS, FILE_SEEDS, GATHER_SEEDS, LYING_SEEDS, PART_SEEDS, REUSE_SEEDS, SWARM_SEEDS,
};

const SEEDS: u64 = 32;

#[test]
fn batches_of_many_parts_are_carried_out_whole_or_not_at_all() {
    on_all_cores(0..SEEDS, |seed| {
        for kind in [
            0,
            BLOCK_SEEDS,
            SWARM_SEEDS,
            SWARM_SEEDS + LYING_SEEDS,
            FILE_SEEDS,
            REUSE_SEEDS + SWARM_SEEDS,
            REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS,
        ] {
            replay(PART_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}

#[test]
fn commits_that_wait_for_more_commands_keep_every_promise() {
    on_all_cores(0..SEEDS, |seed| {
        for kind in [
            0,
            SWARM_SEEDS,
            SWARM_SEEDS + LYING_SEEDS,
            FILE_SEEDS,
            REUSE_SEEDS + SWARM_SEEDS,
            EXTENT_SEEDS + SWARM_SEEDS,
        ] {
            replay(PART_SEEDS + GATHER_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}
