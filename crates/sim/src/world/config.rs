//! The configuration of a simulated world, drawn from its seed.
//!
//! Input: a seed. Output: a [`WorldConfig`]. From [`SWARM_SEEDS`] on it is one of the swarm's ([`super::swarm_config`]);
//! [`FILE_SEEDS`] and [`LYING_SEEDS`] change its medium, [`ACROSS_SEEDS`] its namespaces, [`REUSE_SEEDS`], [`LONG_SEEDS`],
//! [`PART_SEEDS`] and [`EXTENT_SEEDS`] its size and the work in it, [`GATHER_SEEDS`] its commits, [`MOVE_SEEDS`] the mover of its
//! device.
//! Invariant: `headwater sim replay --seed S` builds the same world as the test run of seed S.

use super::{across_config, extent_config, long_config, part_config, reuse_config, swarm_config};
use crate::faults::FaultPlan;
use crate::flash::PageAddressing;
use crate::media::{MediaBacking, SimMediaConfig};
use crate::presets::{FILE, TimingPreset};
use crate::workload::{
    BATCH_WRITES, CHAINED_BYTES, CommandShares, CommandStream, FeatureUse, ValueLengths, WorkloadConfig,
};
use headwater_host::clock::Nanos;
use headwater_host::width::to_usize;
use headwater_ssd::command::NamespaceId;
use headwater_ssd::engine::{DeviceConfig, Durability, VictimPolicy};
use headwater_ssd::limits::batch_bytes_max;
use headwater_ssd::media::PAGE_DATA_BYTES;
use headwater_ssd::namespace::BlockFormat;

/// The configuration of a world.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// The medium.
    pub media: SimMediaConfig,
    /// The device.
    pub device: DeviceConfig,
    /// The clients' workload.
    pub workload: WorkloadConfig,
    /// The block namespace in addition to the key spaces, if there is one.
    pub block_namespace: Option<BlockNamespaceConfig>,
    /// The truthfulness of the medium.
    pub honesty: MediumHonesty,
    /// The plans of the first boots, which are not drawn then. One that is cut at a commit record is cut from the opening
    /// on.
    pub plans: Vec<FaultPlan>,
    /// Maximum number of commands in flight.
    pub depth: usize,
    /// The boot, from 0, in which a medium that is not honest fails or lies.
    pub faulty_boot: u32,
    /// Number of boots that end in a power cut.
    pub rounds: u32,
    /// Maximum number of commands of one boot.
    pub commands_max: u32,
    /// Maximum number of cut points of one boot, counted from the arming of the cut.
    pub points_max: u64,
    /// Bytes of records that the device must have room for at any time; 0 where nothing is promised.
    pub room_bytes: u64,
    /// The length of boots.
    pub boots: BootLength,
    /// The faults and operator's actions of the world.
    pub switches: WorldSwitches,
}

/// The faults and operator's actions that a world has.
#[derive(Clone, Copy, Debug)]
pub struct WorldSwitches {
    /// One boot in this many may lose its power during recovery; 0 for none.
    pub early_cut_every: u8,
    /// One step in this many requests a checkpoint; 0 for never.
    pub checkpoint_every: u8,
    /// The inspection of the medium before each boot.
    pub inspection: FeatureUse,
    /// Orderly shutdowns.
    pub shutdown: FeatureUse,
    /// Programs and erases that a power cut tears.
    pub torn_operations: FeatureUse,
    /// Neighbours that a torn program damages.
    pub damaged_neighbours: FeatureUse,
    /// Pages that cannot be read after a power cut.
    pub unreadable_pages: FeatureUse,
    /// A die that is slower than the rest.
    pub slow_die: FeatureUse,
    /// Boots that end because the process is killed, not because the power is cut.
    pub kills: FeatureUse,
    /// Boots that end when the device was idle for a while.
    pub idle_ends: FeatureUse,
    /// Cuts that are counted in commit records.
    pub cell_cuts: FeatureUse,
    /// Commit records of one side that are lost between two boots, which an honest medium may do.
    pub cell_losses: FeatureUse,
    /// Damage of a medium that lies to pages and cells at rest.
    pub resting_faults: FeatureUse,
    /// Erases that a power cut tears.
    pub torn_erases: FeatureUse,
    /// Values that the device receives in parts before they are stored.
    pub receipts: FeatureUse,
}

