//! A block cache: pages of a device in registered memory.
//!
//! In: requests in bytes, answers from a [`Lower`]. Out: [`Finished`] requests, transfers of whole pages. Invariants: what
//! is read is what was written last, whether through the cache or past it; a page that was acknowledged and is not on the
//! device stays until it is; a flush that succeeds finds everything written before on the device, durable.
//!
//! It is a state machine: no clock, no thread, no queue of its own. Who drives it
//! - tries [`read_hit`](Cache::read_hit) and [`write_hit`](Cache::write_hit) with slices, which never wait, or
//! - [`submit`](Cache::submit)s a [`Request`] with a token of its choice: [`Submitted::Done`] at once, or later;
//! - calls [`turn`](Cache::turn) whenever the device may have answered, and when [`next_deadline`](Cache::next_deadline)
//!   has come, with the time;
//! - then [`take`](Cache::take)s what is finished.
//!
//! The [`Lower`] is handed in with each call and must be the same one each time; tickets are the cache's own. All
//! requests on the device's bytes must come here, direct ones too: that is what keeps both ways coherent. Before a cache
//! is dropped it is flushed, or what is dirty is lost.
//!
//! Several threads use one cache as a [`SharedCache`]. Two caches over the same bytes know nothing of each other.

pub use config::{CacheConfig, CacheError, PAGES_LEAST, WritePolicy};
pub use handle_lower::{HandleLower, LISTS_BYTES};
pub use lower::{Done, Kind, Lower, LowerLimits, NotTaken, Transfer};
pub use request::{Finished, Owner, Refused, Request, Submitted};
pub use shape::{PAGE_BYTES, Shape};
pub use shared::{Member, SharedCache};
pub use statistics::CacheStatistics;

use crate::buffer::Buffer;
use crate::error::IoError;
use direct::Lock;
use flight::{Flight, Outbox};
use flush::Flushes;
use frames::{Frames, List, Marks, NONE, State};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use index::Index;
use owner::Owners;
use replacement::{Replacement, share};
use request::{Action, Pending};
use resize::Shrink;
use shape::{PAGE, Part, pages_of, to_u64};
use slots::Slots;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

mod carry;
mod config;
mod direct;
mod flight;
mod flush;
mod frames;
mod handle_lower;
mod index;
mod lower;
mod owner;
mod replacement;
mod request;
mod resize;
mod shape;
mod shared;
mod slots;
mod statistics;
mod streams;
mod write_back;

/// A request that waits for a page.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    request: u64,
    /// For what: its bytes, or that they are on the device.
    written: bool,
}

/// A block cache.
#[derive(Debug)]
pub struct Cache {
    shape: Shape,
    config: CacheConfig,
    limits: LowerLimits,
    now: Nanos,
    frames: Frames,
    index: Index,
    replacement: Replacement,
    owners: Owners,
    requests: Slots<Pending>,
    /// Who waits for which frame.
    waiters: BTreeMap<u32, Vec<Waiter>>,
    /// Requests that found no room, or a locked page.
    parked: VecDeque<u64>,
    /// Ranges under direct writes, in the order they came.
    locks: Vec<Lock>,
    flights: Slots<Flight>,
    outbox: Outbox,
    write_backs: u32,
    dirty: usize,
    dirty_background: usize,
    dirty_most: usize,
    aheads: Vec<Range<u64>>,
    flushes: Flushes,
    failure: Status,
    shrink: Option<Shrink>,
    /// The first frame whose memory goes, while it shrinks.
    kept: u32,
    /// Something happened that may let what waits go on.
    stirred: bool,
    gone: Option<Status>,
    statistics: CacheStatistics,
}

