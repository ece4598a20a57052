//! Writes checkpoints of the index to flash, so that a start reads one checkpoint and only the log after it.
//!
//! Input: the translation layer, which changes while it is written. Output: a stream of bytes (`checkpoint/stream.rs`,
//! `docs/formats/checkpoint.md`) in blocks of its own, a few pages a turn.
//!
//! ```text
//!  Idle --requested or due--> WaitingForRoom --room--> Writing --last page programmed--> Settling
//!    ^                                                                                     |
//!    +---- a durable record names it ---- Naming <--all that it names is durable ----------+
//! ```
//!
//! The map is written twice, in different blocks, and the index once. The checkpoint is fuzzy: the index changes while it
//! is written. Recovery replays the log from the block that was open when it began, so an entry may be older than the log
//! but never newer than it.
//! Invariant: a commit record names the checkpoint only when it and every record in it are durable, and the old
//! checkpoint is discarded only when such a record is durable.

pub(crate) mod stream;

use crate::ftl::Ftl;
use crate::index::SEGMENTS;
use crate::log::commit_record::CheckpointRoot;
use crate::log::page::{NO_RECORD, PageKind, PageSpare, PagesBefore};
use crate::log::prefix::{Prefix, Tick};
use crate::media::Media;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use headwater_host::copy::crc32c;
use stream::{IndexEncoder, encode_map};

/// Maximum of pages written in one turn.
const PAGES_PER_TURN: usize = 16;
/// Blocks opened since the last checkpoint after which the next one is due; more for a large index.
const BLOCKS_BETWEEN: u64 = 512;

#[derive(Debug, Default)]
enum CheckpointState {
    #[default]
    Idle,
    WaitingForRoom,
    Writing(Box<CheckpointWriter>),
    /// Waits until the checkpoint, and everything that the index held, is durable.
    Settling {
        written: WrittenCheckpoint,
        /// Commits after which its pages are durable.
        commits: u64,
        /// Everything that the index held lies below this barrier.
        barrier: u64,
    },
    /// Waits until a record that names it is durable.
    Naming(WrittenCheckpoint),
}

/// A checkpoint whose pages are all programmed.
#[derive(Debug)]
struct WrittenCheckpoint {
    root: CheckpointRoot,
    blocks: Vec<BlockId>,
    /// The number of its map in the block table.
    map: u64,
}

/// The parts of a checkpoint, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointPart {
    FirstMap,
    SecondMap,
    Index,
}

/// A checkpoint being written.
#[derive(Debug)]
struct CheckpointWriter {
    root: CheckpointRoot,
    map_number: u64,
    part: CheckpointPart,
    /// The map, and the bytes of it that are written.
    map: Vec<u8>,
    map_written: usize,
    /// Checksum of the bytes that are written.
    map_crc: u32,
    encoder: IndexEncoder,
    /// Next segment of the index; the block entries and the tail follow the last one.
    segment: usize,
    /// Set when the index is encoded: everything that it held then lies below this barrier.
    end_barrier: Option<u64>,
    blocks: Vec<BlockId>,
    page: usize,
    next_page: u32,
    in_flight: usize,
}

/// The state machine that writes checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpointer {
    state: CheckpointState,
    /// Blocks of the newest complete checkpoint.
    current_blocks: Vec<BlockId>,
    id_next: u64,
    since_order: u64,
    /// Pages that were programmed since the last turn.
    programmed: usize,
    /// Checkpoints completed.
    completed: u64,
    /// Pages that were submitted to the medium.
    pages: u64,
}

impl Checkpointer {
    /// Continues after the checkpoint that recovery found.
    pub(crate) fn resume(&mut self, current: Vec<BlockId>, id_next: u64, since_order: u64) {
        self.current_blocks = current;
        self.id_next = id_next;
        self.since_order = since_order;
    }

    pub(crate) fn request(&mut self) {
        if matches!(self.state, CheckpointState::Idle) {
            self.state = CheckpointState::WaitingForRoom;
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, CheckpointState::Idle)
    }

    /// Notes pages of the checkpoint that were programmed.
    pub(crate) fn add_programmed(&mut self, pages: usize) {
        self.programmed += pages;
    }

