//! The spans of keys and blocks that stalled operations hold, and the operations that wait for them.
//!
//! Input: operations with their spans. Output: true for an operation that must wait, and the operations that may run when a
//! span is free. Invariant: held spans are disjoint, and each waiting operation is in one queue. Neither a hold nor a release
//! takes longer the more keys a long batch has: its keys stay together, and only those with waiters have a queue.

use super::batch_keys::BatchKeys;
use super::key_span::KeySpan;
use super::operation::DeviceOperation;
use crate::index::KeyHash;
use std::collections::{BTreeMap, VecDeque};

/// A span that is held by itself.
#[derive(Debug)]
struct SingleSpan {
    last: KeyHash,
    /// Operations that wait for the span.
    waiters: VecDeque<usize>,
}

/// Single spans by their first hash.
type SingleSpans = BTreeMap<KeyHash, SingleSpan>;

/// The keys of a long batch.
#[derive(Debug)]
struct HeldBatch {
    holder: usize,
    keys: Box<BatchKeys>,
    /// Operations that wait, by the hash of the key.
    waiters: BTreeMap<KeyHash, VecDeque<usize>>,
}

impl HeldBatch {
    /// Returns the hash of a key that the operation works on too.
    fn overlap(&self, operation: &DeviceOperation) -> Option<KeyHash> {
        match &operation.batch_keys {
            Some(keys) => self.keys.find_any_of(keys),
            // The span of a key has one hash, and that of blocks begins with none.
            None => self.keys.find_any(operation.spans().iter().map(|span| span.first)),
        }
    }
}

/// All spans that are held.
#[derive(Debug, Default)]
pub(super) struct HeldSpans {
    single: SingleSpans,
    batches: Vec<HeldBatch>,
}

impl HeldSpans {
    /// Returns true if no span is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.single.is_empty() && self.batches.is_empty()
    }

    /// Returns the queue behind a held span that overlaps one of the operation.
    pub(super) fn waiters_of_overlap(&mut self, operation: &DeviceOperation) -> Option<&mut VecDeque<usize>> {
        for batch in &mut self.batches {
            if let Some(hash) = batch.overlap(operation) {
                return Some(batch.waiters.entry(hash).or_default());
            }
        }
        let first = match &operation.batch_keys {
            Some(keys) => keys.find_any(self.single.keys().copied()),
            None => single_of_spans(&self.single, operation.spans()),
        };
        self.single.get_mut(&first?).map(|held| &mut held.waiters)
    }

    /// Returns all queues.
    pub(super) fn queues(&mut self) -> impl Iterator<Item = &mut VecDeque<usize>> {
        let of_batches = self.batches.iter_mut().flat_map(|batch| batch.waiters.values_mut());
        self.single.values_mut().map(|held| &mut held.waiters).chain(of_batches)
    }

    /// Holds the spans of an operation. The keys of a long batch leave it.
    ///
    /// # Panics
    /// One of them is held, or keys of the batch are missing.
    pub(super) fn hold(&mut self, at: usize, operation: &mut DeviceOperation) {
        operation.holds_keys = true;
        if let Some(keys) = operation.batch_keys.take() {
            assert!(keys.is_whole(), "a batch runs before all its keys were checked");
            self.batches.push(HeldBatch { holder: at, keys, waiters: BTreeMap::new() });
            return;
        }
        for span in operation.spans() {
            let held = SingleSpan { last: span.last, waiters: VecDeque::new() };
            let before = self.single.insert(span.first, held);
            assert!(before.is_none(), "two operations hold the span that begins at {:?}", span.first);
        }
    }

    /// Releases the spans of an operation, and passes the operations that waited for them to `wake`.
    ///
    /// # Panics
    /// One of them is not held.
    pub(super) fn release(
        &mut self,
        at: usize,
        operation: &DeviceOperation,
        mut wake: impl FnMut(VecDeque<usize>),
    ) {
        if let Some(batch) = self.batches.iter().position(|batch| batch.holder == at) {
            self.batches.remove(batch).waiters.into_values().for_each(wake);
            return;
        }
        for span in operation.spans() {
            let held = self.single.remove(&span.first).expect("an operation lost a span that it holds");
            wake(held.waiters);
        }
    }
}

/// Returns the first hash of a single span that overlaps one of these sorted and disjoint spans.
fn single_of_spans(single: &SingleSpans, spans: &[KeySpan]) -> Option<KeyHash> {
    if spans.len() > single.len() {
        let overlaps = |first: KeyHash, last: KeyHash| {
            let at = spans.partition_point(|span| span.last < first);
            spans.get(at).is_some_and(|span| span.first <= last)
        };
        single.iter().find(|(first, held)| overlaps(**first, held.last)).map(|(first, _)| *first)
    } else {
        let overlapped = |span: &KeySpan| {
            let (first, held) = single.range(..=span.last).next_back()?;
            (held.last >= span.first).then_some(*first)
        };
        spans.iter().find_map(overlapped)
    }
}
