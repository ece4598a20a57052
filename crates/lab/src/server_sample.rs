//! One run of a load on one server: its CPU, its rate and its latencies.
//!
//! Input: a server, a load and a span. Output: a [`ServerSample`].

use crate::experiment::LabError;
use crate::resp_load::{LoadResult, RespLoad, info_number};
use crate::server_comparison::{ComparedSamples, ComparedServer, RoundPlan, ServerComparison, ServerRole};
use headwater_host::clock::Nanos;

/// Rate assumed for the unrecorded first round; the following rounds use the measured rate.
const PILOT_PER_S: f64 = 10_000.0;

/// One run of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSample {
    /// Server CPU of an operation, in microseconds.
    pub(crate) cpu_us: f64,
    /// Operations a second.
    pub(crate) ops_per_s: f64,
    /// Median latency.
    pub(crate) p50_ms: f64,
    /// Latency that 1 % of the operations exceed.
    pub(crate) p99_ms: f64,
    /// Number of operations.
    pub(crate) ops: u64,
    /// Flushes of the medium in the run, if the server counts them.
    pub(crate) flushes: Option<u64>,
}

impl ServerSample {
    /// Runs one load on every server, interleaved.
    pub(crate) fn measure(
        servers: &ServerComparison,
        load: RespLoad,
        plan: RoundPlan,
    ) -> Result<ComparedSamples<Self>, LabError> {
        servers.set_canned_value(load.value_bytes);
        servers.fill(load.keys, load.value_bytes)?;
        let mut expected_per_s = vec![PILOT_PER_S; servers.servers().len()];
        servers.run(plan.rounds, |index, server| {
            let sample = Self::of(server, || load.run(server.address, plan.span, expected_per_s[index]))?;
            expected_per_s[index] = sample.ops_per_s;
            Ok(sample)
        })
    }

    fn of(
        server: &ComparedServer,
        run: impl FnOnce() -> Result<LoadResult, LabError>,
    ) -> Result<Self, LabError> {
        let address = server.address;
        let counts_flushes = server.role == ServerRole::Node;
        let flushes = || counts_flushes.then(|| info_number(address, "flushes")).flatten();
        let flushes_before = flushes();
        let (ran, used) = with_cpu(server, run)?;
        Ok(Self {
            cpu_us: used.to_duration().as_secs_f64() * 1e6 / count(ran.ops),
            ops_per_s: ran.ops_per_s,
            p50_ms: ran.p50_ms,
            p99_ms: ran.p99_ms,
            ops: ran.ops,
            flushes: flushes().zip(flushes_before).map(|(after, before)| after.saturating_sub(before)),
        })
    }
}

/// Runs a load. Returns its result, and the CPU time that the server used.
pub(crate) fn with_cpu<T>(
    server: &ComparedServer,
    run: impl FnOnce() -> Result<T, LabError>,
) -> Result<(T, Nanos), LabError> {
    let gone = || LabError::Measure { program: server.name.clone(), reason: "the server ended".to_owned() };
    let before = server.account.used().ok_or_else(gone)?;
    let ran = run()?;
    let used = server.account.used().ok_or_else(gone)?.since(before);
    Ok((ran, used))
}

/// Converts a count of operations; at least 1, because it is divided by.
#[expect(clippy::cast_precision_loss, reason = "a count of operations is far below 2^52")]
pub(crate) fn count(ops: u64) -> f64 {
    ops.max(1) as f64
}
