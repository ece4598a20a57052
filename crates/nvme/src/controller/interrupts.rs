//! When to interrupt: which vectors have completions to announce, and which of these wait for more.
//!
//! In: completions by vector, and the time. Out: vectors to fire, and when to look again. Invariant: a completion is
//! announced at once where nothing aggregates, and else no later than the aggregation time after it was posted; a vector
//! that has nothing to announce never fires.
//!
//! Aggregation is the Interrupt Coalescing feature (08h) and its exceptions by vector (09h; NVMe Base 2.0 sections
//! 5.27.1.6 and 5.27.1.7). It concerns I/O queues: an admin completion fires its vector at once.
//!
//! # What this does not do
//! It masks nothing and writes no message: INTMS, MSI-X tables and descriptors are the transport's.

use headwater_host::clock::Nanos;

/// Microseconds of one step of the aggregation time.
const AGGREGATION_STEP_MICROS: u64 = 100;

/// The Interrupt Coalescing feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Completions that are announced together.
    threshold: u32,
    /// How long the first of them may wait. Zero: no aggregation.
    time: Nanos,
}

impl Coalescing {
    /// Nothing waits.
    pub const OFF: Self = Self { threshold: 1, time: Nanos::ZERO };

    /// From dword 11 of Set Features: threshold, 0's based, in bits 7:0, time in steps of 100 us in bits 15:8.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [threshold, steps, ..] = dword.to_le_bytes();
        let time = Nanos::from_micros(steps as u64 * AGGREGATION_STEP_MICROS);
        Self { threshold: threshold as u32 + 1, time }
    }
}

/// Whether a completion may wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Of an I/O queue: as the vector is set.
    Aggregated,
    /// Of the admin queue: no.
    AtOnce,
}

/// Whether the completions of one vector are aggregated (the Interrupt Vector Configuration feature, CD).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorCoalescing {
    /// As the Interrupt Coalescing feature says.
    #[default]
    Enabled,
    /// Never.
    Disabled,
}

#[derive(Clone, Copy, Debug)]
struct Vector {
    coalescing: VectorCoalescing,
    /// Completions that nobody was told of.
    pending: u32,
    /// When they must be announced at the latest.
    deadline: Nanos,
}

/// All vectors of a controller.
#[derive(Debug)]
pub(crate) struct Interrupts {
    vectors: Vec<Vector>,
    coalescing: Coalescing,
    /// Vectors with something to announce: usually none.
    waiting: usize,
}

impl Interrupts {
    /// So many vectors, none with anything to announce, none aggregated.
    pub(crate) fn new(vectors: u16) -> Self {
        let idle = Vector { coalescing: VectorCoalescing::Enabled, pending: 0, deadline: Nanos::ZERO };
        Self { vectors: vec![idle; usize::from(vectors)], coalescing: Coalescing::OFF, waiting: 0 }
    }

    /// Whether there is such a vector.
    pub(crate) fn has(&self, vector: u16) -> bool {
        usize::from(vector) < self.vectors.len()
    }

    /// How many vectors there are.
    pub(crate) fn vectors(&self) -> u16 {
        u16::try_from(self.vectors.len()).unwrap_or(u16::MAX)
    }

    /// What is posted from now on is aggregated so; what waits keeps its deadline or fires on the new threshold.
    pub(crate) fn set(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
    }

    /// Sets one vector. False if there is no such vector.
    pub(crate) fn set_vector(&mut self, vector: u16, coalescing: VectorCoalescing) -> bool {
        let there = self.vectors.get_mut(usize::from(vector));
        let found = there.is_some();
        if let Some(vector) = there {
            vector.coalescing = coalescing;
        }
        found
    }

    /// Completions were posted for a vector, at least one.
    #[inline]
    pub(crate) fn posted(&mut self, vector: u16, completions: u32, haste: Haste, now: Nanos) {
        let Some(vector) = self.vectors.get_mut(usize::from(vector)) else {
            return;
        };
        let deadline = match (haste, vector.coalescing) {
            (Haste::Aggregated, VectorCoalescing::Enabled) => now.after(self.coalescing.time),
            _ => now,
        };
        if vector.pending == 0 {
            self.waiting += 1;
            vector.deadline = deadline;
        }
        vector.deadline = vector.deadline.min(deadline);
        vector.pending = vector.pending.saturating_add(completions);
    }

    /// Fires the vectors whose time or number has come.
    #[inline]
    pub(crate) fn fire_due(&mut self, now: Nanos, mut fire: impl FnMut(u16)) {
        if self.waiting == 0 {
            return;
        }
        for (number, vector) in (0_u16..).zip(&mut self.vectors) {
            let enough = vector.pending >= self.coalescing.threshold
                || vector.coalescing == VectorCoalescing::Disabled
                || self.coalescing.time == Nanos::ZERO;
            if vector.pending > 0 && (enough || now >= vector.deadline) {
                vector.pending = 0;
                self.waiting -= 1;
                fire(number);
            }
        }
    }

    /// When a vector that waits for more completions must fire at the latest.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        if self.waiting == 0 {
            return None;
        }
        self.vectors.iter().filter(|vector| vector.pending > 0).map(|vector| vector.deadline).min()
    }
}

#[cfg(test)]
mod tests;
