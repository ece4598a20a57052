//! Earliest deadline first.
//!
//! Input: requests with their own deadline or their class's. Output: the request with the earliest deadline; among
//! equals the first to arrive.

use super::{CLASSES, LatePolicy, QueuedRequest, SchedulerDecision};
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct DeadlineQueue {
    within: [Nanos; CLASSES],
    late: LatePolicy,
    /// The waiting requests by deadline, then by arrival.
    waiting: BTreeMap<(Nanos, u64), QueuedRequest>,
}

impl DeadlineQueue {
    pub(super) fn new(within: [Nanos; CLASSES], late: LatePolicy) -> Self {
        Self { within, late, waiting: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, queued: QueuedRequest) {
        let of_class = queued.waiting.arrived_at.after(self.within[queued.waiting.class.index()]);
        let deadline = queued.waiting.deadline.unwrap_or(of_class);
        self.waiting.insert((deadline, queued.order), queued);
    }

    pub(super) fn pop(&mut self, now: Nanos) -> Option<SchedulerDecision> {
        let ((deadline, _), queued) = self.waiting.pop_first()?;
        let slot = queued.waiting.slot;
        if self.late == LatePolicy::Cancel && deadline < now {
            return Some(SchedulerDecision::Cancel(slot));
        }
        Some(SchedulerDecision::Serve(slot))
    }

    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let key = self.waiting.iter().find(|(_, queued)| queued.waiting.slot == slot).map(|(&key, _)| key);
        key.and_then(|key| self.waiting.remove(&key)).is_some()
    }

    pub(super) fn take_all(&mut self) -> Vec<QueuedRequest> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
