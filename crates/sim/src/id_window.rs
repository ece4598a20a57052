//! Values under ids that are given out in rising order and come back in nearly the same order.
//!
//! Input: values with their ids. Output: the values, by id. Invariant: the first slot is occupied, so a lookup is one index
//! and the window is no longer than the ids between the oldest value and the newest.

use std::collections::VecDeque;

/// Values by id. It does what an ordered map does, at the cost of a queue.
#[derive(Debug)]
pub struct IdWindow<T> {
    /// The id of the first slot.
    first: u64,
    slots: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Default for IdWindow<T> {
    fn default() -> Self {
        Self { first: 0, slots: VecDeque::new(), len: 0 }
    }
}

impl<T> IdWindow<T> {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value.
    ///
    /// # Panics
    /// The id is not above every id of the window.
    pub fn insert(&mut self, id: u64, value: T) {
        if self.slots.is_empty() {
            self.first = id;
        }
        let at = self.place(id).filter(|&at| at >= self.slots.len());
        let at = at.unwrap_or_else(|| panic!("id {id} is not above those before it"));
        self.slots.resize_with(at, || None);
        self.slots.push_back(Some(value));
        self.len += 1;
    }

    /// Returns the value of an id.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&T> {
        self.slots.get(self.place(id)?)?.as_ref()
    }

    /// Removes and returns the value of an id.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let at = self.place(id)?;
        let value = self.slots.get_mut(at)?.take()?;
        self.len -= 1;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        Some(value)
    }

    /// Removes all values and returns them with their ids, in order.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        let all = std::mem::take(self);
        (all.first..).zip(all.slots).filter_map(|(id, value)| Some((id, value?)))
    }

    fn place(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.first)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn window_agrees_with_an_ordered_map() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut window, mut map, mut next) = (IdWindow::default(), BTreeMap::new(), rng.u64(0..5));
            for step in 0..300 {
                let id = rng.u64(0..next + 2);
                match rng.u8(0..40) {
                    0..20 => {
                        window.insert(next, step);
                        map.insert(next, step);
                        next += if rng.u8(0..4) == 0 { rng.u64(1..4) } else { 1 };
                    }
                    20..39 => assert_eq!(window.remove(id), map.remove(&id), "seed {seed} step {step}"),
                    _ => {
                        let all: Vec<_> = std::mem::take(&mut map).into_iter().collect();
                        assert_eq!(window.take_all().collect::<Vec<_>>(), all, "seed {seed} step {step}");
                    }
                }
                assert_eq!(window.get(id), map.get(&id), "seed {seed} step {step}");
                assert_eq!((window.len(), window.is_empty()), (map.len(), map.is_empty()), "seed {seed}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "not above")]
    fn window_refuses_an_id_that_is_not_new() {
        let mut window = IdWindow::default();
        window.insert(7, ());
        window.insert(7, ());
    }
}
