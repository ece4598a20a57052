//! The share of one turn that a connection gets, so that a long pipeline keeps no other client waiting.
//!
//! Input: turns, and the commands and the output of a connection. Output: true once its share is used up; its other
//! commands then wait for the next turn.

use super::limits::{TURN_COMMANDS_MAX, TURN_OUTPUT_BYTES_EACH};
use headwater_host::width::narrow;

/// The work of a connection in one turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnShare {
    /// The turn.
    turn: u64,
    /// Commands, and pieces of output.
    work: u32,
}

impl TurnShare {
    /// Returns true if the connection's share of a turn is used up.
    #[inline]
    pub(crate) fn is_used_up(self, turn: u64) -> bool {
        self.turn == turn && self.work >= TURN_COMMANDS_MAX
    }

    /// Counts a command that made so many bytes of output at once. Output counts too, because a short command may have a
    /// long reply that takes time to make.
    #[inline]
    pub(crate) fn count(&mut self, turn: u64, output_bytes: usize) {
        if self.turn != turn {
            *self = Self { turn, work: 0 };
        }
        self.work = self.work.saturating_add(1 + narrow::<usize, u32>(output_bytes / TURN_OUTPUT_BYTES_EACH));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_used_up_by_commands_or_by_output_and_is_new_in_the_next_turn() {
        let mut share = TurnShare::default();
        for _ in 0..TURN_COMMANDS_MAX {
            assert!(!share.is_used_up(7));
            share.count(7, 5);
        }
        assert!(share.is_used_up(7) && !share.is_used_up(8));
        share.count(8, TURN_OUTPUT_BYTES_EACH * TURN_COMMANDS_MAX as usize);
        assert!(share.is_used_up(8));
        share.count(9, 0);
        assert!(!share.is_used_up(9));
    }
}
