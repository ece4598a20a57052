//! Doorbells of queues that a host makes: registers, or cells of the host's memory.
//!
//! In: register writes, and the memory that Doorbell Buffer Config names (NVMe Base 2.0 section 5.8). Out: queues that
//! see their doorbells, or the error that an asynchronous event reports. Invariant: an impossible value stops the queue it
//! was written for and no other.

use super::{Arbiter, find_mut};
use crate::controller::queue::QueueId;
use crate::ring::DoorbellCell;
use crate::ring::doorbell::DoorbellFault;
use headwater_host::ring_memory::RingMemory;

/// A wrong write to a doorbell register; the asynchronous event of the same name reports it (error status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// Write to Invalid Doorbell Register (00h).
    #[error("the doorbell of {0} was rung, which does not exist")]
    NoQueue(QueueId),
    /// Invalid Doorbell Write Value (01h).
    #[error("{queue}: {fault}")]
    Value {
        /// Whose doorbell.
        queue: QueueId,
        /// What was wrong.
        fault: DoorbellFault,
    },
}

/// Cells of doorbells in memory of the host.
#[derive(Clone, Debug)]
pub struct DoorbellCells<M> {
    /// The doorbells.
    pub doorbells: M,
    /// EventIdx of each, or nothing if the host writes its doorbells here and tells nobody (a doorbell page that is
    /// mapped into a guest): the controller can then not sleep.
    pub events: Option<M>,
    /// Cells between two doorbells, as a power of two (CAP.DSTRD).
    pub stride_log2: u8,
}

/// Where the doorbells of new queues are.
#[derive(Debug)]
pub(crate) enum Doorbells<M> {
    Registers,
    Cells(DoorbellCells<M>),
}

impl<M: RingMemory + Clone> Doorbells<M> {
    /// The cell of a submission queue's tail.
    pub(crate) fn submission(&self, id: QueueId) -> Option<DoorbellCell<M>> {
        self.cell(2 * usize::from(id.0))
    }

    /// The cell of a completion queue's head.
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

impl<M: RingMemory> Arbiter<M> {
    /// A write to the tail doorbell of a submission queue. Where the doorbell lives in memory, the write is only a call
    /// to look there.
    ///
    /// # Errors
    /// [`DoorbellError`], which is to be reported by an asynchronous event. The queue takes no more commands.
    pub fn ring_submission(&mut self, queue: QueueId, value: u32) -> Result<(), DoorbellError> {
        let found = find_mut(&mut self.submissions, queue).ok_or(DoorbellError::NoQueue(queue))?;
        found.write_doorbell(value).map_err(|fault| DoorbellError::Value { queue, fault })
    }

    /// A write to the head doorbell of a completion queue. Where the doorbell lives in memory, the write is only a call
    /// to look there.
    ///
    /// # Errors
    /// [`DoorbellError`], which is to be reported by an asynchronous event. Answers to the queue go nowhere from now on.
    pub fn ring_completion(&mut self, queue: QueueId, value: u32) -> Result<(), DoorbellError> {
        let found = self.completion_mut(queue).ok_or(DoorbellError::NoQueue(queue))?;
        found.write_doorbell(value).map_err(|fault| DoorbellError::Value { queue, fault })
    }

    /// A fault of a doorbell in memory, found while fetching or posting: to be reported like that of a register. Ask
    /// until there is none.
    pub fn take_doorbell_error(&mut self) -> Option<DoorbellError> {
        let of = |queue, fault| DoorbellError::Value { queue, fault };
        let mut submissions = self.submissions.iter_mut().flatten();
        let fault = submissions.find_map(|queue| queue.take_fault().map(|fault| of(queue.id(), fault)));
        fault.or_else(|| {
            let mut completions = self.completions.iter_mut().flatten();
            completions.find_map(|queue| queue.take_fault().map(|fault| of(queue.id(), fault)))
        })
    }

    /// Doorbell Buffer Config: I/O queues that exist, and those to come, take their doorbells from these cells, which
    /// start with what was rung so far. The admin queue keeps its registers unless the cells are a mapped page: beside
    /// registers, hosts write no cells for it. A queue whose cell lies outside keeps its registers too.
    pub fn share_doorbells(&mut self, cells: DoorbellCells<M>)
    where
        M: Clone,
    {
        let beside_registers = cells.events.is_some();
        let moves = |id| !(beside_registers && id == QueueId::ADMIN);
        self.doorbells = Doorbells::Cells(cells);
        for queue in self.submissions.iter_mut().flatten().filter(|queue| moves(queue.id())) {
            if let Some(cell) = self.doorbells.submission(queue.id()) {
                queue.share_doorbell(cell);
            }
        }
        for queue in self.completions.iter_mut().flatten().filter(|queue| moves(queue.id())) {
            if let Some(cell) = self.doorbells.completion(queue.id()) {
                queue.share_doorbell(cell);
            }
        }
    }
}
