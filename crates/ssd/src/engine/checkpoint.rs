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
use crate::index::hashed::SEGMENTS;
use crate::log::page::{NO_RECORD, PageKind, PageSpare};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaOp, RefusedOp};
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
    Wanting,
    /// Waits until everything appended before the checkpoint is durable: only then may an entry name it.
    Draining {
        barrier: u64,
        start_order: u64,
    },
    Writing(Box<CheckpointWriter>),
    Settling {
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
    ended: Option<u64>,
    blocks: Vec<BlockId>,
    page: usize,
    part: u64,
    in_flight: usize,
}

/// The state machine that writes checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpointer {
    state: CheckpointState,
    /// Blocks of the newest complete checkpoint.
    current: Vec<BlockId>,
    id_next: u64,
    since_order: u64,
}

impl Checkpointer {
    /// Continues after the checkpoint that recovery found.
    pub(crate) fn resume(&mut self, current: Vec<BlockId>, id_next: u64, since_order: u64) {
        self.current = current;
        self.id_next = id_next;
        self.since_order = since_order;
    }

    pub(crate) fn request(&mut self) {
        if matches!(self.state, CheckpointState::Idle) {
            self.state = CheckpointState::Wanting;
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, CheckpointState::Idle)
    }

    /// Cancels a checkpoint that waits for room; the next start scans the log instead. Returns true if one was waiting.
    pub(crate) fn give_up<M>(&mut self, ftl: &mut Ftl<M>) -> bool {
        ftl.set_aside = 0;
        let wanted = matches!(self.state, CheckpointState::Wanting);
        if wanted {
            self.state = CheckpointState::Idle;
        }
        wanted
    }

    /// Does one turn's work. Returns true if any state changed.
    pub(crate) fn advance<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        if ftl.failed.is_some() {
            return false;
        }
        match std::mem::take(&mut self.state) {
            CheckpointState::Idle => {
                self.start_if_due(ftl);
                false
            }
            CheckpointState::Wanting => self.drain(ftl),
            CheckpointState::Draining { barrier, start_order } => self.begin(ftl, barrier, start_order),
            CheckpointState::Writing(writing) => self.write(ftl, writing, now),
            CheckpointState::Settling { id, commits, blocks } => self.settle(ftl, id, commits, blocks),
        }
    }

    fn start_if_due<M: Media>(&mut self, ftl: &Ftl<M>) {
        use crate::index::RecordIndex;
        let size = ftl.index.len() * crate::index::hashed::ENTRY_BYTES as u64 / BLOCK_DATA_BYTES as u64;
        let opened = ftl.blocks.order_next().saturating_sub(self.since_order);
        if opened > BLOCKS_BETWEEN.max(4 * size) && ftl.blocks.len() as u64 > BLOCKS_BETWEEN / 4 {
            self.state = CheckpointState::Wanting;
        }
    }

    /// Starts to drain when enough blocks are free; until then requests them from the collector.
    fn drain<M: Media>(&mut self, ftl: &mut Ftl<M>) -> bool {
        let bytes = CheckpointEncoder::size_estimate(ftl);
        // The index may grow while it is written.
        let blocks = (bytes + bytes / 8).div_ceil(BLOCK_DATA_BYTES) + 1;
        if ftl.blocks.free() < blocks + ftl.low_blocks() || ftl.collector.is_cleaning_up() {
            self.state = CheckpointState::Wanting;
            ftl.set_aside = blocks + ftl.low_blocks();
            return ftl.collector.demand(blocks);
        }
        ftl.set_aside = 0;
        let barrier = ftl.log.position();
        ftl.commit.want_barrier(barrier);
        self.state = CheckpointState::Draining { barrier, start_order: ftl.log.order(&ftl.blocks) };
        true
    }

    fn begin<M: Media>(&mut self, ftl: &mut Ftl<M>, barrier: u64, start_order: u64) -> bool {
        if ftl.commit.durable_barrier < barrier {
            self.state = CheckpointState::Draining { barrier, start_order };
            return false;
        }
        self.since_order = ftl.blocks.order_next();
        self.state = CheckpointState::Writing(Box::new(CheckpointWriter {
            id: self.id_next,
            encoder: CheckpointEncoder::begin(ftl, self.id_next, start_order),
            segment: 0,
            ended: None,
            blocks: Vec::new(),
            page: PAGES_PER_BLOCK,
            part: 0,
            in_flight: 0,
        }));
        self.id_next += 1;
        true
    }

    fn write<M: Media>(&mut self, ftl: &mut Ftl<M>, mut writing: Box<CheckpointWriter>, now: Nanos) -> bool {
        let mut moved = writing.reap(ftl);
        for _ in 0..PAGES_PER_TURN {
            writing.fill(ftl);
            if writing.encoder.buffered() == 0 || !writing.write_page(ftl, now) {
                break;
            }
            moved = true;
        }
        let written = writing.ended.is_some() && writing.encoder.buffered() == 0 && writing.in_flight == 0;
        if !written {
            self.state = CheckpointState::Writing(writing);
            return moved;
        }
        for block in &writing.blocks {
            let pages = if Some(block) == writing.blocks.last() { writing.page } else { PAGES_PER_BLOCK };
            ftl.blocks.close(*block, u8::try_from(pages).unwrap_or(u8::MAX));
        }
        // Every record that the checkpoint names must be durable before the old checkpoint is erased.
        let applied = ftl.applied();
        ftl.commit.want(applied);
        ftl.commit.want_flush();
        // A commit in flight began before the last page was done; the one after it covers everything.
        let commits = ftl.commit.commits + if ftl.commit.is_idle() { 1 } else { 2 };
        self.state = CheckpointState::Settling { id: writing.id, commits, blocks: writing.blocks };
        true
    }

    fn settle<M: Media>(&mut self, ftl: &mut Ftl<M>, id: u64, commits: u64, blocks: Vec<BlockId>) -> bool {
        if ftl.commit.commits < commits {
            if ftl.commit.is_idle() {
                ftl.commit.want_flush();
            }
            self.state = CheckpointState::Settling { id, commits, blocks };
            return false;
        }
        for old in std::mem::replace(&mut self.current, blocks) {
            ftl.blocks.discard(old);
        }
        ftl.stats.checkpoints += 1;
        true
    }
}

