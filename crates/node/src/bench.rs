//! `headwater bench`: load on a live node, and how long each answer took.
//!
//! In: a [`Plan`]. Out: a [`Report`]. Closed loop: each connection sends `depth` commands and waits for their answers.
//! Open loop: commands are due at a fixed rate whatever the node does, and latency counts from the moment a command was
//! due, so that a stall shows in every command it delayed (no coordinated omission).

pub mod device;
pub mod latency;
pub mod report;
pub mod worker;
pub mod workload;

pub use latency::{Latencies, Latency};
pub use report::Report;
pub use workload::{Distribution, Workload};

use crate::kv::resp_client::{ClientError, Endpoint};
use headwater_host::clock::{Clock, Nanos};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use worker::{Tally, Worker};

/// How commands are timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// The next when the last was answered.
    Closed,
    /// So many a second, from all threads together.
    Open(f64),
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After this long.
    Elapsed(Nanos),
    /// After so many commands.
    Commands(u64),
}

/// Whether values that are read are compared with what they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Byte for byte.
    Yes,
    /// Only counted.
    No,
}

/// What a benchmark does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The node.
    pub endpoint: Endpoint,
    /// Namespace, from 1.
    pub namespace: u8,
    /// Keys, sizes, mix.
    pub workload: Workload,
    /// Commands on the way on each connection.
    pub depth: usize,
    /// Threads of this program.
    pub threads: usize,
    /// Connections, over all threads; at least one a thread.
    pub connections: usize,
    /// Closed or open loop.
    pub pace: Pace,
    /// When to end.
    pub until: Until,
    /// Whether to compare values.
    pub verify: Verify,
    /// Longest wait for one answer.
    pub limit: Duration,
}

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The node.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A socket or thread of this program.
    #[error("the benchmark cannot go on: {0}")]
    Local(#[from] std::io::Error),
    /// A thread of this program died.
    #[error("a benchmark thread panicked: this is a bug of headwater, please report it")]
    Thread,
}

/// Runs a plan; `progress` hears now and then how many commands were answered.
///
/// # Errors
/// [`BenchError`] when the node cannot be reached or stops answering.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(u64)) -> Result<Report, BenchError> {
    let done = AtomicU64::new(0);
    let clock = Clock::start();
    let mut workers = Vec::with_capacity(plan.threads);
    for index in 0..plan.threads {
        workers.push(Worker::connect(plan, index, clock)?);
    }
    let cpu = Clock::process_cpu();
    let begun = clock.now();
    let tally = std::thread::scope(|scope| {
        let running: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(|| worker.run(begun, &done))).collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            Clock::sleep(Nanos::from_millis(20));
            progress(done.load(Ordering::Relaxed));
        }
        let mut total = Tally::default();
        for thread in running {
            total.add(thread.join().map_err(|_panic| BenchError::Thread)??);
        }
        Ok::<_, BenchError>(total)
    })?;
    let cpu = Clock::process_cpu().since(cpu);
    Ok(Report::of(plan, tally, cpu))
}

/// Stores every key of the workload once, so that reads find something.
///
/// # Errors
/// As [`run`].
pub fn fill(plan: &Plan, progress: &mut dyn FnMut(u64)) -> Result<Report, BenchError> {
    let mut workload = plan.workload.clone();
    workload.read_share = 0.0;
    workload.distribution = Distribution::EachOnce;
    let fill = Plan {
        until: Until::Commands(workload.keys),
        workload,
        depth: plan.depth.max(64),
        pace: Pace::Closed,
        ..plan.clone()
    };
    run(&fill, progress)
}
