//! A frame: one page slot of device DRAM, aligned for direct I/O.
//!
//! A frame is moved into a media operation and returned with its completion, also on error; no other code can access it
//! while the operation is in flight. A frame pool cuts frames out of slabs, which are buffers of a memory pool. It
//! keeps returned frames for reuse, has a limit, and returns unused slabs to the memory pool.
//! Invariant: frames in use plus frames kept never exceed the frame pool's limit.

use crate::pool::{Pool, PoolConfig, PoolRequest};
use headwater_host::mapped_region::{SECTOR_BYTES, SectorBuffer};
use headwater_host::width::narrow;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of one page slot: 4,096 of data, 128 of spare area, 384 reserved for the media.
pub const FRAME_BYTES: usize = 4_608;

const SECTORS: u32 = 9;
const _: () = assert!(SECTORS as usize * SECTOR_BYTES == FRAME_BYTES);

/// Bytes of a slab: the largest buffer that a memory pool keeps cached.
const SLAB_BYTES: usize = 1 << 20;
/// Frames of a full slab.
const SLAB_FRAMES: usize = SLAB_BYTES / FRAME_BYTES;
/// Frames of the smallest slab, which may fit into a nearly full memory pool: they fill 9 pages.
const SLAB_FRAMES_MIN: usize = 8;
/// Frames kept when slabs are returned, so that a small swing of the load does not allocate and free slabs.
const SPARE_FRAMES: usize = 256;

/// One page slot of memory, 512-byte aligned. Derefs to its bytes while the CPU owns it.
pub struct MediaFrame(SectorBuffer);

impl MediaFrame {
    /// Returns a zeroed frame from the heap, which belongs to no frame pool: for tools and tests.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(SectorBuffer::zeroed(SECTORS as usize))
    }

    /// Converts the frame into the buffer that a host I/O ring takes.
    #[must_use]
    pub fn into_sectors(self) -> SectorBuffer {
        self.0
    }

    /// Converts a buffer that a ring returned into a frame.
    ///
    /// # Errors
    /// Returns the buffer if its length is not that of a frame.
    pub fn from_sectors(sectors: SectorBuffer) -> Result<Self, SectorBuffer> {
        if sectors.len() == FRAME_BYTES { Ok(Self(sectors)) } else { Err(sectors) }
    }
}

impl Deref for MediaFrame {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for MediaFrame {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for MediaFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MediaFrame({FRAME_BYTES} bytes)")
    }
}

/// One buffer of the memory pool, cut into frames.
#[derive(Debug)]
struct FrameSlab {
    /// Address of its first frame.
    start: usize,
    frames: usize,
    /// Frames that are not in use.
    kept: Vec<SectorBuffer>,
    /// The first frames in `kept`, which were never taken: they still hold what the memory pool had in them.
    untouched: usize,
    /// True if the slab is in the list to take frames from.
    listed: bool,
}

/// A bounded pool of frames, cut from buffers of a memory pool.
#[derive(Debug)]
pub struct FramePool {
    pool: Pool,
    /// Slabs by label; `None` marks a label that is free for reuse.
    slabs: Vec<Option<FrameSlab>>,
    free_labels: Vec<u32>,
    /// Labels of slabs that may have kept frames, the most recently used last.
    listed: Vec<u32>,
    in_use: usize,
    kept: usize,
    frames_max: usize,
}

impl FramePool {
    /// Creates a frame pool with at most `frames_max` frames in use. Allocates no memory before the first request.
    #[must_use]
    pub fn new(pool: Pool, frames_max: usize) -> Self {
        Self {
            pool,
            slabs: Vec::new(),
            free_labels: Vec::new(),
            listed: Vec::new(),
            in_use: 0,
            kept: 0,
            frames_max,
        }
    }

    /// Returns the configuration of a memory pool that holds `frames` frames, plus two chunks for other uses of its
    /// owner.
    #[must_use]
    pub fn pool_config_for(frames: usize) -> PoolConfig {
        let defaults = PoolConfig::default();
        let sheets = frames.div_ceil(SLAB_FRAMES).saturating_mul(SLAB_BYTES);
        // Opening the pool refuses a size that cannot be addressed.
        let cap = sheets.saturating_add(2 * defaults.chunk);
        let cap = cap.checked_next_multiple_of(defaults.chunk).unwrap_or(usize::MAX);
        PoolConfig { cap, cap_max: cap, ..defaults }
    }