impl CheckpointWriter {
    /// Counts off the pages that were programmed.
    fn reap<M: Media>(&mut self, ftl: &mut Ftl<M>) -> bool {
        let done = std::mem::take(&mut ftl.checkpoint_done);
        self.in_flight -= done;
        done > 0
    }

    /// Encodes more of the stream until the buffer holds a page.
    fn fill<M: Media>(&mut self, ftl: &mut Ftl<M>) {
        while self.encoder.buffered() < PAGE_DATA_BYTES && self.ended.is_none() {
            if self.segment < SEGMENTS {
                self.encoder.segment(&ftl.index.hashed, self.segment);
                self.segment += 1;
            } else if !self.encoder.run(&ftl.index.flat) {
                self.encoder.end(ftl);
                let barrier = ftl.log.position();
                ftl.commit.want_barrier(barrier);
                self.ended = Some(barrier);
            }
        }
    }

    /// Returns true if the next page to write is the last one.
    fn is_last_page(&self) -> bool {
        self.ended.is_some() && self.encoder.buffered() <= PAGE_DATA_BYTES
    }

    /// Programs one page from the buffer. Returns false if no block, frame or media queue entry is free, and before the
    /// last page until everything that the index held is durable: the last page makes the checkpoint valid, and the
    /// checkpoint lacks removed entries, though a power cut could still undo their removal.
    fn write_page<M: Media>(&mut self, ftl: &mut Ftl<M>, now: Nanos) -> bool {
        let last = self.is_last_page();
        if last && self.ended.is_some_and(|barrier| ftl.commit.durable_barrier < barrier) {
            return false;
        }
        if self.page == PAGES_PER_BLOCK {
            if ftl.blocks.ready() <= ftl.reserve_blocks() {
                return false;
            }
            let Some(block) = ftl.blocks.open(ftl.log.sequence_next(), true) else {
                return false;
            };
            self.blocks.push(block);
            self.page = 0;
        }
        let (Some(&block), Some(mut frame)) = (self.blocks.last(), ftl.dram.take_frame()) else {
            return false;
        };
        let used = self.encoder.peek(&mut frame[..PAGE_DATA_BYTES]);
        let page = PageAddress::new(block, u8::try_from(self.page).unwrap_or(u8::MAX));
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            page: page.page,
            first: NO_RECORD,
            used: u16::try_from(used).unwrap_or(u16::MAX),
            order: ftl.blocks.get(block).order,
            open_sequence: ftl.blocks.get(block).open_sequence,
            durable_sequence: Sequence(0),
            durable_order: 0,
            continues: if last { self.part + 1 } else { 0 },
            context: stream::part(self.id, self.part),
        };
        spare.encode(&mut frame);
        match ftl.media.submit(MediaPurpose::Checkpoint.encode(), MediaOp::Program { page, frame }, now) {
            Ok(()) => {
                self.encoder.consume(used);
                self.page += 1;
                self.part += 1;
                self.in_flight += 1;
                ftl.stats.checkpoint_pages += 1;
                true
            }
            Err(RefusedOp { op: MediaOp::Program { frame, .. }, .. }) => {
                ftl.dram.put_back(frame);
                false
            }
            Err(_) => false,
        }
    }
}
