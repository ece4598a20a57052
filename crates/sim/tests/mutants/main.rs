//! Every planted change of the real device is found by the checker of some world, a few by tests of the device alone instead.
//!
//! A change runs in the worlds that are made for it ([`directed`]) or, if there are none, in those of seeds: first of the
//! seeds that find rare changes, then of each kind by turns. `HEADWATER_MUTANT_RUNS=N` is the most runs of seeds;
//! `HEADWATER_MUTANTS=A,B` names the changes to run. The table on standard output names for each change what found it,
//! the seed (`headwater sim replay` shows the same world without the change), and how many runs that took.
#![expect(clippy::print_stdout, reason = "the table of what found each change is the result")]

mod directed;

use headwater_sim::replay::replay;
use headwater_sim::world::{
    BLOCK_SEEDS, CHECK_SEEDS, FILE_SEEDS, LONG_SEEDS, LYING_SEEDS, PART_SEEDS, REUSE_SEEDS, RunFailure,
    RunReport, SWARM_SEEDS,
};
use headwater_ssd::mutant::{Mutant, plant};
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes that tests of the device alone find, each with its test: what they break takes a read that outlives an erase of its
/// block, and an operation holds its key while it reads; or a list that was damaged before its page was written.
const UNIT_TESTED: &[(Mutant, &str)] = &[
    (Mutant::KeptAcrossLives, "--lib without_the_guard_each_end_of_a_life_would_keep_a_page"),
    (
        Mutant::FirstClaimWins,
        "--test contested_extents without_the_guard_a_damaged_list_would_take_the_extents",
    ),
];
/// Most runs of one change in worlds of seeds, where no other number is asked for.
const SHORT_RUNS: usize = 80;
/// Changes that there are at least.
const CHANGES_MIN: usize = 60;
/// Characters of a failure in the table.
const FAILURE_CHARS: usize = 110;

thread_local! {
    /// The message of the last panic of this thread.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The worlds that run by turns: keys, blocks, those of the swarm, on a file, two whose medium lies, two that use their
/// blocks again, and one with long commands.
const KINDS: [u64; 9] = [
    0,
    BLOCK_SEEDS,
    SWARM_SEEDS,
    FILE_SEEDS,
    LYING_SEEDS,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS,
    REUSE_SEEDS + SWARM_SEEDS,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS,
    LONG_SEEDS,
];

/// Seeds that find the changes which few worlds show.
const FIRST_SEEDS: &[u64] = &[
    1,
    96,
    314,
    BLOCK_SEEDS + 1,
    BLOCK_SEEDS + 105,
    BLOCK_SEEDS + 121,
    BLOCK_SEEDS + 272,
    SWARM_SEEDS + 12,
    SWARM_SEEDS + 35,
    SWARM_SEEDS + 44,
    SWARM_SEEDS + 71,
    FILE_SEEDS + 8,
    FILE_SEEDS + 14,
    LYING_SEEDS + 302,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 5,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 30,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 45,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 145,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 268,
    REUSE_SEEDS + SWARM_SEEDS,
    REUSE_SEEDS + SWARM_SEEDS + 7,
    REUSE_SEEDS + SWARM_SEEDS + 3,
    REUSE_SEEDS + SWARM_SEEDS + 12,
    REUSE_SEEDS + SWARM_SEEDS + 117,
    REUSE_SEEDS + SWARM_SEEDS + 1_277,
    REUSE_SEEDS + SWARM_SEEDS + 155,
    REUSE_SEEDS + SWARM_SEEDS + 513,
    REUSE_SEEDS + SWARM_SEEDS + 353,
    REUSE_SEEDS + SWARM_SEEDS + 1_861,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 12,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 15,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 22,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 31,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 62,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 127,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 452,
    REUSE_SEEDS + LYING_SEEDS + BLOCK_SEEDS + 71,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 7,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 122,
    REUSE_SEEDS + LYING_SEEDS + SWARM_SEEDS + 111,
    FILE_SEEDS + 178,
    FILE_SEEDS + 65,
    11_529_215_054_658_404_467,
    9_223_372_045_444_710_786,
    CHECK_SEEDS,
    CHECK_SEEDS + 1,
    LONG_SEEDS,
    LONG_SEEDS + 1,
    LONG_SEEDS + 2,
    LONG_SEEDS + 3,
    PART_SEEDS,
    PART_SEEDS + 1_795_643_686_296_566,
    PART_SEEDS + 1_795_643_686_300_745,
    11_018_797_000_000_001_902,
    11_018_797_000_000_410_903,
];

/// One run of a change.
#[derive(Clone, Copy)]
enum Run {
    /// A world that is made for the change.
    Directed(Mutant, u64),
    /// The n-th world of a seed.
    Seed(usize),
}

impl Run {
    /// Returns the runs of a change.
    fn all(mutant: Mutant, runs_max: usize) -> Box<dyn Iterator<Item = Self>> {
        if directed::world(mutant, 0).is_some() || directed::moving_seed(mutant, 0).is_some() {
            return Box::new((0..directed::WORLDS_MAX).map(move |number| Self::Directed(mutant, number)));
        }
        Box::new((0..runs_max).map(Self::Seed))
    }

    /// Runs the world.
    fn world(self) -> Result<RunReport, RunFailure> {
        match self {
            Self::Seed(nth) => replay(seed_of(nth), None),
            Self::Directed(mutant, number) => match directed::moving_seed(mutant, number) {
                Some(seed) => replay(seed, None),
                None => directed::world(mutant, number).expect("it has one").run(),
            },
        }
    }

    /// Returns true if the device may answer wrongly without a change too.
    fn may_fail(self) -> bool {
        matches!(self, Self::Seed(nth) if seed_of(nth) & LYING_SEEDS != 0)
    }

    /// Runs the world, and returns what was wrong with the device.
    fn failure(self) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| self.world())) {
            Ok(Ok(_)) => None,
            Ok(Err(failure)) => Some(failure.cause.to_string()),
            Err(_) => Some(format!("assertion: {}", PANIC.take())),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directed(_, number) => write!(f, "{:>20}", format!("directed {number}")),
            Self::Seed(nth) => write!(f, "{:>20}", seed_of(*nth)),
        }
    }
}

