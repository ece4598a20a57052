//! The log: one write frontier to which every record is appended, of clients and of the collector.
//!
//! Input: record headers with their key and value bytes. Output: the address of the record, and programs for the medium
//! in page order. A record is built directly in the open page in device DRAM, and its checksum is computed during the
//! copy. Invariant: pages leave in the order they were filled, and guard pages (`guard_pages`) separate every
//! acknowledged page from pages that are programmed later.
//!
//! # Not in this module
//! The callers decide when to seal, flush and collect.

pub mod blocks;
mod checked_append;
mod commit_gathering;
pub mod commit_record;
pub(crate) mod commit_records;
pub mod extent_list;
pub(crate) mod extent_reads;
pub(crate) mod extent_writes;
pub(crate) mod flash_log;
pub mod group_commit;
pub mod health_counters;
pub mod page;
pub mod page_cache;
mod page_programs;
pub(crate) mod page_proof;
pub(crate) mod page_reads;
mod page_sum;
pub mod page_version1;
pub mod prefix;
pub(crate) mod recent_namespaces;
pub mod record;
pub mod record_draft;
pub(crate) mod record_page;
mod record_source;
mod record_writer;

use crate::command::Sequence;
use crate::log::blocks::{BlockTable, BlockUse};
use crate::log::page::{NO_RECORD, PageKind, PageSpare, PagesBefore};
use crate::log::page_cache::PageCache;
use crate::log::prefix::{Prefix, Tick};
use crate::log::recent_namespaces::RecentNamespaces;
use crate::log::record::{FLAG_CHAINED, HEADER_BYTES, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, MediaTraits};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use page_programs::PagePrograms;
use page_sum::PageSum;
use record_writer::RecordWriter;

pub use record_source::RecordSource;

/// A longer record continues in the next block if the open block has too little room; a shorter one is placed whole in
/// the next block.
const CHAIN_FROM_BYTES: usize = BLOCK_DATA_BYTES / 16;

/// The state of the checksum in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// Missing: it is computed while the bytes are copied.
    Compute,
    /// Valid: the record is moved unchanged, and was verified before.
    Keep,
}

#[derive(Debug)]
struct OpenBlock {
    block: BlockId,
    order: u64,
    open_sequence: Sequence,
    continues: u64,
    /// The last tick in front of its first page.
    start: Tick,
    page: usize,
    offset: usize,
    first: u16,
    /// Bit `n` is set if the open page holds a record of namespace `n`, or a part of one.
    namespaces: u32,
    frame: Option<MediaFrame>,
    /// The checksum of the open page so far.
    sum: PageSum,
}

/// The log of a device, with its one write frontier.
#[derive(Debug)]
pub struct RecordLog {
    open: Option<OpenBlock>,
    programs: PagePrograms,
    traits: MediaTraits,
    needs_guard: bool,
    /// The last filled page with records, and the last sequence that was given out by then.
    filled_end: Prefix,
    /// The highest sequence appended.
    appended: Sequence,
    recent: RecentNamespaces,
    /// The prefix that pages call durable.
    durable: Prefix,
    /// The end of the epoch before.
    accepted: Prefix,
    sequence_next: Sequence,
}

impl RecordLog {
    /// Makes a log with no open block, for a medium with these traits.
    #[must_use]
    pub fn new(traits: MediaTraits) -> Self {
        Self {
            open: None,
            programs: PagePrograms::default(),
            traits,
            needs_guard: false,
            filled_end: Prefix::default(),
            appended: Sequence(0),
            recent: RecentNamespaces::default(),
            durable: Prefix::default(),
            accepted: Prefix::default(),
            sequence_next: Sequence(1),
        }
    }

    /// Sets the prefix that later pages call durable.
    ///
    /// # Panics
    /// It lies below the prefix before.
    pub fn set_durable(&mut self, durable: Prefix) {
        assert!(durable >= self.durable, "pages would call less durable than before");
        self.durable = durable;
    }

    /// Returns the prefix that pages and records written now call durable: before the first commit of an epoch, the end
    /// of the epoch before.
    #[must_use]
    pub fn durable_claim(&self) -> Prefix {
        if self.durable.tick.place() == 0 { self.accepted } else { self.durable }
    }

    /// Returns the end of the epoch before.
    #[must_use]
    pub fn accepted(&self) -> Prefix {
        self.accepted
    }

    /// Returns the end of what was filled so far.
    #[must_use]
    pub fn end(&self) -> Prefix {
        Prefix { tick: self.filled_end.tick, sequence: self.appended }
    }

