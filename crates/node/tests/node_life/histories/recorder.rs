//! The recorder: the invocation and the return of every operation on a key, in the order in which they happened.
//!
//! Invariant: an invocation is recorded before its command is sent, and a return after its answer was received; an
//! operation without a return may have taken effect at any time after its invocation, or never.

use std::sync::{Mutex, PoisonError};

/// An operation on one key. Every put of a history stores another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOperation {
    Put(u64),
    Get,
    Delete,
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAnswer {
    Stored,
    Value(Option<u64>),
    /// `existed` is `None` if the front end does not say.
    Deleted {
        existed: Option<bool>,
    },
}

/// The half of an operation that an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Invoked(KeyOperation),
    Returned(KeyAnswer),
}

/// An event of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistoryEvent {
    pub(crate) key: String,
    pub(crate) process: u32,
    pub(crate) kind: EventKind,
}

/// A history that several threads append to.
#[derive(Debug, Default)]
pub(crate) struct HistoryRecorder {
    events: Mutex<Vec<HistoryEvent>>,
}

impl HistoryRecorder {
    /// Appends an event.
    pub(crate) fn record(&self, process: u32, key: &str, kind: EventKind) {
        let event = HistoryEvent { key: key.to_owned(), process, kind };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Returns all events.
    pub(crate) fn into_events(self) -> Vec<HistoryEvent> {
        self.events.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
