//! How a simulated run ended.

use crate::checker::Violation;
use crate::media::Misuse;
use headwater_converged::command::SubmitError;
use headwater_host::clock::Nanos;

/// A run in which every promise was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the run was made from.
    pub seed: u64,
    /// Commands accepted.
    pub commands: u64,
    /// Commands completed.
    pub completions: u64,
    /// Power cuts, those during recovery included.
    pub cuts: u32,
    /// Power cuts during recovery.
    pub cuts_in_recovery: u32,
    /// Cut points that the first boot passed: see [`World::cut_at`](super::World::cut_at).
    pub first_boot_points: u64,
    /// Virtual time at the end.
    pub virtual_time: Nanos,
    /// Hash of every completion in order, with its time: equal for equal runs.
    pub digest: u64,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A promise was broken.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// Flash was asked what it cannot do.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The device could not be opened though the power was on.
    #[error("recovery failed with the power on: {0}")]
    Open(String),
    /// A look at the medium, with no device on it, found something wrong.
    #[error("the medium is not in order before recovery: {0}")]
    Inspection(String),
    /// A legal command was refused for good.
    #[error("a legal command was refused: {0}")]
    Refused(SubmitError),
    /// The device neither moves nor says when it will.
    #[error("the device stands still with {in_flight} commands in flight")]
    Stuck {
        /// Commands in flight.
        in_flight: usize,
    },
    /// The table of namespaces says what it never said, or something older than what was acknowledged.
    #[error("the table of namespaces has {seen}, but should have {expected}")]
    Table {
        /// What it has.
        seen: String,
        /// What it might have.
        expected: String,
    },
    /// The device is gone and kept its medium.
    #[error("the medium did not come back from a device that was dropped")]
    MediumLost,
}

/// A run in which a promise was broken, with the way to see it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "seed {seed}, boot {boot}, {commands} commands, virtual time {at}: {cause}\nreplay with: headwater sim replay --seed {seed}"
)]
pub struct Failure {
    /// What the run was made from.
    pub seed: u64,
    /// Which boot, from 0.
    pub boot: u32,
    /// Commands accepted until then.
    pub commands: u64,
    /// Virtual time.
    pub at: Nanos,
    /// What went wrong.
    pub cause: Cause,
}
