//! The world accepts a correct device and reports each flaw of a broken one.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod log_entry;
mod recovery;
mod swarm;
mod toy_device;

use headwater_sim::faults::PowerCut;
use headwater_sim::world::{RunFailure, RunReport, SimWorld, WorldConfig};
use toy_device::ToyDevice;

/// Returns the world of this seed with a medium large enough for the toy device, which never collects garbage.
fn config(seed: u64) -> WorldConfig {
    let mut config = WorldConfig::from_seed(seed);
    config.media.geometry.blocks *= 4;
    config.media.queue_max = 4_096;
    config
}

fn run<const FLAW: usize>(seed: u64) -> Result<RunReport, RunFailure> {
    SimWorld::<ToyDevice<FLAW>>::new(seed, config(seed)).run()
}

#[test]
fn correct_device_passes() {
    let (mut cuts, mut in_recovery) = (0, 0);
    for seed in 0..120 {
        let report = run::<0>(seed).unwrap_or_else(|failure| panic!("{failure}"));
        cuts += report.cuts;
        in_recovery += report.cuts_in_recovery;
    }
    assert!(cuts > 360 && in_recovery > 12, "{cuts} cuts, {in_recovery} in recovery");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run::<0>(seed), run::<0>(seed), "seed {seed}");
    }
    assert_ne!(run::<0>(1).unwrap().digest, run::<0>(2).unwrap().digest);
}

#[test]
fn verbose_run_gives_the_same_report() {
    let mut lines = 0;
    let mut sink = |_: &str| lines += 1;
    let verbose = SimWorld::<ToyDevice<0>>::new(7, config(7)).verbose(&mut sink).run();
    assert_eq!(verbose, run::<0>(7));
    assert!(lines > 0);
}

macro_rules! caught {
    ($($name:ident = $flaw:literal: $words:literal;)*) => {$(
        #[test]
        fn $name() {
            let mut failures = (0..300).filter_map(|seed| run::<$flaw>(seed).err());
            let fitting = failures.find(|failure| failure.to_string().contains($words));
            let fitting = fitting.unwrap_or_else(|| panic!("no failure in 300 seeds contains {:?}", $words));
            assert!(fitting.to_string().contains(&format!("sim replay --seed {}", fitting.seed)));
        }
    )*};
}

caught! {
        acknowledgement_before_durability_is_reported = 1: "lost";
        missing_flush_is_reported = 2: "lost";
        deleted_key_that_returns_is_reported = 3: "came back";
        second_completion_is_reported = 4: "exactly one completion";
        missing_completion_is_reported = 5: "never completed";
        half_a_batch_is_reported = 6: "all or nothing";
        ignored_condition_is_reported = 7: "misjudged";
        served_expired_key_is_reported = 8: "came back";
        missing_guard_pages_are_reported = 9: "lost";
        missing_checksums_are_reported = 10: "never written";
        program_without_erase_is_reported = 11: "without an erase";
        key_listed_twice_is_reported = 12: "twice";
        sequence_used_twice_is_reported = 13: "not above";
}

#[test]
fn correct_device_passes_with_a_cut_at_every_point() {
    let mut config = config(3);
    config.media.geometry.blocks = 6;
    config.media.guard_pages = 1;
    config.media.preset = headwater_sim::presets::FILE;
    config.media.addressing = headwater_sim::flash::PageAddressing::ByRead;
    config.workload.value_bytes_max = 5_000;
    config.workload.chained_every = 0;
    config.commands_max = 40;
    config.rounds = 1;
    let whole = SimWorld::<ToyDevice<0>>::new(3, config.clone()).cut_at(PowerCut::Never).run().unwrap();
    let points = whole.first_boot_points;
    assert!(points > 800, "{points}");
    for point in 1..=points {
        let world = SimWorld::<ToyDevice<0>>::new(3, config.clone()).cut_at(PowerCut::Point(point));
        world.run().unwrap_or_else(|failure| panic!("cut at point {point}: {failure}"));
    }
}
