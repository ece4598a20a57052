//! Buffers: memory owned by the CPU or lent to a device.
//!
//! Input: pages from the pool. Output: bytes while the CPU owns them; addresses and segments while they are lent.
//! Invariant: the bytes of a lent buffer cannot be accessed before its completion returns it, and a buffer that is
//! never returned is never reused.

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

/// A contiguous buffer. Derefs to its bytes, and returns to its pool when it is dropped.
pub struct Buffer {
    /// `None` only while the buffer is being taken apart.
    span: Option<Span>,
    bytes: usize,
    home: Home,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(span: Span, bytes: usize, home: Home) -> Self {
        Self { span: Some(span), bytes, home }
    }

    /// Returns the buffer's memory and the index of its arena.
    pub(crate) fn into_parts(mut self) -> (Span, usize) {
        match self.span.take() {
            Some(span) => (span, self.home.arena()),
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }

    /// Returns the bytes that the buffer has room for: whole pages, of which the request named the first part.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.span.as_ref().map_or(0, Span::bytes)
    }

    /// Sets the length within the [`capacity`](Self::capacity). Bytes added keep what was last written there. Returns
    /// the new length.
    pub fn resize(&mut self, bytes: usize) -> usize {
        self.bytes = bytes.min(self.capacity());
        self.bytes
    }

    /// Lends the bytes to a device.
    #[inline]
    pub fn lend(self) -> Lent<Self> {
        Lent::new(self)
    }

    /// Cuts the buffer into as many pieces of `sectors` 512-byte sectors as fit, each with the same label. The memory
    /// returns to the pool when the last piece is dropped.
    #[must_use]
    pub fn cut(mut self, sectors: u32, label: u32) -> Vec<SectorBuffer> {
        let span = self.span.take();
        span.map_or_else(Vec::new, |span| SectorBuffer::cut(span, sectors, label, Box::new(self.home)))
    }

    /// Turns the pages into a shared region with clonable handles, and returns their device segment. The pages return
    /// to the pool when the last handle is dropped.
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

    /// Gives up the buffer and returns its address, for callers that can keep only an address;
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
        // A dropped span stays claimed: no other request gets these bytes.
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

/// The memory of a request: one piece, or several where the request allowed that and no contiguous run was free.
#[derive(Debug)]
pub enum Payload {
    /// One contiguous buffer.
    Contiguous(Buffer),
    /// Several pieces.
    Scattered(Scattered),
}

impl Payload {
    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Contiguous(buffer) => buffer.bytes,
            Self::Scattered(scattered) => scattered.bytes(),
        }
    }

    /// Returns the pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (one, many) = match self {
            Self::Contiguous(buffer) => (Some(&**buffer), None),
            Self::Scattered(scattered) => (None, Some(scattered.pieces())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Returns the pieces for writing, in order.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (one, many) = match self {
            Self::Contiguous(buffer) => (Some(&mut **buffer), None),
            Self::Scattered(scattered) => (None, Some(scattered.pieces_mut())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Converts the payload into one contiguous buffer.
    ///
    /// # Errors
    /// Returns the pieces unchanged if there are several.
    pub fn contiguous(self) -> Result<Buffer, Scattered> {
        match self {
            Self::Contiguous(buffer) => Ok(buffer),
            Self::Scattered(scattered) => Err(scattered),
        }
    }

    /// Lends the bytes to a device.
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
