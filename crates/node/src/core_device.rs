//! A device as the node sees it: what the core's loop, the faces and the `kv --data` commands ask of it.
//!
//! In: commands and time. Out: completions and numbers. Implemented for the device on file media in `device_file`.

use crate::metrics::Trace;
use headwater_converged::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use headwater_converged::device::DeviceStats;
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use std::os::fd::BorrowedFd;

/// A device that a node can run.
pub trait CoreDevice {
    /// Submits a command. `Ok` means exactly one completion follows; `Err` means none will.
    ///
    /// # Errors
    /// [`SubmitError::Busy`] to ask again later, [`SubmitError::Refused`] for a command that can never work.
    fn submit(
        &mut self,
        face: FaceId,
        namespace: NamespaceId,
        token: u64,
        command: Command,
    ) -> Result<(), SubmitError>;

    /// Takes the next completion that may leave.
    fn next_completion(&mut self, face: FaceId) -> Option<Completion>;

    /// Runs every stage as far as it goes; never blocks. Returns whether anything moved.
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// When the device next has work of its own: a durability interval, a key that ceases to exist.
    fn next_deadline(&self, now: Nanos, wall: UnixMillis) -> Option<Nanos>;

    /// The last sampled request.
    fn trace(&self) -> Option<Trace>;

    /// Becomes readable when the medium has answered.
    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The numbers.
    fn stats(&self) -> DeviceStats;

    /// Makes everything durable, whatever the mode of its namespace, and writes a checkpoint. Blocks.
    ///
    /// # Errors
    /// When the medium refuses.
    fn shutdown(&mut self, clock: &Clock) -> Result<(), String>;
}

/// Waits until the device can go on: a medium's answer or a deadline. For callers that have nothing else to do.
///
/// # Errors
/// When the system refuses to wait.
pub fn wait_for(device: &impl CoreDevice, now: Nanos, wall: UnixMillis) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    // A tenth of a second is no tick: it only bounds what a device that named neither descriptor nor time costs.
    let most = Nanos::from_millis(100);
    let span = device.next_deadline(now, wall).map_or(most, |at| at.since(now).min(most));
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::try_from(span.0).unwrap_or(0) };
    let mut descriptors: Vec<PollFd<'_>> = device
        .wake_descriptor()
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .into_iter()
        .collect();
    match poll(&mut descriptors, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
