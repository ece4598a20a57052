//! Memory of a program, lent for the duration of a job.
//!
//! Input: an address and a length from a caller that this library did not allocate for: a C program, or the caller of
//! `memcpy`. Output: [`LentBytes`], which reads and writes them as a vector does its own. Invariant: a lent range is accessed
//! through exactly one value, or is only read.
//!
//! # What this does not do
//! It frees nothing, and it cannot check what the lender promised. Memory that another process may change is a
//! [`SharedMemory`](crate::shared_memory::SharedMemory).

use std::fmt;
use std::ptr::NonNull;

/// The accesses that a lender allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LentAccess {
    Read,
    ReadWrite,
}

/// Bytes of a program that belong to the holder of this value until it is dropped.
pub struct LentBytes {
    start: NonNull<u8>,
    bytes: usize,
    access: LentAccess,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the lender promises the bytes until the value is dropped, on any
// thread. Aliasing: the value is the only access to bytes that it may write, as a vector is.
unsafe impl Send for LentBytes {}
// SAFETY: as for Send; a shared reference to the value only reads.
unsafe impl Sync for LentBytes {}

impl LentBytes {
    /// Lends bytes that are only read.
    ///
    /// # Safety
    /// The range is readable and initialised, and nothing writes to it until the value is dropped, on whatever thread that
    /// happens. It has at most `isize::MAX` bytes. If it has none, `start` may be any address, also a null one.
    #[must_use]
    pub unsafe fn to_read(start: *const u8, bytes: usize) -> Self {
        Self::new(start.cast_mut(), bytes, LentAccess::Read)
    }

    /// Lends bytes that are read and written.
    ///
    /// # Safety
    /// The range is readable, writable and initialised, and nothing else reads or writes it until the value is dropped, on
    /// whatever thread that happens: no second value covers a byte of it. It has at most `isize::MAX` bytes. If it has none,
    /// `start` may be any address, also a null one.
    #[must_use]
    pub unsafe fn to_write(start: *mut u8, bytes: usize) -> Self {
        Self::new(start, bytes, LentAccess::ReadWrite)
    }

    fn new(start: *mut u8, bytes: usize, access: LentAccess) -> Self {
        let given = NonNull::new(start).filter(|_| bytes > 0);
        Self { start: given.unwrap_or(NonNull::dangling()), bytes, access }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns true if the lender allows writes.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.access == LentAccess::ReadWrite
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: bounds and lifetime: the lender promises so many bytes until the value is dropped, which the reference does
        // not outlive; a dangling address has none. Alignment: of a byte. Aliasing: nothing writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Returns the bytes for writing; `None` if the lender allows no writes.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.access == LentAccess::Read {
            return None;
        }
        // SAFETY: bounds, lifetime and alignment: as in `as_bytes`. Aliasing: the lender promises that only this value
        // accesses the bytes, and it is borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) })
    }

    /// Splits the range, so that two jobs or two engines work on it at once. The first part has `at` bytes.
    ///
    /// # Panics
    /// The range has fewer than `at` bytes.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.bytes, "a split at {at} of {} lent bytes", self.bytes);
        let part = |start: *mut u8, bytes| Self::new(start, bytes, self.access);
        let start = self.start.as_ptr();
        (part(start, at), part(start.wrapping_add(at), self.bytes - at))
    }

    /// Returns true if both values cover a common byte. Lenders promise that this happens only for bytes that nothing writes; an
    /// interface to programs checks it before it lends.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (one, another) = (self.start.addr().get(), other.start.addr().get());
        !self.is_empty() && !other.is_empty() && one < another + other.bytes && another < one + self.bytes
    }
}

impl From<&'static mut [u8]> for LentBytes {
    /// Lends bytes for ever, such as those of a vector that is [leaked](Vec::leak).
    fn from(bytes: &'static mut [u8]) -> Self {
        Self::new(bytes.as_mut_ptr(), bytes.len(), LentAccess::ReadWrite)
    }
}

impl From<&'static [u8]> for LentBytes {
    /// Lends bytes that are only read, for ever.
    fn from(bytes: &'static [u8]) -> Self {
        Self::new(bytes.as_ptr().cast_mut(), bytes.len(), LentAccess::Read)
    }
}

impl fmt::Debug for LentBytes {
    /// Writes the address and the length: the bytes are a user's.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, bytes, access } = self;
        formatter
            .debug_struct("LentBytes")
            .field("start", start)
            .field("bytes", bytes)
            .field("access", access)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lent_bytes_are_read_and_written_in_place_and_parted() {
        let mut own: Vec<u8> = (0..100).collect();
        // SAFETY: the vector is not used while the parts exist.
        let lent = unsafe { LentBytes::to_write(own.as_mut_ptr(), own.len()) };
        let (mut front, mut back) = lent.split_at(30);
        assert_eq!((front.len(), back.len()), (30, 70));
        assert!(!front.overlaps(&back) && front.overlaps(&front) && back.is_writable());
        front.as_bytes_mut().unwrap().fill(200);
        back.as_bytes_mut().unwrap()[69] = 201;
        assert_eq!(back.as_bytes()[..2], [30, 31]);
        assert_eq!((own[29], own[30], own[98], own[99]), (200, 30, 98, 201));
    }

    #[test]
    fn bytes_lent_to_read_are_not_written_and_empty_ones_need_no_address() {
        let own = [1, 2, 3];
        // SAFETY: the array outlives the value and is not written.
        let mut lent = unsafe { LentBytes::to_read(own.as_ptr(), own.len()) };
        assert_eq!(lent.as_bytes_mut(), None);
        assert_eq!(lent.as_bytes(), own);
        assert!(!lent.is_writable());
        // SAFETY: there are no bytes.
        let mut empty = unsafe { LentBytes::to_write(std::ptr::null_mut(), 0) };
        assert!(empty.is_empty() && !empty.overlaps(&lent));
        assert_eq!(empty.as_bytes_mut(), Some(&mut [][..]));
    }

    #[test]
    fn overlaps_are_seen_to_the_byte() {
        let own = [0_u8; 16];
        // SAFETY: the array outlives the value and is not written.
        let part = |at: usize, bytes: usize| unsafe { LentBytes::to_read(own[at..].as_ptr(), bytes) };
        assert!(part(0, 8).overlaps(&part(7, 1)) && part(7, 1).overlaps(&part(0, 8)));
        assert!(!part(0, 8).overlaps(&part(8, 8)) && !part(8, 8).overlaps(&part(0, 8)));
        assert!(!part(4, 0).overlaps(&part(0, 8)) && part(0, 16).overlaps(&part(5, 2)));
    }
}
