//! The log on its medium: programs, reads and erases under way, and the device DRAM that their pages pass through.
//!
//! Input: records to append, pages to read, blocks to erase, and the medium's completions. Output: addresses of
//! records, bytes of pages, and the completions that a stage above acts on ([`FlashCompletion`]). Invariant: the log,
//! the block table, the reads and the page cache change together, so that no page of an erased block is shown; the
//! first failure of a program, an erase or a flush is kept.

use crate::command::Sequence;
use crate::config::{FailedOperation, FailedWrite};
use crate::log::blocks::BlockTable;
use crate::log::page_cache::PageCache;
use crate::log::page_reads::{EndedRead, PageReads, ReadWaiter};
use crate::log::record::{RecordAddress, RecordHeader};
use crate::log::{ChecksumMode, RecordLog, RecordSource};
use crate::media::geometry::{BlockId, FlashGeometry, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaCompletion, MediaError, MediaOp, MediaTraits, RefusedOp};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;

/// Most pieces of a record that is moved without an intermediate copy, on a medium that shows its pages.
pub(crate) const DIRECT_PIECES_MAX: usize = 3;

/// A part of a page: the page, the offset in it and the length.
pub(crate) type PageSpan = (PageAddress, usize, usize);

/// A completion of the medium, after the log has acted on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlashCompletion {
    /// A read, or a program of the log: nothing is left to do.
    Page,
    /// A program of a page of a checkpoint.
    CheckpointPage,
    /// A flush.
    Flush,
    /// An erase, which the block table has counted.
    Erase,
}

/// The medium, the log on it, and the pages between both.
#[derive(Debug)]
pub(crate) struct FlashLog<M> {
    media: M,
    geometry: FlashGeometry,
    traits: MediaTraits,
    page_cache: PageCache,
    blocks: BlockTable,
    log: RecordLog,
    reads: PageReads,
    /// Error of a failed program, erase or flush. From then on nothing is guaranteed, so no command is accepted.
    failure: Option<MediaError>,
    failed_write: Option<FailedWrite>,
    /// Reads that failed, and the last error of one.
    read_errors: u64,
    last_read_error: Option<MediaError>,
    /// Room for the completions of one poll.
    completions: Vec<MediaCompletion>,
}

impl<M: Media> FlashLog<M> {
    /// Makes an empty log on a medium, with device DRAM of `frames_max` frames from a pool.
    pub(crate) fn new(media: M, frames_max: usize, pool: Pool) -> Self {
        let (geometry, traits) = (media.geometry(), media.traits());
        Self {
            geometry,
            traits,
            page_cache: PageCache::new(geometry, frames_max, pool),
            blocks: BlockTable::new(geometry),
            log: RecordLog::new(traits.guard_pages, traits.addressable),
            reads: PageReads::default(),
            failure: None,
            failed_write: None,
            read_errors: 0,
            last_read_error: None,
            completions: Vec::new(),
            media,
        }
    }

    /// Returns the medium.
    pub(crate) fn media(&self) -> &M {
        &self.media
    }

    /// Returns the medium, for a wait or an injected fault.
    pub(crate) fn media_mut(&mut self) -> &mut M {
        &mut self.media
    }

    /// Returns the medium and drops the rest.
    pub(crate) fn into_media(self) -> M {
        self.media
    }

    /// Returns the shape of the medium.
    pub(crate) fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    /// Returns the guarantees of the medium.
    #[inline]
    pub(crate) fn traits(&self) -> MediaTraits {
        self.traits
    }

    /// Returns the block table.
    #[inline]
    pub(crate) fn blocks(&self) -> &BlockTable {
        &self.blocks
    }

    /// Returns the block table, for the accounts of live records and tombstones.
    #[inline]
    pub(crate) fn blocks_mut(&mut self) -> &mut BlockTable {
        &mut self.blocks
    }

    /// Returns the log.
    #[inline]
    pub(crate) fn log(&self) -> &RecordLog {
        &self.log
    }

    /// Returns the device DRAM.
    pub(crate) fn page_cache(&self) -> &PageCache {
        &self.page_cache
    }

    /// Returns the failure after which nothing is guaranteed, if there was one.
    #[inline]
    pub(crate) fn failure(&self) -> Option<MediaError> {
        self.failure
    }

    /// Returns the number of reads that failed, and the last error of one.
    pub(crate) fn read_errors(&self) -> (u64, Option<MediaError>) {
        (self.read_errors, self.last_read_error)
    }

    /// Returns the operation that failed then, with its place and its error.
    pub(crate) fn failed_write(&self) -> Option<FailedWrite> {
        self.failed_write
    }

    /// Records a failure of the medium; the first one is kept.
    pub(crate) fn fail(&mut self, operation: FailedOperation, error: MediaError) {
        self.failure.get_or_insert(error);
        self.failed_write.get_or_insert(FailedWrite::new(operation, error));
    }

