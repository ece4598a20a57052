//! The real device as the world drives it.

use super::{BootTime, Engine};
use crate::media::SimMedia;
use headwater_converged::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use headwater_converged::device::{Device, DeviceConfig, Start};
use headwater_converged::inspection::inspect;
use headwater_converged::namespace::Namespace;
use headwater_host::clock::{Nanos, UnixMillis};

/// The one face of a simulated device.
const FACE: FaceId = FaceId(1);

impl Engine for Device<SimMedia> {
    fn open(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String> {
        let start = Start { now: at.now, wall: at.wall };
        Device::open(media, config.clone(), start, &mut |_| {}).map_err(|error| error.to_string())
    }

    /// A power cut leaves torn records, and batches and checkpoints without an end; never a record that the index names and
    /// that is not there, and never an index that depends on where recovery starts.
    fn inspect(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<(), String> {
        let start = Start { now: at.now, wall: at.wall };
        let (found, _) = inspect(media, config, start, &mut |_| {})
            .map_err(|error| format!("cannot be inspected: {error}"))?;
        if found.faults.count == 0 && found.differences.count == 0 {
            return Ok(());
        }
        Err(format!("faults {:?}, differences {:?}", found.faults, found.differences))
    }

    fn submit(&mut self, namespace: NamespaceId, token: u64, command: Command) -> Result<(), SubmitError> {
        Device::submit(self, FACE, namespace, token, command)
    }

    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        Device::poll(self, now, wall)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        Device::next_completion(self, FACE)
    }

    fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        Device::namespace(self, namespace)
    }

    fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        Device::is_attached(self, namespace, controller)
    }

    fn nudge(&mut self) {
        self.request_checkpoint();
    }

    fn shut_down(&mut self, at: BootTime) -> Option<Nanos> {
        self.shutdown(at.now, at.wall).ok()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        Device::next_deadline(self)
    }
}
