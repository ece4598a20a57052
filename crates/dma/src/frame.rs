//! A frame: one page slot of device DRAM, aligned for direct I/O.
//!
//! A frame is moved into a media operation and comes back with its completion, error included; while the operation is
//! in flight nobody else can name it. A stock of frames cuts them out of buffers of a pool, a sheet at a time, keeps
//! returned ones for reuse and holds a named limit; a sheet that nobody uses goes back to the pool.
//! Invariant: frames handed out plus frames kept never exceed the stock's limit.

use crate::pool::{Pool, PoolConfig, Request};
use headwater_host::region::{SECTOR_BYTES, SectorBuffer};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Bytes of one page slot: 4,096 of data, 128 of spare, 384 that belong to the media.
pub const FRAME_BYTES: usize = 4_608;

const SECTORS: u32 = 9;
const _: () = assert!(SECTORS as usize * SECTOR_BYTES == FRAME_BYTES);

/// Bytes of a sheet: the largest buffer that a pool keeps at hand.
const SHEET_BYTES: usize = 1 << 20;
/// Frames of a sheet.
const SHEET_FRAMES: usize = SHEET_BYTES / FRAME_BYTES;
/// Frames of the smallest sheet, for which a pool that is nearly used up may still have room: they fill 9 pages.
const SHEET_FRAMES_MIN: usize = 8;
/// Frames that stay in the stock when sheets go back, so that a load that swings a little does not swing the pool.
const SPARE_FRAMES: usize = 256;

/// One page slot of memory, 512-byte aligned. Derefs to its bytes while the CPU owns it.
pub struct Frame(SectorBuffer);

impl Frame {
    /// A zeroed frame of the heap, which belongs to no pool: for tools and tests.
    #[must_use]
    pub fn zeroed() -> Self {
        Self(SectorBuffer::zeroed(SECTORS as usize))
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

/// One buffer of the pool, cut into frames.
#[derive(Debug)]
struct Sheet {
    /// Where the first of its frames is.
    start: usize,
    frames: usize,
    /// Those that are not out.
    kept: Vec<SectorBuffer>,
    /// Whether it is in the list of those to take from.
    listed: bool,
}

/// A bounded stock of frames out of a pool.
#[derive(Debug)]
pub struct FramePool {
    pool: Pool,
    /// By label; `None` is a label to be used again.
    sheets: Vec<Option<Sheet>>,
    vacant: Vec<u32>,
    /// Labels of sheets that may have something to take, the last used last.
    listed: Vec<u32>,
    out: usize,
    kept: usize,
    frames_max: usize,
}

impl FramePool {
    /// A stock that will hand out at most `frames_max` frames at a time. No memory is taken before it is asked for.
    #[must_use]
    pub fn new(pool: Pool, frames_max: usize) -> Self {
        Self { pool, sheets: Vec::new(), vacant: Vec::new(), listed: Vec::new(), out: 0, kept: 0, frames_max }
    }

    /// A pool with room for so many frames, and for two chunks of whatever else its owner needs.
    #[must_use]
    pub fn room_for(frames: usize) -> PoolConfig {
        let defaults = PoolConfig::default();
        let sheets = frames.div_ceil(SHEET_FRAMES).saturating_mul(SHEET_BYTES);
        // What cannot be addressed is refused when the pool is opened.
        let cap = sheets.saturating_add(2 * defaults.chunk);
        let cap = cap.checked_next_multiple_of(defaults.chunk).unwrap_or(usize::MAX);
        PoolConfig { cap, cap_max: cap, ..defaults }
    }

    /// A frame with whatever bytes its last user here left, zeroes if there was none. `None` when the limit is reached,
    /// or when nothing is kept and the pool gives nothing.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        loop {
            let Some(&label) = self.listed.last() else {
                if self.grow() {
                    continue;
                }
                return None;
            };
            if let Some(sheet) = self.sheets[label as usize].as_mut() {
                if let Some(frame) = sheet.kept.pop() {
                    self.kept -= 1;
                    self.out += 1;
                    return Some(Frame(frame));
                }
                sheet.listed = false;
            }
            self.listed.pop();
        }
    }

    /// Takes a frame back. One that was not cut here goes to where it came from.
    ///
    /// # Panics
    /// Never: a frame that is out comes back once, because it is moved.
    #[inline]
    pub fn put_back(&mut self, Frame(frame): Frame) {
        let label = frame.label();
        let Some(sheet) = self.sheets.get_mut(label as usize).and_then(Option::as_mut) else { return };
        if frame.as_ptr().addr().wrapping_sub(sheet.start) >= sheet.frames * FRAME_BYTES {
            // Somebody else's, whose label means another sheet.
            return;
        }
        assert!(sheet.kept.len() < sheet.frames, "a frame came back that never went out");
        sheet.kept.push(frame);
        self.out -= 1;
        self.kept += 1;
        if !sheet.listed {
            sheet.listed = true;
            self.listed.push(label);
        }
        if sheet.kept.len() == sheet.frames && self.kept >= sheet.frames + SPARE_FRAMES {
            self.kept -= sheet.frames;
            self.sheets[label as usize] = None;
            self.vacant.push(label);
        }
    }

    /// Makes sure that so many frames can be taken without asking the pool again. False when the limit or the pool is in
    /// the way.
    pub fn secure(&mut self, frames: usize) -> bool {
        while self.kept < frames && self.grow() {}
        self.kept >= frames
    }

    /// Adds a sheet, of fewer frames if the pool has no room for more. Whether it did.
    #[cold]
    fn grow(&mut self) -> bool {
        let mut frames = (self.frames_max - self.out - self.kept).min(SHEET_FRAMES);
        while frames > 0 {
            // Zeroed, so that what another user of the pool left there reaches no medium.
            let request = Request::bytes(frames * FRAME_BYTES).zeroed();
            if let Some(buffer) = self.pool.allocate(&request).ok().and_then(|given| given.contiguous().ok())
            {
                self.add(buffer.cut(SECTORS, self.next_label()), frames);
                return true;
            }
            if frames <= SHEET_FRAMES_MIN {
                break;
            }
            frames = (frames / 2).max(SHEET_FRAMES_MIN);
        }
        false
    }

    /// Gives every sheet back of which no frame is out.
    pub fn release_idle(&mut self) {
        for (label, place) in (0..).zip(&mut self.sheets) {
            if let Some(idle) = place.take_if(|sheet| sheet.kept.len() == sheet.frames) {
                self.kept -= idle.frames;
                self.vacant.push(label);
            }
        }
    }

    fn next_label(&self) -> u32 {
        let new = u32::try_from(self.sheets.len()).unwrap_or(u32::MAX);
        self.vacant.last().copied().unwrap_or(new)
    }

    fn add(&mut self, mut kept: Vec<SectorBuffer>, frames: usize) {
        // The buffer may have had room for more.
        kept.truncate(frames);
        let label = self.next_label();
        let start = kept.first().map_or(0, |frame| frame.as_ptr().addr());
        // The first frame is the first to be taken.
        kept.reverse();
        self.kept += kept.len();
        let sheet = Some(Sheet { start, frames: kept.len(), kept, listed: true });
        match self.vacant.pop() {
            Some(label) => self.sheets[label as usize] = sheet,
            None => self.sheets.push(sheet),
        }
        self.listed.push(label);
    }

    /// How many more frames can be taken as far as the limit goes.
    #[must_use]
    pub fn available(&self) -> usize {
        self.frames_max - self.out
    }

    /// How many frames are at hand.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept
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

#[cfg(all(test, not(loom)))]
mod tests;