    /// Takes a frame. Its bytes are those of its last use here, or zeroes if it was never used. Returns `None` when the
    /// limit is reached, or when no frame is kept and the memory pool has no memory.
    #[inline]
    pub fn take(&mut self) -> Option<MediaFrame> {
        loop {
            let Some(&label) = self.listed.last() else {
                if self.grow() {
                    continue;
                }
                return None;
            };
            if let Some(sheet) = self.slabs[label as usize].as_mut() {
                if let Some(mut frame) = sheet.kept.pop() {
                    if sheet.kept.len() < sheet.untouched {
                        // So that no bytes of another user of the memory pool reach the media.
                        sheet.untouched = sheet.kept.len();
                        frame.fill(0);
                    }
                    self.kept -= 1;
                    self.in_use += 1;
                    return Some(MediaFrame(frame));
                }
                sheet.listed = false;
            }
            self.listed.pop();
        }
    }

    /// Takes a frame back. A frame that this frame pool did not cut is released to its own origin.
    ///
    /// # Panics
    /// Never: a frame in use is returned once, because it is moved.
    #[inline]
    pub fn put_back(&mut self, MediaFrame(frame): MediaFrame) {
        let label = frame.label();
        let Some(sheet) = self.slabs.get_mut(label as usize).and_then(Option::as_mut) else { return };
        if frame.as_ptr().addr().wrapping_sub(sheet.start) >= sheet.frames * FRAME_BYTES {
            // A frame of another pool, whose label names a different slab here.
            return;
        }
        let is_in_use = sheet.kept.len() < sheet.frames && self.in_use > 0;
        assert!(is_in_use, "a frame was returned twice");
        sheet.kept.push(frame);
        self.in_use -= 1;
        self.kept += 1;
        if !sheet.listed {
            sheet.listed = true;
            self.listed.push(label);
        }
        if sheet.kept.len() == sheet.frames && self.kept >= sheet.frames + SPARE_FRAMES {
            self.kept -= sheet.frames;
            self.slabs[label as usize] = None;
            self.free_labels.push(label);
        }
    }

    /// Ensures that `frames` frames can be taken without another allocation from the memory pool. Returns false when
    /// the limit or the memory pool prevents that.
    pub fn reserve(&mut self, frames: usize) -> bool {
        while self.kept < frames && self.grow() {}
        self.kept >= frames
    }

    /// Adds a slab, with fewer frames if the memory pool has no room for more. Returns true if it added one.
    #[cold]
    fn grow(&mut self) -> bool {
        let mut frames = (self.frames_max - self.in_use - self.kept).min(SLAB_FRAMES);
        while frames > 0 {
            let request = PoolRequest::bytes(frames * FRAME_BYTES);
            if let Some(buffer) =
                self.pool.allocate(&request).ok().and_then(|given| given.into_contiguous().ok())
            {
                self.add(buffer.into_sector_buffers(SECTORS, self.next_label()), frames);
                return true;
            }
            if frames <= SLAB_FRAMES_MIN {
                break;
            }
            frames = (frames / 2).max(SLAB_FRAMES_MIN);
        }
        false
    }

    /// Returns every slab without a frame in use to the memory pool.
    pub fn release_idle(&mut self) {
        for (label, place) in (0..).zip(&mut self.slabs) {
            if let Some(idle) = place.take_if(|sheet| sheet.kept.len() == sheet.frames) {
                self.kept -= idle.frames;
                self.free_labels.push(label);
            }
        }
    }

    fn next_label(&self) -> u32 {
        self.free_labels.last().copied().unwrap_or_else(|| narrow(self.slabs.len()))
    }

    fn add(&mut self, mut kept: Vec<SectorBuffer>, frames: usize) {
        // The buffer may have room for more.
        kept.truncate(frames);
        let label = self.next_label();
        let start = kept.first().map_or(0, |frame| frame.as_ptr().addr());
        // The first frame is taken first.
        kept.reverse();
        self.kept += kept.len();
        let limit = self.frames_max;
        assert!(self.in_use + self.kept <= limit, "{} + {} frames, at most {limit}", self.in_use, self.kept);
        let frames = kept.len();
        let sheet = Some(FrameSlab { start, frames, kept, untouched: frames, listed: true });
        match self.free_labels.pop() {
            Some(label) => self.slabs[label as usize] = sheet,
            None => self.slabs.push(sheet),
        }
        self.listed.push(label);
    }

    /// Returns the number of frames that can still be taken within the limit.
    #[must_use]
    pub fn available(&self) -> usize {
        self.frames_max - self.in_use
    }

    /// Returns the number of frames kept for reuse.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Returns the number of frames in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the limit of frames in use.
    #[must_use]
    pub fn frames_max(&self) -> usize {
        self.frames_max
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
