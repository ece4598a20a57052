//! The resident set of a node with many small keys, under load.
//!
//! Input: a node with `--memory 256MiB`, ten million keys with values of 100 bytes, and clients that read and write random
//! ones of them. Output: the resident set, sampled while it is filled and while they run, over `--memory` plus the bytes of
//! the index, and the claim `p7.memory.rss`. Every reply is checked.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use crate::resp_load::info_number;
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::Nanos;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

const CLAIM: &str = "p7.memory.rss";
const GOAL: ClaimGoal = ClaimGoal::AtMost(1.1);
const UNIT: &str = "resident bytes over --memory plus the index, ten million keys";
const UNIT_QUICK: &str = "resident bytes over --memory plus the index, a million keys";
const KEYS: u64 = 10_000_000;
const KEYS_QUICK: u64 = 1_000_000;
/// Bytes of `--memory`.
const MEMORY_BYTES: u64 = 256 << 20;
const VALUE: [u8; 100] = [b'v'; 100];
/// Commands that a client sends before it reads their replies.
const BATCH: u64 = 100;
/// Clients of the load.
const CLIENTS: usize = 50;
const SPAN: Nanos = Nanos::from_millis(60_000);
const SPAN_QUICK: Nanos = Nanos::from_millis(5_000);

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "memory",
    summary: "resident set of a node with ten million keys under load, over --memory plus the index",
    baseline: "--memory plus the bytes of the index",
    claims: &[CLAIM],
    run,
};

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let (keys, span, unit) =
        if context.is_quick() { (KEYS_QUICK, SPAN_QUICK, UNIT_QUICK) } else { (KEYS, SPAN, UNIT) };
    let options = ["--memory", "256MiB", "--capacity", "4GiB"];
    let node = RespServer::ours_with(context, RespDurability::OnFlush, &options)?;
    let failed = |source: io::Error| LabError::Measure {
        program: "the node".to_owned(),
        reason: format!("a client of it failed: {source}"),
    };
    let resident = || node.resident_bytes().ok_or_else(|| failed(io::Error::other("no resident set")));
    let mut client = KeyClient::connect(node.address()).map_err(failed)?;
    let mut most_filling = 0;
    for first in (0..keys).step_by(usize::try_from(BATCH).unwrap_or(1)) {
        client.send((first..first + BATCH).map(|key| (KeyVerb::Set, key))).map_err(failed)?;
        client.receive().map_err(failed)?;
        if first % (100 * BATCH) == 0 {
            most_filling = most_filling.max(resident()?);
        }
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(KeyClient::connect(node.address()).map_err(failed)?);
    }
    let mut random = fastrand::Rng::with_seed(context.seed());
    let (start, mut most, mut commands) = (context.clock().now(), 0, 0);
    while context.clock().now().since(start) < span {
        for client in &mut clients {
            let verb = |random: &mut fastrand::Rng| if random.bool() { KeyVerb::Set } else { KeyVerb::Get };
            client.send((0..BATCH).map(|_| (verb(&mut random), random.u64(0..keys)))).map_err(failed)?;
        }
        for client in &mut clients {
            client.receive().map_err(failed)?;
            commands += BATCH;
        }
        most = most.max(resident()?);
    }
    let index = info_number(node.address(), "device_index_bytes")
        .ok_or_else(|| failed(io::Error::other("INFO without device_index_bytes")))?;
    let ratio = megabytes(most.max(most_filling)) / megabytes(MEMORY_BYTES + index);
    let row = ReportRow::new()
        .with("keys", keys)
        .with("memory_mb", megabytes(MEMORY_BYTES))
        .with("index_mb", megabytes(index))
        .with("resident_filling_mb", megabytes(most_filling))
        .with("resident_under_load_mb", megabytes(most))
        .with("commands", commands);
    let baseline =
        format!("{:.0} MB of --memory and {:.0} MB of index", megabytes(MEMORY_BYTES), megabytes(index));
    let claim = LabClaim::found(CLAIM, GOAL, (ratio, unit), EvidenceLabel::Measured, baseline);
    Ok(ExperimentFindings { rows: vec![row], claims: vec![claim] })
}

fn megabytes(bytes: u64) -> f64 {
    Nanos(bytes).to_duration().as_secs_f64() * 1e3
}

/// A command on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyVerb {
    Get,
    Set,
}

/// A client that sends batches of GETs and SETs.
struct KeyClient {
    stream: TcpStream,
    request: Vec<u8>,
    expected: Vec<u8>,
    received: Vec<u8>,
}

impl KeyClient {
    fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
        Ok(Self { stream, request: Vec::new(), expected: Vec::new(), received: Vec::new() })
    }

    /// Sends commands on keys that exist, or are stored by them.
    fn send(&mut self, commands: impl Iterator<Item = (KeyVerb, u64)>) -> io::Result<()> {
        self.request.clear();
        self.expected.clear();
        for (verb, key) in commands {
            match verb {
                KeyVerb::Set => {
                    write!(self.request, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n$100\r\n")?;
                    self.request.extend_from_slice(&VALUE);
                    self.request.extend_from_slice(b"\r\n");
                    self.expected.extend_from_slice(b"+OK\r\n");
                }
                KeyVerb::Get => {
                    write!(self.request, "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n")?;
                    self.expected.extend_from_slice(b"$100\r\n");
                    self.expected.extend_from_slice(&VALUE);
                    self.expected.extend_from_slice(b"\r\n");
                }
            }
        }
        self.stream.write_all(&self.request)
    }

    /// Receives the replies to the commands that were sent.
    fn receive(&mut self) -> io::Result<()> {
        self.received.resize(self.expected.len(), 0);
        self.stream.read_exact(&mut self.received)?;
        if self.received == self.expected { Ok(()) } else { Err(io::Error::other("a wrong reply")) }
    }
}
