//! One thread of a benchmark with its connections.
//!
//! Input: a plan and a start time. Output: a [`WorkerTally`]. Sockets do not block; the thread sleeps in poll until a reply
//! arrives or a command is due. Invariant: every command that was sent is answered, or the run fails.

use super::latency::LatencyHistogram;
use super::workload::{BenchOperation, OperationChooser, is_value_of, write_key, write_value};
use super::{BenchError, BenchPlan, LoadPacing, RunEnd, VerifyMode};
use crate::kv::resp_client::{ClientError, ClientStream, DecodedReply, ReplyBuffer, encode};
use crate::kv::target::live::LiveTarget;
use headwater_host::clock::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts and latencies of a run.
#[derive(Debug, Default)]
pub struct WorkerTally {
    /// Latencies of reads.
    pub gets: LatencyHistogram,
    /// Latencies of writes.
    pub sets: LatencyHistogram,
    /// Value bytes moved.
    pub bytes: u64,
    /// Reads of keys that do not exist.
    pub misses: u64,
    /// Wrong values.
    pub wrong: u64,
    /// Commands refused.
    pub refused: u64,
    /// The first refusal.
    pub refusal: Option<String>,
    /// Open loop: commands that were due before the end and never sent, because the node was too slow.
    pub unsent: u64,
    /// Time from the start to the last reply.
    pub elapsed: Nanos,
}

impl WorkerTally {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: Self) {
        self.gets.add(&other.gets);
        self.sets.add(&other.sets);
        self.bytes += other.bytes;
        self.misses += other.misses;
        self.wrong += other.wrong;
        self.refused += other.refused;
        self.refusal = self.refusal.take().or(other.refusal);
        self.unsent += other.unsent;
        self.elapsed = self.elapsed.max(other.elapsed);
    }
}

struct SentCommand {
    due: Nanos,
    operation: BenchOperation,
    bytes: usize,
}

struct WorkerConnection {
    stream: ClientStream,
    out: Vec<u8>,
    written: usize,
    input: ReplyBuffer,
    sent: VecDeque<SentCommand>,
}

/// One thread of a benchmark.
pub struct BenchWorker<'a> {
    plan: &'a BenchPlan,
    clock: Clock,
    chooser: OperationChooser,
    connections: Vec<WorkerConnection>,
    quota: u64,
    interval: Option<f64>,
    generation: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    tally: WorkerTally,
}

impl std::fmt::Debug for BenchWorker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BenchWorker").field("connections", &self.connections.len()).finish_non_exhaustive()
    }
}

impl<'a> BenchWorker<'a> {
    /// Opens the connections of thread `index`.
    ///
    /// # Errors
    /// When the node cannot be reached.
    pub fn connect(plan: &'a BenchPlan, index: usize, clock: Clock) -> Result<Self, BenchError> {
        let mut connections = Vec::new();
        for _ in 0..share(plan.connections.max(plan.threads), index, plan.threads) {
            let password = plan.password.as_deref();
            let target = LiveTarget::connect(&plan.endpoint, plan.limit, plan.namespace, password)?;
            let stream = target.into_stream();
            stream.set_nonblocking()?;
            connections.push(WorkerConnection {
                stream,
                out: Vec::new(),
                written: 0,
                input: ReplyBuffer::default(),
                sent: VecDeque::new(),
            });
        }
        let (wide_index, wide_threads) = (index as u64, plan.threads as u64);
        Ok(Self {
            plan,
            clock,
            chooser: OperationChooser::new(&plan.workload, wide_index, wide_threads),
            connections,
            quota: match plan.until {
                RunEnd::Elapsed(_) => u64::MAX,
                RunEnd::Commands(count) => {
                    count / wide_threads + u64::from(wide_index < count % wide_threads)
                }
            },
            interval: match plan.pace {
                LoadPacing::Closed => None,
                #[expect(clippy::cast_precision_loss, reason = "a number of threads is small")]
                LoadPacing::Open(rate) => Some(1e9 * plan.threads as f64 / rate),
            },
            // The generations of different threads differ, and in practice those of an earlier run too.
            generation: (wide_index << 48) ^ clock.wall().0,
            key: Vec::new(),
            value: Vec::new(),
            tally: WorkerTally::default(),
        })
    }

