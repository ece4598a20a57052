//! The way of a world's commands to its device and its checker.
//!
//! Input: commands. Output: commands that the device accepted, which the checker knows. Invariant: the checker learns of a
//! command exactly if the device accepted it.

use super::{FailureCause, SimPower, SimWorld};
use crate::checker::CheckedCommand;
use crate::media::CrashImage;
use crate::simulated_device::SimulatedDevice;
use headwater_host::clock::UnixMillis;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCommand, SsdCompletion, SubmitError, ValueSource};

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Submits one command and waits for its completion; `None` if the power was cut first.
    pub(super) fn submit_and_wait(
        &mut self,
        engine: &mut E,
        image: &CrashImage,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<Option<(SsdCompletion, UnixMillis)>, FailureCause> {
        self.completions.clear();
        if self.submit(engine, namespace, command)?.is_none() {
            return Err(FailureCause::NoProgress { in_flight: 0 });
        }
        Ok(match self.drain(engine, image)? {
            SimPower::On => self.completions.pop(),
            SimPower::PowerLost => None,
        })
    }

    /// Submits a command; `None` if the device is busy.
    pub(super) fn submit(
        &mut self,
        engine: &mut E,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<Option<()>, FailureCause> {
        let asked = self.checker.prepare(namespace, &command, self.wall());
        self.submit_as(engine, namespace, (asked, command))
    }

    /// Submits a command that the checker knows as `asked`.
    pub(super) fn submit_as(
        &mut self,
        engine: &mut E,
        namespace: NamespaceId,
        (asked, command): (CheckedCommand, SsdCommand),
    ) -> Result<Option<()>, FailureCause> {
        let token = self.next_token;
        self.log(|| format!("{token} {namespace} submits {}", asked.describe()));
        let asked_of = if let SsdCommand::Namespace(change) = &command { Some(change.clone()) } else { None };
        let is_received = matches!(&command, SsdCommand::Store { value: ValueSource::Received { .. }, .. });
        match engine.submit(namespace, token, command) {
            Ok(()) => {
                if let Some(disk) = &mut self.disk {
                    disk.accepted(token, &asked_of);
                }
                self.next_token += 1;
                self.report.commands += 1;
                self.checker.accepted(token, asked)?;
                Ok(Some(()))
            }
            // A value may be too long for a small device.
            Err(SubmitError::Busy(_) | SubmitError::Refused(Status::INVALID_VALUE_SIZE)) => Ok(None),
            // A value that the device could not keep while it received it.
            Err(SubmitError::Refused(Status::MEDIUM_FAILED | Status::CAPACITY_EXCEEDED)) if is_received => {
                Ok(None)
            }
            Err(refused) => Err(FailureCause::Refused(refused)),
        }
    }
}