    /// Returns the number of checkpoints completed, and of pages submitted to the medium.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.completed, self.pages)
    }

    /// Cancels a checkpoint that waits for room; the next start scans more of the log instead. Returns true if one was
    /// waiting.
    pub(crate) fn cancel_waiting(&mut self) -> bool {
        let waits = matches!(self.state, CheckpointState::WaitingForRoom);
        if waits {
            self.state = CheckpointState::Idle;
        }
        waits
    }

    /// Does one turn's work. Returns true if any state changed.
    pub(crate) fn advance<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        if ftl.failure().is_some() || ftl.is_read_only() {
            return false;
        }
        match std::mem::take(&mut self.state) {
            CheckpointState::Idle => self.start_if_due(ftl),
            CheckpointState::WaitingForRoom => self.begin(ftl),
            CheckpointState::Writing(writing) => self.write(ftl, writing, now),
            CheckpointState::Settling { written, commits, barrier } => {
                self.settle(ftl, written, commits, barrier)
            }
            CheckpointState::Naming(written) => self.finish(ftl, written),
        }
    }

    /// Returns true if a checkpoint starts: a write that waits for room may get it behind the checkpoint.
    fn start_if_due<M: Media>(&mut self, ftl: &mut Ftl<M>) -> bool {
        let opened = ftl.blocks().order_next().saturating_sub(self.since_order);
        let many = BLOCKS_BETWEEN.max(4 * ftl.checkpoint_blocks() as u64);
        let is_due = opened > many && ftl.blocks().len() as u64 > BLOCKS_BETWEEN / 4;
        let starts = ftl.take_checkpoint_request() || is_due;
        if starts {
            self.state = CheckpointState::WaitingForRoom;
        }
        starts
    }

    /// Starts to write when enough blocks are free; until then requests them from the collector.
    fn begin<M: Media>(&mut self, ftl: &mut Ftl<M>) -> bool {
        // The map says that a clear is done, and recovery takes every entry behind it for a later one.
        if ftl.is_clearing_any() && !mutant(Mutant::CheckpointDuringClear) {
            self.state = CheckpointState::WaitingForRoom;
            return false;
        }
        let blocks = ftl.checkpoint_blocks();
        if !ftl.has_checkpoint_blocks(blocks) {
            self.state = CheckpointState::WaitingForRoom;
            return ftl.request_checkpoint_blocks(blocks);
        }
        let _ = ftl.take_checkpoint_request();
        let (order, start) = ftl.window_start();
        let late = u64::from(mutant(Mutant::CheckpointStartsLate));
        let root = CheckpointRoot {
            number: self.id_next,
            start_order: order + late,
            start,
            ..CheckpointRoot::default()
        };
        self.id_next += 1;
        self.since_order = ftl.blocks().order_next();
        let map_number = ftl.begin_map();
        self.state = CheckpointState::Writing(Box::new(CheckpointWriter {
            map: encode_map(ftl, &root),
            root,
            map_number,
            part: CheckpointPart::FirstMap,
            map_written: 0,
            map_crc: 0,
            encoder: IndexEncoder::new(),
            segment: 0,
            end_barrier: None,
            blocks: Vec::new(),
            page: PAGES_PER_BLOCK,
            next_page: 0,
            in_flight: 0,
        }));
        true
    }

    fn write<M: Media>(&mut self, ftl: &mut Ftl<M>, mut writing: Box<CheckpointWriter>, now: Nanos) -> bool {
        let mut moved = writing.count_programmed(std::mem::take(&mut self.programmed));
        for _ in 0..PAGES_PER_TURN {
            writing.fill(ftl);
            if writing.is_encoded() || !writing.write_page(ftl, now) {
                break;
            }
            self.pages += 1;
            moved = true;
        }
        let Some(barrier) = writing.end_barrier.filter(|_| writing.is_encoded() && writing.in_flight == 0)
        else {
            self.state = CheckpointState::Writing(writing);
            return moved;
        };
        for block in &writing.blocks {
            let pages = if Some(block) == writing.blocks.last() { writing.page } else { PAGES_PER_BLOCK };
            ftl.close_checkpoint_block(*block, u8::try_from(pages).expect("64 pages a block"));
        }
        // A commit in flight began before the last page was done; the one after it covers everything.
        let commits = ftl.commit().commits() + if ftl.commit().is_idle() { 1 } else { 2 };
        let CheckpointWriter { root, blocks, map_number: map, .. } = *writing;
        let written = WrittenCheckpoint { root, blocks, map };
        self.state = CheckpointState::Settling { written, commits, barrier };
        true
    }

    fn settle<M: Media>(
        &mut self,
        ftl: &mut Ftl<M>,
        written: WrittenCheckpoint,
        commits: u64,
        barrier: u64,
    ) -> bool {
        let early = mutant(Mutant::CheckpointEndsEarly);
        if (ftl.commit().commits() < commits || ftl.commit().durable_barrier() < barrier) && !early {
            ftl.request_commit_to(barrier);
            self.state = CheckpointState::Settling { written, commits, barrier };
            return false;
        }
        ftl.name_checkpoint(written.root);
        ftl.request_commit();
        self.state = CheckpointState::Naming(written);
        true
    }

    fn finish<M: Media>(&mut self, ftl: &mut Ftl<M>, written: WrittenCheckpoint) -> bool {
        if ftl.commit().checkpoint() < written.root.number && !mutant(Mutant::CheckpointDiscardedEarly) {
            ftl.request_commit();
            self.state = CheckpointState::Naming(written);
            return false;
        }
        for old in std::mem::replace(&mut self.current_blocks, written.blocks) {
            ftl.discard_checkpoint_block(old);
        }
        ftl.finish_checkpoint(written.root.start_order, written.map);
        self.completed += 1;
        true
    }
}

