//! Flash in a file: the medium of a device that survives its process.
//!
//! Input: [`MediaOp`]s. Output: their completions, when the disk completes. Invariant: an erase writes nothing; a page
//! reads as blank only if it was not programmed since an erase by this process, or if its slot was never written. All
//! other bytes are returned as they are: the pages prove themselves. The file format is in `docs/formats/medium-2.md`;
//! a file of version 1 is only read.
//!
//! Consecutive pages that are submitted back to back become one write, or one read, at the next poll. Transfers use
//! io_uring and bypass the page cache, as far as the system supports each.

mod accessors;
mod backing;
mod batches;
mod cells;
mod error;
pub mod image;
mod layout;
mod space_wait;
mod startup;
mod superblock;
mod superblock_choice;
#[cfg(test)]
mod tests;
mod transfers;
mod upgrade;
mod version1;
mod zero_fill;
pub mod zones;

use super::{
    BlockId, FlashGeometry, Media, MediaCompletion, MediaError, MediaOp, MediaToken, MediaTraits,
    MediumVersion, NandRules, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress, PageState, RefusalReason,
    RefusedOp,
};
pub use backing::{HostRing, StartupFile, TransferRing};
use batches::{PageBatch, PageBatches};
use cells::{CellAccess, CellOperations};
pub use error::FileMediaError;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::is_zero;
use headwater_host::file::{DirectChoice, FileMode};
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::uring::{FileTransfer, FinishedTransfer, RegisteredCounters, RingKind, UringChoice};
use layout::FlashLayout;
use space_wait::SpaceWait;
pub use startup::{OpenAccess, write_new_file};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
pub use superblock::{BadSuperblock, FeatureBits, SuperblockFault};
use transfers::{FlashTransfer, FlashTransfers, FlushRequests, transfer_error};
pub(crate) use upgrade::{CellRecord, FileUpgrade, clear_version_1};
use version1::Version1Pages;
use zero_fill::{ZeroFill, ZeroTransfer};

/// Name of the file within the data directory.
pub const FLASH_FILE_NAME: &str = "flash";
/// Name of the file until it is complete and durable.
pub const UNFINISHED_FILE_NAME: &str = "flash.unfinished";

/// Most operations in flight.
const QUEUE_MAX: usize = 1_024;
/// Most transfers in flight: one for each operation, and room for a sync and zeros.
const RING_ENTRIES: usize = 2 * QUEUE_MAX;

/// The error number of a transfer that failed without one.
const EIO: i32 = 5;

/// The I/O path to the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Direct I/O past the page cache, or buffered I/O.
    pub direct: DirectChoice,
    /// The use of io_uring.
    pub uring: UringChoice,
    /// The zero fill of unused space.
    pub zero_fill_mode: ZeroFillMode,
}

/// The zero fill of space that was never written, before a commit needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroFillMode {
    /// In the background, a few megabytes ahead of use.
    #[default]
    Ahead,
    /// Not at all.
    Never,
}

/// Flash in a file, which the ring `R` transfers to and from.
#[derive(Debug)]
pub struct FileMedia<R = HostRing> {
    path: PathBuf,
    layout: FlashLayout,
    rules: NandRules,
    /// True for blocks with a known write pointer: erased since the file was opened or created.
    write_pointer_known: Vec<bool>,
    /// The state of the pages of a file of version 1.
    version1: Option<Version1Pages>,
    features: FeatureBits,
    bad_superblocks: Vec<BadSuperblock>,
    zero_fill: ZeroFill,
    zero_fill_mode: ZeroFillMode,
    programs: PageBatches,
    reads: PageBatches,
    cells: CellOperations,
    /// Number of programs in flight, by block.
    programs_in_flight: Vec<u8>,
    transfers: FlashTransfers,
    flush: FlushRequests,
    space: SpaceWait,
    /// The time of the last call.
    now: Nanos,
    completions: VecDeque<MediaCompletion>,
    in_flight: usize,
    finished: Vec<FinishedTransfer>,
    ring: R,
}

impl FileMedia {
    /// Returns true if a data directory holds a flash file.
    #[must_use]
    pub fn exists(directory: &Path) -> bool {
        directory.join(FLASH_FILE_NAME).exists()
    }

