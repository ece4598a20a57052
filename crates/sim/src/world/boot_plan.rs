//! The faults of each boot of a world.
//!
//! Input: the configuration of the world and its random stream. Output: a [`FaultPlan`].
//! Invariant: a world without the settings of [`REUSE_SEEDS`](super::REUSE_SEEDS) draws nothing for them.

use super::SimWorld;
use super::config::{BootLength, MediumHonesty};
use crate::faults::{FaultPlan, PowerCut, RestingFault};
use crate::media::MediaBacking;
use crate::workload::FeatureUse;

/// Writes of commit cells until a cut that is counted in them.
const CELLS_MAX: u64 = 6;

impl<E> SimWorld<'_, E> {
    /// Draws the plan of a boot.
    pub(super) fn plan_boot(&mut self, boot: u32) -> FaultPlan {
        let config = &self.config;
        if let Some(plan) = config.plans.get(boot as usize) {
            return *plan;
        }
        let points_max = config.points_max;
        let plan = FaultPlan::draw(&mut self.rng, points_max, config.media.geometry);
        let mut plan = config.switches.restrict(plan);
        match config.boots {
            BootLength::Drawn => {}
            BootLength::HalfLong => {
                if self.rng.bool() {
                    plan.cut = PowerCut::Point(self.rng.u64(points_max / 4..=points_max));
                }
            }
            BootLength::Whole => plan.cut = PowerCut::Never,
        }
        if boot == config.faulty_boot {
            plan = match config.honesty {
                MediumHonesty::Honest => plan,
                MediumHonesty::Failing => plan.with_drawn_error(&mut self.rng, points_max),
                MediumHonesty::Lying => self.with_lie(plan),
            };
        }
        if self.config.switches.kills == FeatureUse::Some && !plan.has_lie() {
            plan.kill = self.rng.u8(0..4) == 0;
        }
        let loses_cells = self.config.switches.cell_losses == FeatureUse::Some && self.rng.u8(0..4) == 0;
        // An opening that was cut off wrote no new records: the loss of the other side behind it is a second fault. So is that
        // of one side where the medium lies, or lied before: it may have set the other copy back.
        let has_lied = self.config.honesty == MediumHonesty::Lying && boot >= self.config.faulty_boot;
        if loses_cells && plan.resting.is_none() && !self.has_lost_cells && !has_lied {
            self.has_lost_cells = true;
            plan.resting = Some(RestingFault::SideZeroed);
        }
        plan
    }

    fn with_lie(&mut self, plan: FaultPlan) -> FaultPlan {
        if self.config.switches.resting_faults == FeatureUse::Some && self.rng.u8(0..3) > 0 {
            return FaultPlan { resting: Some(RestingFault::draw_lie(&mut self.rng)), ..plan };
        }
        plan.with_drawn_lie(&mut self.rng, self.config.points_max)
    }

    /// Returns the moment of the cut of a boot that may be cut during recovery: in every other case at one of the first
    /// commit records, of which the first two are those of the opening.
    pub(super) fn early_cut(&mut self, cut: PowerCut) -> PowerCut {
        let on_cells = self.config.switches.cell_cuts == FeatureUse::Some
            && self.config.media.backing == MediaBacking::Flash;
        if on_cells && self.rng.bool() { PowerCut::Cell(self.rng.u64(1..=CELLS_MAX)) } else { cut }
    }
}