impl Cache {
    /// A cache of memory that `memory` gives in blocks of so many bytes, each on a page, registered with the device.
    ///
    /// # Errors
    /// [`IoError::Cache`] for an impossible configuration, and what `memory` fails with.
    pub fn new(
        shape: Shape,
        config: CacheConfig,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Self, IoError> {
        shape.check()?;
        config.check()?;
        let limits = LowerLimits { transfer_bytes_max: PAGE_BYTES, segments_max: 1, range_bytes_max: PAGE };
        let mut cache = Self {
            shape,
            config,
            limits,
            now: Nanos::ZERO,
            frames: Frames::new(config.block_pages),
            index: Index::with_room(0),
            replacement: Replacement::for_frames(0),
            owners: Owners::default(),
            requests: Slots::new(),
            waiters: BTreeMap::new(),
            parked: VecDeque::new(),
            locks: Vec::new(),
            flights: Slots::new(),
            outbox: Outbox::default(),
            write_backs: 0,
            dirty: 0,
            dirty_background: 0,
            dirty_most: 0,
            aheads: Vec::new(),
            flushes: Flushes::default(),
            failure: Status::INTERNAL_ERROR,
            shrink: None,
            kept: NONE,
            stirred: false,
            gone: None,
            statistics: CacheStatistics::default(),
        };
        cache.grow(config.blocks(config.pages), memory)?;
        Ok(cache)
    }

    /// What is cached.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How it behaves.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// A new user: its own finished requests, its own streams of reads, its own news of failed writes.
    pub fn join(&mut self) -> Owner {
        self.owners.join()
    }

    /// A user goes. What it began goes on; nobody is told.
    pub fn leave(&mut self, owner: Owner) {
        self.owners.leave(owner);
    }

    /// Copies bytes that are all here. `false`: nothing was copied, ask by [`submit`](Self::submit).
    #[inline]
    pub fn read_hit(&mut self, owner: Owner, offset: u64, into: &mut [u8]) -> bool {
        let bytes = to_u64(into.len());
        if !self.is_here(offset, bytes, State::Writing) {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        for page in first..end {
            let part = Part::of(page, offset, bytes);
            if let Some(frame) = self.index.find(page) {
                self.frames.read(frame, part.at, &mut into[part.start..part.start + part.bytes]);
                self.touch(owner.0, page, frame);
            }
        }
        self.note_read(owner.0, first, end);
        true
    }

    /// Copies bytes onto pages that are all here, to be written back. `false`: nothing was copied, ask by
    /// [`submit`](Self::submit).
    #[inline]
    pub fn write_hit(&mut self, owner: Owner, offset: u64, from: &[u8]) -> bool {
        let bytes = to_u64(from.len());
        let back = self.config.policy == WritePolicy::Back;
        if !back || !self.is_here(offset, bytes, State::Idle) {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        if to_u64(self.dirty_most.saturating_sub(self.dirty)) < end - first {
            return false;
        }
        for page in first..end {
            let part = Part::of(page, offset, bytes);
            if let Some(frame) = self.index.find(page) {
                self.frames.write(frame, part.at, &from[part.start..part.start + part.bytes]);
                self.touch(owner.0, page, frame);
                self.soil(frame, false);
            }
        }
        true
    }

    /// Whether every page of a range is here, and idle or at most in `busiest`.
    #[inline]
    fn is_here(&self, offset: u64, bytes: u64, busiest: State) -> bool {
        if self.shape.check_range(offset, bytes).is_err() || !self.locks.is_empty() || self.gone.is_some() {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        (first..end).all(|page| {
            self.index.find(page).is_some_and(|frame| {
                let state = self.frames.of(frame).state;
                state == State::Idle || state == busiest
            })
        })
    }

    /// Takes a request. After [`Submitted::Later`] exactly one [`Finished`] with the token follows.
    ///
    /// # Errors
    /// [`Refused`] for a range beyond the end, direct I/O on less than blocks, or a device that is gone.
    pub fn submit<L: Lower>(
        &mut self,
        lower: &mut L,
        owner: Owner,
        request: Request,
        token: u64,
    ) -> Result<Submitted, Refused> {
        if let Err(error) = self.admit_request(owner, &request) {
            return Err(Refused { request, error });
        }
        let mut pending = Pending::new(owner, token, request);
        if self.config.policy == WritePolicy::Through
            && let Action::Write { through, .. } = &mut pending.action
        {
            *through = true;
        }
        if pending.bytes == 0 && pending.action != Action::Flush {
            return Ok(Submitted::Done(pending.finished()));
        }
        self.limits = lower.limits();
        match pending.action {
            Action::Flush => return Ok(self.begin_flush(lower, pending)),
            Action::Direct { kind, .. } if kind != Kind::Read || !self.is_newer(&pending) => {
                self.owners.begin(owner.0);
                self.begin_direct(kind, pending);
            }
            _ => {
                if matches!(pending.action, Action::Direct { .. }) {
                    pending.action = Action::Read;
                }
                if !matches!(pending.action, Action::Write { .. }) {
                    self.note_read(owner.0, pending.next, pending.end);
                }
                if self.carry_here(&mut pending) {
                    self.do_due(lower);
                    return Ok(Submitted::Done(pending.finished()));
                }
                self.owners.begin(owner.0);
                let key = self.requests.insert(pending);
                self.carry(key);
            }
        }
        self.settle(lower);
        Ok(Submitted::Later)
    }

    fn admit_request(&self, owner: Owner, request: &Request) -> Result<(), CacheError> {
        if let Some(status) = self.gone {
            return Err(CacheError::Gone(status));
        }
        if !self.owners.is_here(owner.0) {
            return Err(CacheError::Left);
        }
        let (offset, bytes) = request.range();
        self.shape.check_range(offset, bytes)?;
        if request.is_direct() { self.shape.check_blocks(offset, bytes) } else { Ok(()) }
    }

    /// Takes the answers that have come and does what is due at this time.
    pub fn turn<L: Lower>(&mut self, lower: &mut L, now: Nanos) {
        self.now = self.now.max(now);
        if self.gone.is_none() {
            self.collect(lower);
        }
        self.retry_failed();
        self.settle(lower);
    }

    /// The next request of a user that is finished.
    #[inline]
    pub fn take(&mut self, owner: Owner) -> Option<Finished> {
        self.owners.take(owner.0)
    }

    /// Requests and transfers under way: with none, nothing happens but by age.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len() + self.flights.len()
    }

    /// Whether [`turn`](Self::turn) has something to begin, after hits that did not go through
    /// [`submit`](Self::submit).
    #[must_use]
    #[inline]
    pub fn is_work_due(&self) -> bool {
        let back = self.frames.len(List::Dirty) > self.dirty_background
            && self.write_backs < self.config.write_backs;
        !self.aheads.is_empty() || self.frames.len(List::Urgent) > 0 || back
    }

    /// When a dirty page is next too old.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let oldest = |list| self.frames.first(list).map(|frame| self.frames.of(frame).since);
        let first = oldest(List::Dirty).into_iter().chain(oldest(List::Failed)).min()?;
        Some(first.after(self.config.dirty_age))
    }

    /// Answers writes as `policy` says, from now on. What is dirty is written back soon after a change to
    /// [`WritePolicy::Through`]; a flush waits for it.
    pub fn set_policy<L: Lower>(&mut self, lower: &mut L, policy: WritePolicy) {
        self.config.policy = policy;
        if policy == WritePolicy::Through {
            self.hurry(List::Dirty);
            self.settle(lower);
        }
    }

    /// Reads ahead at most so many pages from now on; 0 for none.
    pub fn set_ahead_pages(&mut self, pages: u32) {
        self.config.ahead_pages = pages;
    }

    /// What it counted, and how things stand.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let pages = |count: usize| to_u64(count) * PAGE;
        let retired = self.shrink.as_ref().map_or(0, Shrink::retired);
        let resident = self.frames.count() - self.frames.len(List::Free) - retired;
        CacheStatistics {
            dirty_bytes: pages(self.dirty),
            resident_bytes: pages(resident),
            capacity_bytes: pages(self.frames.count()),
            ..self.statistics
        }
    }

    /// Begins what hits made due, if anything.
    #[inline]
    pub fn do_due<L: Lower>(&mut self, lower: &mut L) {
        if self.is_work_due() {
            self.settle(lower);
        }
    }

    /// Does what can be done now, until nothing more can.
    fn settle<L: Lower>(&mut self, lower: &mut L) {
        self.limits = lower.limits();
        while self.gone.is_none() {
            self.stirred = false;
            self.resume_parked();
            self.launch_directs();
            self.advance_shrink();
            self.advance_flush();
            self.read_ahead();
            self.write_back();
            self.pump(lower);
            if !self.stirred && !self.give_up() {
                break;
            }
        }
    }

    /// Notes a use of a page that is here.
    #[inline]
    fn touch(&mut self, owner: u32, page: u64, frame: u32) {
        self.statistics.hits += 1;
        let again = self.owners.is_same_page(owner, page);
        let at = self.frames.at(frame);
        if at.marks.has(Marks::AHEAD) {
            // The use that it was read for proves nothing yet.
            at.marks.clear(Marks::AHEAD);
            self.statistics.ahead_used += 1;
        } else if !again && at.uses < replacement::USES_MOST {
            at.uses += 1;
        }
    }

    /// Notes a read for what it says of the next one.
    #[inline]
    fn note_read(&mut self, owner: u32, first: u64, end: u64) {
        if self.config.ahead_pages == 0 {
            return;
        }
        if let Some(pages) = self.owners.note(owner, first, end, self.config.ahead_pages) {
            self.aheads.push(pages);
        }
    }

    fn resized(&mut self) {
        let frames = self.frames.count();
        self.index = Index::with_room(frames);
        for (frame, page) in self.frames.in_use() {
            self.index.set(page, frame);
        }
        self.replacement = Replacement::for_frames(frames);
        self.dirty_background = share(frames, self.config.dirty_background);
        self.dirty_most = share(frames, self.config.dirty_most);
        self.config.pages = frames;
    }
}
