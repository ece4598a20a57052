//! The expiry queue: records with an expiry, soonest first.
//!
//! Input: records whose header carries an expiry. Output: those that are due at a wall time.
//! Invariant: it holds exactly the index entries whose lifetime is limited.

use crate::index::KeyHash;
use crate::log::record::RecordAddress;
use std::collections::BTreeSet;

/// Records, ordered by expiry.
#[derive(Debug, Default)]
pub struct ExpiryQueue {
    records: BTreeSet<(u64, KeyHash, RecordAddress)>,
}

impl ExpiryQueue {
    /// Adds a live record; ignores one without expiry (0).
    pub fn insert(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        if expiry_ms != 0 {
            self.records.insert((expiry_ms, hash, address));
        }
    }

    /// Removes a record that was replaced, removed or moved.
    pub fn remove(&mut self, expiry_ms: u64, hash: KeyHash, address: RecordAddress) {
        self.records.remove(&(expiry_ms, hash, address));
    }

    /// Returns the record that expires first, if it is due.
    #[must_use]
    pub fn first_due(&self, wall_ms: u64) -> Option<(u64, KeyHash, RecordAddress)> {
        self.records.first().copied().filter(|&(expiry_ms, ..)| expiry_ms <= wall_ms)
    }

    /// Returns the time at which the next record expires.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.records.first().map(|&(expiry_ms, ..)| expiry_ms)
    }

    /// Returns the records from `from` on, soonest first.
    pub fn range_from(
        &self,
        from: (u64, KeyHash, RecordAddress),
    ) -> impl Iterator<Item = (u64, KeyHash, RecordAddress)> + '_ {
        self.records.range(from..).copied()
    }

    /// Keeps only the records for which `live` returns true.
    pub fn retain(&mut self, mut live: impl FnMut(KeyHash, RecordAddress) -> bool) {
        self.records.retain(|&(_, hash, address)| live(hash, address));
    }

    /// Keeps of `count` records from `from` on only those for which `live` returns true. Returns the record behind them;
    /// `None` at the end.
    pub fn retain_part(
        &mut self,
        from: (u64, KeyHash, RecordAddress),
        count: usize,
        mut live: impl FnMut(KeyHash, RecordAddress) -> bool,
    ) -> Option<(u64, KeyHash, RecordAddress)> {
        let mut part: Vec<_> = self.records.range(from..).take(count + 1).copied().collect();
        let next = if part.len() > count { part.pop() } else { None };
        for record in part.into_iter().filter(|&(_, hash, address)| !live(hash, address)) {
            self.records.remove(&record);
        }
        next
    }

    /// Returns the number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_returned_only_when_due() {
        let mut queue = ExpiryQueue::default();
        queue.insert(50, KeyHash(1), RecordAddress(1));
        queue.insert(20, KeyHash(2), RecordAddress(2));
        queue.insert(0, KeyHash(3), RecordAddress(3));
        assert_eq!(queue.first_due(19), None);
        assert_eq!(queue.first_due(20), Some((20, KeyHash(2), RecordAddress(2))));
        queue.remove(20, KeyHash(2), RecordAddress(2));
        assert_eq!(queue.first_due(49), None);
        assert_eq!(queue.next_expiry_ms(), Some(50));
        assert_eq!(queue.len(), 1);
    }
}
