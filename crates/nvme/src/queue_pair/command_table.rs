//! The commands in flight of a queue pair: one table from a command's identifier to all that this side keeps of it.
//!
//! Input: the context of a new command, and identifiers in completions. Output: an identifier that no command in flight
//! has, and the context again. An identifier holds the slot in its low bits and the generation of the slot's use above.
//! Invariant: a slot is free or holds exactly one context; an identifier of an earlier use of a slot is invalid until the
//! generation has wrapped around.

use headwater_host::width::narrow;

/// The end of the list of free slots.
const NO_SLOT: u16 = u16::MAX;

#[derive(Debug)]
struct TableSlot<C> {
    /// The identifier of the present use, or of the next one if the slot is free.
    id: u16,
    /// In a free slot, the one to use after it.
    next_free: u16,
    context: Option<C>,
}

/// The commands in flight, by identifier.
#[derive(Debug)]
pub(crate) struct CommandTable<C> {
    slots: Box<[TableSlot<C>]>,
    /// The free slot that was freed first: slots are used in turn, so that generations wrap as late as possible.
    first_free: u16,
    /// The free slot that was freed last.
    last_free: u16,
    in_flight: u32,
    depth: u32,
    slot_mask: u16,
}

impl<C> CommandTable<C> {
    /// Creates a table of `depth` slots.
    ///
    /// # Panics
    /// If the depth is 0 or above [`QUEUE_DEPTH_MAX`](super::QUEUE_DEPTH_MAX): the caller has checked it.
    pub(crate) fn new(depth: u32) -> Self {
        assert!((1..=super::QUEUE_DEPTH_MAX).contains(&depth), "a command table of {depth} slots");
        let last = narrow(depth - 1);
        let next = |slot| if slot == last { NO_SLOT } else { slot + 1 };
        let slot_bits = depth.next_power_of_two().trailing_zeros();
        Self {
            slots: (0..=last)
                .map(|slot| TableSlot { id: slot, next_free: next(slot), context: None })
                .collect(),
            first_free: 0,
            last_free: last,
            in_flight: 0,
            depth,
            slot_mask: narrow((1_u32 << slot_bits) - 1),
        }
    }

    /// Inserts a command and returns its identifier.
    ///
    /// # Errors
    /// The context, if every slot is in use.
    #[inline]
    pub(crate) fn insert(&mut self, context: C) -> Result<u16, C> {
        let Some(slot) = self.slots.get_mut(usize::from(self.first_free)) else {
            return Err(context);
        };
        self.first_free = slot.next_free;
        slot.context = Some(context);
        self.in_flight += 1;
        Ok(slot.id)
    }

    /// Removes the command that a completion names, and returns its slot and context; returns `None` if no command in
    /// flight has that identifier.
    #[inline]
    pub(crate) fn remove(&mut self, id: u16) -> Option<(usize, C)> {
        if !self.is_in_flight(id) {
            return None;
        }
        let index = id & self.slot_mask;
        match self.slots.get_mut(usize::from(self.last_free)).filter(|_| self.first_free != NO_SLOT) {
            Some(last) => last.next_free = index,
            None => self.first_free = index,
        }
        self.last_free = index;
        self.in_flight -= 1;
        let slot = self.slots.get_mut(usize::from(index))?;
        // The generation counts in the bits above the slot and wraps.
        slot.id = id.wrapping_add(self.slot_mask).wrapping_add(1);
        slot.next_free = NO_SLOT;
        // Taken last, so that it moves from the slot to its destination without a copy on the stack.
        Some((usize::from(index), slot.context.take()?))
    }

    /// Returns true if a command in flight has this identifier.
    #[inline]
    pub(crate) fn is_in_flight(&self, id: u16) -> bool {
        self.slots.get(self.slot(id)).is_some_and(|slot| slot.id == id && slot.context.is_some())
    }

    /// Returns the slot of an identifier; below the depth only for identifiers that were given out.
    #[inline]
    pub(crate) fn slot(&self, id: u16) -> usize {
        usize::from(id & self.slot_mask)
    }

