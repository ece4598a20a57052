//! The index of a device: keys in the hashed part, blocks in the flat one.
//!
//! Input: hashes and positions. Output: the answer of the part that holds them. Invariant: positions are only in the
//! flat part, hashes only in the hashed part; in the order of all entries every key comes before every block.

use super::{FlatIndex, HashedIndex, IndexEntry, KeyHash, RecordIndex};
use crate::log::record::RecordAddress;

/// Both kinds of index as one.
#[derive(Debug, Default)]
pub struct CompositeIndex {
    /// Index of keys.
    pub hashed: HashedIndex,
    /// Index of blocks.
    pub flat: FlatIndex,
}

impl RecordIndex for CompositeIndex {
    #[inline]
    fn find(&self, hash: KeyHash, nth: usize) -> Option<IndexEntry> {
        if hash.is_position() { self.flat.find(hash, nth) } else { self.hashed.find(hash, nth) }
    }

    fn insert(&mut self, hash: KeyHash, entry: IndexEntry) {
        if hash.is_position() {
            self.flat.insert(hash, entry);
        } else {
            self.hashed.insert(hash, entry);
        }
    }

    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: IndexEntry) -> bool {
        if hash.is_position() {
            self.flat.replace(hash, old, new)
        } else {
            self.hashed.replace(hash, old, new)
        }
    }

    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool {
        if hash.is_position() { self.flat.remove(hash, address) } else { self.hashed.remove(hash, address) }
    }

    fn next(&self, from: KeyHash) -> Option<(KeyHash, IndexEntry)> {
        let key = if from.is_position() { None } else { self.hashed.next(from) };
        key.or_else(|| self.flat.next(from.max(KeyHash::FIRST_POSITION)))
    }

    #[inline]
    fn prefetch(&self, hash: KeyHash) {
        if hash.is_position() {
            self.flat.prefetch(hash);
        } else {
            self.hashed.prefetch(hash);
        }
    }

    fn len(&self) -> u64 {
        self.hashed.len() + self.flat.len()
    }

    fn bytes(&self) -> u64 {
        self.hashed.bytes() + self.flat.bytes()
    }
}
