//! Where the bits of a buddy lie: in ordinary memory, or in memory that outlives the process.
//!
//! In: the index of a word. Out: its bits. Invariant: what was stored last is what is loaded.

/// Where the bits of a buddy lie: words that are loaded and stored one at a time.
pub trait Words {
    /// The word.
    fn load(&self, index: usize) -> u64;

    /// Stores the word.
    fn store(&mut self, index: usize, word: u64);
}

impl Words for Vec<u64> {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline]
    fn store(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}
