//! Worlds whose batches check keys that they do not write, as transactions with watched keys do.

use crate::all_cores::on_all_cores;
use headwater_sim::replay::replay;
use headwater_sim::world::{CHECK_SEEDS, FILE_SEEDS, LYING_SEEDS, REUSE_SEEDS, SWARM_SEEDS};

const SEEDS: u64 = 48;

#[test]
fn batches_with_checks_are_carried_out_exactly_if_the_checked_keys_allow_it() {
    on_all_cores(0..SEEDS, |seed| {
        for kind in [0, SWARM_SEEDS, SWARM_SEEDS + LYING_SEEDS, FILE_SEEDS, REUSE_SEEDS + SWARM_SEEDS] {
            replay(CHECK_SEEDS + kind + seed, None).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    });
}
