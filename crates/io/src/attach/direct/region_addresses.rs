//! The translation of a session's addresses to the controller's addresses.
//!
//! Input: regions as they are registered and released. Output: the controller's address of a run. Invariant: a
//! translated run lies in one region that is registered at that time; a region that is gone, or that was registered
//! again elsewhere, is never translated to its old address.

use crate::error::SubmitError;
use headwater_dma::iova::{Iova, IovaRange};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NOT_REGISTERED: SubmitError = SubmitError::Unsupported {
    what: "a buffer lies outside the memory that this device's controller can access; allocate it from the device",
};

/// The address range of a registered region.
#[derive(Clone, Copy, Debug)]
struct RegionWindow {
    start: u64,
    end: u64,
    /// The controller's address of the first byte.
    device_address: u64,
}

/// The regions of a session.
#[derive(Debug, Default)]
pub(in crate::attach) struct RegionAddresses {
    /// Incremented by every change.
    generation: AtomicU64,
    windows: Mutex<Vec<RegionWindow>>,
}

impl RegionAddresses {
    fn lock(&self) -> MutexGuard<'_, Vec<RegionWindow>> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a region, or replaces the one with the same start.
    pub(in crate::attach) fn insert(&self, start: u64, bytes: u64, device: u64) {
        let mut windows = self.lock();
        windows.retain(|window| window.start != start);
        windows.push(RegionWindow { start, end: start.saturating_add(bytes), device_address: device });
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Removes a region.
    pub(in crate::attach) fn remove(&self, start: u64) {
        self.lock().retain(|window| window.start != start);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// A queue's copy of the regions, looked up without a lock.
#[derive(Debug)]
pub(super) struct AddressCache {
    shared: Arc<RegionAddresses>,
    seen: u64,
    windows: Vec<RegionWindow>,
    /// Index of the window that held the last run.
    last: usize,
}

impl AddressCache {
    pub(super) fn of(shared: &Arc<RegionAddresses>) -> Self {
        Self { shared: Arc::clone(shared), seen: 0, windows: Vec::new(), last: 0 }
    }

    /// Replaces the session's addresses with the controller's.
    #[inline]
    pub(super) fn translate(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        if self.shared.generation.load(Ordering::Acquire) != self.seen {
            self.refresh();
        }
        for run in runs {
            let (from, bytes) = (run.start.0, u64::from(run.bytes));
            let has = |window: &RegionWindow| {
                from >= window.start && from < window.end && bytes <= window.end - from
            };
            let window = match self.windows.get(self.last) {
                Some(window) if has(window) => window,
                _ => {
                    self.last = self.windows.iter().position(has).ok_or(NOT_REGISTERED)?;
                    &self.windows[self.last]
                }
            };
            run.start = Iova(window.device_address + (from - window.start));
        }
        Ok(())
    }

    #[cold]
    fn refresh(&mut self) {
        let windows = self.shared.lock();
        self.windows.clone_from(&windows);
        self.seen = self.shared.generation.load(Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(known: &mut AddressCache, start: u64, bytes: u32) -> Option<u64> {
        let mut runs = [IovaRange { start: Iova(start), bytes }];
        known.translate(&mut runs).ok()?;
        assert_eq!(runs[0].bytes, bytes);
        Some(runs[0].start.0)
    }

    #[test]
    fn a_run_is_translated_only_if_one_region_holds_all_of_it() {
        let shared = Arc::new(RegionAddresses::default());
        let known = &mut AddressCache::of(&shared);
        assert_eq!(translated(known, 0x1000, 1), None);
        shared.insert(0x1000, 0x1000, 0x9_0000);
        shared.insert(0x2000, 0x1000, 0x4_0000);
        assert_eq!(translated(known, 0x1FFF, 1), Some(0x9_0FFF));
        assert_eq!(translated(known, 0x2000, 0x1000), Some(0x4_0000));
        assert_eq!(translated(known, 0x1FFF, 2), None, "the controller's regions are not adjacent");
        assert_eq!(translated(known, 0x3000, 1), None);
        assert_eq!(translated(known, 0xFFF, 1), None);
        assert_eq!(translated(known, u64::MAX, 1), None);
    }

    #[test]
    fn a_region_registered_again_is_found_at_its_new_address_only() {
        let shared = Arc::new(RegionAddresses::default());
        let known = &mut AddressCache::of(&shared);
        shared.insert(0x1000, 0x1000, 0x9_0000);
        assert_eq!(translated(known, 0x1000, 8), Some(0x9_0000));
        shared.insert(0x1000, 0x1000, 0x7_0000);
        assert_eq!(translated(known, 0x1000, 8), Some(0x7_0000));
        shared.remove(0x1000);
        assert_eq!(translated(known, 0x1000, 8), None);
    }
}
