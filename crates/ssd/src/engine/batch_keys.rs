//! The keys of a long batch, which are checked in parts.
//!
//! Input: the writes of a batch. Output: the hashes of their keys, or the status of the limit that the batch exceeds.
//! Invariant: no key occurs twice.

use crate::command::{BatchWrite, NamespaceId};
use crate::engine::batch_namespaces::BatchNamespaces;
use crate::index::{KeyHash, KeyHasher};
use crate::limits::{BATCH_CHECKED_PARTS, BATCH_WRITES_MAX, HASH_BITS, KEY_BYTES_MAX};
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;

/// Writes of a batch above which its keys are kept here.
pub(super) const SHORT_BATCH_WRITES: usize = 512;
/// Writes that are hashed behind their check, while they are in the processor's cache.
const CHUNK_WRITES: usize = 256;

/// A set of hashes that is never wrong about a hash in it, and about one in hundreds of any other hashes.
#[derive(Debug)]
struct HashFilter {
    /// A power of two.
    words: Vec<u64>,
}

impl HashFilter {
    /// Makes an empty set for a number of hashes.
    fn with_hashes(hashes: usize) -> Self {
        Self { words: vec![0; (hashes / 2).max(1).next_power_of_two()] }
    }

    /// Returns the word of a hash, and the bits that it sets there.
    fn word_and_bits(&self, KeyHash(hash): KeyHash) -> (usize, u64) {
        // Hashes of fewer bits have their top ones.
        let word = hash >> (HASH_BITS - self.words.len().trailing_zeros());
        let bits = 1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63);
        (to_usize(word) & (self.words.len() - 1), bits)
    }

    /// Inserts a hash. Returns false if it was not there before.
    fn insert(&mut self, hash: KeyHash) -> bool {
        let (word, bits) = self.word_and_bits(hash);
        let set = &mut self.words[word];
        let was_there = *set & bits == bits;
        *set |= bits;
        was_there
    }

    /// Returns false if the hash is not there.
    fn may_contain(&self, hash: KeyHash) -> bool {
        let (word, bits) = self.word_and_bits(hash);
        self.words[word] & bits == bits
    }
}

impl From<&[KeyHash]> for HashFilter {
    fn from(hashes: &[KeyHash]) -> Self {
        let mut filter = Self::with_hashes(hashes.len());
        for hash in hashes {
            filter.insert(*hash);
        }
        filter
    }
}

/// The keys of the writes of a long batch that were checked.
#[derive(Debug)]
pub(crate) struct BatchKeys {
    /// The hashes of the keys, in the order of the writes: to sort them would take as long as to compute them.
    hashes: Vec<KeyHash>,
    filter: HashFilter,
    /// Hashes that the filter already seemed to have when they were inserted.
    repeated: Vec<KeyHash>,
    /// Writes of the batch.
    writes: usize,
    /// Bytes of the writes that were checked.
    bytes: usize,
}

impl BatchKeys {
    /// Makes the keys of a batch of this many writes, of which none is checked.
    pub(crate) fn with_writes(writes: usize) -> Self {
        let (hashes, filter) = (Vec::with_capacity(writes), HashFilter::with_hashes(writes));
        Self { hashes, filter, repeated: Vec::new(), writes, bytes: 0 }
    }

    /// Returns the number of hashes.
    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Adds the hash of the next write's key.
    #[inline]
    pub(crate) fn push(&mut self, hash: KeyHash) {
        if self.filter.insert(hash) {
            self.repeated.push(hash);
        }
        self.hashes.push(hash);
    }

    /// Notes that the batch has no writes but those whose keys were added.
    pub(crate) fn close(&mut self) {
        self.writes = self.hashes.len();
    }

    /// Returns true if all writes were checked.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.hashes.len() == self.writes
    }

    /// Checks the next part of the writes of a batch.
    ///
    /// # Errors
    /// The status of the limit that they exceed, or of a key that the batch names twice.
    pub(crate) fn check_part(
        &mut self,
        writes: &[BatchWrite],
        namespaces: BatchNamespaces<'_>,
        checks: BatchChecks,
    ) -> Result<(), Status> {
        let first = self.hashes.len();
        let part = &writes[first..self.writes.min(first + BATCH_CHECKED_PARTS * checks.part_writes)];
        for chunk in part.chunks(CHUNK_WRITES) {
            self.bytes = check_writes(chunk, self.bytes, checks.limits)?;
            for write in chunk {
                self.push(checks.hasher.hash(namespaces.of(self.len()), write.key()));
            }
        }
        // Only keys that share a hash may be the same.
        if self.is_whole() && self.share_hash() && names_key_twice(writes, namespaces) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        Ok(())
    }

    /// Returns true if two keys share a hash.
    pub(crate) fn share_hash(&self) -> bool {
        let repeated = HashFilter::from(&self.repeated[..]);
        let mut hashes: Vec<KeyHash> =
            self.hashes.iter().copied().filter(|hash| repeated.may_contain(*hash)).collect();
        hashes.sort_unstable();
        hashes.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Returns one of these hashes that a key has.
    pub(crate) fn find_any(&self, hashes: impl Iterator<Item = KeyHash>) -> Option<KeyHash> {
        self.find_all(hashes).next()
    }

    /// Returns those of these hashes that a key has.
    pub(crate) fn find_all(&self, hashes: impl Iterator<Item = KeyHash>) -> impl Iterator<Item = KeyHash> {
        let mut wanted: Vec<KeyHash> = hashes.filter(|hash| self.filter.may_contain(*hash)).collect();
        wanted.sort_unstable();
        // Without one that the filter seems to have, no key is compared.
        let filter = (!wanted.is_empty()).then(|| HashFilter::from(&wanted[..]));
        let among = |filter: HashFilter| {
            let is_wanted =
                move |hash: &KeyHash| filter.may_contain(*hash) && wanted.binary_search(hash).is_ok();
            self.hashes.iter().copied().filter(is_wanted)
        };
        filter.map(among).into_iter().flatten()
    }

    /// Returns a hash that keys of both batches have.
    pub(crate) fn find_any_of(&self, other: &Self) -> Option<KeyHash> {
        self.find_any(other.hashes.iter().copied())
    }
}

