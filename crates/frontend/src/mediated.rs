//! Mediated sharing of an NVMe controller: entries of attached clients are validated, rewritten and submitted to it.
//!
//! Input: entries in clients' rings. Output: the node's own entries in a queue of the controller, and their completions
//! in the rings. Invariant: the controller receives no byte of an entry that was not validated, and no address except
//! those that the node has mapped for the client of the entry.
//!
//! ```text
//!   rings --entry--> approve --own entry--> addresses by the client's table --> controller's queue
//!     ^                | refused              | not mapped                         | completed, or lost by a reset
//!     +--- completion -+----------------------+------------------------------------+
//! ```
//!
//! Trusted clients drive queues of the controller themselves ([`LentQueues`]): their entries do not pass through here.
//!
//! # Out of scope
//! The [attach front end](crate::attach) provides the control plane, grants and limits of clients, as for every device.

mod admission;
mod approval;
mod client_mapping;
mod device;
mod executor;
mod lending;
mod lent_queues;
mod range_pages;

pub use admission::{AdmittedEntry, EntryAdmission};
pub use client_mapping::{MemoryMapper, REGION_BYTES_MAX};
pub use device::{ControllerCompletion, ControllerRefusal, HardwareDevice, InterruptEventfd};
pub use executor::MediatedExecutor;
pub use lent_queues::{LENT_QUEUES_MAX, LentQueues};
pub use range_pages::RangePage;
