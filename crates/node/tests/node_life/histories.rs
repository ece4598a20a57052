//! Histories of clients of every front end on shared keys, across kills and power cuts of the node: each key is linearizable.
//!
//! A kill takes nothing from the kernel: every write that the node had submitted is in the file, whether it was flushed or
//! not. So across kills alone an answer that came too early, before its flush, is found only if the kill falls between
//! the answer and the write. A power cut takes what was not flushed: at each flush of the node a copy of the flash file is
//! kept, and the next life of the node begins with the last copy. No write runs beside a flush on the ring of the nodes
//! that are cut, so that the copy holds exactly what was written before. Torn and reordered writes are left to the
//! simulator.
#![expect(clippy::unwrap_used, reason = "an unexpected result fails the test")]
#![expect(clippy::print_stdout, reason = "the log states the seed and what was recorded")]

mod clients;
mod recorder;
mod verdict;

use crate::running::{RunningNode, command};
use crate::supervised::FlushSupervisor;
use clients::{FrontEndKind, KeyClient};
use headwater_host::clock::{Clock, Nanos};
use recorder::{EventKind, HistoryEvent, HistoryRecorder, KeyAnswer, KeyOperation};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

const CLIENTS_OF_EACH_FRONT_END: u32 = 2;
/// Keys that every life of the node uses, and keys that one life and its successor use.
const LASTING_KEYS: u32 = 4;
const KEYS_OF_A_LIFE: u32 = 8;
/// Keys that a life and its successor use which power cuts end. Lives are short and many, and a key of all of them would
/// have so many operations without an answer that no checker orders them.
const KEYS_OF_A_CUT_LIFE: u32 = 3;
/// Operations of all clients before the node is killed, and the most after that: the checker needs short histories.
const OPERATIONS: std::ops::Range<u64> = 50..300;
const OPERATIONS_TOO_LATE: u64 = 200;
/// The same of a life that a power cut ends.
const OPERATIONS_BEFORE_A_CUT: std::ops::Range<u64> = 20..60;
const OPERATIONS_TOO_LATE_FOR_A_CUT: u64 = 20;
/// The longest time from the start of a node to its kill; it serves after about 100 ms.
const START_KILL_MICROS_MAX: u64 = 150_000;
const KILL_CHECK_INTERVAL: Nanos = Nanos::from_micros(100);
/// The capacity of the node: a small file is copied fast.
const CAPACITY: &str = "24MiB";

/// A deliberate fault, which the verdict must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedFault {
    None,
    /// The node restarts with its data of one life before: it loses what it acknowledged since.
    DataOfEarlierLife,
    /// Clients answer gets with the value that they last saw.
    StaleGets,
}

/// A client that answers a get from its own memory if it can.
struct StaleClient {
    client: Box<dyn KeyClient>,
    seen: BTreeMap<String, KeyAnswer>,
}

impl KeyClient for StaleClient {
    fn call(&mut self, key: &str, operation: KeyOperation) -> Result<KeyAnswer, String> {
        match (operation, self.seen.get(key)) {
            (KeyOperation::Get, Some(seen)) => return Ok(*seen),
            (KeyOperation::Get, None) => {}
            _ => drop(self.seen.remove(key)),
        }
        let answer = self.client.call(key, operation)?;
        if operation == KeyOperation::Get {
            self.seen.insert(key.to_owned(), answer);
        }
        Ok(answer)
    }
}

/// Power cuts at the ends of lives.
struct PowerCuts {
    supervisor: FlushSupervisor,
    flash: PathBuf,
    /// The file as of the last flush.
    durable: PathBuf,
}

impl PowerCuts {
    /// Prepares the cut of a life that begins now.
    fn begin_life(&self) {
        if self.flash.exists() {
            copy(&self.flash, &self.durable);
        }
    }

    /// Takes from the file what no flush of the killed node covered.
    fn cut(&self) {
        std::fs::rename(&self.durable, &self.flash).unwrap();
    }
}

/// A run of several lives of one node.
struct RecordedRun {
    recorder: HistoryRecorder,
    fault: PlantedFault,
    /// The power cuts; without them a life ends with a kill.
    power: Option<PowerCuts>,
    durability: &'static str,
    rng: fastrand::Rng,
    /// The number of the next process; a client that connects is a new process.
    process_next: u32,
    /// The number of the next put.
    put_next: AtomicU64,
}

/// The state that the clients of one life of a node share.
struct NodeLife<'a> {
    run: &'a RecordedRun,
    keys: Vec<String>,
    operations: AtomicU64,
    operations_max: u64,
    is_killed: AtomicBool,
}

