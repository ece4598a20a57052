//! The unreadable pages whose contents a recovery lacks.
//!
//! Input: the failed reads of a recovery, and what it found otherwise. Output: the pages that an operator must accept as
//! lost before the device opens, and those that the collector may pass over. Invariant: a page that a power cut may have
//! torn is not among the former, and a page that only a later read needs is among neither.

use super::super::replay::Line;
use super::Findings;
use super::corruption::Durable;
use super::survey::{FirstPage, Survey};
use crate::command::Sequence;
use crate::ftl::recovering::RecoveringFtl;
use crate::log::blocks::{BlockEntry, BlockState};
use crate::log::record::RecordAddress;
use crate::media::Media;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PageAddress};
use crate::media::unreadable::{PageNeed, UnreadablePage, UnreadablePages};
use std::collections::{BTreeMap, BTreeSet};

/// Returns the pages of the log that the medium calls lost although they were durable. A torn program leaves such pages
/// too, but only where nothing was durable.
pub(super) fn durable_losses<M: Media>(
    ftl: &RecoveringFtl<M>,
    lines: &[Line],
    blocks: &[(BlockId, BlockEntry)],
    durable: Sequence,
) -> BTreeSet<PageAddress> {
    let lost = |failed: &&UnreadablePage| failed.need == PageNeed::Log && failed.errno.is_none();
    let mut lost = ftl.failures().pages().filter(lost).map(|failed| failed.page).peekable();
    if lost.peek().is_none() {
        return BTreeSet::new();
    }
    let surely = Durable::new(lines, blocks, durable);
    let orders: BTreeMap<BlockId, u64> =
        blocks.iter().map(|(number, block)| (*number, block.order)).collect();
    lost.filter(|page| {
        let address = RecordAddress::in_block(page.block, usize::from(page.page) * PAGE_DATA_BYTES);
        let adopted = orders.get(&page.block).filter(|order| ftl.blocks().get(page.block).order == **order);
        adopted.is_some_and(|order| surely.holds(*order, address))
    })
    .collect()
}

/// Sets the unreadable pages of a recovery: those whose contents it lacks, and those that the collector may pass over
/// once these are accepted.
pub(super) fn report_unreadable<M: Media>(ftl: &RecoveringFtl<M>, survey: &Survey, findings: &mut Findings) {
    let lacks = |failed: &UnreadablePage| {
        let block = failed.page.block;
        match (failed.need, failed.errno) {
            // Another page tells what the block holds, and a block in use keeps its own error: its keys are answered
            // with it when they are read. A block that is not in use would be erased.
            (PageNeed::BlockSurvey, Some(_)) => {
                survey.first_pages.get(block.index()) == Some(&FirstPage::Unreadable)
                    || ftl.blocks().get(block).state == BlockState::Dirty
            }
            (PageNeed::Log, None) => findings.durable_losses.contains(&failed.page),
            // A power cut tears a first page, or a page of a checkpoint that nothing depends on.
            (PageNeed::BlockSurvey | PageNeed::Checkpoint, None) | (PageNeed::Record, _) => false,
            (PageNeed::Checkpoint | PageNeed::Log, Some(_)) | (PageNeed::Index, _) => true,
        }
    };
    let pages: Vec<UnreadablePage> = ftl.failures().pages().filter(|failed| lacks(failed)).copied().collect();
    findings.unreadable = UnreadablePages::new(pages, [survey.highest_order, survey.checkpoint_next]);
}
