//! The device keeps its promises over the real file medium, on a simulated file that loses power.

use crate::all_cores::{on_all_cores, seeds};
use headwater_sim::faults::PowerCut;
use headwater_sim::media::SimMedia;
use headwater_sim::replay::replay;
use headwater_sim::world::{FILE_SEEDS, RunReport, SimWorld, WorldConfig};
use headwater_ssd::engine::SsdDevice;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the world of a seed, on a file.
fn file_world(seed: u64) -> WorldConfig {
    WorldConfig::from_seed(FILE_SEEDS + seed)
}

fn world(seed: u64, config: &WorldConfig) -> SimWorld<'static, SsdDevice<SimMedia>> {
    SimWorld::new(seed, config.clone())
}

#[test]
fn acked_writes_survive_power_cuts_on_a_file_in_every_world() {
    let seeds = seeds(600);
    let [commands, cuts, in_recovery] = [const { AtomicU64::new(0) }; 3];
    on_all_cores(seeds.clone(), |seed| {
        let report = replay(FILE_SEEDS + seed, None).map_err(|failure| failure.to_string())?;
        commands.fetch_add(report.commands, Ordering::Relaxed);
        cuts.fetch_add(u64::from(report.cuts), Ordering::Relaxed);
        in_recovery.fetch_add(u64::from(report.cuts_in_recovery), Ordering::Relaxed);
        Ok(())
    });
    let [commands, cuts, in_recovery] = [commands, cuts, in_recovery].map(AtomicU64::into_inner);
    println!("{seeds:?} on a file: {commands} commands, {cuts} cuts, {in_recovery} in recovery");
    let seeds = seeds.end - seeds.start;
    assert!(cuts >= seeds && in_recovery > seeds / 20, "{cuts} cuts, {in_recovery} in recovery");
}

/// Cuts the power at every access, those of the start-up included: superblock, sessions and erase table.
#[test]
fn promises_hold_with_a_cut_at_every_access_to_the_file() {
    let mut points = 0;
    for seed in 11..15 {
        let mut config = file_world(seed);
        (config.media.geometry.blocks, config.rounds, config.commands_max) = (20, 1, 120);
        let whole =
            world(seed, &config).cut_at(PowerCut::Never).run().unwrap_or_else(|failure| panic!("{failure}"));
        points += whole.first_boot_points;
        on_all_cores(1..whole.first_boot_points + 1, |point| {
            let run = world(seed, &config).cut_at(PowerCut::Point(point)).run();
            run.map(drop).map_err(|failure| format!("cut at point {point}: {failure}"))
        });
    }
    assert!(points > 100, "{points} points");
}

#[test]
fn the_same_seed_gives_the_same_completions_on_a_file() {
    for seed in 0..10 {
        let run = || -> RunReport { replay(FILE_SEEDS + seed, None).unwrap() };
        assert_eq!(run(), run(), "seed {seed}");
    }
}
