//! Identifies each block by its first page, or by its other pages if the first one is corrupt.
//!
//! Input: the first page of every block. Output: the checkpoint or the part of the log that each block belongs to.
//! Invariant: a block is identified as long as one of its pages can be read.

use super::super::page_reads::{PageBytes, read_pages};
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::log::page::PageKind;
use crate::log::page_version1::PageSpare;
use crate::log::prefix::EPOCH_SHIFT;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// The state of the first page of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstPage {
    /// Blank: no page of the block was ever made durable, because pages are made durable in order.
    Blank,
    /// Readable, with this spare.
    Spare(PageSpare),
    /// Unreadable; this is the spare of another page with the block's highest order.
    Corrupt(PageSpare),
    /// Programmed, and neither this page nor another one of the block carries a spare.
    Unknown,
    /// Unknown, because the reads of one or more pages of the block failed.
    Unreadable,
}

impl FirstPage {
    fn spare(&self) -> Option<&PageSpare> {
        match self {
            Self::Spare(spare) | Self::Corrupt(spare) => Some(spare),
            Self::Blank | Self::Unknown | Self::Unreadable => None,
        }
    }
}

/// The identification of all blocks.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) first_pages: Vec<FirstPage>,
    /// A number higher than that of any checkpoint on the medium.
    pub(super) checkpoint_next: u64,
    /// The highest block order of any first page.
    pub(super) highest_order: u64,
    /// The highest durable order of any first page: the first pages of all blocks up to it were durable.
    pub(super) durable_order: u64,
    /// For each epoch the highest order that recovery accepted when it began.
    accepted: BTreeMap<u64, u64>,
}

impl Survey {
    /// Returns true if every later recovery accepted a block of this order: a block that one recovery discarded,
    /// because a power cut had left it incomplete, must never be accepted again.
    pub(super) fn is_accepted(&self, order: u64) -> bool {
        let later = self.accepted.range((order >> EPOCH_SHIFT) + 1..);
        later.map(|(_, accepted)| *accepted).all(|accepted| order <= accepted)
    }

    /// Returns the blocks of the log from `start_order` on, in order.
    pub(super) fn log_blocks(&self, start_order: u64) -> Vec<BlockId> {
        let mut blocks: Vec<(u64, BlockId)> = (0..)
            .map(BlockId)
            .zip(&self.first_pages)
            .filter_map(|(block, first)| first.spare().map(|spare| (spare, block)))
            .filter(|(spare, _)| spare.kind != PageKind::Checkpoint && spare.order >= start_order)
            .filter(|(spare, _)| self.is_accepted(spare.order))
            .map(|(spare, block)| (spare.order, block))
            .collect();
        blocks.sort_unstable();
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// Returns the spare of a block's first page, or of another page if the first one is corrupt.
    pub(super) fn spare(&self, block: BlockId) -> Option<&PageSpare> {
        self.first_pages.get(block.index())?.spare()
    }

    /// Returns the number of blocks with programmed pages none of which can be read.
    pub(super) fn unknown_blocks(&self) -> u32 {
        let unknown = self
            .first_pages
            .iter()
            .filter(|first| matches!(first, FirstPage::Unknown | FirstPage::Unreadable));
        u32::try_from(unknown.count()).unwrap_or(u32::MAX)
    }

    /// Returns true if a block begins, or may begin, with the rest of a chained record.
    pub(super) fn continues_record(&self, block: BlockId) -> bool {
        match self.first_pages.get(block.index()) {
            Some(FirstPage::Spare(spare)) => spare.continues != 0,
            Some(FirstPage::Corrupt(_)) => true,
            _ => false,
        }
    }
}

/// Reads the first page of every block, and the other pages of blocks whose first page is unreadable.
pub(super) fn survey<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Survey, MediaError> {
    let total = u64::from(ftl.geometry().blocks);
    let mut first_pages = Vec::with_capacity(ftl.geometry().blocks as usize);
    let pages = (0..ftl.geometry().blocks).map(|block| PageAddress::new(BlockId(block), 0));
    let (mut source, _) = ftl.reading(PageNeed::BlockSurvey);
    read_pages(&mut source, now, pages, |page, bytes| {
        first_pages.push(match bytes {
            PageBytes::Blank => FirstPage::Blank,
            PageBytes::Programmed(bytes) => {
                PageSpare::decode(bytes, page.page).map_or(FirstPage::Unknown, FirstPage::Spare)
            }
            PageBytes::Unreadable => FirstPage::Unknown,
        });
        progress(OpenProgress { stage: "survey", done: first_pages.len() as u64, total });
    })?;
    read_other_pages(ftl, &mut first_pages, now)?;
    let mut survey = Survey {
        checkpoint_next: 1,
        highest_order: 0,
        durable_order: 0,
        accepted: BTreeMap::new(),
        first_pages: Vec::new(),
    };
    for spare in first_pages.iter().filter_map(FirstPage::spare) {
        survey.highest_order = survey.highest_order.max(spare.order);
        survey.durable_order = survey.durable_order.max(spare.durable_order);
        if spare.kind == PageKind::Checkpoint {
            let next = crate::engine::checkpoint::stream::split_page_context(spare.context).0 + 1;
            survey.checkpoint_next = survey.checkpoint_next.max(next);
        } else {
            survey.accepted.insert(spare.order >> EPOCH_SHIFT, spare.context);
        }
    }
    survey.first_pages = first_pages;
    Ok(survey)
}

/// Reads the other pages of the blocks whose first page cannot be read.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
fn read_other_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    first_pages: &mut [FirstPage],
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let unknown =
        (0..).map(BlockId).zip(first_pages.iter()).filter(|(_, first)| **first == FirstPage::Unknown);
    let blocks: Vec<BlockId> = unknown.map(|(block, _)| block).collect();
    let pages =
        blocks.iter().flat_map(|block| (1..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let (mut source, _) = ftl.reading(PageNeed::BlockSurvey);
    read_pages(&mut source, now, pages, |page, bytes| {
        let spare = bytes.programmed().and_then(|bytes| PageSpare::decode(bytes, page.page));
        let first = &mut first_pages[page.block.index()];
        if let Some(spare) = spare.filter(|spare| first.spare().is_none_or(|known| known.order < spare.order))
        {
            *first = FirstPage::Corrupt(spare);
        }
    })?;
    for failed in ftl.failures().pages().filter(|failed| failed.errno.is_some()) {
        if let Some(first @ FirstPage::Unknown) = first_pages.get_mut(failed.page.block.index()) {
            *first = FirstPage::Unreadable;
        }
    }
    Ok(())
}
