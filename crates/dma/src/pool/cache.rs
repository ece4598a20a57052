//! A thread's cache: a stack of spans for each size class, of one node.
//!
//! Input: returned spans, requests for a class. Output: spans, the most recently used first. Invariant: a span is in
//! the stack of the class with exactly its pages; `bytes` is their sum and never exceeds `quota`, this cache's part of
//! the limit for all caches.

use headwater_host::reservation::PAGE_BYTES;

/// Pages of the largest class: 1 MiB.
pub(super) const CLASS_PAGES_MAX: usize = 256;

/// Number of classes: 1 to 8 pages one by one, then four for each doubling.
pub(super) const CLASSES: usize = 28;

/// Pages of each class.
const PAGES: [u16; CLASSES] = pages();

const fn pages() -> [u16; CLASSES] {
    let mut table = [0; CLASSES];
    let mut class = 0;
    let (mut pages, mut step) = (1_u16, 1);
    while class < CLASSES {
        table[class] = pages;
        class += 1;
        // 8 pages are four steps of two; from there each doubling has four steps.
        if pages >= 8 && pages.is_power_of_two() {
            step = pages / 4;
        }
        pages += step;
    }
    table
}

/// The class of each number of pages, by `pages - 1`.
const CLASS_OF: [u8; CLASS_PAGES_MAX] = class_of();

const fn class_of() -> [u8; CLASS_PAGES_MAX] {
    let mut table = [0; CLASS_PAGES_MAX];
    let (mut class, mut pages) = (0_u8, 1);
    while pages <= CLASS_PAGES_MAX {
        if pages > PAGES[class as usize] as usize {
            class += 1;
        }
        table[pages - 1] = class;
        pages += 1;
    }
    table
}

const _: () = assert!(PAGES[7] == 8 && PAGES[8] == 10 && PAGES[12] == 20 && PAGES[CLASSES - 1] == 256);

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheClass(u8);

impl CacheClass {
    /// Returns the smallest class for `bytes` bytes, `None` for 0 and for more than the largest class.
    #[inline]
    pub(super) fn serving(bytes: usize) -> Option<Self> {
        CLASS_OF.get(bytes.wrapping_sub(1) / PAGE_BYTES).map(|&class| Self(class))
    }

    /// Returns the class of exactly `pages` pages.
    #[inline]
    pub(super) fn exactly(pages: u32) -> Option<Self> {
        let class = Self(*CLASS_OF.get(pages.wrapping_sub(1) as usize)?);
        (class.pages() == pages).then_some(class)
    }

    /// Returns its index among the classes.
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns its pages.
    #[inline]
    pub(super) fn pages(self) -> u32 {
        u32::from(PAGES[self.0 as usize])
    }

    /// Returns its bytes.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }

    /// Returns true if a span of this class may serve a request of a smaller class: it is at most 1.5 times as long.
    fn may_serve(self, smaller: Self) -> bool {
        usize::from(self.0) < CLASSES && self.pages() * 2 <= smaller.pages() * 3
    }

    /// Returns the number of spans to take after a miss: up to 8, and about 64 KiB.
    pub(super) fn batch(self) -> usize {
        (64 * 1_024 / self.bytes()).clamp(1, 8)
    }
}

/// Number of larger classes that may serve a request.
const STEPS_UP: usize = 2;

/// A cache of spans of one arena.
#[derive(Debug)]
pub(super) struct ThreadCache<T> {
    stacks: [Vec<T>; CLASSES],
    bytes: usize,
    quota: usize,
    /// The arena of the spans.
    arena: usize,
    hits: [u64; CLASSES],
    /// Hits at the last check by a tick.
    hits_at_last_check: u64,
    /// True if it is counted among the caches that share the limit.
    is_sharing: bool,
    /// Number of those caches when this one last asked for its share.
    asked_among: usize,
}

impl<T> ThreadCache<T> {
    /// Creates an empty cache for spans of an arena.
    pub(super) fn new(arena: usize) -> Self {
        Self {
            stacks: std::array::from_fn(|_| Vec::new()),
            bytes: 0,
            quota: 0,
            arena,
            hits: [0; CLASSES],
            hits_at_last_check: 0,
            is_sharing: false,
            asked_among: 0,
        }
    }

    /// Returns the arena of its spans.
    #[inline]
    pub(super) fn arena(&self) -> usize {
        self.arena
    }

