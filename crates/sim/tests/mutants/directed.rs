//! Worlds that are made for one change each: few worlds that are drawn come to what it breaks.
//!
//! Input: a change and a number. Output: a world, whose checker judges it as any other. Invariant: without a change the
//! device keeps every promise in each of these worlds.

use headwater_host::width::to_usize;
use headwater_sim::faults::{DamagePlan, FaultPlan, PowerCut, RestingFault};
use headwater_sim::flash::PageAddressing;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::{FEMU, FILE, TimingPreset};
use headwater_sim::workload::{
    BATCH_WRITES, CHAINED_BYTES, CommandShares, FeatureUse, ValueLengths, WorkloadConfig,
};
use headwater_sim::world::{
    ACROSS_SEEDS, BATCH_CLEAR_SEEDS, BootLength, EXTENT_SEEDS, FILE_SEEDS, MOVE_SEEDS, MediumHonesty,
    PART_SEEDS, REUSE_SEEDS, SWARM_SEEDS, SimWorld, WorldConfig, WorldSwitches,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice};
use headwater_ssd::limits::EXTENT_BYTES;
use headwater_ssd::mutant::Mutant;

/// Most worlds of one change.
pub(crate) const WORLDS_MAX: u64 = 400;
/// Blocks of a medium that is filled again and again.
const BLOCKS: u32 = 16;

/// Returns the world of a change with this number; `None` if there are none for the change.
pub(crate) fn world(mutant: Mutant, number: u64) -> Option<SimWorld<'static, SsdDevice<SimMedia>>> {
    let config = match mutant {
        Mutant::OpeningNotFlushed => kill_and_cut_of_the_opening(number),
        Mutant::IdleRecordSkipped => idle_behind_a_lost_page(),
        Mutant::ExpiryNotQueued => full_of_expired_records(),
        Mutant::ReadChecksumIgnored => flipped_bits_in_place(),
        Mutant::PageNotProven | Mutant::OlderLifeAccepted => older_record_in_the_place_of_a_newer_one(),
        Mutant::OldBlocksNotDoubted => index_and_page_lost(),
        Mutant::SpareChecksumIgnored => flipped_spare(),
        Mutant::CommitSplitsBatch | Mutant::CollectedDuringBatch => batches_in_parts(number),
        Mutant::FirstDurabilityCounts => WorldConfig::from_seed(ACROSS_SEEDS + number),
        Mutant::ClearNotAwaited | Mutant::OneClearAwaited => batches_behind_clears(number),
        Mutant::BatchClearNotAwaited | Mutant::CommitBehindBatchClear => batches_that_clear(number),
        Mutant::ListedBlocksCounted => small_values_over_few_blocks(),
        Mutant::FreedBlocksNotFilled => checkpoints_beside_reuse(number),
        Mutant::CheckpointDuringClear => checkpoints_behind_clears(number),
        Mutant::ExtentsNotAwaited
        | Mutant::ExtentReusedEarly
        | Mutant::TornExtentAccepted
        | Mutant::ExtentsNotFreed
        | Mutant::ExtentsNotAdopted => values_in_extents(number),
        Mutant::ExtentPageNotProven => flipped_bits_of_extents(),
        Mutant::LostEntryMistaken => return Some(overwritten_lost_record(number)),
        _ => return None,
    };
    Some(SimWorld::new(number, config))
}

/// Returns the seed of a world whose device has a mover with channels, for a change of what waits for them.
pub(crate) fn moving_seed(mutant: Mutant, number: u64) -> Option<u64> {
    let is_move =
        matches!(mutant, Mutant::FillsNotAwaited | Mutant::FillsOutOfOrder | Mutant::CopiesNotAwaited);
    is_move.then(|| EXTENT_SEEDS + MOVE_SEEDS + [0, SWARM_SEEDS, FILE_SEEDS][to_usize(number % 3)] + number)
}

/// Returns a world of the swarm: a record is lost whose block was opened again, and its key is removed behind the loss.
/// Few worlds come to it; whether one of these does depends on what stays in device DRAM.
fn overwritten_lost_record(number: u64) -> SimWorld<'static, SsdDevice<SimMedia>> {
    const SEEDS: [u64; 3] =
        [11_601_272_648_697_119_497, 9_225_167_802_192_831_894, 9_225_167_802_192_826_760];
    let seed = SEEDS[to_usize(number) % SEEDS.len()];
    SimWorld::new(seed, WorldConfig::from_seed(seed))
}

