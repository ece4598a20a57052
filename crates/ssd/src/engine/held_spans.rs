//! The spans of keys and blocks that stalled and waiting operations hold, and the operations that wait for them.
//!
//! Input: operations with their spans, in the order of their submission. Output: true for an operation that must wait, and
//! the operations that may run when another one has ended. Neither an entry nor a release takes longer the more keys a long
//! batch has: its keys stay together.
//!
//! Invariant: an operation waits for each earlier one on its spans that has not ended, or for one that waits for it. An
//! operation enters all its spans in one step, and waits only for those that entered before it. So waits form no cycle, and
//! of all operations here the first one waits for none.

use super::batch_keys::BatchKeys;
use super::key_span::KeySpan;
use super::operation::{DeviceOperation, KeyHold};
use super::operation_slab::OperationSlab;
use crate::index::KeyHash;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// A piece of a span.
#[derive(Clone, Copy, Debug)]
struct HeldSpan {
    last: KeyHash,
    /// The last operation that entered there. It waits for those before it.
    holder: usize,
}

/// Disjoint pieces by their first hash.
type SingleSpans = BTreeMap<KeyHash, HeldSpan>;

/// The keys of a long batch.
#[derive(Debug)]
struct HeldBatch {
    holder: usize,
    keys: Box<BatchKeys>,
}

impl HeldBatch {
    /// Returns true if an operation with these spans, or with the keys of a long batch, works on one of the keys.
    fn overlaps(&self, spans: &[KeySpan], keys: Option<&BatchKeys>) -> bool {
        let key = match keys {
            Some(keys) => self.keys.find_any_of(keys),
            // The span of a key has one hash, and that of blocks begins with none.
            None => self.keys.find_any(spans.iter().map(|span| span.first)),
        };
        key.is_some()
    }
}

/// An operation that waits.
#[derive(Debug)]
struct KeyWait {
    /// Counts the operations that had to wait.
    number: u64,
    /// The operations that it waits for.
    awaited: usize,
}

/// All spans that are held.
#[derive(Debug, Default)]
pub(super) struct HeldSpans {
    single: SingleSpans,
    batches: Vec<HeldBatch>,
    /// The operations that wait for an operation.
    waiters: BTreeMap<usize, Vec<usize>>,
    /// The operations that wait.
    waits: BTreeMap<usize, KeyWait>,
    /// The number of the next one.
    number_next: u64,
}

