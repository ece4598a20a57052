//! A slot map for requests and transfers in progress.
//!
//! Input: values. Output: keys that are valid until the value is removed, and never again. Invariant: a key holds its
//! slot and the slot's generation, so that a duplicate completion finds nothing.

use headwater_host::width::narrow;

/// The values by key.
#[derive(Debug)]
pub(super) struct SlotMap<T> {
    slots: Vec<MapSlot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct MapSlot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> SlotMap<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Stores a value under a new key.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(MapSlot { generation: 0, value: None });
            narrow(self.slots.len() - 1)
        });
        let slot = &mut self.slots[at as usize];
        slot.value = Some(value);
        (u64::from(slot.generation) << 32) | u64::from(at)
    }

    fn slot_mut(&mut self, key: u64) -> Option<(&mut MapSlot<T>, u32)> {
        let at = u32::try_from(key & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(at as usize)?;
        (u64::from(slot.generation) == key >> 32).then_some((slot, at))
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: u64) -> Option<&T> {
        let slot = self.slots.get(usize::try_from(key & u64::from(u32::MAX)).ok()?)?;
        slot.value.as_ref().filter(|_| u64::from(slot.generation) == key >> 32)
    }

    /// Takes a value out temporarily; its key stays reserved.
    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        self.slot_mut(key)?.0.value.take()
    }

    /// Returns a value that was [taken](Self::take).
    pub(super) fn put_back(&mut self, key: u64, value: T) {
        if let Some((slot, _)) = self.slot_mut(key) {
            slot.value = Some(value);
        }
    }

    /// Removes a key, and returns the value if it was not taken.
    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let (slot, at) = self.slot_mut(key)?;
        slot.generation = slot.generation.wrapping_add(1);
        let value = slot.value.take();
        self.free.push(at);
        value
    }

    /// Returns the number of keys in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Iterates over every value with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots
            .iter()
            .zip(0_u64..)
            .filter_map(|(slot, at)| Some(((u64::from(slot.generation) << 32) | at, slot.value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_key_finds_nothing_after_its_slot_is_reused() {
        let mut slots = SlotMap::new();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_ne!(first, second);
        assert_eq!((slots.remove(first), slots.take(first)), (None, None));
        assert_eq!(slots.take(second), Some('b'));
        slots.put_back(second, 'c');
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(second, &'c')]);
        assert_eq!((slots.remove(second), slots.len()), (Some('c'), 0));
    }
}
