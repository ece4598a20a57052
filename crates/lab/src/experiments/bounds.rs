//! The memory of a node beside clients that ask for large values and receive nothing.
//!
//! Input: a node with a value of 15 MB, and 1,000 connections that send pipelined GETs of it and never read. Output: the
//! growth of the node's resident set, sampled while a well-behaved client is served, and the claim `p7.bounds.rss`.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::{Clock, Nanos};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

const CLAIM: &str = "p7.bounds.rss";
const GOAL: ClaimGoal = ClaimGoal::AtMost(512.0);
const UNIT: &str = "MB above idle";
/// Connections that receive nothing.
const READERS: usize = 1_000;
/// Bytes of the large value.
const VALUE_BYTES: usize = 15_000_000;
/// GETs that each connection sends ahead: about 3,300 bytes.
const GETS_EACH: usize = 130;
const SPAN: Nanos = Nanos::from_millis(20_000);
const SPAN_QUICK: Nanos = Nanos::from_millis(6_000);
const SAMPLE_INTERVAL: Nanos = Nanos::from_millis(20);

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "bounds",
    summary: "resident set of a node beside 1,000 clients that ask for 15 MB values and receive nothing",
    baseline: "the node before they connect",
    claims: &[CLAIM],
    run,
};

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let node = RespServer::ours(context, RespDurability::OnFlush)?;
    let failed = |source: io::Error| LabError::Measure {
        program: "the node".to_owned(),
        reason: format!("a client of it failed: {source}"),
    };
    let mut good = connect(node.address()).map_err(failed)?;
    store(&mut good).map_err(failed)?;
    get(&mut good, "large").map_err(failed)?;
    let idle = node.resident_bytes().ok_or_else(|| failed(io::Error::other("no resident set")))?;
    let mut readers = Vec::new();
    let requests = "*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n".repeat(GETS_EACH);
    for _ in 0..READERS {
        let mut stream = TcpStream::connect(node.address()).map_err(failed)?;
        // Otherwise the kernel would take some megabytes for each connection.
        set_socket_recv_buffer_size(&stream, 32 << 10).map_err(|error| failed(error.into()))?;
        stream.write_all(requests.as_bytes()).map_err(failed)?;
        readers.push(stream);
    }
    let start = context.clock().now();
    let (mut most, mut served, mut slowest) = (idle, 0_u64, Nanos::ZERO);
    let span = if context.is_quick() { SPAN_QUICK } else { SPAN };
    while context.clock().now().since(start) < span {
        let before = context.clock().now();
        get(&mut good, "small").map_err(failed)?;
        slowest = slowest.max(context.clock().now().since(before));
        served += 1;
        most = most.max(node.resident_bytes().unwrap_or(u64::MAX));
        Clock::sleep(SAMPLE_INTERVAL);
    }
    let before = context.clock().now();
    get(&mut good, "large").map_err(failed)?;
    let large = context.clock().now().since(before);
    drop(readers);
    let megabytes = |bytes: u64| Nanos(bytes).to_duration().as_secs_f64() * 1e3;
    let growth = megabytes(most.saturating_sub(idle));
    let millis = |span: Nanos| span.to_duration().as_secs_f64() * 1e3;
    let row = ReportRow::new()
        .with("readers", READERS as u64)
        .with("idle_mb", megabytes(idle))
        .with("most_mb", megabytes(most))
        .with("small_gets", served)
        .with("slowest_small_get_ms", millis(slowest))
        .with("large_get_ms", millis(large));
    let baseline =
        format!("idle {:.0} MB; GETs of 15 MB by {READERS} clients that never read", megabytes(idle));
    Ok(ExperimentFindings {
        rows: vec![row],
        claims: vec![LabClaim::found(CLAIM, GOAL, (growth, UNIT), EvidenceLabel::Measured, baseline)],
    })
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(300)))?;
    Ok(BufReader::new(stream))
}

fn store(client: &mut BufReader<TcpStream>) -> io::Result<()> {
    let mut request = format!("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n${VALUE_BYTES}\r\n").into_bytes();
    request.resize(request.len() + VALUE_BYTES, b'v');
    request.extend_from_slice(b"\r\n*3\r\n$3\r\nSET\r\n$5\r\nsmall\r\n$1\r\ns\r\n");
    client.get_mut().write_all(&request)?;
    for _ in 0..2 {
        let mut line = String::new();
        client.read_line(&mut line)?;
        if line != "+OK\r\n" {
            return Err(io::Error::other(format!("reply to SET: {line:?}")));
        }
    }
    Ok(())
}

fn get(client: &mut BufReader<TcpStream>, key: &str) -> io::Result<()> {
    client.get_mut().write_all(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes())?;
    let mut line = String::new();
    client.read_line(&mut line)?;
    let bytes = line.trim_end().strip_prefix('$').and_then(|text| text.parse::<u64>().ok());
    let bytes = bytes.ok_or_else(|| io::Error::other(format!("reply to GET: {line:?}")))?;
    let copied = io::copy(&mut client.take(bytes + 2), &mut io::sink())?;
    if copied == bytes + 2 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
