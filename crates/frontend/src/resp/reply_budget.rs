//! The memory of replies that clients have not received, and the admission of the commands that make more of it.
//!
//! Input: the bytes of replies that each connection holds, those of commands in flight included, and the bytes that its
//! next command will make. Output: the verdict if that command may start now, and the connection to run when it may.
//! A connection whose command may not start is not run and not read, so that its client sends no more; none is refused.
//!
//! ```text
//!   within the share of the connection ------------------------------------> starts
//!   above the limit of the connection, and it holds unread replies --------> waits until its client reads
//!   the budget of all has room, and no other connection waits before it ---> starts
//!   else ------------------------------------------------------------------> waits in the queue
//! ```
//!
//! Invariant: what connections hold above their shares is at most the budget, or is one reply. The first of the queue
//! starts as soon as its bytes fit, so a small request does not overtake a large one for ever.

use super::locks::ClientIndex;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// Waiting connections for each of which a stalled client's time is divided once more.
const WAITING_PER_PATIENCE: usize = 8;
/// The largest divisor of a stalled client's time.
const PATIENCE_DIVISOR_MAX: u64 = 10;

/// The limits of the unread replies of one connection: `client-output-buffer-limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyLimits {
    /// Bytes above which the commands of the connection wait, if it holds unread replies at all.
    pub(crate) hard: usize,
    /// The share: bytes up to which they never wait.
    pub(crate) soft: usize,
    /// Time without progress after which a client above its share is closed if other clients wait for memory.
    pub(crate) patience: Nanos,
}

/// The verdict on a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyVerdict {
    /// It may start.
    Starts,
    /// It waits.
    Waits,
}

/// The account of one connection.
#[derive(Debug, Default)]
pub(crate) struct ReplyAccount {
    /// Bytes above the share that the budget counts for this connection.
    counted: usize,
    /// True while the connection is in the queue.
    queued: bool,
    /// True if there was something to receive at the last account.
    pub(crate) has_output: bool,
    /// Time at which its client received bytes, or at which there were first any to receive.
    pub(crate) progress_at: Nanos,
}

/// The budget of all connections of a front end.
#[derive(Debug)]
pub(crate) struct ReplyBudget {
    /// Bytes above their shares that all connections hold.
    held: usize,
    max: usize,
    /// Connections that wait, each with the bytes that it lacks.
    queue: VecDeque<(ClientIndex, usize)>,
}

