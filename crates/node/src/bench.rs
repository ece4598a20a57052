//! `headwater bench`: puts load on a live node and measures the latency of each command.
//!
//! Input: a [`BenchPlan`]. Output: a [`BenchReport`]. Closed loop: each connection sends `depth` commands and waits for their
//! replies. Open loop: commands are due at a fixed rate, independent of the node, and latency counts from the time a
//! command was due, so that a stall shows in every command that it delayed (no coordinated omission).

pub mod device;
pub mod latency;
pub mod report;
pub mod worker;
pub mod workload;

pub use latency::{LatencyHistogram, LatencySummary};
pub use report::BenchReport;
pub use workload::{BenchWorkload, KeyDistribution};

use crate::kv::resp_client::{ClientError, NodeEndpoint};
use headwater_host::clock::{Clock, Nanos};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use worker::{BenchWorker, WorkerTally};

/// The timing of commands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadPacing {
    /// Closed loop: new commands after the replies of the previous ones.
    Closed,
    /// Open loop: this number of commands a second, of all threads together.
    Open(f64),
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// After this time.
    Elapsed(Nanos),
    /// After this number of commands.
    Commands(u64),
}

/// The check of values that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyMode {
    /// Every value is compared with the expected bytes.
    Yes,
    /// Values are only counted.
    No,
}

/// The parameters of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// The node.
    pub endpoint: NodeEndpoint,
    /// Its password, if it wants one.
    pub password: Option<String>,
    /// Namespace, from 1.
    pub namespace: u8,
    /// Keys, sizes, mix.
    pub workload: BenchWorkload,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// Threads of the benchmark.
    pub threads: usize,
    /// Connections of all threads together; at least one a thread.
    pub connections: usize,
    /// Closed or open loop.
    pub pace: LoadPacing,
    /// End of the run.
    pub until: RunEnd,
    /// Check of values that are read.
    pub verify: VerifyMode,
    /// Maximum wait for one reply.
    pub limit: Duration,
}

/// The error of a benchmark that ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The node or the connection to it failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A socket or thread of the benchmark failed.
    #[error("the benchmark failed: {0}")]
    Local(#[from] std::io::Error),
    /// A thread of the benchmark panicked.
    #[error("a benchmark thread panicked: this is a bug in headwater, please report it")]
    Thread,
}

/// Runs a plan; `progress` receives the number of answered commands at intervals.
///
/// # Errors
/// [`BenchError`] when the node cannot be reached or stops answering.
pub fn run(plan: &BenchPlan, progress: &mut dyn FnMut(u64)) -> Result<BenchReport, BenchError> {
    let done = AtomicU64::new(0);
    let clock = Clock::start();
    let mut workers = Vec::with_capacity(plan.threads);
    for index in 0..plan.threads {
        workers.push(BenchWorker::connect(plan, index, clock)?);
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
        let mut total = WorkerTally::default();
        for thread in running {
            total.add(thread.join().map_err(|_panic| BenchError::Thread)??);
        }
        Ok::<_, BenchError>(total)
    })?;
    let cpu = Clock::process_cpu().since(cpu);
    Ok(BenchReport::of(plan, tally, cpu))
}

/// Stores every key of the workload once, so that reads find values.
///
/// # Errors
/// As [`run`].
pub fn fill(plan: &BenchPlan, progress: &mut dyn FnMut(u64)) -> Result<BenchReport, BenchError> {
    let mut workload = plan.workload.clone();
    workload.read_share = 0.0;
    workload.distribution = KeyDistribution::EachOnce;
    let fill = BenchPlan {
        until: RunEnd::Commands(workload.keys),
        workload,
        depth: plan.depth.max(64),
        pace: LoadPacing::Closed,
        ..plan.clone()
    };
    run(&fill, progress)
}
