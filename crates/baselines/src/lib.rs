//! Baseline allocators: third-party allocators over one arena, which the lab measures beside our pool.
//!
//! Input: an arena, resident and locked where the system allows it. Output: page-aligned blocks. Invariant: a block
//! belongs to the heap that allocated it, is freed there only and once, and never reaches beyond the arena.
//!
//! It is a separate crate because these allocators take and return raw memory, and the lab forbids `unsafe`. No other
//! part of the product names it.
#![expect(
    unsafe_code,
    reason = "the allocators take and return raw memory; each block argues its own safety"
)]

use headwater_host::mapped_region::MappedRegion;
use headwater_host::pinning::{MemoryRange, lock};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A block of a [`BaselineHeap`]. Dropping it leaks it to its heap and does no other harm.
#[derive(Debug)]
#[must_use = "return a block by `BaselineHeap::free`"]
pub struct BaselineBlock {
    start: NonNull<u8>,
    bytes: usize,
    heap: u64,
}

impl BaselineBlock {
    /// Returns the first address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }
}

/// The allocator behind a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineAllocator {
    /// The crate `rlsf`: two-level segregated fit.
    Rlsf,
    /// The crate `talc`.
    Talc,
}

enum AllocatorState {
    // 28 levels above the smallest block exceed every arena here; 32 steps a level are rlsf's own choice.
    Rlsf(Box<rlsf::Tlsf<'static, u32, u32, 28, 32>>),
    Talc(Box<talc::base::Talc<talc::source::Manual, talc::DefaultBinning>>),
}

/// An arena managed by one allocator.
pub struct BaselineHeap {
    allocator: AllocatorState,
    id: u64,
    /// Dropped after the allocator, which is declared before it.
    arena: MappedRegion,
    locked: bool,
}

impl BaselineHeap {
    /// Maps an arena, touches every page, locks it if the system allows it, and gives it to the allocator; `None`
    /// without memory, or if the allocator refuses the arena.
    #[must_use]
    pub fn open(allocator: BaselineAllocator, bytes: usize) -> Option<Self> {
        static HEAPS: AtomicU64 = AtomicU64::new(0);
        let mut arena = MappedRegion::zeroed(bytes).ok()?;
        arena.chunks_mut(PAGE_BYTES).for_each(|page| page[0] = 0);
        let locked = lock(MemoryRange::of(&mut arena)).is_ok();
        let start = NonNull::new(arena.as_mut_ptr())?;
        let state = match allocator {
            BaselineAllocator::Rlsf => {
                let mut tlsf = Box::new(rlsf::Tlsf::new());
                let block = NonNull::slice_from_raw_parts(start, bytes);
                // SAFETY: bounds: exactly the region. Alignment: the allocator aligns itself. Lifetime: the region is a
                // field declared behind the allocator, so it is unmapped later. Aliasing: no code borrows the region
                // again.
                unsafe { tlsf.insert_free_block_ptr(block) }?;
                AllocatorState::Rlsf(tlsf)
            }
            BaselineAllocator::Talc => {
                let mut talc = Box::new(talc::base::Talc::new(talc::source::Manual));
                // SAFETY: as above.
                unsafe { talc.claim(start.as_ptr(), bytes) }?;
                AllocatorState::Talc(talc)
            }
        };
        Some(Self { allocator: state, id: HEAPS.fetch_add(1, Ordering::Relaxed), arena, locked })
    }

    /// Returns true if the arena is locked.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Allocates a block of `bytes` bytes that starts on a page.
    #[inline]
    pub fn allocate(&mut self, bytes: usize) -> Option<BaselineBlock> {
        let layout = layout(bytes)?;
        let start = match &mut self.allocator {
            AllocatorState::Rlsf(tlsf) => tlsf.allocate(layout),
            // SAFETY: the layout has a length above 0.
            AllocatorState::Talc(talc) => unsafe { talc.allocate(layout) },
        }?;
        Some(BaselineBlock { start, bytes, heap: self.id })
    }

    /// Frees a block. A block of another heap is dropped.
    #[inline]
    pub fn free(&mut self, block: BaselineBlock) {
        let Some(layout) = layout(block.bytes).filter(|_| block.heap == self.id) else { return };
        match &mut self.allocator {
            // SAFETY: the block was allocated by this very heap with this alignment, and is taken by value, so once.
            AllocatorState::Rlsf(tlsf) => unsafe { tlsf.deallocate(block.start, layout.align()) },
            // SAFETY: the same, and with this layout.
            AllocatorState::Talc(talc) => unsafe { talc.deallocate(block.start.as_ptr(), layout) },
        }
    }
}

const PAGE_BYTES: usize = 4_096;

#[inline]
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, PAGE_BYTES).ok().filter(|layout| layout.size() > 0)
}

impl fmt::Debug for BaselineHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.allocator {
            AllocatorState::Rlsf(_) => "rlsf",
            AllocatorState::Talc(_) => "talc",
        };
        write!(f, "BaselineHeap({name}, {} bytes)", self.arena.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_page_aligned_disjoint_inside_the_arena_and_reusable() {
        for allocator in [BaselineAllocator::Rlsf, BaselineAllocator::Talc] {
            let mut heap = BaselineHeap::open(allocator, 4 << 20).unwrap();
            let arena = heap.arena.as_ptr().addr();
            for _ in 0..3 {
                let mut blocks: Vec<BaselineBlock> = std::iter::from_fn(|| heap.allocate(64 << 10)).collect();
                assert!(blocks.len() > 50, "{allocator:?}: {}", blocks.len());
                blocks.sort_by_key(BaselineBlock::address);
                assert!(blocks.iter().all(|block| block.address() % PAGE_BYTES == 0));
                assert!(blocks.windows(2).all(|two| two[1].address() - two[0].address() >= 64 << 10));
                assert!(blocks[0].address() >= arena);
                assert!(blocks.last().unwrap().address() + (64 << 10) <= arena + (4 << 20));
                blocks.into_iter().for_each(|block| heap.free(block));
            }
            assert!(heap.allocate(0).is_none());
            assert!(heap.allocate(8 << 20).is_none());
        }
    }

    #[test]
    fn block_of_another_heap_is_not_freed() {
        let mut one = BaselineHeap::open(BaselineAllocator::Talc, 1 << 20).unwrap();
        let mut other = BaselineHeap::open(BaselineAllocator::Talc, 1 << 20).unwrap();
        let block = one.allocate(512 << 10).unwrap();
        other.free(block);
        assert!(one.allocate(768 << 10).is_none(), "the block stays allocated");
    }
}
