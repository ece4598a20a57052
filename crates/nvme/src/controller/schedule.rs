//! Whose turn it is: round robin, and weighted round robin with an urgent class (NVMe Base 2.0 section 3.4.4).
//!
//! In: queue numbers with their priorities, and which have something. Out: whose entry is next. Invariant: by
//! round robin a queue that has commands is reached after at most a burst of each other queue; by weight, after at most
//! one round of credits for each turn of the queues before it in its class, as long as nothing urgent waits. Nothing here
//! allocates but [`Schedule::add`].
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

    /// New burst and weights. The part of a round that runs goes on with no more than its new weight.
    pub(crate) fn set(&mut self, settings: ArbitrationSettings) {
        self.settings = settings;
        self.credits = self.credits.min(settings.weights[self.class]);
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

    /// The queue that gives the next entry, or `None` when none is `ready`. Asks for each queue a bounded number of times,
    /// whatever hosts write meanwhile.
    #[inline]
    pub(crate) fn next(&mut self, mut ready: impl FnMut(QueueId) -> bool) -> Option<QueueId> {
        let burst = self.settings.burst;
        let chosen = self.first.visit(burst, &mut ready);
        if chosen.is_some() || self.mechanism == Mechanism::RoundRobin {
            return chosen;
        }
        self.next_io(ready)
    }

    /// The same without the admin queue, by weight.
    fn next_io(&mut self, mut ready: impl FnMut(QueueId) -> bool) -> Option<QueueId> {
        let burst = self.settings.burst;
        let chosen = self.urgent.visit(burst, &mut ready);
        if chosen.is_some() {
            return chosen;
        }
        // The class whose part is running may be looked at again, with a new part, after the two others.
        for _ in 0..=WEIGHTED {
            if self.credits > 0 {
                let chosen = self.weighted[self.class].visit(burst, &mut ready);
                if chosen.is_some() {
                    self.credits -= 1;
                    return chosen;
                }
            }
            self.end_part();
        }
        None
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
    /// The queue that gives the next entry, by turns of at most `burst`.
    #[inline]
    fn visit(&mut self, burst: u32, ready: &mut impl FnMut(QueueId) -> bool) -> Option<QueueId> {
        // The queue whose turn is running may be looked at again after all others.
        for _ in 0..=self.queues.len() {
            let id = *self.queues.get(self.turn)?;
            if self.taken < burst && ready(id) {
                self.taken += 1;
                return Some(id);
            }
            self.end_turn();
        }
        None
    }

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
