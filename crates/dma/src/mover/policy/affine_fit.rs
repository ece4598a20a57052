//! The time of an engine as a fixed time and a time for each byte, fitted to observations.
//!
//! Input: a length, the time it took, and the number of the decision. Output: a prediction. Invariant: one or two
//! observations far from the prediction change nothing; a third one in the same sense is accepted at once. What was not
//! observed for long is uncertain, so that the next observation moves it far.
//!
//! The fit is a Kalman filter of two states, in relative terms: the errors of an engine are proportional to its time. It
//! uses addition, multiplication and division only, so that every machine computes the same.

/// Relative deviation of a single observation.
const NOISE_VARIANCE: f64 = 0.08 * 0.08;
/// Growth of the uncertainty with each decision.
const DRIFT_VARIANCE: f64 = 4e-6;
/// Uncertainty of an engine that was never observed: half of the prediction.
const START_VARIANCE: f64 = 0.25;
/// A difference beyond this share of the mean of prediction and observation needs two more in the same sense.
const DOUBT: f64 = 0.35;
/// The fixed time is uncertain by at least this, in ns.
const FIXED_SCALE_NANOS: f64 = 60.0;

/// The fitted time of one engine in one class of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct AffineFit {
    /// Nanoseconds that do not depend on the length. Negative for a CPU that begins before a shared limit applies.
    fixed: f64,
    /// Nanoseconds for each byte.
    per_byte: f64,
    /// Relative covariance: fixed, both, per byte.
    variance: [f64; 3],
    /// The ratios of the last observations to their predictions, while they are doubted; 0 for none.
    doubts: [f64; 2],
    pub(super) seen: u32,
    pub(super) last_tick: u64,
}

impl AffineFit {
    pub(super) const fn new(fixed: f64, per_byte: f64) -> Self {
        let variance = [START_VARIANCE, 0.0, START_VARIANCE];
        Self { fixed, per_byte, variance, doubts: [0.0; 2], seen: 0, last_tick: 0 }
    }

    pub(super) const fn fixed(&self) -> f64 {
        self.fixed
    }

    pub(super) const fn per_byte(&self) -> f64 {
        self.per_byte
    }

    pub(super) fn predict(&self, bytes: f64) -> f64 {
        let of_bytes = self.per_byte * bytes;
        (self.fixed + of_bytes).max(0.2 * of_bytes).max(1.0)
    }

    /// Takes the parameters of another fit, uncertain.
    pub(super) fn inherit(&mut self, from: &Self) {
        (self.fixed, self.per_byte) = (from.fixed, from.per_byte);
        self.variance = [START_VARIANCE, 0.0, START_VARIANCE];
    }

    /// Corrects the fit by an observation.
    pub(super) fn observe(&mut self, bytes: f64, elapsed: f64, tick: u64) {
        let predicted = self.predict(bytes);
        #[expect(clippy::cast_precision_loss, reason = "a count of decisions, used as a rough age")]
        let age = tick.saturating_sub(self.last_tick) as f64;
        for variance in [0, 2] {
            self.variance[variance] = (self.variance[variance] + DRIFT_VARIANCE * age).min(START_VARIANCE);
        }
        self.last_tick = tick;
        self.seen = self.seen.saturating_add(1);
        let ratio = elapsed / predicted;
        if are_near(ratio, 1.0) {
            self.doubts = [0.0; 2];
        } else {
            let has_same_sense = |doubted: &f64| *doubted > 0.0 && (*doubted > 1.0) == (ratio > 1.0);
            let is_confirmed = self.doubts.iter().all(has_same_sense);
            self.doubts = [ratio, self.doubts[0]];
            if !is_confirmed {
                return;
            }
            self.variance = [START_VARIANCE, 0.0, START_VARIANCE];
        }
        self.correct(bytes, predicted, ratio - 1.0);
    }

    fn correct(&mut self, bytes: f64, predicted: f64, error: f64) {
        let fixed_scale = self.fixed.abs().max(FIXED_SCALE_NANOS);
        let (of_fixed, of_bytes) = (fixed_scale / predicted, self.per_byte * bytes / predicted);
        let [fixed, both, slope] = self.variance;
        let (to_fixed, to_slope) = (fixed * of_fixed + both * of_bytes, both * of_fixed + slope * of_bytes);
        let total = NOISE_VARIANCE + of_fixed * to_fixed + of_bytes * to_slope;
        let (gain_fixed, gain_slope) = (to_fixed / total, to_slope / total);
        self.fixed += fixed_scale * gain_fixed * error;
        self.per_byte *= (1.0 + gain_slope * error).max(0.1);
        self.variance = [
            (fixed - gain_fixed * to_fixed).max(0.0),
            both - gain_fixed * to_slope,
            (slope - gain_slope * to_slope).max(0.0),
        ];
    }
}

/// Returns true if two ratios differ by no more than what is not doubted.
fn are_near(one: f64, other: f64) -> bool {
    2.0 * (one - other).abs() <= DOUBT * (one + other)
}
