//! Commit cells of a flash file: transfers of 4,096 bytes in front of the blocks and behind them.
//!
//! Input: reads and writes of cells. Output: their completions. Invariant: while a write of a cell is in flight no other
//! operation on the cell is accepted, because a file orders nothing.

use super::space_wait::SpaceWait;
use super::{FileMedia, FlashTransfer, TransferRing, transfer_error};
use crate::media::{
    CELL_BYTES, CellNumber, MediaError, MediaOp, MediaToken, MediumVersion, NandRule, PageState,
    RefusalReason, RefusedOp,
};
use headwater_dma::frame::MediaFrame;
use headwater_host::copy::copy;
use headwater_host::mapped_region::{SECTOR_BYTES, SectorBuffer};
use headwater_host::uring::FileTransfer;
use std::collections::VecDeque;

/// The direction of a transfer of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellAccess {
    Read,
    Write,
}

/// An operation on a cell.
#[derive(Debug)]
pub(super) struct CellOperation {
    token: MediaToken,
    cell: CellNumber,
    access: CellAccess,
    frame: MediaFrame,
}

impl CellOperation {
    fn into_op(self) -> MediaOp {
        let Self { cell, frame, .. } = self;
        match self.access {
            CellAccess::Read => MediaOp::ReadCell { cell, frame },
            CellAccess::Write => MediaOp::WriteCell { cell, frame },
        }
    }
}

/// The operations on cells that wait for the next poll, and those in flight.
#[derive(Debug, Default)]
pub(super) struct CellOperations {
    waiting: VecDeque<CellOperation>,
    /// Cells with an operation that has not completed.
    busy: Vec<(CellNumber, CellAccess)>,
    spare_buffers: Vec<SectorBuffer>,
}

impl CellOperations {
    /// Returns true if an operation waits.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Queues writes that found no space, for another attempt. Their cells stayed busy.
    pub(super) fn put_back(&mut self, again: Vec<CellOperation>) {
        self.waiting.extend(again);
    }

    /// Returns true if the operation could overtake, or be overtaken by, another one on its cell.
    fn is_racing(&self, cell: CellNumber, access: CellAccess) -> bool {
        self.busy
            .iter()
            .any(|&(busy, other)| busy == cell && (access == CellAccess::Write || other == CellAccess::Write))
    }
}

impl<R: TransferRing> FileMedia<R> {
    pub(super) fn accept_cell(
        &mut self,
        token: MediaToken,
        (cell, access): (CellNumber, CellAccess),
        frame: MediaFrame,
    ) -> Result<(), RefusedOp> {
        let operation = CellOperation { token, cell, access, frame };
        let refused = |operation: CellOperation, reason| RefusedOp { op: operation.into_op(), reason };
        if access == CellAccess::Write
            && let Err(rule) = self.rules.write_cell()
        {
            return Err(refused(operation, RefusalReason::Rule(rule)));
        }
        if self.layout.cell_offset(cell).is_none() || self.version() == MediumVersion::One {
            return Err(refused(operation, RefusalReason::Rule(NandRule::OutsideGeometry)));
        }
        if self.cells.is_racing(cell, access) {
            return Err(refused(operation, RefusalReason::QueueFull));
        }
        self.in_flight += 1;
        self.cells.busy.push((cell, access));
        self.cells.waiting.push_back(operation);
        Ok(())
    }

    pub(super) fn start_cells(&mut self) {
        while self.ring.room() > 0
            && let Some(operation) = self.cells.waiting.pop_front()
        {
            // An accepted operation names a cell that exists.
            let offset = self.layout.cell_offset(operation.cell).unwrap_or(u64::MAX);
            let new = || SectorBuffer::zeroed(CELL_BYTES / SECTOR_BYTES);
            let mut buffer = self.cells.spare_buffers.pop().unwrap_or_else(new);
            let transfer = match operation.access {
                CellAccess::Read => FileTransfer::Read { offset, buffers: vec![buffer] },
                CellAccess::Write => {
                    copy(&mut buffer, &operation.frame[..CELL_BYTES]);
                    FileTransfer::Write { offset, buffers: vec![buffer] }
                }
            };
            self.submit_transfer(FlashTransfer::Cell(operation), transfer);
        }
    }

    pub(super) fn complete_cell(
        &mut self,
        operation: CellOperation,
        mut buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = transfer_error(result, &buffers);
        if let Some(errno) = failed.filter(|&errno| SpaceWait::is_lack(errno))
            && operation.access == CellAccess::Write
        {
            self.cells.spare_buffers.append(&mut buffers);
            self.space.refuse(MediaError::Cell { errno, cell: operation.cell }, self.now);
            self.space.hold_cell(operation);
            return;
        }
        let CellOperation { token, cell, access, mut frame } = operation;
        if failed.is_none() && access == CellAccess::Write {
            self.space.note_success();
        }
        if let Some(at) = self.cells.busy.iter().position(|&busy| busy == (cell, access)) {
            self.cells.busy.swap_remove(at);
        }
        if let Some(buffer) = buffers.pop() {
            if failed.is_none() && access == CellAccess::Read {
                copy(&mut frame[..CELL_BYTES], &buffer);
            }
            self.cells.spare_buffers.push(buffer);
        }
        let result = match failed {
            None => Ok(PageState::Programmed),
            Some(errno) => Err(MediaError::Cell { errno, cell }),
        };
        self.complete(token, Some(frame), result);
    }
}
