//! Interrupt coalescing: tracks which vectors have completions to announce and when each must fire.
//!
//! Input: completions by vector, and the time. Output: vectors to fire, and the next deadline. Invariant: a completion
//! is announced at once without coalescing, and otherwise no later than the aggregation time after it was posted; a
//! vector that has no completion to announce never fires.
//!
//! Coalescing is the Interrupt Coalescing feature (08h) and its exceptions by vector (09h; NVMe Base 2.0 sections
//! 5.27.1.6 and 5.27.1.7). It applies to I/O queues: an admin completion fires its vector at once.
//!
//! # Out of scope
//! Masking and messages: INTMS, MSI-X tables and descriptors belong to the transport.

use headwater_host::clock::Nanos;
use headwater_host::width::narrow;

/// Microseconds per step of the aggregation time.
const AGGREGATION_STEP_MICROS: u64 = 100;

/// The Interrupt Coalescing feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// The number of completions that one interrupt announces.
    threshold: u32,
    /// The maximum time that the first of them waits. Zero: no coalescing.
    time: Nanos,
}

impl InterruptCoalescing {
    /// No completion waits.
    pub const OFF: Self = Self { threshold: 1, time: Nanos::ZERO };

    /// Decodes dword 11 of Set Features: threshold, 0's based, in bits 7:0, time in steps of 100 us in bits 15:8.
    #[must_use]
    pub const fn from_dword(dword: u32) -> Self {
        let [threshold, steps, ..] = dword.to_le_bytes();
        let time = Nanos::from_micros(steps as u64 * AGGREGATION_STEP_MICROS);
        Self { threshold: threshold as u32 + 1, time }
    }
}

/// Permission to delay the announcement of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterruptUrgency {
    /// A completion of an I/O queue: the setting of the vector applies.
    Coalesced,
    /// A completion of the admin queue: announced at once.
    Immediate,
}

/// The coalescing of one vector's completions (the Interrupt Vector Configuration feature, CD).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorCoalescing {
    /// The Interrupt Coalescing feature applies.
    #[default]
    Enabled,
    /// Every completion is announced at once.
    Disabled,
}

#[derive(Clone, Copy, Debug)]
struct VectorState {
    coalescing: VectorCoalescing,
    /// Completions not announced yet.
    pending: u32,
    /// The latest time to announce them.
    deadline: Nanos,
}

/// The interrupt vectors of a controller.
#[derive(Debug)]
pub(crate) struct InterruptVectors {
    vectors: Vec<VectorState>,
    coalescing: InterruptCoalescing,
    /// Vectors with completions to announce: usually none.
    waiting: usize,
}

impl InterruptVectors {
    /// Creates that many vectors, with nothing to announce and no coalescing.
    pub(crate) fn new(vectors: u16) -> Self {
        let idle = VectorState { coalescing: VectorCoalescing::Enabled, pending: 0, deadline: Nanos::ZERO };
        Self { vectors: vec![idle; usize::from(vectors)], coalescing: InterruptCoalescing::OFF, waiting: 0 }
    }

    /// Returns true if the vector exists.
    pub(crate) fn has_vector(&self, vector: u16) -> bool {
        usize::from(vector) < self.vectors.len()
    }

    /// Returns the number of vectors.
    pub(crate) fn vectors(&self) -> u16 {
        narrow(self.vectors.len())
    }

    /// Sets coalescing for completions posted from now on; waiting ones keep their deadline or fire at the new
    /// threshold.
    pub(crate) fn set_coalescing(&mut self, coalescing: InterruptCoalescing) {
        self.coalescing = coalescing;
    }

    /// Sets one vector. Returns false if it does not exist.
    pub(crate) fn set_vector(&mut self, vector: u16, coalescing: VectorCoalescing) -> bool {
        let there = self.vectors.get_mut(usize::from(vector));
        let found = there.is_some();
        if let Some(vector) = there {
            vector.coalescing = coalescing;
        }
        found
    }

    /// Counts completions posted for a vector, at least one.
    #[inline]
    pub(crate) fn record_posted(
        &mut self,
        vector: u16,
        completions: u32,
        urgency: InterruptUrgency,
        now: Nanos,
    ) {
        let Some(vector) = self.vectors.get_mut(usize::from(vector)) else {
            return;
        };
        let deadline = match (urgency, vector.coalescing) {
            (InterruptUrgency::Coalesced, VectorCoalescing::Enabled) => now.after(self.coalescing.time),
            _ => now,
        };
        if vector.pending == 0 {
            self.waiting += 1;
            vector.deadline = deadline;
        }
        vector.deadline = vector.deadline.min(deadline);
        vector.pending = vector.pending.saturating_add(completions);
    }

    /// Fires the vectors that reached their deadline or threshold.
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

    /// Returns the earliest deadline of the vectors that wait for more completions.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        if self.waiting == 0 {
            return None;
        }
        self.vectors.iter().filter(|vector| vector.pending > 0).map(|vector| vector.deadline).min()
    }
}

#[cfg(test)]
mod tests;
