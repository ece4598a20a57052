//! The index: the address of each live record, by the hash of its key.
//!
//! Input: a [`KeyHash`] and an [`IndexEntry`]. Output: candidates; the caller always compares the full key with the record,
//! because different keys may have the same hash. Keys are in a [`HashedIndex`], blocks in a [`flat`] one by their
//! position; the [`CompositeIndex`] combines both. Invariant: an entry is found by its hash from its insertion to its
//! removal, whatever is inserted, moved or removed in between; entries are in the order of their hashes.

pub mod expiry;
pub mod flat;
mod segment;

use crate::command::{Lba, NamespaceId};
use crate::limits::{HASH_BITS, NAMESPACE_BLOCKS_MAX};
use crate::log::record::{RecordAddress, RecordHeader};
use segment::{IndexSegment, SLOT_HASH_BITS};

pub use flat::FlatIndex;

/// The hash of a namespace and key: 60 bits, stable for the lifetime of a process. For a block it is not a hash but the
/// block's position: bit 63 set, the namespace in bits 58 to 62, the block address below. So positions follow all
/// hashes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

const POSITION_BIT: u64 = 1 << 63;
const LBA_BITS: u32 = 58;
const LBA_MASK: u64 = (1 << LBA_BITS) - 1;

const _: () = assert!(NAMESPACE_BLOCKS_MAX <= LBA_MASK && HASH_BITS < 63);

impl KeyHash {
    /// The lowest position.
    pub const FIRST_POSITION: Self = Self(POSITION_BIT);

    /// Returns the position of a block.
    #[must_use]
    #[inline]
    pub const fn of_block(namespace: NamespaceId, lba: Lba) -> Self {
        Self(POSITION_BIT | (namespace.0 as u64) << LBA_BITS | lba.0 & LBA_MASK)
    }

    /// Returns true if it is the position of a block.
    #[must_use]
    #[inline]
    pub const fn is_position(self) -> bool {
        self.0 & POSITION_BIT != 0
    }

    /// Returns the namespace and the block of a position.
    #[must_use]
    #[inline]
    pub const fn namespace_and_lba(self) -> (NamespaceId, Lba) {
        (NamespaceId(((self.0 & !POSITION_BIT) >> LBA_BITS) as u8), Lba(self.0 & LBA_MASK))
    }
}

/// The key hash function: a secret seed, and the mask of the hash bits in use.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    seed: u64,
    mask: u64,
}

impl KeyHasher {
    /// Makes a hasher that keeps the top `bits` of [`HASH_BITS`] bits; fewer than all of them only to provoke
    /// collisions.
    #[must_use]
    pub fn new(seed: u64, bits: u32) -> Self {
        let all = (1u64 << HASH_BITS) - 1;
        let dropped = HASH_BITS - bits.clamp(1, HASH_BITS);
        Self { seed, mask: all & !((1u64 << dropped) - 1) }
    }

    /// Returns seed and mask, which a checkpoint stores.
    #[must_use]
    pub fn parts(&self) -> (u64, u64) {
        (self.seed, self.mask)
    }

    /// Makes the hasher with these [`parts`](Self::parts).
    #[must_use]
    pub fn from_parts((seed, mask): (u64, u64)) -> Self {
        Self { seed, mask: mask & ((1u64 << HASH_BITS) - 1) }
    }

    /// Returns the hash of a key.
    #[must_use]
    #[inline]
    pub fn hash(&self, namespace: NamespaceId, key: &[u8]) -> KeyHash {
        let seed = self.seed ^ (u64::from(namespace.0) << 56);
        KeyHash(xxhash_rust::xxh3::xxh3_64_with_seed(key, seed) >> (64 - HASH_BITS) & self.mask)
    }

    /// Returns the index key of the record with this header and key: the key's hash, or the block's position.
    #[must_use]
    #[inline]
    pub fn index_key(&self, header: &RecordHeader, key: &[u8]) -> KeyHash {
        match header.lba(key) {
            Some(lba) => KeyHash::of_block(header.namespace, lba),
            None => self.hash(header.namespace, key),
        }
    }

