//! What the face asks of a device: submit, answers, numbers.
//!
//! In: commands of this face. Out: exactly one completion for every accepted one. The trait exists so that the face's
//! logic can be tested against a model with the same contract; it is a type parameter everywhere, never an object.

use headwater_converged::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use headwater_converged::device::{Device, DeviceStats};
use headwater_converged::media::Media;
use headwater_host::clock::{Nanos, UnixMillis};

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
