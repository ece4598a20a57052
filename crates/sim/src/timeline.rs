//! Timing of flash operations: each channel carries one transfer at a time, each die runs one operation at a time.
//!
//! Input: jobs, each on one die and its channel.
//! Output: finished jobs with their times, in order.
//! Invariant: channels and dies serve first come, first served, so the programs and erases of one block finish in the
//! order in which they were started.
//! It holds no data. A read senses on the die, then crosses the channel; a program crosses the channel, then occupies
//! the die; an erase occupies the die. With a volatile cache, a program or erase finishes when the cache has it, the
//! die works in the background, and a flush waits for the dies.
//!
//! ```text
//!  read     die --tR--> channel --transfer--> finished
//!  program  channel --transfer--> die --tPROG--> finished        (cached: transfer > cache > finished, die later)
//!  erase    die --tBERS--> finished                              (cached: cache > finished, die later)
//!  flush    background die work done --flush--> finished
//! ```

use crate::events::EventQueue;
use crate::id_window::IdWindow;
use crate::presets::TimingPreset;
use headwater_host::clock::Nanos;
use headwater_ssd::media::{BlockId, FlashGeometry, PAGE_DATA_BYTES};
use std::collections::{BTreeSet, VecDeque};

/// An operation on a die or its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashOperation {
    /// Read the page.
    Read(u8),
    /// Program the page.
    Program(u8),
    /// Erase the block.
    Erase,
}

/// One die that is slower than the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowDie {
    /// The index of the die.
    pub die: u32,
    /// The factor by which it reads, programs and erases more slowly.
    pub factor: u32,
}

#[derive(Clone, Copy, Debug)]
struct DieJob {
    work: FlashOperation,
    die: usize,
    channel: usize,
}

/// A step of a job or flush that ends at its time.
#[derive(Clone, Copy, Debug)]
enum TimelineStep {
    Die(u64),
    Transfer(u64),
    Cache(u64),
    Flush(u64),
}

#[derive(Debug, Default)]
struct FifoResource {
    busy: bool,
    waiting: VecDeque<u64>,
}

/// The channels and dies of one medium.
#[derive(Debug)]
pub struct FlashTimeline {
    preset: TimingPreset,
    geometry: FlashGeometry,
    slow: Option<SlowDie>,
    channels: Vec<FifoResource>,
    dies: Vec<FifoResource>,
    jobs: IdWindow<DieJob>,
    /// Jobs that have finished for the caller while the die still works on them.
    in_background: BTreeSet<u64>,
    /// Flushes, each with the newest job that it waits for.
    flushes: Vec<(u64, Option<u64>)>,
    steps: EventQueue<TimelineStep>,
}

impl FlashTimeline {
    /// Creates a timeline with idle channels and dies.
    #[must_use]
    pub fn new(preset: TimingPreset, geometry: FlashGeometry, slow: Option<SlowDie>) -> Self {
        let idle = |count: u32| (0..count).map(|_| FifoResource::default()).collect();
        Self {
            preset,
            geometry,
            slow,
            channels: idle(u32::from(geometry.channels)),
            dies: idle(geometry.dies()),
            jobs: IdWindow::default(),
            in_background: BTreeSet::new(),
            flushes: Vec::new(),
            steps: EventQueue::new(),
        }
    }

    /// Starts a job on a block. `id` must be higher than every id before.
    pub fn start(&mut self, id: u64, block: BlockId, work: FlashOperation, now: Nanos) {
        let job = DieJob {
            work,
            die: self.geometry.die_of(block) as usize,
            channel: self.geometry.channel_of(block) as usize,
        };
        self.jobs.insert(id, job);
        match work {
            FlashOperation::Read(_) => self.request_die(id, now),
            FlashOperation::Program(_) => self.request_channel(id, now),
            FlashOperation::Erase => {
                if let Some(cached) = self.preset.cached {
                    self.in_background.insert(id);
                    self.steps.push(now.after(cached), TimelineStep::Cache(id));
                }
                self.request_die(id, now);
            }
        }
    }

