//! Memory that a device can access, with its device address.
//!
//! Input: pool memory that is registered with the device. Output: slices for commands; the bytes, while there is a
//! single handle. Invariant: a command in flight holds a handle, so no reference exists to bytes that a device,
//! possibly another process, may write.

use headwater_dma::buffer::{LendableMemory as _, PoolAllocation, PoolBuffer as Pooled};
use headwater_dma::iova::Iova;
use headwater_dma::pool::PinnedMemory;
use headwater_host::shared_memory::{OutOfRegion, SharedMemory};

/// A run of registered memory. A clone or a slice is another handle to the same bytes; the memory returns to its pool
/// when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: SharedMemory,
    /// The device address of the memory's first byte.
    start: Iova,
    offset: usize,
    bytes: usize,
    /// The index of the memory in the kernel's table of registered buffers.
    registration: Option<u32>,
}

impl Buffer {
    /// Returns a buffer over a whole region that the device addresses from `start` on.
    #[must_use]
    pub fn from_region(memory: SharedMemory, start: Iova) -> Self {
        let bytes = memory.bytes();
        Self { memory, start, offset: 0, bytes, registration: None }
    }

    /// Returns a buffer of a pool that is registered with the device. A device without its own addresses uses the
    /// process's.
    #[must_use]
    pub fn from_pool(buffer: Pooled) -> Self {
        let bytes = buffer.bytes();
        let (memory, segment) = buffer.into_shared();
        let start = segment.iova.unwrap_or(segment.address as u64);
        Self {
            memory,
            start: Iova(start),
            offset: 0,
            bytes,
            registration: segment.slot.map(|(number, _)| number),
        }
    }

    /// Returns a buffer for each piece of an allocation, in order. All pieces but the last are whole pages, so that one
    /// command can name them as a PRP list or as SGL descriptors.
    #[must_use]
    pub fn from_allocation(allocation: PoolAllocation) -> Vec<Self> {
        match allocation {
            PoolAllocation::Contiguous(buffer) => vec![Self::from_pool(buffer)],
            PoolAllocation::Scattered(pieces) => {
                pieces.into_buffers().into_iter().map(Self::from_pool).collect()
            }
        }
    }

    /// Returns a buffer over the caller's own memory, which stays pinned until the last handle is dropped.
    #[must_use]
    pub fn from_import(pinned: PinnedMemory<SharedMemory>) -> Self {
        let memory = pinned.memory().clone();
        let bytes = memory.bytes();
        let segment = pinned.segment(0, bytes);
        let start = segment.and_then(|segment| segment.iova).unwrap_or(memory.address() as u64);
        let registration = segment.and_then(|segment| segment.slot).map(|(number, _)| number);
        let memory = memory.kept_with(Box::new(pinned));
        Self { memory, start: Iova(start), offset: 0, bytes, registration }
    }

    /// Returns a part of the buffer.
    ///
    /// # Errors
    /// [`OutOfRegion`] when the part does not lie inside.
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<Self, OutOfRegion> {
        self.check(offset, bytes)?;
        Ok(Self { offset: self.offset + offset, bytes, ..self.clone() })
    }

    /// Returns the device address of its first byte, as used in commands.
    #[must_use]
    #[inline]
    pub fn address(&self) -> u64 {
        self.start.0 + self.offset as u64
    }

    /// Returns the process address of its first byte, as a number only.
    #[must_use]
    #[inline]
    pub fn process_address(&self) -> usize {
        self.memory.address() + self.offset
    }

    /// Returns the index of its memory in the kernel's table of registered buffers.
    #[must_use]
    #[inline]
    pub fn registration(&self) -> Option<u32> {
        self.registration
    }

    /// Returns the memory it lies in, and its offset there.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> (&SharedMemory, usize) {
        (&self.memory, self.offset)
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes. `None` while there is another handle, commands in flight included, and for memory outside a
    /// pool.
    #[must_use]
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let (from, to) = (self.offset, self.offset + self.bytes);
        self.memory.bytes_mut()?.get_mut(from..to)
    }

    /// Returns true if no other handle to its memory exists: no part of it is in a command in flight.
    #[must_use]
    pub fn is_only_handle(&self) -> bool {
        self.memory.is_only_handle()
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

    /// Leaks the memory, so that it never returns to its pool: a device may still write to it.
    pub fn leak(self) {
        self.memory.leak();
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
    fn slice_accesses_the_same_bytes_and_only_those() {
        let buffer = Buffer::from_region(SharedMemory::anonymous(4_096).unwrap(), Iova(0x1_0000));
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
    fn bytes_need_a_sole_handle_and_memory_returns_with_the_last() {
        let pool = Pool::of_process().unwrap();
        let mut buffer = Buffer::from_pool(pool.buffer(10_000).unwrap());
        assert_eq!(buffer.bytes(), 10_000);
        buffer.bytes_mut().unwrap().fill(7);
        let in_flight = buffer.slice(4_096, 100).unwrap();
        assert!(buffer.bytes_mut().is_none(), "the bytes were accessible while a device may write them");
        let address = buffer.process_address();
        drop(buffer);
        let mut last = in_flight;
        assert_eq!(last.bytes_mut().unwrap(), [7; 100]);
        drop(last);
        let again = Buffer::from_pool(pool.buffer(10_000).unwrap());
        assert_eq!(again.process_address(), address, "the pages were not reused");
    }
}