    /// Takes a span of the class and counts a hit.
    #[inline]
    pub(super) fn pop(&mut self, class: CacheClass) -> Option<T> {
        let span = self.stacks[class.0 as usize].pop()?;
        self.bytes -= class.bytes();
        self.hits[class.0 as usize] += 1;
        Some(span)
    }

    /// Takes a span of the class, or of one of the next [`STEPS_UP`] if that wastes little, and counts a hit. The pages
    /// beyond the request stay unused until the span returns to its own class.
    pub(super) fn pop_near(&mut self, class: CacheClass) -> Option<T> {
        (class.0..)
            .take(1 + STEPS_UP)
            .map(CacheClass)
            .take_while(|near| near.may_serve(class))
            .find_map(|near| self.pop(near))
    }

    /// Keeps a span of `pages` pages, or returns it if the quota has no room or no class has this size.
    #[inline]
    pub(super) fn push(&mut self, pages: u32, span: T) -> Option<T> {
        let bytes = self.bytes + pages as usize * PAGE_BYTES;
        let (true, Some(class)) = (bytes <= self.quota, CacheClass::exactly(pages)) else {
            return Some(span);
        };
        self.bytes = bytes;
        self.stacks[class.0 as usize].push(span);
        None
    }

    /// Returns the bytes kept.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the requests served since the cache was created.
    pub(super) fn hits(&self) -> u64 {
        self.hits.iter().sum()
    }

    /// Returns those of them for at most `pages` pages.
    pub(super) fn hits_up_to(&self, pages: u32) -> u64 {
        let classes = PAGES.iter().zip(self.hits);
        classes.take_while(|&(&class, _)| u32::from(class) <= pages).map(|(_, hits)| hits).sum()
    }

