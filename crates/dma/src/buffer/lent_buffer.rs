//! A buffer lent to a device.
//!
//! Input: a buffer, by value. Output: its device addresses; later the buffer again, with the result of the transfer.
//! Invariant: this type gives no access to the bytes. A dropped one is quarantined: the device may still write to the
//! pages, so they are counted and never reused.

use std::fmt;

/// The device's view of a part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSegment {
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Address by which the device accesses it, if the device has its own address space.
    pub iova: Option<u64>,
    /// Number of its registered buffer and byte offset in that, for io_uring.
    pub slot: Option<(u32, usize)>,
}

/// Memory that can be lent to a device.
pub trait LendableMemory: Sized {
    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Returns its device segments: PRP-legal, that is whole pages except for the end of the last.
    fn segments(&self) -> Vec<DeviceSegment>;

    /// Removes it from use permanently.
    fn quarantine(self);
}

/// A buffer lent to a device.
#[must_use = "a lent buffer that is dropped is quarantined for good: complete it"]
pub struct LentBuffer<B: LendableMemory> {
    /// `None` only after completion.
    inner: Option<B>,
}

impl<B: LendableMemory> LentBuffer<B> {
    #[inline]
    pub(crate) fn new(held: B) -> Self {
        Self { inner: Some(held) }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.as_ref().map_or(0, B::bytes)
    }

    /// Returns the device segments, in order.
    #[must_use]
    pub fn segments(&self) -> Vec<DeviceSegment> {
        self.inner.as_ref().map_or_else(Vec::new, B::segments)
    }

    /// Returns the first address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.segments().first().map_or(0, |segment| segment.address)
    }

    pub(super) fn take(&mut self) -> Option<B> {
        self.inner.take()
    }

    /// Returns the buffer to the CPU, together with the device's result, also if that is an error.
    ///
    /// # Panics
    /// Never: a buffer is completed once, because that takes it by value.
    #[inline]
    pub fn complete<T, E>(mut self, result: Result<T, E>) -> (B, Result<T, E>) {
        match self.inner.take() {
            Some(buffer) => (buffer, result),
            None => unreachable!("completion takes the lent buffer by value"),
        }
    }
}

impl<B: LendableMemory> Drop for LentBuffer<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.inner.take() {
            buffer.quarantine();
        }
    }
}

impl<B: LendableMemory> fmt::Debug for LentBuffer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentBuffer({} bytes)", self.bytes())
    }
}
