//! Lent pages in a transfer, addressed by their slot in the ring's table of registered buffers.
//!
//! Input: a [`LentSpan`] and the slot under which its memory was registered. Output: the same, once the transfer is
//! completed. Invariant: the bytes belong to this value alone, so that no other code sees the kernel change them, even
//! with a wrong slot: that is an error or moves other registered pages, never pages that safe code can access.

use crate::reservation::LentSpan;
use crate::width::narrow;

/// A registered buffer.
#[derive(Debug)]
#[must_use = "pages that are never taken back stay claimed for ever"]
pub struct FixedBuffer {
    span: LentSpan,
    slot: u32,
    bytes: usize,
}

impl FixedBuffer {
    /// Takes the first `bytes` bytes of the span, or all of it if that is less, registered in `slot` of the ring's
    /// [table](super::FileRing::table).
    pub fn new(span: LentSpan, slot: u32, bytes: usize) -> Self {
        let bytes = bytes.min(span.bytes());
        Self { span, slot, bytes }
    }

    /// Returns the slot.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the first address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// Returns the number of bytes transferred.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the pages.
    pub fn into_span(self) -> LentSpan {
        self.span
    }

    /// Returns address, length and slot for a submission entry. The table was checked before: it has no longer range
    /// and no larger slot than these types hold.
    pub(super) fn registered_location(&self) -> (*mut u8, u32, u16) {
        (self.span.start(), narrow(self.bytes), narrow(self.slot))
    }

    /// Runs a closure on the bytes while no transfer works on them.
    pub(super) fn with_bytes<R>(self, look: impl FnOnce(&mut [u8]) -> R) -> (Self, R) {
        let mut span = self.span.reclaim();
        let result = look(&mut span[..self.bytes]);
        (Self { span: span.lend(), ..self }, result)
    }
}
