//! The crash image: access to a simulated medium from outside, while a device owns it and after the device is gone.
//!
//! Input: what the medium records (points passed, misuse, loss of power) and, when it is dropped, its flash.
//! Output: the medium of the next boot.
//! Invariant: the flash of a medium can be taken once.

use super::{SimMedia, SimMediaConfig};
use crate::faults::{DamagePlan, PowerCut};
use crate::flash::SimFlash;
use headwater_host::clock::Nanos;
use headwater_ssd::media::{BlockId, NandRule, NandRules, PageAddress};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operation of the device that violates the rules of flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlashMisuse {
    /// A rule of NAND was broken.
    #[error("{rule} at {page}: fix the translation layer")]
    Rule {
        /// The rule.
        rule: NandRule,
        /// The page.
        page: PageAddress,
    },
    /// A block was erased while programs of it were in flight: their order is undefined.
    #[error("{block} erased while a program of it was in flight: fix the translation layer")]
    EraseRacesProgram {
        /// The block.
        block: BlockId,
    },
}

#[derive(Debug, Default)]
pub(super) struct MediumState {
    pub(super) power_lost: bool,
    pub(super) points: u64,
    pub(super) now: Nanos,
    pub(super) cut: Option<PowerCut>,
    pub(super) misuse: Option<FlashMisuse>,
    pub(super) flash: Option<SimFlash>,
}

/// A handle to a medium: reads its state while a device owns it, and holds its flash after the device is gone.
#[derive(Clone, Debug)]
pub struct CrashImage {
    pub(super) config: SimMediaConfig,
    pub(super) state: Arc<Mutex<MediumState>>,
}

impl CrashImage {
    /// Returns true if the power was cut.
    #[must_use]
    pub fn has_lost_power(&self) -> bool {
        self.lock().power_lost
    }

    /// Returns the number of points passed at which the power could have been cut (see [`PowerCut::Point`]).
    #[must_use]
    pub fn points(&self) -> u64 {
        self.lock().points
    }

    /// Returns the time of the last operation that was submitted or finished.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.lock().now
    }

    /// Sets the moment of the power cut, counted from the next submitted operation.
    pub fn arm(&self, cut: PowerCut) {
        self.lock().cut = Some(cut);
    }

    /// Returns the first operation that violated the rules of flash.
    #[must_use]
    pub fn misuse(&self) -> Option<FlashMisuse> {
        self.lock().misuse
    }

    /// Returns the medium as the next boot finds it after a power cut; `None` while a device still owns the medium, and
    /// after the first call.
    #[must_use]
    pub fn next_boot(&self, rng: &mut fastrand::Rng, damage: &DamagePlan) -> Option<SimMedia> {
        let mut flash = self.lock().flash.take()?;
        flash.power_cut(rng, damage, self.config.guard_pages);
        Some(SimMedia::with_flash(self.config, flash, NandRules::unknown(self.config.geometry)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MediumState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
