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

/// Buffers of cells that are kept for reuse.
const SPARE_BUFFERS: usize = 8;

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

    /// Notes that an operation completed.
    fn end(&mut self, cell: CellNumber, access: CellAccess) {
        if let Some(at) = self.busy.iter().position(|&busy| busy == (cell, access)) {
            self.busy.swap_remove(at);
        }
    }

    fn buffer(&mut self) -> SectorBuffer {
        self.spare_buffers.pop().unwrap_or_else(|| SectorBuffer::zeroed(CELL_BYTES / SECTOR_BYTES))
    }

    /// Keeps buffers for the next writes. An opening reads all cells at once, and needs more than it keeps.
    fn keep_buffers(&mut self, buffers: Vec<SectorBuffer>) {
        self.spare_buffers.extend(buffers);
        self.spare_buffers.truncate(SPARE_BUFFERS);
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
            match operation.access {
                CellAccess::Read => {
                    let run = self.take_run(operation);
                    self.start_cell_reads(run);
                }
                CellAccess::Write => {
                    let (offset, mut buffer) = (self.offset_of(&operation), self.cells.buffer());
                    copy(&mut buffer, &operation.frame[..CELL_BYTES]);
                    let transfer = FileTransfer::Write { offset, buffers: vec![buffer] };
                    self.submit_transfer(FlashTransfer::CellWrite(operation), transfer);
                }
            }
        }
    }

    /// Returns the offset of the cell of an accepted operation, which names a cell that exists.
    fn offset_of(&self, operation: &CellOperation) -> u64 {
        self.layout.cell_offset(operation.cell).unwrap_or(u64::MAX)
    }

    /// Returns a read with the waiting reads of the cells behind it, as far as they lie behind each other in the file.
    fn take_run(&mut self, first: CellOperation) -> Vec<CellOperation> {
        let mut end = self.offset_of(&first) + CELL_BYTES as u64;
        let mut run = vec![first];
        while let Some(next) = self.cells.waiting.front()
            && next.access == CellAccess::Read
            && self.offset_of(next) == end
        {
            end += CELL_BYTES as u64;
            run.extend(self.cells.waiting.pop_front());
        }
        run
    }

    fn start_cell_reads(&mut self, run: Vec<CellOperation>) {
        let offset = run.first().map_or(u64::MAX, |first| self.offset_of(first));
        let buffers = run.iter().map(|_| self.cells.buffer()).collect();
        self.submit_transfer(FlashTransfer::CellReads(run), FileTransfer::Read { offset, buffers });
    }

    pub(super) fn complete_cell_reads(
        &mut self,
        run: Vec<CellOperation>,
        buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = transfer_error(result, &buffers);
        if failed.is_some() && run.len() > 1 {
            // One unreadable cell must not fail its neighbours: each is read again alone.
            self.cells.keep_buffers(buffers);
            run.into_iter().for_each(|alone| self.start_cell_reads(vec![alone]));
            self.ring.kick();
            return;
        }
        for (CellOperation { token, cell, access, mut frame }, buffer) in run.into_iter().zip(&buffers) {
            if failed.is_none() {
                copy(&mut frame[..CELL_BYTES], buffer);
            }
            self.cells.end(cell, access);
            self.complete_cell(token, cell, frame, failed);
        }
        self.cells.keep_buffers(buffers);
    }

    pub(super) fn complete_cell_write(
        &mut self,
        operation: CellOperation,
        buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = transfer_error(result, &buffers);
        self.cells.keep_buffers(buffers);
        if let Some(errno) = failed.filter(|&errno| SpaceWait::is_lack(errno)) {
            self.space.refuse(MediaError::Cell { errno, cell: operation.cell }, self.now);
            self.space.hold_cell(operation);
            return;
        }
        if failed.is_none() {
            self.space.note_success();
        }
        let CellOperation { token, cell, access, frame } = operation;
        self.cells.end(cell, access);
        self.complete_cell(token, cell, frame, failed);
    }

    fn complete_cell(&mut self, token: MediaToken, cell: CellNumber, frame: MediaFrame, failed: Option<i32>) {
        let result = match failed {
            None => Ok(PageState::Programmed),
            Some(errno) => Err(MediaError::Cell { errno, cell }),
        };
        self.complete(token, Some(frame), result);
    }
}
