//! The order of trial: how a request is served out of what there is.
//!
//! In: a [`Want`]. Out: a payload, or why there is none now. A free run, several free runs, growth, growth in the place of
//! idle chunks, what the caches of threads hold; node by node, the closest first. Invariant: nothing here waits, and a
//! node that refuses leaves the next one its turn.

use super::arena::{Arena, GrowError};
use super::cache::Class;
use super::depot::{Depot, Grant, Which, locked};
use super::error::PoolError;
use super::home::Home;
use super::request::Zeroed;
use super::threads::{try_cache, with_cache};
use super::want::Want;
use crate::buffer::{Buffer, Payload, Scattered};
use headwater_host::reservation::{PAGE_BYTES, Span};
use headwater_host::sync::Ordering;

/// Most spans that a miss takes beside the one it came for.
const EXTRA_MAX: usize = 7;

impl Depot {
    /// A span of the class that serves `bytes` out of the calling thread's cache, and its arena: the short way.
    #[inline]
    pub(super) fn take_cached(&'static self, bytes: usize) -> Option<(Span, usize)> {
        let class = Class::serving(bytes)?;
        if !self.is_ours() {
            return None;
        }
        try_cache(self, |cache| Some((cache.pop(class)?, cache.arena())))?
    }

    /// The same for a request, whichever cache was used last.
    pub(super) fn take_cached_for(&'static self, want: &Want) -> Option<(Span, usize)> {
        let class = want.class().filter(|_| self.caches)?;
        with_cache(self, |cache| {
            let arena = cache.arena();
            if want.arena.is_some_and(|wanted| wanted != arena) {
                return None;
            }
            Some((cache.pop_near(class)?, arena))
        })?
    }

    /// A free run of the closest arena for `bytes` bytes, where no cache stands before it and nobody waits: the first steps
    /// of the trial and no more.
    pub(super) fn take_free_run(&'static self, bytes: usize) -> Option<(Span, usize)> {
        let class = Class::serving(bytes)?;
        if self.caches || self.line.pressure() || !self.is_ours() {
            return None;
        }
        let here = self.here();
        let mut guard = locked(&self.nodes[here].arena);
        let arena = guard.as_mut()?;
        let span = arena.contiguous(class.pages(), 1)?;
        arena.steps.contiguous += 1;
        Some((span, here))
    }

    /// Serves a request without waiting and without regard to those who wait.
    pub(super) fn attempt(&'static self, want: &Want) -> Grant {
        let here = self.here();
        let only = want.arena.unwrap_or(here);
        let order = match want.arena {
            Some(_) => std::slice::from_ref(&only),
            None => self.nodes[here].by_distance.as_slice(),
        };
        let (mut refusal, mut full) = (None, false);
        for round in 0..2 {
            for &index in order {
                match self.attempt_on(index, want) {
                    Ok(payload) => return Ok(payload),
                    Err(GrowError::Refused(error)) => refusal = Some(error),
                    Err(GrowError::Full) => full = true,
                }
            }
            if let Some(payload) = self.attempt_instead_of_idle(order, want) {
                return Ok(payload);
            }
            if round == 0 && !self.steal(Which::All) {
                break;
            }
        }
        let waiting = self.line.waiting();
        // Where one node is only full, waiting helps, whatever the others say.
        Err(refusal.filter(|_| !full).unwrap_or(PoolError::WouldBlock { bytes: want.bytes, waiting }))
    }

    fn attempt_on(&'static self, index: usize, want: &Want) -> Result<Payload, GrowError> {
        let class = want.class().filter(|_| self.caches);
        let room = class.map_or(0, |class| self.room(class, index));
        let mut extra = Vec::with_capacity(room);
        let node = &self.nodes[index];
        let mut guard = locked(&node.arena);
        let arena = guard.as_mut().ok_or(GrowError::Refused(PoolError::Closed))?;
        let served = match arena.serve(want) {
            Some(served) => served,
            None => {
                let chunk = self.chunk.load(Ordering::Relaxed);
                arena.grow(want, chunk, &self.config, &self.budget, &node.bindings)?;
                arena.steps.grown += 1;
                // The chunk has at least as many pages as are wanted, in a row.
                let Some(served) = arena.serve_grown(want) else { return Err(GrowError::Full) };
                served
            }
        };
        if let Some(class) = class {
            extra.extend((0..room).map_while(|_| arena.contiguous(class.pages(), 1)));
        }
        drop(guard);
        if let Some(class) = class {
            extra.into_iter().for_each(|span| self.keep(index, class, span));
        }
        Ok(self.payload(served, want.bytes, index))
    }

