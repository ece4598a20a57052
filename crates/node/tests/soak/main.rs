//! A soak of a node: kills, clients of every bad kind and damage, beside one client that checks every answer.
//!
//! Input: `HEADWATER_SOAK_SECONDS`, `HEADWATER_SOAK_SEED` for the seed of an earlier run, and `HEADWATER_BIN` for a binary to
//! test instead of the one built with this test.
//! Output: the counts of what was done, the memory and the descriptors of the node in each third of the run, and the
//! latency of the good client. Invariant: no answer is wrong, and the node holds as much at the end as after its warm-up.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
#![expect(clippy::print_stderr, reason = "the test prints its seed and its figures")]

mod damage;
mod footprint;
mod hostile;
mod model;
mod node;
mod phase;

use footprint::{Footprint, FootprintThirds};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::fault_guard::FaultGuard;
use hostile::HostileCounts;
use model::{CheckedClient, StrikeCount};
use node::{SoakNode, check_status};
use phase::{PhaseNumber, SoakPhase};
use std::sync::atomic::{AtomicBool, Ordering};

/// Time of the part with kills, as a share of the run.
const KILLS_SHARE: u64 = 4;
/// Time from one start of a node to its kill.
const LIFE_MS: std::ops::Range<u64> = 300..900;
/// Cycles of the part without kills: hostile clients, then rest and a measurement.
const CYCLES: u64 = 90;
const CYCLE_MIN: Nanos = Nanos::from_millis(500);
/// Cycles between two damages.
const STRIKE_EVERY: u64 = 4;

#[test]
fn hostile_clients_kills_and_damage_leave_answers_right_and_memory_flat_for_ten_seconds() {
    NodeSoak::new(10).run();
}

#[test]
#[ignore = "minutes; make soak-node"]
fn hostile_clients_kills_and_damage_leave_answers_right_and_memory_flat() {
    let seconds = std::env::var("HEADWATER_SOAK_SECONDS").map(|text| text.parse().unwrap());
    NodeSoak::new(seconds.unwrap_or(300)).run();
}

struct NodeSoak {
    folder: tempfile::TempDir,
    random: fastrand::Rng,
    clock: Clock,
    run_time: Nanos,
    strikes: StrikeCount,
    phase: PhaseNumber,
    kills: u64,
}

impl NodeSoak {
    fn new(seconds: u64) -> Self {
        FaultGuard::install().unwrap();
        let seed = std::env::var("HEADWATER_SOAK_SEED")
            .map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
        eprintln!("soak of {seconds} s, seed {seed}");
        Self {
            folder: tempfile::tempdir().unwrap(),
            random: fastrand::Rng::with_seed(seed),
            clock: Clock::start(),
            run_time: Nanos::from_millis(seconds * 1_000),
            strikes: StrikeCount::default(),
            phase: PhaseNumber::default(),
            kills: 0,
        }
    }

    fn run(mut self) {
        let mut client = CheckedClient::new(self.random.u64(..), self.strikes.clone(), self.phase.clone());
        self.kill_again_and_again(&mut client);
        self.serve_hostile_clients(&mut client);
        self.check_at_the_end(&mut client);
        eprintln!("{}", client.text());
    }

    fn start(&self) -> SoakNode {
        SoakNode::start(self.folder.path())
    }

    /// Kills the node while the client reads and writes, and starts it again on the same data, which may be damaged.
    fn kill_again_and_again(&mut self, client: &mut CheckedClient) {
        let end = Nanos(self.run_time.0 / KILLS_SHARE);
        while self.kills < 3 || self.clock.now() < end {
            let node = self.start();
            self.phase.set(SoakPhase::Check);
            client.connect(&node.resp);
            client.check_all();
            // What is damaged shortly before a kill looks like a torn write.
            if self.kills % STRIKE_EVERY == 1 {
                damage::strike(&mut self.random, &node.flash(), &self.strikes);
            }
            self.phase.set(SoakPhase::Kill);
            let life = Nanos::from_millis(self.random.u64(LIFE_MS));
            std::thread::scope(|scope| {
                let work = scope.spawn(|| client.work_until_the_end());
                Clock::sleep(life);
                node.kill();
                work.join().unwrap();
            });
            self.kills += 1;
        }
        eprintln!("{} kills, {} damages: {}", self.kills, self.strikes.get(), client.text());
    }

    /// Keeps one node, with hostile clients and damage, and measures it when they are gone.
    fn serve_hostile_clients(&mut self, client: &mut CheckedClient) {
        let node = self.start();
        self.phase.set(SoakPhase::Check);
        client.connect(&node.resp);
        client.check_all();
        let stop = AtomicBool::new(false);
        let (mut counts, mut samples) = (HostileCounts::default(), Vec::new());
        std::thread::scope(|scope| {
            let work = scope.spawn(|| client.work_until(&stop));
            let idle = Footprint::of(node.pid());
            let cycle_time = Nanos(self.run_time.0 / CYCLES).max(CYCLE_MIN);
            while samples.len() < 6 || self.clock.now() < self.run_time {
                if samples.len() as u64 % STRIKE_EVERY == 1 {
                    damage::strike(&mut self.random, &node.flash(), &self.strikes);
                }
                self.phase.set(SoakPhase::Attack);
                counts.add(&hostile::attack(&node, self.random.u64(..), cycle_time));
                self.phase.set(SoakPhase::Rest);
                samples.push(Footprint::at_rest(node.pid(), idle.descriptors));
                assert!(!work.is_finished(), "the good client has ended");
            }
            stop.store(true, Ordering::Relaxed);
            work.join().unwrap();
        });
        eprintln!("{} cycles, {} damages: {}", samples.len(), self.strikes.get(), counts.text());
        counts.assert_all_happened();
        let thirds = FootprintThirds::of(&samples);
        eprintln!("{}", thirds.text());
        thirds.assert_flat();
        node.kill();
    }

    /// Starts the node once more, writes again what damage made unreadable, and finds every answer right.
    fn check_at_the_end(&self, client: &mut CheckedClient) {
        let node = self.start();
        self.phase.set(SoakPhase::Check);
        client.connect(&node.resp);
        client.check_all();
        let errors = client.errors();
        client.check_all();
        assert_eq!(client.errors(), errors, "a key that was written again is answered with an error");
        node.stop();
        let status = check_status(self.folder.path());
        assert!(status == 0 || (status == 1 && self.strikes.get() > 0), "the check ended with {status}");
    }
}
