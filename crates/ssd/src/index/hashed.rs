//! The hashed index: 4,096 segments selected by the top bits of the hash, each a sorted table.
//!
//! Input: hashes and entries. Output: candidates, and all entries in hash order. Each operation changes one segment
//! only, so the longest pause is the growth of one segment (2,500 entries at ten million keys).

use super::segment::{IndexSegment, SLOT_HASH_BITS};
use super::{EntryLifetime, IndexEntry, KeyHash, RecordIndex};
use crate::command::NamespaceId;
use crate::limits::HASH_BITS;
use crate::log::record::RecordAddress;

const SEGMENT_BITS: u32 = HASH_BITS - SLOT_HASH_BITS;
/// Segments of an index.
pub const SEGMENTS: usize = 1 << SEGMENT_BITS;

/// The index of key namespaces.
#[derive(Debug)]
pub struct HashedIndex {
    segments: Box<[IndexSegment]>,
    len: u64,
}

impl Default for HashedIndex {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
const fn split(hash: KeyHash) -> (usize, u64) {
    ((hash.0 >> SLOT_HASH_BITS) as usize, hash.0 & ((1 << SLOT_HASH_BITS) - 1))
}

#[inline]
const fn join(segment: usize, low: u64) -> KeyHash {
    KeyHash((segment as u64) << SLOT_HASH_BITS | low)
}

impl HashedIndex {
    /// Makes an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self { segments: (0..SEGMENTS).map(|_| IndexSegment::default()).collect(), len: 0 }
    }

    /// Returns all entries of one segment in hash order.
    pub fn segment(&self, number: usize) -> impl Iterator<Item = (KeyHash, IndexEntry)> + '_ {
        self.segments[number].iter().map(move |(low, entry)| (join(number, low), entry))
    }

    /// Replaces a segment's entries by those of a checkpoint, sorted by hash. Refuses entries of other segments and
    /// entries out of order.
    ///
    /// # Errors
    /// The hash of the first refused entry.
    pub fn load_segment(&mut self, number: usize, entries: &[(KeyHash, IndexEntry)]) -> Result<(), KeyHash> {
        let mut lows = Vec::with_capacity(entries.len());
        for &(hash, entry) in entries {
            let (segment, low) = split(hash);
            if segment != number || lows.last().is_some_and(|&(last, _)| last > low) {
                return Err(hash);
            }
            lows.push((low, entry));
        }
        self.len -= self.segments[number].iter().count() as u64;
        self.segments[number] = IndexSegment::load(&lows);
        self.len += lows.len() as u64;
        Ok(())
    }
}

impl RecordIndex for HashedIndex {
    #[inline]
    fn find(&self, hash: KeyHash, nth: usize) -> Option<IndexEntry> {
        let (segment, low) = split(hash);
        self.segments[segment].find(low, nth)
    }

    fn insert(&mut self, hash: KeyHash, entry: IndexEntry) {
        let (segment, low) = split(hash);
        self.segments[segment].insert(low, entry);
        self.len += 1;
    }

    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: IndexEntry) -> bool {
        let (segment, low) = split(hash);
        self.segments[segment].replace(low, old, new)
    }

    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool {
        let (segment, low) = split(hash);
        let removed = self.segments[segment].remove(low, address);
        self.len -= u64::from(removed);
        removed
    }

    fn next(&self, from: KeyHash) -> Option<(KeyHash, IndexEntry)> {
        let (segment, low) = split(from);
        let first = self.segments.get(segment)?.next(low).map(|(low, entry)| (join(segment, low), entry));
        first.or_else(|| {
            (segment + 1..SEGMENTS).find_map(|number| {
                self.segments[number].next(0).map(|(low, entry)| (join(number, low), entry))
            })
        })
    }

    #[inline]
    fn prefetch(&self, hash: KeyHash) {
        let (segment, low) = split(hash);
        self.segments[segment].prefetch(low);
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self) -> u64 {
        let tables: usize = self.segments.iter().map(IndexSegment::bytes).sum();
        (tables + SEGMENTS * size_of::<IndexSegment>()) as u64
    }
}

/// Bytes of an entry in a checkpoint.
pub const ENTRY_BYTES: usize = 16;

const LIMITED_BIT: u64 = 1 << 23;
const UNITS_MASK: u64 = LIMITED_BIT - 1;

/// Encodes an entry for a checkpoint: hash in the low 60 bits and namespace minus 1 in the high 4; then address in the
/// high 40 bits, lifetime in bit 23, units below.
#[must_use]
pub fn encode_entry(hash: KeyHash, entry: IndexEntry) -> [u8; ENTRY_BYTES] {
    let lifetime = if entry.lifetime == EntryLifetime::Limited { LIMITED_BIT } else { 0 };
    let hash_and_namespace = hash.0 | u64::from(entry.namespace.0 - 1) << HASH_BITS;
    let address_and_units = entry.address.0 << 24 | lifetime | u64::from(entry.units);
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(&hash_and_namespace.to_le_bytes());
    bytes[8..].copy_from_slice(&address_and_units.to_le_bytes());
    bytes
}