impl WorldSwitches {
    /// Returns switches with everything on, except perhaps the inspection.
    pub(super) const fn all_on(inspection: FeatureUse) -> Self {
        Self {
            early_cut_every: 4,
            checkpoint_every: 64,
            inspection,
            shutdown: FeatureUse::Some,
            torn_operations: FeatureUse::Some,
            damaged_neighbours: FeatureUse::Some,
            unreadable_pages: FeatureUse::Some,
            slow_die: FeatureUse::Some,
            ..Self::ALL_OFF
        }
    }

    /// Switches with everything off.
    pub const ALL_OFF: Self = Self {
        early_cut_every: 0,
        checkpoint_every: 0,
        inspection: FeatureUse::Never,
        shutdown: FeatureUse::Never,
        torn_operations: FeatureUse::Never,
        damaged_neighbours: FeatureUse::Never,
        unreadable_pages: FeatureUse::Never,
        slow_die: FeatureUse::Never,
        kills: FeatureUse::Never,
        idle_ends: FeatureUse::Never,
        cell_cuts: FeatureUse::Never,
        cell_losses: FeatureUse::Never,
        resting_faults: FeatureUse::Never,
        torn_erases: FeatureUse::Some,
        receipts: FeatureUse::Never,
    };

    /// Removes the faults that are off from a plan.
    pub(super) fn restrict(&self, mut plan: FaultPlan) -> FaultPlan {
        if self.torn_operations == FeatureUse::Never {
            plan.damage.torn_percent = 0;
        }
        if self.damaged_neighbours == FeatureUse::Never {
            plan.damage.neighbour_percent = 0;
        }
        if self.unreadable_pages == FeatureUse::Never {
            plan.damage.unreadable_percent = 0;
        }
        plan.damage.whole_erases = self.torn_erases == FeatureUse::Never;
        plan.slow_die = plan.slow_die.filter(|_| self.slow_die == FeatureUse::Some);
        plan
    }
}

/// The length of the boots of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootLength {
    /// Spread evenly over orders of magnitude.
    Drawn,
    /// The same for half of them, and a large part of the maximum for the other half.
    HalfLong,
    /// Until every command is submitted.
    Whole,
}

/// The truthfulness of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumHonesty {
    /// Power cuts do all the damage there is.
    Honest,
    /// In one boot reads, programs, erases or flushes fail. From then on an explicit error is a right answer, and so is a
    /// refusal to open, which ends the run; but no error of a key that was written in a later boot.
    Failing,
    /// The same, or one program of that boot lies, or a page is set back behind it.
    Lying,
}

/// The number of the block namespace: the lowest free one when it is created.
pub(super) const BLOCK_NAMESPACE: NamespaceId = NamespaceId(2);

/// The block namespace of a world.
#[derive(Clone, Copy, Debug)]
pub struct BlockNamespaceConfig {
    /// Its initial format.
    pub format: BlockFormat,
    /// Number of blocks that are used.
    pub blocks: u32,
    /// One command in this many changes the namespace table.
    pub changes_every: u32,
}

/// The first seed whose world has a block namespace. Lower seeds never have one, so that their worlds stay unchanged.
pub const BLOCK_SEEDS: u64 = 1 << 32;
/// The first seed whose world is drawn for the swarm.
pub const SWARM_SEEDS: u64 = 1 << 33;
/// Added to a seed: the same world with a medium that lies in its last boot but one.
pub const LYING_SEEDS: u64 = 1 << 61;
/// Added to a seed: the same world on a file.
pub const FILE_SEEDS: u64 = 1 << 62;
/// Added to a seed: the world has few blocks and more work, so that blocks are collected and used again.
pub const REUSE_SEEDS: u64 = 1 << 63;

/// Added to a seed: the world has many keys and values so long that commands on them take many turns.
pub const LONG_SEEDS: u64 = 1 << 58;

/// Added to a seed: batches of the world check keys that they do not write.
pub const CHECK_SEEDS: u64 = 1 << 57;

/// Added to a seed: batches of the world have many writes, of which a turn carries out few.
pub const PART_SEEDS: u64 = 1 << 56;

/// Added to a seed: long values of the world lie in extents, and few blocks are beside them. The seeds of old
/// swarms, which are wall times in nanoseconds, have this bit clear.
pub const EXTENT_SEEDS: u64 = 1 << 52;

/// Added to a seed with [`EXTENT_SEEDS`]: channels of a model move the values of the world, and end their jobs while the device
/// goes on, refuse some, and die. In other seeds the bit has no meaning of its own.
pub const MOVE_SEEDS: u64 = 1 << 53;