    /// Returns the mechanism that runs the transfers.
    #[must_use]
    pub fn ring_kind(&self) -> RingKind {
        self.ring.ring.kind()
    }

    /// Returns the mode of the file: through the page cache or past it.
    #[must_use]
    pub fn mode(&self) -> FileMode {
        self.ring.mode
    }

    /// Returns another handle to the file, for blocking access through the page cache. It shares the lock.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub fn startup_file(&self) -> Result<File, FileMediaError> {
        let handle = self.ring.lock.try_clone();
        handle.map_err(|source| FileMediaError::System { path: self.path.clone(), doing: "open", source })
    }
}

impl<R: TransferRing> FileMedia<R> {
    fn version(&self) -> MediumVersion {
        match self.version1 {
            Some(_) => MediumVersion::One,
            None => MediumVersion::Two,
        }
    }

    /// Returns true if the page is known to be blank without a read of the file.
    fn is_known_blank(&self, page: PageAddress) -> bool {
        if let Some(pages) = &self.version1 {
            return pages.is_unused(page.block);
        }
        let known = self.write_pointer_known.get(page.block.index()).is_some_and(|&known| known);
        known && usize::from(page.page) >= self.rules.programmed(page.block)
    }

    fn accept_read(
        &mut self,
        token: MediaToken,
        page: PageAddress,
        frame: MediaFrame,
    ) -> Result<(), RefusedOp> {
        if let Err(rule) = self.rules.read(page) {
            return Err(RefusedOp { op: MediaOp::Read { page, frame }, reason: RefusalReason::Rule(rule) });
        }
        self.in_flight += 1;
        if self.is_known_blank(page) {
            self.complete(token, Some(frame), Ok(PageState::Blank));
        } else {
            self.reads.push(token, page, frame.into_sectors());
        }
        Ok(())
    }

    /// Processes the transfers that the ring finished.
    fn reap(&mut self, now: Nanos) {
        let mut finished = std::mem::take(&mut self.finished);
        self.ring.poll(now, &mut finished);
        for transfer in finished.drain(..) {
            self.complete_transfer(transfer);
        }
        self.finished = finished;
    }

    /// Starts every waiting transfer that may start.
    fn start(&mut self) {
        if let Some(again) = self.space.take_due(self.now) {
            self.programs.put_back(again.programs);
            self.cells.put_back(again.cells);
            self.start_writes();
        }
        while self.ring.room() > 0
            && let Some(batch) = self.reads.take(|_| true)
        {
            self.start_reads(batch);
        }
        self.start_cells();
        self.ring.kick();
    }

    /// Starts the programs, the flush and the zeros that may start.
    fn start_writes(&mut self) {
        while self.ring.room() > 0 {
            let stretches = &self.zero_fill;
            let Some(batch) = self.programs.take(|batch| !stretches.must_wait(batch.first.block)) else {
                break;
            };
            self.start_programs(batch);
        }
        self.start_flush();
        if self.zero_fill_mode == ZeroFillMode::Ahead && self.ring.room() > 0 {
            self.start_zero_fill();
        }
    }

    fn start_zero_fill(&mut self) {
        match self.zero_fill.take_transfer() {
            Some(ZeroTransfer::Check { offset, buffer }) => {
                let buffers = vec![buffer];
                self.submit_transfer(FlashTransfer::ZeroCheck, FileTransfer::Read { offset, buffers });
            }
            Some(ZeroTransfer::Write { offset, buffer }) => {
                let buffers = vec![buffer];
                self.submit_transfer(FlashTransfer::Zeros, FileTransfer::Write { offset, buffers });
            }
            None => {}
        }
    }

    fn start_reads(&mut self, batch: PageBatch) {
        let offset = self.layout.slot_offset(batch.first);
        let flight = FlashTransfer::Reads { first: batch.first, tokens: batch.tokens };
        let buffers = batch.slots;
        self.submit_transfer(flight, FileTransfer::Read { offset, buffers });
    }

