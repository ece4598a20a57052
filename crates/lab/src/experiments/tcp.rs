//! NVMe over TCP on loopback compared with bare sockets that move the same bytes.
//!
//! Input: a node with 4 KiB values.
//! Output: round trips at depth 1 with both sides polling, CPU of the server for a read at depth 32 with both sides
//! sleeping, and the claims `p2.tcp.*` as ratios of adjacent runs.
//!
//! # The floors
//! - Depth 1: a thread that replies to 72 bytes with as many bytes as the reply to a read has, and a client; both poll.
//! - CPU: the same host, to whose capsules a thread replies with prepared bytes ([`bare`]). The host sends 32 reads,
//!   sleeps, and sends the next 32 when all have completed. If the host sent on each reply, a faster server would find
//!   it awake more often, and waking the host is most of the cost of a send. So only the server differs: both are
//!   woken once for 32 reads, receive once, send once and wake the host. Both sleep when idle, so no spinning is
//!   counted. The node's account is its whole process, the bare server's its replying thread.

mod bare;
mod floor;
mod node;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::cpu_account::CpuAccount;
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{SampleSpread, run_interleaved};
use crate::report::ReportRow;
use bare::BareServer;
use floor::PingServer;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;
use headwater_io::{Buffer, Command, Device, IoError, Queue};
use node::{TcpNode, WaitMode};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "tcp",
    summary: "round trip and server CPU of 4 KiB reads over NVMe/TCP on loopback",
    baseline: "bare TCP: a ping-pong of the same bytes, and a server with prepared replies, waiting the same way",
    claims: &[DEPTH_1, CPU],
    run,
};

const DEPTH_1: &str = "p2.tcp.depth1.read.4k";
const DEPTH_1_GOAL: ClaimGoal = ClaimGoal::AtMost(1.25);
const DEPTH_1_UNIT: &str = "ratio of median round trips";
const CPU: &str = "p2.tcp.cpu.read.4k";
const CPU_GOAL: ClaimGoal = ClaimGoal::AtMost(1.5);
const CPU_UNIT: &str = "ratio of server CPU a read";

/// Bytes of a value.
const VALUE_BYTES: usize = 4_096;
/// Number of keys, which are read in rotation.
const KEYS: u64 = 1_000;
/// Number of commands sent together when CPU is counted.
const DEPTH: u32 = 32;
/// A spin time longer than any wait, so that a polling host never sleeps.
const NEVER_SLEEP: Nanos = Nanos::from_millis(3_600_000);

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    let (rounds, round_trips, reads) =
        if context.is_quick() { (5, 5_000, 40_000) } else { (15, 20_000, 192_000) };
    for waiting in [WaitMode::Polls, WaitMode::Sleeps] {
        let node = TcpNode::start(context, waiting)?;
        let mut device = node.device(node.address())?;
        fill(&mut device)?;
        let mut host = TcpHost::open(device, waiting)?;
        match waiting {
            WaitMode::Polls => depth_1(&mut findings, &mut host, (rounds, round_trips))?,
            WaitMode::Sleeps => cpu(&mut findings, (&node, &mut host), (rounds, reads))?,
        }
    }
    Ok(findings)
}

fn depth_1(
    findings: &mut ExperimentFindings,
    host: &mut TcpHost,
    (rounds, count): (usize, u64),
) -> Result<(), LabError> {
    let floor = PingServer::start()?;
    let samples = run_interleaved(
        rounds,
        &mut [&mut || median_of(count, |_| host.read_one()), &mut || ping_median(&floor, count)],
    )?;
    let (ours, bare) = (SampleSpread::of(&samples[0]), SampleSpread::of(&samples[1]));
    let row = |what: &str, spread: Option<SampleSpread>| {
        ReportRow::new().with("depth 1, polling", what).with("median_us", spread)
    };
    findings.rows.push(row("NVMe/TCP, 4 KiB read", ours));
    findings.rows.push(row("bare TCP, 72 bytes for 4,144", bare));
    let ratio = SampleSpread::of_ratios(&samples[0], &samples[1]).map_or(f64::NAN, |spread| spread.median);
    let baseline = bare.map_or_else(String::new, |bare| format!("bare TCP: {:.1} us", bare.median));
    findings.claims.push(LabClaim::found(
        DEPTH_1,
        DEPTH_1_GOAL,
        (ratio, DEPTH_1_UNIT),
        EvidenceLabel::Measured,
        baseline,
    ));
    Ok(())
}

