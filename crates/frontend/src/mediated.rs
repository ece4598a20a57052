//! A controller of the node's own, shared: entries of attached clients are checked, rewritten and handed to it.
//!
//! In: entries in clients' rings. Out: entries of the node's in a queue of the controller, and their answers back in the
//! rings. Invariant: the controller sees no byte of an entry that was not checked, and no address but those that the node
//! has mapped for the client whose entry it is.
//!
//! ```text
//!   rings --entry--> approve --own entry--> addresses by the client's table --> controller's queue
//!     ^                | refused              | not mapped                         | answered, or lost by a reset
//!     +--- completion -+----------------------+------------------------------------+
//! ```
//!
//! Clients who are trusted with it drive queues of the controller themselves ([`LentQueues`]): no entry of theirs comes by here.
//!
//! # What this does not do
//! The control plane, grants and limits of clients are the [attach face](crate::attach)'s, as with every device.

mod admission;
mod approval;
mod device;
mod executor;
mod lending;
mod lent_queues;
mod ranges;
mod reach;

pub use admission::{Admission, Admitted};
pub use device::{Answer, Bell, HardwareDevice, NotTaken};
pub use executor::ForwardingExecutor;
pub use lent_queues::{LENT_QUEUES_MAX, LentQueues};
pub use ranges::RangePage;
pub use reach::{Mapper, REGION_BYTES_MAX};
