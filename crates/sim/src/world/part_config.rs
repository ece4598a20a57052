//! The worlds whose batches, and the maps of whose checkpoints, are carried out in many parts.
//!
//! Input: a world as its seed draws it. Output: the same world with longer batches, of which the device carries out few writes
//! in a turn, and with a device that encodes few entries of a map in a turn. Invariant: the draws of the world itself stay
//! as they are; what is drawn here comes from a stream of its own.

use super::config::WorldConfig;
use headwater_ssd::limits::MAP_PART_ENTRIES;

/// Makes a world of batches of many parts.
pub(super) fn change(config: &mut WorldConfig, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7061_7274_0000);
    config.device.batch_part_writes = [1, 1, 2, 5][rng.usize(0..4)];
    config.depth = [4, 16, 64][rng.usize(0..3)];
    config.commands_max = 1 << rng.u32(6..=10);
    config.points_max = 1 << rng.u32(8..=12);
    let workload = &mut config.workload;
    workload.keys = workload.keys.max(24);
    workload.batch_writes_max = [6, 20, 40][rng.usize(0..3)];
    // A batch takes at most half of the device's memory.
    workload.value_bytes_max = workload.value_bytes_max.min([40, 400, 2_000][rng.usize(0..3)]);
    workload.chained_every = 0;
    workload.shares.batch = workload.shares.batch.max(250);
    workload.shares.list = workload.shares.list.max(60);
    // The map of these media has few blocks: most devices encode it over many turns.
    config.device.map_part_entries = [1, 1, 3, MAP_PART_ENTRIES][rng.usize(0..4)];
    // The bytes of the longest batches are counted in no promise of room.
    config.room_bytes = 0;
}
