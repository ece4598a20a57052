//! A buffer in several pieces that one command can name.
//!
//! Input: spans that the planner chose. Output: pieces in order. Invariant: every piece but the last is whole pages,
//! and all pieces are freed together, so none leaks.

use super::PoolBuffer;
use super::lent_buffer::{DeviceSegment, LendableMemory, LentBuffer};
use crate::pool::ReleaseTarget;
use headwater_host::reservation::PageSpan;
use std::fmt;

/// A buffer in several pieces. All return to the pool when it is dropped.
pub struct ScatteredBuffer {
    spans: Vec<PageSpan>,
    bytes: usize,
    release_target: ReleaseTarget,
}

impl ScatteredBuffer {
    pub(crate) fn new(spans: Vec<PageSpan>, bytes: usize, release_target: ReleaseTarget) -> Self {
        Self { spans, bytes, release_target }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of pieces.
    #[must_use]
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Returns the pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().scan(self.bytes, |left, span| {
            let bytes = span.bytes().min(*left);
            *left -= bytes;
            Some(&span[..bytes])
        })
    }

    /// Returns the pieces for writing, in order.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.spans.iter_mut().scan(self.bytes, |left, span| {
            let bytes = span.bytes().min(*left);
            *left -= bytes;
            Some(&mut span[..bytes])
        })
    }

    /// Copies `from` into the pieces, as far as both extend. Returns the number of bytes copied.
    pub fn copy_from(&mut self, mut from: &[u8]) -> usize {
        let whole = from.len();
        for piece in self.pieces_mut() {
            let (now, rest) = from.split_at(piece.len().min(from.len()));
            piece[..now.len()].copy_from_slice(now);
            from = rest;
        }
        whole - from.len()
    }

    /// Copies the pieces into `into`, as far as both extend. Returns the number of bytes copied.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let mut at = 0;
        for piece in self.pieces() {
            let now = piece.len().min(into.len() - at);
            into[at..at + now].copy_from_slice(&piece[..now]);
            at += now;
        }
        at
    }

    /// Splits it into one buffer per piece, in order, which return to the pool separately.
    #[must_use]
    pub fn into_buffers(mut self) -> Vec<PoolBuffer> {
        let mut left = self.bytes;
        let home = self.release_target;
        let one = |span: PageSpan| {
            let bytes = span.bytes().min(left);
            left -= bytes;
            PoolBuffer::new(span, bytes, home)
        };
        std::mem::take(&mut self.spans).into_iter().map(one).collect()
    }

    /// Lends the bytes to a device.
    pub fn lend(self) -> LentBuffer<Self> {
        LentBuffer::new(self)
    }
}

impl Drop for ScatteredBuffer {
    fn drop(&mut self) {
        if !self.spans.is_empty() {
            self.release_target.release_all(std::mem::take(&mut self.spans));
        }
    }
}

impl LendableMemory for ScatteredBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        let mut left = self.bytes;
        let mut segment = |span: &PageSpan| {
            let bytes = span.bytes().min(left);
            left -= bytes;
            self.release_target.segment(span, bytes)
        };
        self.spans.iter().map(&mut segment).collect()
    }

    fn quarantine(mut self) {
        let spans = std::mem::take(&mut self.spans);
        self.release_target.quarantine(spans.iter().map(PageSpan::bytes).sum());
    }
}

impl fmt::Debug for ScatteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScatteredBuffer({} bytes in {} pieces)", self.bytes, self.spans.len())
    }
}
