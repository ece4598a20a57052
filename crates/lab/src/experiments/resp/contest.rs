//! Three servers, one load, in turns.
//!
//! In: a scenario. Out: samples of each server, those with one index taken side by side. A server that cannot be started
//! leaves its place empty: the others are measured all the same, and the claims say why they have no value.

use super::scenario::Scenario;
use crate::canned::Canned;
use crate::cpu_account::CpuAccount;
use crate::experiment::{Context, LabError};
use crate::load::{Load, Ran, Verb, fill, info_number};
use crate::measure::{Contestant, Spread, in_turns};
use crate::report::Row;
use crate::server::{Mode, Server, redis_version};
use headwater_host::clock::Nanos;
use std::cell::Cell;
use std::net::SocketAddr;

/// Rate that the round which does not count assumes; it shows the real one to those that follow.
const PILOT_PER_S: f64 = 10_000.0;
/// How a quick and a full run spend their time.
const QUICK: Effort = Effort { rounds: 5, span: Nanos::from_millis(50) };
const FULL: Effort = Effort { rounds: 7, span: Nanos::from_millis(1_000) };

struct Effort {
    rounds: usize,
    span: Nanos,
}

/// The servers of one durability.
#[derive(Debug)]
pub(super) struct Contest {
    mode: Mode,
    ours: Result<Server, String>,
    redis: Result<(String, Server), String>,
    canned: Canned,
    /// Length of the values that the servers were filled with.
    filled: Cell<usize>,
}

/// One run of one server.
#[derive(Clone, Copy, Debug)]
struct Sample {
    cpu_us: f64,
    ops_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    ops: u64,
    /// Flushes of the medium in the run, where the server counts them.
    flushes: Option<u64>,
}

/// What every server did in one scenario, in the order of the places.
#[derive(Debug)]
pub(super) struct Measured {
    mode: Mode,
    samples: [Vec<Sample>; 3],
}

