//! Strict priority with a bound on starvation.
//!
//! Input: requests with classes, 0 the most urgent. Output: requests of the most urgent class, unless a less urgent one
//! was overtaken up to the bound. Invariant: between two requests served of a class that has waiting requests, at most
//! the bound plus one request of each other class are served.

use super::{CLASSES, QueuedRequest, take_from};
use std::collections::VecDeque;

#[derive(Debug, Default)]
struct PriorityRank {
    waiting: VecDeque<QueuedRequest>,
    /// The number of requests of other classes served since its last one or since it became busy.
    overtaken: u32,
}

#[derive(Debug)]
pub(super) struct PriorityQueues {
    overtakes_max: u32,
    ranks: [PriorityRank; CLASSES],
}

impl PriorityQueues {
    pub(super) fn new(overtakes_max: u32) -> Self {
        Self { overtakes_max, ranks: Default::default() }
    }

    pub(super) fn push(&mut self, queued: QueuedRequest) {
        let rank = &mut self.ranks[queued.waiting.class.index()];
        if rank.waiting.is_empty() {
            rank.overtaken = 0;
        }
        rank.waiting.push_back(queued);
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let chosen = self.choose()?;
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            if index != chosen && !rank.waiting.is_empty() {
                rank.overtaken = rank.overtaken.saturating_add(1);
            }
        }
        let rank = &mut self.ranks[chosen];
        rank.overtaken = 0;
        rank.waiting.pop_front().map(|queued| queued.waiting.slot)
    }

    /// Returns the class that was overtaken most, at or beyond the bound; else the most urgent class with waiting
    /// requests.
    fn choose(&self) -> Option<usize> {
        let waiting = || self.ranks.iter().enumerate().filter(|(_, rank)| !rank.waiting.is_empty());
        let starved = waiting().filter(|(_, rank)| rank.overtaken >= self.overtakes_max);
        let most = starved.max_by_key(|&(index, rank)| (rank.overtaken, CLASSES - index));
        most.or_else(|| waiting().next()).map(|(index, _)| index)
    }

    pub(super) fn remove(&mut self, slot: u32) -> bool {
        self.ranks.iter_mut().any(|rank| take_from(&mut rank.waiting, slot))
    }

    pub(super) fn take_all(&mut self) -> Vec<QueuedRequest> {
        self.ranks.iter_mut().flat_map(|rank| std::mem::take(&mut rank.waiting)).collect()
    }
}
