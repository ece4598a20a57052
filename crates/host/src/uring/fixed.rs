//! Lent pages that a ring knows by number, on their way through a transfer.
//!
//! In: a [`LentSpan`] and the number under which its memory was registered. Out: the same, once the transfer is answered.
//! Invariant: the bytes belong to this value alone, so that a kernel at work on them disturbs nobody, whatever the number
//! says: a wrong one is an error or moves other registered pages, never pages of somebody who can look at them.

use crate::reservation::LentSpan;

/// A registered buffer.
#[derive(Debug)]
#[must_use = "pages that are never taken back stay claimed for ever"]
pub struct Fixed {
    span: LentSpan,
    slot: u32,
    bytes: usize,
}

impl Fixed {
    /// The first `bytes` bytes of the span, or all of it if that is less, registered under the number `slot` of the
    /// ring's [table](super::FileRing::table).
    pub fn new(span: LentSpan, slot: u32, bytes: usize) -> Self {
        let bytes = bytes.min(span.bytes());
        Self { span, slot, bytes }
    }

    /// The number.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Where the bytes start in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// How many bytes are transferred.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pages.
    pub fn back(self) -> LentSpan {
        self.span
    }

    /// What an entry of the submission queue names: place, length and number. The table that was asked before has no
    /// range longer and no number larger than these hold.
    pub(super) fn place(&self) -> (*mut u8, u32, u16) {
        let bytes = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        (self.span.start(), bytes, u16::try_from(self.slot).unwrap_or(u16::MAX))
    }

    /// Looks at the bytes while nobody else works on them.
    pub(super) fn visit<R>(self, look: impl FnOnce(&mut [u8]) -> R) -> (Self, R) {
        let mut span = self.span.back();
        let result = look(&mut span[..self.bytes]);
        (Self { span: span.lend(), ..self }, result)
    }
}
