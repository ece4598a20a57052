//! Runs the worlds of many seeds on all cores in one process, and keeps what failed.
//!
//! Input: a [`SwarmPlan`], and the function that runs one world ([`crate::replay::replay`], or a test's).
//! Output: a [`SwarmReport`] with the counts and a [`FailedWorld`] for each seed whose world broke a promise, panicked or
//! did not end.
//! Worlds of fresh seeds are of several kinds by turns ([`SwarmPlan::kinds`]).
//! Invariant: a failed seed, run again alone, fails in the same way; the swarm does so itself to record its last events.
//! No thread can be stopped from outside: a world without an end keeps its thread until the process exits.

use crate::simulated_device::DeviceActivity;
use crate::world::{
    ACROSS_SEEDS, BATCH_CLEAR_SEEDS, CHECK_SEEDS, EXTENT_SEEDS, GATHER_SEEDS, LineSink, MOVE_SEEDS,
    PART_SEEDS, RECEIPT_SEEDS, REUSE_SEEDS, RunFailure, RunReport, SWARM_SEEDS, WorldConfig,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Failed worlds after which a swarm ends: a common fault needs no more.
pub const FAILURES_MAX: usize = 32;
/// Last events of a failed world that are kept.
const EVENTS_KEPT: usize = 200;
/// Time between two looks at the worlds that run.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The kinds of a fresh swarm, by turns. Half of the worlds are small ones that are of no other kind.
const FRESH_KINDS: &[u64] = &[
    0,
    0,
    REUSE_SEEDS,
    ACROSS_SEEDS,
    0,
    EXTENT_SEEDS,
    0,
    CHECK_SEEDS + PART_SEEDS + GATHER_SEEDS,
    0,
    ACROSS_SEEDS + BATCH_CLEAR_SEEDS,
    0,
    EXTENT_SEEDS + PART_SEEDS + GATHER_SEEDS,
    0,
    EXTENT_SEEDS + RECEIPT_SEEDS,
    0,
    EXTENT_SEEDS + MOVE_SEEDS,
];

/// The seeds of a swarm, and its end.
#[derive(Clone, Copy, Debug)]
pub struct SwarmPlan {
    /// The first seed; the next ones follow.
    pub first: u64,
    /// Parts of a seed that give its world another kind: they are added to the seeds by turns. At least one.
    pub kinds: &'static [u64],
    /// Number of seeds after which it ends.
    pub seeds: u64,
    /// Time after which it ends.
    pub time: Nanos,
    /// Threads that run worlds.
    pub threads: usize,
    /// Time after which a world counts as one without an end, and the swarm ends.
    pub world_time: Nanos,
}

impl SwarmPlan {
    /// Returns a plan without an end, on all cores, from a seed that no run had before: the wall time in microseconds. A
    /// swarm takes fewer seeds than microseconds pass, and until the year 2112 they lie below the parts of a seed that give
    /// a world its kind.
    #[must_use]
    pub fn fresh() -> Self {
        let wall = Clock::start().wall().0.saturating_mul(1_000);
        Self {
            first: wall.max(SWARM_SEEDS),
            kinds: FRESH_KINDS,
            seeds: u64::MAX,
            time: Nanos(u64::MAX),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            // Large worlds take a tenth of a second.
            world_time: Nanos::from_millis(120_000),
        }
    }

    /// Returns the same plan, for exactly the seeds from this one on.
    #[must_use]
    pub fn from(self, first: u64) -> Self {
        Self { first, kinds: &[0], ..self }
    }

    fn seed(&self, number: u64) -> u64 {
        let turn = to_usize(number % self.kinds.len() as u64);
        self.first.wrapping_add(number).wrapping_add(self.kinds[turn])
    }
}

/// A world that broke a promise, panicked or did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedWorld {
    /// Its seed.
    pub seed: u64,
    /// The promise, or the message of the panic, and the command that replays the world.
    pub cause: String,
    /// The last events before the failure, one a line.
    pub events: Vec<String>,
}

