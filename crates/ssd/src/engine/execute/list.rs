//! Lists keys in the order of their hashes.
//!
//! Input: a position. Output: the keys from there on, and the next position if more follow. The pages of the keys are
//! requested many at a time. Invariant: keys that share one hash are listed together, or not yet.

use super::ExecutionOutcome;
use crate::command::{ListPosition, ListedKey, NamespaceId};
use crate::engine::operation::DeviceOperation;
use crate::ftl::{Ftl, RecordPart, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::media::{Media, PageAddress};
use crate::mutant::{Mutant, mutant};
use bytes::Bytes;
use headwater_nvme::spec::status::Status;

/// Number of keys whose pages a waiting list requests together.
const LIST_PREFETCH_KEYS: usize = 64;

/// Lists the keys of a namespace from the operation's position, in hash order.
pub(super) fn run<M: Media>(
    ftl: &Ftl<M>,
    operation: &mut DeviceOperation,
    keys_max: usize,
) -> Result<ExecutionOutcome, StallReason> {
    if ftl.doubts().is_in_doubt(operation.namespace) {
        // A list would leave out the keys that the medium may have lost.
        return Err(StallReason::InDoubt);
    }
    let mut next = None;
    while let Some((hash, _)) = ftl.index().hashed.next(KeyHash(operation.list_position.0)) {
        if operation.listed_keys.len() >= keys_max {
            next = Some(ListPosition(hash.0));
            break;
        }
        match list_hash(ftl, operation.namespace, hash) {
            Ok(keys) => operation.listed_keys.extend(keys),
            Err(StallReason::Pages(mut pages)) => {
                add_list_pages(ftl, operation.namespace, hash, &mut pages);
                operation.list_position = ListPosition(hash.0);
                return Err(StallReason::Pages(pages));
            }
            Err(stall) => return Err(stall),
        }
        operation.list_position = ListPosition(hash.0 + 1);
    }
    let mut outcome = ExecutionOutcome::status(Status::SUCCESS, ftl.last_sequence());
    outcome.completion.next_position = next;
    Ok(outcome)
}

/// Returns the keys that share one hash.
fn list_hash<M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    hash: KeyHash,
) -> Result<Vec<ListedKey>, StallReason> {
    let mut keys = Vec::new();
    let shown = if mutant(Mutant::CollisionsNotListed) { 1 } else { usize::MAX };
    for entry in (0..).map_while(|nth| ftl.index().find(hash, nth)).take(shown) {
        if entry.namespace != namespace {
            continue;
        }
        let Some(header) = ftl.header(entry, RecordPart::Key)? else {
            // The list would leave out a key whose record is damaged.
            return Err(StallReason::Unreadable(entry.address.page()));
        };
        let key = Bytes::from(ftl.key_of(entry, &header)?);
        let is_expired = ftl.is_expired(&header);
        // The key proves itself by its hash. An expiry does not, and a damaged one must not leave out a key.
        if ftl.hasher().index_key(&header, &key) != hash || is_expired && !ftl.is_proven(entry, &header)? {
            return Err(StallReason::Unreadable(entry.address.page()));
        }
        if !is_expired {
            keys.push(ListedKey { key, value_bytes: header.value_len_u32(), expiry_ms: header.expiry_ms });
        }
    }
    Ok(keys)
}

/// Adds the missing pages of the keys after `hash`.
fn add_list_pages<M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    hash: KeyHash,
    pages: &mut Vec<PageAddress>,
) {
    let mut from = hash.0 + 1;
    for _ in 0..LIST_PREFETCH_KEYS {
        let Some((hash, entry)) = ftl.index().hashed.next(KeyHash(from)) else {
            break;
        };
        from = hash.0 + 1;
        let page = entry.address.page();
        if entry.namespace == namespace && ftl.page(page).is_none() && !pages.contains(&page) {
            pages.push(page);
        }
    }
}
