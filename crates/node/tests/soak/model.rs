//! The good client: it knows what every key may hold, and checks every answer.
//!
//! Input: a node, which is killed and started again, and whose file is damaged. Output: counts and latencies, and the
//! slowest answer of each phase of the run. Invariant:
//! a key holds the newest acknowledged write, or a later one whose reply never came; an answer is that or, once the file
//! was damaged, an error.

use crate::phase::{PhaseNumber, SlowestAnswers};
use hdrhistogram::Histogram;
use headwater_host::clock::{Clock, Nanos};
use headwater_node::kv::resp_client::{ClientError, DecodedReply, NodeEndpoint, RespClient};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const KEYS: usize = 400;
/// A key that hostile clients read.
pub(crate) const LARGE_KEY: &[u8] = b"large";
const LARGE_BYTES: usize = 1 << 20;
/// Keys that clients write that take their memory away.
pub(crate) const TORN_KEYS: u8 = 8;
const REPLY_MAX: Duration = Duration::from_secs(60);

/// The number of damages so far. A clone is the same number.
#[derive(Clone, Default)]
pub(crate) struct StrikeCount(Arc<AtomicU64>);

impl StrikeCount {
    /// Counts one.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Returns the name of a key that clients write that take their memory away.
pub(crate) fn torn_key(number: u8) -> Vec<u8> {
    format!("torn-{number}").into_bytes()
}

/// The good client.
pub(crate) struct CheckedClient {
    client: Option<RespClient>,
    random: fastrand::Rng,
    clock: Clock,
    /// The states that each key may have: the number of a write, or `None` if it may be absent.
    possible: Vec<Vec<Option<u64>>>,
    writes: u64,
    answers: u64,
    errors: u64,
    latency_us: Histogram<u64>,
    slowest: SlowestAnswers,
    phase: PhaseNumber,
    strikes: StrikeCount,
}

impl CheckedClient {
    /// Makes a client of an empty node.
    pub(crate) fn new(seed: u64, strikes: StrikeCount, phase: PhaseNumber) -> Self {
        Self {
            client: None,
            random: fastrand::Rng::with_seed(seed),
            clock: Clock::start(),
            possible: vec![vec![None]; KEYS],
            writes: 0,
            answers: 0,
            errors: 0,
            latency_us: Histogram::new(3).unwrap(),
            slowest: SlowestAnswers::default(),
            phase,
            strikes,
        }
    }

    /// Connects to a node that was started.
    pub(crate) fn connect(&mut self, address: &str) {
        let endpoint = NodeEndpoint::Tcp(address.to_owned());
        self.client = Some(RespClient::connect(&endpoint, REPLY_MAX).unwrap());
        self.call(&[b"SET", LARGE_KEY, &vec![b'v'; LARGE_BYTES]]).unwrap();
    }

    /// Reads every key once, and writes again what is answered with an error.
    pub(crate) fn check_all(&mut self) {
        (0..KEYS).for_each(|key| self.read(key).unwrap());
        (0..TORN_KEYS).for_each(|number| self.read_torn(number).unwrap());
    }

    /// Reads and writes until the node is killed.
    pub(crate) fn work_until_the_end(&mut self) {
        while self.work().is_ok() {}
    }

    /// Reads and writes until a flag is set. The node serves all the time.
    pub(crate) fn work_until(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.work().unwrap();
        }
    }

    /// Returns the number of answers that were errors.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }

    /// Returns counts and latencies as text.
    pub(crate) fn text(&self) -> String {
        let at = |quantile: f64| self.latency_us.value_at_quantile(quantile);
        format!(
            "the good client got {} answers, {} of them errors; p50 {} us, p99 {} us, most {} us\n{}",
            self.answers,
            self.errors,
            at(0.5),
            at(0.99),
            self.latency_us.max(),
            self.slowest.text()
        )
    }

    fn work(&mut self) -> Result<(), ClientError> {
        let key = self.random.usize(..KEYS);
        match self.random.u8(..100) {
            0..55 => self.read(key),
            55..85 => self.write(key),
            85..95 => self.delete(key),
            95..98 => {
                let number = self.random.u8(..TORN_KEYS);
                self.read_torn(number)
            }
            _ => self.read_large(),
        }
    }

    fn call(&mut self, parts: &[&[u8]]) -> Result<DecodedReply, ClientError> {
        let (before, phase) = (self.clock.now(), self.phase.get());
        let reply = self.client.as_mut().unwrap().call(parts);
        if let Ok(_) | Err(ClientError::Refused(_)) = reply {
            self.answers += 1;
            let Nanos(took) = self.clock.now().since(before);
            self.latency_us.record(took / 1_000).unwrap();
            self.slowest.record(phase, self.phase.get(), before, took / 1_000, parts);
        }
        reply
    }

