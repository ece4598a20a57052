//! The trait of a front end: a client protocol that the core loop polls.
//!
//! Input: requests of clients. Output: commands to the device, replies to the clients. Invariant: a front end never
//! blocks; it waits only for a descriptor or for a point in time.

use crate::counters::FrontEndCounters;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::queue_pair::SleepDecision;
use std::os::fd::BorrowedFd;

/// The cost of an idle [`poll`](FrontEnd::poll) of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollCost {
    /// Loads from memory: polled in every turn.
    Memory,
    /// System calls: polled every few microseconds while another front end is polled in memory.
    Kernel,
}

/// A front end of a device `D`.
pub trait FrontEnd<D> {
    /// Turns received bytes into commands and completions into replies. Returns true if there was any work.
    fn poll(&mut self, device: &mut D, now: Nanos, wall: UnixMillis) -> bool;

    /// Returns a descriptor that becomes readable when [`poll`](Self::poll) has work that no device completion
    /// announces.
    fn wake_descriptor(&self) -> BorrowedFd<'_>;

    /// Returns true if progress of the device can give [`poll`](Self::poll) work. False without clients: a front end
    /// whose polls cost system calls is then left alone while another one keeps the device at work.
    fn waits_for_device(&self) -> bool {
        true
    }

    /// Returns the time of the next timed work, if there is any.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Returns the cost of a [`poll`](Self::poll) that finds no work.
    fn poll_cost(&self) -> PollCost {
        PollCost::Kernel
    }

    /// Makes clients with doorbells in memory signal [`wake_descriptor`](Self::wake_descriptor) until the next poll.
    /// Returns [`SleepDecision::WorkPending`] if new work has arrived: poll again.
    fn prepare_sleep(&mut self) -> SleepDecision {
        SleepDecision::UntilWoken
    }

    /// Stops accepting clients and commands; commands in flight are still answered.
    fn drain(&mut self);

    /// Returns true if, after [`drain`](Self::drain), every accepted command is answered and every reply is sent.
    fn is_drained(&self) -> bool;

    /// Adds the front end's counters to `into`.
    fn add_counters(&self, into: &mut FrontEndCounters);
}