/// Returns a bare world: one namespace, everything durable when it is acknowledged, and no faults.
fn bare(preset: TimingPreset, plans: Vec<FaultPlan>) -> WorldConfig {
    let is_honest = !plans.iter().any(FaultPlan::has_lie);
    WorldConfig {
        media: SimMediaConfig::new(preset, BLOCKS),
        device: DeviceConfig { frames_max: 320, ..DeviceConfig::default() },
        workload: WorkloadConfig {
            namespaces: 1,
            keys: 6,
            value_bytes_max: 1_000,
            lengths: ValueLengths::Same,
            chained_every: 0,
            chained_bytes: CHAINED_BYTES,
            shares: CommandShares { store: 800, delete: 0, batch: 0, clear: 0, ..CommandShares::MIXED },
            expiry: FeatureUse::Never,
            conditions: FeatureUse::Never,
            checks: FeatureUse::Never,
            parts: FeatureUse::Never,
            across: FeatureUse::Never,
            batch_clears: FeatureUse::Never,
            batch_writes_max: BATCH_WRITES,
        },
        block_namespace: None,
        honesty: if is_honest { MediumHonesty::Honest } else { MediumHonesty::Lying },
        depth: 4,
        faulty_boot: u32::MAX,
        rounds: u32::try_from(plans.len()).unwrap_or(0),
        plans,
        commands_max: 200,
        points_max: 1 << 13,
        room_bytes: 0,
        boots: BootLength::Whole,
        switches: WorldSwitches::ALL_OFF,
    }
}

fn damaged(fault: RestingFault) -> FaultPlan {
    FaultPlan { resting: Some(fault), ..FaultPlan::NONE }
}

/// Kills the process in the middle of a commit, and cuts the power between the records of the next opening.
fn kill_and_cut_of_the_opening(number: u64) -> WorldConfig {
    let killed = FaultPlan { cut: PowerCut::Point(20 + 3 * number), kill: true, ..FaultPlan::NONE };
    let half = DamagePlan { whole_percent: 50, ..DamagePlan::CLEAN };
    let cut = FaultPlan { cut: PowerCut::Cell(2), damage: half, ..FaultPlan::NONE };
    WorldConfig { commands_max: 4_000, ..bare(FILE, vec![killed, cut]) }
}

/// Leaves the device idle, and then turns a page to zeros.
fn idle_behind_a_lost_page() -> WorldConfig {
    let mut config = bare(FEMU, vec![damaged(RestingFault::Zeroed)]);
    config.switches.idle_ends = FeatureUse::Some;
    WorldConfig { commands_max: 12, depth: 1, ..config }
}

/// Stores more than the medium holds, of which most expires.
fn full_of_expired_records() -> WorldConfig {
    let mut config = bare(FEMU, vec![FaultPlan::NONE]);
    (config.workload.keys, config.workload.value_bytes_max) = (400, 12_000);
    config.workload.expiry = FeatureUse::Most;
    WorldConfig { commands_max: 2_000, room_bytes: 200_000, ..config }
}

/// Flips bits of a page that a processor reads in place.
fn flipped_bits_in_place() -> WorldConfig {
    let mut config = bare(FEMU, vec![damaged(RestingFault::Flipped)]);
    config.media.addressing = PageAddressing::InPlace;
    (config.workload.keys, config.workload.value_bytes_max) = (100, 3_900);
    config.switches.shutdown = FeatureUse::Some;
    WorldConfig { commands_max: 400, ..config }
}

/// Sets a page with the newest record of a key back to an older record of the key.
fn older_record_in_the_place_of_a_newer_one() -> WorldConfig {
    let stale = FaultPlan { stale_page: true, ..damaged(RestingFault::StaleRecord) };
    let mut config = bare(FEMU, vec![FaultPlan::NONE, stale]);
    (config.workload.keys, config.workload.value_bytes_max) = (40, 3_900);
    config.switches =
        WorldSwitches { checkpoint_every: 50, shutdown: FeatureUse::Some, ..WorldSwitches::ALL_OFF };
    WorldConfig { commands_max: 2_000, ..config }
}

