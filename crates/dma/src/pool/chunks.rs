//! The chunk table of an arena: the chunk of each page, the used pages of each chunk, and the empty chunks.
//!
//! Input: pinned chunks; runs handed out and returned. Output: the chunks that may be unpinned. Invariant: a chunk's
//! `used` is the number of its claimed pages; the empty chunks are exactly those of the pool's tier with `used` 0. Every
//! operation is one table look-up per chunk that a run touches, regardless of the number of chunks.

use super::budget::PinTier;
use super::pinner::PinToken;
use headwater_host::clock::Nanos;
use headwater_host::reservation::{Backing, PageRun};
use headwater_host::width::narrow;

/// A range of memory that was committed and pinned as one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedChunk {
    pub(super) run: PageRun,
    pub(super) token: PinToken,
    pub(super) backing: Backing,
    /// The tier that it is charged to. Only chunks of the pool serve requests of any kind, and are listed when empty.
    pub(super) tier: PinTier,
    /// Time at which a tick first saw it empty; `None` while it is used or before such a tick.
    pub(super) empty_since: Option<Nanos>,
    used: u32,
    /// Index among the empty chunks.
    empty_index: usize,
}

impl PinnedChunk {
    /// Returns a chunk of which all pages are free.
    pub(super) fn unused(run: PageRun, token: PinToken, backing: Backing, tier: PinTier) -> Self {
        Self { run, token, backing, tier, empty_since: None, used: 0, empty_index: 0 }
    }

    fn is_pooled(&self) -> bool {
        self.tier == PinTier::Pool
    }
}

/// Identifier of a chunk, valid as long as the chunk exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkId(u32);

const NO_CHUNK: u32 = u32::MAX;

/// The chunk table of an arena.
#[derive(Debug)]
pub(super) struct ChunkTable {
    granule_shift: u32,
    /// Index of the chunk, by granule.
    by_granule: Vec<u32>,
    slots: Vec<Option<PinnedChunk>>,
    free_slots: Vec<u32>,
    empty: Vec<u32>,
    empty_pages: u64,
    pages: u64,
}

impl ChunkTable {
    /// Creates a table for `granules` granules of `granule_pages` pages, a power of two.
    pub(super) fn new(granules: u32, granule_pages: u32) -> Self {
        Self {
            granule_shift: granule_pages.trailing_zeros(),
            by_granule: vec![NO_CHUNK; granules as usize],
            slots: Vec::new(),
            free_slots: Vec::new(),
            empty: Vec::new(),
            empty_pages: 0,
            pages: 0,
        }
    }

