//! Command ids: slot in the low bits, generation above.
//!
//! Input: requests for an id, and ids in completions. Output: ids that no command in flight has, and slots of ids that
//! are in flight. Invariant: a slot is free or has exactly one id in flight; an id of an earlier use of a slot is
//! invalid until the generation has wrapped around.

/// The ids of one queue pair.
#[derive(Debug)]
pub(crate) struct CommandIds {
    /// Free slots, least recently used first, so that generations wrap as late as possible.
    free: std::collections::VecDeque<u16>,
    /// By slot: the id of its current use, or of its next one if it is free.
    ids: Box<[u16]>,
    /// By slot: true if the id is in flight.
    live: Box<[bool]>,
    slot_bits: u32,
}

impl CommandIds {
    /// Creates ids for `depth` slots, at most [`QUEUE_DEPTH_MAX`](super::QUEUE_DEPTH_MAX).
    pub(crate) fn new(depth: u32) -> Self {
        let slots: Vec<u16> = (0..u16::try_from(depth).unwrap_or(u16::MAX)).collect();
        Self {
            slot_bits: depth.next_power_of_two().trailing_zeros(),
            live: vec![false; slots.len()].into_boxed_slice(),
            ids: slots.clone().into_boxed_slice(),
            free: slots.into(),
        }
    }

    /// Allocates an id for a new command; returns `None` if every slot is in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u16> {
        let slot = usize::from(self.free.pop_front()?);
        self.live[slot] = true;
        Some(self.ids[slot])
    }

    /// Frees and returns the slot of an id from a completion; returns `None` if that id is not in flight.
    #[inline]
    pub(crate) fn give_back(&mut self, id: u16) -> Option<usize> {
        let slot = self.slot(id);
        if !*self.live.get(slot)? || self.ids[slot] != id {
            return None;
        }
        self.live[slot] = false;
        // The generation counts in the bits above the slot and wraps.
        self.ids[slot] = u16::try_from((u32::from(id) + (1 << self.slot_bits)) & 0xFFFF).unwrap_or(id);
        self.free.push_back(id & self.slot_mask());
        Some(slot)
    }

    /// Returns the slot of an id; below the depth only for ids that were allocated.
    #[inline]
    pub(crate) fn slot(&self, id: u16) -> usize {
        usize::from(id & self.slot_mask())
    }

    /// Returns the number of ids in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        u32::try_from(self.ids.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    /// Returns the slot of the next id.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        self.free.front().map(|&slot| usize::from(slot))
    }

    /// Returns the most ids in flight.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }

    /// Returns the id in flight in a slot.
    pub(crate) fn in_flight_at(&self, slot: usize) -> Option<u16> {
        self.ids.get(slot).copied().filter(|_| self.live.get(slot).copied().unwrap_or(false))
    }

    #[inline]
    fn slot_mask(&self) -> u16 {
        u16::try_from((1_u32 << self.slot_bits) - 1).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_in_flight_are_distinct_and_exhaustion_returns_none() {
        for depth in [1, 2, 3, 5, 64, 4_096] {
            let mut ids = CommandIds::new(depth);
            let given: BTreeSet<u16> = (0..depth).map(|_| ids.take().unwrap()).collect();
            assert_eq!(given.len(), usize::try_from(depth).unwrap());
            assert_eq!(ids.take(), None);
            assert_eq!(ids.in_flight(), depth);
            for &id in &given {
                assert!(ids.slot(id) < usize::try_from(depth).unwrap());
                assert_eq!(ids.give_back(id), Some(ids.slot(id)));
            }
            assert_eq!(ids.in_flight(), 0);
        }
    }

    #[test]
    fn an_id_is_given_back_once_and_is_invalid_in_the_next_use_of_its_slot() {
        let mut ids = CommandIds::new(3);
        let old = ids.take().unwrap();
        assert!(ids.give_back(old).is_some());
        assert_eq!(ids.give_back(old), None, "duplicate");
        let _rest = (ids.take(), ids.take());
        let new = ids.take().unwrap();
        assert_eq!(ids.slot(new), ids.slot(old));
        assert_eq!(ids.in_flight_at(ids.slot(new)), Some(new));
        assert_eq!(ids.give_back(old), None, "stale");
        assert_eq!(ids.give_back(new), Some(ids.slot(new)));
    }

    #[test]
    fn ids_that_were_never_allocated_are_refused() {
        let mut ids = CommandIds::new(3);
        let live = ids.take().unwrap();
        for id in 0..=u16::MAX {
            if id != live {
                assert_eq!(ids.give_back(id), None);
            }
        }
        assert_eq!(ids.in_flight(), 1);
    }

    #[test]
    fn generations_wrap_without_confusion_in_the_deepest_queue() {
        let mut ids = CommandIds::new(4_096);
        for _ in 0..200_000 {
            let id = ids.take().unwrap();
            assert!(ids.give_back(id).is_some());
            assert_eq!(ids.give_back(id), None);
        }
    }
}
