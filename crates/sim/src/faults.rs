//! What goes wrong, and when: all of it from a seed.
//!
//! In: a random stream. Out: a [`FaultPlan`] for one boot (when the power is cut, which die is slow) and a
//! [`DamagePlan`] for the moment after (what becomes of each operation that was not durable). Invariant: damage never
//! reaches what the medium promised to keep; how far it reaches is decided in [`crate::flash::Flash::cut`] alone.

use crate::timeline::SlowDie;
use headwater_converged::media::Geometry;
use headwater_host::clock::Nanos;

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not in this boot.
    Never,
    /// At the n-th point from now, from 1. Every accepted operation is a point (it is in flight when the power goes)
    /// and every finished one (it is durable as far as it ever will be, and its answer never arrives).
    Point(u64),
    /// At a time: everything due by then has happened.
    Time(Nanos),
}

/// What becomes of an operation that was not durable when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It happened after all.
    Whole,
    /// It never happened.
    Lost,
    /// It happened in part.
    Torn,
}

/// How bad a power cut is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagePlan {
    /// Share of operations that happened after all, of 100.
    pub whole_percent: u8,
    /// Share of operations that happened in part, of 100.
    pub torn_percent: u8,
    /// Share of torn programs that damage each neighbour in reach, of 100.
    pub neighbour_percent: u8,
    /// Share of torn programs whose page cannot be read back at all, of 100.
    pub unreadable_percent: u8,
}

impl DamagePlan {
    /// Everything not durable is lost and nothing is torn: the kindest cut.
    pub const CLEAN: Self =
        Self { whole_percent: 0, torn_percent: 0, neighbour_percent: 0, unreadable_percent: 0 };

    /// A plan drawn from a random stream: mild ones, harsh ones and the corners.
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

    /// The fate of one operation.
    #[must_use]
    pub fn fate(&self, rng: &mut fastrand::Rng) -> Fate {
        let roll = rng.u8(0..100);
        if roll < self.whole_percent {
            Fate::Whole
        } else if roll < self.whole_percent.saturating_add(self.torn_percent) {
            Fate::Torn
        } else {
            Fate::Lost
        }
    }
}

/// The faults of one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// When the power goes.
    pub cut: Cut,
    /// A die that is slower than the others.
    pub slow_die: Option<SlowDie>,
    /// What the cut does.
    pub damage: DamagePlan,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub const NONE: Self = Self { cut: Cut::Never, slow_die: None, damage: DamagePlan::CLEAN };

    /// A plan drawn from a random stream. The cut falls within `points_max` points, early ones as likely as late ones
    /// by order of magnitude, so that recovery is cut as often as service.
    #[must_use]
    pub fn draw(rng: &mut fastrand::Rng, points_max: u64, geometry: Geometry) -> Self {
        let magnitude = rng.u32(3..=points_max.max(8).ilog2());
        let reach = (2_u64 << magnitude).min(points_max.max(1));
        let slow_die = rng.u8(0..8) == 0;
        Self {
            cut: Cut::Point(rng.u64(1..=reach)),
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
            FaultPlan::draw(&mut rng, 5_000, Geometry::with_blocks(16))
        };
        assert!((0..64).all(|seed| draw(seed) == draw(seed)));
        assert!((1..64).any(|seed| draw(seed) != draw(0)));
    }

    #[test]
    fn a_cut_falls_within_reach() {
        for seed in 0..1_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let plan = FaultPlan::draw(&mut rng, 300, Geometry::with_blocks(16));
            assert!(
                matches!(plan.cut, Cut::Point(point) if (1..=300).contains(&point)),
                "seed {seed}: {plan:?}"
            );
        }
    }

    #[test]
    fn clean_damage_loses_and_nothing_else() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1_000).all(|_| DamagePlan::CLEAN.fate(&mut rng) == Fate::Lost));
    }
}
