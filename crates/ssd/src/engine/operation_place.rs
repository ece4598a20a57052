//! The place of an operation in the slab, which one operation after the other has.
//!
//! Input: an operation that begins, and its end. Output: the same place, vacant. Invariant: nothing of an operation is left in
//! its place when the next one begins.

use super::operation::{BlockProgress, DeviceOperation, KeyHold, OperationWork};
use crate::command::{FrontEndId, ListPosition, NamespaceId};
use crate::engine::batch_namespaces::NamespaceSet;
use crate::engine::key_span::KeySpan;
use crate::index::KeyHash;
use headwater_host::clock::Nanos;

impl DeviceOperation {
    /// Returns the place of an operation without one.
    pub(crate) fn vacant() -> Self {
        Self {
            front_end: FrontEndId(0),
            token: 0,
            namespace: NamespaceId::FIRST,
            work: OperationWork::Vacant,
            format: None,
            span: KeySpan::one(KeyHash(0)),
            spans: Vec::new(),
            batch_keys: None,
            missing_pages: 0,
            pinned_pages: Vec::new(),
            failed_pages: Vec::new(),
            read_runs: Vec::new(),
            hold: KeyHold::None,
            listed_keys: Vec::new(),
            list_position: ListPosition::START,
            progress: BlockProgress::default(),
            value_progress: None,
            store_progress: None,
            extent_store: None,
            moves: None,
            batch_plan: None,
            throttle_claims: NamespaceSet::default(),
            submitted: Nanos(0),
            started: None,
        }
    }

    /// Returns true if there is no operation.
    #[inline]
    pub(crate) const fn is_vacant(&self) -> bool {
        matches!(self.work, OperationWork::Vacant)
    }

    /// Begins an operation in a vacant place.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        (front_end, token): (FrontEndId, u64),
        namespace: NamespaceId,
        work: OperationWork,
        now: Nanos,
    ) {
        self.front_end = front_end;
        self.token = token;
        self.namespace = namespace;
        self.work = work;
        self.submitted = now;
    }

    /// Drops what the operation had: the place is vacant. One field after the other, because all of them at once would be made
    /// elsewhere and moved here.
    #[inline]
    pub(crate) fn end(&mut self) {
        let Self {
            front_end: _,
            token: _,
            namespace: _,
            work,
            format,
            span,
            spans,
            batch_keys,
            missing_pages,
            pinned_pages,
            failed_pages,
            read_runs,
            hold,
            listed_keys,
            list_position,
            progress,
            value_progress,
            store_progress,
            extent_store,
            moves,
            batch_plan,
            throttle_claims,
            submitted: _,
            started,
        } = self;
        *work = OperationWork::Vacant;
        *format = None;
        *span = KeySpan::one(KeyHash(0));
        *spans = Vec::new();
        *batch_keys = None;
        *missing_pages = 0;
        *pinned_pages = Vec::new();
        *failed_pages = Vec::new();
        *read_runs = Vec::new();
        *hold = KeyHold::None;
        *listed_keys = Vec::new();
        *list_position = ListPosition::START;
        *progress = BlockProgress::default();
        *value_progress = None;
        *store_progress = None;
        *extent_store = None;
        *moves = None;
        *batch_plan = None;
        *throttle_claims = NamespaceSet::default();
        *started = None;
    }
}