    /// Counts an error, which only damage excuses.
    fn note_error(&mut self, what: &str, text: &str) {
        self.errors += 1;
        assert!(self.strikes.get() > 0, "{what} was answered with {text:?}, and nothing was damaged");
    }

    fn read(&mut self, key: usize) -> Result<(), ClientError> {
        let found = match self.call(&[b"GET", &name(key)]) {
            Ok(DecodedReply::Nil) => None,
            Ok(DecodedReply::Bulk(value)) => {
                let mut written = self.possible[key].iter().flatten();
                let found = written.find(|write| value == value_of(key, **write)).copied();
                Some(found.unwrap_or_else(|| self.panic_wrong(key, &format!("{} bytes", value.len()))))
            }
            Err(ClientError::Refused(text)) => {
                self.note_error("GET", &text);
                return self.write(key);
            }
            Ok(other) => self.panic_wrong(key, &format!("{other:?}")),
            Err(error) => return Err(error),
        };
        if !self.possible[key].contains(&found) {
            self.panic_wrong(key, "nothing");
        }
        self.possible[key] = vec![found];
        Ok(())
    }

    fn panic_wrong(&self, key: usize, found: &str) -> ! {
        panic!("key {key} holds {found} that is none of the writes {:?}", self.possible[key]);
    }

    fn write(&mut self, key: usize) -> Result<(), ClientError> {
        self.writes += 1;
        let write = self.writes;
        // Until the reply, either is possible.
        self.possible[key].push(Some(write));
        match self.call(&[b"SET", &name(key), &value_of(key, write)]) {
            Ok(DecodedReply::Simple(text)) if text == "OK" => {}
            Err(ClientError::ConnectionFailed { source, endpoint }) => {
                return Err(ClientError::ConnectionFailed { source, endpoint });
            }
            other => panic!("SET of key {key} was answered with {other:?}"),
        }
        self.possible[key] = vec![Some(write)];
        Ok(())
    }

    fn delete(&mut self, key: usize) -> Result<(), ClientError> {
        self.possible[key].push(None);
        match self.call(&[b"DEL", &name(key)]) {
            Ok(DecodedReply::Integer(0 | 1)) => {}
            Err(ClientError::ConnectionFailed { source, endpoint }) => {
                return Err(ClientError::ConnectionFailed { source, endpoint });
            }
            other => panic!("DEL of key {key} was answered with {other:?}"),
        }
        self.possible[key] = vec![None];
        Ok(())
    }

    /// Reads a key whose writers take their memory away: it holds one byte of a writer again and again, and no zero.
    fn read_torn(&mut self, number: u8) -> Result<(), ClientError> {
        let name = torn_key(number);
        match self.call(&[b"GET", &name]) {
            Ok(DecodedReply::Nil) => Ok(()),
            Ok(DecodedReply::Bulk(value)) => {
                let is_whole = value[0] != 0 && value.iter().all(|byte| *byte == value[0]);
                assert!(is_whole, "torn-{number} holds bytes that no client wrote");
                Ok(())
            }
            Err(ClientError::Refused(text)) => {
                self.note_error("GET", &text);
                self.call(&[b"DEL", &name]).map(|_| ())
            }
            other => other.map(|reply| panic!("torn-{number} was answered with {reply:?}")),
        }
    }

    fn read_large(&mut self) -> Result<(), ClientError> {
        match self.call(&[b"GET", LARGE_KEY]) {
            Ok(DecodedReply::Bulk(value)) => {
                assert!(value == vec![b'v'; LARGE_BYTES], "the large value is wrong");
                Ok(())
            }
            Err(ClientError::Refused(text)) => {
                self.note_error("GET", &text);
                self.call(&[b"SET", LARGE_KEY, &vec![b'v'; LARGE_BYTES]]).map(|_| ())
            }
            other => other.map(|reply| panic!("the large key was answered with {reply:?}")),
        }
    }
}

fn name(key: usize) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

/// Returns the value of a write: mostly some kilobytes, sometimes some hundred.
fn value_of(key: usize, write: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(write << 16 | key as u64);
    let bytes_max = if random.u8(..50) == 0 { 500_000 } else { 16_000 };
    let mut value = vec![0; random.usize(1..bytes_max)];
    random.fill(&mut value);
    value
}
