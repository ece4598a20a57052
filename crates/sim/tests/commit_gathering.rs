//! Tests of commits that wait for the commands of all active clients: fewer flushes serve the same commands.
//!
//! The clients are those of one thread that takes one reply after the other, and sends the next write of each.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::engine::{COMMIT_GATHERING, DeviceConfig, SsdDevice, StartTime};
use std::collections::VecDeque;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// Time that the thread of the clients takes for a reply and the next write.
const TURN: Nanos = Nanos(4_000);
/// Bytes of a value that lies in extents.
const VALUE_BYTES: u64 = 600_000;
/// Writes of each client.
const WRITES: u32 = 100;

/// The cost of a run of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClientRun {
    flushes: u64,
    duration: Nanos,
}

struct ClientThread {
    device: SsdDevice<SimMedia>,
    now: Nanos,
    /// Clients whose reply the thread has not taken, and the time at which it takes the next one.
    replied: VecDeque<u64>,
    next_turn: Nanos,
    left: Vec<u32>,
    done: u32,
}

impl ClientThread {
    fn start(clients: u64, gathering: Nanos) -> Self {
        let media = SimMedia::new(SimMediaConfig::new(FILE, 64));
        let config = DeviceConfig { commit_gathering: gathering, ..DeviceConfig::default() };
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        // The opening ends at some time of its own.
        let now = Nanos::from_millis(1_000);
        let left = (0..clients).map(|_| WRITES).collect();
        Self { device, now, replied: (0..clients).collect(), next_turn: now, left, done: 0 }
    }

    /// Takes the next reply and sends a write, if it is time for that.
    fn take_turn(&mut self) {
        if self.next_turn > self.now {
            return;
        }
        let Some(client) = self.replied.pop_front() else { return };
        self.next_turn = self.now.after(TURN);
        let left = &mut self.left[usize::try_from(client).unwrap()];
        if *left > 0 {
            *left -= 1;
            let key = format!("key-{client}-{left}").into();
            let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
            let store = SsdCommand::Store { key, value: vec![7; 100].into(), condition, expiry };
            self.device.submit(FRONT_END, NamespaceId::FIRST, client, store).unwrap();
        }
    }

    fn run(mut self) -> ClientRun {
        let begin = self.now;
        let writes = WRITES * u32::try_from(self.left.len()).unwrap();
        while self.done < writes {
            self.take_turn();
            while self.device.poll(self.now, WALL) {}
            while let Some(completion) = self.device.next_completion(FRONT_END) {
                assert_eq!(completion.status, Status::SUCCESS);
                self.next_turn = self.next_turn.max(self.now);
                self.replied.push_back(completion.token);
                self.done += 1;
            }
            let turn = (!self.replied.is_empty()).then_some(self.next_turn);
            let next = turn.into_iter().chain(self.device.next_deadline()).min().unwrap();
            self.now = next.max(Nanos(self.now.0 + 1));
        }
        ClientRun { flushes: self.device.stats().flushes, duration: self.now.since(begin) }
    }
}

fn run(clients: u64, gathering: Nanos) -> ClientRun {
    ClientThread::start(clients, gathering).run()
}

#[test]
fn one_flush_serves_all_clients_that_are_active() {
    for clients in [2, 8, 20] {
        let (at_once, gathered) = (run(clients, Nanos::ZERO), run(clients, COMMIT_GATHERING));
        let rounds = u64::from(WRITES);
        assert!(at_once.flushes > rounds * 3 / 2, "{clients} clients need no gathering: {at_once:?}");
        assert!(
            gathered.flushes < rounds * 5 / 4,
            "{clients} clients: {gathered:?} with, {at_once:?} without"
        );
        assert!(gathered.duration < at_once.duration, "{clients} clients: {gathered:?}, {at_once:?}");
    }
}

#[test]
fn writes_that_wait_for_room_find_it_although_a_commit_waits_for_commands() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FILE, random.u32(64..120)));
        let config = DeviceConfig {
            commit_gathering: Nanos::from_millis(5),
            frames_max: 1_024,
            ..DeviceConfig::default()
        };
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let mut device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        let mut now = Nanos::from_millis(1_000);
        let mut values = 0_u64;
        let (mut sent, mut in_flight) = (0_u64, VecDeque::new());
        // The device is filled with values in extents, and then overwrites them beside short values.
        while sent < 600 || !in_flight.is_empty() {
            let has_room = device.stats().live_bytes + 12 * VALUE_BYTES < device.stats().capacity_bytes;
            while sent < 600 && in_flight.len() < if has_room { 1 } else { 6 } {
                let is_long = has_room || random.u8(..3) == 0;
                values += u64::from(has_room);
                let number = if has_room { values } else { random.u64(1..=values) };
                let key = format!("{}-{number}", if is_long { "long" } else { "short" }).into();
                let value = vec![7; usize::try_from(if is_long { VALUE_BYTES } else { 100 }).unwrap()].into();
                let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
                let store = SsdCommand::Store { key, value, condition, expiry };
                device.submit(FRONT_END, NamespaceId::FIRST, sent, store).unwrap();
                in_flight.push_back(sent);
                sent += 1;
                if has_room {
                    break;
                }
            }
            let moved = device.poll(now, WALL);
            while let Some(completion) = device.next_completion(FRONT_END) {
                assert_eq!(completion.status, Status::SUCCESS, "seed {seed}: {:?}", device.stats());
                in_flight.retain(|token| *token != completion.token);
            }
            if !moved && let Some(next) = device.next_deadline() {
                now = now.max(next);
            }
        }
        assert!(values > 10 && device.stats().erases > 100, "seed {seed}: the device was never full");
    }
}

#[test]
fn one_client_waits_for_nothing() {
    assert_eq!(run(1, COMMIT_GATHERING), run(1, Nanos::ZERO));
}

#[test]
fn clients_that_do_not_come_back_delay_a_commit_by_no_more_than_the_gathering() {
    let mut clients = ClientThread::start(20, COMMIT_GATHERING);
    // All but the first one send one write each.
    clients.left[1..].fill(1);
    clients.done = 19 * (WRITES - 1);
    let gathered = clients.run();
    let alone = run(1, Nanos::ZERO);
    // The commits of the first rounds alone may wait.
    let most = alone.duration.after(Nanos(5 * COMMIT_GATHERING.0)).after(Nanos(40 * TURN.0));
    assert!(gathered.duration <= most, "{gathered:?}, {alone:?} alone");
}
