//! Whose turn it is: round robin, and weighted round robin with an urgent class (NVMe Base 2.0 section 3.4.4).
//!
//! In: queue numbers with their priorities, and which have something. Out: whose entry is next. Invariant: by
//! round robin a queue that has commands is reached after at most a burst of each other queue; by weight, after at most
//! one round of credits for each turn of the queues before it in its class, as long as nothing urgent waits. Nothing here
//! allocates but adding a queue.
//!
//! ```text
//!   round robin:   one circle, the admin queue in it
//!   weighted:      admin  >  urgent  >  [ high: its credits | medium: its credits | low: its credits ], again and again
//! ```

use crate::controller::queue::QueueId;

/// Classes that share by weight.
const WEIGHTED: usize = 3;
/// Entries in a row without a limit: all that a queue can hold.
const BURST_UNLIMITED: u32 = 1 << 16;
/// Arbitration Burst value that means no limit.
const BURST_CODE_UNLIMITED: u32 = 7;

/// How a controller chooses among its submission queues (CC.AMS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// Every queue in turn.
    #[default]
    RoundRobin,
    /// Admin, then urgent, then high, medium and low by weight.
    WeightedWithUrgent,
}

/// The class of a submission queue (QPRIO); without meaning in round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Before all other I/O queues.
    Urgent,
    /// High.
    High,
    /// Medium.
    Medium,
    /// Low.
    Low,
}

impl Priority {
    /// From the two bits of a Create I/O Submission Queue command.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 0x3 {
            0 => Self::Urgent,
            1 => Self::High,
            2 => Self::Medium,
            _ => Self::Low,
        }
    }

    /// The two bits of a Create I/O Submission Queue command.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        match self {
            Self::Urgent => 0,
            Self::High => 1,
            Self::Medium => 2,
            Self::Low => 3,
        }
    }
}

/// The Arbitration feature (01h; NVMe Base 2.0 section 5.27.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbitrationSettings {
    /// Most entries taken in a row from one queue.
    burst: u32,
    /// Entries a round of the high, medium and low class.
    weights: [u32; WEIGHTED],
}

impl ArbitrationSettings {
    /// That burst, and one entry a round for each class.
    #[must_use]
    pub const fn with_burst(burst: u16) -> Self {
        Self { burst: if burst == 0 { 1 } else { burst as u32 }, weights: [1; WEIGHTED] }
    }

    /// From dword 11 of Set Features. Every value means something.
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

/// Queues that take turns with each other.
#[derive(Debug, Default)]
struct Circle {
    /// In the order of creation.
    queues: Vec<QueueId>,
    /// Whose turn it is.
    turn: usize,
    /// Entries taken in this turn.
    taken: u32,
}

/// A search for the next entry.
#[derive(Debug)]
pub(crate) struct Search {
    stage: Stage,
    /// Looks that are left at the queues of this stage.
    looks: usize,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The first circle.
    First,
    /// The urgent class.
    Urgent,
    /// The classes that share by weight; how many of them the search has left behind.
    Weighted(usize),
}

/// Which queue comes next.
#[derive(Debug)]
pub(crate) struct Schedule {
    mechanism: Mechanism,
    settings: ArbitrationSettings,
    /// The admin queue; in round robin, every queue.
    first: Circle,
    urgent: Circle,
    weighted: [Circle; WEIGHTED],
    /// Which of the weighted classes has its part of the round.
    class: usize,
    /// Entries that are left of this part.
    credits: u32,
}

impl Schedule {
    pub(crate) fn new(mechanism: Mechanism, settings: ArbitrationSettings) -> Self {
        Self {
            mechanism,
            settings,
            first: Circle::default(),
            urgent: Circle::default(),
            weighted: Default::default(),
            class: 0,
            credits: settings.weights[0],
        }
    }

    /// New burst and weights. What the running part of a round has had counts against its new weight.
    pub(crate) fn set(&mut self, settings: ArbitrationSettings) {
        let used = self.settings.weights[self.class] - self.credits;
        self.credits = settings.weights[self.class].saturating_sub(used);
        self.settings = settings;
    }

