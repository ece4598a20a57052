//! Checkpoints: the index on flash, so that a start reads it and only the log behind it.
//!
//! In: the translation layer as it changes. Out: a stream of bytes (`checkpoint/stream.rs`, `docs/formats/checkpoint.md`)
//! on blocks of its own, written a few pages a turn.
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
use crate::index::hashed::SEGMENTS;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::media::{Media, MediaOp, MediaToken, Refused};
use crate::page::{NO_RECORD, PageKind, PageSpare};
use crate::utl::Utl;
use headwater_host::clock::Nanos;
use stream::Encoder;

/// Pages written in one turn.
const PAGES_PER_TURN: usize = 16;
/// A checkpoint is due when so many blocks were opened since the last one, or more for a large index.
const BLOCKS_BETWEEN: u64 = 512;

const TOKENS: u64 = 5 << 60;

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Wanting,
    /// Everything appended before the checkpoint must be durable before an entry may name it.
    Draining {
        barrier: u64,
        start_order: u64,
    },
    Writing(Box<Writing>),
    Settling {
        id: u64,
        commits: u64,
        blocks: Vec<BlockId>,
    },
}

/// A checkpoint being written.
#[derive(Debug)]
struct Writing {
    id: u64,
    encoder: Encoder,
    /// Next segment of the index; behind the last come the blocks and the tail, then nothing.
    segment: usize,
    /// Set behind the end of the stream: everything that the index knew then lies below this barrier.
    ended: Option<u64>,
    blocks: Vec<BlockId>,
    page: usize,
    part: u64,
    in_flight: usize,
}

/// Writes checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpointer {
    state: State,
    /// Blocks of the checkpoint that counts now.
    current: Vec<BlockId>,
    id_next: u64,
    since_order: u64,
}

impl Checkpointer {
    /// Goes on behind what recovery found.
    pub(crate) fn resume(&mut self, current: Vec<BlockId>, id_next: u64, since_order: u64) {
        self.current = current;
        self.id_next = id_next;
        self.since_order = since_order;
    }