/// Returns the n-th seed.
fn seed_of(nth: usize) -> u64 {
    let Some(turn) = nth.checked_sub(FIRST_SEEDS.len()) else { return FIRST_SEEDS[nth] };
    let (turn, kind) = (turn / KINDS.len(), turn % KINDS.len());
    KINDS[kind] + turn as u64
}

/// The run that found a change.
struct Found {
    mutant: Mutant,
    run: Run,
    runs: usize,
    failure: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure: String = self.failure.chars().take(FAILURE_CHARS).collect();
        let mutant = format!("{:?}", self.mutant);
        write!(f, "{mutant:<28} | {failure:<FAILURE_CHARS$} | {} | {:>6}", self.run, self.runs)
    }
}

/// Runs a change until a run fails that does not fail without it.
///
/// # Errors
/// No run fails, or the run of an honest medium fails without the change too.
fn find(mutant: Mutant, runs_max: usize) -> Result<Found, String> {
    for (run, runs) in Run::all(mutant, runs_max).zip(1..) {
        plant(Some(mutant));
        let failure = run.failure();
        plant(None);
        match failure.map(|failure| (failure, run.failure())) {
            Some((failure, None)) => return Ok(Found { mutant, run, runs, failure }),
            Some((_, Some(failure))) if !run.may_fail() => {
                return Err(format!("the world of {run} fails without a change: {failure}"));
            }
            _ => {}
        }
    }
    Err(format!("{mutant:?} is not found: {}", mutant.description().trim()))
}

/// Returns the test of the device that finds a change in place of a world.
fn unit_test_of(mutant: Mutant) -> Option<&'static str> {
    UNIT_TESTED.iter().find(|(tested, _)| *tested == mutant).map(|(_, test)| *test)
}

/// Returns the changes to run.
fn chosen() -> Vec<Mutant> {
    let Ok(names) = std::env::var("HEADWATER_MUTANTS") else {
        return Mutant::ALL.iter().filter(|mutant| unit_test_of(**mutant).is_none()).copied().collect();
    };
    let named = |name: &str| {
        let known = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == name);
        let mutant = *known.unwrap_or_else(|| panic!("HEADWATER_MUTANTS: there is no change {name}"));
        if let Some(test) = unit_test_of(mutant) {
            panic!(
                "HEADWATER_MUTANTS: no world finds {name}, run \
                 `cargo test --package headwater-ssd --features mutants {test}`"
            );
        }
        mutant
    };
    names.split(',').map(named).collect()
}

#[test]
fn every_planted_change_is_found() {
    let mutants = chosen();
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or_default();
        PANIC.set(format!("{message} ({place})"));
    }));
    let runs = std::env::var("HEADWATER_MUTANT_RUNS").ok();
    let runs_max = runs.map_or(SHORT_RUNS, |text| text.parse().unwrap());
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    println!("{:<28} | {:<FAILURE_CHARS$} | {:>20} | {:>6}", "mutant", "found by", "seed", "runs");
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match find(mutant, runs_max) {
                        Ok(found) => println!("{found}"),
                        Err(failure) => missed.lock().unwrap().push(failure),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    drop(std::panic::take_hook());
    println!("{} of {} changes found", mutants.len() - missed.len(), mutants.len());
    assert!(missed.is_empty(), "{} changes:\n{}", missed.len(), missed.join("\n"));
    assert!(Mutant::ALL.len() >= CHANGES_MIN, "{} changes", Mutant::ALL.len());
}
