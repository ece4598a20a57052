//! The worlds whose commands take many turns: long values, and clears of many keys.
//!
//! Input: a world as its seed draws it. Output: the same world with more keys and longer values, and room for both.
//! Invariant: the draws of the world itself stay as they are; what is drawn here comes from a stream of its own.

use super::config::WorldConfig;

/// Makes a world of many keys, some of them with long values.
pub(super) fn change(config: &mut WorldConfig, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6C6F_6E67_0000);
    config.media.geometry.blocks = rng.u32(72..=96);
    // A quarter of the frames limits the length of a value.
    config.device.frames_max = 2_048;
    let workload = &mut config.workload;
    workload.keys = [rng.u32(2..=8), rng.u32(300..=600)][rng.usize(0..2)];
    workload.value_bytes_max = [40, 1_000][rng.usize(0..2)];
    workload.chained_every = [2, 8][rng.usize(0..2)];
    workload.chained_bytes = [280_000..700_000, 520_000..1_600_000][rng.usize(0..2)].clone();
    workload.shares.store = workload.shares.store.max(800);
    workload.shares.clear = [2, 8][rng.usize(0..2)];
    config.switches.checkpoint_every = [0, 8, 64][rng.usize(0..3)];
    config.commands_max = 1 << rng.u32(7..=10);
    config.points_max = 1 << 13;
    // The bytes of the longest values are counted in no promise of room.
    config.room_bytes = 0;
}
