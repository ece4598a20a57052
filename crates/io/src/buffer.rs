//! Memory that a device can touch, and the address it knows it by.
//!
//! In: memory of the pool that is registered with the device. Out: slices of it for commands; its bytes, while nobody else
//! has a handle. Invariant: a command in flight holds a handle, so nobody has a reference to bytes that a device, which may
//! be another process, may write.

use headwater_dma::buffer::{Buffer as Pooled, Lendable as _};
use headwater_dma::iova::Iova;
use headwater_host::foreign::{Foreign, OutOfRegion};

/// A run of registered memory. A clone, and a slice, is another handle to the same bytes; the memory goes back to its pool
/// when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: Foreign,
    /// Where the memory starts in the device's numbering.
    start: Iova,
    offset: usize,
    bytes: usize,
    /// The number under which rings of the kernel know the memory around it.
    slot: Option<u32>,
}

impl Buffer {
    /// All of a region that the device knows from `start` on.
    #[must_use]
    pub fn whole(memory: Foreign, start: Iova) -> Self {
        let bytes = memory.bytes();
        Self { memory, start, offset: 0, bytes, slot: None }
    }

    /// A buffer of a pool whose memory is registered with the device. A device without addresses of its own is told the
    /// process's.
    #[must_use]
    pub fn pooled(buffer: Pooled) -> Self {
        let bytes = buffer.bytes();
        let (memory, segment) = buffer.into_foreign();
        let start = segment.iova.unwrap_or(segment.address as u64);
        Self { memory, start: Iova(start), offset: 0, bytes, slot: segment.slot.map(|(number, _)| number) }
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
        self.start.0 + self.offset as u64
    }

    /// Where its first byte lies in this process. Not a way to it.
    #[must_use]
    #[inline]
    pub fn process_address(&self) -> usize {
        self.memory.address() + self.offset
    }

    /// The number under which rings of the kernel know the memory it lies in.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// The memory it lies in, and where in it the buffer begins.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> (&Foreign, usize) {
        (&self.memory, self.offset)
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes themselves. `None` while anybody else has a handle, commands in flight included, and for memory that is of
    /// no pool.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let (from, to) = (self.offset, self.offset + self.bytes);
        self.memory.bytes_mut()?.get_mut(from..to)
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

    /// Keeps the memory from ever going back to its pool: a device may still write there.
    pub fn forget(self) {
        self.memory.forget();
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
    use headwater_dma::pool::Pool;

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
        assert!(slice.slice(1, 50).is_err());
        assert_eq!(slice.slice(1, 49).unwrap().address(), 0x1_0065);
    }

    #[test]
    fn bytes_are_there_for_the_only_handle_and_the_memory_goes_back_with_the_last() {
        let pool = Pool::of_process().unwrap();
        let mut buffer = Buffer::pooled(pool.buffer(10_000).unwrap());
        assert_eq!(buffer.bytes(), 10_000);
        buffer.bytes_mut().unwrap().fill(7);
        let in_flight = buffer.slice(4_096, 100).unwrap();
        assert!(buffer.bytes_mut().is_none(), "a device may be at work");
        let place = buffer.process_address();
        drop(buffer);
        let mut last = in_flight;
        assert_eq!(last.bytes_mut().unwrap(), [7; 100]);
        drop(last);
        let again = Buffer::pooled(pool.buffer(10_000).unwrap());
        assert_eq!(again.process_address(), place, "its pages are used again");
    }
}
