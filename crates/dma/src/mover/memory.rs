//! The memories of a job: owned while it runs, and returned with it.
//!
//! Input: buffers, frames, client memory, vectors, lent memory. Output: one type that a step reads and writes. Invariant: a job owns its
//! memories, so that no other code accesses private ones while an engine works on them; a client may access its own at any
//! time, and copies from there are of the bytes that arrive.

use crate::buffer::PoolBuffer;
use crate::frame::MediaFrame;
use crate::iova::ClientSegments;
use bytes::Bytes;
use headwater_host::lent_bytes::LentBytes;
use headwater_host::shared_memory::SharedMemory;

#[cfg(test)]
thread_local! {
    /// The looks of this thread for two handles to one mapping: of one memory, or of a pair.
    pub(super) static LOOKS_FOR_ONE_MAPPING: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A memory of a job.
#[derive(Debug)]
#[non_exhaustive]
pub enum MoveMemory {
    /// A buffer of the pool.
    Buffer(PoolBuffer),
    /// A page slot of device DRAM.
    Frame(MediaFrame),
    /// Memory of a client.
    Client(ClientSegments),
    /// Memory that is shared with other processes, or mapped persistent memory.
    Shared(SharedMemory),
    /// Bytes of the heap. A write that begins at the end extends them within their capacity.
    Vec(Vec<u8>),
    /// Bytes that can only be read.
    Bytes(Bytes),
    /// Memory of a program, which lends it until the job returns.
    Lent(LentBytes),
}

impl MoveMemory {
    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Frame(frame) => frame.len(),
            Self::Client(segments) => segments.bytes(),
            Self::Shared(region) => region.bytes(),
            Self::Vec(bytes) => bytes.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Lent(lent) => lent.len(),
        }
    }

    /// Returns true if a step may write to it.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        match self {
            Self::Client(segments) => segments.is_writable(),
            Self::Lent(lent) => lent.is_writable(),
            Self::Bytes(_) => false,
            Self::Buffer(_) | Self::Frame(_) | Self::Shared(_) | Self::Vec(_) => true,
        }
    }

    /// Returns the frame, if it is one.
    #[must_use]
    pub fn into_frame(self) -> Option<MediaFrame> {
        match self {
            Self::Frame(frame) => Some(frame),
            _ => None,
        }
    }

    /// Returns the vector, if it is one.
    #[must_use]
    pub fn into_vec(self) -> Option<Vec<u8>> {
        match self {
            Self::Vec(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the lent memory, if it is some.
    #[must_use]
    pub fn into_lent(self) -> Option<LentBytes> {
        match self {
            Self::Lent(lent) => Some(lent),
            _ => None,
        }
    }

    /// Returns true if both are handles to one shared memory.
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        #[cfg(test)]
        LOOKS_FOR_ONE_MAPPING.set(LOOKS_FOR_ONE_MAPPING.get() + 1);
        matches!((self, other), (Self::Shared(one), Self::Shared(other)) if one.is_same(other))
    }

    /// Returns the address of shared memory, which all handles to one mapping have; `None` for a memory of another kind.
    pub(super) fn mapping_address(&self) -> Option<usize> {
        #[cfg(test)]
        LOOKS_FOR_ONE_MAPPING.set(LOOKS_FOR_ONE_MAPPING.get() + 1);
        match self {
            Self::Shared(region) => Some(region.address()),
            _ => None,
        }
    }

    /// Returns true if another [`handle`](Self::handle) to the same bytes can be had.
    pub(super) fn has_handles(&self) -> bool {
        matches!(self, Self::Client(_) | Self::Shared(_) | Self::Bytes(_))
    }

    /// Returns another handle to the same bytes, if its kind has them.
    pub(super) fn handle(&self) -> Option<Self> {
        match self {
            Self::Client(segments) => Some(Self::Client(segments.clone())),
            Self::Shared(region) => Some(Self::Shared(region.clone())),
            Self::Bytes(bytes) => Some(Self::Bytes(bytes.clone())),
            Self::Buffer(_) | Self::Frame(_) | Self::Vec(_) | Self::Lent(_) => None,
        }
    }

    /// Returns the bytes, if they belong to this process alone.
    #[inline]
    pub(super) fn own_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Frame(frame) => Some(frame),
            Self::Vec(bytes) => Some(bytes),
            Self::Bytes(bytes) => Some(bytes),
            Self::Lent(lent) => Some(lent.as_bytes()),
            Self::Client(_) | Self::Shared(_) => None,
        }
    }

    /// Returns the bytes for writing, if they belong to this process alone.
    #[inline]
    pub(super) fn own_bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::Frame(frame) => Some(frame),
            Self::Vec(bytes) => Some(bytes),
            Self::Lent(lent) => lent.as_bytes_mut(),
            Self::Client(_) | Self::Shared(_) | Self::Bytes(_) => None,
        }
    }

    /// Writes bytes at an offset by themselves, without a job: a copy that is too short for one, or whose source is borrowed.
    /// A vector is extended if its end is there.
    ///
    /// # Panics
    /// The range does not lie in the memory, or the memory can only be read.
    #[inline]
    pub fn put(&mut self, offset: usize, from: &[u8]) {
        match self {
            Self::Vec(bytes) if offset == bytes.len() => bytes.extend_from_slice(from),
            Self::Bytes(_) => panic!("a copy to bytes that can only be read"),
            Self::Lent(lent) => {
                let own = lent.as_bytes_mut().expect("the lender allows writes");
                own[offset..offset + from.len()].copy_from_slice(from);
            }
            Self::Client(_) | Self::Shared(_) => self.copy_out(offset, from),
            Self::Buffer(_) | Self::Frame(_) | Self::Vec(_) => {
                let own = self.own_bytes_mut().expect("the memory is private");
                own[offset..offset + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Copies from shared memory to bytes of this process. Pages that a client took away read as zeroes.
    pub(super) fn copy_in(&self, offset: usize, into: &mut [u8]) {
        match self {
            Self::Client(segments) => {
                segments.copy_in(offset, into);
            }
            Self::Shared(region) => region.copy_in(offset, into).expect("a step's range was checked"),
            _ => into.copy_from_slice(&self.own_bytes().unwrap_or_default()[offset..offset + into.len()]),
        }
    }

    /// Copies as [`copy_in`](Self::copy_in), and returns the CRC-32C of the copied bytes, continued from `seed`.
    pub(super) fn copy_in_crc32c(&self, offset: usize, into: &mut [u8], seed: u32) -> u32 {
        match self {
            Self::Client(segments) => segments.copy_in_crc32c(offset, into, seed).1,
            Self::Shared(region) => {
                region.copy_in_crc32c(offset, into, seed).expect("a step's range was checked")
            }
            _ => {
                let from = &self.own_bytes().unwrap_or_default()[offset..offset + into.len()];
                headwater_host::copy::copy_crc32c(into, from, seed)
            }
        }
    }

    /// Copies bytes of this process to shared memory; pages that a client took away lose them.
    pub(super) fn copy_out(&self, offset: usize, from: &[u8]) {
        match self {
            Self::Client(segments) => {
                segments.copy_out(offset, from);
            }
            Self::Shared(region) => region.copy_out(offset, from).expect("a step's range was checked"),
            _ => unreachable!("memory of this process is written by reference"),
        }
    }

    /// Copies as [`copy_out`](Self::copy_out), and returns the CRC-32C of `from`, continued from `seed`.
    pub(super) fn copy_out_crc32c(&self, offset: usize, from: &[u8], seed: u32) -> u32 {
        match self {
            Self::Client(segments) => segments.copy_out_crc32c(offset, from, seed),
            Self::Shared(region) => {
                region.copy_out_crc32c(offset, from, seed).expect("a step's range was checked")
            }
            _ => unreachable!("memory of this process is written by reference"),
        }
    }
}

impl Default for MoveMemory {
    /// Returns a memory of no bytes, which costs nothing to make and to drop: it stands where a memory was taken out.
    #[inline]
    fn default() -> Self {
        Self::Vec(Vec::new())
    }
}

impl From<PoolBuffer> for MoveMemory {
    #[inline]
    fn from(buffer: PoolBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<MediaFrame> for MoveMemory {
    #[inline]
    fn from(frame: MediaFrame) -> Self {
        Self::Frame(frame)
    }
}

impl From<ClientSegments> for MoveMemory {
    #[inline]
    fn from(segments: ClientSegments) -> Self {
        Self::Client(segments)
    }
}

impl From<SharedMemory> for MoveMemory {
    #[inline]
    fn from(region: SharedMemory) -> Self {
        Self::Shared(region)
    }
}

impl From<Vec<u8>> for MoveMemory {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Self::Vec(bytes)
    }
}

impl From<Bytes> for MoveMemory {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<LentBytes> for MoveMemory {
    #[inline]
    fn from(lent: LentBytes) -> Self {
        Self::Lent(lent)
    }
}
