//! A device with its ring front end and one client, all on the calling thread.
//!
//! Input: the number of keys and the size of their values.
//! Output: rounds of gets and puts of random keys, with every completion checked.
//! Invariant: a round ends with nothing in flight, so its cost is that of its own commands.

use crate::experiment::LabError;
use crate::measure::SampleSpread;
use headwater_dma::iova::Iova;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey, StoreOptions, retrieve, store};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::{DeviceConfig, DeviceStats, Durability, SsdDevice, StartTime};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::log::record::{HEADER_BYTES, UNIT_BYTES};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::geometry::BLOCK_DATA_BYTES;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::nvme::rings::{ClientQueue, RingFrontEnd};
use std::fmt::Display;

/// Maximum number of commands in flight.
pub(super) const DEPTH: u32 = 32;
/// The IOVA at which the client's buffers begin.
pub(super) const BUFFERS: Iova = Iova(1 << 20);
const KEY_BYTES: usize = 16;
/// Number of turns without a completion after which the device counts as stuck.
const IDLE_TURNS_MAX: u32 = 1_000_000;

/// The kind of command of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundKind {
    /// Retrieve of an existing key.
    Get,
    /// Store of an existing key.
    Put,
}

/// The elapsed time of a round or a turn by stage, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StageTimes {
    /// The client: writing entries, ringing the doorbell, reaping completions.
    pub(super) client: u64,
    /// The front end: fetch, decode, address translation, submission to the device.
    pub(super) fetch: u64,
    /// The poll of the device.
    pub(super) device: u64,
    /// The front end: posting completions.
    pub(super) complete: u64,
}

/// The measured device with its front end and its client.
pub(super) struct MeasuredDevice {
    device: SsdDevice<MemoryMedia>,
    front_end: RingFrontEnd,
    queue: ClientQueue,
    clock: Clock,
    random: fastrand::Rng,
    keys: u64,
    value_bytes: u32,
    media_bytes: usize,
}

/// Returns the size of a record with a value of this size, which is what a get reads.
pub(super) fn record_bytes(value_bytes: u32) -> usize {
    (HEADER_BYTES + KEY_BYTES + value_bytes as usize).next_multiple_of(UNIT_BYTES)
}

