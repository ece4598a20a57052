//! The answers that are right only because the medium failed or lied.
//!
//! Input: a completion, and what the medium did. Output: true if an explicit error is a right answer. Invariant: only an
//! error is excused, never a wrong answer; and none of a key that was written since the medium is honest again.

use super::{FAILURES, FailureCause, SimWorld, WorldConfig};
use crate::checker::{DeviceChecker, PromiseViolation};
use crate::media::CrashImage;
use crate::simulated_device::SimulatedDevice;
use crate::workload::{FeatureUse, key_bytes};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::SsdCompletion;

/// Errors of a device whose medium is honest again: what it lost stays lost, and blocks of which a page cannot be read
/// are in the way of writes.
const LASTING_FAILURES: &[Status] = &[
    Status::UNRECOVERED_ERROR,
    Status::UNRECOVERED_READ_ERROR,
    Status::NAMESPACE_NOT_READY,
    Status::WRITE_FAULT,
];

/// The honesty of the medium so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediumPast {
    /// It kept its promises.
    Honest,
    /// It breaks them in this boot.
    Faulty,
    /// It broke them in an earlier boot.
    Damaged,
}

/// Makes the checker of a world.
pub(super) fn checker_of(config: &WorldConfig) -> DeviceChecker {
    let mut checker = DeviceChecker::new(&config.device.durability);
    checker.expect_room(config.room_bytes);
    if config.workload.batch_clears != FeatureUse::Never {
        checker.expect_keys(config.workload.namespaces, (0..config.workload.keys).map(key_bytes));
    }
    if config.switches.resting_faults != FeatureUse::Never {
        // Damage behind a boot can take the last commit, which an earlier boot made.
        checker.begin_faulty();
    }
    checker
}

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Returns true if a completion is an explicit error that the medium explains: no answer is wrong but a silent one.
    pub(super) fn is_excused(&self, completion: &SsdCompletion) -> bool {
        match self.past {
            MediumPast::Honest => false,
            MediumPast::Faulty => {
                FAILURES.contains(&completion.status) || completion.status == Status::WRITE_FAULT
            }
            MediumPast::Damaged => LASTING_FAILURES.contains(&completion.status),
        }
    }

    /// Retires a command whose error is excused.
    pub(super) fn excuse(&mut self, completion: &SsdCompletion) -> Result<(), PromiseViolation> {
        if self.past == MediumPast::Damaged {
            self.checker.check_unsettled(completion.token, completion.status)?;
        }
        self.checker.failed(completion.token)
    }

    /// Lets go of writes that the lie of the last boot took without a trace. There are none if the device was idle for long
    /// enough: a record on the medium says then that they are durable.
    pub(super) fn excuse_unwitnessed(&mut self, image: &CrashImage) {
        let Some(durable) = image.unwitnessed_above().filter(|_| !self.said_durable) else { return };
        self.log(|| format!("a lie took the commit behind sequence {}", durable.0));
        if let Some(disk) = &mut self.disk
            && disk.undo_change_above(durable)
        {
            self.checker.resolve_change(false);
        }
        self.checker.lose_above(durable);
    }

    /// Checks that both sides of an honest medium know of the opening: each of them may be lost next.
    pub(super) fn check_sides(&self, image: &CrashImage) -> Result<(), FailureCause> {
        let is_asked = self.config.switches.cell_losses == FeatureUse::Some
            && self.has_opened
            && self.past == MediumPast::Honest;
        match image.recorded_epochs().filter(|_| is_asked) {
            Some(epochs) if epochs[0] != epochs[1] => Err(FailureCause::OneSided { epochs }),
            _ => Ok(()),
        }
    }
}
