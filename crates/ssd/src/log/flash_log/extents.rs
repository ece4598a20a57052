//! Extents on the medium: their blocks are opened, filled page by page, and left out of the page cache.
//!
//! Input: bytes of values. Output: programs of their pages. Invariant: a page of an extent holds the order of its block, by
//! which it proves itself; no page of one stays in device DRAM once its readers have copied it.

use super::FlashLog;
use crate::log::RecordSource;
use crate::log::blocks::{BlockUse, FULL_PAGES};
use crate::log::extent_list::Extent;
use crate::log::extent_reads::{EndedRun, ExtentReads, ExtentRun, ReadRun};
use crate::log::extent_writes::ExtentWriter;
use crate::log::page::{NO_RECORD, PAGE_CRC, PageKind, PageSpare, PagesBefore};
use crate::log::prefix::Tick;
use crate::media::geometry::{PAGE_DATA_BYTES, PageAddress};
use crate::media::{Media, MediaError};
use headwater_host::clock::Nanos;
use headwater_host::copy::copy_crc32c;

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

    /// Returns the pages of a writer, and of all writers, that are not programmed yet.
    pub(crate) fn extent_pages(&self, writer: ExtentWriter) -> (usize, usize) {
        (self.extents.pages_of(writer), self.extents.pages())
    }

    /// Returns the pages of extents that the medium accepted so far.
    pub(crate) fn programmed_extent_pages(&self) -> u64 {
        self.extents.programmed_pages()
    }

    /// Fills the next page of an extent with the bytes of a value from `at` on, and queues it for the medium. Returns false if
    /// there is no frame. Memory that a client took away is noticed by the caller, who asks for it before the value counts.
    ///
    /// # Panics
    /// The value has no whole page there.
    pub(crate) fn fill_extent_page(
        &mut self,
        writer: ExtentWriter,
        (extent, page): (Extent, u8),
        (value, at): (RecordSource<'_>, usize),
    ) -> bool {
        let Some(mut frame) = self.page_cache.take_frame() else {
            return false;
        };
        let data = &mut frame[..PAGE_DATA_BYTES];
        let crc = match value {
            RecordSource::Bytes(bytes) => copy_crc32c(data, &bytes[at..at + PAGE_DATA_BYTES], 0),
            RecordSource::Client(segments) => segments.copy_in_crc32c(at, data, 0).1,
            RecordSource::Part { segments, offset, .. } => segments.copy_in_crc32c(offset + at, data, 0).1,
        };
        let address = PageAddress::new(extent.block, page);
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
        let seed = self.traits.checksum_seed;
        spare.encode_sealed(&mut frame, PAGE_CRC.join(seed, crc), seed);
        self.extents.push(writer, address, frame);
        true
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

    /// Closes an extent whose pages are all filled.
    pub(crate) fn close_extent(&mut self, extent: Extent) {
        self.blocks.close(extent.block, FULL_PAGES);
    }
}

/// Bytes in use of a page of an extent: all.
const PAGE_BYTES_USED: u16 = 4_096;

const _: () = assert!(PAGE_BYTES_USED as usize == PAGE_DATA_BYTES);
