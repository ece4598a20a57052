//! What staging blocks are made of.
//!
//! In: copies at places of a block. Out: the bytes. A device may read a block of writes, and write a block of reads,
//! while we copy other bytes of it: memory that is handed to a device for real implements this by copies without
//! references, as [`Foreign`] does.

use headwater_host::foreign::Foreign;
use headwater_host::region::Region;
use std::fmt;

/// One block: a run of memory, pinned for as long as it lives.
pub trait StagingMemory: fmt::Debug {
    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Copies from the block, at `at`, to our own memory. The range lies in the block.
    fn copy_to(&self, at: usize, into: &mut [u8]);

    /// Copies from our own memory to the block, at `at`. The range lies in the block.
    fn copy_from(&mut self, at: usize, from: &[u8]);
}

impl StagingMemory for Foreign {
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
impl StagingMemory for Region {
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