impl MeasuredDevice {
    /// Creates a device that is 70 % full with `keys` values.
    pub(super) fn filled(keys: u64, value_bytes: u32, seed: u64) -> Result<Self, LabError> {
        let data = to_usize(keys).saturating_mul(record_bytes(value_bytes));
        let blocks = narrow(data / 7 * 10 / BLOCK_DATA_BYTES);
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).map_err(start)?;
        let config =
            DeviceConfig { durability: [Durability::OnFlush; NAMESPACES], ..DeviceConfig::default() };
        let clock = Clock::start();
        let at = StartTime { now: clock.now(), wall: clock.wall() };
        let device = SsdDevice::open(media, config, at, &mut |_| {}).map_err(start)?;
        let mut front_end = RingFrontEnd::new(FrontEndId(1)).map_err(start)?;
        let client = front_end.rings.add_client();
        let buffers = SharedMemory::anonymous(DEPTH as usize * value_bytes.next_multiple_of(64) as usize)
            .map_err(start)?;
        if let Some(memory) = front_end.rings.memory(client) {
            memory.register(BUFFERS, buffers).map_err(start)?;
        }
        let queue = front_end.rings.create_queue_pair(client, DEPTH, QueueKind::Standard).map_err(start)?;
        let mut subject = Self {
            device,
            front_end,
            queue,
            clock,
            random: fastrand::Rng::with_seed(seed),
            keys,
            value_bytes,
            media_bytes: blocks as usize * BLOCK_DATA_BYTES,
        };
        let mut next = 0;
        subject.run(keys, RoundKind::Put, |_, _| {
            next += 1;
            next - 1
        })?;
        Ok(subject)
    }

    /// Returns the data bytes of the medium.
    pub(super) fn media_bytes(&self) -> usize {
        self.media_bytes
    }

    pub(super) fn stats(&self) -> DeviceStats {
        self.device.stats()
    }

    /// Runs `count` commands on uniformly random keys.
    pub(super) fn round(&mut self, count: u64, work: RoundKind) -> Result<(), LabError> {
        self.run(count, work, |random, keys| random.u64(..keys))
    }

    fn run(
        &mut self,
        count: u64,
        work: RoundKind,
        mut pick: impl FnMut(&mut fastrand::Rng, u64) -> u64,
    ) -> Result<(), LabError> {
        let (mut left, mut completed, mut idle) = (count, 0, 0);
        while completed < count {
            self.submit(&mut left, work, &mut pick);
            self.front_end.poll(&mut self.device);
            self.device.poll(self.clock.now(), self.clock.wall());
            self.front_end.poll(&mut self.device);
            let reaped = self.reap(work)?;
            completed += reaped;
            idle = if reaped == 0 { idle + 1 } else { 0 };
            if idle > IDLE_TURNS_MAX {
                return Err(failed("the device completes no commands"));
            }
        }
        Ok(())
    }

    /// Runs a round as [`Self::round`] does and reads the clock between the stages of every turn.
    pub(super) fn staged_round(&mut self, count: u64, work: RoundKind) -> Result<StageTimes, LabError> {
        let mut stages = StageTimes::default();
        self.staged_turns(count, work, |_, turn| {
            stages.client += turn.client;
            stages.fetch += turn.fetch;
            stages.device += turn.device;
            stages.complete += turn.complete;
        })?;
        Ok(stages)
    }

    /// Runs a round of gets. Returns the nanoseconds in which the front end fetches, decodes and submits a command, in the
    /// median of the turns that fetch at least half of a full queue.
    pub(super) fn fetch_round(&mut self, count: u64) -> Result<f64, LabError> {
        let mut turns = Vec::new();
        self.staged_turns(count, RoundKind::Get, |fetched, turn| {
            if fetched >= u64::from(DEPTH / 2) {
                turns.push((fetched, Nanos(turn.fetch)));
            }
        })?;
        median_turn(&turns)
    }

    /// Runs a round and reads the clock between the stages of every turn. `each` receives the number of commands that a turn
    /// fetched, and its times.
    fn staged_turns(
        &mut self,
        count: u64,
        work: RoundKind,
        mut each: impl FnMut(u64, StageTimes),
    ) -> Result<(), LabError> {
        let mut pick = |random: &mut fastrand::Rng, keys: u64| random.u64(..keys);
        let (mut left, mut completed, mut idle) = (count, 0, 0);
        while completed < count {
            let before = left;
            let t0 = self.clock.now();
            self.submit(&mut left, work, &mut pick);
            let t1 = self.clock.now();
            self.front_end.poll(&mut self.device);
            let t2 = self.clock.now();
            self.device.poll(t2, self.clock.wall());
            let t3 = self.clock.now();
            self.front_end.poll(&mut self.device);
            let t4 = self.clock.now();
            let reaped = self.reap(work)?;
            let t5 = self.clock.now();
            let span = |from: Nanos, to: Nanos| to.since(from).0;
            let turn = StageTimes {
                client: span(t0, t1) + span(t4, t5),
                fetch: span(t1, t2),
                device: span(t2, t3),
                complete: span(t3, t4),
            };
            each(before - left, turn);
            completed += reaped;
            idle = if reaped == 0 { idle + 1 } else { 0 };
            if idle > IDLE_TURNS_MAX {
                return Err(failed("the device completes no commands"));
            }
        }
        Ok(())
    }

    fn submit(
        &mut self,
        left: &mut u64,
        work: RoundKind,
        pick: &mut impl FnMut(&mut fastrand::Rng, u64) -> u64,
    ) {
        while *left > 0 && self.queue.pair.in_flight() < DEPTH {
            let key = pick(&mut self.random, self.keys);
            let Some(entry) = entry_of(key, *left, self.value_bytes, work) else {
                return;
            };
            if self.queue.pair.submit(entry, ()).is_err() {
                break;
            }
            *left -= 1;
        }
        // This thread polls the device, so the device needs no wake-up.
        let _ = self.queue.pair.ring();
    }

    fn reap(&mut self, work: RoundKind) -> Result<u64, LabError> {
        let mut reaped = 0;
        while let Some(completion) = self.queue.pair.reap().map_err(failed)? {
            if !completion.status.is_success() {
                return Err(failed(completion.status));
            }
            if work == RoundKind::Get && completion.result != self.value_bytes {
                return Err(failed("a retrieved value has another length than the stored one"));
            }
            reaped += 1;
        }
        Ok(reaped)
    }
}

/// Builds the entry of a command on a key, whose buffer is that of `turn` modulo [`DEPTH`].
pub(super) fn entry_of(key: u64, turn: u64, value_bytes: u32, work: RoundKind) -> Option<SubmissionEntry> {
    let key = InlineKey::new(&key_bytes(key))?;
    let offset = turn % u64::from(DEPTH) * u64::from(value_bytes.next_multiple_of(64));
    let data = DataPointer { address: BUFFERS.0 + offset, bytes: value_bytes };
    Some(match work {
        RoundKind::Get => retrieve(1, key, data),
        RoundKind::Put => store(1, key, data, StoreOptions::NONE),
    })
}

/// Returns the nanoseconds of a command in the median of turns, each with its number of commands.
#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
pub(super) fn median_turn(turns: &[(u64, Nanos)]) -> Result<f64, LabError> {
    let each: Vec<f64> = turns.iter().map(|(commands, took)| took.0 as f64 / *commands as f64).collect();
    let spread = SampleSpread::of(&each).ok_or_else(|| failed("no turn fetched half of a full queue"))?;
    Ok(spread.median)
}

fn key_bytes(key: u64) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&key.to_le_bytes());
    high.copy_from_slice(&(!key).to_le_bytes());
    bytes
}

fn start(reason: impl Display) -> LabError {
    LabError::Start { program: "the device".to_owned(), reason: reason.to_string() }
}

fn failed(reason: impl Display) -> LabError {
    LabError::Measure { program: "the device".to_owned(), reason: reason.to_string() }
}