    pub(crate) fn request(&mut self) {
        if matches!(self.state, State::Idle) {
            self.state = State::Wanting;
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// There is no room and none will come: the next start scans the log instead. Returns whether one was wanted.
    pub(crate) fn give_up<M>(&mut self, utl: &mut Utl<M>) -> bool {
        utl.set_aside = 0;
        let wanted = matches!(self.state, State::Wanting);
        if wanted {
            self.state = State::Idle;
        }
        wanted
    }

    /// A turn's work. Returns whether anything moved.
    pub(crate) fn advance<M: Media>(&mut self, utl: &mut Utl<M>, now: Nanos) -> bool {
        if utl.failed.is_some() {
            return false;
        }
        match std::mem::take(&mut self.state) {
            State::Idle => {
                self.start_if_due(utl);
                false
            }
            State::Wanting => self.drain(utl),
            State::Draining { barrier, start_order } => self.begin(utl, barrier, start_order),
            State::Writing(writing) => self.write(utl, writing, now),
            State::Settling { id, commits, blocks } => self.settle(utl, id, commits, blocks),
        }
    }

    fn start_if_due<M: Media>(&mut self, utl: &Utl<M>) {
        use crate::index::Index;
        let size = utl.index.len() * crate::index::hashed::ENTRY_BYTES as u64 / BLOCK_DATA_BYTES as u64;
        let opened = utl.blocks.order_next().saturating_sub(self.since_order);
        if opened > BLOCKS_BETWEEN.max(4 * size) && utl.blocks.len() as u64 > BLOCKS_BETWEEN / 4 {
            self.state = State::Wanting;
        }
    }

    /// Goes on when enough blocks are free; until then the collector is asked for them.
    fn drain<M: Media>(&mut self, utl: &mut Utl<M>) -> bool {
        let bytes = Encoder::size_estimate(utl);
        // The index may grow while it is written.
        let blocks = (bytes + bytes / 8).div_ceil(BLOCK_DATA_BYTES) + 1;
        if utl.blocks.free() < blocks + utl.low_blocks() || utl.collector.is_cleaning_up() {
            self.state = State::Wanting;
            utl.set_aside = blocks + utl.low_blocks();
            return utl.collector.demand(blocks);
        }
        utl.set_aside = 0;
        let barrier = utl.log.position();
        utl.commit.want_barrier(barrier);
        self.state = State::Draining { barrier, start_order: utl.log.order(&utl.blocks) };
        true
    }

    fn begin<M: Media>(&mut self, utl: &mut Utl<M>, barrier: u64, start_order: u64) -> bool {
        if utl.commit.durable_barrier < barrier {
            self.state = State::Draining { barrier, start_order };
            return false;
        }
        self.since_order = utl.blocks.order_next();
        self.state = State::Writing(Box::new(Writing {
            id: self.id_next,
            encoder: Encoder::begin(utl, self.id_next, start_order),
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

    fn write<M: Media>(&mut self, utl: &mut Utl<M>, mut writing: Box<Writing>, now: Nanos) -> bool {
        let mut moved = writing.reap(utl);
        for _ in 0..PAGES_PER_TURN {
            writing.fill(utl);
            if writing.encoder.buffered() == 0 || !writing.write_page(utl, now) {
                break;
            }
            moved = true;
        }
        let written = writing.ended.is_some() && writing.encoder.buffered() == 0 && writing.in_flight == 0;
        if !written {
            self.state = State::Writing(writing);
            return moved;
        }
        for block in &writing.blocks {
            let pages = if Some(block) == writing.blocks.last() { writing.page } else { PAGES_PER_BLOCK };
            utl.blocks.close(*block, u8::try_from(pages).unwrap_or(u8::MAX));
        }
        // Every record that the checkpoint names must be durable before it counts.
        let applied = utl.applied();
        utl.commit.want(applied);
        utl.commit.want_flush();
        // A commit that is under way began before the last page was done; the one after it covers everything.
        let commits = utl.commit.commits + if utl.commit.is_idle() { 1 } else { 2 };
        self.state = State::Settling { id: writing.id, commits, blocks: writing.blocks };
        true
    }

    fn settle<M: Media>(&mut self, utl: &mut Utl<M>, id: u64, commits: u64, blocks: Vec<BlockId>) -> bool {
        if utl.commit.commits < commits {
            if utl.commit.is_idle() {
                utl.commit.want_flush();
            }
            self.state = State::Settling { id, commits, blocks };
            return false;
        }
        for old in std::mem::replace(&mut self.current, blocks) {
            utl.blocks.discard(old);
        }
        utl.stats.checkpoints += 1;
        true
    }
}

impl Writing {
    /// Takes back the frames of pages that were programmed.
    fn reap<M: Media>(&mut self, utl: &mut Utl<M>) -> bool {
        let done = std::mem::take(&mut utl.checkpoint_done);
        self.in_flight -= done;
        done > 0
    }

    /// Puts more of the stream into the buffer, so that a page can be cut from it.
    fn fill<M: Media>(&mut self, utl: &mut Utl<M>) {
        while self.encoder.buffered() < PAGE_DATA_BYTES && self.ended.is_none() {
            if self.segment < SEGMENTS {
                self.encoder.segment(&utl.index.hashed, self.segment);
                self.segment += 1;
            } else if !self.encoder.run(&utl.index.flat) {
                self.encoder.end(utl);
                let barrier = utl.log.position();
                utl.commit.want_barrier(barrier);
                self.ended = Some(barrier);
            }
        }
    }

    /// Whether the page to be written next is the last one.
    fn is_last_page(&self) -> bool {
        self.ended.is_some() && self.encoder.buffered() <= PAGE_DATA_BYTES
    }

    /// Programs one page from the buffer. False when blocks, frames or the media's queue are short, and before the last
    /// page until everything that the index knew is durable: the last page makes the checkpoint count, and it lacks what
    /// a removal took away, though a power cut could still undo the removal.
    fn write_page<M: Media>(&mut self, utl: &mut Utl<M>, now: Nanos) -> bool {
        let last = self.is_last_page();
        if last && self.ended.is_some_and(|barrier| utl.commit.durable_barrier < barrier) {
            return false;
        }
        if self.page == PAGES_PER_BLOCK {
            if utl.blocks.ready() <= utl.reserve_blocks() {
                return false;
            }
            let Some(block) = utl.blocks.open(utl.log.sequence_next(), true) else {
                return false;
            };
            self.blocks.push(block);
            self.page = 0;
        }
        let (Some(&block), Some(mut frame)) = (self.blocks.last(), utl.dram.take_frame()) else {
            return false;
        };
        let used = self.encoder.peek(&mut frame[..PAGE_DATA_BYTES]);
        let page = PageAddress::new(block, u8::try_from(self.page).unwrap_or(u8::MAX));
        let spare = PageSpare {
            kind: PageKind::Checkpoint,
            page: page.page,
            first: NO_RECORD,
            used: u16::try_from(used).unwrap_or(u16::MAX),
            order: utl.blocks.get(block).order,
            open_sequence: utl.blocks.get(block).open_sequence,
            durable_sequence: Sequence(0),
            durable_order: 0,
            continues: if last { self.part + 1 } else { 0 },
            context: stream::part(self.id, self.part),
        };
        spare.encode(&mut frame);
        match utl.media.submit(MediaToken(TOKENS), MediaOp::Program { page, frame }, now) {
            Ok(()) => {
                self.encoder.consume(used);
                self.page += 1;
                self.part += 1;
                self.in_flight += 1;
                utl.stats.checkpoint_pages += 1;
                true
            }
            Err(Refused { op: MediaOp::Program { frame, .. }, .. }) => {
                utl.dram.put_back(frame);
                false
            }
            Err(_) => false,
        }
    }
}

/// Whether a token is that of a checkpoint's program.
pub(crate) const fn is_checkpoint(token: MediaToken) -> bool {
    token.0 >> 60 == 5
}