    /// Puts a queue at the end of its circle.
    pub(crate) fn add(&mut self, id: QueueId, priority: Priority) {
        let circle = match (self.mechanism, priority) {
            (Mechanism::RoundRobin, _) => &mut self.first,
            _ if id == QueueId::ADMIN => &mut self.first,
            (_, Priority::Urgent) => &mut self.urgent,
            (_, Priority::High) => &mut self.weighted[0],
            (_, Priority::Medium) => &mut self.weighted[1],
            (_, Priority::Low) => &mut self.weighted[2],
        };
        circle.queues.push(id);
    }

    /// Takes a queue out; no other loses its turn.
    pub(crate) fn remove(&mut self, id: QueueId) {
        for circle in [&mut self.first, &mut self.urgent].into_iter().chain(&mut self.weighted) {
            circle.remove(id);
        }
    }

    /// Begins to look for the next entry.
    #[inline]
    pub(crate) fn search(&self) -> Search {
        Search { stage: Stage::First, looks: self.first.looks() }
    }

    /// Whom to look at next, or `None` when the search is over. The caller answers with [`took`](Self::took) or
    /// [`passed`](Self::passed). A search looks at each queue a bounded number of times.
    #[inline]
    pub(crate) fn candidate(&mut self, search: &mut Search) -> Option<QueueId> {
        loop {
            if search.looks == 0 || self.out_of_credits(search.stage) {
                self.next_stage(search)?;
                continue;
            }
            let burst = self.settings.burst;
            let circle = self.circle(search.stage);
            if circle.taken < burst {
                // No looks are left for a circle without queues.
                return circle.queues.get(circle.turn).copied();
            }
            circle.end_turn();
            search.looks -= 1;
        }
    }

    /// The candidate gave an entry.
    #[inline]
    pub(crate) fn took(&mut self, search: &Search) {
        self.circle(search.stage).taken += 1;
        if let Stage::Weighted(_) = search.stage {
            self.credits -= 1;
        }
    }

    /// The candidate had none.
    #[inline]
    pub(crate) fn passed(&mut self, search: &mut Search) {
        self.circle(search.stage).end_turn();
        search.looks -= 1;
    }

    /// Goes on to the queues that come after those of this stage, if there are any.
    fn next_stage(&mut self, search: &mut Search) -> Option<()> {
        search.stage = match search.stage {
            Stage::First if self.mechanism == Mechanism::RoundRobin => return None,
            Stage::First => Stage::Urgent,
            Stage::Urgent => Stage::Weighted(0),
            // The class whose part is running may be looked at again, with a new part, after the two others.
            Stage::Weighted(WEIGHTED) => return None,
            Stage::Weighted(seen) => Stage::Weighted(seen + 1),
        };
        if let Stage::Weighted(1..) = search.stage {
            self.end_part();
        }
        search.looks = self.circle(search.stage).looks();
        Some(())
    }

    #[inline]
    fn out_of_credits(&self, stage: Stage) -> bool {
        self.credits == 0 && matches!(stage, Stage::Weighted(_))
    }

    #[inline]
    fn circle(&mut self, stage: Stage) -> &mut Circle {
        match stage {
            Stage::First => &mut self.first,
            Stage::Urgent => &mut self.urgent,
            Stage::Weighted(_) => &mut self.weighted[self.class],
        }
    }

    /// The next class's part of the round begins.
    fn end_part(&mut self) {
        let circle = &mut self.weighted[self.class];
        if circle.taken > 0 {
            circle.end_turn();
        }
        self.class = (self.class + 1) % WEIGHTED;
        self.credits = self.settings.weights[self.class];
    }
}

impl Circle {
    /// How often to look at one of these in a search: the queue whose turn is running once more, after all others.
    #[inline]
    fn looks(&self) -> usize {
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
        let Some(at) = self.queues.iter().position(|&other| other == id) else {
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
