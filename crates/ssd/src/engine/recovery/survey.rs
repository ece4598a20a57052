//! Identifies each block by an intact page of it.
//!
//! Input: the first page of every block, and its other pages where the first one is not intact or something is amiss.
//! Output: the life of each block: a part of the log, or of a checkpoint. Invariant: a page that is not intact identifies
//! nothing.

use super::page_reads::read_pages;
use crate::engine::checkpoint::stream::split_page_context;
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::log::page::{PageKind, PageSpare};
use crate::log::page_version1;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;

/// The life of a block, as a page of it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockLife {
    /// No page of it is intact; true if one of them could not be read.
    Unknown(bool),
    /// It is part of the log, of either version.
    Log {
        order: u64,
        /// True if a chained record continues at its start, as far as an intact first page says.
        continues: bool,
    },
    /// It is part of a checkpoint, with this page of it.
    Checkpoint { number: u64, page: u64, order: u64 },
    /// It is an extent, opened when the log was to open a block with `log_order` next.
    Extent { order: u64, log_order: u64 },
}

impl BlockLife {
    fn of(bytes: &[u8], page: PageAddress, seed: u32) -> Option<Self> {
        if let Some(spare) = PageSpare::of_intact(bytes, page, seed) {
            let (number, at) = split_page_context(spare.continues);
            return Some(match spare.kind {
                PageKind::Checkpoint => {
                    Self::Checkpoint { number, page: at - u64::from(page.page).min(at), order: spare.order }
                }
                PageKind::Extent => Self::Extent { order: spare.order, log_order: spare.continues },
                PageKind::Log | PageKind::Guard => {
                    Self::Log { order: spare.order, continues: page.page == 0 && spare.continues != 0 }
                }
            });
        }
        let spare = page_version1::PageSpare::decode(bytes, page.page)?;
        let is_log = spare.kind != PageKind::Checkpoint;
        is_log.then_some(Self::Log { order: spare.order, continues: page.page == 0 && spare.continues != 0 })
    }

    /// Takes what another page of the block says, if that is younger. Of one life only the first page knows what
    /// continues in it.
    fn take_younger(&mut self, found: Self) {
        let is_first_of_life =
            found.order() == self.order() && matches!(found, Self::Log { continues: true, .. });
        if found.order() > self.order() || is_first_of_life {
            *self = found;
        }
    }

    /// Returns the number of the checkpoint of which it is a part.
    pub(super) fn checkpoint(&self) -> Option<u64> {
        if let Self::Checkpoint { number, .. } = self { Some(*number) } else { None }
    }

    pub(super) fn order(&self) -> Option<u64> {
        match self {
            Self::Unknown(_) => None,
            Self::Log { order, .. } | Self::Checkpoint { order, .. } | Self::Extent { order, .. } => {
                Some(*order)
            }
        }
    }
}

/// Reads the first page of every block, and the other pages of blocks whose first page is not intact.
pub(super) fn survey<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Vec<BlockLife>, MediaError> {
    let total = u64::from(ftl.geometry().blocks);
    let seed = ftl.media().traits().checksum_seed;
    let mut lives = Vec::with_capacity(ftl.geometry().blocks as usize);
    let mut undecided = Vec::new();
    let pages = (0..ftl.geometry().blocks).map(|block| PageAddress::new(BlockId(block), 0));
    let (mut source, _) = ftl.reading(PageNeed::BlockSurvey);
    read_pages(&mut source, now, pages, |page, bytes| {
        let life = bytes.programmed().and_then(|bytes| BlockLife::of(bytes, page, seed));
        // Pages are programmed in order: behind a page that was never programmed there is none.
        if life.is_none() && bytes != super::page_reads::PageBytes::Blank {
            undecided.push(page.block);
        }
        lives.push(life.unwrap_or(BlockLife::Unknown(false)));
        progress(OpenProgress { stage: "survey", done: lives.len() as u64, total });
    })?;
    let pages = undecided.iter().flat_map(|block| other_pages(*block));
    read_pages(&mut source, now, pages, |page, bytes| {
        let found = bytes.programmed().and_then(|bytes| BlockLife::of(bytes, page, seed));
        if let Some(found) = found {
            lives[page.block.index()].take_younger(found);
        }
    })?;
    for failed in ftl.failures().pages() {
        if let Some(life @ BlockLife::Unknown(_)) = lives.get_mut(failed.page.block.index()) {
            *life = BlockLife::Unknown(true);
        }
    }
    Ok(lives)
}

/// Reads every page of some blocks, of which the first page may say less than is true: it was read from elsewhere, or is
/// lost. The youngest life of a block that is wanted counts, because orders do not tell how old a log block is compared to
/// a block of a checkpoint.
pub(super) fn survey_again<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lives: &mut [BlockLife],
    blocks: Vec<BlockId>,
    is_wanted: impl Fn(BlockId, &BlockLife) -> bool,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let pages = blocks.into_iter();
    let pages = pages.flat_map(|block| std::iter::once(PageAddress::new(block, 0)).chain(other_pages(block)));
    survey_pages(ftl, lives, pages, is_wanted, now)
}

/// Reads some pages of blocks, as [`survey_again`] reads them all.
pub(super) fn survey_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lives: &mut [BlockLife],
    pages: impl Iterator<Item = PageAddress>,
    is_wanted: impl Fn(BlockId, &BlockLife) -> bool,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let seed = ftl.media().traits().checksum_seed;
    let (mut source, _) = ftl.reading(PageNeed::BlockSurvey);
    read_pages(&mut source, now, pages, |page, bytes| {
        let found = bytes.programmed().and_then(|bytes| BlockLife::of(bytes, page, seed));
        let found = found.filter(|found| is_wanted(page.block, found));
        if let (Some(life), Some(found)) = (lives.get_mut(page.block.index()), found) {
            if is_wanted(page.block, life) {
                life.take_younger(found);
            } else {
                *life = found;
            }
        }
    })
}

#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
fn other_pages(block: BlockId) -> impl Iterator<Item = PageAddress> {
    (1..PAGES_PER_BLOCK as u8).map(move |page| PageAddress::new(block, page))
}
