//! A RESP client with minimal CPU cost, for loads under which redis-benchmark is slower than the servers it measures.
//!
//! Input: an address, one load or several at the same time, and a duration.
//! Output: the rate of each load, and the latency of its pipelines.
//! Batches are rendered before the clock starts. A run is bounded by time, so that a slow disk does not prolong it.
//! Replies are counted by their bytes: every key exists, so all replies to a load have one length. An error reply or
//! one of another length ends the run.

use crate::experiment::LabError;
use crate::resp_load::{LoadCommand, LoadResult, RespLoad};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;
use rustix::event::epoll;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Number of batches rendered in advance; connections send them in rotation.
const BATCHES: usize = 256;
/// Bytes of the rendered batches of a load, from which there are fewer batches, but one for each connection.
const BATCHES_BYTES: usize = 64 << 20;
const READ_BYTES: usize = 256 << 10;
/// Maximum time without a reply from a server that has commands outstanding.
const SILENCE_MAX: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
/// The seed of the keys, which are the same for every server.
const SEED: u64 = 7;
/// Bytes of a command without its value, at most.
const COMMAND_BYTES_MAX: usize = 80;

/// Sends batches for `span`, then waits for the outstanding replies.
pub(crate) fn drive(load: RespLoad, address: SocketAddr, span: Nanos) -> Result<LoadResult, LabError> {
    let results = drive_together(&[load], address, span)?;
    results.into_iter().next().ok_or_else(|| failed(address, "it has no result"))
}

/// Sends the batches of all loads for `span`, each on its own connections. Returns the results in the order of the loads.
pub(crate) fn drive_together(
    loads: &[RespLoad],
    address: SocketAddr,
    span: Nanos,
) -> Result<Vec<LoadResult>, LabError> {
    DriverRun::open(loads, address)
        .and_then(|mut run| run.until(span))
        .map_err(|error| failed(address, &error.to_string()))
}

fn failed(address: SocketAddr, reason: &str) -> LabError {
    LabError::Measure { program: address.to_string(), reason: reason.to_owned() }
}

struct DriverRun {
    poll: rustix::fd::OwnedFd,
    connections: Vec<DriverConnection>,
    loads: Vec<DriverLoad>,
}

/// A load, rendered, and its latencies so far.
struct DriverLoad {
    load: RespLoad,
    batches: Vec<Vec<u8>>,
    /// Bytes of the replies to one batch.
    answer_bytes: usize,
    next_batch: usize,
    latencies: Vec<Nanos>,
}

struct DriverConnection {
    stream: TcpStream,
    /// Index of its load.
    load: usize,
    /// Reply bytes that are still outstanding; 0 if the connection is idle.
    reply_bytes_left: usize,
    sent: Nanos,
}

impl DriverLoad {
    fn render(load: RespLoad) -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let first = render(load, &mut random);
        let count = (BATCHES_BYTES / first.len()).clamp(to_usize(load.clients), BATCHES);
        let mut batches = vec![first];
        batches.resize_with(count, || render(load, &mut random));
        Self { load, batches, answer_bytes: answer_bytes(load), next_batch: 0, latencies: Vec::new() }
    }
}

impl DriverRun {
    fn open(loads: &[RespLoad], address: SocketAddr) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for (load, shape) in loads.iter().enumerate() {
            for _ in 0..shape.clients {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                let index = connections.len() as u64;
                epoll::add(&poll, &stream, epoll::EventData::new_u64(index), epoll::EventFlags::IN)?;
                connections.push(DriverConnection { stream, load, reply_bytes_left: 0, sent: Nanos::ZERO });
            }
        }
        let loads = loads.iter().copied().map(DriverLoad::render).collect();
        Ok(Self { poll, connections, loads })
    }

    fn until(&mut self, end: Nanos) -> io::Result<Vec<LoadResult>> {
        let clock = Clock::start();
        for index in 0..self.connections.len() {
            self.send(index, clock.now())?;
        }
        let mut finished = 0;
        let mut events = Vec::with_capacity(256);
        let mut input = vec![0; READ_BYTES];
        while finished < self.connections.len() {
            events.clear();
            let ready =
                epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&SILENCE_MAX))?;
            if ready == 0 {
                return Err(io::Error::other("it did not reply to outstanding commands for 10 s"));
            }
            for event in &events {
                let index = to_usize(event.data.u64());
                let Some(connection) = self.connections.get_mut(index) else {
                    continue;
                };
                if connection.read(&mut input)? {
                    let now = clock.now();
                    self.loads[connection.load].latencies.push(now.since(connection.sent));
                    if now < end {
                        self.send(index, now)?;
                    } else {
                        finished += 1;
                    }
                }
            }
        }
        let elapsed = clock.now();
        Ok(self.loads.iter_mut().map(|load| load_result(load, elapsed)).collect())
    }

    /// Sends the next batch. The socket blocks until the server reads.
    fn send(&mut self, index: usize, now: Nanos) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let load = &mut self.loads[connection.load];
        let batch = &load.batches[load.next_batch % load.batches.len()];
        load.next_batch += 1;
        connection.stream.write_all(batch)?;
        connection.reply_bytes_left = load.answer_bytes;
        connection.sent = now;
        Ok(())
    }
}

