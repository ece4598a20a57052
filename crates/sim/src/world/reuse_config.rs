//! The worlds whose blocks are collected and used again: few blocks, long boots, records that are replaced and removed.
//!
//! Input: a world as its seed draws it. Output: the same world with a small medium and more work.
//! Invariant: the draws of the world itself stay as they are; what is drawn here comes from a stream of its own.

use super::config::{BootLength, MediumHonesty, WorldConfig, WorldSwitches};
use crate::workload::{FeatureUse, ValueLengths};
use headwater_ssd::limits::BLOCKS_MIN;

/// Bytes of records that a medium of the fewest blocks has room for, whatever power cuts left of it.
const ROOM_BYTES: u64 = 200_000;

/// Makes a world of few blocks that its clients fill several times.
pub(super) fn change(config: &mut WorldConfig, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7265_7573_6500);
    config.media.geometry.blocks = BLOCKS_MIN + rng.u32(0..=3);
    let workload = &mut config.workload;
    workload.keys = [rng.u32(1..=3), rng.u32(4..=16), rng.u32(16..=32), rng.u32(100..=400)][rng.usize(0..4)];
    workload.value_bytes_max = [40, 1_000, 3_900, 12_000][rng.usize(0..4)];
    workload.lengths = if rng.bool() { ValueLengths::Same } else { ValueLengths::Drawn };
    workload.chained_every = 0;
    workload.shares.store = workload.shares.store.max(800);
    workload.shares.delete = [50, 400, 800][rng.usize(0..3)];
    workload.shares.clear = [0, 2, 20][rng.usize(0..3)];
    if rng.u8(0..4) == 0 {
        workload.expiry = FeatureUse::Most;
    }
    config.commands_max = 1 << rng.u32(9..=11);
    config.points_max = 1 << 13;
    config.boots = BootLength::HalfLong;
    config.rounds = rng.u32(2..=4);
    config.faulty_boot = rng.u32(0..config.rounds);
    let is_honest = config.honesty == MediumHonesty::Honest;
    if is_honest {
        config.room_bytes = ROOM_BYTES;
    } else {
        // Damage is found in the boots behind it.
        config.rounds += rng.u32(0..=2);
    }
    let some = |is_on| if is_on { FeatureUse::Some } else { FeatureUse::Never };
    config.switches = WorldSwitches {
        early_cut_every: [0, 2, 4][rng.usize(0..3)],
        checkpoint_every: [0, 20, 50, 200][rng.usize(0..4)],
        inspection: some(rng.u8(0..4) == 0),
        kills: some(rng.bool()),
        idle_ends: some(rng.bool()),
        cell_cuts: some(rng.bool()),
        cell_losses: some(is_honest && rng.bool()),
        resting_faults: some(rng.u8(0..4) > 0),
        ..config.switches
    };
}
