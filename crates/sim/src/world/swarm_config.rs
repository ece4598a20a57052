//! The worlds of the swarm: each draws what it has and what it lacks, so that worlds differ in kind, not only in order.
//!
//! Input: a seed. Output: a [`WorldConfig`].
//! Invariant: most worlds are small, so that many run in a second; every size and feature of the other seeds occurs.

use super::config::{
    BLOCK_NAMESPACE, BlockNamespaceConfig, BootLength, MediumHonesty, WorldConfig, WorldSwitches,
};
use crate::flash::PageAddressing;
use crate::media::{MediaBacking, SimMediaConfig};
use crate::presets::{FILE, PRESETS, TimingPreset};
use crate::workload::{BATCH_WRITES, CHAINED_BYTES, CommandShares, FeatureUse, ValueLengths, WorkloadConfig};
use headwater_host::clock::Nanos;
use headwater_ssd::engine::{DeviceConfig, Durability, VictimPolicy};
use headwater_ssd::namespace::BlockFormat;

/// Frames of the smallest device DRAM with which a device opens.
const FRAMES_MIN: usize = 256;

/// The amount of work in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldSize {
    /// One or two power cuts, short values.
    Small,
    /// Values of several pages.
    Medium,
    /// Many power cuts, values that span blocks.
    Large,
}

/// Returns the world of a seed.
pub(super) fn draw(seed: u64) -> WorldConfig {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x7377_6172_6D00);
    let size = match rng.u8(0..100) {
        0 => WorldSize::Large,
        1..=3 => WorldSize::Medium,
        _ => WorldSize::Small,
    };
    let mut media = media(&mut rng, size);
    let mut device = device(&mut rng);
    let mut workload = workload(&mut rng, size);
    let mut block_namespace = None;
    if rng.u8(0..6) == 0 {
        device.durability[BLOCK_NAMESPACE.index()] = durability(&mut rng);
        workload.namespaces = 1;
        block_namespace = Some(BlockNamespaceConfig {
            format: BlockFormat::ALL[rng.usize(0..2)],
            blocks: if rng.u8(0..6) == 0 { rng.u32(100..=250) } else { rng.u32(4..=24) },
            changes_every: [20, 100, 1_000][rng.usize(0..3)],
        });
    }
    let depth = [1, 2, 4, 16, 64][rng.usize(0..5)];
    let rounds = if size == WorldSize::Large { rng.u32(2..=5) } else { [1, 1, 1, 2][rng.usize(0..4)] };
    let MediumFaults { honesty, boot: faulty_boot, more_rounds, backing } = medium_faults(seed, rounds);
    if backing == MediaBacking::File {
        (media.backing, media.addressing) = (backing, PageAddressing::ByRead);
    }
    WorldConfig {
        media,
        device,
        workload,
        block_namespace,
        depth,
        faulty_boot,
        rounds: rounds + more_rounds,
        commands_max: 1 << if size == WorldSize::Large { rng.u32(6..=10) } else { rng.u32(6..=9) },
        points_max: 1 << rng.u32(6..=11),
        room_bytes: 0,
        boots: BootLength::Drawn,
        honesty,
        plans: Vec::new(),
        switches: switches(&mut rng),
    }
}

/// The faults of a medium.
struct MediumFaults {
    honesty: MediumHonesty,
    boot: u32,
    /// Boots added to those of the world, in which the damage stays.
    more_rounds: u32,
    backing: MediaBacking,
}

/// Draws the faults of the medium beside the rest of the world, which stays the same.
fn medium_faults(seed: u64, rounds: u32) -> MediumFaults {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x0066_6169_6C73);
    let honesty = match rng.u8(0..6) {
        0 => MediumHonesty::Failing,
        1 | 2 => MediumHonesty::Lying,
        _ => MediumHonesty::Honest,
    };
    let more_rounds = if honesty == MediumHonesty::Honest { 0 } else { [0, 0, 1, 2][rng.usize(0..4)] };
    let boot = rng.u32(0..rounds + more_rounds);
    let backing = if rng.u8(0..16) == 0 { MediaBacking::File } else { MediaBacking::Flash };
    MediumFaults { honesty, boot, more_rounds, backing }
}

