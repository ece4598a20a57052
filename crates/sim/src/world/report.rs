//! The result of a simulated run: a report or a failure.

use crate::checker::PromiseViolation;
use crate::media::FlashMisuse;
use crate::simulated_device::DeviceActivity;
use headwater_host::clock::Nanos;
use headwater_ssd::command::SubmitError;

/// The receiver of the lines of a verbose run.
pub type LineSink<'a> = &'a mut dyn FnMut(&str);

/// The report of a run in which the device kept every promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunReport {
    /// The seed of the run.
    pub seed: u64,
    /// Commands accepted.
    pub commands: u64,
    /// Commands completed.
    pub completions: u64,
    /// Stores among them whose values the device received before.
    pub received: u64,
    /// Stores among those of a value that an earlier store left to its receipt, because its condition did not hold.
    pub received_again: u64,
    /// Power cuts, including those during recovery.
    pub cuts: u32,
    /// Power cuts during recovery.
    pub cuts_in_recovery: u32,
    /// True if the run ended because the device refused to open on a medium that had lied.
    pub refused_to_open: bool,
    /// Operations on the medium: each that was accepted, and each that finished, is one.
    pub media_operations: u64,
    /// Programs and erases that a power cut lost or tore.
    pub faults: u64,
    /// The work that the device did beside its commands.
    pub activity: DeviceActivity,
    /// Cut points that the first boot passed: see [`SimWorld::cut_at`](super::SimWorld::cut_at).
    pub first_boot_points: u64,
    /// Virtual time at the end.
    pub virtual_time: Nanos,
    /// Hash of every completion in order, with its time; equal for equal runs.
    pub digest: u64,
}

/// The cause of a failed run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureCause {
    /// The device broke a promise.
    #[error(transparent)]
    Violation(#[from] PromiseViolation),
    /// The device violated the rules of flash.
    #[error(transparent)]
    Misuse(#[from] FlashMisuse),
    /// The device could not be opened although the power was on.
    #[error("recovery failed with the power on: {0}")]
    Open(String),
    /// An inspection of the medium, before any device ran on it, found an error.
    #[error("inspection before recovery found errors on the medium: {0}")]
    Inspection(String),
    /// The device refused a legal command permanently.
    #[error("the device refused a legal command: {0}")]
    Refused(SubmitError),
    /// The device makes no progress and has no deadline.
    #[error("the device makes no progress with {in_flight} commands in flight")]
    NoProgress {
        /// Commands in flight.
        in_flight: usize,
    },
    /// The namespace table holds an entry that never existed, or one older than the acknowledged one.
    #[error("the namespace table has {seen}, but should have {expected}")]
    Table {
        /// The entry found.
        seen: String,
        /// The entries allowed.
        expected: String,
    },
    /// A device served although its opening is recorded on one side of the medium only.
    #[error(
        "the opening is recorded on one side of the blocks only: the sides know of the epochs {epochs:?}"
    )]
    OneSided {
        /// The latest epoch that each side knows of.
        epochs: [u64; 2],
    },
    /// The device was dropped without its medium.
    #[error("a dropped device did not return its medium")]
    MediumLost,
}

/// A run in which a promise was broken, with the command that replays it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "seed {seed}, boot {boot}, {commands} commands, virtual time {at}: {cause}\nreplay with: headwater sim replay --seed {seed}"
)]
pub struct RunFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the boot, from 0.
    pub boot: u32,
    /// Commands accepted before the failure.
    pub commands: u64,
    /// Virtual time of the failure.
    pub at: Nanos,
    /// The cause.
    pub cause: FailureCause,
}
