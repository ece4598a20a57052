//! The host side of a controller behind PCIe: a state machine without clock, thread or descriptor.
//!
//! Input: a [`Function`] with registers, [`HostMemory`] that the controller reaches, and time as an argument. Output:
//! I/O queues, each for one thread, and the outcome of each of their commands. Every value from a controller is
//! untrusted and checked: a violation of the protocol leads to a reset, and too many resets in a row to a [`Death`]
//! with its reason.
//!
//! ```text
//!   Controller --start, poll--> Ready --make_queue--> IoQueue --submit, ring--> rings, doorbells
//!      |  facts, namespaces                              |  reap: completions
//!      |  abort, reset, delete_queue  <--watch: overdue--+
//!      +--Life: Ready, Recovering, Dead; an epoch--------+  abandon: commands lost in a reset
//!      |
//!      +--lend_queue--> LentQueue ~~~ (another process) IoQueue::borrowed
//! ```
//!
//! The rings are the host ends of [`ring`](crate::ring), with their doorbells in registers; [`describe()`] builds data
//! pointers. The controller side, which tests run against this one, is [`controller`](crate::controller).
//!
//! # Limits
//! It neither waits nor wakes threads: the owner of the function holds the interrupt descriptors. It interprets no I/O
//! command.

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
