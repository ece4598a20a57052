//! The controller side of NVMe queues: fetches commands by arbitration and completes each command exactly once.
//!
//! Input: ring memory and doorbells that hosts write. Output: [`FetchedCommand`] commands, and completions in the hosts'
//! queues. It has no clock and no socket: the owner of an [`QueueArbiter`] decides when to poll and which host to wake.
//!
//! [`DeviceController`] holds the rest: registers and admin commands, the same for a PCIe function and for fabrics. It
//! performs no I/O; it returns work on queues or namespaces to its caller as an [`AdminStep`].
//!
//! # Out of scope
//! I/O commands: the interpreter decodes and executes them.

pub mod admin;
pub mod arbiter;
mod completion_queue;
pub mod interrupts;
pub mod live_ids;
pub mod queue;
pub mod registers;
pub mod schedule;
mod submission_queue;
pub mod token;

pub use admin::{
    AdminCompletion, AdminData, AdminStep, ControllerConfig, ControllerTransport, DeviceController,
    NvmSubsystem,
};
pub use arbiter::{
    AdminQueues, ArbiterError, CompletionQueueSpec, QueueArbiter, QueueLimits, SubmissionQueueSpec,
};
pub use arbiter::{DoorbellCells, DoorbellError};
pub use interrupts::{InterruptCoalescing, VectorCoalescing};
pub use queue::{
    ControllerQueuePair, DrainProgress, FetchOutcome, FetchedCommand, QueueId, QueueKind, QueueState,
    QueueView,
};
pub use registers::{AdminQueueAddresses, RegisterEffect};
pub use schedule::{ArbitrationSettings, QueueArbitration};
pub use token::CommandToken;
