//! Plans of the faults of each boot, drawn from a seed.
//!
//! Input: a random stream.
//! Output: a [`FaultPlan`] for one boot (when the power is cut, which die is slow, which operations fail or lie) and a
//! [`DamagePlan`] for the cut (the outcome of each operation that was not durable).
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
    /// At the acceptance of the n-th write of a commit cell from now, counted from 1. Never on a file.
    Cell(u64),
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
    /// True if no erase is torn: one of a file writes nothing.
    pub whole_erases: bool,
}

impl DamagePlan {
    /// The mildest cut: everything not durable is lost and nothing is torn.
    pub const CLEAN: Self = Self {
        whole_percent: 0,
        torn_percent: 0,
        neighbour_percent: 0,
        unreadable_percent: 0,
        whole_erases: false,
    };

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
            whole_erases: false,
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

/// A kind of operation that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultyOperation {
    /// A read of a page or of a cell.
    Read,
    /// A program, or the write of a cell; on a file, a write.
    Program,
    /// An erase. A file has none: its erases write nothing.
    Erase,
    /// A flush; on a file, a sync.
    Flush,
}

/// The operations that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlace {
    /// The n-th operation of its kind, counted from 1, and those behind it.
    From(u64),
    /// Operations that touch a range: bytes of a file, or pages of flash by their index, and behind the pages its cells.
    /// Flushes touch none.
    Range {
        /// The first byte or page.
        start: u64,
        /// The byte or page behind the last.
        end: u64,
    },
}

/// Operations that fail with an error and have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationError {
    /// The kind.
    pub operation: FaultyOperation,
    /// Which operations of the kind.
    pub place: FaultPlace,
    /// The number of operations that fail; [`OperationError::STICKY`] for all of them.
    pub times: u32,
    /// The kernel's error number.
    pub errno: i32,
}

impl OperationError {
    /// The error lasts until the medium is replaced.
    pub const STICKY: u32 = u32::MAX;
    /// Error numbers of a disk: input/output error, no data available (a medium error), timed out.
    pub const ERRNOS: [i32; 3] = [5, 61, 110];

    /// Counts an operation of this kind, the `nth` of them, which touches `range`. Returns the error number if it
    /// fails.
    pub fn strike(&mut self, nth: u64, range: std::ops::Range<u64>) -> Option<i32> {
        let hit = match self.place {
            FaultPlace::From(first) => nth >= first,
            FaultPlace::Range { start, end } => start < range.end && range.start < end,
        };
        if !hit || self.times == 0 {
            return None;
        }
        if self.times != Self::STICKY {
            self.times -= 1;
        }
        Some(self.errno)
    }

    /// Draws an error: of any kind, transient or sticky, at one of the first `operations_max` operations.
    #[must_use]
    pub fn draw(rng: &mut fastrand::Rng, operations_max: u64) -> Self {
        use FaultyOperation::{Erase, Flush, Program, Read};
        let magnitude = rng.u32(0..=operations_max.max(1).ilog2());
        Self {
            operation: [Read, Read, Program, Erase, Flush][rng.usize(0..5)],
            place: FaultPlace::From(rng.u64(1..=1 << magnitude)),
            times: [1, 2, 5, Self::STICKY][rng.usize(0..4)],
            errno: Self::ERRNOS[rng.usize(0..Self::ERRNOS.len())],
        }
    }
}

/// The effect of a program that is answered as if it had succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramLie {
    /// It never arrives; the place keeps what it held.
    Lost,
    /// It arrives this many pages, or cells, further on instead. On a file, this many slots.
    Misdirected {
        /// Pages, at least 1.
        pages: u32,
    },
    /// Only its first sectors arrive.
    Partly {
        /// Sectors of 512 bytes that arrive.
        sectors: u32,
    },
}

/// A program that lies: one in a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LyingProgram {
    /// Which program, counted from 1. On a file, which write.
    pub nth: u64,
    /// Its effect.
    pub lie: ProgramLie,
}

