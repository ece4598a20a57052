//! The slab of operations in flight, which every stage indexes into.
//!
//! Input: accepted operations. Output: slots, each of which holds an operation until its completion is made. Invariant: a slot
//! that a stage names holds an operation. An operation is large, so it is made in its slot, and its slot is used again.

use crate::command::{FrontEndId, NamespaceId, SsdCommand};
use crate::engine::discarded_batches::DiscardedBatches;
use crate::engine::operation::{DeviceOperation, OperationWork};
use crate::limits::OPERATIONS_MAX;
use headwater_host::clock::Nanos;
use std::ops::{Index, IndexMut};

/// The slab of operations in flight.
#[derive(Debug, Default)]
pub(crate) struct OperationSlab {
    slots: Vec<DeviceOperation>,
    vacant: Vec<usize>,
    live: usize,
    discarded: DiscardedBatches,
}

impl OperationSlab {
    /// Returns true if [`OPERATIONS_MAX`] is reached.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.live == OPERATIONS_MAX
    }

    /// Begins an operation and returns its slot.
    ///
    /// # Panics
    /// If the slab is full: the caller checks [`is_full`](Self::is_full) before.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        (front_end, token): (FrontEndId, u64),
        namespace: NamespaceId,
        work: OperationWork,
        now: Nanos,
    ) -> usize {
        assert!(!self.is_full(), "operation slab is full: check is_full before begin");
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(DeviceOperation::vacant());
            self.slots.len() - 1
        });
        let operation = &mut self.slots[at];
        assert!(operation.is_vacant(), "slot {at} is vacant and holds an operation");
        operation.begin((front_end, token), namespace, work, now);
        self.live += 1;
        at
    }

    /// Finds the slot of a front end's command. Searches every slot.
    pub(crate) fn find(&self, front_end: FrontEndId, token: u64) -> Option<usize> {
        self.slots.iter().position(|operation| {
            matches!(operation.work, OperationWork::Command(_))
                && operation.front_end == front_end
                && operation.token == token
        })
    }

    /// Drops the operation in a slot.
    ///
    /// # Panics
    /// The slot holds no operation.
    #[inline]
    pub(crate) fn vacate(&mut self, at: usize) {
        let DeviceOperation { work, batch_plan, .. } = &mut self[at];
        if let OperationWork::Command(SsdCommand::Batch { writes } | SsdCommand::BatchAcross { writes, .. }) =
            work
        {
            let (writes, plan) = (std::mem::take(writes), batch_plan.take());
            self.discarded.push(writes, plan);
        }
        self.withdraw(at);
    }

    /// Drops an operation that was refused while it began.
    ///
    /// # Panics
    /// The slot holds no operation.
    #[inline]
    pub(crate) fn withdraw(&mut self, at: usize) {
        self[at].end();
        self.vacant.push(at);
        self.live -= 1;
    }

    /// Drops a part of the memory of long batches that have ended. Returns true if there was one.
    pub(crate) fn drop_part(&mut self) -> bool {
        self.discarded.drop_part()
    }

    /// Returns the number of operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.live
    }
}

/// A stage names only slots that hold an operation: any other number is a fault of the stage.
impl Index<usize> for OperationSlab {
    type Output = DeviceOperation;

    #[inline]
    fn index(&self, at: usize) -> &DeviceOperation {
        match self.slots.get(at) {
            Some(operation) if !operation.is_vacant() => operation,
            _ => panic!("slot {at} holds no operation"),
        }
    }
}

impl IndexMut<usize> for OperationSlab {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut DeviceOperation {
        match self.slots.get_mut(at) {
            Some(operation) if !operation.is_vacant() => operation,
            _ => panic!("slot {at} holds no operation"),
        }
    }
}