/// The counts of a swarm, and the worlds that failed.
#[derive(Clone, Debug, Default)]
pub struct SwarmReport {
    /// The first seed.
    pub first: u64,
    /// Worlds run, failed ones included.
    pub worlds: u64,
    /// Commands of the worlds that kept every promise.
    pub commands: u64,
    /// Operations on the media of these worlds.
    pub media_operations: u64,
    /// Their power cuts; each but the last of a world is followed by a recovery.
    pub cuts: u64,
    /// Their power cuts during recovery.
    pub cuts_in_recovery: u64,
    /// Their media operations that a power cut lost or tore.
    pub faults: u64,
    /// The work of their devices beside commands.
    pub activity: DeviceActivity,
    /// Duration.
    pub wall: Nanos,
    /// CPU time of all threads.
    pub cpu: Nanos,
    /// The failed worlds, by seed.
    pub failures: Vec<FailedWorld>,
}

impl SwarmReport {
    fn add(&mut self, run: &RunReport) {
        self.commands += run.commands;
        self.media_operations += run.media_operations;
        self.cuts += u64::from(run.cuts);
        self.cuts_in_recovery += u64::from(run.cuts_in_recovery);
        self.faults += run.faults;
        self.activity.add(run.activity);
    }

    fn merge(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.commands += other.commands;
        self.media_operations += other.media_operations;
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.faults += other.faults;
        self.activity.add(other.activity);
        self.cpu = Nanos(self.cpu.0 + other.cpu.0);
    }

    /// Writes a file `SEED.txt` for each failed world into a folder, which is created if there is a failure.
    ///
    /// # Errors
    /// The folder or a file cannot be written.
    pub fn keep_failures(&self, folder: &Path) -> io::Result<()> {
        for failed in &self.failures {
            std::fs::create_dir_all(folder)?;
            let config = WorldConfig::from_seed(failed.seed);
            let events = failed.events.join("\n");
            let text = format!("{}\n\n{config:#?}\n\nlast events:\n{events}\n", failed.cause);
            std::fs::write(folder.join(format!("{}.txt", failed.seed)), text)?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, span: Nanos) -> f64 {
    count as f64 * 1e9 / span.0.max(1) as f64
}

impl fmt::Display for SwarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = Nanos((self.worlds - self.failures.len() as u64).max(1) * 1_000_000_000);
        writeln!(
            f,
            "{} worlds from seed {} in {}: {:.0} a second, {:.0} a second of CPU",
            self.worlds,
            self.first,
            self.wall,
            rate(self.worlds, self.wall),
            rate(self.worlds, self.cpu),
        )?;
        writeln!(
            f,
            "a world: {:.0} commands, {:.0} operations on the medium, {:.2} boots ({:.2} cut during recovery), {:.1} \
             operations lost or torn",
            rate(self.commands, passed),
            rate(self.media_operations, passed),
            rate(self.cuts, passed),
            rate(self.cuts_in_recovery, passed),
            rate(self.faults, passed),
        )?;
        let DeviceActivity { collected, checkpoints, expired, lossy_openings, moves_waited } = self.activity;
        writeln!(
            f,
            "a hundred worlds: {:.0} blocks collected, {:.0} checkpoints, {:.0} keys expired, {:.1} openings that found \
             pages lost, {:.0} jobs that operations waited for",
            100.0 * rate(collected, passed),
            100.0 * rate(checkpoints, passed),
            100.0 * rate(expired, passed),
            100.0 * rate(lossy_openings, passed),
            100.0 * rate(moves_waited, passed),
        )?;
        if self.failures.is_empty() {
            return write!(f, "every promise kept");
        }
        write!(f, "{} failed:", self.failures.len())?;
        self.failures.iter().try_for_each(|failed| write!(f, "\n{}", failed.cause))
    }
}

/// The state that the threads of a swarm share.
struct SwarmState<R> {
    plan: SwarmPlan,
    run: R,
    clock: Clock,
    /// Seeds given out.
    started: AtomicU64,
    stopped: AtomicBool,
    failures: Mutex<Vec<FailedWorld>>,
    /// The world that each thread runs.
    running: Vec<RunningWorld>,
}

/// The world that a thread runs.
#[derive(Debug, Default)]
struct RunningWorld {
    seed: AtomicU64,
    /// The time of its start in nanoseconds, from 1; 0 while no world runs.
    since: AtomicU64,
}