    /// Runs to the end and returns the counts.
    ///
    /// # Errors
    /// When a connection breaks or the node does not reply within the limit.
    pub fn run(mut self, begun: Nanos, done: &AtomicU64) -> Result<WorkerTally, BenchError> {
        let end = match self.plan.until {
            RunEnd::Elapsed(span) => Some(begun.after(span)),
            RunEnd::Commands(_) => None,
        };
        let mut due = begun;
        let mut answered_at = begun;
        let mut turn = 0;
        let mut sent_last = false;
        loop {
            let now = self.clock.now();
            let over = end.is_some_and(|end| now >= end) || self.quota == 0;
            // The first pass after the end still sends the commands that were due before it.
            if !sent_last {
                match self.interval {
                    None if over => {}
                    None => self.refill(now),
                    Some(interval) => {
                        due = self.send_due(end.map_or(now, |end| now.min(end)), due, interval, &mut turn);
                    }
                }
                sent_last = over;
            }
            let answered = self.exchange()?;
            if answered > 0 {
                answered_at = self.clock.now();
                done.fetch_add(answered, Ordering::Relaxed);
            }
            let waiting = self.connections.iter().any(|connection| !connection.sent.is_empty());
            if over && !waiting {
                break;
            }
            if waiting && self.clock.now().since(answered_at) > limit_nanos(self.plan) && answered == 0 {
                let (endpoint, limit) = (self.plan.endpoint.clone(), self.plan.limit);
                return Err(ClientError::Timeout { endpoint, limit }.into());
            }
            if answered == 0 {
                if !waiting {
                    answered_at = self.clock.now();
                }
                self.wait(self.interval.filter(|_| !over).map(|_| due))?;
            }
        }
        if let (Some(interval), Some(end)) = (self.interval, end) {
            self.tally.unsent = count_due(due, end, interval);
        }
        self.tally.elapsed = answered_at.since(begun);
        Ok(self.tally)
    }

    /// Adds the next `depth` commands to every connection that has received all replies (closed loop).
    fn refill(&mut self, now: Nanos) {
        for index in 0..self.connections.len() {
            if self.connections.get(index).is_some_and(|connection| connection.sent.is_empty()) {
                for _ in 0..self.plan.depth {
                    self.push(index, now);
                }
            }
        }
    }

    /// Adds the commands that are due while a connection has room (open loop). Returns the time of the next command.
    fn send_due(&mut self, now: Nanos, mut due: Nanos, interval: f64, turn: &mut usize) -> Nanos {
        while due <= now && self.quota > 0 {
            let count = self.connections.len();
            let room = (0..count).map(|step| (*turn + step) % count).find(|&index| {
                self.connections.get(index).is_some_and(|connection| connection.sent.len() < self.plan.depth)
            });
            let Some(index) = room else { break };
            *turn = index + 1;
            self.push(index, due);
            due = next_due(due, interval);
        }
        due
    }

    fn push(&mut self, index: usize, due: Nanos) {
        if self.quota == 0 {
            return;
        }
        self.quota -= 1;
        let operation = self.chooser.next_operation();
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        let mut bytes = 0;
        match operation {
            BenchOperation::Get(key) => {
                write_key(key, &mut self.key);
                encode(&[b"GET", &self.key], &mut connection.out);
            }
            BenchOperation::Set(key) => {
                self.generation += 1;
                write_key(key, &mut self.key);
                write_value(key, self.generation, &self.plan.workload.sizes, &mut self.value);
                bytes = self.value.len();
                encode(&[b"SET", &self.key, &self.value], &mut connection.out);
            }
        }
        connection.sent.push_back(SentCommand { due, operation, bytes });
    }

