//! Numbered places for what is under way.
//!
//! In: values. Out: keys that stay valid until the value is removed, and are never valid again. Invariant: a key names its
//! place and how often the place was used, so that an answer that comes twice finds nothing.

/// Values by key.
#[derive(Debug)]
pub(super) struct Slots<T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }

    /// Keeps a value under a new key.
    pub(super) fn insert(&mut self, value: T) -> u64 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let place = &mut self.places[at as usize];
        place.value = Some(value);
        (u64::from(place.generation) << 32) | u64::from(at)
    }

    fn place(&mut self, key: u64) -> Option<(&mut Place<T>, u32)> {
        let at = u32::try_from(key & u64::from(u32::MAX)).ok()?;
        let place = self.places.get_mut(at as usize)?;
        (u64::from(place.generation) == key >> 32).then_some((place, at))
    }

    /// Takes a value out for a while; its key stays its own.
    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        self.place(key)?.0.value.take()
    }

    /// Puts back what was [taken](Self::take).
    pub(super) fn put_back(&mut self, key: u64, value: T) {
        if let Some((place, _)) = self.place(key) {
            place.value = Some(value);
        }
    }

    /// Ends a key, with the value if it was not taken.
    pub(super) fn remove(&mut self, key: u64) -> Option<T> {
        let (place, at) = self.place(key)?;
        place.generation = place.generation.wrapping_add(1);
        let value = place.value.take();
        self.vacant.push(at);
        value
    }

    /// How many keys are in use.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    /// Every value with its key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places
            .iter()
            .zip(0_u64..)
            .filter_map(|(place, at)| Some(((u64::from(place.generation) << 32) | at, place.value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_removed_finds_nothing_though_its_place_is_used_again() {
        let mut slots = Slots::new();
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
