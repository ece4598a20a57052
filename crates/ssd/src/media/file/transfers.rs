//! The transfers of a flash file on the ring: their start and their completion.
//!
//! Input: accepted operations, and finished transfers. Output: completions. Invariant: every accepted operation
//! completes once; a flush completes only after the erase table is written and a sync that began after the flush
//! request is done.

use super::super::{BlockId, MediaCompletion, MediaError, MediaToken, PageAddress, PageState};
use super::batches::PageBatch;
use super::{FileMedia, ZeroFillMode};
use headwater_dma::frame::MediaFrame;
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::uring::{FileTransfer, FinishedTransfer};

/// The error number of a transfer that failed without one.
const EIO: i32 = 5;

/// Pages of the erase table that are written at a time.
const TABLE_WRITES_MAX: usize = 64;

/// The purpose of a transfer on the ring.
#[derive(Debug)]
pub(super) enum FlashTransfer {
    Reads { first: PageAddress, tokens: Vec<MediaToken> },
    Programs { first: PageAddress, tokens: Vec<MediaToken> },
    TablePiece,
    Sync,
    Zeros,
}

/// Transfers on the ring, by their id there.
#[derive(Debug, Default)]
pub(super) struct FlashTransfers {
    flights: Vec<Option<FlashTransfer>>,
    free: Vec<usize>,
}

impl FlashTransfers {
    fn add(&mut self, flight: FlashTransfer) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[index] = Some(flight);
        index as u64
    }

    fn take(&mut self, id: u64) -> Option<FlashTransfer> {
        let index = usize::try_from(id).ok()?;
        let flight = self.flights.get_mut(index)?.take()?;
        self.free.push(index);
        Some(flight)
    }
}

/// The step of the running flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FlushStep {
    /// No flush runs.
    #[default]
    Idle,
    /// Pages of the erase table are being written; the number of writes not yet complete.
    Table(usize),
    /// The sync runs.
    Sync,
}

/// The flushes: requested ones, and those that the running flush completes.
#[derive(Debug, Default)]
pub(super) struct FlushRequests {
    step: FlushStep,
    asked: Vec<MediaToken>,
    running: Vec<MediaToken>,
    failed: Option<i32>,
}

impl FlushRequests {
    pub(super) fn ask(&mut self, token: MediaToken) {
        self.asked.push(token);
    }
}

impl FileMedia {
    /// Processes the transfers that the ring finished.
    pub(super) fn reap(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        self.ring.poll(&mut finished);
        for transfer in finished.drain(..) {
            self.land(transfer);
        }
        self.finished = finished;
    }

    /// Starts every waiting transfer that may start.
    pub(super) fn start(&mut self) {
        while self.ring.room() > 0 {
            let stretches = &self.stretches;
            let Some(batch) = self.programs.take(|batch| !stretches.must_wait(batch.first.block)) else {
                break;
            };
            let offset = self.layout.slot_offset(batch.first);
            let flight = FlashTransfer::Programs { first: batch.first, tokens: batch.tokens };
            let buffers = batch.slots;
            self.launch(flight, FileTransfer::Write { offset, buffers });
        }
        while self.ring.room() > 0
            && let Some(batch) = self.reads.take(|_| true)
        {
            self.start_reads(batch);
        }
        self.start_flush();
        if self.prepare == ZeroFillMode::Ahead
            && self.ring.room() > 0
            && let Some(zeros) = self.stretches.take_write()
        {
            let buffers = vec![zeros.buffer];
            let offset = zeros.offset;
            self.launch(FlashTransfer::Zeros, FileTransfer::Write { offset, buffers });
        }
        self.ring.kick();
    }

    fn start_reads(&mut self, batch: PageBatch) {
        let offset = self.layout.slot_offset(batch.first);
        let flight = FlashTransfer::Reads { first: batch.first, tokens: batch.tokens };
        let buffers = batch.slots;
        self.launch(flight, FileTransfer::Read { offset, buffers });
    }

    /// Submits a transfer to the ring; if the ring has no room, the transfer fails at once.
    fn launch(&mut self, flight: FlashTransfer, transfer: FileTransfer) {
        let id = self.flights.add(flight);
        if let Err(rejected) = self.ring.submit(id, transfer) {
            self.land(rejected.transfer.failed(id, EIO));
        }
    }

    fn start_flush(&mut self) {
        if self.flush.step != FlushStep::Idle || self.flush.asked.is_empty() {
            return;
        }
        std::mem::swap(&mut self.flush.asked, &mut self.flush.running);
        self.flush.failed = None;
        self.start_table_or_sync();
    }