impl HeldSpans {
    /// Returns true if no span is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.single.is_empty() && self.batches.is_empty()
    }

    /// Makes an operation wait if one of its spans is held: it holds all of them from now on, behind the operations before
    /// it. Returns true if it waits. The keys of a long batch leave it.
    pub(super) fn wait(&mut self, at: usize, operation: &mut DeviceOperation) -> bool {
        if !self.overlaps(operation) {
            return false;
        }
        operation.hold = KeyHold::InOrder;
        let keys = operation.batch_keys.take();
        self.enter(at, operation.spans(), keys);
        true
    }

    /// Holds the spans of an operation that runs. The keys of a long batch leave it.
    ///
    /// # Panics
    /// Another operation holds one of them.
    pub(super) fn hold(&mut self, at: usize, operation: &mut DeviceOperation) {
        if operation.hold == KeyHold::None {
            let keys = operation.batch_keys.take();
            let waits = self.enter(at, operation.spans(), keys);
            assert!(!waits, "an operation runs on a span that another one holds");
        }
        operation.hold = KeyHold::Stalled;
    }

    /// Holds the spans of an operation that has not run and waits for something else, so that no later one overtakes it.
    ///
    /// # Panics
    /// Another operation holds one of them.
    pub(super) fn hold_in_order(&mut self, at: usize, operation: &mut DeviceOperation) {
        self.hold(at, operation);
        operation.hold = KeyHold::InOrder;
    }

    /// Releases the spans of an operation, and passes the operations that waited only for it to `wake`.
    pub(super) fn release(&mut self, at: usize, operation: &DeviceOperation, mut wake: impl FnMut(usize)) {
        if let Some(batch) = self.batches.iter().position(|batch| batch.holder == at) {
            self.batches.remove(batch);
        } else {
            for span in operation.spans() {
                let held = self.single.extract_if(span.first..=span.last, |_, held| held.holder == at);
                held.for_each(drop);
            }
        }
        for waiter in self.waiters.remove(&at).unwrap_or_default() {
            let Entry::Occupied(mut wait) = self.waits.entry(waiter) else {
                unreachable!("an operation that waits is not noted");
            };
            wait.get_mut().awaited -= 1;
            if wait.get().awaited == 0 {
                wait.remove();
                wake(waiter);
            }
        }
    }

    /// Removes an operation that has not run, and passes the operations that waited only for it to `wake`. The rest enter
    /// again in their order, as if it had never been there: those behind it may have to wait for those before it.
    pub(super) fn withdraw(&mut self, at: usize, operations: &OperationSlab, mut wake: impl FnMut(usize)) {
        let batches = std::mem::take(&mut self.batches).into_iter();
        let mut batches: BTreeMap<usize, Box<BatchKeys>> =
            batches.map(|batch| (batch.holder, batch.keys)).collect();
        let single = std::mem::take(&mut self.single).into_values().map(|held| held.holder);
        let awaited = std::mem::take(&mut self.waiters).into_keys();
        let waits = std::mem::take(&mut self.waits);
        let rest: BTreeSet<usize> = single.chain(awaited).chain(batches.keys().copied()).collect();
        let mut rest: Vec<usize> = rest.into_iter().filter(|operation| *operation != at).collect();
        // Those that wait for none come first: they share no span.
        rest.sort_by_key(|operation| waits.get(operation).map(|wait| wait.number));
        for again in rest {
            let is_waiting = self.enter(again, operations[again].spans(), batches.remove(&again));
            if !is_waiting && waits.contains_key(&again) {
                wake(again);
            }
        }
    }

    /// Returns true if a span of the operation is held.
    fn overlaps(&self, operation: &DeviceOperation) -> bool {
        let (spans, keys) = (operation.spans(), operation.batch_keys.as_deref());
        self.batches.iter().any(|batch| batch.overlaps(spans, keys))
            || match keys {
                Some(keys) => keys.find_any(self.single.keys().copied()).is_some(),
                None => overlaps_single(&self.single, spans),
            }
    }

    /// Adds an operation on these spans, or on the keys of a long batch: it waits for the operations there, and later ones
    /// wait for it. Returns true if it waits.
    fn enter(&mut self, at: usize, spans: &[KeySpan], keys: Option<Box<BatchKeys>>) -> bool {
        let overlaps = |batch: &&HeldBatch| batch.overlaps(spans, keys.as_deref());
        let mut before: Vec<usize> = self.batches.iter().filter(overlaps).map(|batch| batch.holder).collect();
        if let Some(keys) = keys {
            assert!(keys.is_whole(), "a batch runs before all its keys were checked");
            before.extend(keys.find_all(self.single.keys().copied()).map(|hash| self.single[&hash].holder));
            self.batches.push(HeldBatch { holder: at, keys });
        } else {
            spans.iter().for_each(|span| take_span(&mut self.single, *span, at, &mut before));
        }
        if before.is_empty() {
            return false;
        }
        before.sort_unstable();
        before.dedup();
        for earlier in &before {
            self.waiters.entry(*earlier).or_default().push(at);
        }
        self.waits.insert(at, KeyWait { number: self.number_next, awaited: before.len() });
        self.number_next += 1;
        true
    }
}

/// Makes an operation the holder of a span, and adds the holders of what it overlaps to `before`.
fn take_span(single: &mut SingleSpans, span: KeySpan, at: usize, before: &mut Vec<usize>) {
    while let Some((first, held)) = last_overlapped(single, &span) {
        before.push(held.holder);
        // Its holder keeps what lies outside of the span.
        single.remove(&first);
        if first < span.first {
            single.insert(first, HeldSpan { last: KeyHash(span.first.0 - 1), ..held });
        }
        if held.last > span.last {
            single.insert(KeyHash(span.last.0 + 1), held);
        }
    }
    single.insert(span.first, HeldSpan { last: span.last, holder: at });
}

/// Returns the last piece that overlaps a span, and its first hash.
fn last_overlapped(single: &SingleSpans, span: &KeySpan) -> Option<(KeyHash, HeldSpan)> {
    let (first, held) = single.range(..=span.last).next_back()?;
    (held.last >= span.first).then_some((*first, *held))
}

/// Returns true if a piece overlaps one of these sorted and disjoint spans.
fn overlaps_single(single: &SingleSpans, spans: &[KeySpan]) -> bool {
    if spans.len() > single.len() {
        let overlaps = |(first, held): (&KeyHash, &HeldSpan)| {
            let at = spans.partition_point(|span| span.last < *first);
            spans.get(at).is_some_and(|span| span.first <= held.last)
        };
        single.iter().any(overlaps)
    } else {
        spans.iter().any(|span| last_overlapped(single, span).is_some())
    }
}