/// Added to a seed: batches of the world have keys of several namespaces. The seeds of old swarms, which are wall times in
/// nanoseconds, have this bit and the one below it set: a seed with both is none of this kind.
pub const ACROSS_SEEDS: u64 = 1 << 60;

/// Added to a seed with [`ACROSS_SEEDS`]: batches of the world clear namespaces before they write. In other seeds the bit has
/// no meaning of its own.
pub const BATCH_CLEAR_SEEDS: u64 = 1 << 55;

/// Added to a seed with [`PART_SEEDS`]: commits of the world wait for the commands of all clients that are active. In other
/// seeds the bit has no meaning of its own.
pub const GATHER_SEEDS: u64 = 1 << 54;

/// Added to a seed with [`EXTENT_SEEDS`]: the device receives long values in parts, before they are stored. In other seeds the
/// bit has no meaning of its own.
pub const RECEIPT_SEEDS: u64 = 1 << 50;

/// Returns true for a seed of a world whose batches have keys of several namespaces.
const fn is_across(seed: u64) -> bool {
    seed & (ACROSS_SEEDS | ACROSS_SEEDS >> 1) == ACROSS_SEEDS
}

/// Returns true for a seed of a world whose device has a mover with channels. Wall times in nanoseconds are none.
#[must_use]
pub const fn has_channels(seed: u64) -> bool {
    let wall = ACROSS_SEEDS | ACROSS_SEEDS >> 1;
    seed & (EXTENT_SEEDS | MOVE_SEEDS) == EXTENT_SEEDS | MOVE_SEEDS && seed & wall != wall
}

/// Returns the seed without the parts that change the medium, so that the worlds differ in nothing else.
pub(super) const fn drawn_seed(seed: u64) -> u64 {
    let across = if is_across(seed) { ACROSS_SEEDS | BATCH_CLEAR_SEEDS } else { 0 };
    let gathers = if seed & PART_SEEDS != 0 { GATHER_SEEDS } else { 0 };
    let kinds = LYING_SEEDS | FILE_SEEDS | REUSE_SEEDS | LONG_SEEDS | CHECK_SEEDS | PART_SEEDS | EXTENT_SEEDS;
    let receipts = if seed & EXTENT_SEEDS != 0 { RECEIPT_SEEDS } else { 0 };
    let moves = if has_channels(seed) { MOVE_SEEDS } else { 0 };
    seed & !(kinds | across | gathers | receipts | moves)
}

/// Presets that short runs draw from: with and without a volatile cache, fast and slow.
const PRESET_CHOICES: &[&str] = &["instant", "femu", "file", "file", "970-pro", "z-nand", "tlc"];

impl WorldConfig {
    /// Returns the stream of commands that this world's device takes.
    pub(super) fn command_stream(&self, seed: u64) -> CommandStream {
        CommandStream::new(
            seed,
            self.workload.clone(),
            batch_bytes_max(self.device.frames_max * PAGE_DATA_BYTES),
        )
    }

