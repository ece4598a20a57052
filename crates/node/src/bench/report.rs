//! The report of a benchmark.
//!
//! Input: a [`WorkerTally`]. Output: a [`BenchReport`] that serialises to JSON and prints as text. Latencies are in microseconds.

use super::latency::{LatencySummary, write_table};
use super::worker::WorkerTally;
use super::{BenchPlan, LoadPacing};
use headwater_host::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// `closed` or `open`.
    pub pace: &'static str,
    /// Open loop: commands a second that were due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_asked: Option<f64>,
    /// Seconds to the last reply.
    pub seconds: f64,
    /// Commands answered.
    pub commands: u64,
    /// Commands a second.
    pub rate: f64,
    /// Value bytes a second.
    pub bytes_per_second: f64,
    /// Latencies of reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub get: Option<LatencySummary>,
    /// Latencies of writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<LatencySummary>,
    /// Reads of keys that do not exist.
    pub misses: u64,
    /// Commands refused.
    pub refused: u64,
    /// The first refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Wrong values; only counted with `--verify`.
    pub wrong: u64,
    /// Open loop: commands that were due and never sent.
    pub unsent: u64,
    /// CPU time of the benchmark for each command, in microseconds.
    pub client_cpu_us: f64,
}

#[expect(clippy::cast_precision_loss, reason = "rates need no more than 53 bits")]
impl BenchReport {
    pub(super) fn of(plan: &BenchPlan, tally: WorkerTally, cpu: Nanos) -> Self {
        let seconds = tally.elapsed.to_duration().as_secs_f64();
        let commands = tally.gets.count() + tally.sets.count();
        let each_second = |count: u64| {
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let (pace, rate_asked) = match plan.pace {
            LoadPacing::Closed => ("closed", None),
            LoadPacing::Open(rate) => ("open", Some(rate)),
        };
        Self {
            pace,
            rate_asked,
            seconds,
            commands,
            rate: each_second(commands),
            bytes_per_second: each_second(tally.bytes),
            get: LatencySummary::from_histogram(&tally.gets),
            set: LatencySummary::from_histogram(&tally.sets),
            misses: tally.misses,
            refused: tally.refused,
            refusal: tally.refusal,
            wrong: tally.wrong,
            unsent: tally.unsent,
            client_cpu_us: if commands > 0 { cpu.0 as f64 / 1e3 / commands as f64 } else { 0.0 },
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} commands in {:.2} s: {:.0} a second, {:.1} MB of values a second ({} loop)",
            self.commands,
            self.seconds,
            self.rate,
            self.bytes_per_second / 1e6,
            self.pace
        )?;
        write_table(f, 1, [("GET", self.get), ("SET", self.set)])?;
        write!(f, "{} misses, {} refused, {} wrong", self.misses, self.refused, self.wrong)?;
        write!(f, "; {:.2} us client CPU per command", self.client_cpu_us)?;
        if self.unsent > 0 {
            write!(
                f,
                "\n{} commands were due and never sent: the node was too slow; give a lower --rate",
                self.unsent
            )?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, "\nfirst refusal: {refusal}")?;
        }
        Ok(())
    }
}
