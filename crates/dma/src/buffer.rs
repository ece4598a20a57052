//! Buffers: memory that the CPU owns, or that a device has.
//!
//! In: pages that the pool gave. Out: bytes, while the CPU owns them; addresses and segments, while they are lent.
//! Invariant: there is no way to the bytes of a lent buffer before its completion brings it back, and what is never
//! brought back is never given to anybody else.

pub use fixed::Stub;
pub use lent::{DeviceSegment, Lendable, Lent};
pub use scattered::Scattered;

use crate::pool::Home;
use headwater_host::foreign::Foreign;
use headwater_host::region::SectorBuffer;
use headwater_host::reservation::Span;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

mod fixed;
mod lent;
mod scattered;

/// Memory in one piece. Derefs to its bytes, and goes back to its pool when it is dropped.
pub struct Buffer {
    /// Empty only while it is being taken apart.
    span: Option<Span>,
    bytes: usize,
    home: Home,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(span: Span, bytes: usize, home: Home) -> Self {
        Self { span: Some(span), bytes, home }
    }

    /// Its memory, and the arena that this is of.
    pub(crate) fn into_parts(mut self) -> (Span, usize) {
        match self.span.take() {
            Some(span) => (span, self.home.arena()),
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }

    /// Bytes that the buffer has room for: its pages, of which the request named the first part.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.span.as_ref().map_or(0, Span::bytes)
    }

    /// Makes the buffer longer or shorter within its [`capacity`](Self::capacity). Bytes that appear hold whatever was
    /// last written there. Returns the length it has then.
    pub fn resize(&mut self, bytes: usize) -> usize {
        self.bytes = bytes.min(self.capacity());
        self.bytes
    }

    /// Gives the bytes into a device's hands.
    #[inline]
    pub fn lend(self) -> Lent<Self> {
        Lent::new(self)
    }

    /// Cuts the buffer into as many of `sectors` sectors of 512 bytes as fit, each labelled the same. Its memory goes back
    /// to the pool when the last of them is dropped.
    #[must_use]
    pub fn cut(mut self, sectors: u32, label: u32) -> Vec<SectorBuffer> {
        let span = self.span.take();
        span.map_or_else(Vec::new, |span| SectorBuffer::cut(span, sectors, label, Box::new(self.home)))
    }

    /// Makes the pages a region of which everybody may have a handle, and says where a device finds them. They go back to
    /// the pool when the last handle is dropped.
    #[must_use]
    pub fn into_foreign(mut self) -> (Foreign, DeviceSegment) {
        match self.span.take() {
            Some(span) => {
                let segment = self.home.segment(&span, self.bytes);
                (Foreign::of_span(span, Box::new(self.home)), segment)
            }
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }

    /// Gives the buffer up for its address, for callers that know addresses only;
    /// [`Pool::adopt`](crate::pool::Pool::adopt) makes it a buffer again.
    #[must_use]
    pub fn leak(mut self) -> NonNull<u8> {
        match self.span.take() {
            Some(span) => self.home.leak(span),
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.span.as_ref().map_or(&[], |span| &span[..self.bytes])
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.span.as_mut().map_or(&mut [], |span| &mut span[..self.bytes])
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.home.give_back(span);
        }
    }
}

impl Lendable for Buffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        self.span.iter().map(|span| self.home.segment(span, self.bytes)).collect()
    }

    fn abandon(mut self) {
        // A span that is dropped stays claimed: nobody gets these bytes again.
        if let Some(span) = self.span.take() {
            self.home.quarantine(span.bytes());
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// What a request gets: one piece, or several where that was allowed and nothing else was to be had.
#[derive(Debug)]
pub enum Payload {
    /// One piece.
    Contiguous(Buffer),
    /// Several.
    Scattered(Scattered),
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Contiguous(buffer) => buffer.bytes,
            Self::Scattered(scattered) => scattered.bytes(),
        }
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (one, many) = match self {
            Self::Contiguous(buffer) => (Some(&**buffer), None),
            Self::Scattered(scattered) => (None, Some(scattered.pieces())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The pieces, in order, to write into.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (one, many) = match self {
            Self::Contiguous(buffer) => (Some(&mut **buffer), None),
            Self::Scattered(scattered) => (None, Some(scattered.pieces_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The buffer, or the several pieces.
    ///
    /// # Errors
    /// It is not one piece; it is given back as it is.
    pub fn contiguous(self) -> Result<Buffer, Scattered> {
        match self {
            Self::Contiguous(buffer) => Ok(buffer),
            Self::Scattered(scattered) => Err(scattered),
        }
    }

    /// Gives the bytes into a device's hands.
    pub fn lend(self) -> Lent<Self> {
        Lent::new(self)
    }
}

impl Lendable for Payload {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        match self {
            Self::Contiguous(buffer) => buffer.segments(),
            Self::Scattered(scattered) => scattered.segments(),
        }
    }

    fn abandon(self) {
        match self {
            Self::Contiguous(buffer) => buffer.abandon(),
            Self::Scattered(scattered) => scattered.abandon(),
        }
    }
}
