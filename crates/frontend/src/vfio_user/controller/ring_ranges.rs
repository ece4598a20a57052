//! The guest memory that queues and doorbells occupy.
//!
//! Input: ranges with their use. Output: the answer whether an unmapped range is in use. Invariant: each use has one
//! range, from the creation of its queue to its deletion.

use headwater_dma::iova::Iova;
use headwater_nvme::controller::QueueId;
use std::collections::BTreeMap;

/// The use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RingUse {
    /// The entries of a submission queue.
    Submission(QueueId),
    /// The entries of a completion queue.
    Completion(QueueId),
    /// The shadow doorbells.
    Doorbells,
    /// The event indexes.
    Events,
}

/// The ranges of a controller.
#[derive(Debug, Default)]
pub(super) struct RingRanges {
    /// First address and length.
    ranges: BTreeMap<RingUse, (Iova, u64)>,
}

impl RingRanges {
    /// Records the range of a use, in place of an earlier one.
    pub(super) fn record(&mut self, usage: RingUse, start: Iova, bytes: u64) {
        self.ranges.insert(usage, (start, bytes));
    }

    /// Removes the range of a use that has ended.
    pub(super) fn remove(&mut self, usage: RingUse) {
        self.ranges.remove(&usage);
    }

    /// Removes all ranges.
    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Returns true if a byte of this range is in use.
    pub(super) fn overlaps(&self, start: Iova, bytes: u64) -> bool {
        self.ranges.values().any(|&(at, length)| {
            at.0 < start.0.saturating_add(bytes) && start.0 < at.0.saturating_add(length)
        })
    }
}
