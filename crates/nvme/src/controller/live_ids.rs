//! The set of command ids that live commands of one queue use.
//!
//! Input: ids chosen by hosts, any 16 bits. Output: true if an id was free. Invariant: the count equals the bits set.

const WORDS: usize = (1 << 16) / 64;

/// A set of command ids: 8 KiB, allocated once.
#[derive(Debug)]
pub struct LiveIds {
    bits: Box<[u64]>,
    count: u32,
}

impl LiveIds {
    pub(crate) fn new() -> Self {
        Self { bits: vec![0; WORDS].into_boxed_slice(), count: 0 }
    }

    /// Adds an id. Returns false if it was already present.
    #[inline]
    pub(crate) fn insert(&mut self, id: u16) -> bool {
        let (word, bit) = word_and_bit(id);
        let free = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.count += u32::from(free);
        free
    }

    /// Removes an id. Returns false if it was absent.
    #[inline]
    pub(crate) fn remove(&mut self, id: u16) -> bool {
        let (word, bit) = word_and_bit(id);
        let present = self.bits[word] & bit != 0;
        self.bits[word] &= !bit;
        self.count -= u32::from(present);
        present
    }

    /// Returns true if the id is present.
    pub(crate) fn contains(&self, id: u16) -> bool {
        let (word, bit) = word_and_bit(id);
        self.bits[word] & bit != 0
    }

    /// Returns the number of ids present.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[inline]
fn word_and_bit(id: u16) -> (usize, u64) {
    (usize::from(id / 64), 1 << (id % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_plain_set() {
        let mut ids = LiveIds::new();
        let mut model = BTreeSet::new();
        let mut state = 0x1234_5678_u32;
        for _ in 0..50_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [_, _, low, high] = state.to_le_bytes();
            let id = u16::from_le_bytes([low, high & 0x81]);
            assert_eq!(ids.contains(id), model.contains(&id));
            if state & 1 == 0 {
                assert_eq!(ids.insert(id), model.insert(id));
            } else {
                assert_eq!(ids.remove(id), model.remove(&id));
            }
            assert_eq!(usize::try_from(ids.count()).unwrap(), model.len());
        }
    }
}