impl DriverConnection {
    /// Reads once. Returns true if the replies to the batch are complete.
    fn read(&mut self, input: &mut [u8]) -> io::Result<bool> {
        let read = self.stream.read(input)?;
        if read == 0 || read > self.reply_bytes_left || input[0] == b'-' {
            let answer = String::from_utf8_lossy(&input[..read.min(60)]).into_owned();
            return Err(io::Error::other(format!("unexpected reply {answer:?}")));
        }
        self.reply_bytes_left -= read;
        Ok(self.reply_bytes_left == 0)
    }
}

/// Renders a batch into memory of its length: values of megabytes that are formatted and copied took longer than the
/// rounds that send them.
fn render(load: RespLoad, random: &mut fastrand::Rng) -> Vec<u8> {
    let command_bytes = COMMAND_BYTES_MAX + if load.verb == LoadCommand::Set { load.value_bytes } else { 0 };
    let mut batch = Vec::with_capacity(to_usize(load.pipeline) * command_bytes);
    for _ in 0..load.pipeline {
        let key = format!("key:{:012}", random.u64(0..load.keys));
        match load.verb {
            LoadCommand::Set => {
                let header = format!("*3\r\n$3\r\nSET\r\n$16\r\n{key}\r\n${}\r\n", load.value_bytes);
                batch.extend_from_slice(header.as_bytes());
                batch.resize(batch.len() + load.value_bytes, b'x');
                batch.extend_from_slice(b"\r\n");
            }
            LoadCommand::Get => {
                batch.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n$16\r\n{key}\r\n").as_bytes());
            }
        }
    }
    batch
}

fn answer_bytes(load: RespLoad) -> usize {
    let one = match load.verb {
        LoadCommand::Set => "+OK\r\n".len(),
        LoadCommand::Get => format!("${}\r\n", load.value_bytes).len() + load.value_bytes + 2,
    };
    one * usize::try_from(load.pipeline).unwrap_or(1)
}

#[expect(clippy::cast_precision_loss, reason = "a count of operations is far below 2^52")]
fn load_result(load: &mut DriverLoad, elapsed: Nanos) -> LoadResult {
    let latencies = &mut load.latencies;
    latencies.sort_unstable();
    let at = |percent: usize| {
        let index = (latencies.len() * percent / 100).min(latencies.len().saturating_sub(1));
        latencies.get(index).map_or(f64::NAN, |latency| latency.to_duration().as_secs_f64() * 1e3)
    };
    let ops = latencies.len() as u64 * load.load.pipeline;
    LoadResult {
        ops,
        ops_per_s: ops as f64 / elapsed.to_duration().as_secs_f64(),
        p50_ms: at(50),
        p99_ms: at(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canned_server::CannedServer;
    use crate::resp_load::LoadClient;

    fn load(verb: LoadCommand) -> RespLoad {
        RespLoad { client: LoadClient::Lab, verb, keys: 1_000, value_bytes: 100, pipeline: 16, clients: 3 }
    }

    #[test]
    fn every_sent_command_receives_a_reply() {
        let canned = CannedServer::start().unwrap();
        canned.set_value_bytes(100);
        for verb in [LoadCommand::Set, LoadCommand::Get] {
            let ran = drive(load(verb), canned.address(), Nanos::from_millis(2)).unwrap();
            assert!(ran.ops >= 48, "each client sends a batch");
            assert_eq!(ran.ops % 16, 0, "batches are whole");
            assert!(ran.ops_per_s > 0.0 && ran.p50_ms <= ran.p99_ms);
        }
    }

    #[test]
    fn reply_of_another_length_ends_the_run() {
        let canned = CannedServer::start().unwrap();
        canned.set_value_bytes(200);
        let error = drive(load(LoadCommand::Get), canned.address(), Nanos::ZERO).unwrap_err();
        assert!(error.to_string().contains("unexpected reply"), "{error}");
    }

    #[test]
    fn loads_that_run_together_have_results_of_their_own() {
        let canned = CannedServer::start().unwrap();
        canned.set_value_bytes(100);
        let one = RespLoad { pipeline: 1, clients: 2, ..load(LoadCommand::Get) };
        let both = [load(LoadCommand::Set), one];
        let ran = drive_together(&both, canned.address(), Nanos::from_millis(2)).unwrap();
        assert_eq!(ran.len(), 2);
        assert!(ran[0].ops >= 48 && ran[0].ops.is_multiple_of(16), "{ran:?}");
        assert!(ran[1].ops >= 2, "{ran:?}");
    }

    #[test]
    fn large_values_have_few_batches_but_one_for_each_connection() {
        let large = RespLoad { value_bytes: 100 << 20, pipeline: 1, ..load(LoadCommand::Set) };
        assert_eq!(DriverLoad::render(large).batches.len(), 3);
        assert_eq!(DriverLoad::render(load(LoadCommand::Set)).batches.len(), BATCHES);
    }
}
