//! A buffer in a device's hands.
//!
//! In: a buffer, by value. Out: where the device finds it; later the buffer again, with what became of the transfer.
//! Invariant: this type derefs to nothing. One that is dropped is quarantined: the device may still write there, so its
//! pages are counted and never used again.

use std::fmt;

/// Where a device finds a part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSegment {
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// The address by which the device knows it, if it has addresses of its own.
    pub iova: Option<u64>,
    /// Number of the registered buffer it lies in and how many bytes from its start, for io_uring.
    pub slot: Option<(u32, usize)>,
}

/// What can be lent.
pub trait Lendable: Sized {
    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Where a device finds it: PRP-legal, that is in whole pages but for the end of the last.
    fn segments(&self) -> Vec<DeviceSegment>;

    /// Takes it out of circulation for good.
    fn abandon(self);
}

/// A buffer that a device has.
#[must_use = "a lent buffer that is dropped is quarantined for good: complete it"]
pub struct Lent<B: Lendable> {
    /// Empty only once it has been completed.
    held: Option<B>,
}

impl<B: Lendable> Lent<B> {
    #[inline]
    pub(crate) fn new(held: B) -> Self {
        Self { held: Some(held) }
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, B::bytes)
    }

    /// Where the device finds it, in order.
    #[must_use]
    pub fn segments(&self) -> Vec<DeviceSegment> {
        self.held.as_ref().map_or_else(Vec::new, B::segments)
    }

    /// First address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.segments().first().map_or(0, |segment| segment.address)
    }

    pub(super) fn take(&mut self) -> Option<B> {
        self.held.take()
    }

    /// The device has answered: the buffer is the CPU's again, whatever the answer was.
    ///
    /// # Panics
    /// Never: a buffer is completed once, because that takes it by value.
    #[inline]
    pub fn complete<T, E>(mut self, result: Result<T, E>) -> (B, Result<T, E>) {
        match self.held.take() {
            Some(buffer) => (buffer, result),
            None => unreachable!("completion takes the lent buffer by value"),
        }
    }
}

impl<B: Lendable> Drop for Lent<B> {
    fn drop(&mut self) {
        if let Some(buffer) = self.held.take() {
            buffer.abandon();
        }
    }
}

impl<B: Lendable> fmt::Debug for Lent<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({} bytes)", self.bytes())
    }
}
