//! The wait of a commit for the commands of all clients that are active.
//!
//! Input: the number of commands so far that had to wait for a commit, and the starts and ends of commits. Output: the time
//! until which the next commit waits. A client that sends its next write when it has the reply of the last one sends it soon
//! after the commit that it waited for. A commit that begins for the first of them makes the rest wait for two: the one that
//! runs, and their own. Invariant: a commit waits only while fewer commands wait for it than the last one served and came
//! during it, and for no longer than a set time after the end of the last one.

use headwater_host::clock::Nanos;

/// The commands that the last commit served, and those that the next one waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommitGathering {
    /// Time after the end of a commit for which the next one waits at most.
    span: Nanos,
    /// Commands so far that had to wait for a commit.
    waited: u64,
    /// The same at the start of the last commit.
    waited_at_begin: u64,
    /// Commands that the last commit served.
    served: u64,
    /// Commands that the next commit serves if every client sends another one.
    expected: u64,
    /// The time until which the next commit waits.
    until: Nanos,
}

impl CommitGathering {
    /// Makes the state before the first commit, for which nothing waits.
    pub(super) fn new(span: Nanos) -> Self {
        Self { span, ..Self::default() }
    }

    /// Notes the number of commands so far that had to wait for a commit.
    #[inline]
    pub(super) fn note_waiting(&mut self, commands: u64) {
        self.waited = commands;
    }

    /// Notes the start of a commit, which serves every command that waits.
    pub(super) fn begin_commit(&mut self) {
        self.served = self.waiting();
        self.waited_at_begin = self.waited;
    }

    /// Notes the end of a commit: the clients that it served have their replies now.
    pub(super) fn end_commit(&mut self, now: Nanos) {
        self.expected = self.served + self.waiting();
        self.until = now.after(self.span);
    }

    /// Returns the time until which the next commit waits; `None` if it waits for nothing.
    pub(super) fn until(&self) -> Option<Nanos> {
        (self.waiting() < self.expected && self.span > Nanos::ZERO).then_some(self.until)
    }

    /// Returns the commands since the start of the last commit.
    fn waiting(&self) -> u64 {
        self.waited - self.waited_at_begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Nanos = Nanos(50);

    /// Runs a commit from 100 to 200 that serves some commands, while more of them come.
    fn after_commit(served: u64, during: u64) -> CommitGathering {
        let mut gathering = CommitGathering::new(SPAN);
        gathering.note_waiting(served);
        gathering.begin_commit();
        gathering.note_waiting(served + during);
        gathering.end_commit(Nanos(200));
        gathering
    }

    #[test]
    fn a_commit_waits_for_as_many_commands_as_clients_are_active() {
        let mut gathering = after_commit(3, 2);
        assert_eq!(gathering.until(), Some(Nanos(250)));
        for more in 1..3 {
            gathering.note_waiting(5 + more);
            assert_eq!(gathering.until(), Some(Nanos(250)), "{more} of 3 clients sent again");
        }
        gathering.note_waiting(8);
        assert_eq!(gathering.until(), None, "every client has sent again");
    }

    #[test]
    fn a_commit_for_one_client_does_not_wait_for_another() {
        let mut gathering = after_commit(1, 0);
        gathering.note_waiting(2);
        assert_eq!(gathering.until(), None);
        // The first commit of all, and those of a device that does not gather.
        assert_eq!(CommitGathering::new(SPAN).until(), None);
        let mut at_once = CommitGathering { span: Nanos::ZERO, ..after_commit(3, 2) };
        at_once.note_waiting(6);
        assert_eq!(at_once.until(), None);
    }

    #[test]
    fn clients_that_left_are_awaited_once() {
        let mut gathering = after_commit(3, 1);
        // Only one of four came back in time.
        gathering.note_waiting(5);
        gathering.begin_commit();
        gathering.end_commit(Nanos(400));
        gathering.note_waiting(6);
        assert_eq!(gathering.until(), Some(Nanos(450)), "two commands were served");
        gathering.note_waiting(7);
        assert_eq!(gathering.until(), None);
    }
}
