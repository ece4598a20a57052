//! The crash image: access to a simulated medium from outside, while a device owns it and after the device is gone.
//!
//! Input: what the medium records (points passed, misuse, loss of power) and, when it is dropped, its flash.
//! Output: the medium of the next boot.
//! Invariant: the flash of a medium can be taken once.

use super::file_backed::FileBacked;
use super::resting_fault::{restore_record, strike_file, strike_flash};
use super::struck::{RestingMedium, StruckPlace, places_in, unwitnessed_above};
use super::{MediaBacking, SimMedia, SimMediaConfig};
use crate::faults::{DamagePlan, PowerCut, RestingFault};
use crate::flash::{SimFlash, pages_of};
use crate::simulated_file::{FileDamage, FileMisuse, FileMoment, SimFile};
use headwater_host::clock::Nanos;
use headwater_ssd::command::Sequence;
use headwater_ssd::media::file::OpenAccess;
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, FlashGeometry, NandRule, NandRules, PageAddress};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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
    /// The file medium broke a rule of files.
    #[error(transparent)]
    File(#[from] FileMisuse),
}

/// The state that a medium and the handles to it share.
#[derive(Debug, Default)]
pub(super) struct SharedMedium {
    /// True if the power of flash was cut. What changes at every operation is not under the lock.
    power_lost: AtomicBool,
    points: AtomicU64,
    now: AtomicU64,
    /// True if a cut waits for the next operation.
    is_armed: AtomicBool,
    state: Mutex<MediumState>,
}

#[derive(Debug, Default)]
pub(super) struct MediumState {
    pub(super) cut: Option<PowerCut>,
    pub(super) misuse: Option<FlashMisuse>,
    pub(super) first_error: Option<Nanos>,
    pub(super) flash: Option<SimFlash>,
    /// The file, on a medium that is one; all else but the misuse is idle beside it.
    pub(super) file: Option<SimFile>,
    /// The medium at an earlier moment, from which the next boot finds one page or cell.
    earlier: Option<EarlierMoment>,
    /// The damage before the next boot.
    resting: Option<RestingFault>,
    /// The places that a lie of this boot struck.
    pub(super) struck: Vec<StruckPlace>,
    /// The sequence behind which the next boot may find acknowledged writes gone.
    unwitnessed_above: Option<Sequence>,
}

/// A medium at an earlier moment.
#[derive(Debug)]
enum EarlierMoment {
    Flash(SimFlash),
    File(FileMoment),
}

/// A handle to a medium: reads its state while a device owns it, and holds its flash after the device is gone.
#[derive(Clone, Debug)]
pub struct CrashImage {
    pub(super) config: SimMediaConfig,
    pub(super) state: Arc<SharedMedium>,
}

impl CrashImage {
    /// Returns true if the power was cut.
    #[must_use]
    pub fn has_lost_power(&self) -> bool {
        self.of_file(SimFile::has_lost_power).unwrap_or_else(|| self.state.power_lost.load(Relaxed))
    }

    /// Returns the number of points passed at which the power could have been cut (see [`PowerCut::Point`]).
    #[must_use]
    pub fn points(&self) -> u64 {
        self.of_file(SimFile::points).unwrap_or_else(|| self.state.points.load(Relaxed))
    }

