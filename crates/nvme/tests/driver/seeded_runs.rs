//! Seeded runs with random faults: every command has exactly one result, acknowledged writes are readable, and recovery
//! ends.
#![expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]

use crate::host_harness::{HostHarness, TestQueue, handle_overdue, run, small, spec};
use headwater_host::ring_memory::{RingMemory, SharedMemoryWords};
use headwater_nvme::driver::{DmaBlock, DriverPhase, IoQueueState};
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;

/// Areas of 4 KiB of a run: one per lane, so that no two commands in flight access the same blocks.
const LANES: u64 = 48;
const LANE_BYTES: u32 = 4_096;

/// xorshift64*: enough for choices, and a seed replays it.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// The expected content of a lane's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneContent {
    Known(u64),
    /// A write of the second value over the first had no success: either may be on the device.
    Either(u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct LaneCommand {
    lane: u64,
    /// The written value; `None` for a read.
    writes: Option<u64>,
}

struct FaultRun {
    host: HostHarness,
    random: SeededRandom,
    buffer: DmaBlock<SharedMemoryWords>,
    queues: Vec<(Box<TestQueue>, BTreeMap<usize, LaneCommand>)>,
    content: Vec<LaneContent>,
    busy: Vec<bool>,
    accepted: u64,
    answered: u64,
    succeeded: u64,
    next_value: u64,
}

impl FaultRun {
    fn new(seed: u64) -> Self {
        let mut shop = HostHarness::ready();
        let buffer = shop.buffer(usize::try_from(LANES).unwrap() * LANE_BYTES as usize);
        let lanes = usize::try_from(LANES).unwrap();
        let mut run = Self {
            host: shop,
            random: SeededRandom(seed | 1),
            buffer,
            queues: Vec::new(),
            content: vec![LaneContent::Known(0); lanes],
            busy: vec![false; lanes],
            accepted: 0,
            answered: 0,
            succeeded: 0,
            next_value: 1,
        };
        run.refill();
        run
    }

    fn refill(&mut self) {
        while self.queues.len() < 3 && self.host.driver.lifecycle().phase() == DriverPhase::Ready {
            match self.host.try_queue(spec(11)) {
                Ok(Ok(queue)) => self.queues.push((queue, BTreeMap::new())),
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    fn word(lane: u64) -> usize {
        usize::try_from(lane).unwrap() * LANE_BYTES as usize / 8
    }

    fn submit(&mut self) {
        let lane = self.random.below(LANES);
        if self.queues.is_empty() || self.busy[usize::try_from(lane).unwrap()] {
            return;
        }
        let at = usize::try_from(self.random.below(self.queues.len() as u64)).unwrap();
        let writes = (self.random.below(2) == 0).then_some(self.next_value);
        for word in 0..LANE_BYTES as usize / 8 {
            self.buffer.words.store_relaxed(Self::word(lane) + word, writes.unwrap_or(0xDEAD));
        }
        let data = [run(&self.buffer, lane * u64::from(LANE_BYTES), LANE_BYTES)];
        let (queue, flights) = &mut self.queues[at];
        let entry = small(writes.is_some(), lane * 8, LANE_BYTES);
        if let Ok(command) = queue.submit(entry, &data, ()) {
            let before = flights.insert(queue.slot(command), LaneCommand { lane, writes });
            assert!(before.is_none(), "two commands share a slot");
            self.busy[usize::try_from(lane).unwrap()] = true;
            self.accepted += 1;
            self.next_value += 1;
        }
    }

    fn finish_command(&mut self, flight: LaneCommand, status: Status) {
        let lane = usize::try_from(flight.lane).unwrap();
        assert!(std::mem::replace(&mut self.busy[lane], false), "a command has two results");
        self.answered += 1;
        self.succeeded += u64::from(status.is_success());
        let before = self.content[lane];
        let old = |content| match content {
            LaneContent::Known(value) | LaneContent::Either(value, _) => value,
        };
        match flight.writes {
            Some(value) if status.is_success() => self.content[lane] = LaneContent::Known(value),
            Some(value) => self.content[lane] = LaneContent::Either(old(before), value),
            None if status.is_success() => {
                let first = self.buffer.words.load_relaxed(Self::word(flight.lane));
                let words = Self::word(flight.lane)..Self::word(flight.lane) + LANE_BYTES as usize / 8;
                assert!(words.into_iter().all(|word| self.buffer.words.load_relaxed(word) == first));
                match before {
                    LaneContent::Known(value) => assert_eq!(first, value, "lane {lane}"),
                    LaneContent::Either(one, other) => assert!([one, other].contains(&first), "lane {lane}"),
                }
                self.content[lane] = LaneContent::Known(first);
            }
            None => {}
        }
    }

    /// Reaps all queues, and abandons the queues that are lost or dead.
    fn reap_all(&mut self) {
        let mut kept = Vec::new();
        for (mut queue, mut flights) in std::mem::take(&mut self.queues) {
            while let Some(done) = queue.reap() {
                let flight = flights.remove(&done.slot).unwrap();
                self.finish_command(flight, done.status);
            }
            queue.ring();
            let (driver, now, id) = (&mut self.host.driver, self.host.now, queue.id());
            queue.check_timeouts(now, |overdue| handle_overdue(driver, id, overdue, now));
            if matches!(queue.state(), IoQueueState::Live | IoQueueState::Waiting) {
                kept.push((queue, flights));
                continue;
            }
            let lost: Vec<usize> = queue.commands().map(|(command, ())| queue.slot(command)).collect();
            assert_eq!(queue.abandon().unwrap().len(), lost.len());
            for slot in lost {
                let flight = flights.remove(&slot).unwrap();
                self.finish_command(flight, Status::ABORTED_BY_HOST);
            }
            assert!(flights.is_empty());
        }
        self.queues = kept;
    }

    fn inject_fault(&mut self) {
        let choice = self.random.below(40);
        let on = self.random.below(3) == 0;
        let mut machine = self.host.machine.lock();
        let faults = &mut machine.faults;
        match choice {
            0 => faults.holds_commands = on,
            1 => faults.unresponsive = on,
            2 => faults.lost_completions += 1,
            3 => faults.ignores_aborts = on,
            4 => faults.stuck_ready = on,
            5 if on => faults.fatal = true,
            6 if on => drop(faults.failing_namespaces.insert(3)),
            7 | 8 => (faults.unresponsive, faults.holds_commands, faults.stuck_ready) = (false, false, false),
            9 => machine.complete_held(),
            10 if on => {
                drop(machine);
                self.host.driver.reset(self.host.now);
            }
            _ => (faults.fatal, faults.failing_namespaces) = (false, Default::default()),
        }
    }
}

/// Runs one seed; returns the commands that succeeded, the commands that failed, and the resets.
fn run_once(seed: u64, steps: u32) -> [u64; 3] {
    let mut run = FaultRun::new(seed);
    let mut last_step = 0;
    for step in 0..steps {
        match run.random.below(10) {
            0..=5 => run.submit(),
            6 => run.inject_fault(),
            7 => run.refill(),
            _ => {
                run.host.turn();
                run.reap_all();
            }
        }
        if run.host.driver.lifecycle().phase() == DriverPhase::Dead {
            last_step = step;
            break;
        }
    }
    // Closing ends the controller from any state, and every command has its result.
    run.host.driver.close(run.host.now);
    assert_eq!(run.host.settle(), DriverPhase::Dead, "seed {seed}, ended at {last_step}");
    run.reap_all();
    assert_eq!((run.answered, run.queues.len()), (run.accepted, 0));
    assert!(!run.host.machine.lock().mastering);
    [run.succeeded, run.answered - run.succeeded, run.host.driver.resets()]
}

#[test]
fn every_command_has_one_result_and_acknowledged_writes_survive_any_fault() {
    let first = std::env::var("HEADWATER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(1..=60, |seed| seed..=seed);
    let mut total = [0; 3];
    for seed in seeds.clone() {
        eprintln!("HEADWATER_SEED={seed}");
        let run = run_once(seed, 3_000);
        total.iter_mut().zip(run).for_each(|(sum, part)| *sum += part);
    }
    let runs = seeds.count() as u64;
    eprintln!("{runs} runs: {total:?} commands succeeded, failed, resets");
    assert!(
        first.is_some() || total.iter().all(|&sum| sum > runs),
        "the runs exercise too little: {total:?}"
    );
}