impl ReplyBudget {
    /// Creates a budget of so many bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { held: 0, max, queue: VecDeque::new() }
    }

    /// Returns the bytes above their shares that all connections hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of connections that wait for the budget.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns the time that a client may make no progress while other clients wait: the more wait, the less it is.
    pub(crate) fn patience(&self, limits: &ReplyLimits) -> Nanos {
        let divisor = (1 + self.queue.len() / WAITING_PER_PATIENCE) as u64;
        Nanos(limits.patience.0 / divisor.min(PATIENCE_DIVISOR_MAX))
    }

    /// Decides if a connection that holds `own` bytes of replies may start a command that makes `more` bytes.
    #[inline]
    pub(crate) fn request(
        &mut self,
        limits: &ReplyLimits,
        (index, account): (ClientIndex, &mut ReplyAccount),
        (own, more): (usize, usize),
    ) -> ReplyVerdict {
        let after = own + more;
        if after <= limits.soft {
            self.leave_queue(index, account);
            return ReplyVerdict::Starts;
        }
        if own > 0 && after > limits.hard.min(self.max.saturating_add(limits.soft)) {
            // What it lacks is its own: it needs no turn in the queue.
            self.leave_queue(index, account);
            return ReplyVerdict::Waits;
        }
        let elsewhere = self.held - account.counted;
        // A reply larger than the whole budget starts when no other connection holds any of it.
        let wanted = (after - limits.soft).min(self.max);
        let first = self.queue.front().is_none_or(|(first, _)| *first == index);
        if first && elsewhere + wanted <= self.max {
            self.leave_queue(index, account);
            return ReplyVerdict::Starts;
        }
        let lacks = wanted.saturating_sub(account.counted);
        if !account.queued {
            account.queued = true;
            self.queue.push_back((index, lacks));
        } else if let Some(entry) = self.queue.iter_mut().find(|entry| entry.0 == index) {
            entry.1 = lacks;
        }
        ReplyVerdict::Waits
    }

    /// Counts the bytes of replies that a connection holds now.
    ///
    /// # Panics
    /// The connection was counted with more bytes than all together.
    #[inline]
    pub(crate) fn account(&mut self, limits: &ReplyLimits, account: &mut ReplyAccount, own: usize) {
        let now = own.saturating_sub(limits.soft);
        let rest = self.held.checked_sub(account.counted);
        self.held = rest.expect("a connection held more replies than all together") + now;
        account.counted = now;
    }

    /// Removes a connection from the queue.
    pub(crate) fn leave_queue(&mut self, index: ClientIndex, account: &mut ReplyAccount) {
        if std::mem::take(&mut account.queued) {
            self.queue.retain(|(waiting, _)| *waiting != index);
        }
    }

    /// Returns true if there is room for all that connections wait for.
    pub(crate) fn has_room_for_all(&self) -> bool {
        self.held + self.queue.iter().map(|(_, lacks)| lacks).sum::<usize>() <= self.max
    }

    /// Returns the first connection of the queue if there is room for what it waits for.
    #[inline]
    pub(crate) fn next_to_run(&self) -> Option<ClientIndex> {
        let (index, lacks) = *self.queue.front()?;
        (self.held + lacks <= self.max).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ReplyLimits = ReplyLimits { hard: 64, soft: 4, patience: Nanos::from_millis(5_000) };

    fn start(
        budget: &mut ReplyBudget,
        number: u16,
        account: &mut ReplyAccount,
        bytes: (usize, usize),
    ) -> bool {
        let verdict = budget.request(&LIMITS, (ClientIndex(number), account), bytes);
        if verdict == ReplyVerdict::Starts {
            budget.account(&LIMITS, account, bytes.0 + bytes.1);
        }
        verdict == ReplyVerdict::Starts
    }

    #[test]
    fn connection_above_its_own_limit_waits_for_its_client_and_blocks_no_other() {
        let mut budget = ReplyBudget::new(1_000);
        let (mut greedy, mut other) = (ReplyAccount::default(), ReplyAccount::default());
        assert!(start(&mut budget, 1, &mut greedy, (0, 200)), "a single reply may exceed the limit");
        assert!(!start(&mut budget, 1, &mut greedy, (200, 1)));
        assert_eq!(budget.waiting(), 0);
        assert!(start(&mut budget, 2, &mut other, (0, 60)));
        assert!(start(&mut budget, 2, &mut other, (60, 4)));
        assert!(!start(&mut budget, 2, &mut other, (64, 1)));
    }

    #[test]
    fn queue_is_served_in_order_and_a_share_never_waits() {
        let mut budget = ReplyBudget::new(100);
        let mut accounts: [ReplyAccount; 5] = std::array::from_fn(|_| ReplyAccount::default());
        let [holder, first, second, small, large] = &mut accounts;
        assert!(start(&mut budget, 1, holder, (0, 104)));
        assert!(!start(&mut budget, 2, first, (0, 54)));
        assert!(!start(&mut budget, 3, second, (0, 14)));
        assert!(start(&mut budget, 4, small, (0, 4)));
        assert_eq!((budget.next_to_run(), budget.waiting()), (None, 2));
        // Room for the second only: it does not overtake the first.
        budget.account(&LIMITS, holder, 60);
        assert_eq!(budget.next_to_run(), None);
        assert!(!start(&mut budget, 3, second, (0, 14)));
        budget.account(&LIMITS, holder, 50);
        assert_eq!(budget.next_to_run(), Some(ClientIndex(2)));
        assert!(start(&mut budget, 2, first, (0, 54)));
        assert_eq!(budget.next_to_run(), None);
        budget.account(&LIMITS, holder, 0);
        assert_eq!(budget.next_to_run(), Some(ClientIndex(3)));
        assert!(start(&mut budget, 3, second, (0, 14)));
        assert_eq!(budget.waiting(), 0);
        // A reply larger than the budget starts when nothing else is held.
        assert!(!start(&mut budget, 5, large, (0, 500)));
        budget.account(&LIMITS, first, 0);
        budget.account(&LIMITS, second, 0);
        assert_eq!(budget.next_to_run(), Some(ClientIndex(5)));
        assert!(start(&mut budget, 5, large, (0, 500)));
    }

    #[test]
    fn connection_with_unread_replies_does_not_exceed_a_budget_below_its_limit() {
        let mut budget = ReplyBudget::new(40);
        let (mut greedy, mut other) = (ReplyAccount::default(), ReplyAccount::default());
        assert!(start(&mut budget, 1, &mut greedy, (0, 30)));
        assert!(!start(&mut budget, 1, &mut greedy, (30, 30)));
        assert_eq!(budget.waiting(), 0);
        assert!(start(&mut budget, 1, &mut greedy, (30, 14)));
        assert!(!start(&mut budget, 2, &mut other, (0, 5)));
        assert_eq!(budget.waiting(), 1);
    }

    #[test]
    fn connection_that_leaves_lets_the_next_one_start() {
        let mut budget = ReplyBudget::new(100);
        let mut accounts: [ReplyAccount; 3] = std::array::from_fn(|_| ReplyAccount::default());
        let [holder, first, second] = &mut accounts;
        assert!(start(&mut budget, 1, holder, (0, 64)));
        assert!(!start(&mut budget, 2, first, (0, 64)));
        assert!(!start(&mut budget, 3, second, (0, 24)));
        budget.leave_queue(ClientIndex(2), first);
        assert_eq!(budget.next_to_run(), Some(ClientIndex(3)));
        assert!(start(&mut budget, 3, second, (0, 24)));
    }

    #[test]
    fn patience_shrinks_with_the_queue_to_a_tenth() {
        let mut budget = ReplyBudget::new(100);
        let mut accounts: Vec<ReplyAccount> = (0..201).map(|_| ReplyAccount::default()).collect();
        assert!(start(&mut budget, 0, &mut accounts[0], (0, 104)));
        assert_eq!(budget.patience(&LIMITS), Nanos::from_millis(5_000));
        for number in 1..=200 {
            assert!(!start(&mut budget, number, &mut accounts[usize::from(number)], (0, 50)));
        }
        assert_eq!(budget.patience(&LIMITS), Nanos::from_millis(500));
    }
}
