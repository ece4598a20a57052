//! The host side of a controller behind PCIe: a state machine without clock, thread or descriptor.
//!
//! Input: a [`PciFunction`] with registers, [`HostMemory`] that the controller reaches, and time as an argument. Output:
//! I/O queues, each for one thread, and the outcome of each of their commands. Every value from a controller is
//! untrusted and checked: a violation of the protocol leads to a reset, and too many resets in a row to a [`DeathCause`]
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
//! The rings are the host ends of [`ring`](crate::ring), with their doorbells in registers; [`build_data_pointer()`] builds data
//! pointers. The controller side, which tests run against this one, is [`controller`](crate::controller).
//!
//! # Limits
//! It neither waits nor wakes threads: the owner of the function holds the interrupt descriptors. It interprets no I/O
//! command.

mod admin_queue;
mod bring_up;
mod capabilities;
mod config;
mod controller_info;
mod entries;
mod error;
mod events;
mod io_queue;
mod lent;
mod lifecycle;
mod list_pages;
mod memory;
mod nvme_driver;
mod pci_function;
mod pointer_builder;
mod recovery;
mod requests;
mod ring_pair;

pub use bring_up::NAMESPACES_MAX;
pub use capabilities::{CapabilityFault, ControllerCapabilities};
pub use config::{ArbitrationWeights, DriverConfig};
pub use controller_info::{
    ControllerInfo, NamespaceFault, NamespaceKind, OptionalCommands, ScannedNamespace,
};
pub use error::{DeathCause, QueueError, RequestError, ResetCause};
pub use events::AsyncNotice;
pub use io_queue::{IoQueue, OverdueCommand, QueueFault, SubmitFault};
pub use lent::{LentFault, LentLayout, LentMemory, LentQueue, LentTerms, QueueLease, QueueRules};
pub use lifecycle::{DriverPhase, IoQueueState, SharedLifecycle};
pub use list_pages::{ListPages, PageChain};
#[cfg(not(loom))]
pub use memory::PoolMemory;
pub use memory::{DmaBlock, HostMemory};
pub use nvme_driver::NvmeDriver;
pub use pci_function::{PciFunction, PciFunctionError, RegistersFile, VfioFunction};
pub use pointer_builder::{DataPointerError, SglUse, build_data_pointer};
pub use requests::{AdminReply, AdminRequestData, QueueResult, QueueSpec, RequestTicket};
