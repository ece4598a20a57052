//! The controller side of NVMe queues: fetches commands by arbitration and completes each command exactly once.
//!
//! Input: ring memory and doorbells that hosts write. Output: [`Fetched`] commands, and completions in the hosts'
//! queues. It has no clock and no socket: the owner of an [`Arbiter`] decides when to poll and which host to wake.
//!
//! [`Controller`] holds the rest: registers and admin commands, the same for a PCIe function and for fabrics. It
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

pub use admin::{AdminAnswer, AdminData, AdminStep, Controller, ControllerConfig, Subsystem, Transport};
pub use arbiter::{
    AdminQueues, Arbiter, ArbiterError, CompletionQueueSpec, QueueLimits, SubmissionQueueSpec,
};
pub use arbiter::{DoorbellCells, DoorbellError};
pub use interrupts::{Coalescing, VectorCoalescing};
pub use queue::{Drain, Fetch, Fetched, IoQueue, QueueId, QueueKind, QueueState, QueueView};
pub use registers::{AdminQueuePlaces, RegisterEffect};
pub use schedule::{ArbitrationSettings, Mechanism, Priority};
pub use token::CommandToken;
