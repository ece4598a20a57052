//! Memory that two parties share as a ring: 64-bit words, loaded and stored one at a time, and 32-bit cells for
//! doorbells.
//!
//! Input: word numbers and values. Output: values. A word is little-endian in memory on every machine, so that entries
//! keep their wire layout. Memory is used as words or as cells, never as both. Invariant: no reference into shared
//! words is ever given out; the other side may change them any time, so a reader loads each word once and validates its
//! copy.

#[cfg(not(loom))]
use crate::shared_memory::{OutOfRegion, SharedMemory};
#[cfg(not(loom))]
use crate::sync::AtomicU32;
use crate::sync::{AtomicU64, Ordering, fence};
use std::fmt;
#[cfg(not(loom))]
use std::ptr::NonNull;
use std::sync::Arc;

/// The words of one cache line. Words that one side writes and the other reads lie in lines of their own.
pub const LINE_WORDS: usize = 8;

/// The memory operations of a ring: load word, store word, fence.
///
/// # Panics
/// Every method panics on a word number at or above [`words`](Self::words): this side defines the layout of a ring, and
/// a value that the other side writes is validated before it becomes a word number.
pub trait RingMemory {
    /// Returns the number of words.
    fn words(&self) -> usize;

    /// Loads the word; orders no other access.
    fn load_relaxed(&self, word: usize) -> u64;

    /// Loads the word and makes visible all that its writer stored before it.
    fn load_acquire(&self, word: usize) -> u64;

    /// Stores the word; orders no other access.
    fn store_relaxed(&self, word: usize, value: u64);

    /// Stores the word after everything this thread stored before it.
    fn store_release(&self, word: usize, value: u64);

    /// Loads `N` words from `first` on; orders no other access.
    #[inline]
    fn load_words<const N: usize>(&self, first: usize) -> [u64; N] {
        std::array::from_fn(|word| self.load_relaxed(first + word))
    }

    /// Stores `N` words from `first` on; orders no other access.
    #[inline]
    fn store_words<const N: usize>(&self, first: usize, values: [u64; N]) {
        for (word, value) in (first..).zip(values) {
            self.store_relaxed(word, value);
        }
    }

    /// Returns the number of 32-bit cells.
    fn cells(&self) -> usize;

    /// Loads the cell and makes visible all that its writer stored before it.
    ///
    /// # Panics
    /// On a cell number at or above [`cells`](Self::cells), as do the stores.
    fn load_cell_acquire(&self, cell: usize) -> u32;

    /// Stores the cell; orders no other access.
    fn store_cell_relaxed(&self, cell: usize, value: u32);

    /// Stores the cell after everything this thread stored before it.
    fn store_cell_release(&self, cell: usize, value: u32);

    /// Orders every store before it against every load after it, on all sides: a producer needs it between ringing a
    /// doorbell and checking for a sleeper, and a sleeper between announcing its sleep and checking the ring once more.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[repr(align(64))]
struct WordLine([AtomicU64; LINE_WORDS]);

/// Ring memory on the heap of this process, in whole cache lines. A clone is another handle to the same words. Each
/// 32-bit cell has a word of its own here, which users of the trait cannot observe: so a cell is stored by a plain
/// store, in a model too.
#[derive(Clone)]
pub struct HeapWords {
    lines: Arc<[WordLine]>,
}

impl HeapWords {
    /// Allocates at least `words` words, all zero.
    #[must_use]
    pub fn zeroed(words: usize) -> Self {
        let lines = words.div_ceil(LINE_WORDS);
        Self { lines: (0..lines).map(|_| WordLine(std::array::from_fn(|_| AtomicU64::new(0)))).collect() }
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        &self.lines[word / LINE_WORDS].0[word % LINE_WORDS]
    }

    #[cold]
    fn load_scattered<const N: usize>(&self, first: usize) -> [u64; N] {
        std::array::from_fn(|word| self.load_relaxed(first + word))
    }

    #[cold]
    fn store_scattered(&self, first: usize, values: &[u64]) {
        for (word, &value) in (first..).zip(values) {
            self.store_relaxed(word, value);
        }
    }