    fn start_table_or_sync(&mut self) {
        let writes = self.table.take_writes(&self.layout, TABLE_WRITES_MAX);
        if writes.is_empty() {
            self.flush.step = FlushStep::Sync;
            self.launch(FlashTransfer::Sync, FileTransfer::SyncData);
            return;
        }
        self.flush.step = FlushStep::Table(writes.len());
        for write in writes {
            let offset = write.offset;
            let buffers = vec![write.buffer];
            self.launch(FlashTransfer::TablePiece, FileTransfer::Write { offset, buffers });
        }
    }

    /// Processes a finished transfer.
    fn land(&mut self, finished: FinishedTransfer) {
        let FinishedTransfer { id, buffers, result, .. } = finished;
        match self.flights.take(id) {
            Some(FlashTransfer::Reads { first, tokens }) => self.land_reads(first, tokens, buffers, result),
            Some(FlashTransfer::Programs { first, tokens }) => {
                self.land_programs(first, tokens, buffers, result)
            }
            Some(FlashTransfer::TablePiece) => self.land_table_piece(whole(result, &buffers)),
            Some(FlashTransfer::Sync) => self.land_sync(result.err()),
            Some(FlashTransfer::Zeros) => {
                let arrived = whole(result, &buffers).is_none();
                self.stretches.written(buffers.into_iter().next().filter(|_| arrived));
            }
            None => {}
        }
    }

    fn land_reads(
        &mut self,
        first: PageAddress,
        mut tokens: Vec<MediaToken>,
        mut buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = whole(result, &buffers);
        let alone = tokens.len() == 1;
        let pages = (first.page..).map(|page| PageAddress::new(first.block, page));
        for ((token, slot), page) in tokens.drain(..).zip(buffers.drain(..)).zip(pages) {
            let result = match failed {
                None => Ok(self.state_of(page, &slot)),
                // One unreadable page must not fail its neighbours: each page is read again alone.
                Some(_) if !alone => {
                    self.start_reads(PageBatch { first: page, tokens: vec![token], slots: vec![slot] });
                    continue;
                }
                // The file ends within the slot, or the disk cannot read it.
                Some(EIO) => Err(MediaError::Unreadable { page }),
                Some(errno) => Err(MediaError::Io { errno, page }),
            };
            self.answer(token, MediaFrame::from_sectors(slot).ok(), result);
        }
        self.reads.recycle(tokens, buffers);
    }

    /// Returns the state of a page from the bytes of its slot.
    fn state_of(&self, page: PageAddress, slot: &[u8]) -> PageState {
        let generation = self.table.generation(page.block);
        if generation != 0 && self.layout.is_programmed(page, generation, slot) {
            PageState::Programmed
        } else {
            PageState::Blank
        }
    }

    fn land_programs(
        &mut self,
        first: PageAddress,
        tokens: Vec<MediaToken>,
        mut buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let failed = whole(result, &buffers);
        let pages = (first.page..).map(|page| PageAddress::new(first.block, page));
        for ((&token, slot), page) in tokens.iter().zip(buffers.drain(..)).zip(pages) {
            self.answers.push_back(MediaCompletion {
                token,
                frame: MediaFrame::from_sectors(slot).ok(),
                result: match failed {
                    None => Ok(PageState::Programmed),
                    Some(errno) => Err(MediaError::Io { errno, page }),
                },
            });
        }
        if let Some(programs) = self.programming.get_mut(first.block.index()) {
            *programs = programs.saturating_sub(u8::try_from(tokens.len()).unwrap_or(u8::MAX));
        }
        self.programs.recycle(tokens, buffers);
    }

    fn land_table_piece(&mut self, failed: Option<i32>) {
        self.flush.failed = self.flush.failed.or(failed);
        let FlushStep::Table(left) = self.flush.step else {
            return;
        };
        if left > 1 {
            self.flush.step = FlushStep::Table(left - 1);
        } else if self.flush.failed.is_some() {
            self.land_sync(None);
        } else {
            self.start_table_or_sync();
            self.ring.kick();
        }
    }

    /// Completes the flush, with success or with its error.
    fn land_sync(&mut self, failed: Option<i32>) {
        let failed = self.flush.failed.take().or(failed);
        self.table.settle(failed.is_none());
        self.flush.step = FlushStep::Idle;
        let page = PageAddress::new(BlockId(0), 0);
        for token in std::mem::take(&mut self.flush.running) {
            let result = match failed {
                None => Ok(PageState::Programmed),
                Some(errno) => Err(MediaError::Io { errno, page }),
            };
            self.answer(token, None, result);
        }
    }
}

/// Returns the error of a transfer; a transfer that did not move all of its bytes has one.
fn whole(result: Result<usize, i32>, buffers: &[SectorBuffer]) -> Option<i32> {
    let asked: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    match result {
        Ok(moved) if moved == asked => None,
        Ok(_) => Some(EIO),
        Err(errno) => Some(errno),
    }
}
