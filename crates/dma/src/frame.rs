//! A frame: one page slot of device DRAM, aligned for direct I/O.
//!
//! A frame is moved into a media operation and comes back with its completion, error included; while the operation is
//! in flight nobody else can name it. The pool keeps returned frames for reuse and holds a named limit.
//! Invariant: frames handed out plus frames kept never exceed the pool's limit.

use headwater_host::region::{SECTOR_BYTES, SectorBuffer};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of one page slot: 4,096 of data, 128 of spare, 384 that belong to the media.
pub const FRAME_BYTES: usize = 4_608;

const SECTORS: usize = FRAME_BYTES / SECTOR_BYTES;
const _: () = assert!(SECTORS * SECTOR_BYTES == FRAME_BYTES);

/// One page slot of memory, 512-byte aligned. Derefs to its bytes while the CPU owns it.
pub struct Frame(SectorBuffer);

impl Frame {
    /// A zeroed frame that belongs to no pool.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(SectorBuffer::zeroed(SECTORS))
    }

    /// The frame as the buffer that a ring of the host takes.
    #[must_use]
    pub fn into_sectors(self) -> SectorBuffer {
        self.0
    }

    /// The frame back from a ring.
    ///
    /// # Errors
    /// The buffer is not as long as a frame; it is given back.
    pub fn from_sectors(sectors: SectorBuffer) -> Result<Self, SectorBuffer> {
        if sectors.len() == FRAME_BYTES { Ok(Self(sectors)) } else { Err(sectors) }
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({FRAME_BYTES} bytes)")
    }
}

/// A bounded stock of frames.
#[derive(Debug)]
pub struct FramePool {
    kept: Vec<Frame>,
    out: usize,
    frames_max: usize,
}

impl FramePool {
    /// A pool that will hand out at most `frames_max` frames at a time. No memory is taken before it is asked for.
    #[must_use]
    pub fn new(frames_max: usize) -> Self {
        Self { kept: Vec::new(), out: 0, frames_max }
    }

    /// A frame with whatever bytes its last user left, or `None` when the limit is reached.
    pub fn take(&mut self) -> Option<Frame> {
        if self.out == self.frames_max {
            return None;
        }
        self.out += 1;
        Some(self.kept.pop().unwrap_or_else(Frame::zeroed))
    }

    /// Takes a frame back.
    ///
    /// # Panics
    /// When more frames come back than went out: the pool's own promise is broken.
    pub fn put_back(&mut self, frame: Frame) {
        assert!(self.out > 0, "a frame came back that never went out");
        self.out -= 1;
        self.kept.push(frame);
    }

    /// How many more frames can be taken now.
    #[must_use]
    pub fn available(&self) -> usize {
        self.frames_max - self.out
    }

    /// How many frames are out.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.out
    }

    /// The limit.
    #[must_use]
    pub fn frames_max(&self) -> usize {
        self.frames_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_aligned_for_direct_io() {
        let frame = Frame::zeroed();
        assert_eq!(frame.as_ptr().align_offset(SECTOR_BYTES), 0);
        assert_eq!(frame.len(), FRAME_BYTES);
    }

    #[test]
    fn a_frame_goes_to_a_ring_and_comes_back() {
        let mut frame = Frame::zeroed();
        frame[4_607] = 7;
        let frame = Frame::from_sectors(frame.into_sectors()).unwrap();
        assert_eq!(frame[4_607], 7);
        assert!(Frame::from_sectors(SectorBuffer::zeroed(SECTORS + 1)).is_err());
    }

    #[test]
    fn full_is_a_value() {
        let mut pool = FramePool::new(2);
        let first = pool.take().unwrap();
        let _second = pool.take().unwrap();
        assert!(pool.take().is_none());
        pool.put_back(first);
        assert_eq!(pool.available(), 1);
        assert!(pool.take().is_some());
    }
}