fn cpu(
    findings: &mut ExperimentFindings,
    (node, host): (&TcpNode, &mut TcpHost),
    (rounds, count): (usize, u64),
) -> Result<(), LabError> {
    let bare_server = BareServer::start(node.address(), to_usize(KEYS), VALUE_BYTES)?;
    let mut bare_host = TcpHost::open(node.device(bare_server.address())?, WaitMode::Sleeps)?;
    let clock = Clock::start();
    let measured = |account: CpuAccount, work: &mut dyn FnMut() -> Result<(), LabError>| {
        let (before, began) = (account.used(), clock.now());
        work()?;
        let took = clock.now().since(began);
        let used = account
            .used()
            .zip(before)
            .map_or(f64::NAN, |(after, before)| micros_each(after.since(before), count));
        Ok::<_, LabError>((used, micros_each(took, count)))
    };
    let samples = run_interleaved(
        rounds,
        &mut [&mut || measured(node.account(), &mut || host.read_many(count)), &mut || {
            measured(bare_server.account(), &mut || bare_host.read_many(count))
        }],
    )?;
    let of =
        |index: usize, pick: fn(&(f64, f64)) -> f64| samples[index].iter().map(pick).collect::<Vec<f64>>();
    let (ours, bare) = (of(0, |sample| sample.0), of(1, |sample| sample.0));
    let row = |what: &str, index: usize| {
        ReportRow::new()
            .with("32 at a time, sleeping", what)
            .with("server_cpu_us", SampleSpread::of(&of(index, |sample| sample.0)))
            .with("elapsed_us", SampleSpread::of(&of(index, |sample| sample.1)))
    };
    findings.rows.push(row("NVMe/TCP, 4 KiB read", 0));
    findings.rows.push(row("bare TCP, the same host", 1));
    let ratio = SampleSpread::of_ratios(&ours, &bare).map_or(f64::NAN, |spread| spread.median);
    let baseline =
        SampleSpread::of(&bare).map_or_else(String::new, |bare| format!("bare TCP: {:.2} us", bare.median));
    findings.claims.push(LabClaim::found(
        CPU,
        CPU_GOAL,
        (ratio, CPU_UNIT),
        EvidenceLabel::Measured,
        baseline,
    ));
    Ok(())
}

/// Returns the microseconds for each of `count` operations.
#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
fn micros_each(span: Nanos, count: u64) -> f64 {
    span.0 as f64 / 1_000.0 / count.max(1) as f64
}

/// Returns the median duration of `count` calls, in microseconds.
fn median_of(count: u64, mut call: impl FnMut(u64) -> Result<(), LabError>) -> Result<f64, LabError> {
    let clock = Clock::start();
    let mut times = Vec::with_capacity(to_usize(count));
    for number in 0..count {
        let began = clock.now();
        call(number)?;
        times.push(clock.now().since(began).0);
    }
    times.sort_unstable();
    Ok(micros_each(Nanos(times[times.len() / 2]), 1))
}

/// Returns the median round trip over a connection that is open only during the measurement: its other end polls, and
/// would take CPU from the node.
fn ping_median(floor: &PingServer, count: u64) -> Result<f64, LabError> {
    let mut connection = floor.connect()?;
    median_of(count, |_| connection.ping())
}

/// Stores the values that are read.
fn fill(device: &mut Device) -> Result<(), LabError> {
    for key in 0..KEYS {
        device.put(&key.to_le_bytes(), &[7; VALUE_BYTES]).map_err(|error| node::failed(&error))?;
    }
    Ok(())
}

/// The node's client: Headwater's own, over one queue.
struct TcpHost {
    // Dropped before the device, whose controller it belongs to.
    queue: Queue,
    buffer: Buffer,
    next: u64,
    _device: Device,
}

impl TcpHost {
    fn open(mut device: Device, waiting: WaitMode) -> Result<Self, LabError> {
        let failed = |error: IoError| node::failed(&error);
        let buffer = device.buffer(VALUE_BYTES * DEPTH as usize).map_err(failed)?;
        let mut queue = device.queue(DEPTH).map_err(failed)?;
        queue.set_spin(if waiting == WaitMode::Polls { NEVER_SLEEP } else { Nanos::ZERO });
        Ok(Self { queue, buffer, next: 0, _device: device })
    }

    fn submit(&mut self, slot: u64) -> Result<(), LabError> {
        let at = to_usize(slot) * VALUE_BYTES;
        let into = self.buffer.slice(at, VALUE_BYTES).map_err(|error| node::failed(&error.into()))?;
        let key = (self.next % KEYS).to_le_bytes();
        self.next += 1;
        let command = Command::get(1, &key, into).map_err(|error| node::failed(&error))?;
        self.queue.submit(command, slot).map_err(|error| node::failed(&error.into()))
    }

    /// Waits for a completion. Returns the buffer slot that is free again.
    fn reap(&mut self) -> Result<u64, LabError> {
        let done = self.queue.wait(Some(Nanos::from_millis(10_000))).map_err(|error| node::failed(&error))?;
        let done =
            done.ok_or_else(|| node::failed(&IoError::Device { reason: "no completion".to_owned() }))?;
        done.into_result().map_err(|error| node::failed(&error))?;
        Ok(done.token)
    }

    fn read_one(&mut self) -> Result<(), LabError> {
        self.submit(0)?;
        self.reap().map(|_slot| ())
    }

    /// Does `count` reads, [`DEPTH`] at a time: submits them together, and waits for all before the next ones.
    fn read_many(&mut self, count: u64) -> Result<(), LabError> {
        for _ in 0..count / u64::from(DEPTH) {
            for slot in 0..u64::from(DEPTH) {
                self.submit(slot)?;
            }
            for _ in 0..DEPTH {
                self.reap()?;
            }
        }
        Ok(())
    }
}
