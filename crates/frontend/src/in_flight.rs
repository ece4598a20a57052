//! A table of the commands in flight in the device.
//!
//! Input: the front end's record of an accepted command. Output: the record, by its number. Invariant: a number is
//! taken exactly while its command is in flight, and a free number is reused before the table grows.

/// A table of commands in flight; `F` is the front end's record of a command.
#[derive(Debug)]
pub(crate) struct InFlightTable<F> {
    slots: Vec<Option<F>>,
    vacant: Vec<usize>,
}

impl<F> Default for InFlightTable<F> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<F> InFlightTable<F> {
    /// Returns the number that the next [`insert`](Self::insert) will take.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.vacant.last().copied().unwrap_or(self.slots.len()) as u64
    }

    /// Stores a record under the number that [`next`](Self::next) returns, and returns that number.
    #[inline]
    pub(crate) fn insert(&mut self, flight: F) -> u64 {
        let number = self.next();
        match self.vacant.pop() {
            Some(at) => {
                let earlier = self.slots[at].replace(flight);
                assert!(earlier.is_none(), "number {at} is taken by a command in flight");
            }
            None => self.slots.push(Some(flight)),
        }
        number
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut F> {
        self.slots.get_mut(usize::try_from(number).ok()?)?.as_mut()
    }

    /// Returns the lowest number whose record satisfies `matches`. Scans the whole table.
    pub(crate) fn find(&self, matches: impl Fn(&F) -> bool) -> Option<u64> {
        let at = self.slots.iter().position(|slot| slot.as_ref().is_some_and(&matches));
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

    /// Removes and returns all records.
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
        let mut flights = InFlightTable::default();
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
