//! A machine of the model: one CPU core, channels, and a ceiling on what they move together.
//!
//! Input: bytes for each engine. Output: the time at which each ends. Invariant: time advances from event to event (a part
//! arrives, a part ends); between two events every rate is constant.

use headwater_dma::mover::policy::{CHANNELS_MAX, ChannelLoad};

/// The most jobs in flight on a channel that the model holds.
pub const BACKLOG_MAX: usize = 7;

/// Two affine times, of which a job takes the shorter: engines are faster for short jobs than a line through long ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffineTime {
    /// Nanoseconds before the first byte.
    pub fixed_ns: f64,
    /// Bytes a nanosecond.
    pub bytes_per_ns: f64,
}

impl AffineTime {
    /// Returns the time for so many bytes, in nanoseconds.
    #[must_use]
    pub fn of(self, bytes: f64) -> f64 {
        self.fixed_ns + bytes / self.bytes_per_ns
    }
}

/// A DMA channel: a work queue and the engines that serve it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelModel {
    /// The time of a job alone: the shorter of both.
    pub pieces: [AffineTime; 2],
    /// The jobs that it moves at the same time; they share its rate.
    pub engines: usize,
    /// The entries of its work queue.
    pub depth: usize,
}

impl ChannelModel {
    /// Creates a channel with one affine time.
    #[must_use]
    pub const fn affine(fixed_ns: f64, bytes_per_ns: f64) -> Self {
        let piece = AffineTime { fixed_ns, bytes_per_ns };
        Self { pieces: [piece; 2], engines: 1, depth: 128 }
    }

    /// Returns the piece that is the shorter for a job.
    #[must_use]
    pub fn piece(&self, bytes: f64) -> AffineTime {
        let [short, long] = self.pieces;
        if short.of(bytes) <= long.of(bytes) { short } else { long }
    }
}

/// The way in which engines share the memory's bandwidth when they ask for more than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandwidthSharing {
    /// Each gets the same share of its own rate.
    Proportional,
    /// Slow engines keep their rate, fast ones share the rest equally.
    MaxMin,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MoveMachine {
    /// The time of the CPU alone.
    pub cpu: AffineTime,
    /// The CPU's time to submit a part to a channel, in nanoseconds.
    pub submit_ns: f64,
    /// The channels, at most [`CHANNELS_MAX`].
    pub channels: Vec<ChannelModel>,
    /// The most bytes that all engines move in a nanosecond.
    pub ceiling_bytes_per_ns: f64,
    /// The sharing below the ceiling.
    pub sharing: BandwidthSharing,
}

/// The times at which the engines of a job end, in nanoseconds from its start; 0 for an engine without a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartTimes {
    /// The CPU.
    pub cpu: f64,
    /// The channels.
    pub channels: [f64; CHANNELS_MAX],
}

impl PartTimes {
    /// Returns the time at which the job ends.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.channels.iter().fold(self.cpu, |latest, time| latest.max(*time))
    }
}

impl MoveMachine {
    /// Returns the time at which each engine ends its part, when `loads` are the jobs in flight on the channels. A part's
    /// latency begins when the CPU has submitted it, one after another; then the CPU begins its own.
    #[must_use]
    pub fn times(&self, cpu_bytes: f64, parts: &[f64; CHANNELS_MAX], loads: &[ChannelLoad]) -> PartTimes {
        let mut run = FluidRun::new(self, cpu_bytes, parts, loads);
        while run.step() {}
        run.ends
    }

    /// Lowers the rates of engines to the ceiling.
    pub(super) fn limit(&self, rates: &mut [f64]) {
        let ceiling = self.ceiling_bytes_per_ns;
        let wanted: f64 = rates.iter().sum();
        if wanted <= ceiling {
            return;
        }
        match self.sharing {
            BandwidthSharing::Proportional => rates.iter_mut().for_each(|rate| *rate *= ceiling / wanted),
            BandwidthSharing::MaxMin => {
                let (mut left, mut level) = (ceiling, 0.0);
                let mut asking = rates.iter().filter(|rate| **rate > 0.0).count();
                // Each round settles the engines below the level, of which there is at least one, or all.
                while asking > 0 {
                    let share = left / to_float(asking as u64);
                    let below = rates.iter().filter(|rate| **rate > level && **rate <= level + share);
                    let (count, sum) =
                        below.fold((0, 0.0), |(count, sum), rate| (count + 1, sum + (rate - level)));
                    if count == 0 {
                        level += share;
                        break;
                    }
                    let highest =
                        rates.iter().filter(|rate| **rate <= level + share).fold(0.0, |a: f64, b| a.max(*b));
                    left -= sum + to_float((asking - count) as u64) * (highest - level);
                    (level, asking) = (highest, asking - count);
                }
                rates.iter_mut().for_each(|rate| *rate = rate.min(level));
            }
        }
    }
}

