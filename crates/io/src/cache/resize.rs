//! More memory, or less.
//!
//! In: a wish for pages. Out: blocks of memory taken, or given back by being dropped. Invariant: what shrinks loses no
//! dirty page and no frame under a transfer; the pages worth most stay, in other frames if theirs go.

use super::config::CacheError;
use super::frames::{List, Marks, NONE, State};
use super::lower::Lower;
use super::replacement::share;
use super::request::{Action, Finished, Owner, Pending, Submitted};
use super::shape::PAGE_BYTES;
use super::{Cache, PAGES_LEAST};
use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_nvme::spec::status::Status;

/// A change to fewer pages.
#[derive(Debug)]
pub(super) struct Shrink {
    request: u64,
    blocks: usize,
    /// Frames that still hold something.
    left: Vec<u32>,
    retired: usize,
    failure: Option<Status>,
}

impl Shrink {
    pub(super) fn retired(&self) -> usize {
        self.retired
    }
}

impl Cache {
    /// Changes how many pages there are, rounded up to blocks. A larger cache is larger at once. A smaller one writes
    /// back what is dirty in the memory that goes, and waits for what is in flight there; if a page cannot be written
    /// the cache stays as it was, and the status says why.
    ///
    /// # Errors
    /// [`IoError::Cache`] for an impossible number, or while it shrinks already; what `memory` fails with.
    pub fn resize<L: Lower>(
        &mut self,
        lower: &mut L,
        owner: Owner,
        (pages, token): (usize, u64),
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Submitted, IoError> {
        super::CacheConfig { pages, ..self.config }.check()?;
        if let Some(status) = self.gone {
            return Err(CacheError::Gone(status).into());
        }
        if self.shrink.is_some() {
            return Err(CacheError::Shrinking.into());
        }
        if !self.owners.is_here(owner.0) {
            return Err(CacheError::Left.into());
        }
        let blocks = self.config.blocks(pages.max(PAGES_LEAST));
        if blocks >= self.frames.blocks() {
            self.grow(blocks, memory)?;
            let finished = Finished { token, status: Status::SUCCESS, data: None };
            return Ok(Submitted::Done(finished));
        }
        self.owners.begin(owner.0);
        let request = self.requests.insert(Pending::of(owner, token, Action::Shrink));
        let kept = blocks * self.config.block_pages;
        self.kept = u32::try_from(kept).unwrap_or(NONE);
        let left = (self.kept..).take(self.frames.count() - kept).collect();
        self.shrink = Some(Shrink { request, blocks, left, retired: 0, failure: None });
        self.dirty_background = share(kept, self.config.dirty_background);
        self.dirty_most = share(kept, self.config.dirty_most);
        // What failed before gets another try before it decides.
        self.hurry(List::Failed);
        self.settle(lower);
        Ok(Submitted::Later)
    }

    /// Takes blocks of memory until there are so many; all of them, or none.
    pub(super) fn grow(
        &mut self,
        blocks: usize,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<(), IoError> {
        let needed = self.config.block_pages * PAGE_BYTES;
        let mut taken = Vec::new();
        for _ in self.frames.blocks()..blocks {
            let block = memory(needed)?;
            if block.bytes() < needed {
                return Err(CacheError::Memory { bytes: block.bytes(), needed }.into());
            }
            taken.push(block);
        }
        for block in taken {
            self.frames.add(block);
        }
        self.resized();
        Ok(())
    }

    pub(super) fn advance_shrink(&mut self) {
        let Some(mut shrink) = self.shrink.take() else { return };
        let mut left = std::mem::take(&mut shrink.left);
        let before = left.len();
        left.retain(|&frame| !self.retire(frame, &mut shrink));
        shrink.retired += before - left.len();
        shrink.left = left;
        if !shrink.left.is_empty() && shrink.failure.is_none() {
            self.shrink = Some(shrink);
            return;
        }
        let kept = std::mem::replace(&mut self.kept, NONE);
        if shrink.left.is_empty() {
            self.frames.keep_blocks(shrink.blocks);
        } else {
            for frame in (kept..).take(self.frames.count() - kept as usize) {
                if self.frames.of(frame).state == State::Retired {
                    self.release(frame);
                }
            }
        }
        self.resized();
        if let Some(mut pending) = self.requests.take(shrink.request) {
            if let Some(status) = shrink.failure.filter(|_| !shrink.left.is_empty()) {
                pending.fail(status);
            }
            self.finish(shrink.request, pending);
        }
        self.stirred = true;
    }

    /// Empties a frame whose memory goes. `false`: not yet.
    fn retire(&mut self, frame: u32, shrink: &mut Shrink) -> bool {
        loop {
            let at = *self.frames.of(frame);
            match at.state {
                State::Retired => return true,
                State::Free => {
                    self.frames.unlink(frame);
                    self.frames.at(frame).state = State::Retired;
                    return true;
                }
                State::Filling | State::Writing => return false,
                State::Idle if at.marks.has(Marks::DIRTY) => {
                    match self.frames.list(frame) {
                        List::Dirty => {
                            self.frames.unlink(frame);
                            self.frames.push_back(List::Urgent, frame);
                        }
                        List::Failed => shrink.failure = Some(self.failure),
                        _ => {}
                    }
                    return false;
                }
                State::Idle => {}
            }
            // A clean page: to another frame, for which the page worth least makes room, perhaps this one.
            match self.frames.first(List::Free) {
                Some(to) if to < self.kept => {
                    self.frames.move_to(frame, to);
                    self.index.set(at.page, to);
                    self.frames.at(frame).state = State::Retired;
                    return true;
                }
                Some(other) => {
                    // Memory that goes, too.
                    self.frames.unlink(other);
                    self.frames.at(other).state = State::Retired;
                }
                None => {
                    if self.evict().is_none() {
                        self.drop_page(frame);
                    }
                }
            }
        }
    }
}
