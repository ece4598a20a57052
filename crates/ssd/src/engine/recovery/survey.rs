//! The survey: what each block is, by its first page, or by the others where the first one has rotted.
//!
//! In: the first page of every block. Out: which checkpoint and which part of the log each block belongs to. Invariant: a
//! block is known as long as one of its pages can be read.

use super::read_pages;
use crate::engine::Progress;
use crate::ftl::Ftl;
use crate::log::blocks::EPOCH_SHIFT;
use crate::log::page::{PageKind, PageSpare};
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// What the first page of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstPage {
    /// The block holds nothing that was ever made durable: pages are made durable in order.
    Blank,
    /// A page of ours.
    Spare(PageSpare),
    /// Something that cannot be read, and what another page says of the youngest life of the block.
    Rotten(PageSpare),
    /// Something that cannot be read, like every other page.
    Unknown,
}

impl FirstPage {
    fn spare(&self) -> Option<&PageSpare> {
        match self {
            Self::Spare(spare) | Self::Rotten(spare) => Some(spare),
            Self::Blank | Self::Unknown => None,
        }
    }
}

/// What every block is.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) first_pages: Vec<FirstPage>,
    /// A number higher than that of any checkpoint on the medium.
    pub(super) checkpoint_next: u64,
    /// The highest block order that any first page says.
    pub(super) highest_order: u64,
    /// The highest order up to which some first page says that all blocks were begun.
    pub(super) durable_order: u64,
    /// For each epoch the highest order that recovery accepted when it began.
    accepted: BTreeMap<u64, u64>,
}

impl Survey {
    /// Whether a block of this order was accepted by every recovery since: what was passed over once, because a power
    /// cut had left it incomplete, must stay away for ever.
    pub(super) fn is_accepted(&self, order: u64) -> bool {
        let later = self.accepted.range((order >> EPOCH_SHIFT) + 1..);
        later.map(|(_, accepted)| *accepted).all(|accepted| order <= accepted)
    }

    /// The blocks of the log from `start_order` on, in order.
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

    /// What a block's first page says of it, or another page where that one has rotted.
    pub(super) fn spare(&self, block: BlockId) -> Option<&PageSpare> {
        self.first_pages.get(block.index())?.spare()
    }

    /// Blocks that hold something of which no page can be read.
    pub(super) fn unknown_blocks(&self) -> u32 {
        let unknown = self.first_pages.iter().filter(|first| **first == FirstPage::Unknown);
        u32::try_from(unknown.count()).unwrap_or(u32::MAX)
    }

    /// Whether a block begins with the rest of a chained record, or may do so.
    pub(super) fn goes_on(&self, block: BlockId) -> bool {
        match self.first_pages.get(block.index()) {
            Some(FirstPage::Spare(spare)) => spare.continues != 0,
            Some(FirstPage::Rotten(_)) => true,
            _ => false,
        }
    }
}

/// Reads the first page of every block.
pub(super) fn survey<M: Media>(
    ftl: &mut Ftl<M>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(Progress),
) -> Result<Survey, MediaError> {
    let total = u64::from(ftl.geometry.blocks);
    let mut first_pages = Vec::with_capacity(ftl.geometry.blocks as usize);
    let pages = (0..ftl.geometry.blocks).map(|block| PageAddress::new(BlockId(block), 0));
    read_pages(&mut ftl.media, &mut ftl.recovery_frames, now, pages, |page, bytes| {
        first_pages.push(match bytes {
            None => FirstPage::Blank,
            Some(bytes) => PageSpare::decode(bytes, page.page).map_or(FirstPage::Unknown, FirstPage::Spare),
        });
        progress(Progress { stage: "survey", done: first_pages.len() as u64, total });
    })?;
    ask_the_others(ftl, &mut first_pages, now)?;
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
            let next = crate::engine::checkpoint::stream::split_part(spare.context).0 + 1;
            survey.checkpoint_next = survey.checkpoint_next.max(next);
        } else {
            survey.accepted.insert(spare.order >> EPOCH_SHIFT, spare.context);
        }
    }
    survey.first_pages = first_pages;
    Ok(survey)
}

/// Reads the rest of the blocks whose first page cannot be read.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
fn ask_the_others<M: Media>(
    ftl: &mut Ftl<M>,
    first_pages: &mut [FirstPage],
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let unknown =
        (0..).map(BlockId).zip(first_pages.iter()).filter(|(_, first)| **first == FirstPage::Unknown);
    let blocks: Vec<BlockId> = unknown.map(|(block, _)| block).collect();
    let pages =
        blocks.iter().flat_map(|block| (1..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    read_pages(&mut ftl.media, &mut ftl.recovery_frames, now, pages, |page, bytes| {
        let spare = bytes.and_then(|bytes| PageSpare::decode(bytes, page.page));
        let first = &mut first_pages[page.block.index()];
        if let Some(spare) = spare.filter(|spare| first.spare().is_none_or(|known| known.order < spare.order))
        {
            *first = FirstPage::Rotten(spare);
        }
    })
}
