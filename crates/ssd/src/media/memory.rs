//! Flash in memory that enforces the NAND rules: the medium of benchmarks, volatile devices and fast tests.
//!
//! Input: [`MediaOp`]s. Output: their completions, in submission order, at the next poll. Invariant: a page reads as
//! programmed exactly when it is below its block's write pointer, and then holds the bytes it was programmed with.
//!
//! Page `p` starts at `p * 4,224`: 66 cache lines, so that no line holds bytes of two pages, and equal offsets of
//! consecutive pages fall into different cache sets. An operation is executed when it is accepted; only its completion
//! stays in flight. Nothing survives the process.

use super::{
    CELL_BYTES, CELLS_PER_SIDE, CellNumber, FlashGeometry, Media, MediaCompletion, MediaOp, MediaToken,
    MediaTraits, MediumVersion, NandRule, NandRules, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress,
    PageState, RefusalReason, RefusedOp,
};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::copy::{StreamingCopies, copy};
use headwater_host::mapped_region::{MappedRegion, RegionError};
use std::collections::VecDeque;

/// Bytes from one page to the next.
const PAGE_STRIDE: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
const _: () = assert!(PAGE_STRIDE.is_multiple_of(64));

/// Completions that may wait for a poll.
const QUEUE_MAX: usize = 4_096;

/// Flash in memory.
#[derive(Debug)]
pub struct MemoryMedia {
    geometry: FlashGeometry,
    rules: NandRules,
    pages: MappedRegion,
    /// The programs since the last poll.
    streaming: StreamingCopies,
    cells: Vec<[u8; CELL_BYTES]>,
    version: MediumVersion,
    completions: VecDeque<MediaCompletion>,
}

impl MemoryMedia {
    /// Makes a medium with all blocks erased. The system provides memory when pages are first programmed.
    ///
    /// # Errors
    /// The geometry needs more memory than can be mapped.
    pub fn erased(geometry: FlashGeometry) -> Result<Self, RegionError> {
        let pages = geometry.blocks as usize * super::PAGES_PER_BLOCK;
        Ok(Self {
            geometry,
            rules: NandRules::erased(geometry),
            pages: MappedRegion::zeroed(pages.saturating_mul(PAGE_STRIDE))?,
            streaming: StreamingCopies::default(),
            cells: vec![[0; CELL_BYTES]; usize::from(2 * CELLS_PER_SIDE)],
            version: MediumVersion::Two,
            completions: VecDeque::new(),
        })
    }

    /// Returns the medium as one of version 1, which devices only read.
    #[must_use]
    pub fn as_version_1(self) -> Self {
        Self { version: MediumVersion::One, ..self }
    }

    /// Returns the bytes of a commit cell, for a test that damages them; `None` if there is no such cell.
    pub fn cell_mut(&mut self, cell: CellNumber) -> Option<&mut [u8; CELL_BYTES]> {
        self.cells.get_mut(usize::from(cell.0))
    }

    /// Returns the medium after a power cut: pages and write pointers stay, completions not yet polled are gone.
    #[must_use]
    pub fn after_power_cut(self) -> Self {
        Self { completions: VecDeque::new(), ..self }
    }

