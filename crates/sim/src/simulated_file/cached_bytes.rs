//! The bytes of a simulated file behind a volatile cache: those that a read returns now, and those that a power cut
//! leaves.
//!
//! Input: writes in the order of acceptance, the finish and completion of each, and syncs. Output: bytes. Invariant:
//! durable bytes change only by [`CachedBytes::make_durable`], by a power cut and by damage; a cut affects only the
//! writes in between, and the rest of the physical sectors that they cover in part.

use super::sector_store::{PHYSICAL_SECTOR_BYTES, SECTOR_BYTES, SectorStore};
use crate::faults::{CutOutcome, DamagePlan};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// The kernel's number of an input/output error.
const EIO: i32 = 5;
/// Bytes of a sector.
const SECTOR: usize = 512;
const _: () = assert!(SECTOR as u64 == SECTOR_BYTES);

#[derive(Clone, Debug)]
struct PendingWrite {
    offset: u64,
    bytes: Arc<[u8]>,
    /// True if reads see it.
    finished: bool,
    completed: bool,
}

impl PendingWrite {
    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }
}

/// The bytes of one file.
#[derive(Clone, Debug)]
pub(super) struct CachedBytes {
    visible: SectorStore,
    durable: SectorStore,
    pending: BTreeMap<u64, PendingWrite>,
    /// Pending writes that are not completed to the caller.
    incomplete: BTreeSet<u64>,
}

impl CachedBytes {
    /// Creates a file of `length` zeros.
    #[must_use]
    pub(super) fn zeroed(length: u64) -> Self {
        Self::from_store(SectorStore::zeroed(length))
    }

    /// Creates a file whose bytes are all durable.
    #[must_use]
    pub(super) fn from_store(store: SectorStore) -> Self {
        Self { durable: store.clone(), visible: store, pending: BTreeMap::new(), incomplete: BTreeSet::new() }
    }

    /// Returns the bytes as a read sees them now.
    #[must_use]
    pub(super) fn visible(&self) -> &SectorStore {
        &self.visible
    }

    /// Changes the bytes behind the back of every cache, durably.
    pub(super) fn damage(&mut self, mut change: impl FnMut(&mut SectorStore)) {
        change(&mut self.visible);
        change(&mut self.durable);
    }

    /// Accepts a write. Ids increase.
    pub(super) fn begin(&mut self, id: u64, offset: u64, bytes: Arc<[u8]>) {
        self.pending.insert(id, PendingWrite { offset, bytes, finished: false, completed: false });
        self.incomplete.insert(id);
    }

    /// Returns true if a write that touches the range was accepted and is not completed: their order is undefined.
    #[must_use]
    pub(super) fn has_incomplete_write(&self, range: &Range<u64>) -> bool {
        let touches = |found: Range<u64>| found.start < range.end && range.start < found.end;
        let mut incomplete = self.incomplete.iter().filter_map(|id| self.pending.get(id));
        incomplete.any(|write| touches(write.range()))
    }

    /// Finishes a write: reads see it.
    pub(super) fn finish(&mut self, id: u64) {
        if let Some(write) = self.pending.get_mut(&id) {
            self.visible.write(write.offset, &write.bytes);
            write.finished = true;
        }
    }

    /// Fails a write: each of its sectors may have arrived or not.
    pub(super) fn fail(&mut self, id: u64, rng: &mut fastrand::Rng) {
        self.incomplete.remove(&id);
        if let Some(write) = self.pending.remove(&id) {
            for (offset, sector) in sectors(&write) {
                if rng.bool() {
                    self.damage(|store| store.write(offset, sector));
                }
            }
        }
    }

    /// Marks a write as completed to the caller: the next sync covers it.
    pub(super) fn complete_to_caller(&mut self, id: u64) {
        if let Some(write) = self.pending.get_mut(&id) {
            write.completed = true;
            self.incomplete.remove(&id);
        }
    }

    /// Returns the writes that a sync accepted now will cover.
    #[must_use]
    pub(super) fn covered_by_sync(&self) -> Vec<u64> {
        self.pending.iter().filter(|(_, write)| write.completed).map(|(&id, _)| id).collect()
    }

    /// Finishes a sync: the writes that it covers are durable.
    pub(super) fn make_durable(&mut self, covered: &[u64]) {
        for id in covered {
            if let Some(write) = self.pending.remove(id) {
                self.durable.write(write.offset, &write.bytes);
            }
        }
    }

    /// Fails a sync: each write that it covers is durable or dropped, reads see it either way, and no later sync covers
    /// it again, as with a page cache.
    pub(super) fn fail_sync(&mut self, covered: &[u64], rng: &mut fastrand::Rng) {
        for id in covered {
            if let Some(write) = self.pending.remove(id)
                && rng.bool()
            {
                self.durable.write(write.offset, &write.bytes);
            }
        }
    }

    /// Cuts the power: leaves the bytes that the next boot finds. The outcome of each write that was not durable is
    /// drawn separately; a torn one arrives by sectors, and may damage the rest of the physical sectors that it covers
    /// in part.
    pub(super) fn power_cut(&mut self, rng: &mut fastrand::Rng, damage: &DamagePlan) {
        self.incomplete.clear();
        for write in std::mem::take(&mut self.pending).into_values() {
            match damage.outcome(rng) {
                CutOutcome::Complete => self.durable.write(write.offset, &write.bytes),
                CutOutcome::Lost => {}
                CutOutcome::Torn => self.tear(&write, rng, damage),
            }
        }
        self.visible = self.durable.clone();
    }