impl LyingProgram {
    /// Draws a lie about one of the first `programs_max` programs.
    #[must_use]
    pub fn draw(rng: &mut fastrand::Rng, programs_max: u64) -> Self {
        let magnitude = rng.u32(0..=programs_max.max(1).ilog2());
        let lie = match rng.u8(0..3) {
            0 => ProgramLie::Lost,
            1 => ProgramLie::Misdirected { pages: rng.u32(1..200) },
            _ => ProgramLie::Partly { sectors: rng.u32(0..9) },
        };
        Self { nth: rng.u64(1..=1 << magnitude), lie }
    }
}

/// A fault of a medium at rest, behind a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestingFault {
    /// Bits of one page or cell flip.
    Flipped,
    /// One page or cell holds zeros.
    Zeroed,
    /// Every page of one block holds zeros.
    BlockZeroed,
    /// A bit of the spare of one page flips.
    SpareFlipped,
    /// Every page of the youngest block of a checkpoint and another page hold zeros: the index is built again from what is
    /// left.
    IndexAndPage,
    /// A page with the newest record of a key is as it was in the life of its block before, with an older record of the
    /// same key in the same place. On flash only, and only if the plan also sets a page back.
    StaleRecord,
    /// The commit cells of one side hold zeros. The other side holds the same, so that nothing may be missed.
    SideZeroed,
}

impl RestingFault {
    /// Draws a fault that may put keys in doubt.
    #[must_use]
    pub fn draw_lie(rng: &mut fastrand::Rng) -> Self {
        [Self::Flipped, Self::Flipped, Self::Zeroed, Self::BlockZeroed][rng.usize(0..4)]
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
    /// Operations that fail.
    pub error: Option<OperationError>,
    /// A program that lies.
    pub lie: Option<LyingProgram>,
    /// True if a programmed page is set back to an earlier moment before the next boot.
    pub stale_page: bool,
    /// Damage to the medium before the next boot.
    pub resting: Option<RestingFault>,
    /// True if the process is killed instead of the power cut: what it wrote stays in the cache of the medium.
    pub kill: bool,
}

impl FaultPlan {
    /// No faults.
    pub const NONE: Self = Self {
        cut: PowerCut::Never,
        slow_die: None,
        damage: DamagePlan::CLEAN,
        error: None,
        lie: None,
        stale_page: false,
        resting: None,
        kill: false,
    };

    /// Adds operations that fail to the plan.
    #[must_use]
    pub fn with_drawn_error(self, rng: &mut fastrand::Rng, operations_max: u64) -> Self {
        Self { error: Some(OperationError::draw(rng, operations_max)), ..self }
    }

    /// Adds one fault of a medium that lies, of any kind, to the plan.
    #[must_use]
    pub fn with_drawn_lie(mut self, rng: &mut fastrand::Rng, operations_max: u64) -> Self {
        match rng.u8(0..5) {
            0 | 1 => return self.with_drawn_error(rng, operations_max),
            2 | 3 => self.lie = Some(LyingProgram::draw(rng, operations_max)),
            _ => self.stale_page = true,
        }
        self
    }

    /// Returns true if the medium breaks its promises in this boot or behind it: an explicit error is then a right
    /// answer.
    #[must_use]
    pub fn has_lie(&self) -> bool {
        let rots = self.resting.is_some_and(|fault| fault != RestingFault::SideZeroed);
        self.error.is_some() || self.lie.is_some() || self.stale_page || rots
    }

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
            ..Self::NONE
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
    fn an_error_strikes_as_often_as_it_says_and_where_it_says() {
        let error = OperationError {
            operation: FaultyOperation::Read,
            place: FaultPlace::From(3),
            times: 2,
            errno: 61,
        };
        let struck = |mut error: OperationError| {
            (1..8).filter(|&nth| error.strike(nth, 10 * nth..10 * nth + 10).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(struck(error), [3, 4]);
        assert_eq!(struck(OperationError { times: OperationError::STICKY, ..error }), [3, 4, 5, 6, 7]);
        let place = FaultPlace::Range { start: 29, end: 41 };
        assert_eq!(struck(OperationError { place, times: OperationError::STICKY, ..error }), [2, 3, 4]);
        assert_eq!(struck(OperationError { place, times: 1, ..error }), [2]);
    }

    #[test]
    fn clean_damage_loses_every_operation_and_tears_none() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert!((0..1_000).all(|_| DamagePlan::CLEAN.outcome(&mut rng) == CutOutcome::Lost));
    }
}
