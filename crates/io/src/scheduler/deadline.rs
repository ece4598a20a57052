//! Earliest deadline first.
//!
//! Input: requests with their own deadline or their class's. Output: the request with the earliest deadline; among
//! equals the first to arrive.

use super::{CLASSES, Late, Next, Queued};
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Deadlines {
    within: [Nanos; CLASSES],
    late: Late,
    /// The waiting requests by deadline, then by arrival.
    waiting: BTreeMap<(Nanos, u64), Queued>,
}

impl Deadlines {
    pub(super) fn new(within: [Nanos; CLASSES], late: Late) -> Self {
        Self { within, late, waiting: BTreeMap::new() }
    }

    pub(super) fn push(&mut self, queued: Queued) {
        let of_class = queued.waiting.arrived.after(self.within[queued.waiting.class.place()]);
        let deadline = queued.waiting.deadline.unwrap_or(of_class);
        self.waiting.insert((deadline, queued.order), queued);
    }

    pub(super) fn pop(&mut self, now: Nanos) -> Option<Next> {
        let ((deadline, _), queued) = self.waiting.pop_first()?;
        let slot = queued.waiting.slot;
        if self.late == Late::GiveUp && deadline < now {
            return Some(Next::GiveUp(slot));
        }
        Some(Next::Serve(slot))
    }

    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let key = self.waiting.iter().find(|(_, queued)| queued.waiting.slot == slot).map(|(&key, _)| key);
        key.and_then(|key| self.waiting.remove(&key)).is_some()
    }

    pub(super) fn take_all(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.waiting).into_values().collect()
    }
}
