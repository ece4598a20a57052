//! The verdict on a history: the keys whose events no sequence of operations explains.
//!
//! Input: the events of all keys. Output: the events of each key whose history is not linearizable. The checker is the
//! one of stateright; its time is exponential in the operations that overlap, so that its steps are limited: a history for
//! which it finds no order within them counts as one that has none.
#![expect(clippy::unwrap_used, reason = "an impossible history fails the test")]

use super::recorder::{EventKind, HistoryEvent, KeyAnswer, KeyOperation};
use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Steps of the checker for one key. A correct history of a run needs about one for each operation.
const STEPS_MAX: u64 = 500_000;

/// The reason for the end of a search that took too long.
struct StepLimit;

/// The value of one key, as a sequence of operations changes it.
#[derive(Clone, Copy, Debug)]
struct KeyRegister<'a> {
    value: Option<u64>,
    steps: &'a Cell<u64>,
}

impl SequentialSpec for KeyRegister<'_> {
    type Op = KeyOperation;
    type Ret = KeyAnswer;

    fn invoke(&mut self, operation: &KeyOperation) -> KeyAnswer {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() >= STEPS_MAX {
            // The checker has no other way out of its recursion. No panic hook prints this one.
            std::panic::resume_unwind(Box::new(StepLimit));
        }
        match *operation {
            KeyOperation::Put(value) => {
                self.value = Some(value);
                KeyAnswer::Stored
            }
            KeyOperation::Get => KeyAnswer::Value(self.value),
            KeyOperation::Delete => KeyAnswer::Deleted { existed: Some(self.value.take().is_some()) },
        }
    }

    fn is_valid_step(&mut self, operation: &KeyOperation, answer: &KeyAnswer) -> bool {
        match (self.invoke(operation), *answer) {
            (KeyAnswer::Deleted { .. }, KeyAnswer::Deleted { existed: None }) => true,
            (expected, answer) => expected == answer,
        }
    }
}

/// Returns true if the events of one key are linearizable: the key does not exist at first.
fn is_linearizable(events: &[HistoryEvent]) -> bool {
    let mut open = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        match event.kind {
            EventKind::Invoked(operation) => assert_eq!(open.insert(event.process, (at, operation)), None),
            EventKind::Returned(_) => assert!(open.remove(&event.process).is_some()),
        }
    }
    let steps = Cell::new(0);
    let mut tester = LinearizabilityTester::new(KeyRegister { value: None, steps: &steps });
    for (at, event) in events.iter().enumerate() {
        if open.get(&event.process) == Some(&(at, KeyOperation::Get)) {
            // A get without an answer restricts nothing.
            continue;
        }
        // The checker tries small numbers first. A process with an open operation has a smaller number than those that
        // follow it, so that the reversed order inserts open operations only where nothing else fits.
        let process = Reverse(event.process);
        match event.kind {
            EventKind::Invoked(operation) => tester.on_invoke(process, operation).map(drop).unwrap(),
            EventKind::Returned(answer) => tester.on_return(process, answer).map(drop).unwrap(),
        }
    }
    let search = std::panic::AssertUnwindSafe(|| tester.is_consistent());
    std::panic::catch_unwind(search).unwrap_or_else(|reason| {
        if !reason.is::<StepLimit>() {
            std::panic::resume_unwind(reason);
        }
        let key = &events[0].key;
        println!(
            "{key:?}: no order is found within {STEPS_MAX} steps; most likely none explains the answers"
        );
        false
    })
}

/// Returns the events of each key whose history is not linearizable.
pub(crate) fn broken_keys(events: &[HistoryEvent]) -> impl Iterator<Item = Vec<HistoryEvent>> {
    let keys: BTreeSet<&str> = events.iter().map(|event| event.key.as_str()).collect();
    let of_key = |key| events.iter().filter(|event| event.key == key).cloned().collect::<Vec<_>>();
    keys.into_iter().map(of_key).filter(|events| !is_linearizable(events))
}

/// Returns a history of one key.
fn history(events: &[(u32, EventKind)]) -> Vec<HistoryEvent> {
    events.iter().map(|&(process, kind)| HistoryEvent { key: "k".to_owned(), process, kind }).collect()
}

