//! The load on a RESP server: redis-benchmark for the figures, and a minimal RESP client for the preparation.
//!
//! Input: an address and a load.
//! Output: operations a second and latencies as redis-benchmark counts them, and numbers from INFO.
//! One client drives every server of a scenario, so its own cost is the same for all.

use crate::driver::drive;
use crate::experiment::LabError;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

/// Number of keys of loads with small values.
pub(crate) const KEYS: u64 = 20_000;
/// Maximum duration of one run of redis-benchmark; after it the server counts as hung.
const RUN_MAX: Nanos = Nanos::from_millis(60_000);
const ANSWER_MAX: Nanos = Nanos::from_millis(10_000);
/// Number of stores sent before their replies are read, and the bytes of their values at most.
const FILL_BATCH: u64 = 100;
const FILL_BATCH_BYTES: usize = 1 << 20;
/// Value length and number of passes over a quarter of the capacity, with which a node writes all of its flash.
const AGE_VALUE_BYTES: usize = 1 << 20;
const AGE_PASSES: usize = 5;

/// The command of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadCommand {
    /// SET.
    Set,
    /// GET.
    Get,
}

impl LoadCommand {
    /// Returns the name used in claims.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Get => "get",
        }
    }
}

/// The client that sends a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadClient {
    /// redis-benchmark, the common client.
    RedisBenchmark,
    /// The lab's own client, for loads that redis-benchmark would limit.
    Lab,
}

impl LoadClient {
    /// Returns the name used in rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RedisBenchmark => "redis-benchmark",
            Self::Lab => "lab",
        }
    }
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RespLoad {
    /// The client that sends it.
    pub(crate) client: LoadClient,
    /// The command sent.
    pub(crate) verb: LoadCommand,
    /// Number of keys that commands draw from.
    pub(crate) keys: u64,
    /// Bytes of each value.
    pub(crate) value_bytes: usize,
    /// Commands that a connection sends before it reads replies.
    pub(crate) pipeline: u64,
    /// Number of connections.
    pub(crate) clients: u64,
}

/// The result of running a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadResult {
    /// Number of operations.
    pub(crate) ops: u64,
    /// Operations a second.
    pub(crate) ops_per_s: f64,
    /// Median latency.
    pub(crate) p50_ms: f64,
    /// Latency that 1 % of the operations exceed.
    pub(crate) p99_ms: f64,
}

impl RespLoad {
    /// Runs the load on a server for `span`. redis-benchmark has no time limit, so it receives the number of operations
    /// that take `span` at `expected_per_s`.
    pub(crate) fn run(
        self,
        address: SocketAddr,
        span: Nanos,
        expected_per_s: f64,
    ) -> Result<LoadResult, LabError> {
        match self.client {
            LoadClient::RedisBenchmark => {
                self.run_redis_benchmark(address, operations_in(span, expected_per_s))
            }
            LoadClient::Lab => drive(self, address, span),
        }
    }

    fn run_redis_benchmark(self, address: SocketAddr, ops: u64) -> Result<LoadResult, LabError> {
        // Otherwise redis-benchmark rounds down to whole pipelines of all clients.
        let grain = self.pipeline * self.clients;
        let ops = ops.max(1).div_ceil(grain) * grain;
        let numbers = [
            ("-p", u64::from(address.port())),
            ("-n", ops),
            ("-c", self.clients),
            ("-P", self.pipeline),
            ("-r", self.keys),
            ("-d", self.value_bytes as u64),
        ];
        let mut command = Command::new("redis-benchmark");
        command.args(["-h", &address.ip().to_string(), "-t", self.verb.name(), "--csv"]);
        for (flag, number) in numbers {
            command.arg(flag).arg(number.to_string());
        }
        let text = output_of(command)?;
        let (ops_per_s, p50_ms, p99_ms) =
            parse_csv(&text, self.verb).ok_or_else(|| benchmark_failed(format!("it printed {text:?}")))?;
        Ok(LoadResult { ops, ops_per_s, p50_ms, p99_ms })
    }
}

/// Returns the number of operations that fill a span at a rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a range that both types hold"
)]
fn operations_in(span: Nanos, ops_per_s: f64) -> u64 {
    (span.to_duration().as_secs_f64() * ops_per_s).clamp(64.0, 5e7) as u64
}

/// Returns true if redis-benchmark is installed.
pub(crate) fn benchmark_installed() -> bool {
    let probe =
        Command::new("redis-benchmark").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok()
}

fn output_of(mut command: Command) -> Result<String, LabError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| benchmark_failed(error.to_string()))?;
    let clock = Clock::start();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if clock.now() > RUN_MAX => {
                let _ = (child.kill(), child.wait());
                return Err(benchmark_failed(format!("no result after {RUN_MAX}: the server hangs")));
            }
            Ok(None) => Clock::sleep(Nanos::from_millis(1)),
            Err(error) => return Err(benchmark_failed(error.to_string())),
        }
    };
    // The output is two short lines, which fit in the pipe, so it can be read after the child has ended.
    let mut text = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut text).map_err(|error| benchmark_failed(error.to_string()))?;
    }
    if status.success() { Ok(text) } else { Err(benchmark_failed(format!("it ended with {status}"))) }
}

fn benchmark_failed(reason: String) -> LabError {
    LabError::Measure { program: "redis-benchmark".to_owned(), reason }
}

