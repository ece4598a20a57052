//! Commands that the device has, by the number it knows them by.
//!
//! In: what a face must know of an accepted command. Out: the same, by its number. Invariant: a number is taken exactly while
//! its command is in flight, and one that was given back is used again before the table grows.

/// The table; `F` is what a face knows of a command.
#[derive(Debug)]
pub(crate) struct Flights<F> {
    slots: Vec<Option<F>>,
    vacant: Vec<usize>,
}

impl<F> Default for Flights<F> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<F> Flights<F> {
    /// The number that the next [`insert`](Self::insert) gives.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.vacant.last().copied().unwrap_or(self.slots.len()) as u64
    }

    /// Takes the number that [`next`](Self::next) named, and returns it.
    #[inline]
    pub(crate) fn insert(&mut self, flight: F) -> u64 {
        let number = self.next();
        match self.vacant.pop() {
            Some(at) => self.slots[at] = Some(flight),
            None => self.slots.push(Some(flight)),
        }
        number
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut F> {
        self.slots.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// The lowest number of a command that is the one wanted. Looks at every command.
    pub(crate) fn find(&self, is_it: impl Fn(&F) -> bool) -> Option<u64> {
        let at = self.slots.iter().position(|slot| slot.as_ref().is_some_and(&is_it));
        at.map(|at| at as u64)
    }

    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> Option<F> {
        let at = usize::try_from(number).ok()?;
        let flight = self.slots.get_mut(at)?.take()?;
        self.vacant.push(at);
        Some(flight)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes all of them out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = F> + '_ {
        self.vacant.clear();
        self.slots.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_command_until_it_is_removed() {
        let mut flights = Flights::default();
        assert_eq!([flights.insert('a'), flights.insert('b'), flights.insert('c')], [0, 1, 2]);
        assert_eq!(flights.remove(1), Some('b'));
        assert_eq!((flights.remove(1), flights.remove(9)), (None, None));
        assert_eq!(flights.get_mut(1), None);
        assert_eq!((flights.find(|name| *name == 'b'), flights.find(|name| *name == 'c')), (None, Some(2)));
        assert_eq!((flights.next(), flights.insert('d'), flights.next()), (1, 1, 3));
        assert_eq!(flights.get_mut(1), Some(&mut 'd'));
        assert_eq!(flights.len(), 3);
        assert_eq!(flights.drain().collect::<String>(), "adc");
        assert!(flights.is_empty() && flights.next() == 0);
    }
}