    /// Returns the time of the last operation that was submitted or finished.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.of_file(SimFile::now).unwrap_or_else(|| Nanos(self.state.now.load(Relaxed)))
    }

    /// Returns the time of the first injected error.
    #[must_use]
    pub fn first_error(&self) -> Option<Nanos> {
        let state = self.lock();
        state.file.as_ref().map_or(state.first_error, SimFile::first_error)
    }

    /// Sets the moment of the power cut, counted from the next submitted operation.
    pub fn arm(&self, cut: PowerCut) {
        let mut state = self.lock();
        match &state.file {
            Some(file) => file.arm(cut),
            None => {
                state.cut = Some(cut);
                self.state.is_armed.store(true, Relaxed);
            }
        }
    }

    /// Returns the cut that waits for the next operation, once.
    pub(super) fn take_armed(&self) -> Option<PowerCut> {
        if !self.state.is_armed.load(Relaxed) {
            return None;
        }
        self.state.is_armed.store(false, Relaxed);
        self.lock().cut.take()
    }

    /// Notes that flash passed a point.
    pub(super) fn note_point(&self, points: u64, now: Nanos) {
        self.state.points.store(points, Relaxed);
        self.state.now.store(now.0, Relaxed);
    }

    /// Notes that the power of flash was cut.
    pub(super) fn note_power_lost(&self) {
        self.state.power_lost.store(true, Relaxed);
    }

    /// Returns something of the file, on a medium that is one.
    fn of_file<T>(&self, what: impl FnOnce(&SimFile) -> T) -> Option<T> {
        if self.config.backing != MediaBacking::File {
            return None;
        }
        self.lock().file.as_ref().map(what)
    }

    /// Returns the first operation that violated the rules of flash.
    #[must_use]
    pub fn misuse(&self) -> Option<FlashMisuse> {
        let state = self.lock();
        let of_file = state.file.as_ref().and_then(SimFile::misuse).map(FlashMisuse::from);
        state.misuse.or(of_file)
    }

    /// Returns the sequence behind which acknowledged writes may be gone without a word on the medium of the next boot: a
    /// lie struck the last commit before anything newer said that it was durable.
    #[must_use]
    pub fn unwitnessed_above(&self) -> Option<Sequence> {
        self.lock().unwitnessed_above
    }

    /// Returns the medium as the next boot finds it after a power cut; `None` while a device still owns the medium, and
    /// after the first call.
    #[must_use]
    pub fn next_boot(&self, rng: &mut fastrand::Rng, damage: &DamagePlan) -> Option<SimMedia> {
        let mut state = self.lock();
        if let Some(file) = state.file.take() {
            // A device refuses a file with sectors that cannot be read, until the operator accepts the loss. They are
            // faults of their own here, and a torn write leaves garbage.
            let damage = DamagePlan { unreadable_percent: 0, ..*damage };
            let geometry = self.config.geometry;
            let written = file.struck();
            let at_least = file.next_boot(&mut fastrand::Rng::with_seed(0), &DamagePlan::CLEAN);
            let file = file.next_boot(rng, &damage);
            let mut struck: Vec<_> =
                written.iter().flat_map(|(start, wanted)| places_in(geometry, *start, wanted)).collect();
            if let Some(EarlierMoment::File(moment)) = state.earlier.take() {
                struck.extend(restore_place(&file, moment, geometry, rng));
            }
            if let Some(fault) = state.resting.take() {
                struck.extend(strike_file(&file, geometry, fault, rng));
            }
            state.unwitnessed_above = unwitnessed_above(
                &struck,
                RestingMedium::File(&file, geometry),
                RestingMedium::File(&at_least, geometry),
            );
            let next = FileBacked::over(file, OpenAccess::ReadWrite);
            return Some(SimMedia::with_file(self.config, next));
        }
        let mut flash = state.flash.take()?;
        let (earlier, mut struck) = (state.earlier.take(), std::mem::take(&mut state.struck));
        let at_least = flash.clone();
        flash.power_cut(rng, damage, self.config.guard_pages);
        if let Some(EarlierMoment::Flash(earlier)) = earlier {
            struck.extend(match state.resting {
                Some(RestingFault::StaleRecord) => restore_record(&mut flash, &earlier, rng),
                _ => flash.restore_place(rng, &earlier),
            });
        }
        if let Some(fault) = state.resting.take() {
            struck.extend(strike_flash(&mut flash, fault, rng));
        }
        state.unwitnessed_above =
            unwitnessed_above(&struck, RestingMedium::Flash(&flash), RestingMedium::Flash(&at_least));
        drop(state);
        Some(SimMedia::with_flash(self.config, flash, NandRules::unknown(self.config.geometry)))
    }

    /// Returns the medium as the next boot finds it after the process was killed; `None` as for
    /// [`next_boot`](Self::next_boot).
    #[must_use]
    pub fn next_boot_after_kill(&self, rng: &mut fastrand::Rng) -> Option<SimMedia> {
        let mut state = self.lock();
        let (fault, geometry) = (state.resting.take(), self.config.geometry);
        if let Some(file) = state.file.take() {
            let file = file.after_kill(rng);
            let _ = fault.map(|fault| strike_file(&file, geometry, fault, rng));
            return Some(SimMedia::with_file(self.config, FileBacked::over(file, OpenAccess::ReadWrite)));
        }
        let mut flash = state.flash.take()?;
        drop(state);
        flash.kill(rng);
        let _ = fault.map(|fault| strike_flash(&mut flash, fault, rng));
        Some(SimMedia::with_flash(self.config, flash, NandRules::unknown(geometry)))
    }

    /// Returns for each side of the commit cells the latest epoch of which a record is durable there; `None` on a file, and
    /// while a device owns the medium.
    #[must_use]
    pub fn recorded_epochs(&self) -> Option<[u64; 2]> {
        Some(RestingMedium::Flash(self.lock().flash.as_ref()?).epochs())
    }

    /// Damages the medium before the next boot.
    pub fn strike_at_rest(&self, fault: RestingFault) {
        self.lock().resting = Some(fault);
    }

    /// Keeps the medium as it is now, so that the next boot finds one of its pages as it was.
    pub(super) fn keep_moment(&self, flash: Option<&SimFlash>) {
        let mut state = self.lock();
        state.earlier = match (&state.file, flash) {
            (Some(file), _) => Some(EarlierMoment::File(file.moment())),
            (None, Some(flash)) => Some(EarlierMoment::Flash(flash.clone())),
            (None, None) => None,
        };
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MediumState> {
        self.state.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets one slot or cell back that has changed since the moment, and returns what it held.
fn restore_place(
    file: &SimFile,
    moment: FileMoment,
    geometry: FlashGeometry,
    rng: &mut fastrand::Rng,
) -> Vec<StruckPlace> {
    let zones = FileZones::new(geometry);
    let slots =
        (0..geometry.blocks).map(BlockId).flat_map(pages_of).map(|page| zones.range(ZoneOwner::Slot(page)));
    let cells = zones.metadata().into_iter().filter(|owner| matches!(owner, ZoneOwner::Cell(_)));
    let places = slots.chain(cells.map(|cell| zones.range(cell)));
    let changed: Vec<_> =
        places.filter(|slot| moment.bytes(slot.clone()) != file.bytes(slot.clone())).collect();
    let Some(range) = rng.choice(changed) else { return Vec::new() };
    let held = places_in(geometry, range.start, &file.bytes(range.clone()));
    file.damage(&FileDamage::Restore { range, moment });
    held
}
