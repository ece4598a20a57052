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
//! The map is written twice, in different blocks, and the index once. Each page of the map is written to both copies before
//! the next one is encoded, so that the copies are equal and no more than a page is kept. The checkpoint is fuzzy: block
//! table and index change while they are encoded (`checkpoint/map_encoder.rs` has the argument for the map). Recovery replays
//! the log from the block that was open when it began, so an entry may be older than the log but never newer than it.
//! Invariant: a commit record names the checkpoint only when it and every record in it are durable, and the old
//! checkpoint is discarded only when such a record is durable.

pub(crate) mod map_encoder;
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
use headwater_host::width::narrow;
use map_encoder::MapEncoder;
use stream::{IndexEncoder, StreamBuffer};

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

/// A copy of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapCopy {
    First,
    Second,
}

/// Consecutive pages of a checkpoint, in blocks that hold no other pages.
#[derive(Debug)]
struct PageRun {
    blocks: Vec<BlockId>,
    /// The next page of the last block.
    page: usize,
    /// The number of the next page within the checkpoint.
    number: u32,
}

/// A checkpoint being written.
#[derive(Debug)]
struct CheckpointWriter {
    root: CheckpointRoot,
    map_number: u64,
    map: MapEncoder,
    /// The copy that lacks the page of the map which is encoded.
    copy: MapCopy,
    index: IndexEncoder,
    /// Next segment of the index; the block entries and the tail follow the last one.
    segment: usize,
    /// Set when the index is encoded: everything that it held then lies below this barrier.
    end_barrier: Option<u64>,
    /// The first copy of the map.
    first: PageRun,
    /// The second copy of the map, and the index behind it.
    second: PageRun,
    in_flight: usize,
}

/// The state machine that writes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    state: CheckpointState,
    /// Entries of the map that one turn encodes.
    map_part_entries: usize,
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
    /// Makes a checkpointer that encodes at most this many entries of a map in a turn, and at least one.
    pub(crate) fn new(map_part_entries: usize) -> Self {
        Self {
            state: CheckpointState::Idle,
            map_part_entries: map_part_entries.max(1),
            current_blocks: Vec::new(),
            id_next: 0,
            since_order: 0,
            programmed: 0,
            completed: 0,
            pages: 0,
        }
    }

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
        let mut root = CheckpointRoot {
            number: self.id_next,
            start_order: order + late,
            start,
            ..CheckpointRoot::default()
        };
        self.id_next += 1;
        self.since_order = ftl.blocks().order_next();
        let map_number = ftl.begin_map();
        let map = MapEncoder::new(ftl, &root);
        root.maps[1].first = map.pages();
        root.index.first = 2 * map.pages();
        self.state = CheckpointState::Writing(Box::new(CheckpointWriter {
            first: PageRun::new(root.maps[0].first),
            second: PageRun::new(root.maps[1].first),
            root,
            map_number,
            map,
            copy: MapCopy::First,
            index: IndexEncoder::new(),
            segment: 0,
            end_barrier: None,
            in_flight: 0,
        }));
        true
    }

    fn write<M: Media>(&mut self, ftl: &mut Ftl<M>, mut writing: Box<CheckpointWriter>, now: Nanos) -> bool {
        let mut moved = writing.count_programmed(std::mem::take(&mut self.programmed));
        let mut entries = self.map_part_entries;
        for _ in 0..PAGES_PER_TURN {
            let taken = writing.fill(ftl, entries);
            entries -= taken;
            moved |= taken > 0;
            if !writing.has_page() || !writing.write_page(ftl, now) {
                break;
            }
            self.pages += 1;
            moved = true;
        }
        let Some(barrier) = writing.end_barrier.filter(|_| writing.is_submitted() && writing.in_flight == 0)
        else {
            self.state = CheckpointState::Writing(writing);
            return moved;
        };
        writing.first.close(ftl);
        writing.second.close(ftl);
        // A commit in flight began before the last page was done; the one after it covers everything.
        let commits = ftl.commit().commits() + if ftl.commit().is_idle() { 1 } else { 2 };
        let CheckpointWriter { root, first, second, map_number: map, .. } = *writing;
        let blocks = [first.blocks, second.blocks].concat();
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

    /// Encodes more of the map, at most this many entries of it, or of the index, until a page can be written. Returns the
    /// entries of the map.
    fn fill<M: Media>(&mut self, ftl: &mut Ftl<M>, entries_max: usize) -> usize {
        if !self.map.is_written() {
            return self.map.fill(ftl, entries_max);
        }
        while self.index.buffer().len() < PAGE_DATA_BYTES && self.end_barrier.is_none() {
            if self.segment < SEGMENTS {
                self.segment += self.index.push_segments(&ftl.index().hashed, self.segment);
            } else if !self.index.push_block_run(&ftl.index().flat)
                && !self.index.push_expiries(ftl, self.root.start_order)
            {
                self.root.index.crc = self.index.buffer().crc();
                self.end_barrier = Some(ftl.request_barrier());
            }
        }
        0
    }

    /// Returns true if a page of the part that is being written is encoded.
    fn has_page(&mut self) -> bool {
        if self.map.is_written() { self.index.buffer().len() > 0 } else { self.map.has_page() }
    }

    /// Returns true if every byte of the checkpoint was submitted.
    fn is_submitted(&mut self) -> bool {
        self.map.is_written() && self.end_barrier.is_some() && self.index.buffer().len() == 0
    }

    /// Programs one page. Returns false if no block, frame or media queue entry is free.
    fn write_page<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        let is_map = !self.map.is_written();
        let number = self.root.number;
        let run = match self.copy {
            MapCopy::First if is_map => &mut self.first,
            _ => &mut self.second,
        };
        let bytes = if is_map { self.map.buffer() } else { self.index.buffer() };
        let Some(used) = run.write_page(ftl, bytes, number, now) else {
            return false;
        };
        self.in_flight += 1;
        let [first, second] = &mut self.root.maps;
        match self.copy {
            _ if !is_map => {
                bytes.consume(used);
                self.root.index.pages += 1;
            }
            MapCopy::First => {
                first.pages += 1;
                self.copy = MapCopy::Second;
            }
            MapCopy::Second => {
                second.pages += 1;
                (first.crc, second.crc) = (bytes.crc(), bytes.crc());
                bytes.consume(used);
                self.copy = MapCopy::First;
            }
        }
        true
    }
}

