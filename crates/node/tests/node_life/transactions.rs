//! Transactions of Redis clients across kills and power cuts: all writes of an EXEC are there, or none.
//!
//! Each client has keys of its own and stores one number in all of them, one EXEC after the other, until the node ends
//! under it. Then every key of a client must have the same number: that of the last answered EXEC or of the one after it.
//! A kill takes nothing from the kernel; a power cut takes what was not flushed, see [`histories`](super::histories).
#![expect(clippy::unwrap_used, reason = "an unexpected result fails the test")]
#![expect(clippy::print_stdout, reason = "the log states the seed and what was found")]

use crate::running::{RunningNode, command};
use crate::supervised::FlushSupervisor;
use headwater_host::clock::{Clock, Nanos};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const CLIENTS: usize = 4;
const KEYS: usize = 6;
/// Lengths of the values of one transaction: from one page to several.
const VALUE_BYTES: [usize; KEYS] = [8, 20_000, 100, 3_000, 9_000, 40];
/// A small file is copied fast.
const CAPACITY: &str = "24MiB";
/// The longest time from the first EXEC to the kill.
const KILL_MICROS_MAX: u64 = 60_000;

/// A deliberate fault, which the test must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedFault {
    None,
    /// The writes are sent as single commands, each after the reply to the one before.
    NoTransaction,
}

struct RedisClient(BufReader<TcpStream>);

impl RedisClient {
    fn connect(node: &RunningNode) -> Self {
        Self(BufReader::new(node.connect()))
    }

    fn send(&mut self, commands: &[Vec<Vec<u8>>]) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for words in commands {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.0.get_mut().write_all(&bytes)
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        // A connection that ends inside a line leaves a part of it.
        if line.ends_with("\r\n") { Ok(line) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Sends commands and receives this many lines.
    fn store(&mut self, commands: &[Vec<Vec<u8>>], replies: usize) -> std::io::Result<()> {
        self.send(commands)?;
        for _ in 0..replies {
            let line = self.line()?;
            assert!(!line.starts_with('-'), "{line}");
        }
        Ok(())
    }

    /// Reads the number that a value begins with; `None` if there is no value.
    fn number(&mut self, key: &str) -> Option<u64> {
        self.send(&[vec![b"GET".to_vec(), key.as_bytes().to_vec()]]).unwrap();
        let length: i64 = self.line().unwrap().trim_end().strip_prefix('$').unwrap().parse().unwrap();
        let mut value = vec![0; usize::try_from(length).ok()? + 2];
        self.0.read_exact(&mut value).unwrap();
        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert!(value[..value.len() - 2].chunks(8).all(|part| number.to_le_bytes().starts_with(part)));
        Some(number)
    }
}

fn key_of(client: usize, key: usize) -> String {
    format!("client {client} key {key}")
}

fn value_of(number: u64, key: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(VALUE_BYTES[key]).collect()
}

/// Stores numbers until the node ends; `acked` is the last number whose reply came.
fn store_numbers(mut wire: RedisClient, client: usize, acked: &AtomicU64, fault: PlantedFault) {
    for number in acked.load(Ordering::SeqCst) + 1.. {
        let word = |text: &str| vec![text.as_bytes().to_vec()];
        let mut stores = (0..KEYS).map(|key| {
            let name = key_of(client, key).into_bytes();
            vec![b"SET".to_vec(), name, value_of(number, key)]
        });
        let sent = match fault {
            PlantedFault::None => {
                let all = [word("MULTI")].into_iter().chain(stores).chain([word("EXEC")]);
                // OK, QUEUED for each, the header of the array, OK for each.
                wire.store(&all.collect::<Vec<_>>(), 2 * KEYS + 2)
            }
            PlantedFault::NoTransaction => stores.try_for_each(|store| wire.store(&[store], 1)),
        };
        if sent.is_err() {
            return;
        }
        acked.store(number, Ordering::SeqCst);
    }
}

/// Returns the clients whose keys have different numbers, or one that was never the last.
fn divided_clients(node: &RunningNode, acked: &[AtomicU64]) -> Vec<String> {
    let mut wire = RedisClient::connect(node);
    let mut divided = Vec::new();
    for (client, acked) in acked.iter().enumerate() {
        let numbers: Vec<u64> = (0..KEYS).map(|key| wire.number(&key_of(client, key)).unwrap_or(0)).collect();
        let last = acked.load(Ordering::SeqCst);
        if numbers.iter().any(|&number| number != numbers[0]) || !(last..=last + 1).contains(&numbers[0]) {
            divided.push(format!("client {client} has {numbers:?}, and {last} was answered"));
        }
        acked.store(numbers[0], Ordering::SeqCst);
    }
    divided
}

/// Runs a node through some lives, and returns what was found divided.
fn run_lives(lives: u32, fault: PlantedFault, power: Option<&FlushSupervisor>, folder: &Path) -> Vec<String> {
    let mut rng = fastrand::Rng::new();
    println!("seed {}: {lives} lives, {fault:?}, power cuts: {}", rng.get_seed(), power.is_some());
    let (flash, durable) = (folder.join("data").join("flash"), folder.join("durable"));
    let copy = || std::fs::copy(&flash, &durable).unwrap();
    let start = || {
        let more = if flash.exists() { &[][..] } else { &["--capacity", CAPACITY] };
        match power {
            Some(supervisor) => {
                if flash.exists() {
                    copy();
                }
                RunningNode::start_by(folder, more, |args| supervisor.copying(&flash, &durable, args))
            }
            None => RunningNode::start_by(folder, more, command),
        }
    };
    let acked: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let mut divided = Vec::new();
    for _ in 0..lives {
        let node = start();
        divided.extend(divided_clients(&node, &acked));
        std::thread::scope(|scope| {
            for (client, acked) in acked.iter().enumerate() {
                let wire = RedisClient::connect(&node);
                scope.spawn(move || store_numbers(wire, client, acked, fault));
            }
            Clock::sleep(Nanos::from_micros(rng.u64(..KILL_MICROS_MAX)));
            node.kill();
        });
        if power.is_some() {
            std::fs::rename(&durable, &flash).unwrap();
        }
    }
    let node = start();
    divided.extend(divided_clients(&node, &acked));
    node.kill();
    let stored: u64 = acked.iter().map(|acked| acked.load(Ordering::SeqCst)).sum();
    println!("{stored} transactions, {} divided", divided.len());
    assert!(stored > 0, "no transaction was stored");
    divided
}

#[test]
fn transactions_are_all_or_nothing_across_kills() {
    let dir = tempfile::tempdir().unwrap();
    let divided = run_lives(12, PlantedFault::None, None, dir.path());
    assert!(divided.is_empty(), "{}", divided.join("\n"));
}

#[test]
fn transactions_are_all_or_nothing_across_power_cuts() {
    let dir = tempfile::tempdir().unwrap();
    match FlushSupervisor::compile(dir.path()) {
        Ok(supervisor) => {
            let divided = run_lives(10, PlantedFault::None, Some(&supervisor), dir.path());
            assert!(divided.is_empty(), "{}", divided.join("\n"));
        }
        Err(reason) => println!("skipped: the flushes of a node cannot be followed here: {reason}"),
    }
}

/// Checks that the tests above can fail: a kill divides the same writes without MULTI and EXEC.
#[test]
fn writes_without_a_transaction_are_found_divided() {
    let dir = tempfile::tempdir().unwrap();
    let divided = run_lives(12, PlantedFault::NoTransaction, None, dir.path());
    assert!(!divided.is_empty());
}