    /// Writes and reads until the sockets would block. Returns the number of replies received.
    fn exchange(&mut self) -> Result<u64, BenchError> {
        let mut answered = 0;
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index) else {
                continue;
            };
            connection.write().map_err(|source| broken(self.plan, source))?;
            if connection.sent.is_empty() {
                continue;
            }
            match connection.input.fill(&mut connection.stream) {
                Ok(0) => return Err(broken(self.plan, std::io::ErrorKind::UnexpectedEof.into()).into()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(source) => return Err(broken(self.plan, source).into()),
            }
            answered += self.take_replies(index)?;
        }
        Ok(answered)
    }

    /// Counts every complete reply that a connection has received.
    fn take_replies(&mut self, index: usize) -> Result<u64, BenchError> {
        let now = self.clock.now();
        let mut answered = 0;
        while let Some(connection) = self.connections.get_mut(index) {
            let endpoint = || self.plan.endpoint.clone();
            let next = connection.input.next_reply();
            let Some(reply) = next.map_err(|source| ClientError::NotResp { endpoint: endpoint(), source })?
            else {
                break;
            };
            let Some(sent) = connection.sent.pop_front() else {
                let command = "no command";
                return Err(ClientError::Unexpected { endpoint: endpoint(), command, reply }.into());
            };
            self.count(&sent, &reply, now);
            answered += 1;
        }
        Ok(answered)
    }

    fn count(&mut self, sent: &SentCommand, reply: &DecodedReply, now: Nanos) {
        let latency = now.since(sent.due);
        match sent.operation {
            BenchOperation::Get(key) => {
                self.tally.gets.record(latency);
                match reply {
                    DecodedReply::Bulk(value) => {
                        self.tally.bytes += value.len() as u64;
                        let sizes = &self.plan.workload.sizes;
                        if self.plan.verify == VerifyMode::Yes
                            && !is_value_of(key, value, sizes, &mut self.value)
                        {
                            self.tally.wrong += 1;
                        }
                    }
                    DecodedReply::Nil => self.tally.misses += 1,
                    other => self.tally.refuse(other),
                }
            }
            BenchOperation::Set(_) => {
                self.tally.sets.record(latency);
                match reply {
                    DecodedReply::Simple(_) => self.tally.bytes += sent.bytes as u64,
                    other => self.tally.refuse(other),
                }
            }
        }
    }

    /// Sleeps until a socket is ready or the next command is due.
    fn wait(&self, due: Option<Nanos>) -> Result<(), BenchError> {
        let mut sockets: Vec<PollFd<'_>> = self
            .connections
            .iter()
            .filter(|connection| !connection.sent.is_empty())
            .map(|connection| {
                let writing = connection.written < connection.out.len();
                let events = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(connection.stream.as_fd(), events)
            })
            .collect();
        let full = self.connections.iter().all(|connection| connection.sent.len() >= self.plan.depth);
        let now = self.clock.now();
        // With every connection full, only a reply helps; the time limit is checked four times a second.
        let span = due.filter(|_| !full).map_or(Nanos::from_millis(250), |due| due.since(now));
        let span = span.min(Nanos::from_millis(250));
        match poll(&mut sockets, Some(&span.to_timespec())) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(BenchError::Local(errno.into())),
        }
    }
}

impl WorkerTally {
    fn refuse(&mut self, reply: &DecodedReply) {
        self.refused += 1;
        if self.refusal.is_none() {
            self.refusal = Some(match reply {
                DecodedReply::Error(text) => text.clone(),
                other => format!("unexpected reply {other:?}"),
            });
        }
    }
}

impl WorkerConnection {
    fn write(&mut self) -> std::io::Result<()> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }
}

fn broken(plan: &BenchPlan, source: std::io::Error) -> ClientError {
    ClientError::ConnectionFailed { endpoint: plan.endpoint.clone(), source }
}

/// Returns the time limit of a run, 584 years at the most.
fn limit_nanos(plan: &BenchPlan) -> Nanos {
    Nanos(u64::try_from(plan.limit.as_nanos()).unwrap_or(u64::MAX))
}

fn share(total: usize, index: usize, parts: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an interval is positive and below 2^53 ns"
)]
fn next_due(due: Nanos, interval: f64) -> Nanos {
    due.after(Nanos((interval as u64).max(1)))
}

fn count_due(mut due: Nanos, end: Nanos, interval: f64) -> u64 {
    let mut count = 0;
    while due < end {
        due = next_due(due, interval);
        count += 1;
    }
    count
}
