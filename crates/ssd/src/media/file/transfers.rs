//! The transfers of a flash file on the ring, and the completion of programs and flushes.
//!
//! Input: finished programs, requested flushes. Output: completions. Invariant: a flush completes only after a sync that
//! began after the flush request is done.

use super::super::{BlockId, MediaCompletion, MediaError, MediaToken, PageAddress, PageState};
use super::batches::PageBatch;
use super::cells::CellOperation;
use super::space_wait::{ENOSPC, SpaceWait};
use super::{EIO, FileMedia, TransferRing};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::uring::FileTransfer;

/// The purpose of a transfer on the ring.
#[derive(Debug)]
pub(super) enum FlashTransfer {
    Reads {
        first: PageAddress,
        tokens: Vec<MediaToken>,
    },
    Programs {
        first: PageAddress,
        tokens: Vec<MediaToken>,
    },
    /// Reads of cells that lie behind each other.
    CellReads(Vec<CellOperation>),
    CellWrite(CellOperation),
    Sync,
    /// A read that finds out if zeros may be written.
    ZeroCheck,
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

/// The flushes: requested ones, and those that the running flush completes.
#[derive(Debug, Default)]
pub(super) struct FlushRequests {
    requested: Vec<MediaToken>,
    /// Those that the running sync completes; a sync runs if there is one.
    running: Vec<MediaToken>,
    /// True if the caller allows that its thread waits for a flush.
    is_blocking_allowed: bool,
    /// Number of flushes that no thread waits for although it may, because one took too long.
    held_back: u32,
    /// True if one took so long that no thread waits for a flush any more, as long as the file is open.
    is_stuck: bool,
    /// Number of flushes that the calling thread waited for.
    blocking: u64,
}

/// The longest time for which a thread may wait for a flush. After a longer one it does not wait for the next
/// [`HELD_BACK`], and after one of [`STUCK_MIN`] for none any more.
const BLOCKING_MAX: Nanos = Nanos::from_micros(500);
const HELD_BACK: u32 = 1_024;
const STUCK_MIN: Nanos = Nanos::from_millis(10);

impl FlushRequests {
    pub(super) fn request(&mut self, token: MediaToken) {
        self.requested.push(token);
    }

    pub(super) fn allow_blocking(&mut self, is_allowed: bool) {
        self.is_blocking_allowed = is_allowed;
    }

    /// Returns true if the calling thread waits for the flush that starts now.
    pub(super) fn is_blocking(&mut self) -> bool {
        let is_held_back = self.held_back > 0;
        self.held_back = self.held_back.saturating_sub(1);
        self.is_blocking_allowed && !is_held_back && !self.is_stuck
    }

    /// Notes that the calling thread waited for a flush.
    pub(super) fn note_blocking(&mut self, elapsed: Nanos) {
        self.blocking += 1;
        if elapsed > BLOCKING_MAX {
            self.held_back = HELD_BACK;
            self.is_stuck |= elapsed >= STUCK_MIN;
        }
    }

    /// Returns the number of flushes that the calling thread waited for.
    pub(super) fn blocking(&self) -> u64 {
        self.blocking
    }

    /// Returns true if a requested flush starts at the next poll.
    pub(super) fn is_due(&self) -> bool {
        self.running.is_empty() && !self.requested.is_empty()
    }
}

impl<R: TransferRing> FileMedia<R> {
    pub(super) fn start_flush(&mut self) {
        if !self.flush.is_due() {
            return;
        }
        std::mem::swap(&mut self.flush.requested, &mut self.flush.running);
        if self.flush.is_blocking()
            && let Some((result, elapsed)) = self.ring.sync_now()
        {
            self.flush.note_blocking(elapsed);
            return self.complete_flush(result.err());
        }
        self.submit_transfer(FlashTransfer::Sync, FileTransfer::SyncData);
    }

    /// Submits the write of a batch.
    pub(super) fn start_programs(&mut self, batch: PageBatch) {
        let offset = self.layout.slot_offset(batch.first);
        let flight = FlashTransfer::Programs { first: batch.first, tokens: batch.tokens };
        self.submit_transfer(flight, FileTransfer::Write { offset, buffers: batch.slots });
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
            self.space.refuse(MediaError::Io { errno, page: first }, self.now);
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

    /// Completes the flush, with success or with its error.
    pub(super) fn complete_flush(&mut self, failed: Option<i32>) {
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
