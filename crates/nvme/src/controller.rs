//! The controller's end of its queues: fetch in turn, answer each command exactly once.
//!
//! In: ring memory and doorbells that hosts write. Out: [`Fetched`] commands, and completions in the hosts' queues. No
//! clock, no socket: who owns an [`Arbiter`] decides when to look and whom to wake.
//!
//! [`Controller`] is the rest of it: registers and admin commands, the same for a PCIe function and for fabrics. It performs
//! no I/O; what must be done to queues or namespaces it hands back as an [`AdminStep`].
//!
//! # What this does not do
//! It understands no I/O command; the interpreter does.

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