    /// Unpins idle chunks, on whatever node, if that leaves room for what is wanted, and grows.
    fn attempt_instead_of_idle(&'static self, order: &[usize], want: &Want) -> Option<Payload> {
        let granule = self.config.granule();
        let bytes = (want.pages as usize * PAGE_BYTES).next_multiple_of(granule);
        let idle: usize = self.nodes.iter().map(|node| self.idle_bytes(node)).sum();
        let missing = bytes.saturating_sub(self.budget.left());
        if missing == 0 || missing > idle {
            return None;
        }
        let mut back = 0;
        for node in &self.nodes {
            back += self.retire(node, missing.saturating_sub(back), |_, _| true);
        }
        order.iter().find_map(|&index| self.attempt_on(index, want).ok())
    }

    fn payload(&'static self, served: Served, bytes: usize, arena: usize) -> Payload {
        let home = Home::new(self, arena);
        match served {
            Served::One(span) => Payload::Contiguous(Buffer::new(span, bytes, home)),
            Served::Several(spans) => Payload::Scattered(Scattered::new(spans, bytes, home)),
        }
    }

    /// How many spans of a class this thread's cache would keep beside one, at most a batch.
    fn room(&'static self, class: Class, arena: usize) -> usize {
        if self.line.pressure() {
            return 0;
        }
        let wanted = (class.batch() - 1).min(EXTRA_MAX);
        let bytes = wanted * class.bytes();
        let here = self.here();
        let room = with_cache(self, |cache| {
            if cache.arena() != arena && arena == here {
                // The thread has moved to another node since its cache was made.
                cache.follow(arena);
            }
            if cache.arena() != arena {
                return 0;
            }
            if cache.room() < bytes {
                cache.grant(self.take_quota(bytes));
            }
            cache.room() / class.bytes()
        });
        room.unwrap_or(0).min(wanted)
    }
}

/// Spans for a request.
#[derive(Debug)]
pub(super) enum Served {
    One(Span),
    Several(Vec<Span>),
}

impl Arena {
    /// Free memory in the shape that is wanted.
    #[inline]
    fn serve(&mut self, want: &Want) -> Option<Served> {
        if let Some(span) = self.contiguous(want.roomy_pages(), want.align_pages) {
            self.steps.contiguous += 1;
            return Some(Served::One(span));
        }
        self.serve_slowly(want)
    }

    #[cold]
    fn serve_slowly(&mut self, want: &Want) -> Option<Served> {
        if self.join_aside()
            && let Some(span) = self.contiguous(want.roomy_pages(), want.align_pages)
        {
            self.steps.contiguous += 1;
            return Some(Served::One(span));
        }
        if let Some(span) = self.joined(want.pages, want.align_pages) {
            self.steps.contiguous += 1;
            return Some(Served::One(span));
        }
        let spans = self.scattered(want)?;
        self.steps.scattered += 1;
        Some(Served::Several(spans))
    }

    /// The same out of a chunk that has just been added, which is counted as growth.
    fn serve_grown(&mut self, want: &Want) -> Option<Served> {
        let span = self.contiguous(want.roomy_pages(), want.align_pages);
        span.or_else(|| self.joined(want.pages, want.align_pages)).map(Served::One)
    }
}

/// The payload with zeroes in it, if zeroes were asked for.
#[inline]
pub(super) fn finish(mut payload: Payload, zeroed: Zeroed) -> Payload {
    if zeroed == Zeroed::Yes {
        payload.pieces_mut().for_each(|piece| piece.fill(0));
    }
    payload
}