    /// Starts a flush, which finishes after all work that is in the cache now has reached the flash.
    pub fn flush(&mut self, id: u64, now: Nanos) {
        self.flushes.push((id, self.in_background.last().copied()));
        self.release_flushes(now);
    }

    /// Returns the time at which the next step is due; not every step finishes a job.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.steps.next_at()
    }

    /// Runs the next step that is due at or before `now`. Returns its time and, if it finished a job, the job.
    pub fn step(&mut self, now: Nanos) -> Option<(Nanos, Option<u64>)> {
        let (at, step) = self.steps.pop_due(now)?;
        let finished = match step {
            TimelineStep::Die(id) => self.die_done(id, at),
            TimelineStep::Transfer(id) => self.transfer_done(id, at),
            TimelineStep::Cache(id) | TimelineStep::Flush(id) => Some(id),
        };
        Some((at, finished))
    }

    /// Discards all work after a loss of power.
    pub fn discard_all(&mut self) {
        *self = Self::new(self.preset, self.geometry, self.slow);
    }

    fn die_done(&mut self, id: u64, at: Nanos) -> Option<u64> {
        let job = self.jobs.get(id).copied()?;
        self.dies[job.die].busy = false;
        if let Some(next) = self.dies[job.die].waiting.pop_front() {
            self.request_die(next, at);
        }
        if let FlashOperation::Read(_) = job.work {
            self.request_channel(id, at);
            return None;
        }
        self.jobs.remove(id);
        if self.in_background.remove(&id) {
            self.release_flushes(at);
            return None;
        }
        Some(id)
    }

    fn transfer_done(&mut self, id: u64, at: Nanos) -> Option<u64> {
        let job = self.jobs.get(id).copied()?;
        self.channels[job.channel].busy = false;
        if let Some(next) = self.channels[job.channel].waiting.pop_front() {
            self.request_channel(next, at);
        }
        if let FlashOperation::Read(_) = job.work {
            self.jobs.remove(id);
            return Some(id);
        }
        if let Some(cached) = self.preset.cached {
            self.in_background.insert(id);
            self.steps.push(at.after(cached), TimelineStep::Cache(id));
        }
        self.request_die(id, at);
        None
    }

    fn request_die(&mut self, id: u64, now: Nanos) {
        let Some(job) = self.jobs.get(id).copied() else {
            return;
        };
        let die = &mut self.dies[job.die];
        if die.busy {
            die.waiting.push_back(id);
            return;
        }
        die.busy = true;
        let span = match job.work {
            FlashOperation::Read(page) => self.preset.read_time(page),
            FlashOperation::Program(page) => self.preset.program_time(page),
            FlashOperation::Erase => self.preset.erase,
        };
        let factor = match self.slow {
            Some(slow) if slow.die as usize == job.die => u64::from(slow.factor),
            _ => 1,
        };
        let span = Nanos(span.0.saturating_mul(factor));
        self.steps.push(now.after(span), TimelineStep::Die(id));
    }

    fn request_channel(&mut self, id: u64, now: Nanos) {
        let Some(job) = self.jobs.get(id).copied() else {
            return;
        };
        let channel = &mut self.channels[job.channel];
        if channel.busy {
            channel.waiting.push_back(id);
            return;
        }
        channel.busy = true;
        let span = self.preset.transfer(PAGE_DATA_BYTES as u64);
        self.steps.push(now.after(span), TimelineStep::Transfer(id));
    }

    fn release_flushes(&mut self, at: Nanos) {
        let oldest_behind = self.in_background.first().copied();
        let (steps, flush) = (&mut self.steps, self.preset.flush);
        self.flushes.retain(|&(id, waits_for)| {
            let waits = matches!((waits_for, oldest_behind), (Some(last), Some(oldest)) if oldest <= last);
            if !waits {
                steps.push(at.after(flush), TimelineStep::Flush(id));
            }
            waits
        });
    }
}
