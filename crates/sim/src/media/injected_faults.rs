//! The errors and the lie of one boot of simulated flash.
//!
//! Input: operations in the order of acceptance. Output: the error of each, and where a program arrives. Invariant:
//! without a plan every operation succeeds and every program arrives where it was sent.

use super::SimMedia;
use super::struck::{MediumPlace, StruckPlace};
use crate::faults::{FaultPlan, FaultyOperation, LyingProgram, OperationError, ProgramLie};
use crate::flash::{CELLS, PageImage, SECTOR_BYTES, SLOT_BYTES, SimFlash};
use headwater_ssd::media::{
    BlockId, CELL_BYTES, CellNumber, FlashGeometry, MediaOp, PAGES_PER_BLOCK, PageAddress,
};

/// The faults to come, and the operations so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InjectedFaults {
    error: Option<OperationError>,
    lie: Option<LyingProgram>,
    /// Number of operations so far, by [`FaultyOperation`].
    operations: [u64; 4],
}

impl InjectedFaults {
    /// Returns true if a program of this boot lies.
    pub(super) fn has_lie(&self) -> bool {
        self.lie.is_some()
    }

    /// Returns what the program that was counted last strikes if it lies: its own place, and the one where it arrives.
    pub(super) fn struck(&self, op: &MediaOp, flash: &SimFlash) -> Vec<StruckPlace> {
        let programs = self.operations[FaultyOperation::Program as usize];
        let Some(lie) = self.lie.filter(|lie| lie.nth == programs) else { return Vec::new() };
        let by = if let ProgramLie::Misdirected { pages } = lie.lie { Some(pages) } else { None };
        let strike = |place, wanted: &[u8]| StruckPlace { place, wanted: wanted.to_vec() };
        let mut struck = Vec::new();
        match op {
            MediaOp::Program { page, frame } => {
                struck.push(strike(MediumPlace::Page(*page), &frame[..SLOT_BYTES]));
                let other = by.and_then(|by| shifted_page(*page, by, flash.geometry()));
                let held = other.and_then(|other| Some((other, flash.page(other)?)));
                struck.extend(held.map(|(other, held)| strike(MediumPlace::Page(other), held.bytes())));
            }
            MediaOp::WriteCell { cell, frame } => {
                struck.push(strike(MediumPlace::Cell(*cell), &frame[..CELL_BYTES]));
                let other = by.and_then(|by| shifted_cell(*cell, by));
                let held = other.and_then(|other| Some((other, flash.cell(other)?)));
                struck.extend(held.map(|(other, held)| strike(MediumPlace::Cell(other), held)));
            }
            _ => {}
        }
        struck
    }

    /// Counts an operation and returns its error, if it has one.
    pub(super) fn strike(&mut self, op: &MediaOp, geometry: FlashGeometry) -> Option<i32> {
        let first = |block: BlockId| PageAddress::new(block, 0).index() as u64;
        let cell_range = |cell: CellNumber| {
            let index = first(BlockId(geometry.blocks)) + u64::from(cell.0);
            index..index + 1
        };
        let (operation, pages) = match op {
            MediaOp::Read { page, .. } => {
                (FaultyOperation::Read, page.index() as u64..page.index() as u64 + 1)
            }
            MediaOp::Program { page, .. } => {
                (FaultyOperation::Program, page.index() as u64..page.index() as u64 + 1)
            }
            MediaOp::Erase { block } => {
                (FaultyOperation::Erase, first(*block)..first(*block) + PAGES_PER_BLOCK as u64)
            }
            MediaOp::ReadCell { cell, .. } => (FaultyOperation::Read, cell_range(*cell)),
            MediaOp::WriteCell { cell, .. } => (FaultyOperation::Program, cell_range(*cell)),
            MediaOp::Flush => (FaultyOperation::Flush, 0..0),
        };
        let count = &mut self.operations[operation as usize];
        *count += 1;
        let error = self.error.as_mut().filter(|error| error.operation == operation)?;
        error.strike(*count, pages)
    }

