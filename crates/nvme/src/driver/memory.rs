//! Memory of the host that a controller reaches: words in this process, and the address that the controller knows them by.
//!
//! In: blocks from whoever owns memory. Out: the same, zeroed, and bytes of them. Invariant: a block is one run of
//! addresses for the controller; its words stay as long as a handle to them does.

#[cfg(not(loom))]
use headwater_dma::buffer::Lendable as _;
#[cfg(not(loom))]
use headwater_dma::pool::Pool;
#[cfg(not(loom))]
use headwater_host::ring_memory::ForeignWords;
use headwater_host::ring_memory::RingMemory;

/// Bytes of a word.
const WORD_BYTES: usize = 8;

/// A block. A clone is another handle to the same words.
#[derive(Clone, Debug)]
pub struct Block<M> {
    /// The words.
    pub words: M,
    /// The controller's address of the first.
    pub address: u64,
}

/// Whoever has memory that the controller reaches.
pub trait HostMemory {
    /// How its words are touched.
    type Words: RingMemory + Clone;

    /// A block of at least `bytes` bytes whose address, on both sides, is a multiple of `align`; `None` when there is none.
    /// What it holds does not matter. It goes back when the last handle is dropped.
    fn take(&mut self, bytes: usize, align: usize) -> Option<Block<Self::Words>>;
}

impl<M: RingMemory> Block<M> {
    /// Zeroes the first `bytes` bytes.
    pub(crate) fn zero(&self, bytes: usize) {
        (0..bytes / WORD_BYTES).for_each(|word| self.words.store_relaxed(word, 0));
    }

    /// Copies bytes out, from a multiple of 8 on.
    pub(crate) fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let words = at / WORD_BYTES..(at + bytes) / WORD_BYTES;
        words.flat_map(|word| self.words.load_relaxed(word).to_le_bytes()).collect()
    }

    /// Copies bytes in, to a multiple of 8, and zeroes behind them up to the next.
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
    /// The memory of this pool. Its pinner must give addresses that the controller knows.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool }
    }
}

#[cfg(not(loom))]
impl HostMemory for PoolMemory {
    type Words = ForeignWords;

    fn take(&mut self, bytes: usize, align: usize) -> Option<Block<ForeignWords>> {
        // A whole number of boundaries long, it lies on one: the pool gives runs out at multiples of their size class.
        let buffer = self.pool.buffer(bytes.checked_next_multiple_of(align)?).ok()?;
        let bytes = buffer.bytes();
        let (memory, segment) = buffer.into_foreign();
        let address = segment.iova?;
        let boundary = u64::try_from(align).ok()?;
        if !address.is_multiple_of(boundary) || !memory.address().is_multiple_of(align) {
            return None;
        }
        Some(Block { words: ForeignWords::new(memory, 0, bytes / WORD_BYTES).ok()?, address })
    }
}
