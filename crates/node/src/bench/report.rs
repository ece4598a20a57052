//! What a benchmark found, as numbers and as a table.
//!
//! In: a [`Tally`]. Out: a [`Report`] that serialises to JSON and prints as text. Latencies are in microseconds.

use super::latency::{Latency, write_table};
use super::worker::Tally;
use super::{Pace, Plan};
use headwater_host::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// What a benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `closed` or `open`.
    pub pace: &'static str,
    /// Open loop: commands a second that were due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_asked: Option<f64>,
    /// Seconds to the last answer.
    pub seconds: f64,
    /// Commands answered.
    pub commands: u64,
    /// Commands a second.
    pub rate: f64,
    /// Value bytes a second.
    pub bytes_per_second: f64,
    /// Reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub get: Option<Latency>,
    /// Writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Latency>,
    /// Reads that found nothing.
    pub misses: u64,
    /// Commands refused.
    pub refused: u64,
    /// The first refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Values that were not what they must be; only with `--verify`.
    pub wrong: u64,
    /// Open loop: commands that were due and never sent.
    pub unsent: u64,
    /// CPU time of this program a command, in microseconds.
    pub client_cpu_us: f64,
}

#[expect(clippy::cast_precision_loss, reason = "rates need no more than 53 bits")]
impl Report {
    pub(super) fn of(plan: &Plan, tally: Tally, cpu: Nanos) -> Self {
        let seconds = tally.elapsed.to_duration().as_secs_f64();
        let commands = tally.gets.count() + tally.sets.count();
        let each_second = |count: u64| {
            if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
        };
        let (pace, rate_asked) = match plan.pace {
            Pace::Closed => ("closed", None),
            Pace::Open(rate) => ("open", Some(rate)),
        };
        Self {
            pace,
            rate_asked,
            seconds,
            commands,
            rate: each_second(commands),
            bytes_per_second: each_second(tally.bytes),
            get: Latency::of(&tally.gets),
            set: Latency::of(&tally.sets),
            misses: tally.misses,
            refused: tally.refused,
            refusal: tally.refusal,
            wrong: tally.wrong,
            unsent: tally.unsent,
            client_cpu_us: if commands > 0 { cpu.0 as f64 / 1e3 / commands as f64 } else { 0.0 },
        }
    }
}

impl fmt::Display for Report {
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
        write!(f, "; {:.2} us CPU of this client a command", self.client_cpu_us)?;
        if self.unsent > 0 {
            write!(
                f,
                "\n{} commands were due and never sent: the node was behind; ask for a lower --rate",
                self.unsent
            )?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, "\nfirst refusal: {refusal}")?;
        }
        Ok(())
    }
}
