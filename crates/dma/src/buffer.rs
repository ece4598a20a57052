//! Buffers: memory owned by the CPU or lent to a device.
//!
//! Input: pages from the pool. Output: bytes while the CPU owns them; addresses and segments while they are lent.
//! Invariant: the bytes of a lent buffer cannot be accessed before its completion returns it, and a buffer that is
//! never returned is never reused.

pub use buffer_stub::BufferStub;
pub use lent_buffer::{DeviceSegment, LendableMemory, LentBuffer};
pub use scattered_buffer::ScatteredBuffer;

use crate::pool::ReleaseTarget;
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::reservation::PageSpan;
use headwater_host::shared_memory::SharedMemory;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

mod buffer_stub;
mod lent_buffer;
mod scattered_buffer;

/// A contiguous buffer. Derefs to its bytes, and returns to its pool when it is dropped.
pub struct PoolBuffer {
    /// `None` only while the buffer is being taken apart.
    span: Option<PageSpan>,
    bytes: usize,
    release_target: ReleaseTarget,
}

impl PoolBuffer {
    #[inline]
    pub(crate) fn new(span: PageSpan, bytes: usize, release_target: ReleaseTarget) -> Self {
        Self { span: Some(span), bytes, release_target }
    }

    /// Returns the buffer's memory and the index of its arena.
    pub(crate) fn into_parts(mut self) -> (PageSpan, usize) {
        match self.span.take() {
            Some(span) => (span, self.release_target.arena()),
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }

    /// Returns the bytes that the buffer has room for: whole pages, of which the request named the first part.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.span.as_ref().map_or(0, PageSpan::bytes)
    }

    /// Sets the length within the [`capacity`](Self::capacity). Bytes added keep what was last written there. Returns
    /// the new length.
    pub fn resize(&mut self, bytes: usize) -> usize {
        self.bytes = bytes.min(self.capacity());
        self.bytes
    }

    /// Lends the bytes to a device.
    #[inline]
    pub fn lend(self) -> LentBuffer<Self> {
        LentBuffer::new(self)
    }

    /// Cuts the buffer into as many pieces of `sectors` 512-byte sectors as fit, each with the same label. The memory
    /// returns to the pool when the last piece is dropped.
    #[must_use]
    pub fn into_sector_buffers(mut self, sectors: u32, label: u32) -> Vec<SectorBuffer> {
        let span = self.span.take();
        span.map_or_else(Vec::new, |span| {
            SectorBuffer::cut(span, sectors, label, Box::new(self.release_target))
        })
    }

    /// Turns the pages into a shared region with clonable handles, and returns their device segment. The pages return
    /// to the pool when the last handle is dropped.
    #[must_use]
    pub fn into_shared(mut self) -> (SharedMemory, DeviceSegment) {
        match self.span.take() {
            Some(span) => {
                let segment = self.release_target.segment(&span, self.bytes);
                (SharedMemory::from_span(span, Box::new(self.release_target)), segment)
            }
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }

    /// Gives up the buffer and returns its address, for callers that can keep only an address;
    /// [`Pool::adopt`](crate::pool::Pool::adopt) makes it a buffer again.
    #[must_use]
    pub fn leak(mut self) -> NonNull<u8> {
        match self.span.take() {
            Some(span) => self.release_target.leak(span),
            None => unreachable!("a buffer has its span until it is taken apart"),
        }
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.span.as_ref().map_or(&[], |span| &span[..self.bytes])
    }
}

impl DerefMut for PoolBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.span.as_mut().map_or(&mut [], |span| &mut span[..self.bytes])
    }
}

impl Drop for PoolBuffer {
    #[inline]
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.release_target.release(span);
        }
    }
}

impl LendableMemory for PoolBuffer {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        self.span.iter().map(|span| self.release_target.segment(span, self.bytes)).collect()
    }

    fn quarantine(mut self) {
        // A dropped span stays claimed: no other request gets these bytes.
        if let Some(span) = self.span.take() {
            self.release_target.quarantine(span.bytes());
        }
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} bytes)", self.bytes)
    }
}

/// The memory of a request: one piece, or several where the request allowed that and no contiguous run was free.
#[derive(Debug)]
pub enum PoolAllocation {
    /// One contiguous buffer.
    Contiguous(PoolBuffer),
    /// Several pieces.
    Scattered(ScatteredBuffer),
}

impl PoolAllocation {
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
    pub fn into_contiguous(self) -> Result<PoolBuffer, ScatteredBuffer> {
        match self {
            Self::Contiguous(buffer) => Ok(buffer),
            Self::Scattered(scattered) => Err(scattered),
        }
    }

    /// Lends the bytes to a device.
    pub fn lend(self) -> LentBuffer<Self> {
        LentBuffer::new(self)
    }
}

impl LendableMemory for PoolAllocation {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn segments(&self) -> Vec<DeviceSegment> {
        match self {
            Self::Contiguous(buffer) => buffer.segments(),
            Self::Scattered(scattered) => scattered.segments(),
        }
    }

    fn quarantine(self) {
        match self {
            Self::Contiguous(buffer) => buffer.quarantine(),
            Self::Scattered(scattered) => scattered.quarantine(),
        }
    }
}