    /// Returns the digest that identifies a record's key while recovery sorts records; for a block it is the position.
    #[must_use]
    pub fn digest_of(&self, header: &RecordHeader, key: &[u8]) -> u128 {
        match header.lba(key) {
            Some(lba) => u128::from(KeyHash::of_block(header.namespace, lba).0),
            None => self.digest(header.namespace, key),
        }
    }

    /// Returns the 128-bit digest that identifies a key while recovery sorts records.
    #[must_use]
    pub fn digest(&self, namespace: NamespaceId, key: &[u8]) -> u128 {
        xxhash_rust::xxh3::xxh3_128_with_seed(key, !self.seed ^ u64::from(namespace.0))
    }
}

/// The presence of an expiry on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryLifetime {
    /// No expiry.
    Unlimited,
    /// The header carries an expiry, and the expiry queue holds the record.
    Limited,
}

/// The address and the properties of a live record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Address of its header.
    pub address: RecordAddress,
    /// Its length in 16-byte units.
    pub units: u32,
    /// Namespace of its key.
    pub namespace: NamespaceId,
    /// Presence of an expiry.
    pub lifetime: EntryLifetime,
    /// True if a part of its value lies in extents.
    pub has_extents: bool,
}

/// The units of an entry, with a bit that says if it has extents. The longest record has fewer.
pub(crate) const EXTENTS_UNIT: u32 = 1 << 22;
const _: () = assert!(crate::log::record::RECORD_UNITS_MAX < EXTENTS_UNIT);

impl IndexEntry {
    /// Returns an entry with which the header of a record is read of which only the address is known.
    #[must_use]
    pub(crate) const fn probe(address: RecordAddress) -> Self {
        Self {
            address,
            units: 3,
            namespace: NamespaceId::FIRST,
            lifetime: EntryLifetime::Unlimited,
            has_extents: false,
        }
    }

    /// Returns the units, with the bit of the extents.
    #[inline]
    const fn packed_units(&self) -> u32 {
        if self.has_extents { self.units | EXTENTS_UNIT } else { self.units }
    }
}

/// The operations that the FTL needs of an index.
pub trait RecordIndex {
    /// Returns the `nth` entry with this hash; entries of one hash have no particular order.
    fn find(&self, hash: KeyHash, nth: usize) -> Option<IndexEntry>;

    /// Returns true if exactly this record is live.
    fn contains(&self, hash: KeyHash, address: RecordAddress) -> bool {
        (0..).map_while(|nth| self.find(hash, nth)).any(|entry| entry.address == address)
    }

    /// Adds an entry.
    fn insert(&mut self, hash: KeyHash, entry: IndexEntry);

    /// Replaces the entry at `old` by `new` (compare and swap). Returns false, without a change, if there is no such
    /// entry.
    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: IndexEntry) -> bool;

    /// Removes the entry at this address. Returns false if there is none.
    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool;

    /// Returns the first entry whose hash is `from` or higher.
    fn next(&self, from: KeyHash) -> Option<(KeyHash, IndexEntry)>;

    /// Prefetches the memory that [`find`](Self::find) will read.
    fn prefetch(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// Returns the number of entries.
    fn len(&self) -> u64;

    /// Returns true if there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of DRAM in use.
    fn bytes(&self) -> u64;
}

/// The index of a device: keys in the hashed part, blocks in the flat one. Positions are only in the flat part, hashes only
/// in the hashed part; in the order of all entries every key comes before every block.
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

const SEGMENT_BITS: u32 = HASH_BITS - SLOT_HASH_BITS;
/// Segments of an index.
pub const SEGMENTS: usize = 1 << SEGMENT_BITS;