/// The part of a job on one channel, behind the jobs in flight.
#[derive(Clone, Copy, Debug, Default)]
struct ChannelFlow {
    rate: f64,
    /// Bytes left of each job in flight; they are equal.
    backlog: [f64; BACKLOG_MAX],
    backlog_jobs: usize,
    engines: usize,
    /// The time at which the part can be moved.
    arrives: f64,
    left: f64,
}

impl ChannelFlow {
    /// Returns the jobs in flight that are being moved, and whether the part is.
    fn active(&self, now: f64) -> (usize, bool) {
        let jobs = self.backlog_jobs.min(self.engines);
        (jobs, self.left > 0.0 && self.arrives <= now && jobs < self.engines)
    }

    fn is_busy(&self, now: f64) -> bool {
        let (jobs, part) = self.active(now);
        jobs > 0 || part
    }
}

/// The state of one job's parts in virtual time.
struct FluidRun<'a> {
    machine: &'a MoveMachine,
    flows: [ChannelFlow; CHANNELS_MAX],
    cpu_arrives: f64,
    cpu_left: f64,
    now: f64,
    ends: PartTimes,
}

impl<'a> FluidRun<'a> {
    fn new(
        machine: &'a MoveMachine,
        cpu_bytes: f64,
        parts: &[f64; CHANNELS_MAX],
        loads: &[ChannelLoad],
    ) -> Self {
        let mut flows = [ChannelFlow::default(); CHANNELS_MAX];
        let mut submitted = 0.0;
        for (index, channel) in machine.channels.iter().enumerate() {
            let load = loads.get(index).copied().unwrap_or_default();
            let piece = channel.piece(parts[index]);
            let flow = &mut flows[index];
            (flow.rate, flow.engines, flow.left) = (piece.bytes_per_ns, channel.engines, parts[index]);
            flow.backlog_jobs = load.jobs.min(BACKLOG_MAX);
            if flow.backlog_jobs > 0 {
                let each = to_float(load.bytes) / to_float(flow.backlog_jobs as u64);
                flow.backlog[..flow.backlog_jobs].fill(each);
            }
            if parts[index] > 0.0 {
                submitted += machine.submit_ns;
                flow.arrives = submitted + piece.fixed_ns;
            }
        }
        let cpu_arrives = submitted + machine.cpu.fixed_ns;
        Self { machine, flows, cpu_arrives, cpu_left: cpu_bytes, now: 0.0, ends: PartTimes::default() }
    }

    fn is_done(&self) -> bool {
        self.cpu_left <= 0.0 && self.flows.iter().all(|flow| flow.left <= 0.0)
    }

    /// Advances to the next event. Returns false once every part has ended.
    fn step(&mut self) -> bool {
        if self.is_done() {
            return false;
        }
        let channels = self.machine.channels.len();
        let mut rates = [0.0; CHANNELS_MAX + 1];
        for (rate, flow) in rates.iter_mut().zip(&self.flows[..channels]) {
            if flow.is_busy(self.now) {
                *rate = flow.rate;
            }
        }
        let cpu_runs = self.cpu_left > 0.0 && self.cpu_arrives <= self.now;
        if cpu_runs {
            rates[channels] = self.machine.cpu.bytes_per_ns;
        }
        self.machine.limit(&mut rates[..=channels]);
        let span = self.span_to_event(&rates, cpu_runs);
        // Adding and subtracting a span does not give the same time again.
        let before = self.now;
        self.now += span;
        if cpu_runs {
            self.cpu_left -= rates[channels] * span;
            if self.cpu_left < 1e-3 {
                (self.cpu_left, self.ends.cpu) = (0.0, self.now);
            }
        }
        for (index, flow) in self.flows[..channels].iter_mut().enumerate() {
            let (jobs, part) = flow.active(before);
            if jobs == 0 && !part {
                continue;
            }
            let moved = rates[index] / to_float((jobs + usize::from(part)) as u64) * span;
            if part {
                flow.left -= moved;
                if flow.left < 1e-3 {
                    (flow.left, self.ends.channels[index]) = (0.0, self.now);
                }
            }
            flow.backlog[..jobs].iter_mut().for_each(|left| *left -= moved);
            let ended = flow.backlog[..jobs].iter().filter(|left| **left < 1e-3).count();
            flow.backlog.rotate_left(ended);
            flow.backlog_jobs -= ended;
        }
        true
    }

