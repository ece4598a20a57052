//! Loads the checkpoint that the newest commit record names.
//!
//! Input: the blocks of the checkpoint. Output: its map, from either copy page by page, and its index if all of its pages
//! are intact. Invariant: bytes whose checksum differs from the one in the commit record are not used.

use super::page_reads::read_pages;
use super::survey::BlockLife;
use crate::engine::checkpoint::stream::{
    DecodedIndex, DecodedMap, decode_index, decode_map, split_page_context,
};
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::log::commit_record::{CheckpointRoot, StreamExtent};
use crate::log::page::{PageKind, PageSpare};
use crate::log::prefix::EPOCH_SHIFT;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use std::collections::BTreeMap;
use std::ops::Range;

/// The pages of a checkpoint that are not intact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamagedCheckpoint {
    /// Pages of each copy of the map: a page is taken from the other copy.
    pub maps: [u64; 2],
    /// Pages of the index: it is built again from the log.
    pub index: u64,
}

impl DamagedCheckpoint {
    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.maps[0] + self.maps[1] + self.index
    }
}

/// A checkpoint as far as it can be read.
#[derive(Debug)]
pub(super) struct LoadedCheckpoint {
    pub(super) blocks: Vec<BlockId>,
    /// `None` if a page is intact in neither copy.
    pub(super) map: Option<DecodedMap>,
    /// `None` if a page is not intact.
    pub(super) index: Option<DecodedIndex>,
    pub(super) damaged: DamagedCheckpoint,
}

/// The bytes of one part, gathered in the order of its pages.
struct GatheredStream {
    extent: StreamExtent,
    pages: Vec<Option<Vec<u8>>>,
}

impl GatheredStream {
    /// Begins a part; of one with more pages than the checkpoint has at most, one more is missing.
    fn new(extent: StreamExtent, pages_max: usize) -> Self {
        Self { extent, pages: vec![None; (extent.pages as usize).min(pages_max + 1)] }
    }

    fn range(&self) -> Range<u64> {
        let first = u64::from(self.extent.first);
        first..first + u64::from(self.extent.pages)
    }

    fn add(&mut self, page: u64, bytes: &[u8]) {
        let range = self.range();
        let at = page.checked_sub(range.start).and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = at.and_then(|at| self.pages.get_mut(at)) {
            *slot = Some(bytes.to_vec());
        }
    }

    fn missing(&self) -> u64 {
        self.pages.iter().filter(|page| page.is_none()).count() as u64
    }

    /// Returns the bytes if every page is here and the checksum matches.
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut stream = Vec::with_capacity(self.pages.len() * PAGE_DATA_BYTES);
        for page in &self.pages {
            stream.extend_from_slice(page.as_ref()?);
        }
        (crc32c(0, &stream) == self.extent.crc).then_some(stream)
    }
}

/// Returns the blocks of the checkpoint with this number, in the order of their pages, each with its first page and its
/// order. An opening that gave the number out again has a later epoch than one whose checkpoint was never named.
fn parts_of(lives: &[BlockLife], wanted: u64) -> Vec<(u64, BlockId, u64)> {
    let parts = (0..).map(BlockId).zip(lives).filter_map(|(block, life)| match life {
        BlockLife::Checkpoint { number, page, order } if *number == wanted => Some((*page, block, *order)),
        _ => None,
    });
    let mut parts: Vec<(u64, BlockId, u64)> = parts.collect();
    let epoch = parts.iter().map(|(.., order)| order >> EPOCH_SHIFT).max();
    parts.retain(|(.., order)| Some(order >> EPOCH_SHIFT) == epoch);
    parts.sort_unstable();
    parts
}

/// Reads the pages of a checkpoint.
#[expect(clippy::cast_possible_truncation, reason = "64 pages a block")]
pub(super) fn load_checkpoint<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lives: &[BlockLife],
    root: &CheckpointRoot,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<LoadedCheckpoint, MediaError> {
    let seed = ftl.media().traits().checksum_seed;
    let parts = parts_of(lives, root.number);
    let orders: BTreeMap<BlockId, u64> = parts.iter().map(|(_, block, order)| (*block, *order)).collect();
    let blocks: Vec<BlockId> = parts.into_iter().map(|(_, block, _)| block).collect();
    let pages_max = blocks.len() * PAGES_PER_BLOCK;
    let [mut first, mut second] = root.maps.map(|extent| GatheredStream::new(extent, pages_max));
    let mut index = GatheredStream::new(root.index, pages_max);
    let pages =
        blocks.iter().flat_map(|block| (0..PAGES_PER_BLOCK as u8).map(|page| PageAddress::new(*block, page)));
    let total = (blocks.len() * PAGES_PER_BLOCK) as u64;
    let mut done = 0;
    let (mut source, _) = ftl.reading(PageNeed::Checkpoint);
    read_pages(&mut source, now, pages, |page, bytes| {
        done += 1;
        progress(OpenProgress { stage: "checkpoint", done, total });
        let Some(bytes) = bytes.programmed() else { return };
        let Some(spare) = PageSpare::of_intact(bytes, page, seed) else { return };
        let (number, at) = split_page_context(spare.continues);
        let is_part = number == root.number && orders.get(&page.block) == Some(&spare.order);
        if spare.kind == PageKind::Checkpoint && is_part {
            let data = &bytes[..usize::from(spare.used)];
            [&mut first, &mut second, &mut index].into_iter().for_each(|stream| stream.add(at, data));
        }
    })?;
    let damaged = DamagedCheckpoint { maps: [first.missing(), second.missing()], index: index.missing() };
    // Each page of the map from the copy in which it is intact.
    let copies = first.pages.iter_mut().zip(&mut second.pages);
    copies.filter(|(first, _)| first.is_none()).for_each(|(first, second)| *first = second.take());
    let map = first.bytes().or_else(|| second.bytes()).and_then(|bytes| decode_map(&bytes));
    let index = index.bytes().and_then(|bytes| decode_index(&bytes));
    let is_of_root = |map: &DecodedMap| {
        map.number == root.number && map.start == root.start && map.start_order == root.start_order
    };
    let map = map.filter(is_of_root);
    Ok(LoadedCheckpoint { blocks, map, index, damaged })
}
