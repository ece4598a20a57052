//! Ranges of keys and blocks that an operation works on.
//!
//! Input: key hashes, and ranges of blocks. Output: spans in index order. Invariant: the first position of a span is not
//! behind its last one.

use crate::command::{Lba, LbaRange, NamespaceId};
use crate::index::KeyHash;

/// A range in index order: one key, or consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeySpan {
    pub(crate) first: KeyHash,
    pub(crate) last: KeyHash,
}

impl KeySpan {
    /// Returns the span of one key.
    #[inline]
    pub(crate) const fn one(hash: KeyHash) -> Self {
        Self { first: hash, last: hash }
    }

    /// Returns the span of a range of blocks; `None` for an empty range.
    #[inline]
    pub(crate) fn of_blocks(namespace: NamespaceId, range: LbaRange) -> Option<Self> {
        let last = Lba(range.start.0 + u64::from(range.blocks).checked_sub(1)?);
        Some(Self {
            first: KeyHash::of_block(namespace, range.start),
            last: KeyHash::of_block(namespace, last),
        })
    }
}

/// Returns the spans sorted, with overlapping ones merged.
pub(crate) fn merged(mut spans: Vec<KeySpan>) -> Vec<KeySpan> {
    spans.sort_unstable();
    spans.dedup_by(|next, span| {
        let meets = next.first <= span.last;
        if meets {
            span.last = span.last.max(next.last);
        }
        meets
    });
    spans
}
