//! What can be seen of a simulated medium from outside, while a device owns it and when the device is gone.
//!
//! In: what the medium notes of itself (points passed, misuse, loss of power) and, when it is dropped, its flash. Out:
//! the next boot's medium. Invariant: the flash of a medium comes out once.

use super::{SimMedia, SimMediaConfig};
use crate::faults::{Cut, DamagePlan};
use crate::flash::Flash;
use headwater_converged::media::{BlockId, NandRule, NandRules, PageAddress};
use headwater_host::clock::Nanos;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the device asked of flash that flash cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A rule of NAND was broken.
    #[error("{rule} at {page}: fix the translation layer")]
    Rule {
        /// Which rule.
        rule: NandRule,
        /// Where.
        page: PageAddress,
    },
    /// A block was erased while programs of it were in flight: their order is undefined.
    #[error("{block} erased while a program of it was in flight: fix the translation layer")]
    EraseRacesProgram {
        /// Which block.
        block: BlockId,
    },
}

#[derive(Debug, Default)]
pub(super) struct Remains {
    pub(super) dead: bool,
    pub(super) points: u64,
    pub(super) now: Nanos,
    pub(super) cut: Option<Cut>,
    pub(super) misuse: Option<Misuse>,
    pub(super) flash: Option<Flash>,
}

/// What is left of a medium when its device is gone; also the way to look at the medium while the device owns it.
#[derive(Clone, Debug)]
pub struct Wreck {
    pub(super) config: SimMediaConfig,
    pub(super) remains: Arc<Mutex<Remains>>,
}

impl Wreck {
    /// Whether the power is gone.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Points passed at which the power could have been cut (see [`Cut::Point`]).
    #[must_use]
    pub fn points(&self) -> u64 {
        self.lock().points
    }

    /// Time of the last operation that was asked or finished.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.lock().now
    }

    /// Sets when the power goes, counted from the next operation that is asked.
    pub fn arm(&self, cut: Cut) {
        self.lock().cut = Some(cut);
    }

    /// The first thing that was asked and flash cannot do.
    #[must_use]
    pub fn misuse(&self) -> Option<Misuse> {
        self.lock().misuse
    }

    /// The medium as the next boot finds it after a power cut; `None` while a device still owns the medium, and after
    /// the first call.
    #[must_use]
    pub fn next_boot(&self, rng: &mut fastrand::Rng, damage: &DamagePlan) -> Option<SimMedia> {
        let mut flash = self.lock().flash.take()?;
        flash.cut(rng, damage, self.config.guard_pages);
        Some(SimMedia::with_flash(self.config, flash, NandRules::unknown(self.config.geometry)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Remains> {
        self.remains.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
