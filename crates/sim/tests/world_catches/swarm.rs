//! The swarm finds what is broken, names its seed, and fails again in the same way.

use crate::toy_device::ToyDevice;
use headwater_host::clock::Nanos;
use headwater_sim::media::MediaBacking;
use headwater_sim::replay::replay;
use headwater_sim::swarm::{SwarmPlan, run_swarm};
use headwater_sim::workload::FeatureUse;
use headwater_sim::world::{
    LineSink, MediumHonesty, RunFailure, RunReport, SWARM_SEEDS, SimWorld, WorldConfig,
};

type WorldTest = fn(&WorldConfig) -> bool;

fn plan(seeds: u64) -> SwarmPlan {
    SwarmPlan { seeds, threads: 2, ..SwarmPlan::fresh().from(SWARM_SEEDS + 1_000) }
}

/// Runs the world of this seed over the toy device, with a medium that is large enough for it.
fn run_toy<const FLAW: usize>(seed: u64, sink: Option<LineSink<'_>>) -> Result<RunReport, RunFailure> {
    let mut config = WorldConfig::from_seed(seed);
    config.block_namespace = None;
    // The toy proves nothing of what it reads.
    (config.honesty, config.media.backing) = (MediumHonesty::Honest, MediaBacking::Flash);
    config.media.geometry.blocks *= 8;
    config.media.queue_max = 4_096;
    let world = SimWorld::<ToyDevice<FLAW>>::new(seed, config);
    match sink {
        Some(sink) => world.verbose(sink).run(),
        None => world.run(),
    }
}

#[test]
fn correct_device_passes_the_swarm() {
    let report = run_swarm(&plan(150), run_toy::<0>);
    assert_eq!((report.worlds, &report.failures[..]), (150, &[][..]));
    assert!(report.commands > 150 * 50 && report.cuts > 300 && report.faults > 0, "{report}");
}

#[test]
fn planted_flaw_is_found_and_its_seed_fails_again_event_by_event() {
    let report = run_swarm(&plan(150), run_toy::<1>);
    assert!(!report.failures.is_empty());
    for failed in &report.failures {
        assert!(failed.cause.contains(&format!("sim replay --seed {}", failed.seed)), "{}", failed.cause);
        let alone = SwarmPlan { first: failed.seed, seeds: 1, threads: 1, ..plan(1) };
        assert_eq!(&run_swarm(&alone, run_toy::<1>).failures[..], std::slice::from_ref(failed));
        assert!(!failed.events.is_empty());
    }
}

#[test]
fn panic_of_one_world_is_reported_with_its_seed() {
    let broken = SWARM_SEEDS + 1_007;
    let report = run_swarm(&plan(20), move |seed, sink| {
        assert!(seed != broken, "planted");
        run_toy::<0>(seed, sink)
    });
    assert_eq!(report.worlds, 20);
    let [failed] = &report.failures[..] else { panic!("{report}") };
    assert_eq!(failed.seed, broken);
    assert!(failed.cause.contains("planted"), "{}", failed.cause);
}

#[test]
fn world_without_an_end_is_reported_and_ends_the_swarm() {
    let endless = SWARM_SEEDS + 1_003;
    let plan = SwarmPlan { world_time: Nanos::from_millis(10_000), ..plan(u64::MAX) };
    let report = run_swarm(&plan, move |seed, sink| {
        if seed == endless {
            loop {
                std::thread::park();
            }
        }
        run_toy::<0>(seed, sink)
    });
    let [failed] = &report.failures[..] else { panic!("{report}") };
    assert_eq!(failed.seed, endless);
    assert!(failed.cause.contains("has not ended"), "{}", failed.cause);
}

#[test]
fn failed_worlds_are_kept_in_a_folder() {
    let folder = std::env::temp_dir().join(format!("headwater-swarm-{}", std::process::id()));
    let report = run_swarm(&plan(150), run_toy::<1>);
    report.keep_failures(&folder).unwrap();
    let first = &report.failures[0];
    let text = std::fs::read_to_string(folder.join(format!("{}.txt", first.seed))).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(text.starts_with(&first.cause) && text.contains("last events:"), "{text}");
}

#[test]
fn real_device_passes_the_swarm_and_the_same_seed_gives_the_same_run() {
    let report = run_swarm(&plan(120), replay);
    assert_eq!(&report.failures[..], &[][..]);
    for seed in 0..10 {
        assert_eq!(replay(SWARM_SEEDS + seed, None), replay(SWARM_SEEDS + seed, None), "seed {seed}");
    }
}

#[test]
fn worlds_of_the_swarm_differ_in_kind() {
    let worlds: Vec<WorldConfig> = (0..300).map(|seed| WorldConfig::from_seed(SWARM_SEEDS + seed)).collect();
    let kinds: &[(&str, WorldTest)] = &[
        ("cache", |world| world.media.preset.cached.is_some()),
        ("guard pages", |world| world.media.guard_pages > 0),
        ("blocks", |world| world.block_namespace.is_some()),
        ("several namespaces", |world| world.workload.namespaces > 1),
        ("batches", |world| world.workload.shares.batch > 0),
        ("clears", |world| world.workload.shares.clear > 0),
        ("expiry", |world| world.workload.expiry == FeatureUse::Some),
        ("conditions", |world| world.workload.conditions == FeatureUse::Some),
        ("checkpoints", |world| world.switches.checkpoint_every > 0),
        ("cuts in recovery", |world| world.switches.early_cut_every > 0),
        ("torn operations", |world| world.switches.torn_operations == FeatureUse::Some),
        ("unreadable pages", |world| world.switches.unreadable_pages == FeatureUse::Some),
        ("little memory", |world| world.device.frames_max < 300),
        ("files", |world| world.media.backing == MediaBacking::File),
        ("lies", |world| world.honesty == MediumHonesty::Lying),
        ("errors", |world| world.honesty == MediumHonesty::Failing),
        ("values of several pages", |world| world.workload.value_bytes_max > 4_096),
    ];
    for (name, has) in kinds {
        let with = worlds.iter().filter(|world| has(world)).count();
        assert!((3..=297).contains(&with), "{name}: {with} worlds of 300");
    }
}