    /// Adds a new chunk, all of it free, in granules without a chunk. A chunk of another tier than the pool's may end
    /// inside a granule, whose rest stays without memory.
    pub(super) fn add(&mut self, chunk: PinnedChunk) {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            narrow(self.slots.len() - 1)
        });
        let run = chunk.run;
        self.slots[index as usize] = Some(PinnedChunk { empty_index: self.empty.len(), ..chunk });
        if chunk.is_pooled() {
            self.empty.push(index);
            self.empty_pages += u64::from(run.pages);
        }
        let granules = self.granules(run);
        self.by_granule[granules].fill(index);
        self.pages += u64::from(run.pages);
    }

    /// Removes an unused chunk. Returns `None` if it is used or does not exist.
    pub(super) fn remove(&mut self, id: ChunkId) -> Option<PinnedChunk> {
        let chunk = self.slots.get(id.0 as usize).copied().flatten().filter(|chunk| chunk.used == 0)?;
        if chunk.is_pooled() {
            self.remove_from_empty(chunk);
        }
        self.slots[id.0 as usize] = None;
        self.free_slots.push(id.0);
        let granules = self.granules(chunk.run);
        self.by_granule[granules].fill(NO_CHUNK);
        self.pages -= u64::from(chunk.run.pages);
        Some(chunk)
    }

    /// Counts the pages of a run as used.
    #[inline]
    pub(super) fn mark_used(&mut self, run: PageRun) {
        let mut at = run.first;
        while at < run.end() {
            let index = self.by_granule[(at >> self.granule_shift) as usize];
            let chunk = chunk_of(&mut self.slots, index);
            let end = chunk.run.end().min(run.end());
            let was_empty = chunk.used == 0;
            chunk.used += end - at;
            assert!(chunk.used <= chunk.run.pages, "{} of {} pages are used", chunk.used, chunk.run.pages);
            if was_empty && chunk.is_pooled() {
                chunk.empty_since = None;
                let chunk = *chunk;
                self.remove_from_empty(chunk);
            }
            at = end;
        }
    }

    /// Counts the pages of a run as free.
    #[inline]
    pub(super) fn mark_free(&mut self, run: PageRun) {
        let mut at = run.first;
        while at < run.end() {
            let index = self.by_granule[(at >> self.granule_shift) as usize];
            let chunk = chunk_of(&mut self.slots, index);
            let end = chunk.run.end().min(run.end());
            assert!(chunk.used >= end - at, "{} pages are freed, {} are used", end - at, chunk.used);
            chunk.used -= end - at;
            if chunk.used == 0 && chunk.is_pooled() {
                (chunk.empty_index, chunk.empty_since) = (self.empty.len(), None);
                self.empty_pages += u64::from(chunk.run.pages);
                self.empty.push(index);
            }
            at = end;
        }
    }

    /// Returns the chunk that contains a page.
    pub(super) fn at(&self, page: u32) -> Option<&PinnedChunk> {
        let index = *self.by_granule.get((page >> self.granule_shift) as usize)?;
        self.slots.get(index as usize)?.as_ref()
    }

    /// Returns the pages of a chunk.
    pub(super) fn run_of(&self, id: ChunkId) -> Option<PageRun> {
        Some(self.slots.get(id.0 as usize)?.as_ref()?.run)
    }

    /// Returns the number of the chunk that contains a page.
    pub(super) fn id_at(&self, page: u32) -> Option<ChunkId> {
        let index = *self.by_granule.get((page >> self.granule_shift) as usize)?;
        (index != NO_CHUNK).then_some(ChunkId(index))
    }

    /// Returns the empty chunks of the pool.
    pub(super) fn empty(&self) -> impl Iterator<Item = (ChunkId, &PinnedChunk)> {
        self.empty
            .iter()
            .filter_map(|&index| self.slots[index as usize].as_ref().map(|chunk| (ChunkId(index), chunk)))
    }

    /// Stamps the empty chunks that have no stamp yet.
    pub(super) fn stamp_empty(&mut self, now: Nanos) {
        for &index in &self.empty {
            if let Some(chunk) = &mut self.slots[index as usize] {
                chunk.empty_since.get_or_insert(now);
            }
        }
    }

    /// Returns the pages in empty chunks of the pool.
    pub(super) fn empty_pages(&self) -> u64 {
        self.empty_pages
    }

    /// Returns the pages in all chunks.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the pages in chunks of one kind of page.
    pub(super) fn pages_of(&self, backing: Backing) -> u64 {
        let chunks = self.slots.iter().flatten().filter(|chunk| chunk.backing == backing);
        chunks.map(|chunk| u64::from(chunk.run.pages)).sum()
    }

    /// Returns the number of chunks.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    fn remove_from_empty(&mut self, chunk: PinnedChunk) {
        let removed = self.empty.swap_remove(chunk.empty_index);
        assert!(
            chunk_of(&mut self.slots, removed).run == chunk.run,
            "{:?} is not listed as empty",
            chunk.run
        );
        if let Some(&moved) = self.empty.get(chunk.empty_index) {
            chunk_of(&mut self.slots, moved).empty_index = chunk.empty_index;
        }
        self.empty_pages -= u64::from(chunk.run.pages);
    }

    fn granules(&self, run: PageRun) -> std::ops::Range<usize> {
        let granule = |page: u32| (page >> self.granule_shift) as usize;
        // Only the last granule of a chunk can be partly filled.
        granule(run.first)..granule(run.end() - 1) + 1
    }
}