    /// Returns where the program that was counted last arrives, and with which bytes; `None` if it never does.
    pub(super) fn arrival(
        &self,
        page: PageAddress,
        frame: &[u8],
        geometry: FlashGeometry,
    ) -> Option<(PageAddress, PageImage)> {
        let programs = self.operations[FaultyOperation::Program as usize];
        match self.lie.filter(|lie| lie.nth == programs).map(|lie| lie.lie) {
            None => Some((page, PageImage::from_frame(frame))),
            Some(ProgramLie::Lost) => None,
            Some(ProgramLie::Misdirected { pages }) => {
                shifted_page(page, pages, geometry).map(|page| (page, PageImage::from_frame(frame)))
            }
            Some(ProgramLie::Partly { sectors }) => {
                let mut bytes = frame[..SLOT_BYTES].to_vec();
                let arrived = (sectors as usize * SECTOR_BYTES).min(SLOT_BYTES);
                bytes[arrived..].fill(0xFF);
                Some((page, PageImage::from_frame(&bytes)))
            }
        }
    }

    /// Returns where the write of a cell that was counted last arrives, and with which bytes over those that `held`
    /// returns; `None` if it never does.
    pub(super) fn cell_arrival(
        &self,
        cell: CellNumber,
        frame: &[u8],
        held: impl FnOnce(CellNumber) -> [u8; CELL_BYTES],
    ) -> Option<(CellNumber, [u8; CELL_BYTES])> {
        let mut bytes = *frame.first_chunk::<CELL_BYTES>()?;
        let programs = self.operations[FaultyOperation::Program as usize];
        match self.lie.filter(|lie| lie.nth == programs).map(|lie| lie.lie) {
            None => Some((cell, bytes)),
            Some(ProgramLie::Lost) => None,
            Some(ProgramLie::Misdirected { pages }) => shifted_cell(cell, pages).map(|cell| (cell, bytes)),
            Some(ProgramLie::Partly { sectors }) => {
                let arrived = (sectors as usize * SECTOR_BYTES).min(CELL_BYTES);
                bytes[arrived..].copy_from_slice(&held(cell)[arrived..]);
                Some((cell, bytes))
            }
        }
    }
}

/// Returns the page this many pages further on, if the medium has it.
fn shifted_page(page: PageAddress, by: u32, geometry: FlashGeometry) -> Option<PageAddress> {
    let index = page.index() + by as usize;
    let block = BlockId(u32::try_from(index / PAGES_PER_BLOCK).ok()?);
    let page = PageAddress::new(block, u8::try_from(index % PAGES_PER_BLOCK).ok()?);
    geometry.contains(page).then_some(page)
}

/// Returns the cell this many cells further on, if the medium has it.
fn shifted_cell(cell: CellNumber, by: u32) -> Option<CellNumber> {
    let cell = u16::try_from(u32::from(cell.0) + by).ok()?;
    (cell < CELLS.0 + CELLS.1).then_some(CellNumber(cell))
}

impl SimMedia {
    /// Notes what an operation strikes that was just counted.
    pub(super) fn note_struck(&mut self, op: &MediaOp) {
        if let Some(flash) = self.flash.as_ref().filter(|_| self.faults.has_lie()) {
            self.crash_image.lock().struck.extend(self.faults.struck(op, flash));
        }
    }

    /// Sets the errors and the lie of this boot, counted from now.
    pub fn inject(&mut self, plan: &FaultPlan) {
        match &self.file {
            Some(file) => file.file().set_faults(plan.error, plan.lie),
            None => {
                self.faults = InjectedFaults { error: plan.error, lie: plan.lie, operations: [0; 4] };
            }
        }
        if plan.stale_page {
            self.crash_image.keep_moment(self.flash.as_ref());
        }
    }
}
