//! Extents on the medium: their blocks are opened, filled page by page, and left out of the page cache.
//!
//! Input: bytes of values. Output: programs of their pages; pages copied to their readers. Invariant: a page of an extent
//! holds the order of its block, by which it proves itself; no page of one stays in device DRAM once its readers have copied
//! it, unless one of them keeps it.

use super::FlashLog;
use super::moves::add_run_pages;
use crate::command::ValueSource;
use crate::log::blocks::{BlockUse, FULL_PAGES};
use crate::log::extent_list::Extent;
use crate::log::extent_reads::{EndedRun, ExtentReads, ExtentRun, ReadRun};
use crate::log::extent_writes::ExtentWriter;
use crate::log::page::{NO_RECORD, PAGE_CRC, PageKind, PageSpare, PagesBefore};
use crate::log::prefix::Tick;
use crate::media::geometry::{PAGE_DATA_BYTES, PageAddress};
use crate::media::{Media, MediaError};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_dma::mover::{MemoryPlace, MoveJob, MoveMemory, MoveStep};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use headwater_host::width::narrow;
use std::ops::Range;

impl<M: Media> FlashLog<M> {
    /// Makes a writer of extents.
    pub(crate) fn begin_extents(&mut self) -> ExtentWriter {
        self.extents.begin()
    }

    /// Opens a ready block as an extent; `None` if none is ready.
    pub(crate) fn open_extent(&mut self) -> Option<Extent> {
        let block = self.blocks.open(self.log.sequence_next(), BlockUse::Extent)?;
        Some(Extent { block, order: self.blocks.get(block).order })
    }

    /// Returns the pages of a writer, and of all writers, that are not programmed yet, those included that channels fill.
    pub(crate) fn extent_pages(&self, writer: ExtentWriter) -> (usize, usize) {
        let (own, all) = self.moves.filling_pages(writer);
        (self.extents.pages_of(writer) + own, self.extents.pages() + all)
    }

    /// Returns the pages of extents that the medium accepted so far.
    pub(crate) fn programmed_extent_pages(&self) -> u64 {
        self.extents.programmed_pages()
    }

    /// Fills the next `pages` pages of an extent with the bytes of a value from `at` on, as one job of the mover, and queues them
    /// for the medium once the job has ended. Returns how many it fills: fewer if there are not as many frames. Memory that a client took away is
    /// noticed by the caller, who asks for it before the value counts.
    ///
    /// # Panics
    /// The value does not have as many whole pages there, or they are more than [`EXTENT_JOB_PAGES`].
    pub(crate) fn fill_extent_pages(
        &mut self,
        writer: ExtentWriter,
        (extent, first, pages): (Extent, u8, u8),
        (value, at): (&ValueSource, usize),
    ) -> u8 {
        let mut job = self.moves.take_job();
        let bytes = usize::from(pages) * PAGE_DATA_BYTES;
        assert!(usize::from(pages) <= EXTENT_JOB_PAGES, "{pages} pages for one job of the mover");
        let source = match value {
            ValueSource::Bytes(value) => job.add_memory(value.slice(at..at + bytes)),
            ValueSource::Client(segments) => job.add_memory(segments.part(at, bytes)),
            ValueSource::Received { .. } => unreachable!("a received value has its pages"),
        };
        for nth in 0..usize::from(pages) {
            let Some(frame) = self.page_cache.take_frame() else { break };
            let frame = job.add_memory(frame);
            job.add_step(MoveStep::CopyCrc32c {
                from: MemoryPlace::new(source, nth * PAGE_DATA_BYTES).range(PAGE_DATA_BYTES),
                to: MemoryPlace::new(frame, 0),
                seed: 0,
            });
        }
        let filled = narrow(job.steps().len());
        if filled > 0 && self.has_channels() {
            self.start_fill(writer, (extent, first), job);
            return filled;
        }
        self.moves.mover.run(&mut job).expect("pages of a value are copied into frames");
        self.seal_filled(writer, (extent, first), &mut job);
        self.moves.keep_job(job);
        filled
    }

    /// Seals the pages that a job has filled, from `first` on, and queues them for the medium. The job keeps no memories.
    pub(super) fn seal_filled(
        &mut self,
        writer: ExtentWriter,
        (extent, first): (Extent, u8),
        job: &mut MoveJob,
    ) {
        let mut crcs = [0; EXTENT_JOB_PAGES];
        for (nth, crc) in crcs.iter_mut().enumerate().take(job.steps().len()) {
            *crc = job.crc32c(nth).expect("the step computes a checksum");
        }
        let frames = job.drain_memories().filter_map(MoveMemory::into_frame);
        for ((page, crc), frame) in (first..).zip(crcs).zip(frames) {
            self.program_extent_page(writer, (extent, page), (frame, crc));
        }
    }

    /// Seals a filled page of an extent, whose bytes have the checksum `crc`, and queues it for the medium.
    fn program_extent_page(
        &mut self,
        writer: ExtentWriter,
        (extent, page): (Extent, u8),
        (mut frame, crc): (MediaFrame, u32),
    ) {
        let address = PageAddress::new(extent.block, page);
        let seed = self.traits.checksum_seed;
        let spare = PageSpare {
            kind: PageKind::Extent,
            address,
            first: NO_RECORD,
            used: PAGE_BYTES_USED,
            order: extent.order,
            tick: Tick(0),
            open_sequence: self.blocks.get(extent.block).open_sequence,
            durable: self.log.durable_claim(),
            accepted: self.log.accepted(),
            continues: self.blocks.order_next(),
            before: PagesBefore::default(),
        };
        spare.encode_sealed(&mut frame, PAGE_CRC.join(seed, crc), seed);
        self.extents.push(writer, address, frame);
    }