/// The index of key namespaces: 4,096 segments selected by the top bits of the hash, each a sorted table. Each operation
/// changes one segment only, so the longest pause is the growth of one segment (2,500 entries at ten million keys).
#[derive(Debug)]
pub struct HashedIndex {
    segments: Box<[IndexSegment]>,
    /// Bit `n % 64` of word `n / 64` is set if segment `n` has entries.
    occupied: [u64; SEGMENTS / 64],
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
        Self {
            segments: (0..SEGMENTS).map(|_| IndexSegment::default()).collect(),
            occupied: [0; SEGMENTS / 64],
            len: 0,
        }
    }

    /// Returns the number of empty segments from `first` on that follow each other, at most `max`.
    pub fn empty_segments(&self, first: usize, max: usize) -> usize {
        (self.next_occupied(first) - first).min(max)
    }

    /// Returns the first segment with entries from `first` on; the number of segments if there is none.
    fn next_occupied(&self, first: usize) -> usize {
        let mut at = first / 64;
        let mut word = self.occupied.get(at).map_or(0, |word| word >> (first % 64) << (first % 64));
        while word == 0 {
            at += 1;
            let Some(next) = self.occupied.get(at) else { return SEGMENTS };
            word = *next;
        }
        64 * at + word.trailing_zeros() as usize
    }

    fn set_occupied(&mut self, segment: usize, is_occupied: bool) {
        let (word, bit) = (&mut self.occupied[segment / 64], 1 << (segment % 64));
        *word = if is_occupied { *word | bit } else { *word & !bit };
    }

    /// Returns all entries of one segment in hash order.
    pub fn segment(&self, number: usize) -> impl Iterator<Item = (KeyHash, IndexEntry)> + '_ {
        self.segments[number].iter().map(move |(low, entry)| (join(number, low), entry))
    }

    /// Removes the entries of a namespace from the first segment with entries from `first` on, and passes each to `retire`.
    /// Returns the segment and the number of entries that it had; `None` if no segment is left.
    pub fn remove_namespace(
        &mut self,
        first: usize,
        namespace: NamespaceId,
        mut retire: impl FnMut(IndexEntry),
    ) -> Option<(usize, usize)> {
        let number = self.next_occupied(first);
        let segment = self.segments.get_mut(number)?;
        let mut removed = 0;
        let entries = segment.remove_namespace(namespace, |entry| {
            removed += 1;
            retire(entry);
        });
        let is_occupied = !segment.is_empty();
        self.set_occupied(number, is_occupied);
        self.len -= removed;
        Some((number, entries))
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
        if entries.is_empty() && self.segments[number].is_empty() {
            return Ok(());
        }
        self.len -= self.segments[number].iter().count() as u64;
        self.segments[number] = IndexSegment::load(&lows);
        self.set_occupied(number, !lows.is_empty());
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
        self.set_occupied(segment, true);
        self.len += 1;
    }

    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: IndexEntry) -> bool {
        let (segment, low) = split(hash);
        self.segments[segment].replace(low, old, new)
    }

    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool {
        let (segment, low) = split(hash);
        let removed = self.segments[segment].remove(low, address);
        self.set_occupied(segment, !self.segments[segment].is_empty());
        self.len -= u64::from(removed);
        removed
    }

    fn next(&self, from: KeyHash) -> Option<(KeyHash, IndexEntry)> {
        let (segment, low) = split(from);
        let first = self.segments.get(segment)?.next(low).map(|(low, entry)| (join(segment, low), entry));
        first.or_else(|| {
            let number = self.next_occupied(segment + 1);
            self.segments.get(number)?.next(0).map(|(low, entry)| (join(number, low), entry))
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
    let address_and_units = entry.address.0 << 24 | lifetime | u64::from(entry.packed_units());
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
    let packed = (address_and_units & UNITS_MASK) as u32;
    let entry = IndexEntry {
        address: RecordAddress(address_and_units >> 24),
        units: packed & !EXTENTS_UNIT,
        has_extents: packed & EXTENTS_UNIT != 0,
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
mod tests;