    /// Returns the number of commands in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns true if one more command can be inserted.
    #[inline]
    pub(crate) fn has_free_slot(&self) -> bool {
        self.first_free != NO_SLOT
    }

    /// Returns the slot of the next command; `None` if every slot is in use.
    pub(crate) fn next_slot(&self) -> Option<usize> {
        (self.first_free != NO_SLOT).then(|| usize::from(self.first_free))
    }

    /// Returns the most commands in flight.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// Iterates over the commands in flight: identifier and context.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &C)> {
        self.slots.iter().filter_map(|slot| Some((slot.id, slot.context.as_ref()?)))
    }

    /// Iterates over the commands in flight, to change their contexts.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut C)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.id, slot.context.as_mut()?)))
    }

    /// Removes every context without freeing its slot: the queue is at its end.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = C> {
        self.slots.iter_mut().filter_map(|slot| slot.context.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_in_flight_are_distinct_and_exhaustion_returns_the_context() {
        for depth in [1, 2, 3, 5, 64, 4_096] {
            let mut table = CommandTable::new(depth);
            let given: BTreeSet<u16> = (0..depth).map(|context| table.insert(context).unwrap()).collect();
            assert_eq!(given.len(), usize::try_from(depth).unwrap());
            assert_eq!(table.insert(99_999), Err(99_999));
            assert_eq!((table.in_flight(), table.next_slot()), (depth, None));
            for &id in &given {
                assert!(table.slot(id) < usize::try_from(depth).unwrap());
                assert_eq!(table.remove(id).map(|(slot, _)| slot), Some(table.slot(id)));
            }
            assert_eq!(table.in_flight(), 0);
        }
    }

    #[test]
    fn an_id_is_removed_once_and_is_invalid_in_the_next_use_of_its_slot() {
        let mut table = CommandTable::new(3);
        let old = table.insert('a').unwrap();
        assert_eq!(table.remove(old), Some((0, 'a')));
        assert_eq!(table.remove(old), None, "duplicate");
        let _rest = (table.insert('b'), table.insert('c'));
        let new = table.insert('d').unwrap();
        assert_eq!(table.slot(new), table.slot(old));
        assert_eq!(table.remove(old), None, "stale");
        assert_eq!(table.iter().map(|(_, &context)| context).collect::<String>(), "dbc");
        assert_eq!(table.remove(new).map(|(_, context)| context), Some('d'));
    }

    #[test]
    fn ids_that_were_never_given_out_are_refused() {
        let mut table = CommandTable::new(3);
        let live = table.insert(()).unwrap();
        for id in 0..=u16::MAX {
            if id != live {
                assert_eq!(table.remove(id), None);
            }
        }
        assert_eq!(table.in_flight(), 1);
    }

    #[test]
    fn generations_wrap_without_confusion_in_the_deepest_queue() {
        let mut table = CommandTable::new(4_096);
        for count in 0..200_000 {
            let id = table.insert(count).unwrap();
            assert_eq!(table.remove(id).map(|(_, context)| context), Some(count));
            assert_eq!(table.remove(id), None);
        }
    }

    #[test]
    fn random_insertions_and_removals_match_a_naive_map() {
        const SEED: u64 = 0x51;
        for depth in [1, 2, 7, 64] {
            let mut table = CommandTable::new(depth);
            let mut model: Vec<(u16, u64)> = Vec::new();
            let mut state = SEED;
            for step in 0..20_000_u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if state >> 63 == 0 {
                    match table.insert(step) {
                        Ok(id) => {
                            assert!(model.iter().all(|&(other, _)| other != id), "seed {SEED}, step {step}");
                            model.push((id, step));
                        }
                        Err(_) => assert_eq!(model.len(), depth as usize, "seed {SEED}, step {step}"),
                    }
                } else if !model.is_empty() {
                    let at = usize::try_from(state >> 33).unwrap() % model.len();
                    let (id, context) = model.swap_remove(at);
                    assert_eq!(
                        table.remove(id).map(|found| found.1),
                        Some(context),
                        "seed {SEED}, step {step}"
                    );
                }
                assert_eq!(table.in_flight() as usize, model.len(), "seed {SEED}, step {step}");
            }
        }
    }
}