    /// Returns the words from `first` on, if they are a whole line.
    #[inline]
    fn line<const N: usize>(&self, first: usize) -> Option<&[AtomicU64; N]> {
        if !first.is_multiple_of(LINE_WORDS) {
            return None;
        }
        self.lines[first / LINE_WORDS].0.as_slice().try_into().ok()
    }
}

impl RingMemory for HeapWords {
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

    #[inline]
    fn load_words<const N: usize>(&self, first: usize) -> [u64; N] {
        match self.line::<N>(first) {
            Some(line) => std::array::from_fn(|word| u64::from_le(line[word].load(Ordering::Relaxed))),
            None => self.load_scattered(first),
        }
    }

    #[inline]
    fn store_words<const N: usize>(&self, first: usize, values: [u64; N]) {
        if let Some(line) = self.line::<N>(first) {
            for (word, value) in line.iter().zip(values) {
                word.store(value.to_le(), Ordering::Relaxed);
            }
            return;
        }
        self.store_scattered(first, &values);
    }

    fn cells(&self) -> usize {
        self.words()
    }

    #[inline]
    fn load_cell_acquire(&self, cell: usize) -> u32 {
        // Only cells are stored where cells are loaded; of anything else the low half is what shared memory has at this
        // cell.
        low_half(self.load_acquire(cell))
    }

    #[inline]
    fn store_cell_relaxed(&self, cell: usize, value: u32) {
        self.store_relaxed(cell, u64::from(value));
    }

    #[inline]
    fn store_cell_release(&self, cell: usize, value: u32) {
        self.store_release(cell, u64::from(value));
    }
}

#[inline]
fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl fmt::Debug for HeapWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeapWords({} words)", self.words())
    }
}

/// Ring memory that other processes, or a guest, have mapped too: words of a [`SharedMemory`] region.
#[derive(Clone)]
#[cfg(not(loom))]
pub struct SharedMemoryWords {
    /// The first word. Resolved once, because a ring accesses a dozen words a command.
    first: NonNull<AtomicU64>,
    words: usize,
    /// Keeps the pages mapped.
    _region: SharedMemory,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the pages stay mapped while the region handle inside lives,
// which moves to the other thread too. Aliasing: the words are only ever accessed as atomics.
#[cfg(not(loom))]
unsafe impl Send for SharedMemoryWords {}

// SAFETY: as for Send; a shared handle gives out nothing but atomic loads and stores.
#[cfg(not(loom))]
unsafe impl Sync for SharedMemoryWords {}

#[cfg(not(loom))]
impl fmt::Debug for SharedMemoryWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemoryWords({} words)", self.words)
    }
}

#[cfg(not(loom))]
impl SharedMemoryWords {
    /// Wraps `words` words from byte `offset` of a region on.
    ///
    /// # Errors
    /// [`OutOfRegion`] for no words, for an offset that is not a multiple of 8, or words that run over the end.
    pub fn new(region: SharedMemory, offset: usize, words: usize) -> Result<Self, OutOfRegion> {
        let bytes = words.saturating_mul(8);
        let region_bytes = region.bytes();
        let out = OutOfRegion { offset, bytes, region_bytes };
        if words == 0 || offset.checked_add(bytes).is_none_or(|end| end > region_bytes) {
            return Err(out);
        }
        let first = NonNull::from(region.word(offset)?);
        Ok(Self { first, words, _region: region })
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        assert!(word < self.words, "word {word} of {} words of ring memory", self.words);
        // SAFETY: bounds: `new` found `words` words from `first` on in the mapping, and `word` is below that, so the
        // sum neither leaves the mapping nor overflows. Alignment: `first` was checked, and a word is 8 bytes.
        // Lifetime: the reference borrows `self`, whose region keeps the mapping. Aliasing: an atomic tolerates writes
        // to the word by this or another process at any time.
        unsafe { &*self.first.as_ptr().wrapping_add(word) }
    }

    #[inline]
    fn cell(&self, cell: usize) -> &AtomicU32 {
        assert!(cell / 2 < self.words, "cell {cell} of {} words of ring memory", self.words);
        let first = self.first.as_ptr().cast::<AtomicU32>();
        // SAFETY: bounds: `new` found `words` words from `first` on in the mapping, two cells each, and `cell` is below
        // that. Alignment: `first` is that of a word, and a cell is 4 bytes. Lifetime: the reference borrows `self`,
        // whose region keeps the mapping. Aliasing: an atomic tolerates writes to the cell at any time. A client may
        // name one address as a cell here and as a word there; in this process both are then accessed by the one thread
        // that serves this client, never at the same time.
        unsafe { &*first.wrapping_add(cell) }
    }
}

