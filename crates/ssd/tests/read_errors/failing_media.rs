//! A medium in memory whose reads, programs and flushes fail where a test says so.

use headwater_host::clock::Nanos;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{
    BlockId, CellNumber, FlashGeometry, Media, MediaCompletion, MediaError, MediaOp, MediaToken, MediaTraits,
    PAGES_PER_BLOCK, PageAddress, RefusedOp,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Input/output error: the same read may succeed later.
pub(crate) const EIO: i32 = 5;
/// No data: a medium error, which stays.
pub(crate) const ENODATA: i32 = 61;

/// The failure of the reads of one page.
#[derive(Clone, Copy, Debug)]
struct PageFault {
    errno: i32,
    /// Reads that still fail.
    left: u64,
}

/// A read that returns the bytes of another place.
#[derive(Clone, Copy, Debug)]
struct Misdirection<T> {
    to: T,
    /// Reads before it, and reads that are misdirected.
    skipped: u64,
    left: u64,
}

impl<T: Copy> Misdirection<T> {
    /// Returns the place that the next read is of.
    fn next(&mut self, own: T) -> T {
        if self.skipped > 0 {
            self.skipped -= 1;
            return own;
        }
        let is_misdirected = self.left > 0;
        self.left = self.left.saturating_sub(1);
        if is_misdirected { self.to } else { own }
    }
}

/// Flash in memory that is read page by page, with failing operations.
#[derive(Debug)]
pub(crate) struct FailingMedia {
    flash: MemoryMedia,
    faults: BTreeMap<PageAddress, PageFault>,
    misdirected: BTreeMap<PageAddress, Misdirection<PageAddress>>,
    misdirected_cells: BTreeMap<CellNumber, Misdirection<CellNumber>>,
    failed: Vec<MediaCompletion>,
    /// Commit cells that cannot be read, and the error number.
    pub(crate) failing_cells: Option<(Range<u16>, i32)>,
    /// The waits between two attempts, in order.
    pub(crate) waits: Vec<Nanos>,
    /// Reads by page.
    pub(crate) reads: BTreeMap<PageAddress, u64>,
    /// Blocks erased, in order.
    pub(crate) erased: Vec<BlockId>,
    /// Pages programmed, and the error number with which programs fail.
    pub(crate) programs: u64,
    pub(crate) program_errno: Option<i32>,
    /// Commit cells written.
    pub(crate) cells_written: u64,
    /// Flushes, and the error number with which they fail.
    pub(crate) flushes: u64,
    pub(crate) flush_errno: Option<i32>,
}

impl FailingMedia {
    pub(crate) fn new(blocks: u32) -> Self {
        Self::of(MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap(), BTreeMap::new())
    }

    fn of(flash: MemoryMedia, faults: BTreeMap<PageAddress, PageFault>) -> Self {
        Self {
            flash,
            faults,
            misdirected: BTreeMap::new(),
            misdirected_cells: BTreeMap::new(),
            failed: Vec::new(),
            failing_cells: None,
            waits: Vec::new(),
            reads: BTreeMap::new(),
            erased: Vec::new(),
            programs: 0,
            program_errno: None,
            cells_written: 0,
            flushes: 0,
            flush_errno: None,
        }
    }

    /// Returns the medium as a killed process leaves it, with the same faults.
    pub(crate) fn after_kill(self) -> Self {
        Self::of(self.flash.after_power_cut(), self.faults)
    }

    /// Makes the next `times` reads of a page fail.
    pub(crate) fn fail(&mut self, page: PageAddress, errno: i32, times: u64) {
        self.faults.insert(page, PageFault { errno, left: times });
    }

    /// Makes `times` reads of a page return the bytes of another one, after `skipped` that do not.
    pub(crate) fn misdirect(&mut self, page: PageAddress, to: PageAddress, skipped: u64, times: u64) {
        self.misdirected.insert(page, Misdirection { to, skipped, left: times });
    }

    /// Makes the next read of a cell return the bytes of another one.
    pub(crate) fn misdirect_cell(&mut self, cell: CellNumber, to: CellNumber) {
        self.misdirected_cells.insert(cell, Misdirection { to, skipped: 0, left: 1 });
    }

    /// Returns every page that was programmed.
    pub(crate) fn programmed_pages(&self) -> Vec<PageAddress> {
        self.pages_with(&[])
    }

    /// Makes all pages and cells readable.
    pub(crate) fn mend(&mut self) {
        self.faults.clear();
        self.misdirected.clear();
        self.failing_cells = None;
    }

    /// Returns the last page that holds these bytes.
    pub(crate) fn page_with(&self, bytes: &[u8]) -> PageAddress {
        self.pages_with(bytes).pop().unwrap_or_else(|| panic!("no page holds {bytes:?}"))
    }

    /// Returns every page that holds these bytes.
    pub(crate) fn pages_with(&self, bytes: &[u8]) -> Vec<PageAddress> {
        let pages = u8::try_from(PAGES_PER_BLOCK).unwrap();
        let all = (0..self.flash.geometry().blocks)
            .flat_map(|block| (0..pages).map(move |page| PageAddress::new(BlockId(block), page)));
        let holds = |page: &PageAddress| {
            let data = self.flash.view(*page);
            data.is_some_and(|data| {
                bytes.is_empty() || data.windows(bytes.len()).any(|window| window == bytes)
            })
        };
        all.filter(holds).collect()
    }
}

impl Media for FailingMedia {
    fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }

    fn traits(&self) -> MediaTraits {
        MediaTraits { addressable: false, volatile_cache: true, ..self.flash.traits() }
    }

    fn submit(&mut self, token: MediaToken, mut op: MediaOp, now: Nanos) -> Result<(), RefusedOp> {
        match &mut op {
            MediaOp::Read { page, .. } => {
                *self.reads.entry(*page).or_default() += 1;
                if let Some(fault) = self.faults.get_mut(page).filter(|fault| fault.left > 0) {
                    fault.left -= 1;
                    let (errno, page) = (fault.errno, *page);
                    let MediaOp::Read { frame, .. } = op else { unreachable!("it is a read") };
                    let result = Err(MediaError::Io { errno, page });
                    self.failed.push(MediaCompletion { token, frame: Some(frame), result });
                    return Ok(());
                }
                if let Some(misdirection) = self.misdirected.get_mut(page) {
                    *page = misdirection.next(*page);
                }
            }
            MediaOp::Program { page, .. } => {
                self.programs += 1;
                if let Some(errno) = self.program_errno {
                    let page = *page;
                    let MediaOp::Program { frame, .. } = op else { unreachable!("it is a program") };
                    let result = Err(MediaError::Io { errno, page });
                    self.failed.push(MediaCompletion { token, frame: Some(frame), result });
                    return Ok(());
                }
            }
            MediaOp::Erase { block } => self.erased.push(*block),
            MediaOp::ReadCell { cell, .. } => {
                if let Some(misdirection) = self.misdirected_cells.get_mut(cell) {
                    *cell = misdirection.next(*cell);
                }
                let failing = self.failing_cells.as_ref().filter(|(cells, _)| cells.contains(&cell.0));
                if let Some(&(_, errno)) = failing {
                    let cell: CellNumber = *cell;
                    let MediaOp::ReadCell { frame, .. } = op else { unreachable!("it is a read") };
                    let result = Err(MediaError::Cell { errno, cell });
                    self.failed.push(MediaCompletion { token, frame: Some(frame), result });
                    return Ok(());
                }
            }
            MediaOp::WriteCell { .. } => self.cells_written += 1,
            MediaOp::Flush => {
                self.flushes += 1;
                if let Some(errno) = self.flush_errno {
                    let page = PageAddress::new(BlockId(0), 0);
                    let result = Err(MediaError::Io { errno, page });
                    self.failed.push(MediaCompletion { token, frame: None, result });
                    return Ok(());
                }
            }
        }
        self.flash.submit(token, op, now)
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaCompletion>) {
        done.append(&mut self.failed);
        self.flash.poll(now, done);
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        self.flash.wait(now)
    }

    fn wait_until(&mut self, now: Nanos, until: Nanos) -> Nanos {
        if until > now {
            self.waits.push(until.since(now));
        }
        now.max(until)
    }

    fn in_flight(&self) -> usize {
        self.flash.in_flight() + self.failed.len()
    }
}
