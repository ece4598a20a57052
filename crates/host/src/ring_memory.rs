//! Memory that two parties share as a ring: 64-bit words, loaded and stored one at a time.
//!
//! In: word numbers and values. Out: values. A word is little-endian in memory whatever the machine, so that entries keep
//! their wire layout. Invariant: nobody ever holds a reference into the words; the other side may change them any time,
//! so a reader takes each word once and judges its copy.

#[cfg(not(loom))]
use crate::foreign::{Foreign, OutOfRegion};
use crate::sync::{AtomicU64, Ordering, fence};
use std::fmt;
use std::sync::Arc;

/// Words of one cache line. What one side writes and the other reads lies a line apart from everything else.
pub const LINE_WORDS: usize = 8;

/// What a ring needs of memory: load word, store word, fence.
///
/// # Panics
/// Every method panics on a word number at or above [`words`](Self::words): the layout of a ring is made by us, and what
/// the other side writes is checked before it becomes a word number.
pub trait RingMemory {
    /// How many words there are.
    fn words(&self) -> usize;

    /// The word, with no promise about any other.
    fn load_relaxed(&self, word: usize) -> u64;

    /// The word, and everything its writer stored before it.
    fn load_acquire(&self, word: usize) -> u64;

    /// Stores the word, with no promise about any other.
    fn store_relaxed(&self, word: usize, value: u64);

    /// Stores the word behind everything this thread stored before it.
    fn store_release(&self, word: usize, value: u64);

    /// Orders every store before it against every load behind it, on all sides: what a doorbell needs between ringing
    /// and looking whether somebody sleeps, and a sleeper between saying so and looking once more.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[repr(align(64))]
struct Line([AtomicU64; LINE_WORDS]);

/// Ring memory of this process, on the heap, in whole cache lines. A clone is another handle to the same words.
#[derive(Clone)]
pub struct SharedWords {
    lines: Arc<[Line]>,
}

impl SharedWords {
    /// At least `words` words, all zero.
    #[must_use]
    pub fn zeroed(words: usize) -> Self {
        let lines = words.div_ceil(LINE_WORDS);
        Self { lines: (0..lines).map(|_| Line(std::array::from_fn(|_| AtomicU64::new(0)))).collect() }
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        &self.lines[word / LINE_WORDS].0[word % LINE_WORDS]
    }
}

impl RingMemory for SharedWords {
    fn words(&self) -> usize {
        self.lines.len() * LINE_WORDS
    }

    #[inline]
    fn load_relaxed(&self, word: usize) -> u64 {
        u64::from_le(self.word(word).load(Ordering::Relaxed))
    }

    #[inline]
    fn load_acquire(&self, word: usize) -> u64 {
        u64::from_le(self.word(word).load(Ordering::Acquire))
    }

    #[inline]
    fn store_relaxed(&self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn store_release(&self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::Release);
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWords({} words)", self.words())
    }
}

/// Ring memory that other processes, or a guest, have mapped too: words of a [`Foreign`] region.
#[derive(Clone, Debug)]
#[cfg(not(loom))]
pub struct ForeignWords {
    region: Foreign,
    offset: usize,
    words: usize,
}

#[cfg(not(loom))]
impl ForeignWords {
    /// `words` words from byte `offset` of a region on.
    ///
    /// # Errors
    /// [`OutOfRegion`] for an offset that is not a multiple of 8, or words that run over the end.
    pub fn new(region: Foreign, offset: usize, words: usize) -> Result<Self, OutOfRegion> {
        let bytes = words.saturating_mul(8);
        let region_bytes = region.bytes();
        let out = OutOfRegion { offset, bytes, region_bytes };
        if !offset.is_multiple_of(8) || offset.checked_add(bytes).is_none_or(|end| end > region_bytes) {
            return Err(out);
        }
        Ok(Self { region, offset, words })
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "the trait promises a panic for a word number that we made up")]
    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.words, "word {word} of {} words of ring memory", self.words);
        self.region.word(self.offset + word * 8).expect("the constructor found all words in the region")
    }
}

#[cfg(not(loom))]
impl RingMemory for ForeignWords {
    fn words(&self) -> usize {
        self.words
    }

    #[inline]
    fn load_relaxed(&self, word: usize) -> u64 {
        u64::from_le(self.word(word).load(Ordering::Relaxed))
    }

    #[inline]
    fn load_acquire(&self, word: usize) -> u64 {
        u64::from_le(self.word(word).load(Ordering::Acquire))
    }

    #[inline]
    fn store_relaxed(&self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn store_release(&self, word: usize, value: u64) {
        self.word(word).store(value.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn clones_see_the_same_words() {
        let one = SharedWords::zeroed(9);
        let other = one.clone();
        assert_eq!(one.words(), 16);
        one.store_release(8, 0x0102_0304);
        assert_eq!(other.load_acquire(8), 0x0102_0304);
        assert_eq!(other.load_relaxed(7), 0);
    }

    #[test]
    fn foreign_words_are_the_words_of_their_region() {
        let region = Foreign::anonymous(4_096).unwrap();
        let words = ForeignWords::new(region.clone(), 64, 4).unwrap();
        words.store_release(1, 0x0102_0304_0506_0708);
        let mut bytes = [0; 8];
        region.copy_in(72, &mut bytes).unwrap();
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(words.load_acquire(1), 0x0102_0304_0506_0708);
        assert!(ForeignWords::new(region.clone(), 4, 1).is_err());
        assert!(ForeignWords::new(region.clone(), 4_088, 2).is_err());
        assert!(ForeignWords::new(region, usize::MAX - 7, usize::MAX).is_err());
    }

    #[test]
    fn lines_do_not_share_a_cache_line() {
        let memory = SharedWords::zeroed(32);
        for line in memory.lines.iter() {
            assert_eq!(std::ptr::from_ref(line).align_offset(64), 0);
        }
    }
}
