//! The device keeps its promises through power cuts, in thousands of worlds, one for each seed.

use crate::all_cores::{on_all_cores, seeds};
use headwater_host::clock::Clock;
use headwater_sim::faults::PowerCut;
use headwater_sim::flash::PageAddressing;
use headwater_sim::media::SimMedia;
use headwater_sim::presets::{FEMU, FILE};
use headwater_sim::replay::replay;
use headwater_sim::world::{
    BLOCK_SEEDS, BlockNamespaceConfig, FILE_SEEDS, LYING_SEEDS, PART_SEEDS, REUSE_SEEDS, SWARM_SEEDS,
    SimWorld, WorldConfig,
};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::namespace::BlockFormat;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn acked_writes_survive_power_cuts_in_every_world() {
    let seeds = seeds(6_000);
    let clock = Clock::start();
    let [commands, cuts, in_recovery] = [const { AtomicU64::new(0) }; 3];
    on_all_cores(seeds.clone(), |seed| {
        let report = replay(seed, None).map_err(|failure| failure.to_string())?;
        commands.fetch_add(report.commands, Ordering::Relaxed);
        cuts.fetch_add(u64::from(report.cuts), Ordering::Relaxed);
        in_recovery.fetch_add(u64::from(report.cuts_in_recovery), Ordering::Relaxed);
        Ok(())
    });
    let [commands, cuts, in_recovery] = [commands, cuts, in_recovery].map(AtomicU64::into_inner);
    let spent = clock.now();
    println!("{seeds:?}: {commands} commands, {cuts} cuts, {in_recovery} in recovery, {spent}");
    assert!(cuts >= seeds.end - seeds.start, "{cuts} cuts in seeds {seeds:?}");
}

/// Checks the same with a block namespace in addition, its writes of several blocks, and changes of the namespace
/// table.
#[test]
fn acked_blocks_and_namespaces_survive_power_cuts_in_every_world() {
    let seeds = seeds(1_000);
    let clock = Clock::start();
    let [commands, cuts] = [const { AtomicU64::new(0) }; 2];
    on_all_cores(seeds.clone(), |seed| {
        let report = replay(BLOCK_SEEDS + seed, None).map_err(|failure| failure.to_string())?;
        commands.fetch_add(report.commands, Ordering::Relaxed);
        cuts.fetch_add(u64::from(report.cuts), Ordering::Relaxed);
        Ok(())
    });
    let [commands, cuts] = [commands, cuts].map(AtomicU64::into_inner);
    println!("{seeds:?} with blocks: {commands} commands, {cuts} cuts, {}", clock.now());
    assert!(cuts >= seeds.end - seeds.start, "{cuts} cuts in seeds {seeds:?}");
}

