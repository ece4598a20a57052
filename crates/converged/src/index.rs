//! The index: where each live record lies, by the hash of its key.
//!
//! In: a [`KeyHash`] and an [`Entry`]. Out: candidates; the caller always compares the full key on the record itself,
//! because a hash is not a key. Keys are found in a [`hashed`] index; blocks have a place instead of a hash, and a
//! [`flat`] one. Both together are the [`CompositeIndex`], which nobody need look into.
//! Invariant: an entry is found by its hash from the moment it is inserted until it is removed, whatever is inserted,
//! moved or removed in between; entries come out in the order of their hashes.

pub mod composite;
pub mod flat;
pub mod hashed;
mod segment;

use crate::command::{Lba, NamespaceId};
use crate::record::{RecordAddress, RecordHeader};

pub use composite::CompositeIndex;
pub use flat::FlatIndex;
pub use hashed::HashedIndex;

/// Bits of a key hash that the index keeps.
pub const HASH_BITS: u32 = 60;

/// The hash of a namespace and key: 60 bits, stable for the life of a process. Of a block it is no hash but its place:
/// bit 63, the namespace in bits 58 to 62, the block address below. So places stand behind all hashes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

const PLACE: u64 = 1 << 63;
const LBA_BITS: u32 = 58;
const LBA_MASK: u64 = (1 << LBA_BITS) - 1;

const _: () = assert!(crate::limits::NAMESPACE_BLOCKS_MAX <= LBA_MASK && HASH_BITS < 63);

impl KeyHash {
    /// The first place.
    pub const PLACES: Self = Self(PLACE);

    /// The place of a block.
    #[must_use]
    #[inline]
    pub const fn of_block(namespace: NamespaceId, lba: Lba) -> Self {
        Self(PLACE | (namespace.0 as u64) << LBA_BITS | lba.0 & LBA_MASK)
    }

    /// Whether it is the place of a block.
    #[must_use]
    #[inline]
    pub const fn is_place(self) -> bool {
        self.0 & PLACE != 0
    }

    /// The namespace and the block of a place.
    #[must_use]
    #[inline]
    pub const fn block(self) -> (NamespaceId, Lba) {
        (NamespaceId(((self.0 & !PLACE) >> LBA_BITS) as u8), Lba(self.0 & LBA_MASK))
    }
}

/// How keys are hashed: a seed that outsiders do not know, and how many bits are kept.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    seed: u64,
    mask: u64,
}

impl KeyHasher {
    /// A hasher that keeps the top `bits` of [`HASH_BITS`] bits; fewer than all of them only to provoke collisions.
    #[must_use]
    pub fn new(seed: u64, bits: u32) -> Self {
        let all = (1u64 << HASH_BITS) - 1;
        let dropped = HASH_BITS - bits.clamp(1, HASH_BITS);
        Self { seed, mask: all & !((1u64 << dropped) - 1) }
    }

    /// Seed and mask, as a checkpoint keeps them.
    #[must_use]
    pub fn parts(&self) -> (u64, u64) {
        (self.seed, self.mask)
    }

    /// The hasher whose [`parts`](Self::parts) these are.
    #[must_use]
    pub fn from_parts((seed, mask): (u64, u64)) -> Self {
        Self { seed, mask: mask & ((1u64 << HASH_BITS) - 1) }
    }

    /// The hash of a key.
    #[must_use]
    #[inline]
    pub fn hash(&self, namespace: NamespaceId, key: &[u8]) -> KeyHash {
        let seed = self.seed ^ (u64::from(namespace.0) << 56);
        KeyHash(xxhash_rust::xxh3::xxh3_64_with_seed(key, seed) >> (64 - HASH_BITS) & self.mask)
    }

    /// Where the index has the record with this header and key: under the key's hash, or at the block's place.
    #[must_use]
    #[inline]
    pub fn hash_of(&self, header: &RecordHeader, key: &[u8]) -> KeyHash {
        match header.lba(key) {
            Some(lba) => KeyHash::of_block(header.namespace, lba),
            None => self.hash(header.namespace, key),
        }
    }

    /// What stands for the key of a record while records are sorted at recovery: for a block its place.
    #[must_use]
    pub fn digest_of(&self, header: &RecordHeader, key: &[u8]) -> u128 {
        match header.lba(key) {
            Some(lba) => u128::from(KeyHash::of_block(header.namespace, lba).0),
            None => self.digest(header.namespace, key),
        }
    }

    /// A 128-bit digest that stands for a key while records are sorted at recovery.
    #[must_use]
    pub fn digest(&self, namespace: NamespaceId, key: &[u8]) -> u128 {
        xxhash_rust::xxh3::xxh3_128_with_seed(key, !self.seed ^ u64::from(namespace.0))
    }
}

/// Whether a record ceases to exist by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// No expiry.
    Unlimited,
    /// Its header carries an expiry, and the expiry queue knows it.
    Limited,
}

/// Where a live record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Of its header.
    pub address: RecordAddress,
    /// Its length in 16-byte units.
    pub units: u32,
    /// Whose key.
    pub namespace: NamespaceId,
    /// Whether it ceases by itself.
    pub lifetime: Lifetime,
}

/// What the translation layer needs of an index.
pub trait Index {
    /// The `nth` entry with this hash, in no particular order among themselves.
    fn find(&self, hash: KeyHash, nth: usize) -> Option<Entry>;

    /// Whether exactly this record is live.
    fn contains(&self, hash: KeyHash, address: RecordAddress) -> bool {
        (0..).map_while(|nth| self.find(hash, nth)).any(|entry| entry.address == address)
    }

    /// Adds an entry.
    fn insert(&mut self, hash: KeyHash, entry: Entry);

    /// Puts `new` in place of the entry at `old`; false and no change when there is none (compare and swap).
    fn replace(&mut self, hash: KeyHash, old: RecordAddress, new: Entry) -> bool;

    /// Removes the entry at this address; false when there is none.
    fn remove(&mut self, hash: KeyHash, address: RecordAddress) -> bool;

    /// The first entry whose hash is `from` or later.
    fn next(&self, from: KeyHash) -> Option<(KeyHash, Entry)>;

    /// Asks the processor to bring in what [`find`](Self::find) will read.
    fn prefetch(&self, hash: KeyHash) {
        let _ = hash;
    }

    /// Entries held.
    fn len(&self) -> u64;

    /// Whether nothing is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of DRAM taken.
    fn bytes(&self) -> u64;
}
