//! Compares two indexes.
//!
//! Input: the index from the checkpoint and the log after it, and the index from the whole log. Output: every entry of
//! one that is not in the other. Invariant: both are walked once, in hash order; the order of entries with equal hashes
//! has no meaning.

use super::{BoundedFindings, IndexDifference, RecordLocation};
use crate::engine::progress::OpenProgress;
use crate::index::{CompositeIndex, IndexEntry, KeyHash, RecordIndex};

/// Adds every difference between the two indexes to `differences`.
pub(super) fn compare(
    by_checkpoint: &CompositeIndex,
    by_log: &CompositeIndex,
    differences: &mut BoundedFindings<IndexDifference>,
    progress: &mut dyn FnMut(OpenProgress),
) {
    let total = by_checkpoint.len().max(by_log.len());
    let mut done = 0;
    let mut from = KeyHash(0);
    let next = |index: &CompositeIndex, from| index.next(from).map(|(hash, _)| hash);
    while let Some(hash) = next(by_checkpoint, from).into_iter().chain(next(by_log, from)).min() {
        let (mut left, mut right) = (entries(by_checkpoint, hash), entries(by_log, hash));
        done += left.len().max(right.len()) as u64;
        progress(OpenProgress { stage: "compare", done: done.min(total), total });
        left.retain(|entry| match right.iter().position(|other| other == entry) {
            Some(at) => {
                right.remove(at);
                false
            }
            None => true,
        });
        let mut left = left.into_iter();
        for other in right {
            let by_log = Some(RecordLocation::of(hash, other));
            let by_checkpoint = left.next().map(|entry| RecordLocation::of(hash, entry));
            differences.add(IndexDifference { by_checkpoint, by_log });
        }
        for entry in left {
            differences
                .add(IndexDifference { by_checkpoint: Some(RecordLocation::of(hash, entry)), by_log: None });
        }
        from = KeyHash(hash.0 + 1);
    }
}

fn entries(index: &CompositeIndex, hash: KeyHash) -> Vec<IndexEntry> {
    (0..).map_while(|nth| index.find(hash, nth)).collect()
}
