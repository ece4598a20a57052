//! The memory of long batches that have ended, freed in parts.
//!
//! Input: the writes and the plans of batches. Output: nothing, when all parts are dropped. Invariant: a part takes no
//! longer the longer the batch is, the return of its memory to the kernel included.

use crate::command::BatchWrite;
use crate::engine::batch_plan::{BatchPlan, PlannedWrite};
use crate::limits::BATCH_PART_WRITES;

/// Writes that are dropped in one turn.
const DROPPED_WRITES: usize = 2 * BATCH_PART_WRITES;

/// The rest of a long batch that has ended.
#[derive(Debug)]
struct DiscardedBatch {
    writes: Vec<BatchWrite>,
    planned: Vec<PlannedWrite>,
}

/// The long batches that have ended.
#[derive(Debug, Default)]
pub(super) struct DiscardedBatches(Vec<DiscardedBatch>);

impl DiscardedBatches {
    /// Takes the writes and the plan of a batch. Those of a short one are dropped at once.
    pub(super) fn push(&mut self, writes: Vec<BatchWrite>, plan: Option<Box<BatchPlan>>) {
        if plan.is_some() || writes.len() > DROPPED_WRITES {
            let planned = plan.map(|plan| plan.writes).unwrap_or_default();
            self.0.push(DiscardedBatch { writes, planned });
        }
    }

    /// Drops a part of one of them. Returns true if there was one.
    pub(super) fn drop_part(&mut self) -> bool {
        let Some(DiscardedBatch { writes, planned }) = self.0.last_mut() else { return false };
        let left = writes.len().saturating_sub(DROPPED_WRITES);
        writes.truncate(left);
        planned.truncate(left);
        // The allocator shortens a long vector where it is, and returns the pages behind it.
        writes.shrink_to_fit();
        planned.shrink_to_fit();
        if left == 0 {
            self.0.pop();
        }
        true
    }
}
