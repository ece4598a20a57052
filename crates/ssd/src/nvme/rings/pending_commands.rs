//! The slab of commands in flight: the token of each, and the rule of its completion.
//!
//! Input: accepted commands. Output: the same commands by slot number, which is their token at the device. Invariant: a
//! slot is taken exactly while its command is in flight.

use crate::nvme::request::CompletionBuilder;
use headwater_nvme::controller::CommandToken;

/// One command in flight.
#[derive(Debug)]
pub(super) struct PendingRingCommand {
    pub(super) token: CommandToken,
    pub(super) answer: CompletionBuilder,
}

/// The slab of commands in flight.
#[derive(Debug, Default)]
pub(super) struct PendingRingCommands {
    slots: Vec<Option<PendingRingCommand>>,
    vacant: Vec<usize>,
}

impl PendingRingCommands {
    /// Returns the slot that the next [`insert`](Self::insert) takes.
    #[inline]
    pub(super) fn next_slot(&self) -> usize {
        self.vacant.last().copied().unwrap_or(self.slots.len())
    }

    /// Inserts a command into the slot that [`next_slot`](Self::next_slot) returned.
    #[inline]
    pub(super) fn insert(&mut self, pending: PendingRingCommand) {
        match self.vacant.pop() {
            Some(at) => self.slots[at] = Some(pending),
            None => self.slots.push(Some(pending)),
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) -> Option<PendingRingCommand> {
        let pending = self.slots.get_mut(at)?.take()?;
        self.vacant.push(at);
        Some(pending)
    }

    /// Returns the answer state of a slot's command.
    #[inline]
    pub(super) fn answer_mut(&mut self, at: usize) -> Option<&mut CompletionBuilder> {
        Some(&mut self.slots.get_mut(at)?.as_mut()?.answer)
    }

    /// Abandons all commands without completions.
    pub(super) fn abandon(&mut self) {
        for pending in self.slots.drain(..).flatten() {
            pending.token.abandon();
        }
        self.vacant.clear();
    }
}