impl NodeLife<'_> {
    /// Carries out random operations until the node is killed or the history is long enough.
    fn work(&self, client: &mut dyn KeyClient, process: u32, mut rng: fastrand::Rng) {
        while self.operations.fetch_add(1, Ordering::Relaxed) < self.operations_max {
            let key = &self.keys[rng.usize(..self.keys.len())];
            let operation = match rng.u8(..10) {
                0..4 => KeyOperation::Put(self.run.put_next.fetch_add(1, Ordering::Relaxed)),
                4..6 => KeyOperation::Delete,
                _ => KeyOperation::Get,
            };
            if let Err(complaint) = self.run.step(client, process, key, operation) {
                assert!(self.is_killed.load(Ordering::SeqCst), "{operation:?} of a live node: {complaint}");
                return;
            }
        }
    }
}

impl RecordedRun {
    /// Returns the keys that these lives of the node use.
    fn keys_of(&self, lives: RangeInclusive<u32>) -> Vec<String> {
        let (lasting, of_each) =
            if self.power.is_some() { (0, KEYS_OF_A_CUT_LIFE) } else { (LASTING_KEYS, KEYS_OF_A_LIFE) };
        let lasting = (0..lasting).map(|key| format!("lasting {key}"));
        let of_lives = lives.flat_map(|life| (0..of_each).map(move |key| format!("life {life} {key}")));
        lasting.chain(of_lives).collect()
    }

    fn new(seed: u64, fault: PlantedFault) -> Self {
        Self {
            recorder: HistoryRecorder::default(),
            fault,
            power: None,
            durability: "always",
            rng: fastrand::Rng::with_seed(seed),
            process_next: 0,
            put_next: AtomicU64::new(0),
        }
    }

    /// Connects a client, which is a new process.
    fn connect(&mut self, kind: FrontEndKind, node: &RunningNode) -> (Box<dyn KeyClient>, u32) {
        self.process_next += 1;
        let client = kind.connect(node);
        match self.fault {
            PlantedFault::StaleGets => {
                (Box::new(StaleClient { client, seen: BTreeMap::new() }), self.process_next)
            }
            _ => (client, self.process_next),
        }
    }

    /// Carries out one operation, and records it.
    fn step(
        &self,
        client: &mut dyn KeyClient,
        process: u32,
        key: &str,
        operation: KeyOperation,
    ) -> Result<(), String> {
        self.recorder.record(process, key, EventKind::Invoked(operation));
        let answer = client.call(key, operation)?;
        self.recorder.record(process, key, EventKind::Returned(answer));
        Ok(())
    }

    /// Reads these keys once, as a new process.
    fn survey(&mut self, kind: FrontEndKind, node: &RunningNode, keys: &[String]) {
        let (mut client, process) = self.connect(kind, node);
        for key in keys {
            self.step(client.as_mut(), process, key, KeyOperation::Get).unwrap();
        }
    }

    /// Runs all clients against a node until it is killed under them.
    fn live_and_kill(&mut self, number: u32, node: RunningNode) {
        let keys = self.keys_of(number.saturating_sub(1)..=number);
        self.survey(FrontEndKind::ALL[number as usize % 3], &node, &keys);
        let mut clients = Vec::new();
        for kind in FrontEndKind::ALL {
            for _ in 0..CLIENTS_OF_EACH_FRONT_END {
                clients.push((self.connect(kind, &node), self.rng.fork()));
            }
        }
        let (operations, too_late) = match self.power {
            Some(_) => (OPERATIONS_BEFORE_A_CUT, OPERATIONS_TOO_LATE_FOR_A_CUT),
            None => (OPERATIONS, OPERATIONS_TOO_LATE),
        };
        let operations = self.rng.u64(operations);
        let life = NodeLife {
            run: self,
            keys,
            operations: AtomicU64::new(0),
            operations_max: operations + too_late,
            is_killed: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            let life = &life;
            let threads: Vec<_> = clients
                .into_iter()
                .map(|((mut client, process), rng)| {
                    scope.spawn(move || life.work(client.as_mut(), process, rng))
                })
                .collect();
            // Every thread is finished early only if every one failed.
            while life.operations.load(Ordering::Relaxed) < operations
                && !threads.iter().all(|thread| thread.is_finished())
            {
                Clock::sleep(KILL_CHECK_INTERVAL);
            }
            life.is_killed.store(true, Ordering::SeqCst);
            node.kill();
        });
    }

    /// Starts a node and kills it at a random time.
    fn kill_while_starting(&mut self, data: &Path) {
        let args = ["serve", "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data"];
        let mut node = self.node_command(&[&args[..], &[data.to_str().unwrap()]].concat());
        let mut child = node.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Clock::sleep(Nanos::from_micros(self.rng.u64(..START_KILL_MICROS_MAX)));
        child.kill().unwrap();
        // With the output ends whatever supervises the node.
        child.wait_with_output().unwrap();
    }

    /// Returns a command of the node.
    fn node_command(&self, args: &[&str]) -> Command {
        match &self.power {
            Some(power) => {
                power.begin_life();
                power.supervisor.copying(&power.flash, &power.durable, args)
            }
            None => command(args),
        }
    }

    fn start(&self, folder: &Path) -> RunningNode {
        let more = ["--durability", self.durability, "--nvme-tcp", "127.0.0.1:0", "--capacity", CAPACITY];
        let more = if folder.join("data").exists() { &more[..4] } else { &more };
        RunningNode::start_by(folder, more, |args| self.node_command(args))
    }

    fn cut_power(&self) {
        if let Some(power) = &self.power {
            power.cut();
        }
    }

    /// Runs a node through this many lives, each ended by a kill, reads every key, and returns the history.
    fn record(mut self, folder: &Path, lives: u32) -> Vec<HistoryEvent> {
        let data = folder.join("data");
        let earlier = folder.join("earlier");
        for number in 0..lives {
            let node = self.start(folder);
            self.live_and_kill(number, node);
            self.cut_power();
            if self.fault == PlantedFault::DataOfEarlierLife {
                if number % 2 == 0 {
                    copy(&data, &earlier);
                } else {
                    std::fs::remove_dir_all(&data).unwrap();
                    std::fs::rename(&earlier, &data).unwrap();
                }
            }
            self.kill_while_starting(&data);
            self.cut_power();
        }
        let node = self.start(folder);
        self.survey(FrontEndKind::Resp, &node, &self.keys_of(0..=lives));
        node.stop();
        self.recorder.into_events()
    }
}

