//! Plans of the faults of each boot, drawn from a seed.
//!
//! Input: a random stream.
//! Output: a [`FaultPlan`] for one boot (when the power is cut, which die is slow) and a [`DamagePlan`] for the cut
//! (the outcome of each operation that was not durable).
//! Invariant: damage never reaches what the medium promised to keep; [`crate::flash::SimFlash::power_cut`] alone decides how far
//! it reaches.

use crate::timeline::SlowDie;
use headwater_host::clock::Nanos;
use headwater_ssd::media::FlashGeometry;

/// The moment of a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// Not in this boot.
    Never,
    /// At the n-th point from now, counted from 1. Every accepted operation is a point (the cut finds it in flight),
    /// and so is every finished one (it is as durable as it can become, and its completion never arrives).
    Point(u64),
    /// At a time; everything due by then has happened.
    Time(Nanos),
}

/// The outcome of an operation that was not durable when the power was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOutcome {
    /// The operation took effect completely.
    Complete,
    /// The operation took no effect.
    Lost,
    /// The operation took effect in part.
    Torn,
}

/// The damage that a power cut does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagePlan {
    /// Percentage of operations that take effect completely.
    pub whole_percent: u8,
    /// Percentage of operations that take effect in part.
    pub torn_percent: u8,
    /// Percentage of torn programs that damage each neighbour in reach.
    pub neighbour_percent: u8,
    /// Percentage of torn programs whose page cannot be read back at all.
    pub unreadable_percent: u8,
}

impl DamagePlan {
    /// The mildest cut: everything not durable is lost and nothing is torn.
    pub const CLEAN: Self =
        Self { whole_percent: 0, torn_percent: 0, neighbour_percent: 0, unreadable_percent: 0 };

    /// Draws a plan from a random stream: mild, harsh and extreme ones.
    #[must_use]
    pub fn draw(rng: &mut fastrand::Rng) -> Self {
        let (whole_percent, torn_percent) = match rng.u8(0..8) {
            0 => (0, 0),
            1 => (100, 0),
            2 => (0, 100),
            3 => (50, 0),
            _ => (33, 34),
        };
        Self {
            whole_percent,
            torn_percent,
            neighbour_percent: [0, 50, 100][rng.usize(0..3)],
            unreadable_percent: [0, 0, 25][rng.usize(0..3)],
        }
    }

    /// Draws the outcome of one operation.
    #[must_use]
    pub fn outcome(&self, rng: &mut fastrand::Rng) -> CutOutcome {
        let roll = rng.u8(0..100);
        if roll < self.whole_percent {
            CutOutcome::Complete
        } else if roll < self.whole_percent.saturating_add(self.torn_percent) {
            CutOutcome::Torn
        } else {
            CutOutcome::Lost
        }
    }
}

/// The faults of one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// The moment of the power cut.
    pub cut: PowerCut,
    /// A die that is slower than the rest.
    pub slow_die: Option<SlowDie>,
    /// The damage that the cut does.
    pub damage: DamagePlan,
}

impl FaultPlan {
    /// No faults.
    pub const NONE: Self = Self { cut: PowerCut::Never, slow_die: None, damage: DamagePlan::CLEAN };

    /// Draws a plan from a random stream. The cut falls within `points_max` points, spread evenly over orders of
    /// magnitude, so that recovery is cut as often as service.
    #[must_use]
    pub fn draw(rng: &mut fastrand::Rng, points_max: u64, geometry: FlashGeometry) -> Self {
        let magnitude = rng.u32(3..=points_max.max(8).ilog2());
        let reach = (2_u64 << magnitude).min(points_max.max(1));
        let slow_die = rng.u8(0..8) == 0;
        Self {
            cut: PowerCut::Point(rng.u64(1..=reach)),
            slow_die: slow_die.then(|| SlowDie { die: rng.u32(0..geometry.dies()), factor: rng.u32(2..=50) }),
            damage: DamagePlan::draw(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_plan() {
        let draw = |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            FaultPlan::draw(&mut rng, 5_000, FlashGeometry::with_blocks(16))
        };
        assert!((0..64).all(|seed| draw(seed) == draw(seed)));
        assert!((1..64).any(|seed| draw(seed) != draw(0)));
    }

    #[test]
    fn a_cut_falls_within_points_max() {
        for seed in 0..1_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let plan = FaultPlan::draw(&mut rng, 300, FlashGeometry::with_blocks(16));
            assert!(
                matches!(plan.cut, PowerCut::Point(point) if (1..=300).contains(&point)),
                "seed {seed}: {plan:?}"
            );
        }
    }

    #[test]
    fn clean_damage_loses_every_operation_and_tears_none() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1_000).all(|_| DamagePlan::CLEAN.outcome(&mut rng) == CutOutcome::Lost));
    }
}