    /// Returns the namespaces of the last pages.
    #[must_use]
    pub fn recent_namespaces(&self) -> u32 {
        self.recent.named()
    }

    /// Returns the namespaces of the last pages, and forgets the pages of the commit that ends here.
    pub fn take_commit_namespaces(&mut self) -> u32 {
        self.recent.take_commit()
    }

    /// Returns the barrier that covers everything appended so far, the open page included.
    #[must_use]
    pub fn barrier(&self) -> u64 {
        let open = self.open.as_ref().is_some_and(|open| open.offset > 0);
        self.programs.next() + u64::from(open)
    }

    /// Returns the sequence that the next new record gets. The sequence counts as used once
    /// [`advance_sequence`](Self::advance_sequence) is called, after the append, so that a block opened for the record is
    /// not older than the record.
    #[must_use]
    pub fn sequence_next(&self) -> Sequence {
        self.sequence_next
    }

    /// Advances to the next sequence, after the record with the current one was appended.
    pub fn advance_sequence(&mut self) {
        self.sequence_next = Sequence(self.sequence_next.0 + 1);
    }

    /// Continues in an epoch, with the next sequence and the end of the epoch before.
    pub fn begin_epoch(&mut self, epoch: u64, sequence_next: Sequence, accepted: Prefix) {
        self.sequence_next = sequence_next;
        self.appended = Sequence(sequence_next.0 - 1);
        self.filled_end = Prefix { tick: Tick::before_epoch(epoch), sequence: Sequence(0) };
        self.durable = Prefix { tick: self.filled_end.tick, sequence: self.appended };
        self.accepted = accepted;
    }

    /// Returns the pages that the medium accepted so far.
    #[must_use]
    pub fn programmed_pages(&self) -> u64 {
        self.programs.programmed_pages()
    }

