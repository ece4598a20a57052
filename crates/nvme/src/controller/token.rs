//! The duty to answer one command.
//!
//! In: a fetched command. Out: its completion, given against this token. Invariant: a command has one token, a token
//! cannot be copied, and dropping it unanswered panics in debug builds and tests.

use crate::controller::queue::QueueId;

/// Must be handed to [`Arbiter::complete`](crate::controller::Arbiter::complete) or
/// [`IoQueue::complete`](crate::controller::IoQueue::complete).
#[derive(Debug)]
#[must_use = "every accepted command gets exactly one completion"]
pub struct CommandToken {
    queue: QueueId,
    command_id: u16,
    generation: u32,
    answered: bool,
}

impl CommandToken {
    pub(crate) fn new(queue: QueueId, command_id: u16, generation: u32) -> Self {
        Self { queue, command_id, generation, answered: false }
    }

    /// The queue the command came from.
    #[must_use]
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// The id its host gave it.
    #[must_use]
    pub fn command_id(&self) -> u16 {
        self.command_id
    }

    /// How often the controller had been reset when the command was fetched.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Ends the duty without an answer, for the cases where nobody is there to read it: the device itself goes down,
    /// in a power cut or at the end of the process, or the host reset the controller.
    pub fn abandon(mut self) {
        self.answered = true;
    }

    pub(crate) fn answer(mut self) -> u16 {
        self.answered = true;
        self.command_id
    }
}

impl Drop for CommandToken {
    fn drop(&mut self) {
        // A second panic while unwinding would hide the first.
        debug_assert!(
            self.answered || std::thread::panicking(),
            "command {:04x}h of {} was dropped without a completion",
            self.command_id,
            self.queue
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "dropped without a completion")]
    fn dropping_an_unanswered_command_is_noticed() {
        drop(CommandToken::new(QueueId(1), 7, 0));
    }

    #[test]
    fn answered_and_abandoned_tokens_are_quiet() {
        assert_eq!(CommandToken::new(QueueId(1), 7, 0).answer(), 7);
        CommandToken::new(QueueId(1), 8, 0).abandon();
    }
}
