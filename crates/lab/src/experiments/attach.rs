//! A client in another process than its device, on separate cores, compared with other ways to cross between processes.
//!
//! Input: a node, pinned to one core, and a client on another.
//! Output: the time from submission to completion at depth 1, commands a second at depth 32, and the effect of one
//! client on the tail latency of another. Reads are Retrieve commands of NVMe KV, of values of 4,096 and of 512 bytes.
//! The baselines, in the same run and on the same cores, are a ping-pong of 4 KiB over bare shared memory, and over
//! Unix sockets, spinning and blocking.
//!
//! # Two clients on one core
//! For the isolation figure one thread drives both clients, because two threads on one core would measure the
//! scheduler: between two commands of the first client it refills the queue of the second, so the device always has
//! work of both.

mod peers;
mod reader;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::Nanos;
use headwater_io::IoError;
use peers::{MemoryPeer, SocketBlocking, SocketPeer};
use reader::AttachedReader;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::Display;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "attach",
    summary: "reads of a client in another process, through rings in shared memory",
    baseline: "a bare ping-pong of 4 KiB, and Unix sockets that spin and that block",
    claims: &["p2.attach.*"],
    run,
};

/// Name, goal, unit of each claim.
const CLAIMS: [(&str, ClaimGoal, &str); 4] = [
    ("p2.attach.read.4k", ClaimGoal::AtMost(1.5), "us from command to answer, p50"),
    ("p2.attach.read.4k.vs_unix_socket", ClaimGoal::AtLeast(10.0), "times below a blocking Unix socket, p50"),
    (
        "p2.attach.iops.512",
        ClaimGoal::AtLeast(1_000_000.0),
        "reads of 512 bytes a second, one client, depth 32",
    ),
    (
        "p2.attach.isolation",
        ClaimGoal::AtMost(1.2),
        "p99 beside a client at full speed under limits, over p99 alone",
    ),
];

/// Limit of the second client's namespace, in commands a second.
const LIMIT_IOPS: u32 = 20_000;

/// Maximum duration of a round at depth 1, for a machine whose cores have other work: spinning peers then wait for
/// whole scheduler slices.
pub(super) const ROUND_MAX: Nanos = Nanos::from_millis(400);

struct AttachWork {
    rounds: usize,
    /// Number of commands of a round at depth 1.
    trips: usize,
    /// Number of commands of a round at depth 32.
    reads: u64,
}

const QUICK: AttachWork = AttachWork { rounds: 5, trips: 20_000, reads: 500_000 };
const FULL: AttachWork = AttachWork { rounds: 11, trips: 100_000, reads: 3_000_000 };

/// A guard that pins the thread to a core until it is dropped.
struct OnCore {
    before: CpuSet,
}

impl OnCore {
    fn pin(core: usize) -> Result<Self, LabError> {
        let before = sched_getaffinity(None).map_err(|errno| system("read the CPU affinity", errno))?;
        set_core(None, core)?;
        Ok(Self { before })
    }
}

impl Drop for OnCore {
    fn drop(&mut self) {
        // A thread that stays pinned is slow, not wrong.
        let _ = sched_setaffinity(None, &self.before);
    }
}

fn set_core(pid: Option<Pid>, core: usize) -> Result<(), LabError> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(pid, &cores).map_err(|errno| system("pin a thread to a core", errno))
}

fn system(what: &'static str, errno: rustix::io::Errno) -> LabError {
    LabError::Io { what, source: errno.into() }
}

fn failed(reason: impl Display) -> LabError {
    LabError::Measure { program: "headwater serve".to_owned(), reason: reason.to_string() }
}

impl From<IoError> for LabError {
    fn from(error: IoError) -> Self {
        failed(error)
    }
}

fn not_run(why: &str) -> ExperimentFindings {
    let claims = CLAIMS.map(|(name, goal, unit)| LabClaim::not_run(name, goal, unit, why));
    ExperimentFindings { rows: Vec::new(), claims: claims.into() }
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let allowed = sched_getaffinity(None).map_err(|errno| system("read the CPU affinity", errno))?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).take(2).collect();
    let [device_core, client_core] = cores[..] else {
        return Ok(not_run("the run needs two cores"));
    };
    let server = match RespServer::ours(context, RespDurability::OnFlush) {
        Ok(server) => server,
        Err(error) => return Ok(not_run(&error.to_string())),
    };
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    set_core(pid, device_core)?;
    let _here = OnCore::pin(client_core)?;
    let extent = if context.is_quick() { QUICK } else { FULL };
    let mut findings = ExperimentFindings::default();
    round_trips(&server, device_core, &extent, &mut findings)?;
    rate(&server, &extent, &mut findings)?;
    isolation(&server, &extent, &mut findings)?;
    Ok(findings)
}

/// The latencies of a round at depth 1, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct TripLatencies {
    p50_us: f64,
    p99_us: f64,
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of one trip are far below 2^52")]
fn trips_of(mut nanos: Vec<u64>) -> TripLatencies {
    nanos.sort_unstable();
    let at = |part: usize| nanos.get(nanos.len() * part / 100).map_or(f64::NAN, |&ns| ns as f64 / 1_000.0);
    TripLatencies { p50_us: at(50), p99_us: at(99) }
}