    /// Returns the bytes of a page (data, then spare) if they are in memory that the CPU can address.
    #[inline]
    pub(crate) fn page(&self, page: PageAddress) -> Option<&[u8]> {
        let open = self.log.peek(page);
        if self.traits.addressable {
            // Device DRAM holds a page of an addressable medium only if the medium does not show it.
            return open.or_else(|| self.media.view(page)).or_else(|| self.page_cache.peek(page));
        }
        open.or_else(|| self.page_cache.peek(page))
    }

    /// Returns the last sequence given out.
    #[inline]
    pub(crate) fn last_sequence(&self) -> Sequence {
        Sequence(self.log.sequence_next().0 - 1)
    }

    /// Returns the order up to which every block has got its first page.
    pub(crate) fn begun_order(&self) -> u64 {
        self.log.begun_order(&self.blocks)
    }

    /// Returns true if no operation is in flight and no page waits for the medium.
    pub(crate) fn is_idle(&self) -> bool {
        self.media.in_flight() == 0 && self.reads.is_empty() && self.log.backlog() == 0
    }

    /// Checks that an append of this many bytes finds its frames, and its blocks beside `reserve` ready ones. Returns
    /// the number of blocks that it may open if not.
    pub(crate) fn check_room(&mut self, bytes: usize, reserve: usize) -> Result<(), usize> {
        let blocks = self.log.blocks_for(bytes);
        let frames = self.log.frames_for(bytes) + usize::from(self.traits.guard_pages);
        if (blocks > 0 && self.blocks.ready_count() < blocks + reserve) || !self.page_cache.reserve(frames) {
            return Err(blocks);
        }
        Ok(())
    }

    /// Makes sure that this many frames can be taken now.
    pub(crate) fn reserve_frames(&mut self, frames: usize) -> bool {
        self.page_cache.reserve(frames)
    }

