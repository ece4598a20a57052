//! Writes of commit cells on simulated flash.
//!
//! Input: the cell and its bytes. Output: a pending change of the flash, where the lies of the boot let it arrive.
//! Invariant: each accepted write is counted once towards a cut at a cell.

use super::SimMedia;
use headwater_ssd::media::{CELL_BYTES, CellNumber};

impl SimMedia {
    pub(super) fn begin_cell(&mut self, id: u64, cell: CellNumber, frame: &[u8]) {
        let Some(flash) = self.flash.as_mut() else { return };
        let held = |cell| flash.cell(cell).copied().unwrap_or([0; CELL_BYTES]);
        if let Some((cell, bytes)) = self.faults.cell_arrival(cell, frame, held) {
            flash.begin_cell(id, cell, bytes);
        }
    }

    /// Counts the write of a cell that was accepted, and cuts the power if it is the one.
    pub(super) fn pass_cell(&mut self) {
        self.cut_cell = self.cut_cell.map(|left| left - 1);
        if self.cut_cell == Some(0) {
            self.lose_power();
        }
    }
}