/// The limits of a batch that depend on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// Maximum length of a value.
    pub(super) value_max: usize,
    /// Maximum bytes of all writes.
    pub(super) bytes_max: usize,
}

/// The parameters of the check of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchChecks {
    pub(super) hasher: KeyHasher,
    /// Writes that a turn carries out.
    pub(super) part_writes: usize,
    pub(super) limits: BatchLimits,
}

/// Checks that a batch is inside the limits. Of a long one only the number of writes is checked: the writes are checked in
/// parts.
pub(super) fn check_batch(writes: &[BatchWrite], limits: BatchLimits) -> Result<(), Status> {
    if writes.len() > BATCH_WRITES_MAX {
        Err(Status::INVALID_FIELD)
    } else if writes.len() > SHORT_BATCH_WRITES {
        Ok(())
    } else {
        check_writes(writes, 0, limits).map(|_| ())
    }
}

/// Checks that writes of a batch are inside the limits, and returns the sum of their bytes and those before them.
pub(super) fn check_writes(
    writes: &[BatchWrite],
    mut bytes: usize,
    limits: BatchLimits,
) -> Result<usize, Status> {
    for write in writes {
        key_fits(write.key())?;
        if matches!(write, BatchWrite::Store { value, .. } if value.len() > limits.value_max) {
            return Err(Status::INVALID_VALUE_SIZE);
        }
        bytes += write.bytes();
    }
    if bytes > limits.bytes_max { Err(Status::COMMAND_SIZE_LIMIT) } else { Ok(bytes) }
}

/// Checks the length of a key.
pub(super) fn key_fits(key: &[u8]) -> Result<(), Status> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX { Err(Status::INVALID_KEY_SIZE) } else { Ok(()) }
}

/// Returns true if a batch names a key of a namespace twice.
pub(super) fn names_key_twice(writes: &[BatchWrite], namespaces: BatchNamespaces<'_>) -> bool {
    let key = |(index, write)| (namespaces.of(index), &BatchWrite::key(write)[..]);
    let mut keys: Vec<(NamespaceId, &[u8])> = writes.iter().enumerate().map(key).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::WriteCondition;
    use std::collections::BTreeSet;

    fn check_of(number: u64) -> BatchWrite {
        let key = bytes::Bytes::from(number.to_string());
        BatchWrite::Check { key, condition: WriteCondition::Always }
    }

    /// Checks all parts of a batch.
    fn keys_of(numbers: &[u64], hash_bits: u32) -> Result<BatchKeys, Status> {
        let limits = BatchLimits { value_max: 0, bytes_max: usize::MAX };
        let checks = BatchChecks { hasher: KeyHasher::new(7, hash_bits), part_writes: 20, limits };
        let writes: Vec<BatchWrite> = numbers.iter().copied().map(check_of).collect();
        let mut keys = BatchKeys::with_writes(writes.len());
        while !keys.is_whole() {
            keys.check_part(&writes, BatchNamespaces::One(NamespaceId::FIRST), checks)?;
        }
        Ok(keys)
    }

    #[test]
    fn keys_are_found_as_a_naive_set_finds_them() {
        let seed = 11;
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..200 {
            let hash_bits = [6, 12, 16, 60][round % 4];
            let mut batch = || {
                let numbers: BTreeSet<u64> =
                    (0..random.u64(1..2_000)).map(|_| random.u64(..100_000)).collect();
                let mut numbers: Vec<u64> = numbers.into_iter().collect();
                random.shuffle(&mut numbers);
                numbers
            };
            let (first, second) = (batch(), batch());
            let keys = keys_of(&first, hash_bits).unwrap();
            let second_keys = keys_of(&second, hash_bits).unwrap();
            let set: BTreeSet<KeyHash> = keys.hashes.iter().copied().collect();
            for hash in &second_keys.hashes {
                assert_eq!(
                    keys.find_any(std::iter::once(*hash)).is_some(),
                    set.contains(hash),
                    "seed {seed}"
                );
            }
            assert!(keys.hashes.iter().all(|hash| keys.find_any(std::iter::once(*hash)) == Some(*hash)));
            let found = keys.find_any_of(&second_keys);
            assert_eq!(
                found.is_some(),
                second_keys.hashes.iter().any(|hash| set.contains(hash)),
                "seed {seed}"
            );
            assert!(found.is_none_or(|hash| set.contains(&hash) && second_keys.hashes.contains(&hash)));
            let all: BTreeSet<KeyHash> = keys.find_all(second_keys.hashes.iter().copied()).collect();
            assert!(
                all.iter().eq(set.intersection(&second_keys.hashes.iter().copied().collect())),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn key_that_is_named_twice_is_found() {
        let seed = 12;
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..200 {
            let hash_bits = [6, 12, 16, 60][round % 4];
            let mut numbers: Vec<u64> = (0..random.u64(2..2_000)).collect();
            assert!(keys_of(&numbers, hash_bits).is_ok());
            let (from, to) = (random.usize(..numbers.len()), random.usize(..numbers.len()));
            numbers.insert(to, numbers[from]);
            let refused = keys_of(&numbers, hash_bits).unwrap_err();
            assert_eq!(refused, Status::COMMAND_SEQUENCE_ERROR, "seed {seed} round {round}");
        }
    }
}