    /// Submits a transfer to the ring; if the ring has no room, the transfer fails at once.
    fn submit_transfer(&mut self, flight: FlashTransfer, transfer: FileTransfer) {
        let id = self.transfers.add(flight);
        if let Err(rejected) = self.ring.submit(id, transfer) {
            self.complete_transfer(rejected.transfer.into_failed(id, EIO));
        }
    }

    /// Processes a finished transfer.
    fn complete_transfer(&mut self, finished: FinishedTransfer) {
        let FinishedTransfer { id, buffers, result, .. } = finished;
        match self.transfers.take(id) {
            Some(FlashTransfer::Reads { first, tokens }) => {
                self.complete_reads(first, tokens, buffers, result);
            }
            Some(FlashTransfer::Programs { first, tokens }) => {
                self.complete_programs(first, tokens, buffers, result);
            }
            Some(FlashTransfer::CellReads(run)) => self.complete_cell_reads(run, buffers, result),
            Some(FlashTransfer::CellWrite(operation)) => self.complete_cell_write(operation, buffers, result),
            Some(FlashTransfer::Sync) => self.complete_flush(result.err()),
            Some(FlashTransfer::ZeroCheck) => {
                let arrived = transfer_error(result, &buffers).is_none();
                self.zero_fill.complete_check(buffers.into_iter().next().filter(|_| arrived));
            }
            Some(FlashTransfer::Zeros) => {
                let arrived = transfer_error(result, &buffers).is_none();
                self.zero_fill.complete_write(buffers.into_iter().next().filter(|_| arrived));
            }
            None => {}
        }
    }

    fn complete_reads(
        &mut self,
        first: PageAddress,
        mut tokens: Vec<MediaToken>,
        mut buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = transfer_error(result, &buffers);
        let alone = tokens.len() == 1;
        let pages = (first.page..).map(|page| PageAddress::new(first.block, page));
        for ((token, slot), page) in tokens.drain(..).zip(buffers.drain(..)).zip(pages) {
            let result = match failed {
                None => Ok(self.found_state(page, &slot)),
                // One unreadable page must not fail its neighbours: each page is read again alone.
                Some(_) if !alone => {
                    self.start_reads(PageBatch { first: page, tokens: vec![token], slots: vec![slot] });
                    continue;
                }
                // The file ends within the slot, or the disk cannot read it.
                Some(errno) => Err(MediaError::Io { errno, page }),
            };
            self.complete(token, MediaFrame::from_sectors(slot).ok(), result);
        }
        self.reads.recycle(tokens, buffers);
    }

    /// Returns the state of a page from the bytes of its slot.
    fn found_state(&mut self, page: PageAddress, slot: &[u8]) -> PageState {
        let programmed = match &self.version1 {
            Some(pages) => pages.is_programmed(page, slot),
            None => !is_zero(&slot[..PAGE_DATA_BYTES + PAGE_SPARE_BYTES]),
        };
        if programmed {
            self.zero_fill.note_used(page.block);
            PageState::Programmed
        } else {
            PageState::Blank
        }
    }

    fn accept_program(
        &mut self,
        token: MediaToken,
        page: PageAddress,
        frame: MediaFrame,
    ) -> Result<(), RefusedOp> {
        if let Err(rule) = self.rules.program(page) {
            return Err(RefusedOp {
                op: MediaOp::Program { page, frame },
                reason: RefusalReason::Rule(rule),
            });
        }
        if page.page == 0 && self.zero_fill_mode == ZeroFillMode::Ahead {
            self.zero_fill.note_first_program(page.block);
        }
        self.in_flight += 1;
        self.programs_in_flight[page.block.index()] += 1;
        let mut slot = frame.into_sectors();
        slot[PAGE_DATA_BYTES + PAGE_SPARE_BYTES..].fill(0);
        self.programs.push(token, page, slot);
        Ok(())
    }

    fn accept_erase(&mut self, token: MediaToken, block: BlockId) -> Result<(), RefusedOp> {
        let refused = |reason| RefusedOp { op: MediaOp::Erase { block }, reason };
        // A program in flight could land after a program of the block's next life: the caller retries after it completed.
        if self.programs_in_flight.get(block.index()).is_some_and(|&programs| programs > 0) {
            return Err(refused(RefusalReason::QueueFull));
        }
        self.rules.erase(block).map_err(|rule| refused(RefusalReason::Rule(rule)))?;
        if let Some(known) = self.write_pointer_known.get_mut(block.index()) {
            *known = true;
        }
        self.in_flight += 1;
        self.complete(token, None, Ok(PageState::Programmed));
        Ok(())
    }

