//! Finds durable records that a checkpoint names and the log after it has lost.
//!
//! Input: a checkpoint, and the records found in the log after it. Output: the checkpoint's entries that point into the
//! scanned blocks, and for whose keys the scan found no record, neither that one nor a newer one. Invariant: no record
//! that a power cut may have lost is among them: the checkpoint is fuzzy and names records that were not durable yet.

use super::super::replay::Line;
use super::corruption::Durable;
use crate::engine::checkpoint::stream::DecodedCheckpoint;
use crate::ftl::Ftl;
use crate::index::{IndexEntry, KeyHash};
use crate::media::Media;

/// Returns the lost records.
pub(super) fn lost_records<M: Media>(
    ftl: &Ftl<M>,
    decoded: &DecodedCheckpoint,
    cleared: &[bool],
    lines: &[Line],
    surely: &Durable,
) -> Vec<(KeyHash, IndexEntry)> {
    // While a block from before the checkpoint's start is in use, all tombstones written since are kept: a key deleted
    // since then has one. Without such a block a missing record may be a deleted key.
    let keeps_tombstones = ftl
        .blocks()
        .iter()
        .any(|(_, block)| !block.is_checkpoint() && block.order != 0 && block.order <= decoded.start_order);
    if !keeps_tombstones {
        return Vec::new();
    }
    let behind = |entry: &IndexEntry| {
        let block = entry.address.block();
        block.0 < ftl.geometry().blocks
            && !cleared.get(entry.namespace.index()).copied().unwrap_or(true)
            && !ftl.blocks().get(block).is_checkpoint()
            && ftl.blocks().get(block).order >= decoded.start_order
            && surely.holds(ftl.blocks().get(block).order, entry.address)
    };
    let all = decoded.index.segments.iter().flatten().chain(&decoded.index.flat);
    let mut missing: Vec<(KeyHash, IndexEntry)> = all.filter(|(_, entry)| behind(entry)).copied().collect();
    missing.sort_unstable_by_key(|(hash, entry)| (*hash, entry.address));
    let mut found = vec![false; missing.len()];
    for line in lines {
        let from = missing.partition_point(|(hash, _)| *hash < line.hash);
        for (at, _) in missing.iter().enumerate().skip(from).take_while(|(_, (hash, _))| *hash == line.hash) {
            found[at] = true;
        }
    }
    let mut found = found.into_iter();
    missing.retain(|_| found.next() == Some(false));
    missing
}
