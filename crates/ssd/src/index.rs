//! The index: the address of each live record, by the hash of its key.
//!
//! Input: a [`KeyHash`] and an [`IndexEntry`]. Output: candidates; the caller always compares the full key with the record,
//! because different keys may have the same hash. Keys are in a [`hashed`] index, blocks in a [`flat`] one by their
//! position; the [`CompositeIndex`] combines both. Invariant: an entry is found by its hash from its insertion to its
//! removal, whatever is inserted, moved or removed in between; entries are in the order of their hashes.

pub mod composite;
pub mod expiry;
pub mod flat;
pub mod hashed;
mod segment;

use crate::command::{Lba, NamespaceId};
use crate::limits::{HASH_BITS, NAMESPACE_BLOCKS_MAX};
use crate::log::record::{RecordAddress, RecordHeader};

pub use composite::CompositeIndex;
pub use flat::FlatIndex;
pub use hashed::HashedIndex;

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
