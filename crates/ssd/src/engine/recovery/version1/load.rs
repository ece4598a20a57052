//! Loads the newest whole checkpoint, and the block table of the blocks in use.

use super::super::CheckpointFound;
use super::super::page_reads::{PageBytes, read_pages};
use super::scan::Scanned;
use super::survey::{FirstPage, Survey};
use crate::engine::checkpoint::stream::{DecodedCheckpoint, decode_version_1, split_page_context};
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::log::blocks::BlockEntry;
use crate::log::page::PageKind;
use crate::log::page_version1::PageSpare;
use crate::log::prefix::EPOCH_SHIFT;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The blocks of a checkpoint and its decoded contents.
type Loaded = (Vec<BlockId>, DecodedCheckpoint);

/// The result of reading a checkpoint.
enum Stream {
    Whole(Vec<u8>),
    /// A page is missing that was never programmed in this checkpoint.
    Unfinished,
    /// A page cannot be read.
    Damaged,
}

/// Returns the newest whole checkpoint with its blocks, and the state of the checkpoints. A broken one does no harm if
/// an older one is whole: a checkpoint is erased only when its successor is durable.
pub(super) fn newest_checkpoint<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    survey: &Survey,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(Option<Loaded>, CheckpointFound), MediaError> {
    let mut found = CheckpointFound::None;
    let mut checkpoints: BTreeMap<u64, Vec<(u64, BlockId)>> = BTreeMap::new();
    for block in (0..ftl.geometry().blocks).map(BlockId) {
        if let Some(spare) = survey.spare(block).filter(|spare| spare.kind == PageKind::Checkpoint) {
            let (id, part) = split_page_context(spare.context);
            checkpoints.entry(id).or_default().push((part, block));
        }
    }
    for (id, mut parts) in checkpoints.into_iter().rev() {
        parts.sort_unstable();
        let blocks: Vec<BlockId> = parts.into_iter().map(|(_, block)| block).collect();
        match read_stream(ftl, id, &blocks, now, progress)? {
            Stream::Whole(stream) => match decode_version_1(&stream) {
                Some(decoded) => return Ok((Some((blocks, decoded)), CheckpointFound::Whole)),
                None => found = CheckpointFound::Damaged,
            },
            Stream::Damaged => found = CheckpointFound::Damaged,
            Stream::Unfinished if found == CheckpointFound::None => found = CheckpointFound::Unfinished,
            Stream::Unfinished => {}
        }
    }
    Ok((None, found))
}

/// Reads the bytes of a checkpoint, if all of its pages up to the one marked as the last are there.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
fn read_stream<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    id: u64,
    blocks: &[BlockId],
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Stream, MediaError> {
    let pages =
        blocks.iter().flat_map(|block| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let total = (blocks.len() * PAGES_PER_BLOCK) as u64;
    let mut stream = Vec::with_capacity(blocks.len() * PAGES_PER_BLOCK * PAGE_DATA_BYTES);
    let (mut next_part, mut ended, mut broken, mut done) = (0, false, None, 0);
    let (mut source, _) = ftl.reading(PageNeed::Checkpoint);
    read_pages(&mut source, now, pages, |page, bytes| {
        done += 1;
        progress(OpenProgress { stage: "checkpoint", done, total });
        if ended || broken.is_some() {
            return;
        }
        if bytes == PageBytes::Unreadable {
            broken = Some(Stream::Damaged);
            return;
        }
        match bytes.programmed().map(|bytes| (PageSpare::decode(bytes, page.page), bytes)) {
            Some((Some(spare), bytes))
                if spare.kind == PageKind::Checkpoint
                    && split_page_context(spare.context) == (id, next_part) =>
            {
                stream.extend_from_slice(&bytes[..usize::from(spare.used)]);
                next_part += 1;
                ended = spare.continues == next_part;
            }
            Some((None, _)) => broken = Some(Stream::Damaged),
            _ => broken = Some(Stream::Unfinished),
        }
    })?;
    Ok(if ended { Stream::Whole(stream) } else { broken.unwrap_or(Stream::Unfinished) })
}

/// Puts every block in use into the block table: those of the checkpoint's table that are unchanged, the scanned ones,
/// and the checkpoint's own. Returns the highest order accepted.
pub(super) fn adopt<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    survey: &Survey,
    scanned: &Scanned,
    decoded: Option<&DecodedCheckpoint>,
    checkpoint_blocks: &[BlockId],
) {
    let mut found: BTreeMap<u64, (BlockId, BlockEntry)> = BTreeMap::new();
    for (number, block) in decoded.map(|decoded| &decoded.blocks[..]).unwrap_or_default() {
        let same = match survey.first_pages.get(number.index()) {
            // No page tells what the block holds now. The keys that the checkpoint places in it are answered with
            // errors, unless the log after it has newer records of them.
            Some(FirstPage::Unreadable) => true,
            _ => survey
                .spare(*number)
                .is_some_and(|spare| spare.kind != PageKind::Checkpoint && spare.order == block.order),
        };
        let in_medium = number.0 < ftl.geometry().blocks;
        if same && in_medium {
            found.insert(block.order, (*number, *block));
        }
    }
    let base = decoded.map_or(0, |decoded| decoded.start_order.saturating_sub(1));
    let durable_order = survey.durable_order.max(scanned.durable_order).max(base);
    let end = last_unbroken_order(scanned.blocks.iter().map(|(_, block)| block.order), durable_order);
    for (number, block) in scanned.blocks.iter().filter(|(_, block)| block.order <= end) {
        found.insert(block.order, (*number, *block));
    }
    let order: Vec<(u64, BlockId)> = found.iter().map(|(order, (number, _))| (*order, *number)).collect();
    for pair in order.windows(2) {
        let goes_on = survey.continues_record(pair[1].1);
        if let Some((_, block)) = found.get_mut(&pair[0].0).filter(|_| goes_on) {
            block.next = Some(pair[1].1);
        }
    }
    for (number, block) in found.into_values() {
        ftl.adopt(number, block);
    }
    for number in checkpoint_blocks {
        let order = survey.spare(*number).map_or(0, |spare| spare.order);
        ftl.adopt(*number, BlockEntry::of_checkpoint(order));
    }
}

/// Returns the highest order up to which no block of the last epoch is missing, at least the highest durable order. A
/// block after a missing one was never made durable: a flush would have covered the missing one too.
fn last_unbroken_order(orders: impl Iterator<Item = u64>, durable_order: u64) -> u64 {
    let orders: BTreeSet<u64> = orders.collect();
    let Some(last) = orders.last() else {
        return durable_order;
    };
    let epoch_start = last >> EPOCH_SHIFT << EPOCH_SHIFT;
    let mut end = durable_order.max(epoch_start.saturating_sub(1));
    while orders.contains(&(end + 1)) {
        end += 1;
    }
    end
}
