//! The survey: what each block is, by its first page.

use super::read_pages;
use crate::blocks::EPOCH_SHIFT;
use crate::device::Progress;
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::{Media, MediaError};
use crate::page::{PageKind, PageSpare};
use crate::utl::Utl;
use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// What the first page of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstPage {
    /// The block holds nothing that was ever made durable: pages are made durable in order.
    Blank,
    /// A page of ours.
    Spare(PageSpare),
    /// Something that cannot be read; the other pages will tell.
    Unknown,
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

    /// The blocks of the log from `start_order` on, in order, and those whose first page says nothing.
    pub(super) fn log_blocks(&self, start_order: u64) -> Vec<BlockId> {
        let mut blocks: Vec<(u64, BlockId)> = (0..)
            .map(BlockId)
            .zip(&self.first_pages)
            .filter_map(|(block, first)| match first {
                FirstPage::Spare(spare)
                    if spare.kind != PageKind::Checkpoint
                        && spare.order >= start_order
                        && self.is_accepted(spare.order) =>
                {
                    Some((spare.order, block))
                }
                FirstPage::Unknown => Some((u64::MAX, block)),
                _ => None,
            })
            .collect();
        blocks.sort_unstable();
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    /// The first page of a block.
    pub(super) fn spare(&self, block: BlockId) -> Option<&PageSpare> {
        match self.first_pages.get(block.index()) {
            Some(FirstPage::Spare(spare)) => Some(spare),
            _ => None,
        }
    }
}

/// Reads the first page of every block.
pub(super) fn survey<M: Media>(
    utl: &mut Utl<M>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(Progress),
) -> Result<Survey, MediaError> {
    let total = u64::from(utl.geometry.blocks);
    let mut first_pages = Vec::with_capacity(utl.geometry.blocks as usize);
    let mut checkpoint_next = 1;
    let (mut highest_order, mut durable_order) = (0, 0);
    let mut accepted = BTreeMap::new();
    let pages = (0..utl.geometry.blocks).map(|block| PageAddress::new(BlockId(block), 0));
    read_pages(&mut utl.media, now, pages, |page, bytes| {
        let first = match bytes {
            None => FirstPage::Blank,
            Some(bytes) => PageSpare::decode(bytes, page.page).map_or(FirstPage::Unknown, FirstPage::Spare),
        };
        if let FirstPage::Spare(spare) = first
            && spare.kind == PageKind::Checkpoint
        {
            checkpoint_next = checkpoint_next.max(crate::checkpoint::stream::split_part(spare.context).0 + 1);
        }
        if let FirstPage::Spare(spare) = first {
            highest_order = highest_order.max(spare.order);
            durable_order = durable_order.max(spare.durable_order);
            if spare.kind != PageKind::Checkpoint {
                accepted.insert(spare.order >> EPOCH_SHIFT, spare.context);
            }
        }
        first_pages.push(first);
        progress(Progress { stage: "survey", done: first_pages.len() as u64, total });
    })?;
    Ok(Survey { first_pages, checkpoint_next, highest_order, durable_order, accepted })
}
