//! Queue arbitration: round robin, and weighted round robin with an urgent class (NVMe Base 2.0 section 3.4.4).
//!
//! Input: queue numbers with their priorities, and whether each candidate had an entry. Output: the queue to fetch from
//! next. Invariant: with round robin, a queue that has commands is reached after at most one burst of each other queue;
//! with weights, after at most one round of credits for each turn of the queues before it in its class, as long as no
//! urgent command waits. Only adding a queue allocates.
//!
//! ```text
//!   round robin:   one circle, the admin queue in it
//!   weighted:      admin  >  urgent  >  [ high: its credits | medium: its credits | low: its credits ], repeated
//! ```

use crate::controller::queue::QueueId;
use crate::spec::priority::QueuePriority;

/// The number of weighted classes.
const WEIGHTED: usize = 3;
/// A burst without a limit: the maximum number of entries in a queue.
const BURST_UNLIMITED: u32 = 1 << 16;
/// The Arbitration Burst value that means no limit.
const BURST_CODE_UNLIMITED: u32 = 7;

/// The mechanism by which a controller selects among its submission queues (CC.AMS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueArbitration {
    /// Each queue in turn.
    #[default]
    RoundRobin,
    /// Admin, then urgent, then high, medium and low by weight.
    WeightedWithUrgent,
}

/// The Arbitration feature (01h; NVMe Base 2.0 section 5.27.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbitrationSettings {
    /// The maximum number of entries taken from one queue in a row.
    burst: u32,
    /// Entries per round of the high, medium and low class.
    weights: [u32; WEIGHTED],
}

impl ArbitrationSettings {
    /// Returns settings with that burst and one entry per round for each class.
    #[must_use]
    pub const fn with_burst(burst: u16) -> Self {
        Self { burst: if burst == 0 { 1 } else { burst as u32 }, weights: [1; WEIGHTED] }
    }

    /// Decodes dword 11 of Set Features. Every value is valid.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [burst, low, medium, high] = dword.to_le_bytes();
        let burst = match burst as u32 & 0x7 {
            BURST_CODE_UNLIMITED => BURST_UNLIMITED,
            exponent => 1 << exponent,
        };
        Self { burst, weights: [high as u32 + 1, medium as u32 + 1, low as u32 + 1] }
    }
}

/// Queues that take turns.
#[derive(Debug, Default)]
struct QueueRotation {
    /// In the order of creation.
    queues: Vec<QueueId>,
    /// Index of the queue whose turn it is.
    turn: usize,
    /// Entries taken in this turn.
    taken: u32,
}

/// A search for the next entry.
#[derive(Debug)]
pub(crate) struct ScheduleSearch {
    stage: SearchStage,
    /// The remaining polls of queues of this stage.
    polls_left: usize,
}

#[derive(Clone, Copy, Debug)]
enum SearchStage {
    /// The first group: the admin queue, or all queues with round robin.
    First,
    /// The urgent class.
    Urgent,
    /// The weighted classes, with the number of classes that the search has finished.
    Weighted(usize),
}

/// The arbitration state: selects the next queue.
#[derive(Debug)]
pub(crate) struct ArbitrationSchedule {
    mechanism: QueueArbitration,
    settings: ArbitrationSettings,
    /// The admin queue; with round robin, every queue.
    admin_or_all: QueueRotation,
    urgent: QueueRotation,
    weighted: [QueueRotation; WEIGHTED],
    /// The weighted class that is being served.
    class: usize,
    /// Entries left in its share of the round.
    credits: u32,
}

impl ArbitrationSchedule {
    pub(crate) fn new(mechanism: QueueArbitration, settings: ArbitrationSettings) -> Self {
        Self {
            mechanism,
            settings,
            admin_or_all: QueueRotation::default(),
            urgent: QueueRotation::default(),
            weighted: Default::default(),
            class: 0,
            credits: settings.weights[0],
        }
    }

    /// Sets burst and weights. Entries that the current class has already taken count against its new weight.
    pub(crate) fn set(&mut self, settings: ArbitrationSettings) {
        let used = self.settings.weights[self.class] - self.credits;
        self.credits = settings.weights[self.class].saturating_sub(used);
        self.settings = settings;
    }

    /// Appends a queue to its class.
    pub(crate) fn add(&mut self, id: QueueId, priority: QueuePriority) {
        let circle = match (self.mechanism, priority) {
            (QueueArbitration::RoundRobin, _) => &mut self.admin_or_all,
            _ if id == QueueId::ADMIN => &mut self.admin_or_all,
            (_, QueuePriority::Urgent) => &mut self.urgent,
            (_, QueuePriority::High) => &mut self.weighted[0],
            (_, QueuePriority::Medium) => &mut self.weighted[1],
            (_, QueuePriority::Low) => &mut self.weighted[2],
        };
        circle.queues.push(id);
    }