const PUT_1: EventKind = EventKind::Invoked(KeyOperation::Put(1));
const PUT_2: EventKind = EventKind::Invoked(KeyOperation::Put(2));
const GET: EventKind = EventKind::Invoked(KeyOperation::Get);
const DELETE: EventKind = EventKind::Invoked(KeyOperation::Delete);
const STORED: EventKind = EventKind::Returned(KeyAnswer::Stored);
const FOUND_1: EventKind = EventKind::Returned(KeyAnswer::Value(Some(1)));
const FOUND_2: EventKind = EventKind::Returned(KeyAnswer::Value(Some(2)));
const MISSING: EventKind = EventKind::Returned(KeyAnswer::Value(None));
const DELETED: EventKind = EventKind::Returned(KeyAnswer::Deleted { existed: Some(true) });
const DELETED_UNKNOWN: EventKind = EventKind::Returned(KeyAnswer::Deleted { existed: None });
const NOTHING_DELETED: EventKind = EventKind::Returned(KeyAnswer::Deleted { existed: Some(false) });

#[test]
fn correct_histories_pass() {
    let correct: [&[(u32, EventKind)]; 8] = [
        &[(1, GET), (1, MISSING), (1, PUT_1), (1, STORED), (2, GET), (2, FOUND_1)],
        // Both orders of two overlapping puts.
        &[(1, PUT_1), (2, PUT_2), (1, STORED), (2, STORED), (3, GET), (3, FOUND_1)],
        &[(1, PUT_1), (2, PUT_2), (1, STORED), (2, STORED), (3, GET), (3, FOUND_2)],
        // An open put takes effect at once, later, or never.
        &[(1, PUT_1), (2, GET), (2, FOUND_1), (3, DELETE), (3, DELETED), (3, GET), (3, MISSING)],
        &[(1, PUT_1), (2, GET), (2, MISSING), (3, PUT_2), (3, STORED), (3, GET), (3, FOUND_1)],
        &[(1, PUT_1), (2, GET), (2, MISSING), (3, PUT_2), (3, STORED), (3, GET), (3, FOUND_2)],
        // A get without an answer, and an open delete.
        &[(1, PUT_1), (1, STORED), (2, GET), (3, DELETE), (4, GET), (4, FOUND_1), (4, GET), (4, MISSING)],
        &[(1, DELETE), (1, DELETED_UNKNOWN), (1, DELETE), (1, NOTHING_DELETED)],
    ];
    for events in correct {
        assert_eq!(broken_keys(&history(events)).next(), None, "{events:?}");
    }
}

#[test]
fn wrong_histories_are_found() {
    let wrong: [&[(u32, EventKind)]; 8] = [
        // A lost acknowledged put, and a lost acknowledged delete.
        &[(1, PUT_1), (1, STORED), (2, GET), (2, MISSING)],
        &[(1, PUT_1), (1, STORED), (1, DELETE), (1, DELETED), (2, GET), (2, FOUND_1)],
        // A value older than the last acknowledged one.
        &[(1, PUT_1), (1, STORED), (1, PUT_2), (1, STORED), (2, GET), (2, FOUND_1)],
        // Two gets swapped.
        &[(1, PUT_1), (2, GET), (2, FOUND_1), (2, GET), (2, MISSING), (1, STORED)],
        // An open put that takes effect twice.
        &[(1, PUT_1), (2, GET), (2, FOUND_1), (3, DELETE), (3, DELETED), (3, GET), (3, FOUND_1)],
        // A value before its put.
        &[(1, GET), (1, FOUND_2), (2, PUT_2), (2, STORED)],
        // Counts of deleted keys that are wrong.
        &[(1, DELETE), (1, DELETED)],
        &[(1, PUT_1), (1, STORED), (2, DELETE), (2, NOTHING_DELETED)],
    ];
    for events in wrong {
        assert_eq!(broken_keys(&history(events)).next(), Some(history(events)), "{events:?}");
    }
}

/// Repeats what broke: a run whose node lost acknowledged writes had a key with so many writes in flight at the cuts that
/// the checker reached its limit, and the test that expects such a run failed.
#[test]
fn history_whose_search_takes_too_long_counts_as_wrong() {
    // Puts without answers, of which any order is possible, and a value that none of them wrote.
    let mut events: Vec<_> =
        (0..20).map(|process| (process, EventKind::Invoked(KeyOperation::Put(process.into())))).collect();
    events.extend([(99, GET), (99, EventKind::Returned(KeyAnswer::Value(Some(1_000))))]);
    assert_eq!(broken_keys(&history(&events)).next(), Some(history(&events)));
}
