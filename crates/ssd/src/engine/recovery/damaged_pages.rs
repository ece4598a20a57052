//! The addresses of damaged pages of the log.
//!
//! Input: the intact pages of each life of a block, and how many pages of it count. Output: the other ones. Invariant: a
//! page behind the last one that counts is not damaged: a power cut may have torn it.

use super::evidence::CountedLog;
use super::window::FoundWindow;
use crate::log::blocks::BlockEntry;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK, PageAddress};
use std::collections::BTreeMap;

/// Returns the damaged pages of the window. The last pages of a block that is damaged to its end are not among them,
/// because no page tells where they were.
pub(super) fn damaged_in_window(window: &FoundWindow, counted: &CountedLog) -> Vec<PageAddress> {
    let mut pages: BTreeMap<(BlockId, u64), u8> = BTreeMap::new();
    for (_, page) in window.pages.iter().filter(|(tick, _)| counted.counts(**tick)) {
        let known = pages.entry((page.address.block, page.order)).or_default();
        *known = (page.address.page + 1).max(*known);
    }
    pages.into_iter().flat_map(|((block, order), pages)| missing_pages(window, block, order, pages)).collect()
}

/// Returns the damaged pages of a block that the map of the checkpoint lists.
pub(super) fn damaged_in_block(
    found: &FoundWindow,
    block: BlockId,
    entry: &BlockEntry,
) -> impl Iterator<Item = PageAddress> + use<> {
    missing_pages(found, block, entry.order, entry.pages)
}

/// Returns the first pages of a life of a block that are not intact.
fn missing_pages(
    found: &FoundWindow,
    block: BlockId,
    order: u64,
    pages: u8,
) -> impl Iterator<Item = PageAddress> + use<> {
    let intact = found.intact.get(&(block, order)).copied().unwrap_or(0);
    let pages = pages.clamp(1, u8::try_from(PAGES_PER_BLOCK).expect("64 pages a block"));
    (0..pages).filter(move |page| intact & 1 << page == 0).map(move |page| PageAddress::new(block, page))
}