/// Runs the swarm.
pub fn run_swarm<R>(plan: &SwarmPlan, run: R) -> SwarmReport
where
    R: Fn(u64, Option<LineSink<'_>>) -> Result<RunReport, RunFailure> + Send + Sync + 'static,
{
    let threads = plan.threads.max(1);
    let state = Arc::new(SwarmState {
        plan: *plan,
        run,
        clock: Clock::start(),
        started: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
        failures: Mutex::new(Vec::new()),
        running: (0..threads).map(|_| RunningWorld::default()).collect(),
    });
    let (done, finished) = mpsc::channel();
    for thread in 0..threads {
        let (state, done) = (Arc::clone(&state), done.clone());
        std::thread::spawn(move || drop(done.send((thread, state.run_worlds(thread)))));
    }
    let mut report = SwarmReport { first: plan.first, ..SwarmReport::default() };
    let mut at_work: Vec<usize> = (0..threads).collect();
    while !at_work.is_empty() {
        if let Ok((thread, counts)) = finished.recv_timeout(WATCH_INTERVAL) {
            report.merge(&counts);
            at_work.retain(|other| *other != thread);
        }
        at_work.retain(|thread| match state.endless_world(*thread) {
            None => true,
            Some(failed) => {
                state.stopped.store(true, Ordering::Relaxed);
                state.add_failure(failed);
                report.worlds += 1;
                false
            }
        });
    }
    report.wall = state.clock.now();
    report.failures = std::mem::take(&mut state.failures.lock().unwrap_or_else(PoisonError::into_inner));
    report.failures.sort_by_key(|failed| failed.seed);
    report
}

impl<R> SwarmState<R>
where
    R: Fn(u64, Option<LineSink<'_>>) -> Result<RunReport, RunFailure>,
{
    /// Runs worlds until the swarm ends, and returns their counts.
    fn run_worlds(&self, thread: usize) -> SwarmReport {
        let mut counts = SwarmReport::default();
        let running = &self.running[thread];
        loop {
            let now = self.clock.now();
            if self.stopped.load(Ordering::Relaxed) || now >= self.plan.time {
                break;
            }
            let number = self.started.fetch_add(1, Ordering::Relaxed);
            if number >= self.plan.seeds {
                break;
            }
            let seed = self.plan.seed(number);
            running.seed.store(seed, Ordering::Relaxed);
            running.since.store(now.0 + 1, Ordering::Release);
            counts.worlds += 1;
            match run_caught(seed, &self.run, None) {
                Ok(report) => counts.add(&report),
                Err(_) => self.add_failure(replay_failed(seed, &self.run)),
            }
        }
        running.since.store(0, Ordering::Release);
        counts.cpu = Clock::thread_cpu();
        counts
    }

    fn add_failure(&self, failed: FailedWorld) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push(failed);
        self.stopped.fetch_or(failures.len() >= FAILURES_MAX, Ordering::Relaxed);
    }

    /// Returns the world of a thread if it has run for longer than any world takes.
    fn endless_world(&self, thread: usize) -> Option<FailedWorld> {
        let running = &self.running[thread];
        let since = running.since.load(Ordering::Acquire);
        let spent = self.clock.now().since(Nanos(since));
        (since != 0 && spent >= self.plan.world_time).then(|| {
            let seed = running.seed.load(Ordering::Relaxed);
            let cause = format!(
                "seed {seed}: the world has not ended after {spent}\nreplay with: headwater sim replay --seed {seed}"
            );
            FailedWorld { seed, cause, events: Vec::new() }
        })
    }
}

/// Runs a failed world again, and records its last events.
fn replay_failed<R>(seed: u64, run: &R) -> FailedWorld
where
    R: Fn(u64, Option<LineSink<'_>>) -> Result<RunReport, RunFailure>,
{
    let mut events = VecDeque::new();
    let mut keep = |line: &str| {
        if events.len() == EVENTS_KEPT {
            events.pop_front();
        }
        events.push_back(line.to_owned());
    };
    let cause = match run_caught(seed, run, Some(&mut keep)) {
        Err(cause) => cause,
        Ok(_) => {
            format!("seed {seed}: the world failed once and not again: it depends on more than its seed")
        }
    };
    FailedWorld { seed, cause, events: events.into() }
}

/// Runs one world. A panic is a failure of the world, not of the swarm.
fn run_caught<R>(seed: u64, run: &R, sink: Option<LineSink<'_>>) -> Result<RunReport, String>
where
    R: Fn(u64, Option<LineSink<'_>>) -> Result<RunReport, RunFailure>,
{
    match catch_unwind(AssertUnwindSafe(|| run(seed, sink))) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(panic) => Err(format!(
            "seed {seed}: panic: {}\nreplay with: headwater sim replay --seed {seed}",
            message_of(&*panic)
        )),
    }
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
