//! The commands MSET and MSETNX: a batch of writes that is atomic, also across a power cut.
//!
//! Input: keys and values of one namespace. Output: one batch, in which each key occurs once, and one reply.

use super::errors;
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use super::request::{OwnedArguments, RespRequest};
use crate::core_device::CoreDevice;
use bytes::Bytes;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, NamespaceId, RecordExpiry, SsdCompletion, SubmitError, WriteCondition,
};
use headwater_ssd::engine::KeyedBatch;
use headwater_ssd::limits::BATCH_WRITES_MAX;
use std::hash::{BuildHasher as _, RandomState};

/// Pairs of a key and a value that are parsed in one step.
const PAIRS_AT_ONCE: usize = 1_024;
/// Up to this number of writes a repeated key is searched, and then looked up.
const SEARCHED_MAX: usize = 16;

/// An atomic batch of writes.
#[derive(Debug)]
pub(crate) struct AtomicWrites {
    writes: UniqueWrites,
    /// The arguments that are not parsed yet.
    rest: Option<OwnedArguments>,
    done: Option<RespReply>,
    submitted: bool,
}

/// Writes in which each key occurs once.
#[derive(Debug)]
struct UniqueWrites {
    batch: KeyedBatch,
    condition: WriteCondition,
    /// The numbers of the writes by their keys; nothing iterates.
    numbers: HashTable<usize>,
    /// Keyed at random, so that no client knows which keys meet in the table.
    hasher: RandomState,
}

impl UniqueWrites {
    fn new(namespace: NamespaceId, pairs: usize, condition: WriteCondition) -> Self {
        let numbers = HashTable::with_capacity(if pairs > SEARCHED_MAX { pairs } else { 0 });
        Self {
            batch: KeyedBatch::with_room(namespace, pairs),
            condition,
            numbers,
            hasher: RandomState::new(),
        }
    }

    /// Adds the write of a key, or gives the key's write another value.
    fn put(&mut self, key: Bytes, value: Bytes) {
        let store = BatchWrite::Store { key, value, condition: self.condition, expiry: RecordExpiry::Never };
        match self.number_of(store.key()) {
            Some(at) => self.batch.replace(at, store),
            None => self.batch.push(store),
        }
    }

    /// Returns the number of a key's write. A key without one gets the next number.
    fn number_of(&mut self, key: &[u8]) -> Option<usize> {
        if self.numbers.capacity() == 0 {
            return self.batch.writes().iter().position(|write| write.key() == key);
        }
        let (writes, hasher) = (self.batch.writes(), &self.hasher);
        let hash_of = |at: &usize| hasher.hash_one(writes[*at].key());
        match self.numbers.entry(hasher.hash_one(key), |at| writes[*at].key() == key, hash_of) {
            Entry::Occupied(at) => Some(*at.get()),
            Entry::Vacant(vacant) => {
                vacant.insert(writes.len());
                None
            }
        }
    }

    /// Puts the first pairs of some arguments. Returns the number of arguments that they are.
    fn put_part(&mut self, pairs: &RespRequest<'_>) -> usize {
        let end = pairs.len().min(2 * PAIRS_AT_ONCE);
        for at in (0..end).step_by(2) {
            self.put(pairs.bytes(at), pairs.bytes(at + 1));
        }
        end
    }
}

impl AtomicWrites {
    /// Parses alternating keys and values: the first ones here, the rest in the first steps. The last value of a repeated
    /// key is used.
    pub(crate) fn parse(
        request: &RespRequest<'_>,
        namespace: NamespaceId,
        condition: WriteCondition,
    ) -> Self {
        let pairs = request.skip(1);
        let mut writes = UniqueWrites::new(namespace, pairs.len() / 2, condition);
        let parsed = writes.put_part(&pairs);
        let rest = (parsed < pairs.len()).then(|| pairs.skip(parsed).to_owned());
        Self { writes, rest, done: None, submitted: false }
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if let Some(reply) = self.done.take() {
            return DriveResult::Done(reply);
        }
        if self.submitted {
            return DriveResult::Waiting;
        }
        let batch = &mut self.writes.batch;
        // In the steps of the parser, so that no turn hashes all keys.
        context.device.hash_keys(batch);
        if let Some(rest) = &mut self.rest {
            let parsed = self.writes.put_part(&rest.as_request());
            if !rest.skip(parsed) {
                self.rest = None;
            }
            return DriveResult::Again;
        }
        let count = batch.writes().len();
        if count > BATCH_WRITES_MAX {
            return DriveResult::Done(errors::batch_of_too_many(count).into());
        }
        let (bytes, bytes_max) = (batch.bytes(), context.device.batch_bytes_max());
        if bytes > bytes_max {
            return DriveResult::Done(errors::batch_too_large(bytes, bytes_max).into());
        }
        match context.submit_batch(batch) {
            Ok(()) => {
                self.submitted = true;
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => DriveResult::Done(errors::from_status(status).into()),
        }
    }

    /// Sets the reply from the completion.
    pub(crate) fn accept(&mut self, completion: &SsdCompletion) {
        let only_new = self.writes.condition == WriteCondition::IfAbsent;
        self.done = Some(match completion.status {
            Status::SUCCESS if only_new => RespReply::Integer(1),
            Status::SUCCESS => RespReply::Ok,
            Status::KEY_EXISTS if only_new => RespReply::Integer(0),
            other => errors::from_status(other).into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_sum_of_the_writes_that_are_left() {
        let seed = 5;
        let mut random = fastrand::Rng::with_seed(seed);
        // Keys are searched and looked up.
        for pairs in [1, SEARCHED_MAX, SEARCHED_MAX + 1, 500] {
            let mut writes = UniqueWrites::new(NamespaceId::FIRST, pairs, WriteCondition::Always);
            for pair in 0..pairs {
                let key = Bytes::from(random.usize(..pairs.div_ceil(2)).to_string());
                writes.put(key, vec![1; random.usize(..1_000)].into());
                let sum: usize = writes.batch.writes().iter().map(BatchWrite::bytes).sum();
                assert_eq!(writes.batch.bytes(), sum, "seed {seed}, pair {pair} of {pairs}");
            }
            assert!(pairs == 1 || writes.batch.writes().len() < pairs, "no write was replaced");
        }
    }
}