    /// Removes a queue; the turns of all other queues stay.
    pub(crate) fn remove(&mut self, id: QueueId) {
        for circle in [&mut self.admin_or_all, &mut self.urgent].into_iter().chain(&mut self.weighted) {
            circle.remove(id);
        }
    }

    /// Begins a search for the next entry.
    #[inline]
    pub(crate) fn search(&self) -> ScheduleSearch {
        ScheduleSearch { stage: SearchStage::First, polls_left: self.admin_or_all.polls_per_search() }
    }

    /// Returns the next queue to fetch from, or `None` when the search is over. The caller reports the outcome with
    /// [`record_entry`](Self::record_entry) or [`record_empty`](Self::record_empty). A search polls each queue a bounded number of times.
    #[inline]
    pub(crate) fn candidate(&mut self, search: &mut ScheduleSearch) -> Option<QueueId> {
        loop {
            if search.polls_left == 0 || self.out_of_credits(search.stage) {
                self.next_stage(search)?;
                continue;
            }
            let burst = self.settings.burst;
            let circle = self.rotation(search.stage);
            if circle.taken < burst {
                // A rotation without queues has no polls left.
                return circle.queues.get(circle.turn).copied();
            }
            circle.end_turn();
            search.polls_left -= 1;
        }
    }

    /// Counts the entry that the candidate had.
    #[inline]
    pub(crate) fn record_entry(&mut self, search: &ScheduleSearch) {
        self.rotation(search.stage).taken += 1;
        if let SearchStage::Weighted(_) = search.stage {
            self.credits -= 1;
        }
    }

    /// Ends the turn of the candidate, which had no entry.
    #[inline]
    pub(crate) fn record_empty(&mut self, search: &mut ScheduleSearch) {
        self.rotation(search.stage).end_turn();
        search.polls_left -= 1;
    }

    /// Advances to the queues after those of this stage, if there are any.
    fn next_stage(&mut self, search: &mut ScheduleSearch) -> Option<()> {
        search.stage = match search.stage {
            SearchStage::First if self.mechanism == QueueArbitration::RoundRobin => return None,
            SearchStage::First => SearchStage::Urgent,
            SearchStage::Urgent => SearchStage::Weighted(0),
            // The class that is being served may be polled again, with new credits, after the two other classes.
            SearchStage::Weighted(WEIGHTED) => return None,
            SearchStage::Weighted(seen) => SearchStage::Weighted(seen + 1),
        };
        if let SearchStage::Weighted(1..) = search.stage {
            self.end_share();
        }
        search.polls_left = self.rotation(search.stage).polls_per_search();
        Some(())
    }

    #[inline]
    fn out_of_credits(&self, stage: SearchStage) -> bool {
        self.credits == 0 && matches!(stage, SearchStage::Weighted(_))
    }

    #[inline]
    fn rotation(&mut self, stage: SearchStage) -> &mut QueueRotation {
        match stage {
            SearchStage::First => &mut self.admin_or_all,
            SearchStage::Urgent => &mut self.urgent,
            SearchStage::Weighted(_) => &mut self.weighted[self.class],
        }
    }

    /// Begins the share of the next class.
    fn end_share(&mut self) {
        let circle = &mut self.weighted[self.class];
        if circle.taken > 0 {
            circle.end_turn();
        }
        self.class = (self.class + 1) % WEIGHTED;
        self.credits = self.settings.weights[self.class];
    }
}

impl QueueRotation {
    /// Returns the number of polls in one search: one per queue, and a second one for the queue whose turn it is.
    #[inline]
    fn polls_per_search(&self) -> usize {
        if self.queues.is_empty() { 0 } else { self.queues.len() + 1 }
    }

    #[inline]
    fn end_turn(&mut self) {
        self.taken = 0;
        self.turn += 1;
        if self.turn >= self.queues.len() {
            self.turn = 0;
        }
    }

    fn remove(&mut self, id: QueueId) {
        let Some(at) = self.queues.iter().position(|&queue| queue == id) else {
            return;
        };
        self.queues.remove(at);
        if at < self.turn {
            self.turn -= 1;
        } else if at == self.turn {
            self.taken = 0;
        }
        if self.turn >= self.queues.len() {
            self.turn = 0;
        }
    }
}

#[cfg(test)]
mod tests;