    fn span_to_event(&self, rates: &[f64], cpu_runs: bool) -> f64 {
        let channels = self.machine.channels.len();
        let mut span = f64::INFINITY;
        if cpu_runs {
            span = self.cpu_left / rates[channels];
        } else if self.cpu_left > 0.0 {
            span = self.cpu_arrives - self.now;
        }
        for (flow, rate) in self.flows[..channels].iter().zip(rates) {
            if flow.left > 0.0 && flow.arrives > self.now {
                span = span.min(flow.arrives - self.now);
            }
            let (jobs, part) = flow.active(self.now);
            let each = rate / to_float((jobs + usize::from(part)).max(1) as u64);
            if part {
                span = span.min(flow.left / each);
            }
            span = flow.backlog[..jobs].iter().fold(span, |span, left| span.min(left / each));
        }
        span
    }
}

/// Converts a count or a length.
#[expect(clippy::cast_precision_loss, reason = "counts and lengths of the model are far below 2^52")]
pub(super) const fn to_float(number: u64) -> f64 {
    number as f64
}

/// Converts a time or a length back, without its fraction.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times and lengths of the model are positive and far below 2^52"
)]
pub(super) const fn to_whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(ceiling: f64, sharing: BandwidthSharing) -> MoveMachine {
        MoveMachine {
            cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: 10.0 },
            submit_ns: 0.0,
            channels: vec![ChannelModel::affine(1_000.0, 30.0)],
            ceiling_bytes_per_ns: ceiling,
            sharing,
        }
    }

    fn parts(first: f64) -> [f64; CHANNELS_MAX] {
        let mut parts = [0.0; CHANNELS_MAX];
        parts[0] = first;
        parts
    }

    #[test]
    fn engines_alone_take_their_affine_time() {
        let machine = machine(1e9, BandwidthSharing::Proportional);
        let times = machine.times(10_000.0, &parts(30_000.0), &[]);
        assert!((times.cpu - 1_000.0).abs() < 1e-6);
        assert!((times.channels[0] - 2_000.0).abs() < 1e-6);
        assert!((times.end() - 2_000.0).abs() < 1e-6);
    }

    #[test]
    fn ceiling_slows_engines_only_while_both_move() {
        // The CPU moves 10,000 bytes before the channel begins; then both share 20 bytes a ns, 5 and 15.
        let times = machine(20.0, BandwidthSharing::Proportional).times(20_000.0, &parts(30_000.0), &[]);
        assert!((times.cpu - 3_000.0).abs() < 1.0, "{times:?}");
        assert!((times.channels[0] - 3_000.0).abs() < 1.0, "{times:?}");
        // By max-min both have 10.
        let times = machine(20.0, BandwidthSharing::MaxMin).times(20_000.0, &parts(10_000.0), &[]);
        assert!((times.cpu - 2_000.0).abs() < 1.0, "{times:?}");
        assert!((times.channels[0] - 2_000.0).abs() < 1.0, "{times:?}");
        // A slow engine keeps its rate.
        let times = machine(32.0, BandwidthSharing::MaxMin).times(20_000.0, &parts(22_000.0), &[]);
        assert!((times.cpu - 2_000.0).abs() < 1.0, "{times:?}");
        assert!((times.channels[0] - 2_000.0).abs() < 1.0, "{times:?}");
    }

    #[test]
    fn jobs_in_flight_are_served_first_or_beside_by_further_engines() {
        let mut machine = machine(1e9, BandwidthSharing::Proportional);
        let load = [ChannelLoad { jobs: 1, bytes: 60_000 }];
        let times = machine.times(0.0, &parts(30_000.0), &load);
        assert!((times.channels[0] - 3_000.0).abs() < 1.0, "{times:?}");
        // From 1,000 ns on the part and the 30,000 bytes that are left of the job share the channel.
        machine.channels[0].engines = 2;
        let times = machine.times(0.0, &parts(15_000.0), &load);
        assert!((times.channels[0] - 2_000.0).abs() < 1.0, "{times:?}");
    }
}