fn media(rng: &mut fastrand::Rng, size: WorldSize) -> SimMediaConfig {
    // Half of the media have a volatile cache, which only the preset of a file has.
    let preset = if rng.bool() { FILE } else { *rng.choice(PRESETS).unwrap_or(&FILE) };
    let blocks = if size == WorldSize::Small { rng.u32(16..=24) } else { rng.u32(16..=64) };
    let addressable = preset.cached.is_none() && rng.u8(0..4) == 0;
    SimMediaConfig {
        guard_pages: if addressable || rng.bool() { 0 } else { rng.u8(1..=2) },
        queue_max: [4, 8, 32, 256][rng.usize(0..4)],
        addressing: if addressable { PageAddressing::InPlace } else { PageAddressing::ByRead },
        ..SimMediaConfig::new(TimingPreset { ..preset }, blocks)
    }
}

fn device(rng: &mut fastrand::Rng) -> DeviceConfig {
    let mut device = DeviceConfig {
        victim: if rng.bool() { VictimPolicy::Greedy } else { VictimPolicy::Fifo },
        frames_max: [FRAMES_MIN, FRAMES_MIN, 320, 1_024][rng.usize(0..4)],
        hash_seed: rng.u64(..),
        ..DeviceConfig::default()
    };
    device.durability[..3].fill_with(|| durability(rng));
    if rng.u8(0..4) == 0 {
        // The device must distinguish keys that share a hash.
        device.hash_bits = rng.u32(3..=8);
    }
    device
}

fn durability(rng: &mut fastrand::Rng) -> Durability {
    match rng.u8(0..3) {
        0 => Durability::Always,
        1 => Durability::Interval(Nanos::from_millis(rng.u64(1..=20))),
        _ => Durability::OnFlush,
    }
}

fn workload(rng: &mut fastrand::Rng, size: WorldSize) -> WorkloadConfig {
    let keys = match rng.u8(0..4) {
        0 => rng.u32(1..=4),
        1 | 2 => rng.u32(5..=24),
        _ => rng.u32(25..=64),
    };
    WorkloadConfig {
        namespaces: rng.u8(1..=3),
        keys,
        value_bytes_max: match size {
            WorldSize::Small => [0, 40, 200, 1_000][rng.usize(0..4)],
            WorldSize::Medium => [4_000, 12_000][rng.usize(0..2)],
            WorldSize::Large => [4_000, 12_000, 40_000][rng.usize(0..3)],
        },
        lengths: ValueLengths::Drawn,
        chained_every: if size == WorldSize::Large { [0, 8, 64][rng.usize(0..3)] } else { 0 },
        chained_bytes: CHAINED_BYTES,
        shares: shares(rng),
        expiry: feature(rng),
        conditions: feature(rng),
        checks: FeatureUse::Never,
        parts: FeatureUse::Never,
        across: FeatureUse::Never,
        batch_clears: FeatureUse::Never,
        batch_writes_max: BATCH_WRITES,
    }
}

/// Draws shares; a quarter of the kinds does not occur, and each other kind is rare, usual or frequent.
fn shares(rng: &mut fastrand::Rng) -> CommandShares {
    let usual = CommandShares::MIXED;
    let mut share = |usual: u32| match rng.u8(0..8) {
        0 | 1 => 0,
        2 => usual.div_ceil(4),
        3 => usual * 4,
        _ => usual,
    };
    CommandShares {
        store: share(usual.store).max(100),
        retrieve: share(usual.retrieve),
        exist: share(usual.exist),
        delete: share(usual.delete),
        batch: share(usual.batch),
        list: share(usual.list),
        flush: share(usual.flush),
        fence: share(usual.fence),
        clear: share(usual.clear),
    }
}

fn switches(rng: &mut fastrand::Rng) -> WorldSwitches {
    WorldSwitches {
        early_cut_every: [0, 1, 4, 8, 8][rng.usize(0..5)],
        checkpoint_every: [0, 0, 0, 200, 50][rng.usize(0..5)],
        inspection: if rng.u8(0..12) == 0 { FeatureUse::Some } else { FeatureUse::Never },
        shutdown: feature(rng),
        torn_operations: feature(rng),
        damaged_neighbours: feature(rng),
        unreadable_pages: feature(rng),
        slow_die: feature(rng),
        ..WorldSwitches::ALL_OFF
    }
}

fn feature(rng: &mut fastrand::Rng) -> FeatureUse {
    if rng.u8(0..3) == 0 { FeatureUse::Never } else { FeatureUse::Some }
}