    /// Appends a record with the next sequence, and returns its address. The caller checked the room.
    pub(crate) fn append_new(
        &mut self,
        header: &RecordHeader,
        payload: &[RecordSource<'_>],
    ) -> RecordAddress {
        assert!(header.sequence == self.log.sequence_next(), "a new record has the sequence of an older one");
        let address = self.append_copy(header, ChecksumMode::Compute, payload);
        self.log.advance_sequence();
        address
    }

    /// Appends a record that keeps its sequence, and returns its address. The caller checked the room.
    pub(crate) fn append_copy(
        &mut self,
        header: &RecordHeader,
        checksum: ChecksumMode,
        payload: &[RecordSource<'_>],
    ) -> RecordAddress {
        self.log.append(&mut self.page_cache, &mut self.blocks, header, checksum, payload)
    }

    /// Appends a record whose payload the medium shows in place; `None` if it does not show one of the pieces.
    pub(crate) fn append_viewed(
        &mut self,
        header: &RecordHeader,
        checksum: ChecksumMode,
        spans: &[Option<PageSpan>; DIRECT_PIECES_MAX],
    ) -> Option<RecordAddress> {
        let pieces = viewed_pieces(&self.media, spans)?;
        Some(self.log.append(&mut self.page_cache, &mut self.blocks, header, checksum, &pieces))
    }

    /// Closes the open page, with guard pages after it. Returns the barrier of everything appended so far.
    pub(crate) fn seal(&mut self) -> u64 {
        self.log.seal(&mut self.page_cache, &mut self.blocks)
    }

    /// Fills a page with the current durable stamp.
    pub(crate) fn fill_stamp_page(&mut self) {
        self.log.fill_stamp_page(&mut self.page_cache, &mut self.blocks);
    }

    /// Sets the durable stamp of later pages.
    pub(crate) fn set_durable_stamp(&mut self, durable: Sequence, order: u64) {
        self.log.set_durable_stamp(durable, order);
    }

    /// Closes the open block, full or not.
    pub(crate) fn finish_block(&mut self) {
        self.log.finish_block(&mut self.page_cache, &mut self.blocks);
    }

    /// Continues after recovery with the next sequence and the highest block order that recovery accepted.
    pub(crate) fn continue_after_recovery(&mut self, sequence_next: Sequence, accepted_order: u64) {
        self.log.continue_after_recovery(sequence_next, accepted_order);
    }

    /// Adds a waiter for a page, and queues a read of the page if none is in flight.
    pub(crate) fn request_page(&mut self, page: PageAddress, waiter: ReadWaiter) {
        self.reads.request(page, waiter, &self.blocks);
    }

    /// Unpins a page that a waiter has used.
    pub(crate) fn unpin(&mut self, page: PageAddress) {
        self.page_cache.unpin(page);
    }

    /// Takes a frame of device DRAM; `None` if every frame is in use.
    pub(crate) fn take_frame(&mut self) -> Option<MediaFrame> {
        self.page_cache.take_frame()
    }

    /// Returns the medium and the device DRAM, for reads that wait for each page.
    pub(crate) fn reading(&mut self) -> (&mut M, &mut PageCache) {
        (&mut self.media, &mut self.page_cache)
    }

    /// Submits filled pages to the medium. Returns true if any was submitted.
    pub(crate) fn submit_programs(&mut self, now: Nanos) -> bool {
        self.log.submit(&mut self.media, &mut self.page_cache, now)
    }

    /// Submits queued reads to the medium. Returns true if any was submitted.
    pub(crate) fn submit_reads(&mut self, now: Nanos) -> bool {
        self.reads.submit(&mut self.media, &mut self.page_cache, now)
    }

    /// Submits an erase. Returns false if the medium accepts none now.
    pub(crate) fn submit_erase(&mut self, block: BlockId, now: Nanos) -> bool {
        if !mutant(Mutant::ErasedPagesCached) {
            self.page_cache.drop_block(block);
        }
        self.media.submit(MediaPurpose::Erase(block).encode(), MediaOp::Erase { block }, now).is_ok()
    }

    /// Submits a flush, which makes every completed erase durable. Returns false if the medium accepts none now.
    pub(crate) fn submit_flush(&mut self, now: Nanos) -> bool {
        let accepted = self.media.submit(MediaPurpose::Flush.encode(), MediaOp::Flush, now).is_ok();
        if accepted {
            self.blocks.begin_flush();
        }
        accepted
    }

    /// Opens a ready block for a checkpoint; `None` if none is ready.
    pub(crate) fn open_checkpoint_block(&mut self) -> Option<BlockId> {
        self.blocks.open(self.log.sequence_next(), true)
    }

    /// Submits the program of a page of a checkpoint. Returns false, and keeps the frame, if the medium accepts none
    /// now.
    ///
    /// # Panics
    /// The medium returns another operation than the one that it rejects.
    pub(crate) fn program_checkpoint_page(
        &mut self,
        page: PageAddress,
        frame: MediaFrame,
        now: Nanos,
    ) -> bool {
        let token = MediaPurpose::Checkpoint.encode();
        match self.media.submit(token, MediaOp::Program { page, frame }, now) {
            Ok(()) => true,
            Err(RefusedOp { op: MediaOp::Program { frame, .. }, .. }) => {
                self.page_cache.return_frame(frame);
                false
            }
            Err(RefusedOp { op, .. }) => unreachable!("the medium rejected {page} and returned {op:?}"),
        }
    }

    /// Takes the completions that are ready. The caller passes each to [`complete`](Self::complete), in order, and then
    /// returns the buffer with [`return_buffer`](Self::return_buffer).
    pub(crate) fn poll(&mut self, now: Nanos) -> Vec<MediaCompletion> {
        let mut completions = std::mem::take(&mut self.completions);
        self.media.poll(now, &mut completions);
        completions
    }

    /// Processes one completion, and appends the end of a read to `awake`, once for each waiter.
    pub(crate) fn complete(
        &mut self,
        completion: MediaCompletion,
        awake: &mut Vec<EndedRead>,
    ) -> FlashCompletion {
        let purpose = MediaPurpose::decode(completion.token);
        if let MediaPurpose::Read(page) = purpose {
            if let Err(error) = completion.result {
                self.read_errors += 1;
                self.last_read_error = Some(error);
            }
            self.reads.complete(page, completion, &mut self.page_cache, &self.blocks, awake);
            return FlashCompletion::Page;
        }
        if let Err(error) = completion.result {
            let operation = match purpose {
                MediaPurpose::Read(_) | MediaPurpose::Program(_) | MediaPurpose::Checkpoint => {
                    FailedOperation::Program
                }
                MediaPurpose::Flush => FailedOperation::Flush,
                MediaPurpose::Erase(_) => FailedOperation::Erase,
            };
            self.fail(operation, error);
        }
        match purpose {
            MediaPurpose::Read(_) => FlashCompletion::Page,
            MediaPurpose::Program(id) => {
                self.log.complete_program(id, completion.frame, &mut self.page_cache);
                FlashCompletion::Page
            }
            MediaPurpose::Checkpoint => {
                if let Some(frame) = completion.frame {
                    self.page_cache.return_frame(frame);
                }
                FlashCompletion::CheckpointPage
            }
            MediaPurpose::Flush => FlashCompletion::Flush,
            MediaPurpose::Erase(block) => {
                self.blocks.complete_erase(block);
                FlashCompletion::Erase
            }
        }
    }

    /// Returns the buffer of [`poll`](Self::poll), empty.
    pub(crate) fn return_buffer(&mut self, completions: Vec<MediaCompletion>) {
        self.completions = completions;
    }
}

/// Returns the pieces as the medium shows them; `None` if it does not show one.
fn viewed_pieces<'a, M: Media>(
    media: &'a M,
    spans: &[Option<PageSpan>; DIRECT_PIECES_MAX],
) -> Option<[RecordSource<'a>; DIRECT_PIECES_MAX]> {
    let mut pieces = [RecordSource::Bytes(&[]); DIRECT_PIECES_MAX];
    for (piece, span) in pieces.iter_mut().zip(spans) {
        if let Some((page, within, bytes)) = *span {
            *piece = RecordSource::Bytes(media.view(page)?.get(within..within + bytes)?);
        }
    }
    Some(pieces)
}
