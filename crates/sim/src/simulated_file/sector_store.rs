//! The bytes of a simulated file: physical sectors that are shared between copies until one of them changes.
//!
//! Input: ranges of bytes. Output: bytes, and ranges that cannot be read. Invariant: a copy never changes with its
//! original.

use headwater_host::copy::is_zero;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a disk writes at once, internally.
pub const PHYSICAL_SECTOR_BYTES: u64 = 4_096;
/// Bytes that a transfer may consist of.
pub const SECTOR_BYTES: u64 = 512;

const PHYSICAL: usize = 4_096;

type PhysicalSector = Arc<[u8; PHYSICAL]>;

/// The bytes of a file at one moment. What was never written is zero.
#[derive(Clone, Debug)]
pub(super) struct SectorStore {
    sectors: Vec<Option<PhysicalSector>>,
    length: u64,
    /// Sectors of 512 bytes, by number, that no read can return, each with the kernel's error number.
    unreadable: BTreeMap<u64, i32>,
}

impl SectorStore {
    /// Creates a store of `length` zeros.
    #[must_use]
    pub(super) fn zeroed(length: u64) -> Self {
        let sectors = usize::try_from(length.div_ceil(PHYSICAL_SECTOR_BYTES)).unwrap_or(usize::MAX);
        Self { sectors: vec![None; sectors], length, unreadable: BTreeMap::new() }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Cuts the file off.
    pub(super) fn truncate(&mut self, length: u64) {
        self.length = self.length.min(length);
    }

    /// Copies the bytes from `offset`, as far as the file reaches. Returns their number.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let whole = self.length.saturating_sub(offset).min(bytes.len() as u64);
        let whole = usize::try_from(whole).unwrap_or(0);
        for (sector, within, part) in parts(offset, whole) {
            match self.sectors.get(sector).and_then(Option::as_ref) {
                Some(found) => bytes[part].copy_from_slice(&found[within]),
                None => bytes[part].fill(0),
            }
        }
        whole
    }

    /// Returns the bytes of a range, which must lie within the file.
    #[must_use]
    pub(super) fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)];
        self.read(range.start, &mut bytes);
        bytes
    }

    /// Writes bytes, as far as the file reaches. A sector that was unreadable can be read again.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let whole = self.length.saturating_sub(offset).min(bytes.len() as u64);
        for (sector, within, part) in parts(offset, usize::try_from(whole).unwrap_or(0)) {
            let (found, bytes) = (&mut self.sectors[sector], &bytes[part]);
            match found {
                Some(image) => Arc::make_mut(image)[within].copy_from_slice(bytes),
                // Zeros over zeros, which a file gets before its first use, need no memory.
                None if is_zero(bytes) => {}
                None => {
                    let mut image = [0; PHYSICAL];
                    image[within].copy_from_slice(bytes);
                    *found = Some(Arc::new(image));
                }
            }
        }
        if !self.unreadable.is_empty() {
            let sectors = offset / SECTOR_BYTES..(offset + whole).div_ceil(SECTOR_BYTES);
            self.unreadable.retain(|sector, _| !sectors.contains(sector));
        }
    }

    /// Makes the sectors of a range unreadable until they are written.
    pub(super) fn make_unreadable(&mut self, range: Range<u64>, errno: i32) {
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        self.unreadable.extend(sectors.map(|sector| (sector, errno)));
    }

    /// Returns the error of a read of a range, if it has one.
    #[must_use]
    pub(super) fn read_error(&self, range: Range<u64>) -> Option<i32> {
        let sectors = range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES);
        self.unreadable.range(sectors).next().map(|(_, &errno)| errno)
    }
}

/// Cuts a range of the file at the borders of physical sectors: the sector, the range in it, the range in the bytes.
fn parts(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = start.saturating_add(bytes);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (sector, within) = (at / PHYSICAL, at % PHYSICAL);
        let length = (PHYSICAL - within).min(end - at);
        let part = at - start..at - start + length;
        at += length;
        Some((sector, within..within + length, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_and_reads_end_with_the_file() {
        let mut store = SectorStore::zeroed(10_000);
        store.write(4_000, &[7; 300]);
        let copy = store.clone();
        store.write(4_090, &[9; 10]);
        assert_eq!(copy.bytes(4_088..4_102), [7; 14]);
        assert_eq!(store.bytes(4_088..4_102), [7, 7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 7, 7]);
        let mut tail = [1; 20];
        assert_eq!(store.read(9_990, &mut tail), 10);
        assert_eq!(tail[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        store.truncate(9_995);
        assert_eq!(store.read(9_990, &mut tail), 5);
        store.write(9_990, &[3; 20]);
        assert_eq!(store.bytes(9_989..9_995), [0, 3, 3, 3, 3, 3]);
    }

    #[test]
    fn an_unreadable_sector_is_readable_after_a_write() {
        let mut store = SectorStore::zeroed(10_000);
        store.make_unreadable(600..1_100, 61);
        assert_eq!(store.read_error(0..512), None);
        assert_eq!(store.read_error(0..513), Some(61));
        assert_eq!(store.read_error(1_500..1_600), Some(61));
        store.write(512, &[0; 512]);
        assert_eq!(store.read_error(0..1_024), None);
        assert_eq!(store.read_error(1_024..1_025), Some(61));
    }
}
