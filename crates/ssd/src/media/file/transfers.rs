//! The transfers of a flash file on the ring, and the completion of programs and flushes.
//!
//! Input: finished programs, requested flushes. Output: completions. Invariant: a flush completes only after the erase
//! table is written and a sync that began after the flush request is done.

use super::super::{BlockId, MediaCompletion, MediaError, MediaToken, PageAddress, PageState};
use super::batches::PageBatch;
use super::space_wait::{ENOSPC, SpaceWait};
use super::{EIO, FileMedia, TransferRing};
use headwater_dma::frame::MediaFrame;
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::uring::FileTransfer;

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
    entries: Vec<Option<FlashTransfer>>,
    free: Vec<usize>,
}

impl FlashTransfers {
    pub(super) fn add(&mut self, flight: FlashTransfer) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[index] = Some(flight);
        index as u64
    }

    pub(super) fn take(&mut self, id: u64) -> Option<FlashTransfer> {
        let index = usize::try_from(id).ok()?;
        let flight = self.entries.get_mut(index)?.take()?;
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
    requested: Vec<MediaToken>,
    running: Vec<MediaToken>,
    failed: Option<i32>,
}

impl FlushRequests {
    pub(super) fn request(&mut self, token: MediaToken) {
        self.requested.push(token);
    }

    /// Returns true if a requested flush starts at the next poll.
    pub(super) fn is_due(&self) -> bool {
        self.step == FlushStep::Idle && !self.requested.is_empty()
    }
}

impl<R: TransferRing> FileMedia<R> {
    pub(super) fn start_flush(&mut self) {
        if !self.flush.is_due() {
            return;
        }
        std::mem::swap(&mut self.flush.requested, &mut self.flush.running);
        self.flush.failed = None;
        self.start_table_or_sync();
    }

    fn start_table_or_sync(&mut self) {
        let writes = self.table.take_writes(&self.layout, TABLE_WRITES_MAX);
        if writes.is_empty() {
            self.flush.step = FlushStep::Sync;
            self.submit_transfer(FlashTransfer::Sync, FileTransfer::SyncData);
            return;
        }
        self.flush.step = FlushStep::Table(writes.len());
        for write in writes {
            let offset = write.offset;
            let buffers = vec![write.buffer];
            self.submit_transfer(FlashTransfer::TablePiece, FileTransfer::Write { offset, buffers });
        }
    }

    pub(super) fn complete_programs(
        &mut self,
        first: PageAddress,
        tokens: Vec<MediaToken>,
        mut buffers: Vec<SectorBuffer>,
        result: Result<usize, i32>,
    ) {
        let pages = (first.page..).map(|page| PageAddress::new(first.block, page));
        // A write that was cut short met the end of the space, or another error, which each page alone shows.
        let is_short = result.is_ok_and(|moved| moved < buffers.iter().map(|buffer| buffer.len()).sum());
        if is_short && tokens.len() > 1 {
            for ((token, slot), page) in tokens.into_iter().zip(buffers).zip(pages) {
                self.start_programs(PageBatch { first: page, tokens: vec![token], slots: vec![slot] });
            }
            self.ring.kick();
            return;
        }
        let failed = if is_short { Some(ENOSPC) } else { transfer_error(result, &buffers) };
        if let Some(errno) = failed.filter(|&errno| SpaceWait::is_lack(errno)) {
            self.space.refuse(errno, first, self.now);
            self.space.hold(PageBatch { first, tokens, slots: buffers });
            return;
        }
        if failed.is_none() {
            self.space.note_success();
        }
        for ((&token, slot), page) in tokens.iter().zip(buffers.drain(..)).zip(pages) {
            self.completions.push_back(MediaCompletion {
                token,
                frame: MediaFrame::from_sectors(slot).ok(),
                result: match failed {
                    None => Ok(PageState::Programmed),
                    Some(errno) => Err(MediaError::Io { errno, page }),
                },
            });
        }
        if let Some(programs) = self.programs_in_flight.get_mut(first.block.index()) {
            *programs = programs.saturating_sub(u8::try_from(tokens.len()).unwrap_or(u8::MAX));
        }
        self.programs.recycle(tokens, buffers);
    }

    /// Submits the write of a batch.
    pub(super) fn start_programs(&mut self, batch: PageBatch) {
        let offset = self.layout.slot_offset(batch.first);
        let flight = FlashTransfer::Programs { first: batch.first, tokens: batch.tokens };
        self.submit_transfer(flight, FileTransfer::Write { offset, buffers: batch.slots });
    }

    pub(super) fn complete_table_piece(&mut self, failed: Option<i32>) {
        self.flush.failed = self.flush.failed.or(failed);
        if failed.is_none() {
            self.space.note_success();
        }
        let FlushStep::Table(left) = self.flush.step else {
            return;
        };
        if left > 1 {
            self.flush.step = FlushStep::Table(left - 1);
        } else if let Some(errno) = self.flush.failed.filter(|&errno| SpaceWait::is_lack(errno)) {
            // No sync was sent, so nothing is lost: the flush begins again when there may be space.
            self.space.refuse(errno, PageAddress::new(BlockId(0), 0), self.now);
            self.table.complete_writes(false);
            self.flush.step = FlushStep::Idle;
            let again = std::mem::take(&mut self.flush.running);
            self.flush.requested.splice(0..0, again);
        } else if self.flush.failed.is_some() {
            self.complete_flush(None);
        } else {
            self.start_table_or_sync();
            self.ring.kick();
        }
    }

    /// Completes the flush, with success or with its error.
    pub(super) fn complete_flush(&mut self, failed: Option<i32>) {
        let failed = self.flush.failed.take().or(failed);
        self.table.complete_writes(failed.is_none());
        self.flush.step = FlushStep::Idle;
        let page = PageAddress::new(BlockId(0), 0);
        for token in std::mem::take(&mut self.flush.running) {
            let result = match failed {
                None => Ok(PageState::Programmed),
                Some(errno) => Err(MediaError::Io { errno, page }),
            };
            self.complete(token, None, result);
        }
    }
}

/// Returns the error of a transfer; a transfer that did not move all of its bytes has one.
pub(super) fn transfer_error(result: Result<usize, i32>, buffers: &[SectorBuffer]) -> Option<i32> {
    let asked: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    match result {
        Ok(moved) if moved == asked => None,
        Ok(_) => Some(EIO),
        Err(errno) => Some(errno),
    }
}