fn round_trips(
    server: &RespServer,
    device_core: usize,
    extent: &AttachWork,
    findings: &mut ExperimentFindings,
) -> Result<(), LabError> {
    let trips = extent.trips;
    let mut reader = AttachedReader::attach(&server.attach_socket(), 1, 4_096, 1)?;
    let mut memory = MemoryPeer::start(device_core)?;
    let mut spinning = SocketPeer::start(device_core, SocketBlocking::No)?;
    let mut blocking = SocketPeer::start(device_core, SocketBlocking::Yes)?;
    // A spinning peer has the device's core to itself only while the device sleeps, so each round warms up first.
    let mut attached = || reader.trips(trips).map(trips_of);
    let mut ping_pong = || memory.trips(trips).map(trips_of);
    let mut spin = || spinning.trips(trips).map(trips_of);
    let mut block = || blocking.trips(trips / 4).map(trips_of);
    let mut contestants: [CompareCase<'_, TripLatencies, LabError>; 4] =
        [&mut attached, &mut ping_pong, &mut spin, &mut block];
    let samples = run_interleaved(extent.rounds, &mut contestants)?;
    let p50 = |index: usize| -> Vec<f64> { samples[index].iter().map(|trips| trips.p50_us).collect() };
    let p99 = |index: usize| -> Vec<f64> { samples[index].iter().map(|trips| trips.p99_us).collect() };
    let names =
        ["attach, KV retrieve", "bare shared memory", "Unix socket, spinning", "Unix socket, blocking"];
    for (index, name) in names.into_iter().enumerate() {
        findings.rows.push(
            ReportRow::new()
                .with("4 KiB over", name)
                .with("p50_us", SampleSpread::of(&p50(index)))
                .with("p99_us", SampleSpread::of(&p99(index))),
        );
    }
    let median = |samples: &[f64]| SampleSpread::of(samples).map_or(f64::NAN, |spread| spread.median);
    let [(first, first_goal, first_unit), (second, second_goal, second_unit), ..] = CLAIMS;
    findings.claims.push(LabClaim::found(
        first,
        first_goal,
        (median(&p50(0)), first_unit),
        EvidenceLabel::Measured,
        format!(
            "bare shared memory {:.2} us, spinning Unix socket {:.1} us",
            median(&p50(1)),
            median(&p50(2))
        ),
    ));
    let ratio = SampleSpread::of_ratios(&p50(3), &p50(0)).map_or(f64::NAN, |spread| spread.median);
    let baseline = format!("blocking Unix socket {:.1} us", median(&p50(3)));
    findings.claims.push(LabClaim::found(
        second,
        second_goal,
        (ratio, second_unit),
        EvidenceLabel::Measured,
        baseline,
    ));
    Ok(())
}

fn rate(server: &RespServer, extent: &AttachWork, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let mut reader = AttachedReader::attach(&server.attach_socket(), 1, 512, 32)?;
    let mut read = || reader.rate(extent.reads);
    let mut contestants: [CompareCase<'_, f64, LabError>; 1] = [&mut read];
    let samples = run_interleaved(extent.rounds, &mut contestants)?;
    let spread = SampleSpread::of(&samples[0]);
    findings.rows.push(ReportRow::new().with("512 bytes at depth", 32).with("reads_per_s", spread));
    let (name, goal, unit) = CLAIMS[2];
    let value = spread.map_or(f64::NAN, |spread| spread.median);
    let baseline = "KV retrieve of values of 512 bytes; one device core, one client core";
    findings.claims.push(LabClaim::found(name, goal, (value, unit), EvidenceLabel::Measured, baseline));
    Ok(())
}

fn isolation(
    server: &RespServer,
    extent: &AttachWork,
    findings: &mut ExperimentFindings,
) -> Result<(), LabError> {
    let (name, goal, unit) = CLAIMS[3];
    let socket = server.attach_socket();
    let mut first = AttachedReader::attach(&socket, 1, 4_096, 1)?;
    let mut second = match AttachedReader::limited(&socket, 4_096, 32, LIMIT_IOPS) {
        Ok(reader) => reader,
        Err(error) => {
            findings.claims.push(LabClaim::not_run(name, goal, unit, error.to_string()));
            return Ok(());
        }
    };
    let (trips, mut alone, mut beside) = (extent.trips, Vec::new(), Vec::new());
    // The first pair of rounds is the warm-up.
    for round in 0..=extent.rounds {
        let without = trips_of(first.trips_with_neighbour(trips, None)?);
        let with = trips_of(first.trips_with_neighbour(trips, Some(&mut second))?);
        if round > 0 {
            alone.push(without.p99_us);
            beside.push(with.p99_us);
        }
    }
    let ratio = SampleSpread::of_ratios(&beside, &alone);
    findings.rows.push(
        ReportRow::new()
            .with("p99 at depth 1", "alone, and beside a client that is limited")
            .with("alone_us", SampleSpread::of(&alone))
            .with("beside_us", SampleSpread::of(&beside))
            .with("ratio", ratio),
    );
    let value = ratio.map_or(f64::NAN, |spread| spread.median);
    let baseline = format!("the same client alone; the second is limited to {LIMIT_IOPS} commands a second");
    findings.claims.push(LabClaim::found(name, goal, (value, unit), EvidenceLabel::Measured, baseline));
    Ok(())
}
