//! A face: one way into the device, polled by the core's own loop.
//!
//! In: whatever its clients send. Out: commands to the device, answers to its clients. Invariant: a face never blocks; what
//! it waits for is either a descriptor or a point in time.

use crate::metrics::FaceNumbers;
use headwater_host::clock::{Nanos, UnixMillis};
use std::os::fd::BorrowedFd;

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

    /// Takes no more clients and no more commands; answers what is in flight.
    fn drain(&mut self);

    /// Whether, after [`drain`](Self::drain), every accepted command was answered and the answers were sent.
    fn is_drained(&self) -> bool;

    /// Adds the face's numbers.
    fn count(&self, into: &mut FaceNumbers);
}
