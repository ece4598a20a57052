//! A face: one way into the device, polled by the core's own loop.
//!
//! In: whatever its clients send. Out: commands to the device, answers to its clients. Invariant: a face never blocks; what
//! it waits for is either a descriptor or a point in time.

use crate::numbers::FaceNumbers;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::queue_pair::Sleep;
use std::os::fd::BorrowedFd;

/// What a look at a face costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollCost {
    /// Loads from memory: it is looked at in every turn.
    Memory,
    /// Calls into the kernel: while another face is looked at in memory, it waits a few microseconds for its turn.
    Kernel,
}

/// One way into a device `D`.
pub trait Face<D> {
    /// Moves what can be moved: bytes into commands, completions into bytes. Returns whether anything moved.
    fn poll(&mut self, device: &mut D, now: Nanos, wall: UnixMillis) -> bool;

    /// Becomes readable when [`poll`](Self::poll) has something to do that no device completion announces.
    fn wake_descriptor(&self) -> BorrowedFd<'_>;

    /// When the face next has work of its own, if it does.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// What [`poll`](Self::poll) costs when nothing has come.
    fn poll_cost(&self) -> PollCost {
        PollCost::Kernel
    }

    /// Asks clients who ring in memory to ring [`wake_descriptor`](Self::wake_descriptor) from now on. [`Sleep::No`] means
    /// that something came meanwhile: poll again. The next poll takes the wish back.
    fn prepare_sleep(&mut self) -> Sleep {
        Sleep::Until
    }

    /// Takes no more clients and no more commands; answers what is in flight.
    fn drain(&mut self);

    /// Whether, after [`drain`](Self::drain), every accepted command was answered and the answers were sent.
    fn is_drained(&self) -> bool;

    /// Adds the face's numbers.
    fn count(&self, into: &mut FaceNumbers);
}