    /// Executes an operation. Returns its frame and the state of its page.
    fn execute(&mut self, op: MediaOp) -> Result<(Option<MediaFrame>, PageState), (MediaOp, NandRule)> {
        match op {
            MediaOp::Read { page, mut frame } => {
                if let Err(rule) = self.rules.read(page) {
                    return Err((MediaOp::Read { page, frame }, rule));
                }
                let Some(bytes) = self.view(page) else {
                    return Ok((Some(frame), PageState::Blank));
                };
                copy(&mut frame[..PAGE_STRIDE], bytes);
                Ok((Some(frame), PageState::Programmed))
            }
            MediaOp::Program { page, frame } => {
                if let Err(rule) = self.rules.program(page) {
                    return Err((MediaOp::Program { page, frame }, rule));
                }
                let start = page.index() * PAGE_STRIDE;
                self.streaming.copy(&mut self.pages[start..start + PAGE_STRIDE], &frame[..PAGE_STRIDE]);
                Ok((Some(frame), PageState::Programmed))
            }
            MediaOp::Erase { block } => match self.rules.erase(block) {
                Ok(()) => Ok((None, PageState::Programmed)),
                Err(rule) => Err((MediaOp::Erase { block }, rule)),
            },
            MediaOp::ReadCell { cell, mut frame } => match self.cells.get(usize::from(cell.0)) {
                Some(bytes) => {
                    copy(&mut frame[..CELL_BYTES], bytes);
                    Ok((Some(frame), PageState::Programmed))
                }
                None => Err((MediaOp::ReadCell { cell, frame }, NandRule::OutsideGeometry)),
            },
            MediaOp::WriteCell { cell, frame } => match self.cells.get_mut(usize::from(cell.0)) {
                Some(bytes) => {
                    copy(bytes, &frame[..CELL_BYTES]);
                    Ok((Some(frame), PageState::Programmed))
                }
                None => Err((MediaOp::WriteCell { cell, frame }, NandRule::OutsideGeometry)),
            },
            MediaOp::Flush => Ok((None, PageState::Programmed)),
        }
    }
}

impl Media for MemoryMedia {
    fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    fn traits(&self) -> MediaTraits {
        MediaTraits {
            volatile_cache: false,
            guard_pages: 0,
            queue_max: QUEUE_MAX,
            addressable: true,
            version: self.version,
            has_extents: self.version == MediumVersion::Two,
            cells: (CELLS_PER_SIDE, CELLS_PER_SIDE),
            checksum_seed: 0,
        }
    }

    fn submit(&mut self, token: MediaToken, op: MediaOp, _now: Nanos) -> Result<(), RefusedOp> {
        if self.completions.len() >= QUEUE_MAX {
            return Err(RefusedOp { op, reason: RefusalReason::QueueFull });
        }
        match self.execute(op) {
            Ok((frame, state)) => {
                self.completions.push_back(MediaCompletion { token, frame, result: Ok(state) });
                Ok(())
            }
            Err((op, rule)) => Err(RefusedOp { op, reason: RefusalReason::Rule(rule) }),
        }
    }

    fn poll(&mut self, _now: Nanos, done: &mut Vec<MediaCompletion>) {
        // Before anything tells of the programs.
        self.streaming.fence();
        done.extend(self.completions.drain(..));
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        // The completion of every accepted operation is ready.
        now
    }

    fn in_flight(&self) -> usize {
        self.completions.len()
    }

    #[inline]
    fn view(&self, page: PageAddress) -> Option<&[u8]> {
        if usize::from(page.page) >= self.rules.programmed(page.block) {
            return None;
        }
        let start = page.index() * PAGE_STRIDE;
        self.pages.get(start..start + PAGE_STRIDE)
    }
}

#[cfg(test)]
mod tests {
    use super::super::BlockId;
    use super::*;

    fn media(blocks: u32) -> MemoryMedia {
        MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap()
    }

    fn page(block: u32, page: u8) -> PageAddress {
        PageAddress::new(BlockId(block), page)
    }

    fn frame(fill: u8) -> MediaFrame {
        let mut frame = MediaFrame::zeroed();
        frame.fill(fill);
        frame
    }

    fn answer(media: &mut MemoryMedia, op: MediaOp) -> MediaCompletion {
        media.submit(MediaToken(7), op, Nanos::ZERO).unwrap();
        let mut done = Vec::new();
        media.poll(Nanos::ZERO, &mut done);
        assert_eq!(done.len(), 1);
        let done = done.pop().unwrap();
        assert_eq!(done.token, MediaToken(7));
        done
    }

    fn refusal(media: &mut MemoryMedia, op: MediaOp) -> RefusalReason {
        media.submit(MediaToken(1), op, Nanos::ZERO).unwrap_err().reason
    }

    fn program(page: PageAddress, fill: u8) -> MediaOp {
        MediaOp::Program { page, frame: frame(fill) }
    }

