//! Memory of staging blocks.
//!
//! Input: copies at offsets of a block. Output: the bytes. A device may read a block of writes, and write a block of
//! reads, while the CPU copies other bytes of it: memory that a device really accesses implements this by copies
//! without references, as [`SharedMemory`] does.

use headwater_host::mapped_region::MappedRegion;
use headwater_host::shared_memory::SharedMemory;
use std::fmt;

/// A contiguous block of memory, pinned for its lifetime.
pub trait StagingMemory: fmt::Debug {
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Copies from offset `at` of the block to `into`. The range lies in the block.
    fn copy_to(&self, at: usize, into: &mut [u8]);

    /// Copies `from` to offset `at` of the block. The range lies in the block.
    fn copy_from(&mut self, at: usize, from: &[u8]);
}

impl StagingMemory for SharedMemory {
    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn copy_to(&self, at: usize, into: &mut [u8]) {
        let copied = self.copy_in(at, into);
        assert!(copied.is_ok(), "a slot lies in its block");
    }

    fn copy_from(&mut self, at: usize, from: &[u8]) {
        let copied = self.copy_out(at, from);
        assert!(copied.is_ok(), "a slot lies in its block");
    }
}

/// For devices that copy, as those in this process do.
impl StagingMemory for MappedRegion {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn copy_to(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }

    fn copy_from(&mut self, at: usize, from: &[u8]) {
        self[at..at + from.len()].copy_from_slice(from);
    }
}