/// Returns the chunk of an index taken from the table.
#[inline]
fn chunk_of(slots: &mut [Option<PinnedChunk>], index: u32) -> &mut PinnedChunk {
    let slot = slots.get_mut(index as usize).and_then(Option::as_mut);
    slot.unwrap_or_else(|| unreachable!("every page handed out lies in a chunk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> ChunkTable {
        let mut chunks = ChunkTable::new(8, 16);
        for (first, pages) in [(0, 16), (16, 48), (96, 32)] {
            let run = PageRun { first, pages };
            chunks.add(PinnedChunk::unused(run, PinToken::at(0, 0), Backing::Small, PinTier::Pool));
        }
        chunks
    }

    fn empty_of(chunks: &ChunkTable) -> Vec<u32> {
        let mut found: Vec<u32> = chunks.empty().map(|(_, chunk)| chunk.run.first).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_run_across_chunks_is_counted_in_each() {
        let mut chunks = table();
        let run = PageRun { first: 10, pages: 20 };
        chunks.mark_used(run);
        assert_eq!(empty_of(&chunks), [96]);
        chunks.mark_free(PageRun { first: 10, pages: 6 });
        assert_eq!(empty_of(&chunks), [0, 96]);
        chunks.mark_free(PageRun { first: 16, pages: 14 });
        assert_eq!(empty_of(&chunks), [0, 16, 96]);
        assert_eq!((chunks.empty_pages(), chunks.pages(), chunks.count()), (96, 96, 3));
    }

    #[test]
    fn only_an_empty_chunk_is_removed() {
        let mut chunks = table();
        let (id, _) = chunks.empty().find(|(_, chunk)| chunk.run.first == 16).unwrap();
        chunks.mark_used(PageRun { first: 20, pages: 1 });
        assert!(chunks.remove(id).is_none());
        chunks.mark_free(PageRun { first: 20, pages: 1 });
        assert_eq!(chunks.remove(id).unwrap().run.pages, 48);
        assert!(chunks.remove(id).is_none());
        assert!(chunks.at(20).is_none());
        assert_eq!(chunks.at(127).unwrap().run.first, 96);
        assert_eq!(empty_of(&chunks), [0, 96]);
    }

    #[test]
    fn chunk_of_another_tier_is_never_listed_as_empty_and_may_end_inside_a_granule() {
        let mut chunks = ChunkTable::new(8, 16);
        let run = PageRun { first: 32, pages: 20 };
        let chunk = PinnedChunk::unused(run, PinToken::at(0, 0), Backing::Small, PinTier::Dynamic);
        chunks.add(chunk);
        assert_eq!((chunks.empty_pages(), chunks.pages(), empty_of(&chunks).len()), (0, 20, 0));
        chunks.mark_used(run);
        let id = chunks.id_at(51).unwrap();
        assert!(chunks.remove(id).is_none(), "it is used");
        chunks.mark_free(run);
        assert_eq!((chunks.remove(id).unwrap().run, chunks.pages(), chunks.id_at(51)), (run, 0, None));
        assert!(empty_of(&chunks).is_empty());
    }

    #[test]
    fn a_chunk_used_since_its_stamp_gets_a_new_one() {
        let mut chunks = table();
        chunks.stamp_empty(Nanos(5));
        chunks.mark_used(PageRun { first: 3, pages: 1 });
        chunks.mark_free(PageRun { first: 3, pages: 1 });
        chunks.stamp_empty(Nanos(9));
        assert_eq!(chunks.at(0).unwrap().empty_since, Some(Nanos(9)));
        assert_eq!(chunks.at(16).unwrap().empty_since, Some(Nanos(5)));
    }
}