    /// Returns a small world: a device of a few MiB, a few hundred commands, several power cuts.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let drawn = drawn_seed(seed);
        let mut config = if drawn >= SWARM_SEEDS { swarm_config::draw(drawn) } else { Self::draw(drawn) };
        if seed & REUSE_SEEDS != 0 {
            reuse_config::change(&mut config, drawn);
        }
        if seed & LONG_SEEDS != 0 {
            long_config::change(&mut config, drawn);
        }
        if seed & PART_SEEDS != 0 {
            part_config::change(&mut config, drawn);
            if seed & GATHER_SEEDS != 0 {
                config.device.commit_gathering = Nanos::from_micros([20, 100, 5_000][to_usize(drawn % 3)]);
            }
        }
        config.device.extents_from = usize::MAX;
        if seed & EXTENT_SEEDS != 0 {
            extent_config::change(&mut config, drawn);
            if seed & RECEIPT_SEEDS != 0 {
                config.switches.receipts = FeatureUse::Some;
                // Values on their way hold room, which the checker does not know of.
                config.room_bytes = 0;
            }
        }
        if seed & CHECK_SEEDS != 0 {
            config.workload.checks = FeatureUse::Some;
            config.workload.shares.batch = config.workload.shares.batch.max(200);
        }
        if is_across(seed) {
            across_config::change(&mut config.device, &mut config.workload, drawn);
            if seed & BATCH_CLEAR_SEEDS != 0 {
                config.workload.batch_clears = FeatureUse::Some;
            }
            // The block namespace would be one of them, and their keys are counted in no promise of room.
            (config.block_namespace, config.room_bytes) = (None, 0);
        }
        if seed & FILE_SEEDS != 0 {
            config.media.backing = MediaBacking::File;
            config.media.addressing = PageAddressing::ByRead;
        }
        if seed & LYING_SEEDS != 0 {
            config.honesty = MediumHonesty::Lying;
        }
        if config.honesty != MediumHonesty::Honest {
            // A record on a page that is damaged or cannot be read is known by its hash alone: a write of a key replaces it.
            // No two keys may share a hash.
            config.device.hash_bits = DeviceConfig::default().hash_bits;
        }
        config.bound_shared_hashes();
        config
    }

    /// Raises the bits of a hash until the records that the keys of one batch are compared with fit into device DRAM: a command
    /// whose pages do not fit reads them for ever. With all 60 bits keys share no hash.
    fn bound_shared_hashes(&mut self) {
        let records_max = self.device.frames_max / 4;
        let keys = to_usize(u64::from(self.workload.keys));
        while (keys >> self.device.hash_bits) * BATCH_WRITES > records_max {
            self.device.hash_bits += 1;
        }
    }

    /// Draws a world of the seeds below those of the swarm.
    fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0077_6F72_6C64);
        let preset = TimingPreset::named(PRESET_CHOICES[rng.usize(0..PRESET_CHOICES.len())]).unwrap_or(FILE);
        let blocks = rng.u32(20..=40);
        let addressable = preset.cached.is_none() && rng.u8(0..4) == 0;
        let media = SimMediaConfig {
            guard_pages: if addressable || rng.bool() { 0 } else { rng.u8(1..=2) },
            queue_max: [8, 32, 256][rng.usize(0..3)],
            addressing: if addressable { PageAddressing::InPlace } else { PageAddressing::ByRead },
            ..SimMediaConfig::new(preset, blocks)
        };
        let mut device = DeviceConfig {
            victim: if rng.bool() { VictimPolicy::Greedy } else { VictimPolicy::Fifo },
            frames_max: [256, 1_024][rng.usize(0..2)],
            hash_seed: rng.u64(..),
            ..DeviceConfig::default()
        };
        device.durability[1] = Durability::Interval(Nanos::from_millis(rng.u64(1..=20)));
        device.durability[2] = Durability::OnFlush;
        let mut workload = WorkloadConfig {
            namespaces: rng.u8(1..=3),
            keys: rng.u32(4..=48),
            value_bytes_max: [200, 4_000, 12_000][rng.usize(0..3)],
            lengths: ValueLengths::Drawn,
            chained_every: [0, 8, 64][rng.usize(0..3)],
            chained_bytes: CHAINED_BYTES,
            shares: CommandShares::MIXED,
            expiry: FeatureUse::Some,
            conditions: FeatureUse::Some,
            checks: FeatureUse::Never,
            parts: FeatureUse::Never,
            across: FeatureUse::Never,
            batch_clears: FeatureUse::Never,
            batch_writes_max: BATCH_WRITES,
        };
        if rng.u8(0..4) == 0 {
            // The device must distinguish keys that share a hash.
            device.hash_bits = rng.u32(3..=8);
        }
        let mut block_namespace = None;
        if seed >= BLOCK_SEEDS {
            let modes = [Durability::Always, device.durability[1], Durability::OnFlush];
            device.durability[BLOCK_NAMESPACE.index()] = modes[rng.usize(0..3)];
            workload.namespaces = 1;
            block_namespace = Some(BlockNamespaceConfig {
                format: BlockFormat::ALL[rng.usize(0..2)],
                // With many blocks, a resize removes more blocks than a page of the log can record.
                blocks: if rng.bool() { rng.u32(4..=48) } else { rng.u32(100..=250) },
                changes_every: [20, 100, 1_000][rng.usize(0..3)],
            });
        }
        let depth = [1, 4, 16, 64][rng.usize(0..4)];
        let rounds = rng.u32(2..=5);
        Self {
            media,
            device,
            workload,
            block_namespace,
            honesty: MediumHonesty::Honest,
            plans: Vec::new(),
            depth,
            faulty_boot: rounds - 1,
            rounds,
            commands_max: 1 << rng.u32(4..=9),
            points_max: 1 << rng.u32(5..=11),
            room_bytes: 0,
            boots: BootLength::Drawn,
            // In one world of four the medium is inspected first.
            switches: WorldSwitches::all_on(if seed.is_multiple_of(4) {
                FeatureUse::Some
            } else {
                FeatureUse::Never
            }),
        }
    }
}
