//! Commands in flight: the duty to answer each, and how.
//!
//! In: accepted commands. Out: the same, by the number that the device knows them by. Invariant: a slot is taken exactly
//! while its command is in flight.

use crate::nvme::request::Answer;
use headwater_nvme::controller::CommandToken;

/// One command in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: CommandToken,
    pub(super) answer: Answer,
}

/// The slab.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Option<Pending>>,
    vacant: Vec<usize>,
}

impl Slots {
    /// The slot that the next [`insert`](Self::insert) takes.
    #[inline]
    pub(super) fn next(&self) -> usize {
        self.vacant.last().copied().unwrap_or(self.slots.len())
    }

    /// Takes the slot that [`next`](Self::next) named.
    #[inline]
    pub(super) fn insert(&mut self, pending: Pending) {
        match self.vacant.pop() {
            Some(at) => self.slots[at] = Some(pending),
            None => self.slots.push(Some(pending)),
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) -> Option<Pending> {
        let pending = self.slots.get_mut(at)?.take()?;
        self.vacant.push(at);
        Some(pending)
    }

    /// How the command of a slot is to be answered.
    #[inline]
    pub(super) fn answer_mut(&mut self, at: usize) -> Option<&mut Answer> {
        Some(&mut self.slots.get_mut(at)?.as_mut()?.answer)
    }

    /// Ends every duty without an answer.
    pub(super) fn abandon(&mut self) {
        for pending in self.slots.drain(..).flatten() {
            pending.token.abandon();
        }
        self.vacant.clear();
    }
}