/// Parses rate, p50 and p99 from the line of a verb. The header names the columns.
fn parse_csv(text: &str, verb: LoadCommand) -> Option<(f64, f64, f64)> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim_matches('"').to_owned()).collect()
    };
    let head = cells(text.lines().find(|line| line.contains("\"rps\""))?);
    let row = text
        .lines()
        .map(cells)
        .find(|row| row.first().is_some_and(|name| name.eq_ignore_ascii_case(verb.name())))?;
    let number = |column: &str| -> Option<f64> {
        let index = head.iter().position(|name| name == column)?;
        row.get(index)?.parse().ok()
    };
    Some((number("rps")?, number("p50_latency_ms")?, number("p99_latency_ms")?))
}

/// Returns true if a server replies to PING.
pub(crate) fn ping(address: SocketAddr) -> bool {
    let ask = || -> io::Result<bool> {
        let mut client = connect(address)?;
        client.get_mut().write_all(b"PING\r\n")?;
        let mut line = String::new();
        client.read_line(&mut line)?;
        Ok(line == "+PONG\r\n")
    };
    ask().unwrap_or(false)
}

/// Stores the keys `0..keys`, from which the loads draw, once each and in order.
pub(crate) fn fill(address: SocketAddr, keys: u64, value_bytes: usize) -> Result<(), LabError> {
    let value = "x".repeat(value_bytes);
    let batch_keys = FILL_BATCH.min((FILL_BATCH_BYTES / value_bytes.max(1)).max(1) as u64);
    let store = || -> io::Result<()> {
        let mut client = connect(address)?;
        let mut batch = Vec::new();
        for first in (0..keys).step_by(to_usize(batch_keys)) {
            batch.clear();
            let end = keys.min(first + batch_keys);
            for key in first..end {
                write!(batch, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${value_bytes}\r\n{value}\r\n")?;
            }
            client.get_mut().write_all(&batch)?;
            for _ in first..end {
                let mut line = String::new();
                client.read_line(&mut line)?;
                if line != "+OK\r\n" {
                    return Err(io::Error::other(format!("unexpected reply to SET: {line:?}")));
                }
            }
        }
        Ok(())
    };
    store().map_err(|error| LabError::Measure {
        program: address.to_string(),
        reason: format!("cannot fill it with keys: {error}"),
    })
}

/// Writes all flash of a node of `capacity_bytes` at least once, and removes every key.
pub(crate) fn age(address: SocketAddr, capacity_bytes: u64) -> Result<(), LabError> {
    let keys = (capacity_bytes / 4 / AGE_VALUE_BYTES as u64).max(1);
    for _ in 0..AGE_PASSES {
        fill(address, keys, AGE_VALUE_BYTES)?;
    }
    flush_all(address)
}

/// Removes every key of a server.
pub(crate) fn flush_all(address: SocketAddr) -> Result<(), LabError> {
    let failed = |reason: String| LabError::Measure { program: address.to_string(), reason };
    let ask = || -> io::Result<String> {
        let mut client = connect(address)?;
        client.get_mut().write_all(b"FLUSHALL\r\n")?;
        let mut line = String::new();
        client.read_line(&mut line)?;
        Ok(line)
    };
    let reply = ask().map_err(|error| failed(format!("cannot empty it: {error}")))?;
    if reply == "+OK\r\n" { Ok(()) } else { Err(failed(format!("unexpected reply to FLUSHALL: {reply:?}"))) }
}

/// Returns the number in INFO whose name is `field` or ends in `_field`; `None` if there is none.
pub(crate) fn info_number(address: SocketAddr, field: &str) -> Option<u64> {
    let ask = || -> io::Result<Vec<u8>> {
        let mut client = connect(address)?;
        client.get_mut().write_all(b"*1\r\n$4\r\nINFO\r\n")?;
        let mut head = String::new();
        client.read_line(&mut head)?;
        let length = head.trim_end().strip_prefix('$').and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        client.read_exact(&mut body)?;
        Ok(body)
    };
    let body = String::from_utf8(ask().ok()?).ok()?;
    number_in_info(&body, field)
}

fn number_in_info(info: &str, field: &str) -> Option<u64> {
    let suffix = format!("_{field}");
    info.lines().find_map(|line| {
        let (name, value) = line.trim_end().split_once(':')?;
        (name == field || name.ends_with(&suffix)).then(|| value.parse().ok())?
    })
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX.to_duration()))?;
    Ok(BufReader::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_is_parsed_by_column_name() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\"SET\",\"74442.00\",\"0.4\",\"0.1\",\"0.335\",\"0.5\",\"0.815\",\"1.0\"\n";
        assert_eq!(parse_csv(text, LoadCommand::Set), Some((74442.0, 0.335, 0.815)));
        assert_eq!(parse_csv(text, LoadCommand::Get), None);
        assert_eq!(parse_csv("", LoadCommand::Set), None);
    }

    #[test]
    fn info_is_parsed_by_field_name() {
        let info = "# Device\r\nnoflushes:1\r\nmedia_flushes:42\r\nname:x\r\n";
        assert_eq!(number_in_info(info, "flushes"), Some(42));
        assert_eq!(number_in_info(info, "name"), None);
        assert_eq!(number_in_info(info, "erases"), None);
    }
}
