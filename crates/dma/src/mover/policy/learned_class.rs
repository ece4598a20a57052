//! The learned times of one class of work: an operation, a direction and a pair of nodes.
//!
//! Input: observations of engines. Output: the time of an engine, alone or beside other engines. Invariant: the time of an
//! engine in company is fitted apart from its time alone, so that a limit that engines share, such as the bandwidth of the
//! memory, shows in the rates of the company and nowhere else.

use super::MoveObservation;
use super::affine_fit::AffineFit;
use super::channel_traits::{CHANNELS_MAX, ChannelLoad, ChannelTraits};
use super::config::PolicyConfig;
use super::engine_mix::{COMPANIES, EngineTime, MIXES_MAX, company_of};
use super::work_shape::WorkShape;
use headwater_host::clock::Nanos;

/// The number of the CPU among the engines of a class; channels follow.
pub(super) const CPU: usize = 0;
/// Classes of the jobs in flight before a job: 1, 2 to 3, 4 and more.
const DEPTHS: usize = 3;
/// Share of an observation in the learned share of the queue.
const QUEUE_GAIN: f64 = 0.1;
/// A channel that was observed without a queue within so many decisions learns nothing but its queue from a job behind
/// the jobs of other callers: the length of the queue and the rate cannot be told apart.
const IDLE_WITHIN: u64 = 64;
const SIZE_CLASSES: usize = 65;
/// Share of an observation in the deviation of an engine, and the largest deviation that counts.
const DEVIATION_GAIN: f64 = 1.0 / 32.0;
const DEVIATION_MAX: f64 = 1.0;
/// A deadline leaves room for so many standard deviations.
const DEVIATIONS_OF_DOUBT: f64 = 3.0;
/// The square of the deviation of a channel that was never observed: its doubt is the whole expected time.
const SQUARE_UNSEEN: f64 = 1.0 / (DEVIATIONS_OF_DOUBT * DEVIATIONS_OF_DOUBT);

/// The affine time of an engine in a company.
#[derive(Clone, Copy, Debug)]
struct CurrentTime {
    fixed: f64,
    per_byte: f64,
    rate: f64,
}

impl CurrentTime {
    /// Returns the parameters of a fit. Only a CPU can begin before a shared limit applies.
    fn of(fit: &AffineFit, engine: usize) -> Self {
        let fixed = if engine == CPU { fit.fixed() } else { fit.fixed().max(0.0) };
        Self { fixed, per_byte: fit.per_byte(), rate: 1.0 / fit.per_byte() }
    }
}

/// The state of one class of work.
#[derive(Clone, Debug)]
pub(super) struct LearnedClass {
    pub(super) shape: WorkShape,
    /// One fit for each engine and company.
    fits: Vec<AffineFit>,
    /// The parameters that decisions use, one for each fit: its own, or those that stand in for it.
    current: Vec<CurrentTime>,
    /// The share of a channel's bytes in flight, beyond what it moves beside a new job, that it moves before that job.
    queue_share: Vec<[f64; DEPTHS]>,
    /// The mean square of the share by which the time of an engine deviates from what was expected.
    squares: [f64; CHANNELS_MAX + 1],
    /// The decision at which an engine was observed last.
    pub(super) engine_tick: [u64; CHANNELS_MAX + 1],
    /// The decision at which a channel without jobs in flight was observed last.
    idle_tick: [u64; CHANNELS_MAX + 1],
    /// The decision at which a way was taken last.
    pub(super) mix_tick: [u64; MIXES_MAX],
    /// The way that was taken last for a length, by its logarithm.
    pub(super) mix_of_size: [u8; SIZE_CLASSES],
    /// Decisions so far.
    pub(super) tick: u64,
    /// The decision that explored last.
    pub(super) explored_tick: u64,
    /// The time that exploration may cost, in times of the job that explores.
    pub(super) credit: f64,
}

impl LearnedClass {
    pub(super) fn new(shape: &WorkShape, channels: &[ChannelTraits], config: &PolicyConfig) -> Self {
        let mut fits = vec![AffineFit::new(0.0, 1.0 / config.cpu_bytes_per_ns); COMPANIES];
        for channel in channels {
            let is_far = |node| matches!((node, channel.node), (Some(node), Some(own)) if node != own);
            let nodes = [shape.source, shape.target];
            let distance = 1.0
                + nodes
                    .into_iter()
                    .filter(|node| is_far(*node))
                    .fold(0.0, |sum, _| sum + config.distance_share);
            let fixed = config.channel_fixed_ns * distance;
            fits.extend([AffineFit::new(fixed, distance / config.channel_bytes_per_ns); COMPANIES]);
        }
        let mut squares = [SQUARE_UNSEEN; CHANNELS_MAX + 1];
        squares[CPU] = 0.0;
        let current = fits.iter().enumerate().map(|(at, fit)| CurrentTime::of(fit, at / COMPANIES)).collect();
        Self {
            shape: *shape,
            fits,
            current,
            queue_share: vec![[1.0; DEPTHS]; channels.len()],
            squares,
            engine_tick: [0; CHANNELS_MAX + 1],
            idle_tick: [0; CHANNELS_MAX + 1],
            mix_tick: [0; MIXES_MAX],
            mix_of_size: [0; SIZE_CLASSES],
            tick: 0,
            explored_tick: 0,
            credit: 0.0,
        }
    }

