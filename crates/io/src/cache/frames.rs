//! Frames: the memory of pages, their contents, and their lists.
//!
//! Input: blocks of registered memory. Output: copies, and slices for transfers. Invariant: a frame is on at most one
//! list; a frame under a transfer is on none, and its bytes are not written. A frame that a job of the mover writes is filling
//! and stays on the list of its dirty page.

use super::backing::TransferOrigin;
use super::shape::PAGE_BYTES;
use crate::buffer::Buffer;
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::width::{narrow, to_usize};

/// No frame.
pub(super) const NO_FRAME: u32 = u32::MAX;

/// The list that a frame is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameList {
    /// Frames without a page.
    Free,
    /// Clean pages not yet proven.
    Small,
    /// Clean pages used repeatedly.
    Main,
    /// Dirty pages, in the order of becoming dirty.
    Dirty,
    /// Dirty pages to be written now.
    Urgent,
    /// Dirty pages whose last write failed.
    Failed,
    /// No list.
    None,
}
const LISTS: usize = FrameList::None as usize;

/// The state of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameState {
    /// It holds no page.
    Free,
    /// Its page is being read, or written by a job of the mover.
    Filling,
    /// Its page is valid.
    Idle,
    /// Its page is valid, and being written.
    Writing,
    /// Its block of memory is about to be released.
    Retired,
}

/// The flags of a page.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageFlags(u8);

impl PageFlags {
    /// The device does not have it yet.
    pub(super) const DIRTY: Self = Self(1);
    /// Its write was acknowledged, and the device does not have it yet.
    pub(super) const ACKNOWLEDGED: Self = Self(2);
    /// A flush waits for it.
    pub(super) const FLUSHED: Self = Self(4);
    /// A transfer with other pages failed; it is written alone.
    pub(super) const ALONE: Self = Self(8);
    /// It must be durable when it is written.
    pub(super) const DURABLE: Self = Self(16);
    /// It was prefetched and is not yet used.
    pub(super) const PREFETCHED: Self = Self(32);
    /// It moves to the main list when it is clean.
    pub(super) const PROVEN: Self = Self(64);

    #[inline]
    pub(super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(super) const fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }

    #[inline]
    pub(super) const fn clear(&mut self, other: Self) {
        self.0 &= !other.0;
    }
}

/// The state of a frame and its page.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheFrame {
    pub(super) page: u64,
    /// The time at which it became dirty, or failed.
    pub(super) dirty_since: Nanos,
    prev: u32,
    next: u32,
    list: FrameList,
    pub(super) state: FrameState,
    /// Its recent uses, up to [`USES_MOST`](super::replacement::USES_MOST).
    pub(super) uses: u8,
    pub(super) flags: PageFlags,
    /// The origin of its transfers: of the read that fills it, then of its last write.
    pub(super) origin: TransferOrigin,
}

const FREE_FRAME: CacheFrame = CacheFrame {
    page: 0,
    dirty_since: Nanos::ZERO,
    prev: NO_FRAME,
    next: NO_FRAME,
    list: FrameList::None,
    state: FrameState::Free,
    uses: 0,
    flags: PageFlags(0),
    origin: TransferOrigin::UNKNOWN,
};

#[derive(Clone, Copy, Debug)]
struct ListEnds {
    first: u32,
    last: u32,
    frames: usize,
}

/// The frames and their lists.
#[derive(Debug)]
pub(super) struct FrameTable {
    blocks: Vec<Buffer>,
    block_bits: u32,
    frames: Vec<CacheFrame>,
    lists: [ListEnds; LISTS],
}

impl FrameTable {
    pub(super) fn new(block_pages: usize) -> Self {
        let lists = [ListEnds { first: NO_FRAME, last: NO_FRAME, frames: 0 }; LISTS];
        Self { blocks: Vec::new(), block_bits: block_pages.trailing_zeros(), frames: Vec::new(), lists }
    }

    /// Adds the frames of a block of memory.
    pub(super) fn add(&mut self, block: Buffer) {
        self.blocks.push(block);
        for _ in 0..1_usize << self.block_bits {
            let frame = narrow(self.frames.len());
            self.frames.push(FREE_FRAME);
            self.push_back(FrameList::Free, frame);
        }
    }