impl CheckpointWriter {
    /// Counts off the pages that were programmed.
    fn count_programmed(&mut self, pages: usize) -> bool {
        let left = self.in_flight.checked_sub(pages);
        self.in_flight = left.expect("more pages of a checkpoint were programmed than submitted");
        pages > 0
    }

    /// Encodes more of the index until the buffer holds a page.
    fn fill<M: Media>(&mut self, ftl: &mut Ftl<M>) {
        while self.part == CheckpointPart::Index
            && self.encoder.buffered() < PAGE_DATA_BYTES
            && self.end_barrier.is_none()
        {
            if self.segment < SEGMENTS {
                self.segment += self.encoder.push_segments(&ftl.index().hashed, self.segment);
            } else if !self.encoder.push_block_run(&ftl.index().flat)
                && !self.encoder.push_expiries(ftl, self.root.start_order)
            {
                self.root.index.crc = self.encoder.crc();
                let barrier = ftl.request_barrier();
                self.end_barrier = Some(barrier);
            }
        }
    }

    /// Returns true if every byte of the checkpoint was submitted.
    fn is_encoded(&self) -> bool {
        self.part == CheckpointPart::Index && self.end_barrier.is_some() && self.encoder.buffered() == 0
    }

    /// Programs one page. Returns false if no block, frame or media queue entry is free.
    fn write_page<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        if self.page == PAGES_PER_BLOCK {
            let Some(block) = ftl.open_checkpoint_block() else {
                return false;
            };
            self.blocks.push(block);
            self.page = 0;
        }
        let (Some(&block), Some(mut frame)) = (self.blocks.last(), ftl.take_checkpoint_frame()) else {
            return false;
        };
        let used = match self.part {
            CheckpointPart::Index => self.encoder.copy_page(&mut frame[..PAGE_DATA_BYTES]),
            CheckpointPart::FirstMap | CheckpointPart::SecondMap => {
                let rest = &self.map[self.map_written..];
                let used = rest.len().min(PAGE_DATA_BYTES);
                frame[..used].copy_from_slice(&rest[..used]);
                frame[used..PAGE_DATA_BYTES].fill(0);
                used
            }
        };
        let address = PageAddress::new(block, u8::try_from(self.page).expect("64 pages a block"));
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            address,
            first: NO_RECORD,
            used: u16::try_from(used).expect("a page has 4,096 bytes"),
            order: ftl.blocks().get(block).order,
            tick: Tick(0),
            open_sequence: ftl.blocks().get(block).open_sequence,
            durable: Prefix::default(),
            accepted: Prefix::default(),
            continues: stream::page_context(self.root.number, u64::from(self.next_page)),
            before: PagesBefore::default(),
        };
        spare.encode(&mut frame, ftl.media().traits().checksum_seed);
        if !ftl.program_checkpoint_page(address, frame, now) {
            return false;
        }
        self.page += 1;
        self.next_page += 1;
        self.in_flight += 1;
        self.finish_page(used);
        true
    }

    /// Goes on behind a page that was submitted: in the same part, or with the next one.
    fn finish_page(&mut self, used: usize) {
        let extent = match self.part {
            CheckpointPart::FirstMap => &mut self.root.maps[0],
            CheckpointPart::SecondMap => &mut self.root.maps[1],
            CheckpointPart::Index => {
                self.encoder.consume(used);
                self.root.index.pages += 1;
                return;
            }
        };
        extent.pages += 1;
        // Page by page: the map of a large medium in one pass would stop every client for milliseconds.
        let end = self.map_written + used;
        self.map_crc = crc32c(self.map_crc, &self.map[self.map_written..end]);
        self.map_written = end;
        if end < self.map.len() {
            return;
        }
        extent.crc = std::mem::take(&mut self.map_crc);
        match self.part {
            CheckpointPart::FirstMap => {
                self.part = CheckpointPart::SecondMap;
                self.map_written = 0;
                // The copies share no block.
                self.page = PAGES_PER_BLOCK;
                self.root.maps[1].first = self.next_page;
            }
            CheckpointPart::SecondMap | CheckpointPart::Index => {
                self.part = CheckpointPart::Index;
                self.map = Vec::new();
                self.root.index.first = self.next_page;
            }
        }
    }
}
