//! A device as the node sees it: what the core's loop, the faces and the `kv --data` commands ask of it.
//!
//! In: commands and time. Out: completions and numbers. Traits, and a type parameter everywhere, so that the faces' logic
//! can be tested against a model with the same contract, and the loop runs what takes no such commands.

use crate::numbers::{Trace, TraceStage};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use headwater_ssd::engine::{Device, DeviceStats};
use headwater_ssd::media::Media;
use headwater_ssd::namespace::NamespaceKind;
use std::os::fd::BorrowedFd;

/// What the core's loop asks of whatever it runs.
pub trait CoreWork {
    /// Runs every stage as far as it goes; never blocks. Returns whether anything moved.
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// When the device next has work of its own: a durability interval, a key that ceases to exist.
    fn next_deadline(&self, now: Nanos, wall: UnixMillis) -> Option<Nanos> {
        let _ = (now, wall);
        None
    }

    /// The last sampled request.
    fn trace(&self) -> Option<Trace> {
        None
    }

    /// Becomes readable when the medium has answered.
    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The numbers.
    fn stats(&self) -> DeviceStats;

    /// Makes everything durable, whatever the mode of its namespace, and writes a checkpoint. Blocks.
    ///
    /// # Errors
    /// When the medium refuses.
    fn shutdown(&mut self, clock: &Clock) -> Result<(), String>;
}

/// A device that faces give commands to.
pub trait CoreDevice: CoreWork {
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
}

/// Longest sleep for an expiry, a day: the wall clock may be set meanwhile.
const EXPIRY_MS_MAX: u64 = 86_400_000;

impl<M: Media> CoreDevice for Device<M> {
    #[inline]
    fn submit(
        &mut self,
        face: FaceId,
        namespace: NamespaceId,
        token: u64,
        command: Command,
    ) -> Result<(), SubmitError> {
        // A block namespace is no database: its owner did not mean FLUSHALL.
        let is_block = |kind| matches!(kind, NamespaceKind::Block(_));
        if matches!(command, Command::Clear)
            && self.namespace(namespace).is_some_and(|made| is_block(made.kind))
        {
            return Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        }
        Self::submit(self, face, namespace, token, command)
    }

    #[inline]
    fn next_completion(&mut self, face: FaceId) -> Option<Completion> {
        Self::next_completion(self, face)
    }
}

impl<M: Media> CoreWork for Device<M> {
    #[inline]
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        Self::poll(self, now, wall)
    }

    fn next_deadline(&self, now: Nanos, wall: UnixMillis) -> Option<Nanos> {
        let expiry = self
            .next_expiry()
            .map(|at| now.after(Nanos::from_millis(at.0.saturating_sub(wall.0).min(EXPIRY_MS_MAX))));
        Self::next_deadline(self).into_iter().chain(expiry).min()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.media().wake_descriptor()
    }

    fn stats(&self) -> DeviceStats {
        Self::stats(self)
    }

    fn trace(&self) -> Option<Trace> {
        let trace = Self::trace(self)?;
        let stages = [("queued", trace.queued), ("executed", trace.executed), ("durable", trace.durable)];
        Some(Trace {
            command: trace.command,
            total_ns: stages.iter().map(|(_, time)| time.0).sum(),
            stages: stages.into_iter().map(|(stage, time)| TraceStage { stage, ns: time.0 }).collect(),
        })
    }

    fn shutdown(&mut self, clock: &Clock) -> Result<(), String> {
        Self::shutdown(self, clock.now(), clock.wall()).map(|_time| ()).map_err(|error| error.to_string())
    }
}

/// Waits until the device can go on: a medium's answer or a deadline. For callers that have nothing else to do.
///
/// # Errors
/// When the system refuses to wait.
pub fn wait_for(device: &impl CoreWork, now: Nanos, wall: UnixMillis) -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    // A tenth of a second is no tick: it only bounds what a device that named neither descriptor nor time costs.
    let most = Nanos::from_millis(100);
    let span = device.next_deadline(now, wall).map_or(most, |at| at.since(now).min(most));
    let mut descriptors: Vec<PollFd<'_>> = device
        .wake_descriptor()
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .into_iter()
        .collect();
    match poll(&mut descriptors, Some(&span.to_timespec())) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_ssd::engine::{DeviceConfig, Start};
    use headwater_ssd::media::Geometry;
    use headwater_ssd::media::memory::MemoryMedia;
    use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange};

    #[test]
    fn no_database_command_empties_a_block_namespace() {
        let media = MemoryMedia::erased(Geometry::with_blocks(32)).unwrap();
        let start = Start { now: Nanos::ZERO, wall: UnixMillis(0) };
        let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let kind = NamespaceKind::Block(BlockFormat::B512);
        let create = NamespaceChange::Create(Namespace { kind, size: 8, ..Namespace::IMPLICIT });
        let (face, first, disk) = (FaceId(0), NamespaceId::FIRST, NamespaceId(2));
        CoreDevice::submit(&mut device, face, first, 1, Command::Namespace(create)).unwrap();
        while CoreDevice::next_completion(&mut device, face).is_none() {
            device.poll(Nanos::ZERO, UnixMillis(0));
        }
        let refused = Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        assert_eq!(CoreDevice::submit(&mut device, face, disk, 2, Command::Clear), refused);
        assert_eq!(CoreDevice::submit(&mut device, face, first, 3, Command::Clear), Ok(()));
    }
}