    fn read(media: &mut MemoryMedia, page: PageAddress) -> Option<u8> {
        let done = answer(media, MediaOp::Read { page, frame: frame(0xEE) });
        match done.result.unwrap() {
            PageState::Blank => None,
            PageState::Programmed => {
                let frame = done.frame.unwrap();
                assert!(frame[..PAGE_STRIDE].iter().all(|&byte| byte == frame[0]));
                Some(frame[0])
            }
        }
    }

    #[test]
    fn a_programmed_page_reads_back_and_can_be_viewed() {
        let mut media = media(2);
        assert_eq!(read(&mut media, page(1, 0)), None);
        assert!(media.view(page(1, 0)).is_none());
        assert!(answer(&mut media, program(page(1, 0), 5)).frame.is_some());
        assert_eq!(read(&mut media, page(1, 0)), Some(5));
        assert_eq!(media.view(page(1, 0)).unwrap(), &[5; PAGE_STRIDE]);
        assert!(media.view(page(1, 1)).is_none());
        assert!(media.view(page(2, 0)).is_none());
    }

    #[test]
    fn an_erased_block_reads_blank_and_programs_again() {
        let mut media = media(1);
        for number in 0..64 {
            answer(&mut media, program(page(0, number), number));
        }
        answer(&mut media, MediaOp::Erase { block: BlockId(0) });
        assert_eq!(read(&mut media, page(0, 0)), None);
        answer(&mut media, program(page(0, 0), 99));
        assert_eq!(read(&mut media, page(0, 0)), Some(99));
        assert_eq!(read(&mut media, page(0, 1)), None);
    }

    #[test]
    fn operations_against_nand_rules_are_refused_and_change_nothing() {
        let mut media = media(1);
        let rule = |rule| RefusalReason::Rule(rule);
        assert_eq!(refusal(&mut media, program(page(0, 1), 1)), rule(NandRule::OutOfOrder));
        answer(&mut media, program(page(0, 0), 1));
        assert_eq!(refusal(&mut media, program(page(0, 0), 2)), rule(NandRule::ProgrammedTwice));
        assert_eq!(refusal(&mut media, program(page(1, 0), 2)), rule(NandRule::OutsideGeometry));
        assert_eq!(refusal(&mut media, program(page(0, 64), 2)), rule(NandRule::OutsideGeometry));
        let block = BlockId(u32::MAX);
        assert_eq!(refusal(&mut media, MediaOp::Erase { block }), rule(NandRule::OutsideGeometry));
        let outside = MediaOp::Read { page: page(9, 0), frame: frame(0) };
        assert_eq!(refusal(&mut media, outside), rule(NandRule::OutsideGeometry));
        assert_eq!(read(&mut media, page(0, 0)), Some(1));
    }

    #[test]
    fn a_full_queue_is_an_error_that_returns_the_frame() {
        let mut media = media(1);
        for number in 0..QUEUE_MAX as u64 {
            media.submit(MediaToken(number), MediaOp::Flush, Nanos::ZERO).unwrap();
        }
        let refused = media.submit(MediaToken(0), program(page(0, 0), 1), Nanos::ZERO).unwrap_err();
        assert_eq!(refused.reason, RefusalReason::QueueFull);
        assert!(matches!(refused.op, MediaOp::Program { .. }));
        let mut done = Vec::new();
        media.poll(Nanos::ZERO, &mut done);
        assert!(done.iter().map(|done| done.token.0).eq(0..QUEUE_MAX as u64));
        assert_eq!(media.in_flight(), 0);
        answer(&mut media, program(page(0, 0), 1));
    }

    #[test]
    fn a_power_cycle_keeps_pages_and_write_pointers() {
        let mut media = media(1);
        answer(&mut media, program(page(0, 0), 3));
        media.submit(MediaToken(1), MediaOp::Flush, Nanos::ZERO).unwrap();
        let mut media = media.after_power_cut();
        assert_eq!(media.in_flight(), 0);
        assert_eq!(read(&mut media, page(0, 0)), Some(3));
        assert_eq!(
            refusal(&mut media, program(page(0, 0), 4)),
            RefusalReason::Rule(NandRule::ProgrammedTwice)
        );
        answer(&mut media, program(page(0, 1), 4));
    }
}
