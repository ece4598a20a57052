//! Doorbells of queues that a host creates: registers, or cells of the host's memory.
//!
//! Input: register writes, and the memory that Doorbell Buffer Config names (NVMe Base 2.0 section 5.8). Output: queues
//! that read their doorbells, or the error that an asynchronous event reports. Invariant: an invalid value stops only
//! the queue that it was written for.

use super::{QueueArbiter, find_mut};
use crate::controller::queue::QueueId;
use crate::ring::DoorbellCell;
use crate::ring::doorbell::DoorbellFault;
use headwater_host::ring_memory::RingMemory;

/// An invalid write to a doorbell register; the asynchronous event of the same name reports it (error status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Write to Invalid Doorbell Register (00h).
    #[error("the host wrote a doorbell of {0}, which does not exist; create the queue first")]
    NoQueue(QueueId),
    /// Invalid Doorbell Write Value (01h).
    #[error("{queue}: {fault}")]
    Value {
        /// The queue of the doorbell.
        queue: QueueId,
        /// The fault of the value.
        fault: DoorbellFault,
    },
}

/// Doorbell cells in host memory.
#[derive(Clone, Debug)]
pub struct DoorbellCells<M> {
    /// The doorbells.
    pub doorbells: M,
    /// The EventIdx of each doorbell, or `None` if the host writes its doorbells here and sends no notification (a
    /// doorbell page that is mapped into a guest): the controller cannot sleep then.
    pub events: Option<M>,
    /// Cells between two doorbells, as a power of two (CAP.DSTRD).
    pub stride_log2: u8,
}

/// The location of the doorbells of new queues.
#[derive(Debug)]
pub(crate) enum DoorbellSource<M> {
    Registers,
    Cells(DoorbellCells<M>),
}

impl<M: RingMemory + Clone> DoorbellSource<M> {
    /// Returns the cell of a submission queue's tail.
    pub(crate) fn submission(&self, id: QueueId) -> Option<DoorbellCell<M>> {
        self.cell(2 * usize::from(id.0))
    }

    /// Returns the cell of a completion queue's head.
    pub(crate) fn completion(&self, id: QueueId) -> Option<DoorbellCell<M>> {
        self.cell(2 * usize::from(id.0) + 1)
    }

    fn cell(&self, doorbell: usize) -> Option<DoorbellCell<M>> {
        let Self::Cells(cells) = self else {
            return None;
        };
        let cell = doorbell.checked_mul(1_usize.checked_shl(u32::from(cells.stride_log2))?)?;
        let inside = |memory: &M| cell < memory.cells();
        let all_inside = inside(&cells.doorbells) && cells.events.as_ref().is_none_or(inside);
        all_inside.then(|| DoorbellCell {
            doorbells: cells.doorbells.clone(),
            events: cells.events.clone(),
            cell,
        })
    }
}

impl<M: RingMemory> QueueArbiter<M> {
    /// Applies a write to the tail doorbell of a submission queue. If the doorbell lives in memory, the write only
    /// requests a poll of that memory.
    ///
    /// # Errors
    /// [`DoorbellError`], which the caller reports by an asynchronous event. The queue accepts no more commands.
    pub fn write_submission_doorbell(&mut self, queue: QueueId, value: u32) -> Result<(), DoorbellError> {
        let found = find_mut(&mut self.submissions, queue).ok_or(DoorbellError::NoQueue(queue))?;
        found.write_doorbell(value).map_err(|fault| DoorbellError::Value { queue, fault })
    }

    /// Applies a write to the head doorbell of a completion queue. If the doorbell lives in memory, the write only
    /// requests a poll of that memory.
    ///
    /// # Errors
    /// [`DoorbellError`], which the caller reports by an asynchronous event. Completions for the queue are discarded
    /// from then on.
    pub fn write_completion_doorbell(&mut self, queue: QueueId, value: u32) -> Result<(), DoorbellError> {
        let found = self.completion_mut(queue).ok_or(DoorbellError::NoQueue(queue))?;
        found.write_doorbell(value).map_err(|fault| DoorbellError::Value { queue, fault })
    }

    /// Returns a fault of a doorbell in memory, found while fetching or posting, to report like a fault of a register.
    /// Call it until it returns `None`.
    pub fn take_doorbell_error(&mut self) -> Option<DoorbellError> {
        let of = |queue, fault| DoorbellError::Value { queue, fault };
        let mut submissions = self.submissions.iter_mut().flatten();
        let fault = submissions.find_map(|queue| queue.take_fault().map(|fault| of(queue.id(), fault)));
        fault.or_else(|| {
            let mut completions = self.completions.iter_mut().flatten();
            completions.find_map(|queue| queue.take_fault().map(|fault| of(queue.id(), fault)))
        })
    }

    /// Executes Doorbell Buffer Config: existing and future I/O queues read their doorbells from these cells, which are
    /// initialised with the values written so far. The admin queue keeps its registers unless the cells are a mapped
    /// page, because hosts that also have registers write no cells for it. A queue whose cell lies outside the memory
    /// keeps its registers too.
    pub fn set_doorbell_cells(&mut self, cells: DoorbellCells<M>)
    where
        M: Clone,
    {
        let beside_registers = cells.events.is_some();
        let moves = |id| !(beside_registers && id == QueueId::ADMIN);
        self.doorbells = DoorbellSource::Cells(cells);
        for queue in self.submissions.iter_mut().flatten().filter(|queue| moves(queue.id())) {
            if let Some(cell) = self.doorbells.submission(queue.id()) {
                queue.set_doorbell_cell(cell);
            }
        }
        for queue in self.completions.iter_mut().flatten().filter(|queue| moves(queue.id())) {
            if let Some(cell) = self.doorbells.completion(queue.id()) {
                queue.set_doorbell_cell(cell);
            }
        }
    }
}