    /// Returns the fit of an engine in a company; if that was never observed, the fit of the next smaller company, then
    /// of the next larger one.
    pub(super) fn fit(&self, engine: usize, company: usize) -> &AffineFit {
        let fits = &self.fits[engine * COMPANIES..(engine + 1) * COMPANIES];
        let smaller = fits[..=company].iter().rev().find(|fit| fit.seen > 0);
        smaller.or_else(|| fits[company..].iter().find(|fit| fit.seen > 0)).unwrap_or(&fits[0])
    }

    /// Returns the time of an engine for a part of about so many bytes.
    pub(super) fn time(&self, engine: usize, company: usize, load: ChannelLoad, part: f64) -> EngineTime {
        let current = &self.current[engine * COMPANIES + company];
        let queue =
            if load.jobs == 0 { 0.0 } else { self.queued_bytes(engine, load, part) * current.per_byte };
        EngineTime { start: current.fixed + queue, rate: current.rate }
    }

    /// Returns the bytes that a channel moves before it has moved a part: between those that a channel moves beside the
    /// part if it shares its rate equally, and all of those in flight, if it moves one job after another.
    fn queued_bytes(&self, engine: usize, load: ChannelLoad, part: f64) -> f64 {
        let (beside, all) = queue_bounds(load, part);
        beside + self.queue_share[engine - 1][depth_class(load.jobs)] * (all - beside)
    }

    /// Returns the share by which an engine may take longer than expected.
    pub(super) fn doubt(&self, engine: usize) -> f64 {
        // The square root is exact to the last bit on every machine.
        DEVIATIONS_OF_DOUBT * self.squares[engine].sqrt()
    }

    /// Returns the time of the CPU alone for so many bytes, with its doubt.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time of at least a nanosecond, whose conversion saturates"
    )]
    pub(super) fn cpu_time(&self, bytes: u64) -> Nanos {
        let expected = self.fit(CPU, 0).predict(as_float(bytes));
        Nanos((expected * (1.0 + self.doubt(CPU))) as u64)
    }

    /// Learns from an observation of an engine.
    pub(super) fn observe(&mut self, engine: usize, observation: &MoveObservation) {
        let company = company_of(observation.together);
        let index = engine * COMPANIES + company;
        if self.fits[index].seen == 0 {
            let from = *self.fit(engine, company);
            self.fits[index].inherit(&from);
            self.fits[index].last_tick = self.tick;
        }
        let (bytes, elapsed) = (as_float(observation.bytes), as_float(observation.elapsed.0.max(1)));
        let mut moved = bytes;
        if engine != CPU && observation.ahead.jobs > 0 {
            self.learn_queue(engine, index, observation);
            moved += self.queued_bytes(engine, observation.ahead, bytes);
        }
        if self.fits[index].seen > 0 {
            let seen = (elapsed / self.fits[index].predict(moved) - 1.0).abs().min(DEVIATION_MAX);
            self.squares[engine] += DEVIATION_GAIN * (seen * seen - self.squares[engine]);
        }
        if engine != CPU {
            if observation.ahead.jobs == 0 {
                self.idle_tick[engine] = self.tick;
            } else if self.fits[index].seen > 0 && self.tick - self.idle_tick[engine] < IDLE_WITHIN {
                self.engine_tick[engine] = self.tick;
                return;
            }
        }
        self.fits[index].observe(moved, elapsed, self.tick);
        self.engine_tick[engine] = self.tick;
        for company in 0..COMPANIES {
            self.current[engine * COMPANIES + company] = CurrentTime::of(self.fit(engine, company), engine);
        }
    }

    fn learn_queue(&mut self, engine: usize, index: usize, observation: &MoveObservation) {
        let fit = &self.fits[index];
        let alone = fit.predict(as_float(observation.bytes));
        let (beside, all) = queue_bounds(observation.ahead, as_float(observation.bytes));
        // A difference that is short beside the job itself says little.
        if (all - beside) * fit.per_byte() < 0.2 * alone {
            return;
        }
        let extra = (as_float(observation.elapsed.0) - alone) / fit.per_byte();
        let seen = ((extra - beside) / (all - beside)).clamp(-0.5, 1.5);
        let share = &mut self.queue_share[engine - 1][depth_class(observation.ahead.jobs)];
        *share = (*share + QUEUE_GAIN * (seen - *share)).clamp(0.0, 1.0);
    }
}

/// Returns the bytes in flight that a channel moves before the end of a part: if it shares its rate equally, and if it moves
/// one job after another.
fn queue_bounds(load: ChannelLoad, part: f64) -> (f64, f64) {
    let all = as_float(load.bytes);
    (all.min(as_float(load.jobs as u64) * part), all)
}

/// Returns the class of a length: its logarithm.
pub(super) const fn size_class(bytes: u64) -> usize {
    (u64::BITS - bytes.leading_zeros()) as usize
}

const fn depth_class(jobs: usize) -> usize {
    match jobs {
        0 | 1 => 0,
        2 | 3 => 1,
        _ => 2,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a length or a time, whose last bits do not matter")]
pub(super) const fn as_float(number: u64) -> f64 {
    number as f64
}
