//! Commits that one command at a time waits for: of a client that sends its next write when it has the reply of the last.
//!
//! Input: the number of commands completed so far, at the start of each flush. Output: whether the core may wait for the
//! flush itself. No other client is there to serve in this time, and the flush is over sooner without a second thread, which
//! must be woken for it and wake the core again. Invariant: behind a flush that no command or several waited
//! for, the core waits for none of the next [`STREAK`].

/// Number of commits of one command each, in a row, after which the core may wait.
const STREAK: u32 = 64;

/// The commits in a row that one command alone waited for.
#[derive(Debug, Default)]
pub(crate) struct LoneCommits {
    /// Number of commands completed so far.
    completed: u64,
    /// The same at the last flush.
    at_last_flush: u64,
    in_a_row: u32,
}

impl LoneCommits {
    /// Notes the number of commands completed so far, those included that wait for a commit.
    #[inline]
    pub(crate) fn note_completed(&mut self, completed: u64) {
        self.completed = completed;
    }

    /// Notes the start of a flush. Returns true if the core may wait for it.
    pub(crate) fn begin_flush(&mut self) -> bool {
        let commands = self.completed - self.at_last_flush;
        self.at_last_flush = self.completed;
        self.in_a_row = if commands == 1 { self.in_a_row.saturating_add(1) } else { 0 };
        self.in_a_row > STREAK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_waits_only_after_many_commits_of_one_command_each() {
        let mut commits = LoneCommits::default();
        let mut completed = 0;
        let mut flush_after = |commands: u64| {
            completed += commands;
            commits.note_completed(completed);
            commits.begin_flush()
        };
        for round in 0..3 {
            for number in 0..STREAK {
                assert!(!flush_after(1), "flush {number} of round {round}");
            }
            assert!(flush_after(1) && flush_after(1));
            // A read of another client, or a commit of the collector.
            assert!(!flush_after(if round == 0 { 2 } else { 0 }));
        }
    }
}