/// Copies a folder with its holes.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp: {status}");
}

/// Counts the operations of a history, and those that have no answer.
fn counts(events: &[HistoryEvent]) -> (usize, usize) {
    let invoked = events.iter().filter(|event| matches!(event.kind, EventKind::Invoked(_))).count();
    (invoked, 2 * invoked - events.len())
}

fn recorded(lives: u32, fault: PlantedFault) -> Vec<HistoryEvent> {
    let seed = fastrand::u64(..);
    println!("seed {seed}: {fault:?}, {lives} kills");
    let dir = tempfile::tempdir().unwrap();
    recorded_in(&dir, RecordedRun::new(seed, fault), lives)
}

/// Records a run whose lives end with power cuts; `None`, with a line that says why, if they cannot be made here.
fn recorded_across_power_cuts(lives: u32, durability: &'static str) -> Option<Vec<HistoryEvent>> {
    let seed = fastrand::u64(..);
    println!("seed {seed}: durability {durability}, {lives} power cuts");
    let dir = tempfile::tempdir().unwrap();
    let supervisor = match FlushSupervisor::compile(dir.path()) {
        Ok(supervisor) => supervisor,
        Err(reason) => {
            println!("skipped: the flushes of a node cannot be followed here: {reason}");
            return None;
        }
    };
    let flash = dir.path().join("data").join("flash");
    let power = PowerCuts { supervisor, flash, durable: dir.path().join("durable") };
    let run = RecordedRun { power: Some(power), durability, ..RecordedRun::new(seed, PlantedFault::None) };
    Some(recorded_in(&dir, run, lives))
}

fn recorded_in(dir: &TempDir, run: RecordedRun, lives: u32) -> Vec<HistoryEvent> {
    let events = run.record(dir.path(), lives);
    let (operations, open) = counts(&events);
    println!("{operations} operations, {open} without an answer");
    events
}

fn assert_linearizable(events: &[HistoryEvent]) {
    let broken: Vec<_> = verdict::broken_keys(events).collect();
    for HistoryEvent { key, process, kind } in broken.iter().flatten() {
        println!("{key:?}, process {process}: {kind:?}");
    }
    assert!(
        broken.is_empty(),
        "no order of the operations on each of {} keys explains the answers",
        broken.len()
    );
}

#[test]
fn keys_are_linearizable_on_every_front_end_across_kills() {
    assert_linearizable(&recorded(6, PlantedFault::None));
}

#[test]
fn keys_are_linearizable_on_every_front_end_across_power_cuts() {
    if let Some(events) = recorded_across_power_cuts(12, "always") {
        assert_linearizable(&events);
    }
}

/// Writes that are acknowledged before they are durable are lost with the power, which shows that a cut takes something.
#[test]
fn writes_that_are_acknowledged_before_they_are_durable_are_found_across_power_cuts() {
    if let Some(events) = recorded_across_power_cuts(2, "on-flush") {
        assert!(verdict::broken_keys(&events).next().is_some());
    }
}

#[test]
fn node_that_loses_acknowledged_changes_is_found() {
    let events = recorded(2, PlantedFault::DataOfEarlierLife);
    assert!(verdict::broken_keys(&events).next().is_some());
}

#[test]
fn clients_that_answer_with_earlier_values_are_found() {
    let events = recorded(3, PlantedFault::StaleGets);
    assert!(verdict::broken_keys(&events).next().is_some());
}
