//! The worlds whose long values lie in extents, on a medium that they fill several times.
//!
//! Input: a world as its seed draws it. Output: the same world with few keys, long values and blocks that are used again.
//! Invariant: the draws of the world itself stay as they are; what is drawn here comes from a stream of its own.

use super::config::{MediumHonesty, WorldConfig};
use crate::workload::FeatureUse;
use headwater_ssd::media::geometry::BLOCK_DATA_BYTES;

/// Bytes of records that a medium of the fewest blocks has room for, whatever power cuts left of it.
const ROOM_BYTES: u64 = 1_500_000;

/// Makes a world of values in extents.
pub(super) fn change(config: &mut WorldConfig, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6578_7465_6E74);
    config.media.geometry.blocks = rng.u32(30..=48);
    config.device.frames_max = 1_024;
    config.device.extents_from = BLOCK_DATA_BYTES;
    let workload = &mut config.workload;
    workload.keys = [rng.u32(1..=3), rng.u32(4..=40)][rng.usize(0..2)];
    workload.value_bytes_max = [40, 1_000, 12_000][rng.usize(0..3)];
    workload.chained_every = [1, 2, 4][rng.usize(0..3)];
    workload.chained_bytes = [BLOCK_DATA_BYTES..BLOCK_DATA_BYTES + 2, 200_000..400_000, 262_144..1_200_000]
        [rng.usize(0..3)]
    .clone();
    workload.shares.store = workload.shares.store.max(800);
    workload.shares.delete = [50, 400][rng.usize(0..2)];
    workload.shares.clear = [0, 2, 20][rng.usize(0..3)];
    config.switches.checkpoint_every = [0, 8, 64][rng.usize(0..3)];
    config.commands_max = 1 << rng.u32(5..=9);
    config.points_max = 1 << rng.u32(9..=13);
    let is_short = workload.chained_bytes.end <= 400_000;
    let is_honest = config.honesty == MediumHonesty::Honest;
    config.room_bytes = if is_short && is_honest { ROOM_BYTES } else { 0 };
    config.workload.parts = [FeatureUse::Some, FeatureUse::Never][rng.usize(0..2)];
}
