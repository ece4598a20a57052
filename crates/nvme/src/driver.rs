//! The host's half of a controller behind PCIe: a state machine without clock, thread or descriptor.
//!
//! In: a [`Function`] with registers, [`HostMemory`] that the controller reaches, and time as an argument. Out: I/O queues,
//! each for one thread, and whatever becomes of their commands. What a controller does is input: each value is checked, and
//! the worst of them leads to a reset, and too many resets to a [`Death`] with its reason.
//!
//! ```text
//!   Controller --start, poll--> Ready --make_queue--> IoQueue --submit, ring--> rings, doorbells
//!      |  facts, namespaces                              |  reap: answers
//!      |  abort, reset, delete_queue  <--watch: overdue--+
//!      +--Life: Ready, Recovering, Dead; an epoch--------+  abandon: what a reset lost
//!      |
//!      +--lend_queue--> LentQueue ~~~ (another process) IoQueue::borrowed
//! ```
//!
//! Rings are those of [`ring`](crate::ring), the host's ends with their doorbells in registers; data pointers are built by
//! [`describe()`]. The controller's half, for tests of this one, is [`controller`](crate::controller).
//!
//! # What this does not do
//! It does not wait, and wakes nobody: interrupts are descriptors of whoever owns the function. It knows no I/O command.

mod admin_queue;
mod bring_up;
mod capabilities;
mod config;
mod controller;
mod describe;
mod entries;
mod error;
mod events;
mod facts;
mod function;
mod io_queue;
mod lent;
mod life;
mod list_pages;
mod memory;
mod pair;
mod recovery;
mod requests;

pub use bring_up::NAMESPACES_MAX;
pub use capabilities::{Capabilities, CapabilityFault};
pub use config::{DriverConfig, Weights};
pub use controller::Controller;
pub use describe::{DescribeError, SglUse, describe};
pub use error::{Death, QueueError, RequestError, Trouble};
pub use events::AsyncNotice;
pub use facts::{ControllerFacts, Namespace, NamespaceFault, NamespaceKind, OptionalCommands};
pub use function::{Function, FunctionError, RegistersFile, VfioFunction};
pub use io_queue::{IoQueue, Overdue, QueueFault, SubmitFault};
pub use lent::{Lease, LentFault, LentLayout, LentMemory, LentQueue, LentTerms, QueueRules};
pub use life::{Fate, Life, Phase};
pub use list_pages::{Chain, ListPages};
#[cfg(not(loom))]
pub use memory::PoolMemory;
pub use memory::{Block, HostMemory};
pub use requests::{AdminBytes, AdminReply, MadeQueue, QueueSpec, Ticket};
