//! Listings: they name what is there, once.
//!
//! In: the answer to one List while others write, or all keys of a namespace while nobody does. Out: a [`Violation`] if
//! a key is named that cannot be there, or twice, or is left out though it must be there.

use super::keys::{Effect, Interval, Lifetime, Seen};
use super::{Checker, Violation, unexpected};
use bytes::Bytes;
use headwater_converged::command::{Completion, NamespaceId};
use headwater_host::clock::UnixMillis;
use std::collections::BTreeSet;

impl Checker {
    pub(super) fn list_completed(
        &self,
        namespace: NamespaceId,
        completion: &Completion,
        when: Interval,
    ) -> Result<(), Violation> {
        if !completion.status.is_success() {
            return Err(unexpected(completion));
        }
        let accuse = |key, what| Err(Violation::Listing { namespace, key, what });
        let mut named = BTreeSet::new();
        for listed in &completion.keys {
            let history = self.space(namespace).and_then(|space| space.keys.get(&listed.key));
            let Some(history) = history else {
                return accuse(usize::MAX, "a key that was never used is named");
            };
            if !named.insert(&listed.key) {
                return accuse(history.number, "a key is named twice");
            }
            if history.explanations(&self.groups, Seen::Something, when).is_empty() {
                return accuse(history.number, "a key is named that cannot be there");
            }
        }
        Ok(())
    }

    /// After every key was settled, with nothing in flight: the whole listing of a namespace.
    ///
    /// # Errors
    /// It differs from what the keys themselves said.
    pub fn check_listing(
        &self,
        namespace: NamespaceId,
        listed: &[Bytes],
        wall: UnixMillis,
    ) -> Result<(), Violation> {
        let accuse = |key, what| Err(Violation::Listing { namespace, key, what });
        let Some(space) = self.space(namespace) else {
            return Ok(());
        };
        let mut named = BTreeSet::new();
        for key in listed {
            let number = space.keys.get(key).map_or(usize::MAX, |history| history.number);
            if !named.insert(key) {
                return accuse(number, "a key is named twice");
            }
            if number == usize::MAX {
                return accuse(number, "a key that was never used is named");
            }
        }
        for (key, history) in &space.keys {
            let last = history.writes.last().map_or(Effect::Delete, |write| write.effect);
            match (last, named.contains(key)) {
                (Effect::Delete, true) => return accuse(history.number, "a key is named that is not there"),
                // Only a key whose time may just have run out may be missing.
                (Effect::Store(_, Lifetime::Until(end)), false) if end == 0 || end > wall.0 => {
                    return accuse(history.number, "a key is left out that is there");
                }
                _ => {}
            }
        }
        Ok(())
    }
}