    /// Returns the pages that are filled and not yet accepted by the medium.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.programs.filled()
    }

    /// Returns the order of the block, and the last tick, in front of which a checkpoint that begins now covers the log.
    #[must_use]
    pub fn window_start(&self, blocks: &BlockTable) -> (u64, Tick) {
        let open = self.open.as_ref().map(|open| (open.order, open.start));
        open.unwrap_or((blocks.order_next(), self.filled_end.tick))
    }

    /// Returns the most ready blocks that an append of this many bytes may open.
    #[must_use]
    pub fn blocks_for(&self, bytes: usize) -> usize {
        let left = self.open.as_ref().map_or(0, bytes_left);
        if bytes <= left { 0 } else { bytes.div_ceil(BLOCK_DATA_BYTES) }
    }

    /// Returns the most frames that an append of this many bytes may take.
    #[must_use]
    pub const fn frames_for(&self, bytes: usize) -> usize {
        bytes / PAGE_DATA_BYTES + 3
    }

    /// Appends a record and returns its address. The caller checked the room with [`blocks_for`](Self::blocks_for) and
    /// [`frames_for`](Self::frames_for).
    ///
    /// # Panics
    /// There is no room: the caller did not check it.
    pub fn append(
        &mut self,
        dram: &mut PageCache,
        blocks: &mut BlockTable,
        header: &RecordHeader,
        checksum: ChecksumMode,
        payload: &[RecordSource<'_>],
    ) -> RecordAddress {
        let flags = self.place(dram, blocks, header);
        let checksum = if flags == header.flags { checksum } else { ChecksumMode::Compute };
        let crc = if checksum == ChecksumMode::Keep { header.crc } else { 0 };
        let header = RecordHeader { flags, crc, ..*header };
        self.appended = self.appended.max(header.sequence);
        let address = self.start_record(dram);
        blocks.raise_max_sequence(address.block(), header.sequence);
        let filled_before = self.programs.filled();
        let encoded = header.encode();
        let mut writer = RecordWriter::new(self, dram, blocks, (address, &header));
        writer.prepare(header.payload_end() - HEADER_BYTES);
        writer.put(&encoded);
        match checksum {
            ChecksumMode::Keep => payload.iter().for_each(|piece| match piece {
                RecordSource::Bytes(bytes) => writer.put(bytes),
                RecordSource::Client(_) | RecordSource::Part { .. } => {
                    unreachable!("a moved record has no client source")
                }
            }),
            ChecksumMode::Compute => {
                let mut crc = crc32c(0, &encoded[4..]);
                payload.iter().for_each(|piece| match piece {
                    RecordSource::Bytes(bytes) => crc = writer.put_crc(bytes, crc),
                    RecordSource::Client(segments) => {
                        crc = writer.put_client(segments, 0..segments.bytes(), crc);
                    }
                    RecordSource::Part { segments, offset: at, len } => {
                        crc = writer.put_client(segments, *at..at + len, crc);
                    }
                });
                self.set_record_crc(address, filled_before, crc);
            }
        }
        self.align();
        self.close_full_page(dram, blocks);
        address
    }

    /// Opens a block for a record if the open one has too little room. Returns the record's flags there.
    fn place(&mut self, dram: &mut PageCache, blocks: &mut BlockTable, header: &RecordHeader) -> u8 {
        let left = self.open.as_ref().map_or(0, bytes_left);
        let bytes = header.units() as usize * UNIT_BYTES;
        let chain = bytes > left && bytes > CHAIN_FROM_BYTES && left >= PAGE_DATA_BYTES;
        if bytes > left && !chain {
            self.finish_block(dram, blocks);
            self.open_block(blocks, 0);
        }
        let chained = chain || bytes > BLOCK_DATA_BYTES;
        header.flags & !FLAG_CHAINED | if chained { FLAG_CHAINED } else { 0 }
    }

    /// Makes sure that a page with room is open and returns the address of the next record.
    fn start_record(&mut self, dram: &mut PageCache) -> RecordAddress {
        let open = self.open.as_mut().expect("a block was opened for the record");
        if open.frame.is_none() {
            open.frame = Some(dram.take_frame().expect("frames were counted before the append"));
        }
        if open.first == NO_RECORD {
            open.first = u16::try_from(open.offset).unwrap_or(NO_RECORD);
        }
        RecordAddress::in_block(open.block, open.page * PAGE_DATA_BYTES + open.offset)
    }

    /// Writes the checksum of the record being appended into its header, where there is 0.
    fn set_record_crc(&mut self, address: RecordAddress, filled_before: usize, crc: u32) {
        let at = address.offset_in_block() % PAGE_DATA_BYTES;
        if let Some((page, sum)) = self.programs.filled_page(filled_before, address.page()) {
            page[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            sum.set_number(crc, PAGE_DATA_BYTES - at);
        } else {
            let open = self.open.as_mut().expect("the record starts in the open page");
            let page = open.frame.as_mut().expect("the record starts in the open page");
            page[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            open.sum.set_number(crc, open.offset - at);
        }
    }

    /// Pads the open page to the next record boundary.
    fn align(&mut self) {
        if let Some(OpenBlock { frame: Some(frame), offset, sum, .. }) = self.open.as_mut() {
            let aligned = offset.next_multiple_of(UNIT_BYTES);
            frame[*offset..aligned].fill(0);
            sum.add(&frame[*offset..aligned]);
            *offset = aligned;
        }
    }

    fn close_full_page(&mut self, dram: &mut PageCache, blocks: &mut BlockTable) {
        if self.open.as_ref().is_some_and(|open| open.offset == PAGE_DATA_BYTES) {
            self.fill_page(PageKind::Log, blocks);
            self.close_full_block(dram, blocks);
        }
    }

    fn close_full_block(&mut self, dram: &mut PageCache, blocks: &mut BlockTable) {
        if self.open.as_ref().is_some_and(|open| open.page == PAGES_PER_BLOCK) {
            self.finish_block(dram, blocks);
        }
    }

    /// Writes the open page's spare and queues the page for the medium.
    fn fill_page(&mut self, kind: PageKind, blocks: &mut BlockTable) {
        let durable = self.durable_claim();
        let Some(open) = self.open.as_mut() else { return };
        let Some(mut frame) = open.frame.take() else {
            return;
        };
        frame[open.offset..PAGE_DATA_BYTES].fill(0);
        let address = PageAddress::new(open.block, u8::try_from(open.page).expect("64 pages a block"));
        let mut before = PagesBefore { sequence: self.filled_end.sequence, namespaces: self.recent.named() };
        if mutant(Mutant::BeforeMaskForgets) {
            before.namespaces = 0;
        }
        if mutant(Mutant::BeforeSequenceLow) {
            before.sequence = self.accepted.sequence.min(before.sequence);
        }
        let tick = if kind == PageKind::Log { self.filled_end.tick.next() } else { Tick(0) };
        let spare = PageSpare {
            kind,
            address,
            first: open.first,
            used: u16::try_from(open.offset).expect("a page has 4,096 bytes"),
            order: open.order,
            tick,
            open_sequence: open.open_sequence,
            durable,
            accepted: self.accepted,
            continues: if open.page == 0 { open.continues } else { 0 },
            before,
        };
        // The checksums follow when the page leaves: the header of its last record is complete only then.
        spare.encode_fields(&mut frame);
        if kind == PageKind::Log {
            self.filled_end = Prefix { tick, sequence: self.appended };
            self.recent.push(std::mem::take(&mut open.namespaces));
            blocks.set_last_tick(open.block, tick);
        }
        let sum = std::mem::replace(&mut open.sum, PageSum::EMPTY).ended(&frame, open.offset);
        self.programs.push(address, frame, kind, sum);
        self.needs_guard = kind == PageKind::Log;
        open.page += 1;
        open.offset = 0;
        open.first = NO_RECORD;
    }

    /// Closes the open page before it is full and queues it, with guard pages after it, so that everything appended so
    /// far can become durable and stay so. Returns the barrier: every program with a lower id must complete for that.
    pub fn seal(&mut self, dram: &mut PageCache, blocks: &mut BlockTable) -> u64 {
        if self.open.as_ref().is_some_and(|open| open.offset > 0) {
            self.fill_page(PageKind::Log, blocks);
            self.close_full_block(dram, blocks);
        }
        if self.needs_guard && !mutant(Mutant::GuardPageSkipped) {
            for _ in 0..self.traits.guard_pages {
                let Some(open) = self.open.as_mut() else { break };
                if open.page == 0 {
                    break;
                }
                // A copy that was given up may have left a frame in the open page.
                let Some(frame) = open.frame.take().or_else(|| dram.take_frame()) else { break };
                open.frame = Some(frame);
                self.fill_page(PageKind::Guard, blocks);
                self.close_full_block(dram, blocks);
            }
        }
        self.programs.next()
    }

    /// Returns the open block with the number of its filled pages.
    #[must_use]
    pub fn open_pages(&self) -> Option<(BlockId, u8)> {
        self.open.as_ref().map(|open| (open.block, u8::try_from(open.page).unwrap_or(u8::MAX)))
    }

    /// Closes the open block, full or not.
    pub fn finish_block(&mut self, dram: &mut PageCache, blocks: &mut BlockTable) {
        if self.open.as_ref().is_some_and(|open| open.offset > 0) {
            self.fill_page(PageKind::Log, blocks);
        }
        if let Some(open) = self.open.take() {
            if let Some(frame) = open.frame {
                dram.return_frame(frame);
            }
            blocks.close(open.block, u8::try_from(open.page).unwrap_or(u8::MAX));
            // Blocks share no sector, so the next block's first page needs no guard.
            self.needs_guard = false;
        }
    }

    fn open_block(&mut self, blocks: &mut BlockTable, continues: u64) {
        let open_sequence = self.sequence_next;
        let block =
            blocks.open(open_sequence, BlockUse::Log).expect("ready blocks were counted before the append");
        let order = blocks.get(block).order;
        self.open = Some(OpenBlock {
            block,
            order,
            open_sequence,
            continues,
            start: self.filled_end.tick,
            page: 0,
            offset: 0,
            first: NO_RECORD,
            namespaces: 0,
            frame: None,
            sum: PageSum::EMPTY,
        });
    }

    /// Submits filled pages to the medium, in order, until it rejects one. Returns true if any was submitted.
    ///
    /// # Panics
    /// The medium reports a NAND rule: the log broke its invariant.
    pub fn submit<M: Media>(&mut self, media: &mut M, dram: &mut PageCache, now: Nanos) -> bool {
        self.programs.submit(self.traits, media, dram, now)
    }

    /// Completes a program: unpins its page, returns its frame, and returns the page.
    ///
    /// # Panics
    /// No program with this id is in flight.
    pub fn complete_program(
        &mut self,
        id: u64,
        frame: Option<MediaFrame>,
        dram: &mut PageCache,
    ) -> PageAddress {
        self.programs.complete(id, frame, dram)
    }

    /// Returns true if every program with an id below `barrier` has completed.
    #[must_use]
    pub fn is_completed_below(&self, barrier: u64) -> bool {
        self.programs.is_completed_below(barrier)
    }

    /// Returns the bytes of a page that is not submitted to the medium yet.
    #[must_use]
    #[inline]
    pub fn peek(&self, page: PageAddress) -> Option<&[u8]> {
        if let Some(open) = self.open.as_ref()
            && open.block == page.block
            && open.page == usize::from(page.page)
        {
            return open.frame.as_deref();
        }
        self.programs.peek(page)
    }
}

fn bytes_left(open: &OpenBlock) -> usize {
    (PAGES_PER_BLOCK - open.page) * PAGE_DATA_BYTES - open.offset
}

const _: () = assert!(HEADER_BYTES.is_multiple_of(UNIT_BYTES) && PAGE_DATA_BYTES.is_multiple_of(UNIT_BYTES));