/// Erases the index of the checkpoint, and a page of the blocks from which it is built again.
fn index_and_page_lost() -> WorldConfig {
    let mut config = bare(FEMU, vec![damaged(RestingFault::IndexAndPage)]);
    (config.workload.keys, config.workload.value_bytes_max) = (60, 200);
    config.workload.shares.delete = 400;
    config.switches.shutdown = FeatureUse::Some;
    WorldConfig { commands_max: 600, depth: 16, ..config }
}

/// Flips a bit of the spare of a page.
fn flipped_spare() -> WorldConfig {
    let mut config = bare(FEMU, vec![damaged(RestingFault::SpareFlipped)]);
    config.workload.keys = 24;
    WorldConfig { commands_max: 120, depth: 8, ..config }
}

/// Carries out long batches in parts of few writes, half of the worlds on a medium that is filled again and again.
fn batches_in_parts(number: u64) -> WorldConfig {
    let reuse = if number.is_multiple_of(2) { 0 } else { REUSE_SEEDS };
    WorldConfig::from_seed(PART_SEEDS + reuse + number)
}

/// Stores values in extents that are used again and again, on flash and on a file.
fn values_in_extents(number: u64) -> WorldConfig {
    WorldConfig::from_seed(EXTENT_SEEDS + [0, SWARM_SEEDS, FILE_SEEDS][to_usize(number % 3)] + number)
}

/// Flips bits of a page while most pages belong to extents.
fn flipped_bits_of_extents() -> WorldConfig {
    let mut config = bare(FEMU, vec![damaged(RestingFault::Flipped)]);
    config.media = SimMediaConfig::new(FEMU, 40);
    config.device = DeviceConfig { frames_max: 1_024, extents_from: EXTENT_BYTES, ..DeviceConfig::default() };
    config.workload.chained_every = 1;
    config.workload.chained_bytes = EXTENT_BYTES..2 * EXTENT_BYTES + 5_000;
    config.switches.shutdown = FeatureUse::Some;
    WorldConfig { commands_max: 60, points_max: 1 << 17, ..config }
}

/// Clears namespaces of many keys, and writes batches over several of them behind each clear.
fn batches_behind_clears(number: u64) -> WorldConfig {
    let mut config = WorldConfig::from_seed(ACROSS_SEEDS + number);
    (config.workload.keys, config.workload.value_bytes_max) = (1_500, 60);
    (config.workload.chained_every, config.workload.batch_writes_max) = (0, 60);
    config.workload.shares.clear = 20;
    WorldConfig { commands_max: 3_000, depth: 16, ..config }
}

/// Writes batches that clear namespaces of many keys before their writes.
fn batches_that_clear(number: u64) -> WorldConfig {
    let mut config = batches_behind_clears(BATCH_CLEAR_SEEDS + number);
    config.workload.shares.clear = 0;
    config
}

/// Clears many keys, writes a checkpoint at once, and cuts the power.
fn checkpoints_behind_clears(number: u64) -> WorldConfig {
    let cut = FaultPlan { cut: PowerCut::Point(1_000 + 61 * number), ..FaultPlan::NONE };
    let mut config = bare(FEMU, vec![cut]);
    (config.workload.keys, config.workload.value_bytes_max) = (1_500, 60);
    config.workload.shares.clear = 1;
    config.switches.checkpoint_every = 4;
    WorldConfig { commands_max: 6_000, depth: 16, ..config }
}

/// Replaces small values over few blocks between power cuts, so that few blocks are free which a checkpoint does not list.
fn small_values_over_few_blocks() -> WorldConfig {
    let mut config = WorldConfig::from_seed(REUSE_SEEDS + SWARM_SEEDS + 1_861);
    config.device.hash_bits = DeviceConfig::default().hash_bits;
    config
}

/// Writes checkpoints, an entry of the map a turn, while blocks are freed and used again, and cuts the power.
fn checkpoints_beside_reuse(number: u64) -> WorldConfig {
    let cut = FaultPlan { cut: PowerCut::Point(20_000 + 997 * number), ..FaultPlan::NONE };
    let mut config = bare(FILE, vec![cut]);
    config.media.geometry.blocks = 40;
    (config.workload.keys, config.workload.value_bytes_max) = (24, 12_000);
    config.device.map_part_entries = 1;
    config.switches.checkpoint_every = 20;
    WorldConfig { commands_max: 8_000, points_max: 1 << 18, depth: 16, ..config }
}