    /// Kills the process: a write that was not completed to it happens or not; the rest stays as it is, and no sync
    /// covered them yet.
    pub(super) fn kill(&mut self, rng: &mut fastrand::Rng) {
        for id in std::mem::take(&mut self.incomplete) {
            // What reads see already is in the page cache, and the next sync covers it.
            let is_visible = self.pending.get(&id).is_some_and(|write| write.finished);
            if rng.bool() || is_visible {
                self.finish(id);
                self.complete_to_caller(id);
            } else {
                self.pending.remove(&id);
            }
        }
    }

    fn tear(&mut self, write: &PendingWrite, rng: &mut fastrand::Rng, damage: &DamagePlan) {
        for (offset, sector) in sectors(write) {
            match rng.u8(0..16) {
                0..8 => self.durable.write(offset, sector),
                8 => self.garble(rng, offset, damage.unreadable_percent),
                _ => {}
            }
        }
        let range = write.range();
        let first = range.start - range.start % PHYSICAL_SECTOR_BYTES;
        let last = range.end.next_multiple_of(PHYSICAL_SECTOR_BYTES);
        for neighbours in [first..range.start, range.end..last] {
            if neighbours.is_empty() || rng.u8(0..100) >= damage.neighbour_percent {
                continue;
            }
            let mut offset = neighbours.start;
            while offset < neighbours.end {
                if rng.bool() {
                    self.garble(rng, offset, damage.unreadable_percent);
                }
                offset += SECTOR_BYTES;
            }
        }
    }

    /// Destroys a sector: random bytes, zeros, or no bytes at all.
    fn garble(&mut self, rng: &mut fastrand::Rng, offset: u64, unreadable_percent: u8) {
        let mut sector = [0; SECTOR];
        if rng.bool() {
            rng.fill(&mut sector);
        }
        self.durable.write(offset, &sector);
        if rng.u8(0..100) < unreadable_percent {
            self.durable.make_unreadable(offset..offset + SECTOR_BYTES, EIO);
        }
    }
}

fn sectors(write: &PendingWrite) -> impl Iterator<Item = (u64, &[u8])> {
    let starts = (write.offset..).step_by(SECTOR);
    starts.zip(write.bytes.chunks(SECTOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARSH: DamagePlan = DamagePlan { torn_percent: 100, neighbour_percent: 100, ..DamagePlan::CLEAN };

    fn written(file: &mut CachedBytes, id: u64, offset: u64, byte: u8, sectors: usize) {
        file.begin(id, offset, vec![byte; sectors * 512].into());
        file.finish(id);
    }

    #[test]
    fn a_sync_covers_the_writes_that_were_completed_before_it_and_no_other() {
        let mut file = CachedBytes::zeroed(1 << 16);
        written(&mut file, 1, 0, 1, 1);
        file.complete_to_caller(1);
        written(&mut file, 2, 512, 2, 1);
        let covered = file.covered_by_sync();
        file.complete_to_caller(2);
        file.make_durable(&covered);
        assert_eq!(file.visible().bytes(511..513), [1, 2]);
        file.power_cut(&mut fastrand::Rng::with_seed(1), &DamagePlan::CLEAN);
        assert_eq!(file.visible().bytes(511..513), [1, 0]);
    }

    #[test]
    fn a_torn_write_arrives_by_sectors_and_damages_only_its_physical_sectors() {
        let (mut partly, mut neighbours) = (0, 0);
        for seed in 0..100 {
            let mut file = CachedBytes::zeroed(1 << 16);
            written(&mut file, 1, 0, 5, 128);
            file.complete_to_caller(1);
            file.make_durable(&[1]);
            // Nine sectors from the middle of the second physical sector on.
            written(&mut file, 2, 6_144, 9, 9);
            file.power_cut(&mut fastrand::Rng::with_seed(seed), &HARSH);
            let bytes = file.visible().bytes(0..1 << 16);
            assert!(bytes[..4_096].iter().chain(&bytes[12_288..]).all(|&byte| byte == 5), "seed {seed}");
            let arrived =
                bytes[6_144..10_752].chunks(512).filter(|sector| sector.iter().all(|&byte| byte == 9));
            partly += usize::from((1..9).contains(&arrived.count()));
            neighbours += usize::from(bytes[4_096..6_144].iter().any(|&byte| byte != 5));
        }
        assert!(partly > 90 && neighbours > 80, "{partly} {neighbours}");
    }

    #[test]
    fn a_write_under_a_failed_sync_is_durable_or_lost_for_good() {
        let mut lost = 0;
        for seed in 0..64 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut file = CachedBytes::zeroed(4_096);
            written(&mut file, 1, 0, 5, 1);
            file.complete_to_caller(1);
            file.fail_sync(&[1], &mut rng);
            assert_eq!(file.visible().bytes(0..1), [5]);
            assert!(file.covered_by_sync().is_empty());
            file.power_cut(&mut rng, &DamagePlan { whole_percent: 100, ..DamagePlan::CLEAN });
            lost += usize::from(file.visible().bytes(0..1) == [0]);
        }
        assert!((10..54).contains(&lost), "{lost}");
    }
}