    fn complete(
        &mut self,
        token: MediaToken,
        frame: Option<MediaFrame>,
        result: Result<PageState, MediaError>,
    ) {
        self.completions.push_back(MediaCompletion { token, frame, result });
    }
}

impl<R: TransferRing> Media for FileMedia<R> {
    fn geometry(&self) -> FlashGeometry {
        self.layout.geometry
    }

    fn traits(&self) -> MediaTraits {
        MediaTraits {
            volatile_cache: true,
            // A slot of nine sectors shares a physical sector (eight sectors) of the disk with the next slot.
            guard_pages: 1,
            queue_max: QUEUE_MAX,
            addressable: false,
            version: self.version(),
            has_extents: self.features.incompatible & FeatureBits::EXTENTS != 0,
            cells: self.layout.cells,
            checksum_seed: match self.version() {
                MediumVersion::One => 0,
                MediumVersion::Two => self.layout.checksum_seed(),
            },
        }
    }

    fn submit(&mut self, token: MediaToken, op: MediaOp, _now: Nanos) -> Result<(), RefusedOp> {
        if self.in_flight >= QUEUE_MAX {
            return Err(RefusedOp { op, reason: RefusalReason::QueueFull });
        }
        match op {
            MediaOp::Read { page, frame } => self.accept_read(token, page, frame),
            MediaOp::Program { page, frame } => self.accept_program(token, page, frame),
            MediaOp::Erase { block } => self.accept_erase(token, block),
            MediaOp::ReadCell { cell, frame } => self.accept_cell(token, (cell, CellAccess::Read), frame),
            MediaOp::WriteCell { cell, frame } => self.accept_cell(token, (cell, CellAccess::Write), frame),
            MediaOp::Flush => {
                self.in_flight += 1;
                self.flush.request(token);
                Ok(())
            }
        }
    }

    fn allow_blocking_flush(&mut self, is_allowed: bool) {
        self.flush.allow_blocking(is_allowed);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaCompletion>) {
        self.now = now;
        self.reap(now);
        self.start();
        self.in_flight -= self.completions.len();
        done.extend(self.completions.drain(..));
    }

    fn wait(&mut self, mut now: Nanos) -> Nanos {
        while self.completions.is_empty() && self.in_flight > 0 {
            self.now = now;
            self.start();
            if self.ring.in_flight() > 0 {
                now = self.ring.wait(now);
                self.reap(now);
            } else if let Some(at) = self.space.retry_at() {
                return self.wait_until(now, at);
            } else {
                break;
            }
        }
        now
    }

    fn wait_until(&mut self, now: Nanos, until: Nanos) -> Nanos {
        if self.ring.virtual_now().is_none() {
            Clock::sleep(until.since(now));
        }
        now.max(until)
    }

    fn lack_of_space(&self) -> Option<MediaError> {
        self.space.refused()
    }

    fn damaged_copies(&self) -> u64 {
        self.bad_superblocks.len() as u64
    }

    fn registered_memory(&self) -> RegisteredCounters {
        self.ring.registered_memory()
    }

    fn next_event(&self) -> Option<Nanos> {
        if self.space.retry_at().is_some() && self.ring.in_flight() == 0 {
            return self.space.retry_at();
        }
        let now = self.ring.virtual_now()?;
        // A batch that waits for zeros waits for a transfer; without one in flight, whatever waits starts at the next
        // poll.
        let waits = || {
            !self.completions.is_empty()
                || self.programs.has_waiting()
                || self.reads.has_waiting()
                || self.cells.has_waiting()
                || self.flush.is_due()
        };
        self.ring.next_event().or_else(|| waits().then_some(now))
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn file_place(&self, page: PageAddress) -> Option<(&Path, u64)> {
        Some((&self.path, self.layout.slot_offset(page)))
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }
}
