//! What a checkpoint knows of and the log behind it has lost.
//!
//! In: a checkpoint, and the records found behind it. Out: the checkpoint's entries for blocks that are scanned anyway, and
//! of whose keys no record is left there, neither that one nor a newer one. Invariant: what a power cut may have taken is
//! never among them: the checkpoint is fuzzy and names records that were not durable yet.

use super::corruption::Durable;
use super::scan::Line;
use crate::engine::checkpoint::stream::Decoded;
use crate::ftl::Ftl;
use crate::index::{Entry, KeyHash};
use crate::media::Media;

/// Finds them.
pub(super) fn lost_records<M: Media>(
    ftl: &Ftl<M>,
    decoded: &Decoded,
    cleared: &[bool],
    lines: &[Line],
    surely: &Durable,
) -> Vec<(KeyHash, Entry)> {
    // As long as a block is left that is older than whatever came behind the checkpoint, the tombstones of that time are
    // kept: a key that was deleted since has one.
    let keeps_tombstones = ftl
        .blocks
        .iter()
        .any(|(_, block)| !block.checkpoint && block.order != 0 && block.order <= decoded.start_order);
    if !keeps_tombstones {
        return Vec::new();
    }
    let behind = |entry: &Entry| {
        let block = entry.address.block();
        block.0 < ftl.geometry.blocks
            && !cleared.get(entry.namespace.index()).copied().unwrap_or(true)
            && !ftl.blocks.get(block).checkpoint
            && ftl.blocks.get(block).order >= decoded.start_order
            && surely.holds(ftl.blocks.get(block).order, entry.address)
    };
    let all = decoded.segments.iter().flatten().chain(&decoded.flat);
    let mut missing: Vec<(KeyHash, Entry)> = all.filter(|(_, entry)| behind(entry)).copied().collect();
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
