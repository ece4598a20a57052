//! The planted changes of the real device are found by the checker of some world, all but those of [`UNSEEN`].
//!
//! Without `HEADWATER_MUTANT_RUNS=N`, the most runs of each change, the test is short, and only most changes must be
//! found; `HEADWATER_MUTANTS=A,B` names the changes to run. The table on standard output names for each change what
//! found it, the seed (`headwater sim replay` shows the same world without the change), and how many runs that took.
#![expect(clippy::print_stdout, reason = "the table of what found each change is the result")]

use headwater_sim::replay::replay;
use headwater_sim::world::{BLOCK_SEEDS, FILE_SEEDS, LYING_SEEDS, SWARM_SEEDS, WorldConfig};
use headwater_ssd::media::{PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use headwater_ssd::mutant::{Mutant, plant};
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

/// Most runs of one change in the short test, and how many changes it finds at least.
const SHORT_RUNS: usize = 25;
const SHORT_FOUND: usize = 48;
/// Characters of a failure in the table.
const FAILURE_CHARS: usize = 110;

thread_local! {
    /// The message of the last panic of this thread.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The worlds that run by turns: keys, blocks, those of the swarm, on a file, and two whose medium lies.
const KINDS: [u64; 6] =
    [0, BLOCK_SEEDS, SWARM_SEEDS, FILE_SEEDS, LYING_SEEDS, LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS];

/// Seeds of the swarm whose worlds write more than their medium holds, so that blocks are collected. They run as they are
/// and, in every other turn, with a medium that lies.
static FULL_WORLDS: LazyLock<Vec<u64>> =
    LazyLock::new(|| (SWARM_SEEDS..).filter(|seed| is_full(*seed)).take(FULL_WORLDS_MAX).collect());
const FULL_WORLDS_MAX: usize = 256;

/// Returns true if the boots of a world may fill its medium.
fn is_full(seed: u64) -> bool {
    let config = WorldConfig::from_seed(seed);
    let pages = 1 + config.workload.value_bytes_max as u64 / 2 / PAGE_DATA_BYTES as u64;
    // A program has two points at which the power can be cut.
    let boot = (u64::from(config.commands_max) * pages).min(config.points_max / 2);
    u64::from(config.rounds) * boot > u64::from(config.media.geometry.blocks) * PAGES_PER_BLOCK as u64
}

/// Seeds that find the changes which few worlds show.
const FIRST_SEEDS: [u64; 18] = [
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
    FILE_SEEDS + 8,
    FILE_SEEDS + 14,
    LYING_SEEDS + 302,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 5,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 30,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 45,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 145,
    LYING_SEEDS + FILE_SEEDS + BLOCK_SEEDS + 268,
];

/// Changes that no world has shown in 300 to 2,000 runs. They run only by name: `make mutants MUTANTS=A,B`.
const UNSEEN: [Mutant; 26] = [
    Mutant::IdleRecordSkipped,
    Mutant::CommitRecordsOnOneSide,
    Mutant::AbsentDeleteSkipped,
    Mutant::AbsentBlockSkipped,
    Mutant::BatchFlagsMissing,
    Mutant::PageNotProven,
    Mutant::OpeningNotFlushed,
    Mutant::OpeningRecordOnce,
    Mutant::SequenceReused,
    Mutant::OlderLifeAccepted,
    Mutant::DoubtNotInCheckpoint,
    Mutant::OldLossIgnored,
    Mutant::BeforeSequenceLow,
    Mutant::RecordInDoubtAnswered,
    Mutant::ClearSettlesNothing,
    Mutant::LostEntriesDropped,
    Mutant::OldBlocksNotDoubted,
    Mutant::ReadChecksumIgnored,
    Mutant::ExpiryNotQueued,
    Mutant::ExpiryLostByMove,
    Mutant::ErasedBeforeMoved,
    Mutant::WindowReused,
    Mutant::TombstoneDropped,
    Mutant::SpareChecksumIgnored,
    Mutant::CheckpointDiscardedEarly,
    Mutant::EntryOfReusedBlockLoaded,
];

/// One run of a change.
#[derive(Clone, Copy)]
struct Run(usize);

impl Run {
    fn seed(self) -> u64 {
        match self.0.checked_sub(FIRST_SEEDS.len()) {
            None => FIRST_SEEDS[self.0],
            Some(turn) => {
                let (turn, kind) = (turn / (KINDS.len() + 1), turn % (KINDS.len() + 1));
                match KINDS.get(kind) {
                    Some(first) => first + turn as u64,
                    None => {
                        FULL_WORLDS[turn / 2 % FULL_WORLDS_MAX] + if turn % 2 == 0 { 0 } else { LYING_SEEDS }
                    }
                }
            }
        }
    }

    /// Returns true if the medium lies: the device may then answer wrongly without a change too.
    fn lies(self) -> bool {
        self.seed() & LYING_SEEDS != 0
    }

    /// Runs the world, and returns what was wrong with the device.
    fn failure(self) -> Option<String> {
        match catch_unwind(AssertUnwindSafe(|| replay(self.seed(), None))) {
            Ok(Ok(_)) => None,
            Ok(Err(failure)) => Some(failure.cause.to_string()),
            Err(_) => Some(format!("assertion: {}", PANIC.take())),
        }
    }
}

/// The run that found a change.
struct Found {
    mutant: Mutant,
    run: Run,
    failure: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure: String = self.failure.chars().take(FAILURE_CHARS).collect();
        let (mutant, runs) = (format!("{:?}", self.mutant), self.run.0 + 1);
        write!(f, "{mutant:<28} | {failure:<FAILURE_CHARS$} | {:>19} | {runs:>6}", self.run.seed())
    }
}

/// Runs a change until a run fails that does not fail without it.
///
/// # Errors
/// No run fails, or the run of an honest medium fails without the change too.
fn find(mutant: Mutant, runs_max: usize) -> Result<Found, String> {
    for run in (0..runs_max).map(Run) {
        plant(Some(mutant));
        let failure = run.failure();
        plant(None);
        match failure.map(|failure| (failure, run.failure())) {
            Some((failure, None)) => return Ok(Found { mutant, run, failure }),
            Some((_, Some(failure))) if !run.lies() => {
                return Err(format!("seed {} fails without a change: {failure}", run.seed()));
            }
            _ => {}
        }
    }
    Err(format!("{mutant:?} is not found in {runs_max} runs: {}", mutant.description().trim()))
}

/// Returns the changes to run, and true if they were named.
fn chosen() -> (Vec<Mutant>, bool) {
    let Ok(names) = std::env::var("HEADWATER_MUTANTS") else {
        return (Mutant::ALL.iter().copied().filter(|mutant| !UNSEEN.contains(mutant)).collect(), false);
    };
    let named = |name: &str| {
        let known = Mutant::ALL.iter().find(|mutant| format!("{mutant:?}") == name);
        *known.unwrap_or_else(|| panic!("HEADWATER_MUTANTS: there is no change {name}"))
    };
    (names.split(',').map(named).collect(), true)
}

#[test]
fn every_planted_change_is_found() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or_default();
        PANIC.set(format!("{message} ({place})"));
    }));
    let (mutants, are_named) = chosen();
    let runs = std::env::var("HEADWATER_MUTANT_RUNS").ok();
    let runs_max = runs.as_ref().map_or(SHORT_RUNS, |text| text.parse().unwrap());
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    println!("{:<28} | {:<FAILURE_CHARS$} | {:>19} | {:>6}", "mutant", "found by", "seed", "runs");
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
    let found = mutants.len() - missed.len();
    println!("{found} of {} changes found in at most {runs_max} runs each", mutants.len());
    let wanted = if runs.is_none() && !are_named { SHORT_FOUND } else { mutants.len() };
    let fails_alone = missed.iter().any(|failure| failure.contains("without a change"));
    assert!(found >= wanted && !fails_alone, "{} changes:\n{}", missed.len(), missed.join("\n"));
}
