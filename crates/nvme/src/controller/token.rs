//! A token that obliges its holder to complete one command.
//!
//! Input: a fetched command. Output: its completion, posted against this token. Invariant: a command has one token, a
//! token cannot be copied, and dropping an unanswered token panics in debug builds and tests.

use crate::controller::queue::QueueId;

/// The obligation to complete one command, discharged by [`QueueArbiter::complete`](crate::controller::QueueArbiter::complete) or
/// [`ControllerQueuePair::complete`](crate::controller::ControllerQueuePair::complete).
#[derive(Debug)]
#[must_use = "every accepted command gets exactly one completion"]
pub struct CommandToken {
    queue: QueueId,
    command_id: u16,
    generation: u32,
    completed: bool,
}

impl CommandToken {
    pub(crate) fn new(queue: QueueId, command_id: u16, generation: u32) -> Self {
        Self { queue, command_id, generation, completed: false }
    }

    /// Returns the queue that the command came from.
    #[must_use]
    pub fn queue(&self) -> QueueId {
        self.queue
    }

    /// Returns the id that the host gave the command.
    #[must_use]
    pub fn command_id(&self) -> u16 {
        self.command_id
    }

    /// Returns the number of controller resets before the command was fetched.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Discards the token without a completion, for cases in which no host reads it: a power cut, the end of the
    /// process, or a controller reset.
    pub fn abandon(mut self) {
        self.completed = true;
    }

    pub(crate) fn into_command_id(mut self) -> u16 {
        self.completed = true;
        self.command_id
    }
}

impl Drop for CommandToken {
    fn drop(&mut self) {
        // A second panic while unwinding would hide the first.
        debug_assert!(
            self.completed || std::thread::panicking(),
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
    fn dropping_an_unanswered_token_panics() {
        drop(CommandToken::new(QueueId(1), 7, 0));
    }

    #[test]
    fn dropping_an_answered_or_abandoned_token_does_not_panic() {
        assert_eq!(CommandToken::new(QueueId(1), 7, 0).into_command_id(), 7);
        CommandToken::new(QueueId(1), 8, 0).abandon();
    }
}