    /// Queues a page of an extent that was filled from outside.
    pub(crate) fn program_received_page(
        &mut self,
        writer: ExtentWriter,
        place: (Extent, u8),
        frame: MediaFrame,
    ) {
        let crc = crc32c(0, &frame[..PAGE_DATA_BYTES]);
        self.program_extent_page(writer, place, (frame, crc));
    }

    /// Copies pages of a run, which the caller proved, to a sink as one job of the mover. The first page gives its bytes from
    /// `from` on, the last one those before `to`.
    pub(crate) fn copy_run_pages(
        &mut self,
        run: &mut ReadRun,
        (pages, from, to): (Range<u8>, usize, usize),
        (sink, at): (&mut MoveMemory, usize),
    ) {
        let mut job = self.begin_copy(std::mem::take(sink));
        add_run_pages(&mut job, run, (pages.clone(), from, to), at);
        self.moves.mover.run(&mut job).expect("a range of a value is copied to a sink that has room for it");
        let mut memories = job.drain_memories();
        *sink = memories.next().expect("the job has its sink");
        for (page, frame) in pages.zip(memories.filter_map(MoveMemory::into_frame)) {
            run.put_frame(page, frame);
        }
        self.moves.keep_job(job);
    }

    /// Copies whole pages of a run to the end of a vector as one job of the mover, which computes their checksums in the same
    /// pass. Returns how many of the first ones have the checksums `sums`. The bytes of the rest do not stay in the vector.
    pub(crate) fn copy_pages_with_proof(
        &mut self,
        run: &mut ReadRun,
        (pages, sums): (Range<u8>, &[u32]),
        (sink, at): (&mut MoveMemory, usize),
    ) -> u8 {
        let mut job = self.begin_copy(std::mem::take(sink));
        for (nth, page) in pages.clone().enumerate() {
            let frame = job.add_memory(run.take_frame(page).expect("a page to copy is in its run"));
            job.add_step(MoveStep::CopyCrc32c {
                from: MemoryPlace::new(frame, 0).range(PAGE_DATA_BYTES),
                to: MemoryPlace::new(0, at + nth * PAGE_DATA_BYTES),
                seed: self.traits.checksum_seed,
            });
        }
        self.moves.mover.run(&mut job).expect("pages of a value are copied to a sink that has room for them");
        let is_ignored = mutant(Mutant::ExtentPageNotProven) || mutant(Mutant::PageChecksumIgnored);
        let has_sum = |(nth, sum): &(usize, &u32)| job.crc32c(*nth) == Some(**sum) || is_ignored;
        let proven = sums.iter().take(pages.len()).enumerate().take_while(has_sum).count();
        let mut memories = job.drain_memories();
        *sink = memories.next().expect("the job has its sink");
        for (page, frame) in pages.zip(memories.filter_map(MoveMemory::into_frame)) {
            run.put_frame(page, frame);
        }
        self.moves.keep_job(job);
        if let MoveMemory::Vec(bytes) = sink {
            bytes.truncate(at + proven * PAGE_DATA_BYTES);
        }
        narrow(proven)
    }

    /// Submits filled pages of extents to the medium. Returns true if any was submitted.
    pub(crate) fn submit_extents(&mut self, now: Nanos) -> bool {
        self.extents.submit(&mut self.media, now)
    }

    /// Returns the most pages of extents that an operation may ask for at once.
    pub(crate) fn run_pages_max(&self) -> usize {
        ExtentReads::pages_max(&self.page_cache)
    }

    /// Queues the reads of runs, for an operation.
    pub(crate) fn request_runs(&mut self, operation: usize, runs: Vec<ExtentRun>) {
        self.extent_reads.request(operation, runs, &self.page_cache);
    }

    /// Takes the runs whose reads have ended.
    pub(crate) fn take_ended_runs(&mut self) -> Vec<EndedRun> {
        self.extent_reads.take_ended()
    }

    /// Takes a page out of a run, because it does not prove itself. The caller asks for it by itself.
    pub(crate) fn give_up_page(&mut self, run: &mut ReadRun, nth: u8) {
        let page = run.run.page(nth);
        self.reads.note_unproven(page);
        self.note_read_error(MediaError::Damaged { page });
        self.extent_reads.give_up_page(run, nth, &mut self.page_cache);
    }

    /// Takes a run back that its operation has used or does not need.
    pub(crate) fn put_back_run(&mut self, run: ReadRun) {
        self.extent_reads.put_back(run, &mut self.page_cache);
    }

    /// Moves the proven pages of a run into the page cache, and takes the rest of it back.
    pub(crate) fn keep_run(&mut self, run: ReadRun) {
        self.extent_reads.keep(run, &mut self.page_cache, &self.blocks);
    }

    /// Closes an extent whose pages are all filled.
    pub(crate) fn close_extent(&mut self, extent: Extent) {
        self.blocks.close(extent.block, FULL_PAGES);
    }
}

/// Most pages of one job of the mover: 64 KiB stay in the second cache between the proof of a page and its copy.
pub(crate) const EXTENT_JOB_PAGES: usize = 16;

/// Bytes in use of a page of an extent: all.
const PAGE_BYTES_USED: u16 = 4_096;

const _: () = assert!(PAGE_BYTES_USED as usize == PAGE_DATA_BYTES);
