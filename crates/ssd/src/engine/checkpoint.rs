//! Writes checkpoints of the index to flash, so that a start reads one checkpoint and only the log after it.
//!
//! Input: the translation layer, which changes while it is written. Output: a stream of bytes (`checkpoint/stream.rs`,
//! `docs/formats/checkpoint.md`) in blocks of its own, a few pages a turn.
//!
//! ```text
//!  Idle --requested or due--> Wanting --room--> Draining --log durable--> Writing
//!    ^                                                                      |
//!    +------------- commit done ------------- Settling <--last page done----+
//! ```
//!
//! The checkpoint is fuzzy: the index changes while it is written. Recovery replays every block from the one that was
//! open when it began, so an entry may be older than the log but never newer than it.
//! Invariant: the old checkpoint is erased only when the new one, and every record it names, is durable.

pub(crate) mod stream;

use crate::command::Sequence;
use crate::ftl::Ftl;
use crate::index::SEGMENTS;
use crate::log::page::{NO_RECORD, PageKind, PageSpare};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use stream::CheckpointEncoder;

/// Maximum of pages written in one turn.
const PAGES_PER_TURN: usize = 16;
/// Blocks opened since the last checkpoint after which the next one is due; more for a large index.
const BLOCKS_BETWEEN: u64 = 512;

#[derive(Debug, Default)]
enum CheckpointState {
    #[default]
    Idle,
    WaitingForRoom,
    /// Waits until everything appended before the checkpoint is durable: only then may an entry name it.
    Draining {
        barrier: u64,
        start_order: u64,
    },
    Writing(Box<CheckpointWriter>),
    Committing {
        id: u64,
        commits: u64,
        blocks: Vec<BlockId>,
    },
}

/// A checkpoint being written.
#[derive(Debug)]
struct CheckpointWriter {
    id: u64,
    encoder: CheckpointEncoder,
    /// Next segment of the index; the block entries and the tail follow the last one.
    segment: usize,
    /// Set when the stream is complete: everything that the index held then lies below this barrier.
    end_barrier: Option<u64>,
    blocks: Vec<BlockId>,
    page: usize,
    next_part: u64,
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

    /// Cancels a checkpoint that waits for room; the next start scans the log instead. Returns true if one was waiting.
    pub(crate) fn cancel_waiting<M>(&mut self, ftl: &mut Ftl<M>) -> bool {
        ftl.release_checkpoint_blocks();
        let wanted = matches!(self.state, CheckpointState::WaitingForRoom);
        if wanted {
            self.state = CheckpointState::Idle;
        }
        wanted
    }

