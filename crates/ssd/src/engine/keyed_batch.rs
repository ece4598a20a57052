//! A batch whose keys are hashed while a front end builds it.
//!
//! Input: writes, a part at a time. Output: a batch for [`SsdDevice::submit_batch`](super::SsdDevice::submit_batch), which
//! does not hash the keys again: other operations need not wait until all keys of the batch are known.
//! Invariant: the hashes are those of the first writes, in their order.

use super::batch_keys::{BatchKeys, BatchLimits, SHORT_BATCH_WRITES, names_key_twice};
use super::batch_namespaces::BatchNamespaces;
use crate::command::{BatchWrite, NamespaceId};
use crate::index::KeyHasher;
use crate::limits::{BATCH_WRITES_MAX, KEY_BYTES_MAX};
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;

/// The writes of one batch, with the hashes of their keys.
#[derive(Debug)]
pub struct KeyedBatch {
    namespace: NamespaceId,
    writes: Vec<BatchWrite>,
    /// Bytes of all writes, kept so that the turn that submits them does not visit each one.
    bytes: usize,
    /// An upper bound of the lengths of the values: a longer one may have been replaced.
    value_bytes_max: usize,
    /// True if the length of a key is outside the limits.
    has_unfit_key: bool,
    /// The hashes, and the hasher that computed them; `None` for a short batch.
    keys: Option<(KeyHasher, Box<BatchKeys>)>,
    /// Writes for which there is room.
    writes_max: usize,
}

impl KeyedBatch {
    /// Makes an empty batch with room for this many writes.
    #[must_use]
    pub fn with_room(namespace: NamespaceId, writes_max: usize) -> Self {
        let writes = Vec::with_capacity(writes_max);
        let (bytes, value_bytes_max, has_unfit_key) = (0, 0, false);
        Self { namespace, writes, bytes, value_bytes_max, has_unfit_key, keys: None, writes_max }
    }

    /// Returns the namespace of the writes.
    #[must_use]
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Returns the writes.
    #[must_use]
    pub fn writes(&self) -> &[BatchWrite] {
        &self.writes
    }

    /// Returns the sum of the [`bytes`](BatchWrite::bytes) of the writes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a length that no value of the writes exceeds.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// Appends a write, whose key no other write has.
    pub fn push(&mut self, write: BatchWrite) {
        let key_bytes = write.key().len();
        self.has_unfit_key |= key_bytes == 0 || key_bytes > KEY_BYTES_MAX;
        self.note(&write);
        self.writes.push(write);
    }

    /// Replaces a write by another one of the same key.
    ///
    /// # Panics
    /// There is no write with this index, or it has another key.
    pub fn replace(&mut self, index: usize, write: BatchWrite) {
        assert!(self.writes[index].key() == write.key(), "write {index} of a batch would get another key");
        self.note(&write);
        self.bytes -= std::mem::replace(&mut self.writes[index], write).bytes();
    }

    fn note(&mut self, write: &BatchWrite) {
        self.bytes += write.bytes();
        self.value_bytes_max = self.value_bytes_max.max(to_usize(write.value_bytes()));
    }

    /// Takes the writes out of the batch.
    #[must_use]
    pub fn into_writes(self) -> Vec<BatchWrite> {
        self.writes
    }

    /// Hashes the keys of the writes that were appended since the last call. The device hashes those of a short batch.
    pub(crate) fn hash_keys(&mut self, hasher: &KeyHasher) {
        if self.writes_max <= SHORT_BATCH_WRITES || self.writes.len() > BATCH_WRITES_MAX {
            return;
        }
        let new = || (*hasher, Box::new(BatchKeys::with_writes(self.writes_max.min(BATCH_WRITES_MAX))));
        let (_, keys) = self.keys.get_or_insert_with(new);
        for write in &self.writes[keys.len()..] {
            keys.push(hasher.hash(self.namespace, write.key()));
        }
    }

    /// Splits the batch into its writes and their hashes. There are none if the device must check the writes: the batch is
    /// short or exceeds a limit, or not all keys were hashed by the device's hasher.
    ///
    /// # Errors
    /// The status of a batch that names a key twice.
    pub(super) fn into_parts(self, hasher: &KeyHasher, limits: BatchLimits) -> Result<KeyedParts, Status> {
        let is_within = !self.has_unfit_key
            && self.bytes <= limits.bytes_max
            && self.value_bytes_max <= limits.value_max
            && self.writes.len() > SHORT_BATCH_WRITES;
        let keys = self.keys.filter(|(by, keys)| {
            is_within && by.parts() == hasher.parts() && keys.len() == self.writes.len()
        });
        let Some((_, mut keys)) = keys else { return Ok((self.writes, None)) };
        keys.close();
        if keys.share_hash() && names_key_twice(&self.writes, BatchNamespaces::One(self.namespace)) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        Ok((self.writes, Some(keys)))
    }
}

/// The writes of a batch, and the hashes of their keys.
type KeyedParts = (Vec<BatchWrite>, Option<Box<BatchKeys>>);
