//! A buffer: memory that the device may touch, and the address it knows it by.
//!
//! In: a region that a backend registered. Out: slices of it for commands, copies for the application. Invariant: nobody
//! gets a reference into it, because the device, which may be another process, writes there whenever a command says so.

use headwater_dma::iova::Iova;
use headwater_host::foreign::{Foreign, OutOfRegion};

/// A run of registered memory. A clone, and a slice, is another handle to the same bytes.
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: Foreign,
    /// Where the region starts in the client's numbering.
    start: Iova,
    offset: usize,
    bytes: usize,
}

impl Buffer {
    /// All of a region that the device knows from `start` on.
    #[must_use]
    pub fn whole(memory: Foreign, start: Iova) -> Self {
        let bytes = memory.bytes();
        Self { memory, start, offset: 0, bytes }
    }

    /// A part.
    ///
    /// # Errors
    /// [`OutOfRegion`] when it does not lie inside.
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<Self, OutOfRegion> {
        self.check(offset, bytes)?;
        Ok(Self { offset: self.offset + offset, bytes, ..self.clone() })
    }

    /// The address of its first byte, as commands name it.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.start.0 + u64::try_from(self.offset).unwrap_or(u64::MAX)
    }

    /// Where its region starts: the name by which a region is released.
    #[must_use]
    pub fn region(&self) -> Iova {
        self.start
    }

    /// Its region, and where in it the buffer begins.
    pub(crate) fn memory(&self) -> (&Foreign, usize) {
        (&self.memory, self.offset)
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfRegion> {
        self.check(offset, into.len())?;
        self.memory.copy_in(self.offset + offset, into)
    }

    /// Copies bytes into the buffer.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        self.check(offset, from.len())?;
        self.memory.copy_out(self.offset + offset, from)
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) -> Result<(), OutOfRegion> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(OutOfRegion { offset, bytes, region_bytes: self.bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_a_window_on_the_same_bytes_and_no_more() {
        let buffer = Buffer::whole(Foreign::anonymous(4_096).unwrap(), Iova(0x1_0000));
        let slice = buffer.slice(100, 50).unwrap();
        assert_eq!((slice.address(), slice.bytes()), (0x1_0064, 50));
        slice.write(10, b"hello").unwrap();
        let mut back = [0; 5];
        buffer.read(110, &mut back).unwrap();
        assert_eq!(&back, b"hello");
        assert!(slice.write(46, b"hello").is_err());
        assert!(slice.slice(0, 51).is_err());
        assert!(slice.slice(usize::MAX, 2).is_err());
        assert_eq!(slice.slice(50, 0).unwrap().bytes(), 0);
    }
}