    /// Does one turn's work. Returns true if any state changed.
    pub(crate) fn advance<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        if ftl.failure().is_some() {
            return false;
        }
        match std::mem::take(&mut self.state) {
            CheckpointState::Idle => {
                self.start_if_due(ftl);
                false
            }
            CheckpointState::WaitingForRoom => self.drain(ftl),
            CheckpointState::Draining { barrier, start_order } => self.begin(ftl, barrier, start_order),
            CheckpointState::Writing(writing) => self.write(ftl, writing, now),
            CheckpointState::Committing { id, commits, blocks } => self.commit(ftl, id, commits, blocks),
        }
    }

    fn start_if_due<M: Media>(&mut self, ftl: &Ftl<M>) {
        use crate::index::RecordIndex;
        let size = ftl.index().len() * crate::index::ENTRY_BYTES as u64 / BLOCK_DATA_BYTES as u64;
        let opened = ftl.blocks().order_next().saturating_sub(self.since_order);
        if opened > BLOCKS_BETWEEN.max(4 * size) && ftl.blocks().len() as u64 > BLOCKS_BETWEEN / 4 {
            self.state = CheckpointState::WaitingForRoom;
        }
    }

    /// Starts to drain when enough blocks are free; until then requests them from the collector.
    fn drain<M: Media>(&mut self, ftl: &mut Ftl<M>) -> bool {
        let bytes = CheckpointEncoder::size_estimate(ftl);
        // The index may grow while it is written.
        let blocks = (bytes + bytes / 8).div_ceil(BLOCK_DATA_BYTES) + 1;
        if !ftl.has_checkpoint_blocks(blocks) {
            self.state = CheckpointState::WaitingForRoom;
            return ftl.request_checkpoint_blocks(blocks);
        }
        ftl.release_checkpoint_blocks();
        let barrier = ftl.request_barrier();
        let late = u64::from(mutant(Mutant::CheckpointStartsLate));
        self.state = CheckpointState::Draining { barrier, start_order: ftl.open_block_order() + late };
        true
    }

    fn begin<M: Media>(&mut self, ftl: &mut Ftl<M>, barrier: u64, start_order: u64) -> bool {
        if ftl.commit().durable_barrier() < barrier && !mutant(Mutant::CheckpointNotDrained) {
            self.state = CheckpointState::Draining { barrier, start_order };
            return false;
        }
        self.since_order = ftl.blocks().order_next();
        self.state = CheckpointState::Writing(Box::new(CheckpointWriter {
            id: self.id_next,
            encoder: CheckpointEncoder::begin(ftl, self.id_next, start_order),
            segment: 0,
            end_barrier: None,
            blocks: Vec::new(),
            page: PAGES_PER_BLOCK,
            next_part: 0,
            in_flight: 0,
        }));
        self.id_next += 1;
        true
    }

    fn write<M: Media>(&mut self, ftl: &mut Ftl<M>, mut writing: Box<CheckpointWriter>, now: Nanos) -> bool {
        let mut moved = writing.count_programmed(std::mem::take(&mut self.programmed));
        for _ in 0..PAGES_PER_TURN {
            writing.fill(ftl);
            if writing.encoder.buffered() == 0 || !writing.write_page(ftl, now) {
                break;
            }
            self.pages += 1;
            moved = true;
        }
        let written =
            writing.end_barrier.is_some() && writing.encoder.buffered() == 0 && writing.in_flight == 0;
        if !written {
            self.state = CheckpointState::Writing(writing);
            return moved;
        }
        for block in &writing.blocks {
            let pages = if Some(block) == writing.blocks.last() { writing.page } else { PAGES_PER_BLOCK };
            ftl.close_checkpoint_block(*block, u8::try_from(pages).unwrap_or(u8::MAX));
        }
        // Every record that the checkpoint names must be durable before the old checkpoint is erased.
        let applied = ftl.last_sequence();
        ftl.request_sequence(applied);
        ftl.request_flush();
        // A commit in flight began before the last page was done; the one after it covers everything.
        let commits = ftl.commit().commits() + if ftl.commit().is_idle() { 1 } else { 2 };
        self.state = CheckpointState::Committing { id: writing.id, commits, blocks: writing.blocks };
        true
    }

    fn commit<M: Media>(&mut self, ftl: &mut Ftl<M>, id: u64, commits: u64, blocks: Vec<BlockId>) -> bool {
        if ftl.commit().commits() < commits {
            if ftl.commit().is_idle() {
                ftl.request_flush();
            }
            self.state = CheckpointState::Committing { id, commits, blocks };
            return false;
        }
        for old in std::mem::replace(&mut self.current_blocks, blocks) {
            ftl.discard_checkpoint_block(old);
        }
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

    /// Encodes more of the stream until the buffer holds a page.
    fn fill<M: Media>(&mut self, ftl: &mut Ftl<M>) {
        while self.encoder.buffered() < PAGE_DATA_BYTES && self.end_barrier.is_none() {
            if self.segment < SEGMENTS {
                self.segment += self.encoder.push_segments(&ftl.index().hashed, self.segment);
            } else if !self.encoder.push_block_run(&ftl.index().flat) {
                self.encoder.push_end(ftl);
                let barrier = ftl.request_barrier();
                self.end_barrier = Some(barrier);
            }
        }
    }

    /// Returns true if the next page to write is the last one.
    fn is_last_page(&self) -> bool {
        self.end_barrier.is_some() && self.encoder.buffered() <= PAGE_DATA_BYTES
    }

    /// Programs one page from the buffer. Returns false if no block, frame or media queue entry is free, and before the
    /// last page until everything that the index held is durable: the last page makes the checkpoint valid, and the
    /// checkpoint lacks removed entries, though a power cut could still undo their removal.
    fn write_page<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        let last = self.is_last_page();
        let early = mutant(Mutant::CheckpointEndsEarly);
        if last && !early && self.end_barrier.is_some_and(|barrier| ftl.commit().durable_barrier() < barrier)
        {
            return false;
        }
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
        let used = self.encoder.copy_page(&mut frame[..PAGE_DATA_BYTES]);
        let page = PageAddress::new(block, u8::try_from(self.page).unwrap_or(u8::MAX));
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            page: page.page,
            first: NO_RECORD,
            used: u16::try_from(used).unwrap_or(u16::MAX),
            order: ftl.blocks().get(block).order,
            open_sequence: ftl.blocks().get(block).open_sequence,
            durable_sequence: Sequence(0),
            durable_order: 0,
            continues: if last { self.next_part + 1 } else { 0 },
            context: stream::page_context(self.id, self.next_part),
        };
        spare.encode(&mut frame);
        if !ftl.program_checkpoint_page(page, frame, now) {
            return false;
        }
        self.encoder.consume(used);
        self.page += 1;
        self.next_part += 1;
        self.in_flight += 1;
        true
    }
}
