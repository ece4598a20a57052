//! The spans of keys and blocks that stalled operations hold, and the operations that wait for them.
//!
//! Input: operations with their spans. Output: true for an operation that must wait, and the operations that may run when a
//! span is free. Invariant: held spans are disjoint, and each waiting operation is in one queue. Neither a hold nor a release
//! takes longer the more keys a long batch has: its spans stay together, and only those with waiters have a queue.

use super::key_span::KeySpan;
use super::operation::DeviceOperation;
use crate::index::KeyHash;
use std::collections::{BTreeMap, VecDeque};

/// Spans of an operation above which they are held together.
const SINGLE_SPANS_MAX: usize = 512;

/// A span that is held by itself.
#[derive(Debug)]
struct SingleSpan {
    last: KeyHash,
    /// Operations that wait for the span.
    waiters: VecDeque<usize>,
}

/// The spans of a long batch, sorted and disjoint.
#[derive(Debug)]
struct BatchSpans {
    holder: usize,
    spans: Vec<KeySpan>,
    /// Operations that wait, by the index of the span.
    waiters: BTreeMap<usize, VecDeque<usize>>,
}

impl BatchSpans {
    /// Returns the index of a span that overlaps this one.
    fn overlap(&self, span: KeySpan) -> Option<usize> {
        let at = self.spans.partition_point(|held| held.last < span.first);
        self.spans.get(at).is_some_and(|held| held.first <= span.last).then_some(at)
    }

    /// Returns the index of a span that overlaps one of these sorted and disjoint ones.
    fn overlap_of_any(&self, spans: &[KeySpan]) -> Option<usize> {
        if spans.len() < SINGLE_SPANS_MAX {
            return spans.iter().find_map(|span| self.overlap(*span));
        }
        let mut spans = spans.iter().peekable();
        for (at, held) in self.spans.iter().enumerate() {
            while spans.next_if(|span| span.last < held.first).is_some() {}
            if spans.peek()?.first <= held.last {
                return Some(at);
            }
        }
        None
    }
}

/// All spans that are held.
#[derive(Debug, Default)]
pub(super) struct HeldSpans {
    /// Spans by their first hash.
    single: BTreeMap<KeyHash, SingleSpan>,
    batches: Vec<BatchSpans>,
}

impl HeldSpans {
    /// Returns true if no span is held.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.single.is_empty() && self.batches.is_empty()
    }

    /// Returns the queue behind a held span that overlaps one of these sorted and disjoint spans.
    pub(super) fn waiters_of_overlap(&mut self, spans: &[KeySpan]) -> Option<&mut VecDeque<usize>> {
        for batch in &mut self.batches {
            if let Some(at) = batch.overlap_of_any(spans) {
                return Some(batch.waiters.entry(at).or_default());
            }
        }
        let first = if spans.len() > self.single.len() {
            let overlaps = |first: KeyHash, last: KeyHash| {
                let at = spans.partition_point(|span| span.last < first);
                spans.get(at).is_some_and(|span| span.first <= last)
            };
            self.single.iter().find(|(first, held)| overlaps(**first, held.last)).map(|(first, _)| *first)
        } else {
            let single = |span: &KeySpan| {
                let (first, held) = self.single.range(..=span.last).next_back()?;
                (held.last >= span.first).then_some(*first)
            };
            spans.iter().find_map(single)
        };
        self.single.get_mut(&first?).map(|held| &mut held.waiters)
    }

    /// Returns all queues.
    pub(super) fn queues(&mut self) -> impl Iterator<Item = &mut VecDeque<usize>> {
        let of_batches = self.batches.iter_mut().flat_map(|batch| batch.waiters.values_mut());
        self.single.values_mut().map(|held| &mut held.waiters).chain(of_batches)
    }

    /// Holds the spans of an operation. Those of a long batch leave it.
    ///
    /// # Panics
    /// One of them is held.
    pub(super) fn hold(&mut self, at: usize, operation: &mut DeviceOperation) {
        operation.holds_keys = true;
        if operation.spans.len() > SINGLE_SPANS_MAX {
            let spans = std::mem::take(&mut operation.spans);
            self.batches.push(BatchSpans { holder: at, spans, waiters: BTreeMap::new() });
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