/// Decodes an entry of a checkpoint.
#[must_use]
pub fn decode_entry(bytes: [u8; ENTRY_BYTES]) -> (KeyHash, IndexEntry) {
    let [hash_and_namespace, address_and_units]: [zerocopy::little_endian::U64; 2] =
        zerocopy::transmute!(bytes);
    let (hash_and_namespace, address_and_units) = (hash_and_namespace.get(), address_and_units.get());
    let entry = IndexEntry {
        address: RecordAddress(address_and_units >> 24),
        units: (address_and_units & UNITS_MASK) as u32,
        namespace: NamespaceId((hash_and_namespace >> HASH_BITS) as u8 + 1),
        lifetime: if address_and_units & LIMITED_BIT == 0 {
            EntryLifetime::Unlimited
        } else {
            EntryLifetime::Limited
        },
    };
    (KeyHash(hash_and_namespace & ((1 << HASH_BITS) - 1)), entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entry(address: u64) -> IndexEntry {
        IndexEntry {
            address: RecordAddress(address),
            units: 4,
            namespace: NamespaceId(3),
            lifetime: EntryLifetime::Limited,
        }
    }

    /// Compares the index with a naive model of (hash, address) pairs in order.
    fn agree(index: &HashedIndex, model: &BTreeMap<(u64, u64), ()>, seed: u64) {
        assert_eq!(index.len(), model.len() as u64, "seed {seed}");
        let mut from = Some(KeyHash(0));
        let mut seen = 0;
        let mut last = 0;
        while let Some((hash, _)) = from.and_then(|from| index.next(from)) {
            assert!(hash.0 >= last, "seed {seed}: entries out of hash order");
            last = hash.0;
            let here = model.range((hash.0, 0)..=(hash.0, u64::MAX)).count();
            assert_eq!((0..).map_while(|nth| index.find(hash, nth)).count(), here, "seed {seed}");
            seen += here;
            from = Some(KeyHash(hash.0 + 1));
        }
        assert_eq!(seen, model.len(), "seed {seed}");
    }

    #[test]
    fn seeded_runs_agree_with_a_naive_model() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut index = HashedIndex::new();
            let mut model: BTreeMap<(u64, u64), ()> = BTreeMap::new();
            for step in 1..4_000u64 {
                // Few distinct hashes in few segments provoke runs, equal hashes and growth.
                let hash =
                    KeyHash(random.u64(0..3) << SLOT_HASH_BITS | random.u64(0..400) << (random.u32(0..40)));
                let known = model.range((hash.0, 0)..=(hash.0, u64::MAX)).next().map(|(key, ())| key.1);
                match (random.u8(0..4), known) {
                    (0, Some(address)) => {
                        assert!(index.remove(hash, RecordAddress(address)), "seed {seed}");
                        model.remove(&(hash.0, address));
                        assert!(!index.remove(hash, RecordAddress(address)), "seed {seed}");
                    }
                    (1, Some(address)) => {
                        assert!(index.replace(hash, RecordAddress(address), entry(step)), "seed {seed}");
                        assert!(!index.replace(hash, RecordAddress(address), entry(step)), "seed {seed}");
                        model.remove(&(hash.0, address));
                        model.insert((hash.0, step), ());
                    }
                    _ => {
                        index.insert(hash, entry(step));
                        model.insert((hash.0, step), ());
                        assert!(index.contains(hash, RecordAddress(step)), "seed {seed}");
                    }
                }
            }
            agree(&index, &model, seed);
        }
    }

    #[test]
    fn a_segment_loads_as_it_was_saved() {
        let mut index = HashedIndex::new();
        let mut random = fastrand::Rng::with_seed(1);
        for address in 1..10_000 {
            index.insert(KeyHash(random.u64(..) >> 4), entry(address));
        }
        let mut loaded = HashedIndex::new();
        for number in 0..SEGMENTS {
            let saved: Vec<_> =
                index.segment(number).map(|(hash, entry)| encode_entry(hash, entry)).collect();
            let entries: Vec<_> = saved.into_iter().map(decode_entry).collect();
            loaded.load_segment(number, &entries).unwrap();
        }
        assert_eq!(loaded.len(), index.len());
        for number in 0..SEGMENTS {
            assert!(loaded.segment(number).eq(index.segment(number)));
        }
        assert!(
            loaded.load_segment(1, &[(KeyHash(0), entry(1))]).is_err(),
            "an entry of another segment is refused"
        );
    }

    #[test]
    fn a_million_keys_take_under_32_bytes_each() {
        let mut index = HashedIndex::new();
        let mut random = fastrand::Rng::with_seed(2);
        for address in 1..=1_000_000u64 {
            index.insert(KeyHash(random.u64(..) >> 4), entry(address));
        }
        assert!(index.bytes() / index.len() < 32, "{} bytes a key", index.bytes() / index.len());
    }
}
