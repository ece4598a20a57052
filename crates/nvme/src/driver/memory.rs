//! Host memory that a controller reaches: words in this process, and the bus address of the same memory.
//!
//! Input: blocks from the owner of memory. Output: the same, zeroed, and bytes of them. Invariant: a block is
//! contiguous in bus addresses; its words stay valid as long as a handle to them exists.

#[cfg(not(loom))]
use headwater_dma::buffer::LendableMemory as _;
#[cfg(not(loom))]
use headwater_dma::pool::Pool;
use headwater_host::ring_memory::RingMemory;
#[cfg(not(loom))]
use headwater_host::ring_memory::SharedMemoryWords;

/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// A contiguous block of memory. A clone is another handle to the same words.
#[derive(Clone, Debug)]
pub struct DmaBlock<M> {
    /// The words.
    pub words: M,
    /// The bus address of the first word.
    pub address: u64,
}

/// A source of memory that the controller reaches.
pub trait HostMemory {
    /// The access to its words.
    type Words: RingMemory + Clone;

    /// Allocates a block of at least `bytes` bytes whose virtual and bus addresses are multiples of `align`; `None` if
    /// there is none. Its content is arbitrary. It is freed when the last handle is dropped.
    fn take(&mut self, bytes: usize, align: usize) -> Option<DmaBlock<Self::Words>>;
}

impl<M: RingMemory> DmaBlock<M> {
    /// Zeroes the first `bytes` bytes.
    pub(crate) fn zero(&self, bytes: usize) {
        (0..bytes / WORD_BYTES).for_each(|word| self.words.store_relaxed(word, 0));
    }

    /// Copies bytes out, starting at a multiple of 8.
    pub(crate) fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let words = at / WORD_BYTES..(at + bytes) / WORD_BYTES;
        words.flat_map(|word| self.words.load_relaxed(word).to_le_bytes()).collect()
    }

    /// Copies bytes in, starting at a multiple of 8, and zeroes the rest of the last word.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        for (word, chunk) in (at / WORD_BYTES..).zip(bytes.chunks(WORD_BYTES)) {
            let mut whole = [0; WORD_BYTES];
            whole[..chunk.len()].copy_from_slice(chunk);
            self.words.store_relaxed(word, u64::from_le_bytes(whole));
        }
    }
}

/// Memory of a pool whose chunks are mapped for the controller.
#[derive(Clone, Debug)]
#[cfg(not(loom))]
pub struct PoolMemory {
    pool: Pool,
}

#[cfg(not(loom))]
impl PoolMemory {
    /// Wraps a pool. The pool's pinner must map memory at addresses that the controller can use.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

#[cfg(not(loom))]
impl HostMemory for PoolMemory {
    type Words = SharedMemoryWords;

    fn take(&mut self, bytes: usize, align: usize) -> Option<DmaBlock<SharedMemoryWords>> {
        // The length is a multiple of `align`, so the buffer is aligned: the pool aligns each run to its size class.
        let buffer = self.pool.buffer(bytes.checked_next_multiple_of(align)?).ok()?;
        let bytes = buffer.bytes();
        let (memory, segment) = buffer.into_shared();
        let address = segment.iova?;
        let boundary = u64::try_from(align).ok()?;
        if !address.is_multiple_of(boundary) || !memory.address().is_multiple_of(align) {
            return None;
        }
        Some(DmaBlock { words: SharedMemoryWords::new(memory, 0, bytes / WORD_BYTES).ok()?, address })
    }
}