impl Contest {
    /// Place of our node.
    pub(super) const OURS: usize = 0;
    /// Place of redis-server.
    pub(super) const REDIS: usize = 1;
    /// Place of the canned replies.
    pub(super) const CANNED: usize = 2;
    const NAMES: [&'static str; 3] = ["headwater", "redis-server", "canned replies"];

    /// Starts the servers.
    pub(super) fn open(context: &Context, mode: Mode) -> Result<Self, LabError> {
        let redis = redis_version().and_then(|version| {
            let server = Server::redis(context, mode).map_err(|error| error.to_string())?;
            Ok((version, server))
        });
        Ok(Self {
            mode,
            ours: Server::ours(context, mode).map_err(|error| error.to_string()),
            redis,
            canned: Canned::start()?,
            filled: Cell::new(0),
        })
    }

    /// Why ratios cannot be formed, if they cannot.
    pub(super) fn why_incomplete(&self) -> Option<String> {
        let ours = self.ours.as_ref().err();
        ours.or(self.redis.as_ref().err()).cloned()
    }

    /// What Redis calls itself.
    pub(super) fn redis_version(&self) -> &str {
        self.redis.as_ref().map_or("no redis-server", |(version, _)| version)
    }

    /// Drives the servers in turns.
    pub(super) fn measure(&self, scenario: &Scenario, quick: bool) -> Result<Measured, LabError> {
        let load = scenario.load;
        self.canned.answer_with(load.value_bytes);
        self.fill_for(load)?;
        let effort = if quick { QUICK } else { FULL };
        let seats: Vec<(usize, SocketAddr, CpuAccount)> = self.seats();
        let mut work: Vec<_> = seats
            .iter()
            .map(|&(place, address, account)| {
                let mut expected_per_s = PILOT_PER_S;
                let counts_flushes = place == Self::OURS;
                move || {
                    let ran = || load.run(address, effort.span, expected_per_s);
                    let sample = sample(ran, address, account, counts_flushes)?;
                    expected_per_s = sample.ops_per_s;
                    Ok::<Sample, LabError>(sample)
                }
            })
            .collect();
        let mut contestants: Vec<Contestant<'_, Sample, LabError>> = Vec::new();
        for one in &mut work {
            contestants.push(one);
        }
        let taken = in_turns(effort.rounds, &mut contestants)?;
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        for ((place, _, _), of_place) in seats.iter().zip(taken) {
            samples[*place] = of_place;
        }
        Ok(Measured { mode: self.mode, samples })
    }

    fn seats(&self) -> Vec<(usize, SocketAddr, CpuAccount)> {
        let mut seats = Vec::new();
        if let Ok(server) = &self.ours {
            seats.push((Self::OURS, server.address(), server.account()));
        }
        if let Ok((_, server)) = &self.redis {
            seats.push((Self::REDIS, server.address(), server.account()));
        }
        seats.push((Self::CANNED, self.canned.address(), self.canned.account()));
        seats
    }

    /// Before reads of a length, every key holds a value of that length: a miss would cost less.
    fn fill_for(&self, load: Load) -> Result<(), LabError> {
        if load.verb == Verb::Get && self.filled.get() != load.value_bytes {
            for (place, address, _) in self.seats() {
                if place != Self::CANNED {
                    fill(address, load.value_bytes)?;
                }
            }
            self.filled.set(load.value_bytes);
        }
        Ok(())
    }
}

fn sample(
    run: impl FnOnce() -> Result<Ran, LabError>,
    address: SocketAddr,
    account: CpuAccount,
    counts_flushes: bool,
) -> Result<Sample, LabError> {
    let flushes = || counts_flushes.then(|| info_number(address, "flushes")).flatten();
    let gone = || LabError::Measure { program: address.to_string(), reason: "the server ended".to_owned() };
    let flushes_before = flushes();
    let before = account.used().ok_or_else(gone)?;
    let ran = run()?;
    let used = account.used().ok_or_else(gone)?.since(before);
    Ok(Sample {
        cpu_us: used.to_duration().as_secs_f64() * 1e6 / count(ran.ops),
        ops_per_s: ran.ops_per_s,
        p50_ms: ran.p50_ms,
        p99_ms: ran.p99_ms,
        ops: ran.ops,
        flushes: flushes().zip(flushes_before).map(|(after, before)| after.saturating_sub(before)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count of operations is far below 2^52")]
fn count(ops: u64) -> f64 {
    ops.max(1) as f64
}

impl Measured {
    /// A row for each server that ran.
    pub(super) fn rows(&self, scenario: &Scenario) -> Vec<Row> {
        let row = |place: usize| -> Row {
            let flushes = self.flushes(place);
            Row::new()
                .with("scenario", scenario.name())
                .with("durability", self.mode.ours())
                .with("server", Contest::NAMES[place])
                .with("client", scenario.load.client.name())
                .with("clients", scenario.load.clients)
                .with("cpu_us_per_op", self.spread(place, |sample| sample.cpu_us))
                .with("ops_per_s", self.spread(place, |sample| sample.ops_per_s))
                .with("p50_ms", self.spread(place, |sample| sample.p50_ms).map(|spread| spread.median))
                .with("p99_ms", self.spread(place, |sample| sample.p99_ms).map(|spread| spread.median))
                .with("flushes_per_s", flushes.map(|(per_s, _)| per_s))
                .with("sets_per_flush", flushes.map(|(_, sets)| sets))
        };
        (0..3).filter(|place| !self.samples[*place].is_empty()).map(row).collect()
    }

    /// Middle CPU microseconds of an operation.
    fn cpu_us(&self, place: usize) -> f64 {
        self.spread(place, |sample| sample.cpu_us).map_or(f64::NAN, |spread| spread.median)
    }

    /// Middle operations a second.
    fn ops_per_s(&self, place: usize) -> f64 {
        self.spread(place, |sample| sample.ops_per_s).map_or(f64::NAN, |spread| spread.median)
    }

    /// Our CPU an operation over Redis's, of runs side by side.
    pub(super) fn cpu_ratio(&self) -> Option<Spread> {
        self.ratio(|sample| sample.cpu_us)
    }

    /// Our operations a second over Redis's, of runs side by side.
    pub(super) fn throughput_ratio(&self) -> Option<Spread> {
        self.ratio(|sample| sample.ops_per_s)
    }

    /// What our CPU stands beside.
    pub(super) fn cpu_baseline(&self, redis: &str) -> String {
        format!(
            "{redis} at {:.2} us an operation; canned replies {:.2} us",
            self.cpu_us(Contest::REDIS),
            self.cpu_us(Contest::CANNED)
        )
    }

    /// What our rate stands beside.
    pub(super) fn rate_baseline(&self, redis: &str) -> String {
        format!(
            "{redis} at {:.0} operations a second; canned replies {:.0}",
            self.ops_per_s(Contest::REDIS),
            self.ops_per_s(Contest::CANNED)
        )
    }

    /// A row of both ratios, when both servers ran.
    pub(super) fn ratio_row(&self, scenario: &Scenario) -> Option<Row> {
        let (cpu, rate) = (self.cpu_ratio()?, self.throughput_ratio()?);
        Some(
            Row::new()
                .with("ratio_to_redis", scenario.name())
                .with("client", scenario.load.client.name())
                .with("cpu_ratio", cpu)
                .with("throughput_ratio", rate),
        )
    }

    fn ratio(&self, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        let (ours, redis) = (self.numbers(Contest::OURS, &of), self.numbers(Contest::REDIS, &of));
        Spread::of_ratios(&ours, &redis)
    }

    fn spread(&self, place: usize, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(&self.numbers(place, of))
    }

    fn numbers(&self, place: usize, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples[place].iter().map(of).collect()
    }

    /// Flushes a second and operations a flush over all runs, where they were counted.
    fn flushes(&self, place: usize) -> Option<(f64, f64)> {
        let mut seconds = 0.0;
        let (mut ops, mut flushes) = (0, 0);
        for sample in &self.samples[place] {
            flushes += sample.flushes?;
            ops += sample.ops;
            seconds += count(sample.ops) / sample.ops_per_s;
        }
        (flushes > 0).then(|| (count(flushes) / seconds, count(ops) / count(flushes)))
    }
}