#[cfg(not(loom))]
impl RingMemory for SharedMemoryWords {
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

    fn cells(&self) -> usize {
        self.words * 2
    }

    #[inline]
    fn load_cell_acquire(&self, cell: usize) -> u32 {
        u32::from_le(self.cell(cell).load(Ordering::Acquire))
    }

    #[inline]
    fn store_cell_relaxed(&self, cell: usize, value: u32) {
        self.cell(cell).store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn store_cell_release(&self, cell: usize, value: u32) {
        self.cell(cell).store(value.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn clones_see_the_same_words() {
        let one = HeapWords::zeroed(9);
        let other = one.clone();
        assert_eq!(one.words(), 16);
        one.store_release(8, 0x0102_0304);
        assert_eq!(other.load_acquire(8), 0x0102_0304);
        assert_eq!(other.load_relaxed(7), 0);
    }

    #[test]
    fn multi_word_access_works_at_any_alignment() {
        fn try_words(memory: &impl RingMemory) {
            for first in 0..16 {
                let values: [u64; LINE_WORDS] =
                    std::array::from_fn(|word| u64::try_from(first * 100 + word).unwrap());
                memory.store_words(first, values);
                assert_eq!(memory.load_words(first), values);
                assert_eq!(memory.load_relaxed(first + 7), values[7]);
            }
            assert_eq!(memory.load_words::<2>(8), [800, 900]);
        }
        try_words(&HeapWords::zeroed(24));
        try_words(&SharedMemoryWords::new(SharedMemory::anonymous(4_096).unwrap(), 8, 24).unwrap());
    }

    #[test]
    fn shared_memory_words_alias_bytes_of_their_region() {
        let region = SharedMemory::anonymous(4_096).unwrap();
        let words = SharedMemoryWords::new(region.clone(), 64, 4).unwrap();
        words.store_release(1, 0x0102_0304_0506_0708);
        let mut bytes = [0; 8];
        region.copy_in(72, &mut bytes).unwrap();
        assert_eq!(bytes, [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(words.load_acquire(1), 0x0102_0304_0506_0708);
        assert!(SharedMemoryWords::new(region.clone(), 4, 1).is_err());
        assert!(SharedMemoryWords::new(region.clone(), 4_088, 2).is_err());
        assert!(SharedMemoryWords::new(region, usize::MAX - 7, usize::MAX).is_err());
    }

    #[test]
    fn cells_hold_stored_values_in_both_memories() {
        fn try_cells(memory: &impl RingMemory) {
            for cell in 0..4 {
                memory.store_cell_release(cell, 0xFFFF_0000);
                memory.store_cell_relaxed(cell, 0x0102_0300 + u32::try_from(cell).unwrap());
            }
            for cell in 0..4 {
                assert_eq!(memory.load_cell_acquire(cell), 0x0102_0300 + u32::try_from(cell).unwrap());
            }
        }
        try_cells(&HeapWords::zeroed(4));
        let region = SharedMemory::anonymous(4_096).unwrap();
        let words = SharedMemoryWords::new(region.clone(), 8, 2).unwrap();
        assert_eq!(words.cells(), 4);
        try_cells(&words);
        let mut bytes = [0; 8];
        region.copy_in(12, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 3, 2, 1, 2, 3, 2, 1], "four bytes each, the low byte first");
    }

    #[test]
    #[should_panic(expected = "cell 4 of 2 words")]
    fn cell_beyond_the_memory_panics() {
        let region = SharedMemory::anonymous(4_096).unwrap();
        let _ = SharedMemoryWords::new(region, 0, 2).unwrap().load_cell_acquire(4);
    }

    #[test]
    fn lines_do_not_share_a_cache_line() {
        let memory = HeapWords::zeroed(32);
        for line in memory.lines.iter() {
            assert_eq!(std::ptr::from_ref(line).align_offset(64), 0);
        }
    }
}