    /// Releases every block after the first `blocks`; their frames are [`FrameState::Retired`].
    pub(super) fn keep_blocks(&mut self, blocks: usize) {
        debug_assert!(
            self.frames[blocks << self.block_bits..].iter().all(|f| f.state == FrameState::Retired)
        );
        self.blocks.truncate(blocks);
        self.frames.truncate(blocks << self.block_bits);
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        self.frames.len()
    }

    #[inline]
    pub(super) fn frame(&self, frame: u32) -> &CacheFrame {
        &self.frames[frame as usize]
    }

    #[inline]
    pub(super) fn frame_mut(&mut self, frame: u32) -> &mut CacheFrame {
        &mut self.frames[frame as usize]
    }

    /// Resets a frame to empty; it is on no list.
    pub(super) fn reset(&mut self, frame: u32) {
        *self.frame_mut(frame) = FREE_FRAME;
    }

    /// Iterates over the frames with a page or a transfer, with their page numbers.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (u32, u64)> {
        let used = |frame: &CacheFrame| !matches!(frame.state, FrameState::Free | FrameState::Retired);
        self.frames.iter().zip(0..).filter(move |(frame, _)| used(frame)).map(|(frame, at)| (at, frame.page))
    }

    #[inline]
    pub(super) fn list(&self, frame: u32) -> FrameList {
        self.frame(frame).list
    }

    #[inline]
    pub(super) fn len(&self, list: FrameList) -> usize {
        self.lists[list as usize].frames
    }

    #[inline]
    pub(super) fn first(&self, list: FrameList) -> Option<u32> {
        Some(self.lists[list as usize].first).filter(|&frame| frame != NO_FRAME)
    }

    #[inline]
    pub(super) fn last(&self, list: FrameList) -> Option<u32> {
        Some(self.lists[list as usize].last).filter(|&frame| frame != NO_FRAME)
    }

    /// Iterates over the frames of a list, first to last.
    pub(super) fn iter(&self, list: FrameList) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(list), |&frame| {
            Some(self.frame(frame).next).filter(|&next| next != NO_FRAME)
        })
    }

    pub(super) fn push_front(&mut self, list: FrameList, frame: u32) {
        let next = self.lists[list as usize].first;
        self.link(list, NO_FRAME, frame, next);
    }

    pub(super) fn push_back(&mut self, list: FrameList, frame: u32) {
        let prev = self.lists[list as usize].last;
        self.link(list, prev, frame, NO_FRAME);
    }

    fn link(&mut self, list: FrameList, prev: u32, frame: u32, next: u32) {
        let at = self.frame_mut(frame);
        debug_assert!(at.list == FrameList::None, "the frame is already on a list");
        (at.prev, at.next, at.list) = (prev, next, list);
        if prev == NO_FRAME {
            self.lists[list as usize].first = frame;
        } else {
            self.frame_mut(prev).next = frame;
        }
        if next == NO_FRAME {
            self.lists[list as usize].last = frame;
        } else {
            self.frame_mut(next).prev = frame;
        }
        self.lists[list as usize].frames += 1;
    }

    /// Removes a frame from its list, if it is on one.
    pub(super) fn unlink(&mut self, frame: u32) {
        let CacheFrame { prev, next, list, .. } = *self.frame(frame);
        if list == FrameList::None {
            return;
        }
        if prev == NO_FRAME {
            self.lists[list as usize].first = next;
        } else {
            self.frame_mut(prev).next = next;
        }
        if next == NO_FRAME {
            self.lists[list as usize].last = prev;
        } else {
            self.frame_mut(next).prev = prev;
        }
        self.lists[list as usize].frames -= 1;
        let at = self.frame_mut(frame);
        (at.prev, at.next, at.list) = (NO_FRAME, NO_FRAME, FrameList::None);
    }

    /// Moves a page to a free frame, at the same position in its list.
    pub(super) fn move_to(&mut self, from: u32, to: u32) {
        let mut bytes = [0; PAGE_BYTES];
        self.read(from, 0, &mut bytes);
        self.write(to, 0, &bytes);
        let CacheFrame { prev, list, .. } = *self.frame(from);
        self.unlink(from);
        self.unlink(to);
        *self.frame_mut(to) =
            CacheFrame { prev: NO_FRAME, next: NO_FRAME, list: FrameList::None, ..*self.frame(from) };
        if list != FrameList::None {
            let next = if prev == NO_FRAME { self.lists[list as usize].first } else { self.frame(prev).next };
            self.link(list, prev, to, next);
        }
        self.reset(from);
    }

    #[inline]
    fn memory_of(&self, frame: u32) -> (&Buffer, usize) {
        let within = (frame as usize) & ((1 << self.block_bits) - 1);
        (&self.blocks[(frame >> self.block_bits) as usize], within * PAGE_BYTES)
    }

    /// Returns the block of a frame, the memory that it lies in, and the offset of the frame there.
    pub(super) fn place(&self, frame: u32) -> (usize, &SharedMemory, usize) {
        let (block, start) = self.memory_of(frame);
        let (memory, offset) = block.memory();
        ((frame >> self.block_bits) as usize, memory, offset + start)
    }

    /// Copies bytes out of a page.
    #[inline]
    pub(super) fn read(&self, frame: u32, at: usize, into: &mut [u8]) {
        let (block, start) = self.memory_of(frame);
        let copied = block.read(start + at, into);
        assert!(copied.is_ok(), "part of a page is outside its block");
    }

    /// Copies bytes into a page.
    #[inline]
    pub(super) fn write(&self, frame: u32, at: usize, from: &[u8]) {
        let (block, start) = self.memory_of(frame);
        let copied = block.write(start + at, from);
        assert!(copied.is_ok(), "part of a page is outside its block");
    }

    /// Returns true if two frames are contiguous in one block.
    pub(super) fn are_contiguous(&self, frame: u32, next: u32) -> bool {
        next == frame + 1 && next.trailing_zeros() < self.block_bits
    }

    /// Returns the memory of frames as segments of a transfer, `bytes` in total.
    pub(super) fn segments(&self, frames: &[u32], bytes: u64) -> Vec<Buffer> {
        let mut left = to_usize(bytes);
        let runs = frames.chunk_by(|&frame, &next| self.are_contiguous(frame, next));
        let segment = |run: &[u32]| {
            let (block, start) = self.memory_of(run[0]);
            let wanted = (run.len() * PAGE_BYTES).min(left);
            left -= wanted;
            match block.slice(start, wanted) {
                Ok(segment) => segment,
                Err(_) => unreachable!("a run of frames is outside its block"),
            }
        };
        runs.map(segment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::iova::Iova;

    fn frames(blocks: u64) -> FrameTable {
        let mut frames = FrameTable::new(4);
        for block in 0..blocks {
            let memory = SharedMemory::anonymous(4 * PAGE_BYTES).unwrap();
            frames.add(Buffer::from_region(memory, Iova(block << 20)));
        }
        frames
    }

    #[test]
    fn contiguous_frames_are_one_segment_and_the_last_is_shortened() {
        let frames = frames(2);
        let bytes = 5 * PAGE_BYTES as u64 - 512;
        let segments = frames.segments(&[2, 3, 4, 5, 0], bytes);
        let shown: Vec<_> = segments.iter().map(|segment| (segment.address(), segment.bytes())).collect();
        assert_eq!(shown, [(0x2000, 8_192), (0x10_0000, 8_192), (0, 4_096 - 512)]);
    }

    #[test]
    fn moved_frame_keeps_its_bytes_and_list_position() {
        let mut frames = frames(1);
        for frame in 0..3 {
            frames.unlink(frame);
            frames.frame_mut(frame).state = FrameState::Idle;
            frames.push_back(FrameList::Small, frame);
        }
        frames.write(1, 7, b"here");
        frames.move_to(1, 3);
        assert_eq!(frames.iter(FrameList::Small).collect::<Vec<_>>(), [0, 3, 2]);
        assert_eq!(frames.len(FrameList::Small), 3);
        let mut back = [0; 4];
        frames.read(3, 7, &mut back);
        assert_eq!((&back, frames.frame(1).state), (b"here", FrameState::Free));
        assert_eq!(frames.len(FrameList::Free), 0);
        for frame in [0, 2, 3] {
            frames.unlink(frame);
        }
        assert_eq!((frames.first(FrameList::Small), frames.last(FrameList::Small)), (None, None));
    }
}