    /// Returns the bytes that the quota leaves.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.quota - self.bytes
    }

    /// Returns its part of the limit for all caches.
    #[inline]
    pub(super) fn quota(&self) -> usize {
        self.quota
    }

    /// Notes that it shares the limit. Returns true if it did not before.
    pub(super) fn note_sharing(&mut self) -> bool {
        !std::mem::replace(&mut self.is_sharing, true)
    }

    /// Notes that it asks for its share of `sharing` caches. Returns true if it did not ask among as many before.
    pub(super) fn note_question(&mut self, sharing: usize) -> bool {
        std::mem::replace(&mut self.asked_among, sharing) != sharing
    }

    /// Lowers the quota to a share, and gives up the spans beyond it. Returns the decrease of the quota.
    pub(super) fn shrink_to(&mut self, share: usize, into: &mut Vec<T>) -> usize {
        while self.bytes > share {
            self.spill(into);
        }
        let before = self.quota;
        self.quota = before.min(share);
        before - self.quota
    }

    /// Raises the quota.
    pub(super) fn raise_quota(&mut self, bytes: usize) {
        self.quota += bytes;
    }

    /// Gives up half of the fullest class. If requests of all classes are equally frequent, misses are fewest when the
    /// number of spans of a class is proportional to one over the root of their size; the fullest class is the one with
    /// the most spans by that measure.
    pub(super) fn spill(&mut self, into: &mut Vec<T>) {
        let classes = self.stacks.iter().zip(PAGES).enumerate();
        let fullest =
            classes.max_by_key(|(_, (stack, pages))| stack.len() * stack.len() * usize::from(*pages));
        if let Some((class, (stack, pages))) = fullest {
            let count = stack.len().div_ceil(2);
            self.bytes -= count * usize::from(pages) * PAGE_BYTES;
            // The bottom of the stack is the least recently used.
            into.extend(self.stacks[class].drain(..count));
        }
    }

    /// Gives up all spans and the quota, and takes spans of `arena` from now on. Returns the quota if it shared the limit.
    pub(super) fn drain_all(&mut self, arena: usize, into: &mut Vec<T>) -> Option<usize> {
        let held = self.stacks.iter().zip(PAGES).map(|(stack, pages)| stack.len() * usize::from(pages));
        let held = held.sum::<usize>() * PAGE_BYTES;
        let (bytes, quota) = (self.bytes, self.quota);
        assert!(held == bytes && bytes <= quota, "{held} bytes held, {bytes} counted, quota {quota}");
        self.stacks.iter_mut().for_each(|stack| into.append(stack));
        self.bytes = 0;
        self.arena = arena;
        self.asked_among = 0;
        self.quota = 0;
        std::mem::take(&mut self.is_sharing).then_some(quota)
    }

    /// Takes spans of another arena from now on, if it holds none.
    pub(super) fn move_to_arena(&mut self, arena: usize) {
        if self.bytes == 0 {
            self.arena = arena;
        }
    }

    /// Returns true if no request was served since the last call.
    pub(super) fn take_idle(&mut self) -> bool {
        let hits = self.hits();
        std::mem::replace(&mut self.hits_at_last_check, hits) == hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_sufficient_class() {
        assert_eq!(CacheClass::serving(0), None);
        assert_eq!(CacheClass::serving((1 << 20) + 1), None);
        for pages in 1..=256_u32 {
            let class = CacheClass::serving(pages as usize * PAGE_BYTES).unwrap();
            assert!(class.pages() >= pages && class.pages() * 4 <= pages * 5 + 3, "{pages} pages");
            assert_eq!(CacheClass::serving((pages as usize - 1) * PAGE_BYTES + 1), Some(class));
            assert_eq!(CacheClass::exactly(pages), Some(class).filter(|class| class.pages() == pages));
        }
        assert_eq!(CacheClass::exactly(0), None);
        assert_eq!(CacheClass::exactly(257), None);
    }

    #[test]
    fn a_cache_above_its_share_gives_up_spans_and_quota() {
        let mut cache = ThreadCache::new(0);
        cache.raise_quota(100 * PAGE_BYTES);
        for span in 0..100 {
            assert_eq!(cache.push(1, span), None);
        }
        let mut out = Vec::new();
        assert_eq!(cache.shrink_to(40 * PAGE_BYTES, &mut out), 60 * PAGE_BYTES);
        assert!(cache.bytes() <= 40 * PAGE_BYTES && cache.quota() == 40 * PAGE_BYTES);
        assert_eq!(out.len() * PAGE_BYTES + cache.bytes(), 100 * PAGE_BYTES, "a span was lost");
        assert_eq!(cache.shrink_to(50 * PAGE_BYTES, &mut out), 0);
        assert!(cache.note_sharing() && !cache.note_sharing());
        assert!(cache.note_question(2) && !cache.note_question(2) && cache.note_question(3));
        assert_eq!(cache.drain_all(0, &mut out), Some(40 * PAGE_BYTES));
        assert_eq!((cache.drain_all(0, &mut out), out.len()), (None, 100));
    }

    #[test]
    fn cached_bytes_never_exceed_the_quota() {
        let mut cache = ThreadCache::new(0);
        let class = CacheClass::serving(8_192).unwrap();
        assert_eq!(cache.push(2, 1), Some(1));
        cache.raise_quota(20_000);
        assert_eq!((cache.push(2, 1), cache.push(2, 2), cache.push(2, 3)), (None, None, Some(3)));
        assert_eq!((cache.bytes(), cache.pop(class), cache.hits()), (16_384, Some(2), 1));
        let mut out = Vec::new();
        assert_eq!(cache.drain_all(1, &mut out), None);
        assert_eq!((out, cache.bytes(), cache.arena()), (vec![1], 0, 1));
    }

    #[test]
    fn an_empty_class_is_served_by_a_slightly_larger_one() {
        let mut cache = ThreadCache::new(0);
        cache.raise_quota(1 << 20);
        let class = |pages| CacheClass::exactly(pages).unwrap();
        cache.push(2, 2);
        cache.push(28, 28);
        cache.push(32, 32);
        // A request for one page never takes two, and one for 20 pages never takes 32.
        assert_eq!(cache.pop_near(class(1)), None);
        assert_eq!((cache.pop_near(class(20)), cache.pop_near(class(20))), (Some(28), None));
        assert_eq!((cache.bytes(), cache.hits()), (34 * PAGE_BYTES, 1));
        assert_eq!(cache.pop_near(class(256)), None);
        assert_eq!(cache.pop_near(class(2)), Some(2));
    }

    #[test]
    fn a_spill_takes_the_oldest_half_of_the_fullest_class() {
        let mut cache = ThreadCache::new(0);
        cache.raise_quota(1 << 20);
        let four = CacheClass::exactly(4).unwrap();
        for span in 0..5 {
            cache.push(1, span);
        }
        for span in 10..13 {
            cache.push(4, span);
        }
        let mut out = Vec::new();
        cache.spill(&mut out);
        assert_eq!(out, [10, 11]);
        assert_eq!(cache.bytes(), 9 * PAGE_BYTES);
        assert_eq!(cache.pop(four), Some(12));
    }
}