impl PageRun {
    /// Begins with this page of the checkpoint.
    fn new(number: u32) -> Self {
        Self { blocks: Vec::new(), page: PAGES_PER_BLOCK, number }
    }

    /// Programs the next page with the next bytes, which stay in their buffer. Returns how many; `None` if no block, frame
    /// or media queue entry is free.
    fn write_page<M: Media>(
        &mut self,
        ftl: &mut Ftl<M>,
        bytes: &StreamBuffer,
        checkpoint: u64,
        now: Nanos,
    ) -> Option<usize> {
        if self.page == PAGES_PER_BLOCK {
            self.blocks.push(ftl.open_checkpoint_block()?);
            self.page = 0;
        }
        let block = *self.blocks.last()?;
        let mut frame = ftl.take_checkpoint_frame()?;
        let used = bytes.copy_page(&mut frame[..PAGE_DATA_BYTES]);
        let address = PageAddress::new(block, narrow(self.page));
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            address,
            first: NO_RECORD,
            used: narrow(used),
            order: ftl.blocks().get(block).order,
            tick: Tick(0),
            open_sequence: ftl.blocks().get(block).open_sequence,
            durable: Prefix::default(),
            accepted: Prefix::default(),
            continues: stream::page_context(checkpoint, u64::from(self.number)),
            before: PagesBefore::default(),
        };
        spare.encode(&mut frame, ftl.media().traits().checksum_seed);
        if !ftl.program_checkpoint_page(address, frame, now) {
            return None;
        }
        self.page += 1;
        self.number += 1;
        Some(used)
    }

    /// Closes its blocks.
    fn close<M: Media>(&self, ftl: &mut Ftl<M>) {
        for block in &self.blocks {
            let pages = if Some(block) == self.blocks.last() { self.page } else { PAGES_PER_BLOCK };
            ftl.close_checkpoint_block(*block, narrow(pages));
        }
    }
}
