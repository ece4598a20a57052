//! Checks of listings: each existing key is named once.
//!
//! Input: the completion of one List during concurrent writes, or all keys of an idle namespace.
//! Output: a [`PromiseViolation`] if a listing names a key that cannot exist, names one twice, or omits one that must exist.

use super::keys::{KeyObservation, ObservationSpan};
use super::{DeviceChecker, PromiseViolation, WallSpan, unexpected};
use bytes::Bytes;
use headwater_ssd::command::{NamespaceId, SsdCompletion};
use std::collections::BTreeSet;

impl DeviceChecker {
    pub(super) fn list_completed(
        &self,
        namespace: NamespaceId,
        completion: &SsdCompletion,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        if !completion.status.is_success() {
            return Err(unexpected(completion));
        }
        let accuse = |key, what| Err(PromiseViolation::Listing { namespace, key, error: what });
        let mut named = BTreeSet::new();
        for listed in &completion.keys {
            let history = self.space(namespace).and_then(|space| space.keys.get(&listed.key));
            let Some(history) = history else {
                return accuse(usize::MAX, "it names a key that was never used");
            };
            if !named.insert(&listed.key) {
                return accuse(history.number, "it names a key twice");
            }
            if history.explanations(&self.groups, KeyObservation::AnyRecord, when).is_empty() {
                return accuse(history.number, "it names a key that cannot exist");
            }
        }
        Ok(())
    }

    /// Checks the whole listing of a namespace after every key was read, with nothing in flight.
    ///
    /// # Errors
    /// The listing differs from the keys.
    pub fn check_listing(
        &self,
        namespace: NamespaceId,
        listed: &[Bytes],
        wall: WallSpan,
    ) -> Result<(), PromiseViolation> {
        let accuse = |key, what| Err(PromiseViolation::Listing { namespace, key, error: what });
        let Some(space) = self.space(namespace) else {
            return Ok(());
        };
        let mut named = BTreeSet::new();
        for key in listed {
            let number = space.keys.get(key).map_or(usize::MAX, |history| history.number);
            if !named.insert(key) {
                return accuse(number, "it names a key twice");
            }
            if number == usize::MAX {
                return accuse(number, "it names a key that was never used");
            }
        }
        let when = ObservationSpan { asked: self.tick, wall_asked: wall.asked, wall_answered: wall.answered };
        for (key, history) in &space.keys {
            // A key whose read ended with an error may have more than one state.
            let is_explained = |seen| !history.explanations(&self.groups, seen, when).is_empty();
            if named.contains(key) && !is_explained(KeyObservation::AnyRecord) {
                return accuse(history.number, "it names a key that does not exist");
            }
            let is_unused = history.writes.is_empty();
            if !named.contains(key) && !is_unused && !is_explained(KeyObservation::Absent) {
                return accuse(history.number, "it omits a key that exists");
            }
        }
        Ok(())
    }
}
