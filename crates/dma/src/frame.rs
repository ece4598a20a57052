//! A frame: one page slot of device DRAM, aligned for direct I/O.
//!
//! A frame is moved into a media operation and comes back with its completion, error included; while the operation is
//! in flight nobody else can name it. The pool keeps returned frames for reuse and holds a named limit.
//! Invariant: frames handed out plus frames kept never exceed the pool's limit.

use std::fmt;
use std::ops::{Deref, DerefMut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of one page slot: 4,096 of data, 128 of spare, 384 that belong to the media.
pub const FRAME_BYTES: usize = 4_608;

const SECTOR_BYTES: usize = 512;
const SECTORS: usize = FRAME_BYTES / SECTOR_BYTES;
const _: () = assert!(SECTORS * SECTOR_BYTES == FRAME_BYTES);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR_BYTES]);

/// One page slot of memory, 512-byte aligned. Derefs to its bytes while the CPU owns it.
pub struct Frame(Box<[Sector; SECTORS]>);

impl Frame {
    /// A zeroed frame that belongs to no pool.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(Box::new([Sector([0; SECTOR_BYTES]); SECTORS]))
    }
}

impl Deref for Frame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for Frame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
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
        Self {
            kept: Vec::new(),
            out: 0,
            frames_max,
        }
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
