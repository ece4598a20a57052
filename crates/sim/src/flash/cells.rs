//! The commit cells of simulated flash: overwritten in place, volatile until a flush.
//!
//! Input: writes of cells. Output: the bytes that a read returns, and those that a power cut leaves. Invariant: a durable
//! cell changes only by a flush or by a power cut, which decides on each write separately.

use super::{CELLS, FlashChange, SECTOR_BYTES, SimFlash};
use headwater_ssd::media::{CELL_BYTES, CellNumber};
use std::sync::Arc;

/// The bytes of one cell.
pub(super) type CellImage = Arc<[u8; CELL_BYTES]>;

/// All cells of one medium.
#[derive(Clone, Debug)]
pub(super) struct CellImages {
    visible: Vec<CellImage>,
    durable: Vec<CellImage>,
}

impl CellImages {
    pub(super) fn zeroed() -> Self {
        // They share their zeros until they are written.
        let zeros = Arc::new([0; CELL_BYTES]);
        let cells = vec![zeros; usize::from(CELLS.0 + CELLS.1)];
        Self { visible: cells.clone(), durable: cells }
    }

    pub(super) fn finish(&mut self, cell: CellNumber, image: &CellImage) {
        self.visible[usize::from(cell.0)] = Arc::clone(image);
    }

    pub(super) fn keep(&mut self, cell: CellNumber, image: &CellImage) {
        self.durable[usize::from(cell.0)] = Arc::clone(image);
    }

    pub(super) fn lose_cache(&mut self) {
        self.visible.clone_from(&self.durable);
    }

    /// Leaves a cell of which only some sectors arrived, some of them as garbage; at least one did not arrive whole.
    pub(super) fn tear(&mut self, rng: &mut fastrand::Rng, cell: CellNumber, image: &CellImage) {
        let torn = Arc::make_mut(&mut self.durable[usize::from(cell.0)]);
        let surely_missing = rng.usize(0..CELL_BYTES / SECTOR_BYTES);
        let sectors = torn.chunks_exact_mut(SECTOR_BYTES).zip(image.chunks_exact(SECTOR_BYTES));
        for (number, (old, new)) in sectors.enumerate() {
            if number != surely_missing && rng.bool() {
                old.copy_from_slice(new);
                continue;
            }
            match rng.u8(0..4) {
                0 => rng.fill(old),
                1 => old.fill(0),
                _ => {}
            }
        }
    }

    /// Returns the cells that are durable with other bytes than at an earlier moment.
    pub(super) fn changed_since(&self, earlier: &Self) -> Vec<CellNumber> {
        let cells = (0..).zip(self.durable.iter().zip(&earlier.durable));
        cells.filter(|(_, (now, then))| now != then).map(|(cell, _)| CellNumber(cell)).collect()
    }

    pub(super) fn restore(&mut self, cell: CellNumber, earlier: &Self) {
        let image = &earlier.durable[usize::from(cell.0)];
        self.keep(cell, image);
        self.finish(cell, image);
    }
}

impl SimFlash {
    /// Returns a cell as a read sees it now; `None` if there is no such cell.
    #[must_use]
    pub fn cell(&self, cell: CellNumber) -> Option<&[u8; CELL_BYTES]> {
        self.cells.visible.get(usize::from(cell.0)).map(|image| &**image)
    }

    /// Returns a cell as a power cut leaves it at least; `None` if there is no such cell.
    #[must_use]
    pub fn durable_cell(&self, cell: CellNumber) -> Option<&[u8; CELL_BYTES]> {
        self.cells.durable.get(usize::from(cell.0)).map(|image| &**image)
    }

    /// Accepts the write of a cell, which must exist.
    pub fn begin_cell(&mut self, id: u64, cell: CellNumber, bytes: [u8; CELL_BYTES]) {
        self.begin(id, FlashChange::Cell { cell, image: Arc::new(bytes) });
    }

    /// Changes the bytes of a cell, durably. Returns false if there is no such cell.
    pub fn change_cell(&mut self, cell: CellNumber, change: impl FnOnce(&mut [u8; CELL_BYTES])) -> bool {
        let Some(mut image) = self.cells.visible.get(usize::from(cell.0)).cloned() else {
            return false;
        };
        change(Arc::make_mut(&mut image));
        self.cells.keep(cell, &image);
        self.cells.finish(cell, &image);
        true
    }
}
