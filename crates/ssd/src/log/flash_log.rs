//! The log on its medium: programs, reads and erases under way, and the device DRAM that their pages pass through.
//!
//! Input: records to append, pages to read, blocks to erase, and the medium's completions. Output: addresses of
//! records, bytes of pages, and the completions that a stage above acts on ([`FlashCompletion`]). Invariant: the log,
//! the block table, the reads and the page cache change together, so that no page of an erased block is shown; the
//! first failure of a program, an erase or a flush is kept.

mod checkpoint_pages;
mod drafts;
mod extents;
mod moved_records;
mod moves;
mod read_errors;
mod replaced_pages;

pub(crate) use extents::EXTENT_JOB_PAGES;
pub(crate) use moved_records::{CHECKED_PIECES_MAX, CheckedMove};
pub(crate) use moves::{EndedCopy, add_run_pages};

use crate::command::Sequence;
use crate::config::{FailedOperation, FailedWrite};
use crate::log::blocks::BlockTable;
use crate::log::commit_record::CommitKind;
use crate::log::commit_records::{CommitFields, CommitRecords, RECORDS_PER_COMMIT};
use crate::log::extent_reads::ExtentReads;
use crate::log::extent_writes::{ExtentWriter, ExtentWrites};
use crate::log::page_cache::PageCache;
use crate::log::page_proof::PageProof;
use crate::log::page_reads::{EndedRead, PageReads, ReadCheck, ReadWaiter};
use crate::log::prefix::Prefix;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::log::record_page::RecordPage;
use crate::log::{ChecksumMode, RecordLog, RecordSource};
use crate::media::geometry::{BlockId, FlashGeometry, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{CellNumber, Media, MediaCompletion, MediaError, MediaOp, MediaTraits};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use moves::ValueMoves;

pub(crate) use drafts::AppendSize;

/// A part of a page: the page, the offset in it and the length.
pub(crate) type PageSpan = (PageAddress, usize, usize);

/// A completion of the medium, after the log has acted on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlashCompletion {
    /// A read, or a program of the log: nothing is left to do.
    Page,
    /// A program of a page of a checkpoint.
    CheckpointPage,
    /// A program of a page of an extent.
    ExtentPage,
    /// A write of a commit cell.
    Cell,
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
    records: CommitRecords,
    reads: PageReads,
    extent_reads: ExtentReads,
    extents: ExtentWrites,
    /// The mover of the bytes of extents, and its jobs.
    moves: ValueMoves,
    /// Error of a failed program, erase or flush. From then on nothing is guaranteed, so no command is accepted.
    failure: Option<MediaError>,
    failed_write: Option<FailedWrite>,
    /// Reads that failed, reads of pages that are damaged, and the last error of one.
    read_errors: u64,
    damaged_pages: u64,
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
            log: RecordLog::new(traits),
            records: CommitRecords::default(),
            reads: PageReads::new(PageProof::new(traits, 0)),
            extent_reads: ExtentReads::default(),
            extents: ExtentWrites::default(),
            moves: ValueMoves::default(),
            failure: None,
            failed_write: None,
            read_errors: 0,
            damaged_pages: 0,
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

    /// Returns what pages are checked by when they are read.
    pub(crate) fn proof(&self) -> PageProof {
        self.reads.proof()
    }

    /// Sets the order below which blocks were written by version 1.
    pub(crate) fn set_version_1_below(&mut self, order: u64) {
        self.reads.set_proof(PageProof::new(self.traits, order));
    }

    /// Returns what a page with records says of them, a page of either version; `None` if it is no such page.
    pub(crate) fn record_page(&self, bytes: &[u8], page: PageAddress) -> Option<RecordPage> {
        RecordPage::decode(bytes, page, self.traits.checksum_seed)
    }

    /// Returns the last sequence given out.
    #[inline]
    pub(crate) fn last_sequence(&self) -> Sequence {
        Sequence(self.log.sequence_next().0 - 1)
    }

    /// Returns true if no operation is in flight and no page waits for the medium.
    pub(crate) fn is_idle(&self) -> bool {
        self.media.in_flight() == 0
            && self.reads.is_empty()
            && self.extent_reads.is_empty()
            && self.log.backlog() == 0
            && self.extents.pages() == 0
            && self.moves.is_empty()
            && self.records.is_written()
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

    /// Closes the open page, with guard pages after it. Returns the barrier of everything appended so far.
    pub(crate) fn seal(&mut self) -> u64 {
        self.log.seal(&mut self.page_cache, &mut self.blocks)
    }

    /// Returns the frames that a commit takes.
    pub(crate) fn frames_for_commit(&self) -> usize {
        2 + usize::from(self.traits.guard_pages) + RECORDS_PER_COMMIT
    }

    /// Queues the records of a commit that ends with everything filled so far. Returns its end and the prefix that its
    /// records call durable.
    ///
    /// # Panics
    /// There are no frames: the caller did not reserve them.
    pub(crate) fn write_commit_records(&mut self, kind: CommitKind) -> (Prefix, Prefix) {
        let fields = self.commit_fields(kind);
        for _ in 0..RECORDS_PER_COMMIT {
            self.write_commit_record(&fields);
        }
        (self.log.end(), fields.durable)
    }

    /// Queues one record that says what is durable. Returns false if there is no frame for it now.
    pub(crate) fn write_idle_record(&mut self) -> bool {
        if !self.page_cache.reserve(1) {
            return false;
        }
        // It names no page behind the last commit: only a commit may end there.
        let (durable, accepted) = (self.log.durable_claim(), self.log.accepted());
        let namespaces = self.log.recent_namespaces();
        let fields = CommitFields { kind: CommitKind::Idle, end: durable, durable, accepted, namespaces };
        self.write_commit_record(&fields);
        true
    }

    /// Encodes the next record of an opening into a frame, and returns its cell.
    pub(crate) fn encode_opened(&mut self, frame: &mut MediaFrame) -> CellNumber {
        let fields = self.commit_fields(CommitKind::Opened);
        self.records.encode_next(&fields, &self.traits, frame)
    }

    fn commit_fields(&mut self, kind: CommitKind) -> CommitFields {
        let (end, durable, accepted) = (self.log.end(), self.log.durable_claim(), self.log.accepted());
        let end = if end.tick.place() == 0 { accepted } else { end };
        CommitFields { kind, end, durable, accepted, namespaces: self.log.take_commit_namespaces() }
    }

    fn write_commit_record(&mut self, fields: &CommitFields) {
        let mut frame = self.page_cache.take_frame().expect("frames were reserved for the commit record");
        let cell = self.records.encode_next(fields, &self.traits, &mut frame);
        self.records.push(cell, frame);
    }

    /// Returns the commit records.
    pub(crate) fn records(&self) -> &CommitRecords {
        &self.records
    }

    /// Returns the commit records, to change the checkpoint that they name.
    pub(crate) fn records_mut(&mut self) -> &mut CommitRecords {
        &mut self.records
    }

    /// Submits queued commit records. Returns true if any was submitted.
    pub(crate) fn submit_records(&mut self, now: Nanos) -> bool {
        self.records.submit(&mut self.media, now)
    }

    /// Sets the prefix that later pages call durable.
    pub(crate) fn set_durable(&mut self, durable: Prefix) {
        self.log.set_durable(durable);
    }

    /// Closes the open block, full or not.
    pub(crate) fn finish_block(&mut self) {
        self.log.finish_block(&mut self.page_cache, &mut self.blocks);
    }

    /// Continues in the epoch of these records, with the next sequence and the end of the epoch before.
    pub(crate) fn begin_epoch(&mut self, records: CommitRecords, sequence_next: Sequence, accepted: Prefix) {
        self.log.begin_epoch(records.epoch(), sequence_next, accepted);
        self.records = records;
    }

    /// Adds a waiter for a page, and queues a read of the page if none is in flight.
    pub(crate) fn request_page(&mut self, page: PageAddress, waiter: ReadWaiter) {
        self.reads.request(page, waiter, &self.blocks);
    }

    /// Unpins a page of a waiter, which has used it or not. A used page of an extent leaves device DRAM, and so does a used page
    /// of the log of which nothing is needed.
    pub(crate) fn unpin(&mut self, page: PageAddress, is_used: bool) {
        self.page_cache.unpin(page);
        if !is_used {
            // Its waiter looks at it again, beside the next page: dropped now, both could miss each other for ever.
            return;
        }
        if self.blocks.get(page.block).is_extent() {
            self.page_cache.drop_unpinned(page);
        }
        self.drop_if_replaced(page);
    }

    /// Takes a frame of device DRAM; `None` if every frame is in use.
    pub(crate) fn take_frame(&mut self) -> Option<MediaFrame> {
        self.page_cache.take_frame()
    }

    /// Returns a frame that was taken.
    pub(crate) fn return_frame(&mut self, frame: MediaFrame) {
        self.page_cache.return_frame(frame);
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
        let submitted = self.reads.submit(&mut self.media, &mut self.page_cache, now);
        submitted | self.extent_reads.submit(&mut self.media, &mut self.page_cache, now)
    }

    /// Submits an erase. Returns false if the medium accepts none now.
    pub(crate) fn submit_erase(&mut self, block: BlockId, now: Nanos) -> bool {
        if !mutant(Mutant::ErasedPagesCached) {
            self.page_cache.drop_block(block);
        }
        self.media.submit(MediaPurpose::Erase(block).encode(), MediaOp::Erase { block }, now).is_ok()
    }

    /// Submits a flush, which this thread may wait for if that is allowed. Returns false if the medium accepts none now.
    pub(crate) fn submit_flush(&mut self, now: Nanos, may_block: bool) -> bool {
        self.media.allow_blocking_flush(may_block);
        self.media.submit(MediaPurpose::Flush.encode(), MediaOp::Flush, now).is_ok()
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
        if let (MediaPurpose::Read(_) | MediaPurpose::ExtentRead { .. }, Err(error)) =
            (purpose, completion.result)
        {
            self.note_read_error(error);
        }
        if let MediaPurpose::Read(page) = purpose {
            let check = self.reads.complete(page, completion, &mut self.page_cache, &self.blocks, awake);
            if check != ReadCheck::Passed {
                self.note_read_error(MediaError::Damaged { page });
                self.damaged_pages += u64::from(check == ReadCheck::Damaged);
            }
            return FlashCompletion::Page;
        }
        if let MediaPurpose::ExtentRead { slot, nth } = purpose {
            self.extent_reads.complete(slot, nth, completion, &mut self.page_cache);
            return FlashCompletion::Page;
        }
        if let Err(error) = completion.result {
            let operation = match purpose {
                MediaPurpose::Read(_)
                | MediaPurpose::ExtentRead { .. }
                | MediaPurpose::Program(_)
                | MediaPurpose::Checkpoint
                | MediaPurpose::Extent(_) => FailedOperation::Program,
                MediaPurpose::Flush => FailedOperation::Flush,
                MediaPurpose::Cell => FailedOperation::CommitRecord,
                MediaPurpose::Erase(_) => FailedOperation::Erase,
            };
            self.fail(operation, error);
        }
        match purpose {
            MediaPurpose::Read(_) | MediaPurpose::ExtentRead { .. } => FlashCompletion::Page,
            MediaPurpose::Program(id) => {
                let page = self.log.complete_program(id, completion.frame, &mut self.page_cache);
                self.drop_if_replaced(page);
                FlashCompletion::Page
            }
            MediaPurpose::Checkpoint => {
                if let Some(frame) = completion.frame {
                    self.page_cache.return_frame(frame);
                }
                FlashCompletion::CheckpointPage
            }
            MediaPurpose::Extent(writer) => {
                let writer = ExtentWriter::of_number(writer);
                self.extents.complete(writer, completion.frame, &mut self.page_cache);
                FlashCompletion::ExtentPage
            }
            MediaPurpose::Flush => FlashCompletion::Flush,
            MediaPurpose::Cell => {
                self.records.complete();
                if let Some(frame) = completion.frame {
                    self.page_cache.return_frame(frame);
                }
                FlashCompletion::Cell
            }
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
