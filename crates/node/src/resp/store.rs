//! What the face asks of a device: submit, answers, numbers.
//!
//! In: commands of this face. Out: exactly one completion for every accepted one. The trait exists so that the face's
//! logic can be tested against a model with the same contract; it is a type parameter everywhere, never an object.

use headwater_converged::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use headwater_converged::device::{Device, DeviceStats};
use headwater_converged::media::Media;
use headwater_converged::namespace::NamespaceKind;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;

/// A device as a face sees it.
pub trait Store {
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

    /// Runs the stages as far as they go at this time; never blocks. Returns whether anything moved.
    fn advance(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// The numbers.
    fn stats(&self) -> DeviceStats;
}

impl<M: Media> Store for Device<M> {
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

    #[inline]
    fn advance(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        Self::poll(self, now, wall)
    }

    fn stats(&self) -> DeviceStats {
        Self::stats(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_converged::device::{DeviceConfig, Start};
    use headwater_converged::media::Geometry;
    use headwater_converged::media::memory::MemoryMedia;
    use headwater_converged::namespace::{BlockFormat, Namespace, NamespaceChange};

    #[test]
    fn no_database_command_empties_a_block_namespace() {
        let media = MemoryMedia::erased(Geometry::with_blocks(32)).unwrap();
        let start = Start { now: Nanos::ZERO, wall: UnixMillis(0) };
        let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let kind = NamespaceKind::Block(BlockFormat::B512);
        let create = NamespaceChange::Create(Namespace { kind, size: 8, ..Namespace::IMPLICIT });
        let (face, first, disk) = (FaceId(0), NamespaceId::FIRST, NamespaceId(2));
        Store::submit(&mut device, face, first, 1, Command::Namespace(create)).unwrap();
        while Store::next_completion(&mut device, face).is_none() {
            device.advance(Nanos::ZERO, UnixMillis(0));
        }
        let refused = Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        assert_eq!(Store::submit(&mut device, face, disk, 2, Command::Clear), refused);
        assert_eq!(Store::submit(&mut device, face, first, 3, Command::Clear), Ok(()));
    }
}