/// Seeds whose worlds once broke a promise, each with the defect.
const ONCE_BROKEN: &[(u64, &str)] = &[
    (297, "a batch survived without its delete of a key whose removal was lost"),
    (1076, "the same: an older state came back"),
    (1451, "an open whose clean-up could not read waited forever"),
    (1845, "the checkpointer requested space forever and time did not advance"),
    (2022, "like 1451, with a slow die"),
    (2224, "a checkpoint was used although the removals that it included were lost"),
    (7996, "a read that found an expired record did not wait for it to be durable"),
    (3304, "the checker took a refusal that stayed true for a promise"),
    (3888, "like 1845"),
    (5122, "an open waited forever for a sequence that only a torn record had"),
    (6563, "the tombstone of an expired key outlived the batch that the key's record belonged to"),
    (11070, "a whole batch lost an obsolete record to the clean-up of recovery, and then counted as torn"),
    (11293, "like 11070, with a record that spans two blocks"),
    (3825, "a write that replaced a batch's record outlived the batch"),
    (4557, "like 3825"),
    (7026460, "a changed record in a block whose erase was cut off counted as damage of a durable one"),
    (
        1_795_389_576_784_026_221,
        "a page read during the erase of its block replaced one that was programmed later",
    ),
    (1_795_396_295_385_029_255, "the checker expected writes of an interval that a failed flush had ended"),
    (1_795_396_295_385_002_850, "the same with a failed program"),
    (1_795_403_755_580_089_802, "like 11070, with a record that an earlier clean-up had moved"),
    (1_795_413_745_154_016_249, "a block of the checkpoint was taken for the log block that it was before"),
    (
        11_018_797_000_000_001_902,
        "a commit came back whose block an opening had not known by its lost first page",
    ),
    (1_795_430_000_000_035_695, "a stale page of a checkpoint hid the log block that holds a key"),
    (1_795_426_682_430_285_961, "the checker took a key that could not be read for settled"),
    (11_018_797_000_000_002_914, "the checker took blocks behind a smaller size for settled"),
    (11_018_797_000_000_028_569, "a block that was torn when it was opened again was kept for good"),
    (11_018_797_000_000_410_903, "power cuts took every block that a checkpoint needed"),
    (11_018_796_300_882_795_199, "a flipped bit of an expiry hid a key"),
    (11_018_796_300_882_851_071, "the checker had let go of what a lost commit replaced"),
    (11_018_795_376_909_794_047, "the cache of a killed process lost a page that reads saw"),
    (1_795_423_317_887_008_604, "two writes of a batch replaced one record that could not be read"),
    (1_795_421_492_950_025_292, "a list named a key of which only a part had arrived"),
    (5_000_001_838, "a checkpoint had the number of one that was never named"),
    (1_795_419_837_348_016_926, "a record that could not be read counted as one that had not expired"),
    (
        REUSE_SEEDS + SWARM_SEEDS + 223,
        "a checkpoint had the number of one that was never named, and their blocks were mixed up",
    ),
    (REUSE_SEEDS + FILE_SEEDS + 4, "the same on a file, found by the inspection"),
    (
        REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 199,
        "a moved removal that was older than a lost record hid that the record was lost",
    ),
    (
        REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 5_370,
        "the same with a record of which only the page was lost",
    ),
    (
        REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 10_155,
        "recovery trusted the header of a damaged record that it read in place",
    ),
    (
        REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 10_968,
        "after a failure of the medium the device waited for a time in the past",
    ),
    (
        REUSE_SEEDS + SWARM_SEEDS + 86,
        "collection in the order of age went round for ever, and so did a shutdown",
    ),
    (1_764_118_488_903_411_270, "a long value of a batch could not be read while the collector moved it"),
    (1_764_118_488_903_412_100, "the same after a power cut"),
    (
        PART_SEEDS + 1_795_643_686_296_566,
        "a speculative read showed a part of a batch after the medium had failed",
    ),
    (PART_SEEDS + 1_795_643_686_300_745, "the same with deletes"),
    (
        235_982_973_477_384_149,
        "a commit that waited for commands was due in the past, and time did not advance",
    ),
    (235_982_973_477_394_259, "the same in the first boot"),
    (235_982_973_477_394_619, "the same with three commands in flight"),
    (
        9_225_167_833_185_249_246,
        "a batch was compared with more records of its few hashes than device memory holds",
    ),
    (
        9_225_167_873_759_224_098,
        "two pages that a list needed at once left device memory in turn, because nothing in them counted as needed",
    ),
];

#[test]
fn worlds_that_once_broke_a_promise_keep_it() {
    for (seed, defect) in ONCE_BROKEN {
        if let Err(failure) = replay(*seed, None) {
            panic!("{defect}: {failure}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_completions() {
    for seed in 0..10 {
        assert_eq!(replay(seed, None), replay(seed, None), "seed {seed}");
    }
}

fn cut_everywhere(config: &WorldConfig, seed: u64) {
    let world = || SimWorld::<SsdDevice<SimMedia>>::new(seed, config.clone());
    let whole = world().cut_at(PowerCut::Never).run().unwrap_or_else(|failure| panic!("{failure}"));
    let points = whole.first_boot_points;
    assert!(points > 30, "{points}");
    on_all_cores(1..points + 1, |point| {
        let run = world().cut_at(PowerCut::Point(point)).run();
        run.map(drop).map_err(|failure| format!("cut at point {point} of {points}: {failure}"))
    });
}

fn small_world(seed: u64) -> WorldConfig {
    let mut config = WorldConfig::from_seed(seed);
    config.media.geometry.blocks = 20;
    config.media.addressing = PageAddressing::ByRead;
    config.rounds = 1;
    config.commands_max = 120;
    config
}

#[test]
fn promises_hold_with_a_cut_at_every_point_on_a_file() {
    let mut config = small_world(11);
    config.media.preset = FILE;
    config.media.guard_pages = 1;
    cut_everywhere(&config, 11);
}

#[test]
fn promises_hold_with_a_cut_at_every_point_of_namespace_changes() {
    for seed in [1, 2].map(|seed| BLOCK_SEEDS + seed) {
        let mut config = small_world(seed);
        config.media.preset = FILE;
        config.workload.value_bytes_max = 200;
        config.workload.chained_every = 0;
        config.commands_max = 90;
        config.block_namespace =
            Some(BlockNamespaceConfig { format: BlockFormat::B512, blocks: 200, changes_every: 6 });
        cut_everywhere(&config, seed);
    }
}

#[test]
fn promises_hold_with_a_cut_at_every_point_on_flash() {
    let mut config = small_world(12);
    config.media.preset = FEMU;
    config.media.guard_pages = 0;
    cut_everywhere(&config, 12);
}
