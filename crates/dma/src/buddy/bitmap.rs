//! Storage for the bits of a buddy allocator: ordinary memory, or memory that outlives the process.
//!
//! Input: the index of a word. Output: its bits. Invariant: a load returns the value stored last.

/// Storage for the bits of a buddy allocator, loaded and stored one word at a time.
pub trait BitmapWords {
    /// Returns the word.
    fn load(&self, index: usize) -> u64;

    /// Stores the word.
    fn store(&mut self, index: usize, word: u64);
}

impl BitmapWords for Vec<u64> {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self[index]
    }

    #[inline]
    fn store(&mut self, index: usize, word: u64) {
        self[index] = word;
    }
}
