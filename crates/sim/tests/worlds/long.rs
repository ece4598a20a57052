//! Worlds whose commands take many turns: long values, and clears of many keys, on flash and on the file medium.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{BLOCK_SEEDS, FILE_SEEDS, LONG_SEEDS, LYING_SEEDS, SWARM_SEEDS};

const SEEDS: u64 = 16;

#[test]
fn acked_writes_survive_where_commands_take_many_turns() {
    on_all_cores(0..SEEDS, |seed| {
        for kind in [0, BLOCK_SEEDS, SWARM_SEEDS, SWARM_SEEDS + LYING_SEEDS, FILE_SEEDS] {
            replay(LONG_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}
